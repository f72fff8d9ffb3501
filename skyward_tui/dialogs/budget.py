"""What becomes of a pool that has cost what it may."""

from __future__ import annotations

import time

from skyward_core.views.views import PoolView

from ..words import hourly, money
from .ask import ChoiceScreen

MORE = {"some": 1.5, "much": 3.0}  # times the budget that was


class BudgetScreen(ChoiceScreen):
    """Returns a key of ``MORE``, "down", or "later".

    Attributes:
        pool: the one that is asked about.
        budgets: key of ``MORE`` -> dollars.
    """

    def __init__(self, pool: PoolView, now: float) -> None:
        budget = pool.budget or 0.0
        ends = time.strftime("%H:%M:%S", time.localtime(pool.budget_ends_at or now))
        text = (
            f"Pool {pool.name} has cost {money(pool.spent(now))} of its budget of {money(budget)}, and costs "
            f"{hourly(pool)}.\n\n"
            f"If nobody answers, it is torn down at {ends}."
        )
        self.pool = pool
        self.budgets = {name: budget * times for name, times in MORE.items()}
        more = [(name, f"Allow {money(dollars)}", False) for name, dollars in self.budgets.items()]
        choices = [("later", "Not now", False), *more, ("down", "Tear down", True)]
        super().__init__("Budget spent", text, choices, escape="later")
