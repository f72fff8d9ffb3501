"""The app asks what becomes of pools that have cost what they may, each once for each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skyward_core.views.views import PoolView

    from .dialogs.budget import BudgetScreen


class BudgetQuestions:
    """One at a time, and none that has been answered elsewhere.

    Args:
        show: asks, and tells the answer.
        answered: what becomes of the pool: its new budget, or None to tear it down.
    """

    def __init__(
        self,
        show: Callable[[PoolView, Callable[[str | None], None]], BudgetScreen],
        answered: Callable[[PoolView, float | None], object],
    ) -> None:
        self._show = show
        self._answered = answered
        self._asked: dict[str, float | None] = {}  # pool -> the deadline that it was asked with
        self._open: BudgetScreen | None = None

    def look(self, pools: Iterable[PoolView]) -> None:
        """Ask where there is something to be asked; take back what somebody else has answered."""
        waiting = [pool for pool in pools if pool.budget_state == "asked" and pool.is_live]
        if self._open is not None:
            # Under another dialog it waits until that is answered.
            if self._open.pool not in waiting and self._open.is_active:
                self._open.dismiss("later")
            return
        for pool in waiting:
            if self._asked.get(pool.key, 0.0) != pool.budget_ends_at:
                self._asked[pool.key] = pool.budget_ends_at
                self._ask(pool)
                return

    def _ask(self, pool: PoolView) -> None:
        def said(answer: str | None) -> None:
            screen, self._open = self._open, None
            if screen is not None and answer in screen.budgets:
                self._answered(pool, screen.budgets[answer])
            elif answer == "down":
                self._answered(pool, None)

        self._open = self._show(pool, said)
