"""Lists that render only visible rows and repaint only changed lines. Lists may have a cursor, columns and sorting."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, Self, TypeVar

from textual import events
from textual.actions import SkipAction
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from skyward_tui.text.text_width_tables_and_ascii import clip, fit_width
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import read_style_sheet

Row = TypeVar("Row")
# A row's text, and its style spans.
RowKey = tuple[str, tuple[object, ...]]
# Text, and its style.
Part = tuple[str, str]

# style of the selected row, instead of the row's own colours, which may be unreadable on the cursor's background
CURSOR_STYLE = "$block-cursor-foreground on $block-cursor-background bold"
_EMPTY = Content("\n")  # a blank line; Textual renders an empty text as no line at all


class PaintedLines(Widget, can_focus=True):
    """Widget that renders its own lines, and repaints only changed lines."""

    BINDINGS = bindings("panel")
    DEFAULT_CSS = read_style_sheet(__file__, "painted_lines")

    _lines: list[Strip] | None = None
    _blank = Strip.blank(0)
    _painted_for = Size(0, 0)  # size at the last paint, to detect a new size before Textual's resize event arrives

    def paint(self, width: int, height: int) -> list[Strip]:
        """Return the rendered lines of the widget for a size in cells."""
        raise NotImplementedError

    def _lines_now(self) -> list[Strip]:
        if self._lines is None or self._painted_for != self.size:
            self._lines, self._painted_for = self.paint(*self.size), self.size
            # stored, because Textual computes ``rich_style`` at each access
            self._blank = Strip.blank(self.size.width, self.rich_style)
        return self._lines

    def render_line(self, y: int) -> Strip:
        lines = self._lines_now()
        return lines[y] if y < len(lines) else self._blank

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Refresh the widget. If no regions are given, the content has changed, so discard the rendered lines."""
        if not regions:
            self._lines = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def refresh_if_changed(self) -> None:
        """Repaint only the changed lines. Comparing lines is cheaper than painting, and the terminal receives less
        output."""
        before = self._lines
        if before is None or not self.is_on_screen or self._painted_for != self.size:
            self.refresh()
            return
        self._lines = None
        lines = self._lines_now()
        if len(lines) != len(before):
            self.refresh()
            self._lines = lines
        elif changed := [y for y, (one, other) in enumerate(zip(before, lines, strict=True)) if one != other]:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def notify_style_update(self) -> None:
        self._lines = None
        super().notify_style_update()

    def action_step(self, rows: int) -> None:
        raise NotImplementedError

    def action_sideways(self, steps: int) -> None:
        """Do nothing. Grids override this method."""

    def action_open(self) -> None:
        """Leave the key to the screen. Lists whose rows can be opened override this method."""
        raise SkipAction

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_step(-1)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_step(1)


