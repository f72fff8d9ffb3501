"""What a pool may cost: at four fifths of it that is said, at the whole of it somebody is asked, or the pool ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from ..model.errors import LedgerError
from ..model.states import BudgetStatus
from ..views import events as ev
from .context import PoolContext
from .news import News

NEAR = 0.8  # of the budget
LOOK = 15.0  # seconds between two looks at most: a machine in another's place may cost something else
ANSWER = 600.0  # seconds in which a person who is asked should say what to do


class Budget:
    """One pool's, as one client watches it.

    Args:
        end: begins to tear the pool down, for a reason in words.

    Attributes:
        asks: whether a person is asked when all of it is spent.
    """

    def __init__(self, context: PoolContext, news: News, end: Callable[[str], None]) -> None:
        self._context = context
        self._news = news
        self._end = end
        self._raised = asyncio.Event()
        self._least, self._counted_at = 0.0, time.monotonic()
        self.asks = False

    def raise_to(self, dollars: float) -> None:
        """From now on the pool may cost this much, whichever client watches it.

        Raises:
            LedgerError: it could not be written down; the pool may cost no more than before.
        """
        self._context.ledger.allow(self._context.token, dollars)
        self._tell("within", dollars)
        self._raised.set()

    async def watch(self) -> None:
        """Until the pool ends."""
        view = self._context.view
        if view.budget is not None and view.rents:
            words = "nobody knows what its machines cost, so its budget cannot be watched"
            self._news.complain(f"{words}: its lease and its time to live alone end pool {view.name}")
        while not self._context.leaving and (budget := self._known()) is not None:
            spent = self._spent()
            if spent >= budget:
                if not (self.asks and await self._is_raised(budget)):
                    self._tell("spent", budget)
                    self._end(f"its budget of {_dollars(budget)} is spent")
                    return
                continue
            if spent >= NEAR * budget and view.budget_state == "within":
                self._tell("near", budget)
                self._news.complain(self._warning(spent, budget))
            mark = budget if view.budget_state == "near" else NEAR * budget
            left = (mark - spent) / view.price_hourly * 3600 if view.price_hourly else LOOK
            await asyncio.sleep(min(max(left, 0.01), LOOK))

    def _spent(self) -> float:
        """Dollars until now; no less than what was spent at the last look and since, should the clock be set back."""
        before, self._counted_at = self._counted_at, time.monotonic()
        least = self._least + self._context.view.price_hourly * (self._counted_at - before) / 3600
        self._least = max(least, self._context.view.spent(time.time()))
        return self._least

    async def _is_raised(self, budget: float) -> bool:
        self._raised.clear()
        over = time.monotonic() + ANSWER  # that nobody sets
        self._tell("asked", budget, time.time() + ANSWER)
        while (left := over - time.monotonic()) > 0:
            with suppress(TimeoutError):  # somebody else may be asked, too, and answers there
                await asyncio.wait_for(self._raised.wait(), min(left, LOOK))
                return True
            if self._known() != budget:
                return True
        return False

    def _known(self) -> float | None:
        """The budget, which another client may have changed."""
        view = self._context.view
        if view.budget is None:
            return None
        try:
            options = self._context.ledger.pool(self._context.token).spec.get("options", {})
        except LedgerError:
            return view.budget  # whoever writes to it says so
        written = options.get("budget")
        if written is not None and written != view.budget:
            self._tell("within", float(written))
        return view.budget

    def _tell(self, state: BudgetStatus, budget: float, ends_at: float | None = None) -> None:
        self._news.emit(ev.BudgetNews(pool=self._context.name, budget=budget, state=state, ends_at=ends_at))

    def _warning(self, spent: float, budget: float) -> str:
        view = self._context.view
        said = f"pool {view.name} has cost {_dollars(spent)} of its budget of {_dollars(budget)}"
        if not view.price_hourly:  # any more
            return said
        hours = (budget - spent) / view.price_hourly
        return f"{said}; at {_dollars(view.price_hourly)}/h the rest lasts {hours * 60:.0f} min"


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}"
