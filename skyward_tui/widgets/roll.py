"""A list of rows of which only the visible ones are made."""

from __future__ import annotations

import textwrap

from textual import events
from textual.content import Content
from textual.widget import Widget

from ..actions import bindings
from ..styles import beside


class Roll(Widget, can_focus=True):
    """Rows with a window over them; a subclass makes rows, and may have a cursor."""

    BINDINGS = bindings("panel")
    DEFAULT_CSS = beside(__file__)

    top = 0
    _painted = Content("")

    def row_count(self, width: int) -> int:
        raise NotImplementedError

    def row(self, index: int, width: int) -> Content:
        raise NotImplementedError

    def head(self, width: int) -> list[Content]:
        """Rows that stay on top."""
        return []

    def keep_in_view(self) -> range:
        """Rows that the window must show."""
        return range(self.top, self.top + 1)

    def render(self) -> Content:
        width, height = self.size
        head = self.head(width)[:height]
        height -= len(head)
        total = self.row_count(width)
        wanted = self.keep_in_view()
        self.top = min(max(self.top, wanted.stop - height), wanted.start)
        self.top = max(0, min(self.top, total - height))
        body = [self.row(i, width) for i in range(self.top, min(total, self.top + height))]
        return Content("\n").join([*head, *body])

    def blank(self, note: str) -> Content:
        """What stands there where there is no row, on as many lines as it takes."""
        lines = textwrap.wrap(note, max(20, self.size.width - 4))
        return Content("\n".join(["", *(f"  {line}" for line in lines)]))

    def refresh_if_changed(self) -> None:
        """Paint where the rows are others: to look costs less than to paint, and a terminal gets nothing."""
        content = self.render()
        if content.plain != self._painted.plain or content.spans != self._painted.spans:
            self._painted = content
            self.refresh()

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