class VirtualList(PaintedLines, Generic[Row]):
    """Scrollable list that renders only its visible rows. Subclasses render a row.

    Attributes:
        rows: The rows. A subclass that counts its own lines need not set them.
    """

    rows: Sequence[Row] = ()
    top = 0
    # (width and style, rendered lines by row); discarded if the width or the style changes
    _strips: tuple[object, dict[RowKey, list[Strip]]] = (None, {})

    def row_count(self, width: int) -> int:
        """Return the number of lines that the list can scroll through."""
        return len(self.rows)

    def row(self, index: int, width: int) -> Content:
        raise NotImplementedError

    @property
    def total_rows(self) -> int:
        """Number of lines of the list, including the head."""
        width = self.size.width
        return len(self.head(width)) + self.row_count(width)

    def head(self, width: int) -> list[Content]:
        """Return the lines that stay at the top while the list scrolls."""
        return []

    def required_range(self) -> range:
        """Return the range of rows that must be visible."""
        return range(self.top, self.top + 1)

    def render(self) -> Content:
        return Content("\n").join(self.visible_rows())

    def visible_rows(self) -> list[Content]:
        """Return the head and the visible rows. A row may span several lines."""
        width, height = self.size
        head = self.head(width)[:height]
        height -= len(head)
        total = self.row_count(width)
        required = self.required_range()
        self.top = min(max(self.top, required.stop - height), required.start)
        self.top = max(0, min(self.top, total - height))
        return [*head, *(self.row(i, width) for i in range(self.top, min(total, self.top + height)))]

    def paint(self, width: int, height: int) -> list[Strip]:
        """Render the visible rows. Unlike in Textual's widgets, unchanged rows keep their rendered strips."""
        style_key = (width, self.visual_style)
        before = self._strips[1] if self._strips[0] == style_key else {}
        now: dict[RowKey, list[Strip]] = {}
        lines: list[Strip] = []
        for row in self.visible_rows():
            key = row.plain, tuple(row.spans)
            if key not in now:
                height = 1 + row.plain.count("\n")
                found = before.get(key)
                now[key] = found or Visual.to_strips(self, row or _EMPTY, width, height, self.visual_style)
            lines += now[key]
        self._strips = style_key, now
        return lines

    def render_line(self, y: int) -> Strip:
        if self.text_selection is not None:
            return Widget.render_line(self, y)  # Textual's own method highlights the selected text
        # Textual needs the offset of each cell if the user selects text with the mouse
        return super().render_line(y).apply_offsets(0, y)

    def notify_style_update(self) -> None:
        self._strips = (None, {})
        super().notify_style_update()

    def empty_text(self, note: str) -> Content:
        """Return the text that is shown if there are no rows, wrapped."""
        lines = textwrap.wrap(note, max(20, self.size.width - 4))
        return Content("\n".join(["", *(f"  {line}" for line in lines)]))

    def action_step(self, rows: int) -> None:
        self.top = max(0, self.top + rows)
        self.refresh()

    def action_page(self, pages: int) -> None:
        self.action_step(pages * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        self.action_step(self.row_count(self.size.width) if end else -self.top)


class CursorList(VirtualList[Row]):
    """List with columns and sorting, and with a cursor that stays on its row when rows are inserted.

    Attributes:
        cursor: Index of the selected row.
        note: Text shown while there are no rows.
        sort_column: Name of the column that the rows are sorted by.
    """

    # titles of columns, if the title differs from the column's name in capitals
    TITLES: Mapping[str, str] = MappingProxyType({})
    SORT_COLUMNS: Sequence[str] = ()
    LARGEST_FIRST: Collection[str] = ()
    MARGIN = 2  # cells to the left of the first column
    HIGHLIGHTS_ALWAYS = True  # whether the selected row is highlighted even while the list does not have the focus

    cursor = 0
    note = ""
    sort_column = ""
    is_descending = False

    @property
    def chosen(self) -> Row | None:
        return self.rows[self.cursor] if self.rows else None

    def row_id(self, row: Row) -> Hashable:
        """Return a key that identifies a row even after other rows are added or removed."""
        raise NotImplementedError

    def parts(self, row: Row, width: int) -> Iterable[Part]:
        """Return the text of a row, without the cell in which the cursor is drawn."""
        raise NotImplementedError

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Replace the rows. The cursor stays on its row. If that row is gone, the cursor keeps its index."""
        chosen = None if self.chosen is None else self.row_id(self.chosen)
        self.rows = rows
        places = [at for at, row in enumerate(rows) if chosen is not None and self.row_id(row) == chosen]
        self.cursor = places[0] if places else min(self.cursor, max(0, len(rows) - 1))

    def visible_rows(self) -> list[Content]:
        return super().visible_rows() if self.rows else [self.empty_text(self.note)]

    def required_range(self) -> range:
        return range(self.cursor, self.cursor + 1)

    def row(self, index: int, width: int) -> Content:
        here = index == self.cursor
        line = Content.assemble(("▶" if here else " ", "$text-accent"), *self.parts(self.rows[index], width))
        if here and (self.HIGHLIGHTS_ALWAYS or self.has_focus):
            line = line.pad_right(max(0, width - line.cell_length)).stylize(CURSOR_STYLE)
        return line

    def action_step(self, rows: int) -> None:
        self.cursor = min(max(0, self.cursor + rows), max(0, len(self.rows) - 1))
        self.refresh()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.rows) if end else -len(self.rows))

    def select(self, row: Hashable) -> None:
        """Move the cursor to the row with an identity, if there is one."""
        self.cursor = next((at for at, each in enumerate(self.rows) if self.row_id(each) == row), self.cursor)
        self.refresh()

    def index_at(self, x: int, y: int) -> int | None:
        """Return the index of the row at a position; None if there is none."""
        index = self.top + y - len(self.head(self.size.width))
        return index if self.top <= index < len(self.rows) else None

    async def on_click(self, event: events.Click) -> None:
        """Select the clicked row. A second click on a row opens it."""
        if (index := self.index_at(event.x, event.y)) is None:
            return
        self.action_step(index - self.cursor)
        if event.chain == 2 and not await self.app.run_action("open", self):
            await self.app.run_action("open", self.screen)

    # Columns and sorting

    def columns(self, width: int) -> Sequence[tuple[str, int | None]]:
        """Return name and width of each column. A negative width aligns to the right; None takes the remaining
        cells."""
        return ()

    def head(self, width: int) -> list[Content]:
        parts: list[Part] = [(" " * self.MARGIN, "")]
        for name, room in self.columns(width):
            title, style = self.TITLES.get(name, name.upper()), "$muted"
            if name and name == self.sort_column:
                title = title if room is None else clip(title, abs(room) - 1)
                title += "▼" if self.is_descending else "▲"
                style = "bold $text-accent"
            parts.append((fit_cell(title, room), style))
        return [Content.assemble(*parts).truncate(width, ellipsis=True)] if parts[1:] else []

    def cells(self, cells: Mapping[str, Part], width: int) -> Iterable[Part]:
        """Yield the cells of a row in the order and widths of the columns."""
        for name, room in self.columns(width):
            text, style = cells.get(name, ("", ""))
            yield fit_cell(text, room), style

    def last_width(self, width: int) -> int:
        """Return the width of the last column in cells."""
        return max(0, width - self.MARGIN - sum(abs(room) + 1 for _, room in self.columns(width) if room is not None))

    def sort(self) -> None:
        """Sort the rows by the sort column."""

    def _sort_again(self) -> None:
        self.sort()
        self.refresh()

    def toggle_mark(self) -> None:
        """Toggle the mark of the selected row, and move to the next row."""

    def reverse_sort(self) -> None:
        self.is_descending = not self.is_descending
        self._sort_again()

    def action_sideways(self, steps: int) -> None:
        if self.SORT_COLUMNS:
            at = self.SORT_COLUMNS.index(self.sort_column) + steps
            self.sort_column = self.SORT_COLUMNS[at % len(self.SORT_COLUMNS)]
            self.is_descending = self.sort_column in self.LARGEST_FIRST
            self._sort_again()


def fit_cell(text: str, room: int | None) -> str:
    return text if room is None else f"{fit_width(text, room)} "


HIGHLIGHT_SECONDS = 0.8
HIGHLIGHT_STYLE = "reverse"


def changed_keys(before: Mapping[Hashable, str], now: Mapping[Hashable, str]) -> frozenset[Hashable]:
    """Return the keys of the rows whose state has changed."""
    return frozenset(key for key, state in now.items() if before.get(key, state) != state)


class ChangeHighlight:
    """Temporary highlight of changed rows in one widget.

    Attributes:
        highlighted: Keys that are highlighted now.
    """

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._states: Mapping[Hashable, str] = {}
        self.highlighted: frozenset[Hashable] = frozenset()

    def update(self, states: Mapping[Hashable, str], *, moves: bool) -> None:
        """Compare the states of all rows with the previous states, and highlight changed rows.

        Args:
            moves: Whether animations are enabled.
        """
        new = changed_keys(self._states, states)
        self._states = states
        if new and moves:
            self.highlighted |= new
            self._widget.set_timer(HIGHLIGHT_SECONDS, lambda: self._clear(new))

    def _clear(self, keys: frozenset[Hashable]) -> None:
        self.highlighted -= keys
        self._widget.refresh()
