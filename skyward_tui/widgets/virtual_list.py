"""Lists that paint only the visible lines, and of them those that have changed; a cursor, columns and sorting."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import ClassVar, Generic, Self, TypeVar

from textual import events
from textual.actions import SkipAction
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from skyward_tui.text.number_and_time_format import fit_width
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import read_style_sheet

Row = TypeVar("Row")
RowKey = tuple[str, tuple[object, ...]]
"""A row's text, and the styles in it."""
Part = tuple[str, str]
"""Text, and its style."""

_EMPTY = Content("\n")  # one line of nothing; no text at all would be no line


class PaintedLines(Widget, can_focus=True):
    """A widget that paints its own lines, and of them only those that have changed."""

    BINDINGS = bindings("panel")
    DEFAULT_CSS = read_style_sheet(__file__, "roll")

    _lines: list[Strip] | None = None
    _painted_for = Size(0, 0)  # which may be another size than that of which it has heard

    def paint(self, width: int, height: int) -> list[Strip]:
        """Return the lines that the widget shows."""
        raise NotImplementedError

    def _lines_now(self) -> list[Strip]:
        if self._lines is None or self._painted_for != self.size:
            width, height = self._painted_for = self.size
            lines = self.paint(width, height)
            if len(lines) < height:
                lines += [Strip.blank(width, self.rich_style)] * (height - len(lines))
            self._lines = lines
        return self._lines

    def render_line(self, y: int) -> Strip:
        return self._lines_now()[y]

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """As Textual's; what asks for it without regions has changed something."""
        if not regions:
            self._lines = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def refresh_if_changed(self) -> None:
        """Paint the lines that have changed: to compare costs less than to paint, and a terminal gets nothing else."""
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
        """Nothing lies beside a row; a grid says otherwise."""

    def action_open(self) -> None:
        """Leave the key to the screen, unless a subclass opens its rows."""
        raise SkipAction

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_step(-1)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_step(1)


