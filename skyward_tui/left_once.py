"""Screens that are left once, however often that is asked for: the second half of a double click, and a key that was
typed ahead, would leave the screen below, too."""

from __future__ import annotations

from typing import TypeVar

from textual import on
from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.screen import Screen
from textual.widgets import OptionList

Result = TypeVar("Result")


class LeftOnce(Screen[Result]):
    """What all screens and dialogs of the app are. Of several bases it is the last: the first one gives styles."""

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Go, with a result, unless that has been done, or something lies over it."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def leave(self) -> None:
        """Go without a result, on the same terms."""
        if self.is_active:
            self.app.pop_screen()


class Palette(CommandPalette, LeftOnce[None]):
    """Textual's, which does a thing once."""

    @on(OptionList.OptionSelected)
    def _refuse_more(self, event: OptionList.OptionSelected) -> None:
        if not self.is_active:
            event.prevent_default()
