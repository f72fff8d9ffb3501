"""Asks for a key by having it pressed."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.widgets import Static

from .base import Dialog


class _Waiting(Static, can_focus=True):
    """Has the focus, so that no button takes the key."""


class KeyScreen(Dialog[str | None]):
    """Returns the key that was pressed, in Textual's names; escape gives None, and so can be no key of one's own here.

    Args:
        doing: what the key is to do.
    """

    heading = "Another key"

    def __init__(self, doing: str) -> None:
        super().__init__()
        self._doing = doing
        self._left = False

    def body(self) -> ComposeResult:
        yield _Waiting(
            f"{self._doing}\n\nPress the key that is to do that; esc leaves it as it is.", markup=False
        )

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        if self._left:  # several keys may come before it is gone
            return
        self._left = True
        self.dismiss(None if event.key == "escape" else event.key)
