"""Letters over all focusable widgets: typing one moves the focus there."""

from __future__ import annotations

from collections.abc import Iterable

from textual import events
from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Label

from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.ui.type_ahead import DismissOnceScreen

LETTERS = "asdfghjklqwertyuiopzxcvbnm1234567890"


class JumpScreen(ModalScreen[Widget], DismissOnceScreen[Widget]):
    """Lies over a screen, and ends with what was chosen there; any other key leaves all as it is.

    Args:
        there: what can be gone to on the screen below.
    """

    BINDINGS = bindings("jump")
    DEFAULT_CSS = read_style_sheet(__file__, "jump")

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
        """Go where a letter leads; bindings of the app that one would be are not for now."""
        if event.key == "escape":
            return
        event.stop()
        event.prevent_default()
        self.dismiss(self._targets.get(event.character or ""))

    def on_click(self) -> None:
        self.dismiss()

    def on_resize(self, event: events.Resize) -> None:
        self._laid_out_for = self._laid_out_for or event.size
        if event.size != self._laid_out_for:  # the letters would lie elsewhere
            self.dismiss()

    def action_close(self) -> None:
        self.dismiss()


def jump_targets(screen: Screen[object]) -> list[Widget]:
    """What can have the focus and is in sight, from the top to the bottom."""
    seen = screen._compositor.visible_widgets
    there = [widget for widget in screen.focus_chain if widget in seen and widget.region.area]
    return sorted(there, key=lambda widget: (widget.region.y, widget.region.x))