class VirtualList(PaintedLines, Generic[Row]):
    """Rows with a window over them. A subclass renders each row.

    Attributes:
        rows: The rows, unless the subclass counts its lines by itself.
    """

    rows: Sequence[Row] = ()
    top = 0
    _strips: tuple[object, dict[RowKey, list[Strip]]] = (None, {})  # of these rows, and for what width and style

    def row_count(self, width: int) -> int:
        """Return how many lines can be scrolled through."""
        return len(self.rows)

    def row(self, index: int, width: int) -> Content:
        raise NotImplementedError

    @property
    def total_rows(self) -> int:
        """How many there are, with those on top."""
        width = self.size.width
        return len(self.head(width)) + self.row_count(width)

    def head(self, width: int) -> list[Content]:
        """Rows that stay on top."""
        return []

    def required_range(self) -> range:
        """Rows that the window must show."""
        return range(self.top, self.top + 1)

    def render(self) -> Content:
        return Content("\n").join(self.visible_rows())

    def visible_rows(self) -> list[Content]:
        """What stands there: the rows in the window, or one of several lines in their place."""
        width, height = self.size
        head = self.head(width)[:height]
        height -= len(head)
        total = self.row_count(width)
        wanted = self.required_range()
        self.top = min(max(self.top, wanted.stop - height), wanted.start)
        self.top = max(0, min(self.top, total - height))
        return [*head, *(self.row(i, width) for i in range(self.top, min(total, self.top + height)))]

    def paint(self, width: int, height: int) -> list[Strip]:
        """As Textual's, which styles each row anew where one has changed."""
        about = (width, self.visual_style)
        before = self._strips[1] if self._strips[0] == about else {}
        now: dict[RowKey, list[Strip]] = {}
        lines: list[Strip] = []
        for row in self.visible_rows():
            key = row.plain, tuple(row.spans)
            if key not in now:
                height = 1 + row.plain.count("\n")
                found = before.get(key)
                now[key] = found or Visual.to_strips(self, row or _EMPTY, width, height, self.visual_style)
            lines += now[key]
        self._strips = about, now
        return lines

    def render_line(self, y: int) -> Strip:
        if self.text_selection is not None:
            return Widget.render_line(self, y)  # Textual's marks what is selected
        return super().render_line(y).apply_offsets(0, y)  # where a text stands, for who selects it

    def notify_style_update(self) -> None:
        self._strips = (None, {})
        super().notify_style_update()

    def empty_text(self, note: str) -> Content:
        """What stands there where there is no row, on as many lines as it takes."""
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
    """Rows with a cursor, which stays on its row whatever comes above it, and columns to sort by.

    Attributes:
        cursor: Index of the chosen row.
        note: Text shown while there are no rows.
        sort_column: Name of the column that the rows are sorted by.
    """

    TITLES: ClassVar[Mapping[str, str]] = {}  # of columns whose title is not their name in capitals
    SORT_COLUMNS: ClassVar[Sequence[str]] = ()
    LARGEST_FIRST: ClassVar[Collection[str]] = ()
    MARGIN = 2  # cells before the first column

    cursor = 0
    note = ""
    sort_column = ""
    is_descending = False

    @property
    def chosen(self) -> Row | None:
        return self.rows[self.cursor] if self.rows else None

    def row_id(self, row: Row) -> Hashable:
        """Return what identifies a row when others come or go."""
        raise NotImplementedError

    def parts(self, row: Row, width: int) -> Iterable[Part]:
        """Return the text of a row behind the cursor's cell."""
        raise NotImplementedError

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Replace the rows, and keep the cursor on its row; if that is gone, in its place."""
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
        if here:
            line = line.pad_right(max(0, width - line.cell_length)).stylize_before("on $block-cursor-background")
        return line

    def action_step(self, rows: int) -> None:
        self.cursor = min(max(0, self.cursor + rows), max(0, len(self.rows) - 1))
        self.refresh()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.rows) if end else -len(self.rows))

    # Columns

    def columns(self, width: int) -> Sequence[tuple[str, int | None]]:
        """Return name and width of each column; below 0 is right-aligned, None takes the remaining cells."""
        return ()

    def head(self, width: int) -> list[Content]:
        parts: list[Part] = [(" " * self.MARGIN, "")]
        for name, room in self.columns(width):
            title, style = self.TITLES.get(name, name.upper()), "$muted"
            if name and name == self.sort_column:
                title, style = f"{title}{'▼' if self.is_descending else '▲'}", "bold $text-accent"
            parts.append((_fit_cell(title, room), style))
        return [Content.assemble(*parts).truncate(width, ellipsis=True)] if parts[1:] else []

    def cells(self, cells: Mapping[str, Part], width: int) -> Iterable[Part]:
        """Return the cells of a row in the order and widths of the columns."""
        for name, room in self.columns(width):
            text, style = cells.get(name, ("", ""))
            yield _fit_cell(text, room), style

    def last_width(self, width: int) -> int:
        """Return how many cells are left for the last column."""
        return max(0, width - self.MARGIN - sum(abs(room) + 1 for _, room in self.columns(width) if room is not None))

    def sort(self) -> None:
        """Arrange the rows by the sort column."""

    def _sort_again(self) -> None:
        self.sort()
        self.refresh()

    def toggle_mark(self) -> None:
        """Mark the chosen row, or unmark it, and go on to the next one."""

    def reverse_sort(self) -> None:
        self.is_descending = not self.is_descending
        self._sort_again()

    def action_sideways(self, steps: int) -> None:
        if self.SORT_COLUMNS:
            at = self.SORT_COLUMNS.index(self.sort_column) + steps
            self.sort_column = self.SORT_COLUMNS[at % len(self.SORT_COLUMNS)]
            self.is_descending = self.sort_column in self.LARGEST_FIRST
            self._sort_again()


def _fit_cell(text: str, room: int | None) -> str:
    return text if room is None else f"{fit_width(text, room)} "


HIGHLIGHT_SECONDS = 0.8
HIGHLIGHT_STYLE = "reverse"


def changed_keys(before: Mapping[Hashable, str], now: Mapping[Hashable, str]) -> frozenset[Hashable]:
    """What was there before, and is in another state now."""
    return frozenset(key for key, state in now.items() if before.get(key, state) != state)


class ChangeHighlight:
    """Of one widget. No timer goes on but the one that ends what stands out.

    Attributes:
        highlighted: what stands out now.
    """

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._states: Mapping[Hashable, str] = {}
        self.highlighted: frozenset[Hashable] = frozenset()

    def update(self, states: Mapping[Hashable, str], *, moves: bool) -> None:
        """Take the states of all that is shown.

        Args:
            moves: whether the person wants to see that.
        """
        new = changed_keys(self._states, states)
        self._states = states
        if new and moves:
            self.highlighted |= new
            self._widget.set_timer(HIGHLIGHT_SECONDS, lambda: self._clear(new))

    def _clear(self, those: frozenset[Hashable]) -> None:
        self.highlighted -= those
        self._widget.refresh()
