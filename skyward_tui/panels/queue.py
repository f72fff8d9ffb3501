"""Which runs have the pool's nodes, and which wait for some, and why."""

from __future__ import annotations

from collections.abc import Callable

from skyward_core.views.views import PoolView, RunView

from ..queue_rows import queue_of
from ..queue_words import reason
from ..styles import beside
from ..widgets.queue_list import QueueList
from .base import BORDER, Chosen, RunPanel
from .table import Row


class QueuePanel(RunPanel):
    """There as long as a run waits, or several go on."""

    SCOPED_CSS = False
    DEFAULT_CSS = beside(__file__)

    def __init__(self, row: Row, show: Callable[[], None]) -> None:
        runs = QueueList(id=row.id)
        super().__init__(row, show, runs)
        self._runs = runs
        self._seen: tuple[int, int] = (-1, -1)

    @property
    def wanted(self) -> int | None:
        return self._runs.all_rows + BORDER

    def look(self, pool: PoolView, run: RunView | None, now: float, chosen: Chosen) -> bool:
        seen = (pool.version, int(now))
        if seen == self._seen:
            return False
        first, self._seen = self._seen[0] != pool.version, seen
        if not first and not self.filled:
            return False
        rows = queue_of(pool)
        waiting = sum(row.waits for row in rows)
        self.filled = bool(waiting) or len(rows) > 1
        self.border_title = f"{self.heading}  {waiting} waiting" if waiting else self.heading
        self._runs.update(rows, now)
        return first

    @property
    def awaits(self) -> bool:
        return self.filled

    @property
    def to_cancel(self) -> str:
        return self._runs.chosen.run if self._runs.chosen is not None else ""

    def copied(self) -> tuple[str, str] | None:
        row = self._runs.chosen
        if row is None:
            return None
        return f"{row.run} {row.name} {reason(row, float(self._seen[1]))}".strip(), "the row"
