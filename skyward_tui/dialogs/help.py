"""Every key, those of the screen in front first."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from ..actions import SCOPES, bindings, of
from ..styles import beside
from .base import Dialog

_GROUPS = {
    "run": ("run", "log", "panel", "numbers"),
    "pools": ("pools", "panel"),
    "launch": ("launch", "choice", "toggles", "files"),
}


class HelpScreen(Dialog[None]):
    """A list to scroll; any of the keys that opened it closes it.

    Args:
        scope: of the actions that come first.
    """

    BINDINGS = bindings("help")
    BOX: ClassVar[type[Widget]] = VerticalScroll
    DEFAULT_CSS = beside(__file__)
    heading = "keys"

    def __init__(self, scope: str = "") -> None:
        super().__init__()
        self._scope = scope

    def body(self) -> ComposeResult:
        yield Static(self._text())

    def hint(self) -> str:
        return f"{self.key_of('dialog.close')} closes"

    def _text(self) -> Content:
        first = _GROUPS.get(self._scope, (self._scope,)) if self._scope else ()
        parts: list[tuple[str, str]] = []
        first = ("replay", *first) if self.app.REPLAYS else first
        others = (scope for scope in SCOPES if scope not in (*first, "replay", "app"))
        for scope in [*first, "app", *others]:
            parts.append((f"\n{SCOPES[scope]}\n", "bold $text-accent"))
            for action in of(scope):
                keys = " ".join(action.shown_keys(self.app.keys))
                danger = "  (asks first)" if action.dangerous else ""
                parts += [(f"  {keys:<16}", "bold"), (f"{action.help}{danger}\n", "")]
        return Content.assemble(*parts)

    def action_scroll(self, step: int) -> None:
        self.box.scroll_relative(y=step, animate=False)
