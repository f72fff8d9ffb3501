"""Panel with the queue of a pool."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.stack_groups_and_profiles import format_ranges
from skyward_tui.panels.panel import RunPanel, RunSelection
from skyward_tui.text.number_time_and_run_state_format import duration
from skyward_tui.text.queue_trial_and_comparison_rows import QueueRow, queue_rows, waiting_reason
from skyward_tui.text.state_styles import state_style
from skyward_tui.text.text_width_tables_and_ascii import clip, fit_width
from skyward_tui.widgets.virtual_list import CursorList


class QueueList(CursorList[QueueRow]):
    """Runs of a pool that occupy or wait for nodes; running ones come first."""

    _now = 0.0

    def row_id(self, row: QueueRow) -> str:
        return row.run

    def update(self, rows: Sequence[QueueRow], now: float) -> None:
        self._now = now
        self.set_rows(rows)
        self.refresh_if_changed()

    def row(self, index: int, width: int) -> Content:
        row, here = self.rows[index], index == self.cursor and self.has_focus
        mark = state_style("waiting" if row.waits else "running")
        holds = f"on nodes {format_ranges(row.nodes)}" if row.nodes else "its calls wait for ranks that other runs use"
        note = waiting_reason(row, self._now) if row.waits else holds
        age = duration(max(0.0, self._now - row.since))
        text = clip(f"{fit_width(row.name, 16)} {age:>6}  {note}", max(0, width - 4))
        return Content.assemble(
            ("▸ " if here else "  ", "$text-accent"), (f"{mark.glyph} ", mark.style), (text, "bold" if here else "")
        )


class QueuePanel(RunPanel[QueueList]):
    """Panel with the queue, shown while a run waits for nodes or several runs are active."""

    MAIN = QueueList
    FITS_ROWS = True
    _seen = (-1, -1)

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        seen = (pool.version, int(now))
        if seen == self._seen:
            return False
        has_events, self._seen = self._seen[0] != pool.version, seen
        if not has_events and not self.has_content:
            return False
        rows = queue_rows(pool)
        waiting = sum(row.waits for row in rows)
        self.has_content = bool(waiting) or len(rows) > 1
        self.border_title = f"{self.heading}  {waiting} waiting" if waiting else self.heading
        self.main.update(rows, now)
        return has_events

    @property
    def needs_polling(self) -> bool:
        return self.has_content

    @property
    def run_to_cancel(self) -> str:
        return self.main.chosen.run if self.main.chosen is not None else ""

    def clipboard_text(self) -> tuple[str, str] | None:
        row = self.main.chosen
        if row is None:
            return None
        return f"{row.run} {row.name} {waiting_reason(row, float(self._seen[1]))}".strip(), "the row"
