"""How far each node of the pool is."""

from __future__ import annotations

from collections.abc import Callable

from skyward_core.views.views import PoolView, RunView

from ..widgets.phase_board import PhaseBoard
from .base import BORDER, Chosen, RunPanel
from .table import Row


class NodesPanel(RunPanel):
    """The nodes, phase by phase."""

    def __init__(self, row: Row, show: Callable[[], None]) -> None:
        board = PhaseBoard(id=row.id)
        super().__init__(row, show, board)
        self._board = board

    @property
    def wanted(self) -> int | None:
        return self._board.all_rows + BORDER

    def look(self, pool: PoolView, run: RunView | None, now: float, chosen: Chosen) -> bool:
        return self._board.update(pool, now, run)
