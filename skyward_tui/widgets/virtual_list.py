"""A list that paints only the visible lines."""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Mapping
from typing import Self

from textual import events
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget, _RenderCache

from skyward_tui.ui.actions import bindings
from skyward_tui.ui.style_sheets import read_style_sheet

RowKey = tuple[str, tuple[object, ...]]
"""A row's text, and the styles in it."""

_EMPTY = Content("\n")  # one line of nothing; no text at all would be no line


class VirtualList(Widget, can_focus=True):
    """Rows with a window over them; a subclass makes rows, and may have a cursor."""

    BINDINGS = bindings("panel")
    DEFAULT_CSS = read_style_sheet(__file__, "roll")

    top = 0
    _painted: tuple[RowKey, ...] = ()  # the rows that are on the screen, or are about to be
    _strips: tuple[object, dict[RowKey, Strip]] = (None, {})  # of these rows, and for what width and style
    _made: tuple[object, list[Content]] = (None, [])  # rows that were compared, for the size that they are of

    def row_count(self, width: int) -> int:
        raise NotImplementedError

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

    def _render_content(self) -> None:
        """In place of Textual's, which styles each row anew where one has changed."""
        made_for, rows = self._made
        if made_for != self.size:
            rows = self.visible_rows()
            self._painted = tuple(map(_row_key, rows))
        width = self.size.width
        if not rows or self.text_selection is not None or not _are_lines(rows, width):
            return super()._render_content()
        about = (width, self.visual_style)
        before = self._strips[1] if self._strips[0] == about else {}
        now: dict[RowKey, Strip] = {}
        for row, looks in zip(rows, self._painted, strict=True):
            if looks not in now:
                now[looks] = before.get(looks) or self._strip(row, width)
        self._strips = about, now
        # Where a text stands in the widget, for who selects it.
        strips = [now[looks].apply_offsets(0, y) for y, looks in enumerate(self._painted)]
        self._render_cache = _RenderCache(self.size, strips)
        self._dirty_regions.clear()
        return None

    def _strip(self, row: Content, width: int) -> Strip:
        return Visual.to_strips(self, row or _EMPTY, width, 1, self.visual_style)[0]

    def notify_style_update(self) -> None:
        self._strips = (None, {})
        super().notify_style_update()

    def empty_text(self, note: str) -> Content:
        """What stands there where there is no row, on as many lines as it takes."""
        lines = textwrap.wrap(note, max(20, self.size.width - 4))
        return Content("\n".join(["", *(f"  {line}" for line in lines)]))

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """As Textual's: whoever asks for it has changed something."""
        self._made = (None, [])
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def refresh_if_changed(self) -> None:
        """Paint those rows that are others: to look costs less than to paint, and a terminal gets nothing else."""
        rows, width = self.visible_rows(), self.size.width
        before, self._painted = self._painted, tuple(map(_row_key, rows))
        if before == self._painted:
            return
        if len(before) == len(rows) and _are_lines(rows, width):
            pairs = enumerate(zip(before, self._painted, strict=True))
            self.refresh(*(Region(0, y, width, 1) for y, (one, other) in pairs if one != other))
        else:
            self.refresh()
        self._made = (self.size, rows)

    def action_step(self, rows: int) -> None:
        self.top = max(0, self.top + rows)
        self.refresh()

    def action_sideways(self, steps: int) -> None:
        """Nothing lies beside a row; a grid says otherwise."""

    def action_page(self, pages: int) -> None:
        self.action_step(pages * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        self.action_step(self.row_count(self.size.width) if end else -self.top)

    def action_open(self) -> None:
        """Nothing to open."""

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_step(-1)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_step(1)


def _row_key(row: Content) -> RowKey:
    return row.plain, tuple(row.spans)


def _are_lines(rows: list[Content], width: int) -> bool:
    """Whether each row is one line on the screen, and none is wrapped."""
    return all(row.cell_length <= width and "\n" not in row.plain for row in rows)


HIGHLIGHT_SECONDS = 0.8
HIGHLIGHT_STYLE = "reverse"


def changed_keys(before: Mapping[Hashable, str], now: Mapping[Hashable, str]) -> frozenset[Hashable]:
    """What was there before, and is in another state now."""
    return frozenset(key for key, state in now.items() if before.get(key, state) != state)


class ChangeHighlight:
    """Of one widget. No timer goes on but the one that ends what stands out.

    Attributes:
        lit: what stands out now.
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
