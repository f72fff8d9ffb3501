"""Budget, idle time-out and expiry date of a pool."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from skyward_core.model.errors import LedgerError, SkywardError, error_message
from skyward_core.model.outcomes import BudgetStatus
from skyward_core.model.provider_capabilities import Dates
from skyward_core.pool.pool_context import PoolContext
from skyward_core.providers.provider_calls import log_query
from skyward_core.store.debug_log import get_logger
from skyward_core.views import events

WARNING_FRACTION = 0.8  # of the budget
LOOK = 15.0  # seconds between two looks at most: a machine in another's place may cost something else
ANSWER_TIMEOUT = 600.0  # seconds in which a person who is asked should say what to do


class Budget:
    """One pool's, as one client watches it.

    Attributes:
        prompts_user: Whether the user is asked when all of it is spent.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._raised = asyncio.Event()
        self._least, self._counted_at = 0.0, time.monotonic()
        self.prompts_user = False

    def raise_to(self, dollars: float) -> None:
        """From now on the pool may cost this much, whichever client watches it.

        Raises:
            LedgerError: it could not be written down; the pool may cost no more than before.
        """
        self._context.ledger.set_budget(self._context.token, dollars)
        self._emit_state("within", dollars)
        self._raised.set()

    async def watch(self) -> None:
        """Until the pool ends."""
        view = self._context.view
        if view.budget is not None and view.has_unknown_price:
            words = "nobody knows what its machines cost, so its budget cannot be watched"
            self._news.emit_warning(f"{words}: its lease and its time to live alone end pool {view.name}")
        while not self._context.leaving and (budget := self._current_budget()) is not None:
            spent = self._spent()
            if spent >= budget:
                if not (self.prompts_user and await self._wait_raised(budget)):
                    self._emit_state("spent", budget)
                    self._context.shutdown.begin_with_reason(f"its budget of {_dollars(budget)} is spent")
                    return
                continue
            if spent >= WARNING_FRACTION * budget and view.budget_state == "within":
                self._emit_state("near", budget)
                self._news.emit_warning(self._warning(spent, budget))
            mark = budget if view.budget_state == "near" else WARNING_FRACTION * budget
            left = (mark - spent) / view.price_hourly * 3600 if view.price_hourly else LOOK
            await asyncio.sleep(min(max(left, 0.01), LOOK))

    def _spent(self) -> float:
        """Dollars until now; no less than what was spent at the last look and since, should the clock be set back."""
        before, self._counted_at = self._counted_at, time.monotonic()
        least = self._least + self._context.view.price_hourly * (self._counted_at - before) / 3600
        self._least = max(least, self._context.view.spent(time.time()))
        return self._least

    async def _wait_raised(self, budget: float) -> bool:
        self._raised.clear()
        over = time.monotonic() + ANSWER_TIMEOUT  # that nobody sets
        self._emit_state("asked", budget, time.time() + ANSWER_TIMEOUT)
        while (left := over - time.monotonic()) > 0:
            with suppress(TimeoutError):  # somebody else may be asked, too, and answers there
                await asyncio.wait_for(self._raised.wait(), min(left, LOOK))
                return True
            if self._current_budget() != budget:
                return True
        return False

    def _current_budget(self) -> float | None:
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
            self._emit_state("within", float(written))
        return view.budget

    def _emit_state(self, state: BudgetStatus, budget: float, ends_at: float | None = None) -> None:
        self._news.emit(events.BudgetNews(pool=self._context.name, budget=budget, state=state, ends_at=ends_at))

    def _warning(self, spent: float, budget: float) -> str:
        view = self._context.view
        said = f"pool {view.name} has cost {_dollars(spent)} of its budget of {_dollars(budget)}"
        if not view.price_hourly:  # any more
            return said
        hours = (budget - spent) / view.price_hourly
        return f"{said}; at {_dollars(view.price_hourly)}/h the rest lasts {hours * 60:.0f} min"


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}"


_log = get_logger("pool")

FIRST_DELAY = 300.0  # seconds until the first time: what machines are made with holds for longer
PERIOD = 1800.0  # seconds between two times
DETACHED_RUN_TIME = 86_400.0  # seconds that runs are given of which no client is there to see the end
EXPIRY_MARGIN = 900.0  # seconds that a machine may outlive its pool's lease
DETACH_TIMEOUT = 2.0  # seconds that it may take where this client leaves


class Expiry:
    """One pool's, as one client keeps it that uses the pool."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context

    async def renew(self) -> None:
        """Do so as long as this client is there."""
        if not isinstance(self._context.provider, Dates):
            return
        await asyncio.sleep(FIRST_DELAY)
        while True:
            await self._update(PERIOD)
            await asyncio.sleep(PERIOD)

    async def extend_for_runs(self) -> None:
        """This client leaves the pool: runs that go on may do so for a while."""
        runs = self._context.view.runs.values()
        if self._context.view.is_live and any(run.state == "running" for run in runs):
            moving = asyncio.create_task(self._update(DETACHED_RUN_TIME))
            done, _ = await asyncio.wait([moving], timeout=DETACH_TIMEOUT)  # a call under way cannot be broken off
            if not done:
                _log.warning("when its machines end is not told: no answer", extra={"pool": self._context.name})

    async def _update(self, seconds: float) -> None:
        context, provider = self._context, self._context.provider
        if not isinstance(provider, Dates):
            return
        options = context.options
        at = expiry_time(time.time(), context.row.created_at, options.idle_timeout, options.ttl, seconds)
        try:
            work = provider.date(context.name, context.machines, at)
            await log_query("date", context.name, work)
        except (SkywardError, OSError) as error:
            self._context.news.emit_warning(
                f"what tells in the account when its machines end is not up to date: {error_message(error)}"
            )


def expiry_time(now: float, born: float, lease: float, ttl: float | None, seconds: float) -> float:
    """When a pool's machines have ended that is used for so long yet; all in Unix time or seconds."""
    end = now + seconds + lease
    if ttl is not None:
        end = min(end, max(born + ttl, now + lease))
    return end + EXPIRY_MARGIN


class PoolLimits:
    """What ends a pool or its machines: its budget, and the expiry date of its machines."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self.budget = Budget(context)
        self.expiry = Expiry(context)

    def watch(self) -> None:
        """Watch the budget and extend the expiry date, as long as this client uses the pool."""
        self._context.background.spawn(self.budget.watch())
        self._context.background.spawn(self.expiry.renew())
