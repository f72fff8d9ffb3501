"""Help dialog with all keys, and an overlay of letters that move the focus to their widgets."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Label, Static

from skyward_tui.dialogs.basic_dialogs import Dialog, DismissOnceScreen
from skyward_tui.ui.actions import SCOPES, actions_in, bindings, scopes_of
from skyward_tui.ui.themes import read_style_sheet

KEYS = 18  # cells for the keys
MIN_WORDS = 20  # minimum cells for the descriptions

_GROUPS = {
    "run": ("run", "log", "panel", "metrics"),
    "pools": ("pools", "panel"),
    "launch": ("launch", "choice", "toggles", "fold", "files"),
}


class HelpScreen(Dialog[None]):
    """Dialog with a scrollable list of keys. The keys that open the dialog also close it.

    Args:
        scope: Scope whose actions are listed first.
    """

    BINDINGS = bindings("help")
    BOX: ClassVar[type[Widget]] = VerticalScroll
    DEFAULT_CSS = read_style_sheet(__file__, "help")
    heading = "keys"

    def __init__(self, scope: str = "") -> None:
        super().__init__()
        self._scope = scope
        self._focused: list[str] = []

    def on_mount(self) -> None:
        below = self.app.screen_stack[-2].focused
        if below is not None:
            nodes = [node for node in below.ancestors_with_self if node is not self.app]
            # Bindings of a class follow those of its base classes but are more relevant, so the order is reversed.
            bound = (each.id or "" for node in nodes for _, each in reversed(list(node._bindings)))
            self._focused = scopes_of(bound)

    def body(self) -> ComposeResult:
        yield Static()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        text = self.query_one(Static)
        text.update(self._text(text.content_size.width))

    def hint(self) -> str:
        return f"{self.key_of('dialog.close')}: close"

    def _text(self, width: int) -> Content:
        first = _GROUPS.get(self._scope, (self._scope,)) if self._scope else ()
        first = tuple(dict.fromkeys((*self._focused, *first)))
        parts: list[tuple[str, str]] = []
        first = ("replay", *first) if self.app.REPLAYS else first
        others = (scope for scope in SCOPES if scope not in (*first, "replay", "app"))
        for scope in [*first, "app", *others]:
            parts.append((f"\n{SCOPES[scope]}\n", "bold $text-accent"))
            for action in actions_in(scope):
                keys = " ".join(action.shown_keys(self.app.keys))
                danger = "  (asks first)" if action.dangerous else ""
                lines = textwrap.wrap(f"{action.help}{danger}", max(MIN_WORDS, width - KEYS))
                parts += [(f"  {keys:<{KEYS - 3}} ", "bold"), (f"\n{' ' * KEYS}".join(lines) + "\n", "")]
        return Content.assemble(*parts)

    def action_scroll(self, step: int) -> None:
        self.box.scroll_relative(y=step, animate=False)


LETTERS = "asdfghjklqwertyuiopzxcvbnm1234567890"


class JumpScreen(ModalScreen[Widget], DismissOnceScreen[Widget]):
    """Overlay of letters; returns the widget of the typed letter, or None for any other key.

    Args:
        there: Focusable widgets of the screen below the overlay.
    """

    BINDINGS = bindings("jump")
    DEFAULT_CSS = read_style_sheet(__file__, "focus_jump_overlay")

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
