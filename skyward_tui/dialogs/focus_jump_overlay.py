"""Keyboard focus by letters: each focusable widget gets a letter, and typing a letter moves the focus to its widget."""

from __future__ import annotations

from collections.abc import Iterable

from textual import events
from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Label

from skyward_tui.dialogs.basic_dialogs import DismissOnceScreen
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import read_style_sheet

LETTERS = "asdfghjklqwertyuiopzxcvbnm1234567890"


class JumpScreen(ModalScreen[Widget], DismissOnceScreen[Widget]):
    """Overlay of letters; returns the widget of the typed letter, or None for any other key.

    Args:
        there: Focusable widgets of the screen below the overlay.
    """

    BINDINGS = bindings("jump")
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self, there: Iterable[Widget]) -> None:
        super().__init__()
        self._targets = dict(zip(LETTERS, there, strict=False))
        self._laid_out_for: Size | None = None

    def compose(self) -> ComposeResult:
        for letter, widget in self._targets.items():
            label = Label(f" {letter} ", markup=False)
            label.styles.offset = widget.region.offset
            yield label

    def on_key(self, event: events.Key) -> None:
        """Close the overlay with the widget of the typed letter. Bindings of the app do not apply."""
        if event.key == "escape":
            return
        event.stop()
        event.prevent_default()
        self.dismiss(self._targets.get(event.character or ""))

    def on_click(self) -> None:
        self.dismiss()

    def on_resize(self, event: events.Resize) -> None:
        self._laid_out_for = self._laid_out_for or event.size
        if event.size != self._laid_out_for:  # the widgets below have moved
            self.dismiss()

    def action_close(self) -> None:
        self.dismiss()


def jump_targets(screen: Screen[object]) -> list[Widget]:
    """Return the visible focusable widgets of a screen, from top to bottom."""
    seen = screen._compositor.visible_widgets
    there = [widget for widget in screen.focus_chain if widget in seen and widget.region.area]
    return sorted(there, key=lambda widget: (widget.region.y, widget.region.x))
