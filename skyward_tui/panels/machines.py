"""What the machines do: a row for each node, a cell for each GPU; there as soon as they are measured."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content

from skyward_core.views.views import PoolView, RunView

from ..styles import beside
from ..widgets.machine_grid import MachineGrid
from .base import BORDER, Chosen, RunPanel
from .table import Row


class MachinesPanel(RunPanel):
    """All machines of the pool, measured once somebody looks at a run there: before, a start is under way."""

    DEFAULT_CSS = beside(__file__)
    CALM = True
    SCOPED_CSS = False  # where machines are measured, the grid is another one

    def __init__(self, row: Row, show: Callable[[], None]) -> None:
        grid = MachineGrid(id=row.id)
        super().__init__(row, show, grid)
        self._grid = grid
        self._asked = ""

    @property
    def awaits(self) -> bool:
        return self._grid.is_fed

    @property
    def wanted(self) -> int | None:
        return self._grid.all_rows + BORDER

    def look(self, pool: PoolView, run: RunView | None, now: float, chosen: Chosen) -> bool:
        book, session = pool.machines, self.app.session
        if book is None and run is not None and pool.state == "up" and session and self._asked != pool.key:
            self._asked = pool.key
            session.measure(pool.key)  # what comes of it is in the view, also why there is nothing
        there = book is not None and bool(book.nodes)
        changed = there != self.filled
        self.filled = there
        if book is not None and there:
            changed |= self._grid.update(book, now)
            if changed:
                self.retitle(Content(f"{self.heading}  {self._grid.subject}".rstrip()))
        return changed
