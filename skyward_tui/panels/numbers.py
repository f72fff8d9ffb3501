"""What the ranks log and yield, as lines; there as soon as there are numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from textual.content import Content

from skyward_core.views.views import PoolView, RunView

from ..styles import beside
from ..widgets.numbers import NumbersPane
from .base import Chosen, RunPanel
from .table import Row


class NumbersPanel(RunPanel):
    """The numbers of the chosen rank, or of all."""

    DEFAULT_CSS = beside(__file__)
    SCOPED_CSS = False  # where there are numbers, the grid is another one

    def __init__(self, row: Row, show: Callable[[], None]) -> None:
        pane = NumbersPane(id=row.id)
        super().__init__(row, show, pane)
        self._pane = pane

    def kept(self) -> Mapping[str, str | bool]:
        pane = self._pane
        return {"log_scale": pane.log_scale, "smooth": pane.smooth, "charts": pane.all}

    def restore(self, kept: Mapping[str, str | bool]) -> None:
        pane = self._pane
        pane.log_scale, pane.smooth, pane.all = (
            kept.get(name) is True for name in ("log_scale", "smooth", "charts")
        )

    def close_one(self) -> bool:
        return self._pane.put_away()

    def look(self, pool: PoolView, run: RunView | None, now: float, chosen: Chosen) -> bool:
        rank = None if chosen.merged else chosen.rank
        changed = run is not None and self._pane.update(pool.metrics, run.id, rank)
        there = run is not None and bool(self._pane.names)
        changed |= there != self.filled
        self.filled = there
        if there:
            self.retitle(Content(f"{self.heading}  {self._pane.subject}"))
        return changed
