"""The queue of a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.content import Content

from skyward_core.views.pool_view import PoolView, RunView
from skyward_tui.panels.panel import BORDER, RunPanel, RunSelection
from skyward_tui.text.number_format import clip, duration, fit_width
from skyward_tui.text.run_rows import QueueRow, format_nodes, queue_rows, waiting_reason
from skyward_tui.ui.panel_table import PanelSpec
from skyward_tui.ui.style_sheets import read_style_sheet
from skyward_tui.ui.themes import state_style
from skyward_tui.widgets.virtual_list import VirtualList


class QueueList(VirtualList):
    """With a cursor, which stays on its run.

    Attributes:
        rows: the runs.
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.rows: Sequence[QueueRow] = ()
        self._selected_run = ""
        self._now = 0.0

    @property
    def chosen(self) -> QueueRow | None:
        """The run under the cursor."""
        return self.rows[self._cursor] if self.rows else None

    @property
    def _cursor(self) -> int:
        return next((place for place, row in enumerate(self.rows) if row.run == self._selected_run), 0)

    def update(self, rows: Sequence[QueueRow], now: float) -> None:
        self.rows, self._now = rows, now
        self.refresh_if_changed()

    def action_step(self, rows: int) -> None:
        if self.rows:
            self._selected_run = self.rows[max(0, min(len(self.rows) - 1, self._cursor + rows))].run
            self.refresh()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.rows) if end else -len(self.rows))

    def required_range(self) -> range:
        return range(self._cursor, self._cursor + 1)

    def row_count(self, width: int) -> int:
        return len(self.rows)

    def row(self, index: int, width: int) -> Content:
        row = self.rows[index]
        mark = state_style("waiting" if row.waits else "running")
        has = f"has {format_nodes(row.nodes)}" if row.nodes else "its calls wait for ranks that others have"
        has = waiting_reason(row, self._now) if row.waits else has
        age = duration(max(0.0, self._now - row.since))
        text = clip(f"{fit_width(row.name, 16)} {age:>6}  {has}", max(0, width - 4))
        line = Content.assemble(
            ("▸ " if index == self._cursor and self.has_focus else "  ", "$text-accent"),
            (f"{mark.glyph} ", mark.style),
            (text, "bold" if index == self._cursor and self.has_focus else ""),
        )
        return line


class QueuePanel(RunPanel):
    """There as long as a run waits, or several go on."""

    SCOPED_CSS = False
    DEFAULT_CSS = read_style_sheet(__file__, "queue")

    def __init__(self, row: PanelSpec, show: Callable[[], None]) -> None:
        runs = QueueList(id=row.id)
        super().__init__(row, show, runs)
        self._runs = runs
        self._seen: tuple[int, int] = (-1, -1)

    @property
    def preferred_rows(self) -> int | None:
        return self._runs.total_rows + BORDER

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        seen = (pool.version, int(now))
        if seen == self._seen:
            return False
        first, self._seen = self._seen[0] != pool.version, seen
        if not first and not self.has_content:
            return False
        rows = queue_rows(pool)
        waiting = sum(row.waits for row in rows)
        self.has_content = bool(waiting) or len(rows) > 1
        self.border_title = f"{self.heading}  {waiting} waiting" if waiting else self.heading
        self._runs.update(rows, now)
        return first

    @property
    def needs_polling(self) -> bool:
        return self.has_content

    @property
    def run_to_cancel(self) -> str:
        return self._runs.chosen.run if self._runs.chosen is not None else ""

    def clipboard_text(self) -> tuple[str, str] | None:
        row = self._runs.chosen
        if row is None:
            return None
        return f"{row.run} {row.name} {waiting_reason(row, float(self._seen[1]))}".strip(), "the row"
