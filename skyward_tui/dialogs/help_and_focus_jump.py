"""Help dialog with all keys, and an overlay of letters that move the focus to their widgets."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from math import ceil
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from skyward_tui.dialogs.basic_dialogs import Dialog, DismissOnceScreen
from skyward_tui.ui.actions import SCOPES, Action, actions_in, bindings, scopes_of
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.screen_frame_and_replay_line import TextLine

MOST_KEYS = 9  # maximum width in cells of the column with keys
MIN_WORDS = 20  # minimum width in cells of the descriptions of keys
# minimum width and gap of the help's columns, in cells; maximum number of columns
MIN_COLUMN, GAP, MAX_COLUMNS = 46, 2, 3

_GROUPS = {
    "run": ("run", "log", "panel", "metrics"),
    "pools": ("pools", "panel"),
    "launch": ("launch", "choice", "toggles", "fold", "files"),
}


class HelpScreen(Dialog[None]):
    """Dialog with a scrollable list of keys. The keys that open the dialog also close it.

    Args:
        scope: Scope whose actions are listed first.
        preferred: Actions that come before all others.
    """

    BINDINGS = bindings("help")
    BOX: ClassVar[type[Widget]] = VerticalScroll
    DEFAULT_CSS = read_style_sheet(__file__, "help")
    heading = "keys"

    def __init__(self, scope: str = "", preferred: Sequence[Action] = ()) -> None:
        super().__init__()
        self._scope = scope
        self._preferred = preferred
        self._focused: list[str] = []

    def on_mount(self) -> None:
        below = self.app.screen_stack[-2].focused
        if below is not None:
            nodes = [node for node in below.ancestors_with_self if node is not self.app]
            # The bindings of a class come after those of its base classes, but matter more to the user, so reverse the
            # order.
            bound = (each.id or "" for node in nodes for _, each in reversed(list(node._bindings)))
            self._focused = scopes_of(bound)
        self.box.focus()

    def body(self) -> ComposeResult:
        yield TextLine(id="words", compact=True, placeholder="a key, or words of its description")
        yield Static()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    @on(Input.Changed)
    def _show(self) -> None:
        text = self.query_one(Static)
        width = text.content_size.width
        text.update(self._text(width, min(MAX_COLUMNS, max(1, (width + GAP) // (MIN_COLUMN + GAP)))))

    def hint(self) -> str:
        return f"{self.key_of('help.find')}: find, {self.key_of('dialog.close')}: close"

    def _text(self, width: int, columns: int = 1) -> Content:
        first = _GROUPS.get(self._scope, (self._scope,)) if self._scope else ()
        # actions of lists, such as the cursor keys, come last
        first = tuple(sorted(dict.fromkeys((*self._focused, *first)), key="panel".__eq__))
        first = ("replay", *first) if self.app.REPLAYS else first
        others = [scope for scope in SCOPES if scope not in (*first, "replay", "app")]
        near = [("Most used here", self._preferred), *((SCOPES[each], actions_in(each)) for each in (*first, "app"))]
        near.append(("Your commands", iter(self.app.own_commands)))
        far = [(SCOPES[each], actions_in(each)) for each in others]
        own = (width - GAP * (columns - 1)) // columns
        lines = list[Content]()
        for blocks, omitted in ((near, self._preferred), (far, ())):
            entries = [
                entry
                for title, actions in blocks
                for entry in self._entries(title, actions, () if actions is self._preferred else omitted, own)
            ]
            lines += _in_columns(entries, columns, own)
        return Content("\n").join(lines) if lines else Content("No key matches this filter.")

    def _entries(
        self, title: str, actions: Iterable[Action], omitted: Collection[Action], width: int
    ) -> Iterator[list[Content]]:
        """Yield the lines for each action that matches the filter, with a title before the first action."""
        words = self.query_one("#words", TextLine).value.casefold().split()
        head = [Content(""), Content.styled(title, "bold $text-accent")]
        shown_keys = [(action, " ".join(action.shown_keys(self.app.keys))) for action in actions]
        indent = min(MOST_KEYS, 4 + max((len(keys) for _, keys in shown_keys), default=0))
        for action, keys in shown_keys:
            text = f"{action.help}{'  (asks first)' if action.dangerous else ''}"
            if action in omitted or not all(word in f"{keys} {text}".casefold() for word in words):
                continue
            more = " " * max(0, len(keys) + 4 - indent)  # cells of the first line that long keys occupy
            first, *rest = textwrap.wrap(text, max(MIN_WORDS, width - indent), initial_indent=more)
            shown = Content.assemble((f"  {keys:<{indent - 4}}  ", "bold"), first.strip())
            yield [*head, shown, *(Content(f"{' ' * indent}{line}") for line in rest)]
            head = []

    def on_input_submitted(self) -> None:
        self.box.focus()

    def action_find(self) -> None:
        self.add_class("-finding")
        self.query_one("#words").focus()

    def action_close(self) -> None:
        """Close the filter field. Without an open filter field, close the dialog."""
        if not self.has_class("-finding"):
            return super().action_close()
        self.remove_class("-finding")
        self.query_one("#words", TextLine).value = ""
        self.box.focus()
        return None

    def action_scroll(self, step: int) -> None:
        self.box.scroll_relative(y=step, animate=False)


def _in_columns(entries: Sequence[list[Content]], columns: int, width: int) -> Iterator[Content]:
    """Yield the lines of entries in columns of about the same height, without splitting an entry."""
    height = ceil(sum(map(len, entries)) / columns)
    filled: list[list[Content]] = [[]]
    for entry in entries:
        if filled[-1] and len(filled[-1]) + len(entry) > height and len(filled) < columns:
            filled.append([])
        filled[-1] += entry
    for line in zip_longest(*filled, fillvalue=Content("")):
        yield Content(" " * GAP).join([each.truncate(width, pad=columns > 1) for each in line])


class JumpScreen(ModalScreen[Widget], DismissOnceScreen[Widget]):
    """Overlay that shows a letter on each focusable widget. Returns the widget whose letter was typed, or None for any
    other key.

    Args:
        there: Focusable widgets of the screen below the overlay.
    """

    BINDINGS = bindings("jump")
    DEFAULT_CSS = read_style_sheet(__file__, "focus_jump_overlay")

    def __init__(self, there: Iterable[Widget]) -> None:
        super().__init__()
        self._targets = dict(zip("asdfghjklqwertyuiopzxcvbnm1234567890", there, strict=False))
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

    def on_resize(self) -> None:
        self._laid_out_for = self._laid_out_for or self.size
        # after a resize, the letters of the overlay no longer match the places of the widgets below
        if self.size != self._laid_out_for:
            self.dismiss()

    def action_close(self) -> None:
        self.dismiss()


def jump_targets(screen: Screen[object]) -> list[Widget]:
    """Return the visible focusable widgets of a screen, from top to bottom."""
    seen = screen._compositor.visible_widgets
    there = [widget for widget in screen.focus_chain if widget in seen and widget.region.area]
    return sorted(there, key=lambda widget: (widget.region.y, widget.region.x))
