"""Limits of a pool: its budget, and the expiry date that cloud accounts show for its machines."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from skyward_core.model.errors import LedgerError, SkywardError, error_message
from skyward_core.model.outcomes_states_and_alerts import BudgetStatus
from skyward_core.model.provider_capability_protocols import SetsExpiryDates
from skyward_core.pool.pool_context import PoolContext
from skyward_core.providers.provider_call_logs_polling_and_cache import log_query
from skyward_core.store.debug_log import get_logger
from skyward_core.views import events

WARNING_FRACTION = 0.8  # spent fraction of the budget at which the user is warned
CHECK_INTERVAL = 15.0  # maximum seconds between checks of the costs; replacement machines may have other prices
ANSWER_TIMEOUT = 600.0  # seconds that the user has to answer when the budget is spent


class Budget:
    """Spending limit of one pool. Each client of the pool watches the costs by itself.

    Attributes:
        prompts_user: Whether to ask the user before the pool ends because its budget is spent.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._raised = asyncio.Event()
        self._least, self._counted_at = 0.0, time.monotonic()
        self.prompts_user = False

    def raise_to(self, dollars: float) -> None:
        """Raise the budget for all clients.

        Args:
            dollars: The new budget in US dollars.

        Raises:
            LedgerError: If the budget could not be saved. The old budget remains in effect.
        """
        self._context.ledger.set_budget(self._context.token, dollars)
        self._emit_state("within", dollars)
        self._raised.set()

    async def watch(self) -> None:
        """Watch the costs until the pool ends, and end the pool when the budget is spent."""
        view = self._context.view
        if view.budget is not None and view.has_unknown_price:
            self._news.emit_warning(
                f"the price of the machines of pool {view.name} is unknown, so the budget is not enforced. Only the "
                "lease and the time to live end the pool"
            )
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
            seconds = (mark - spent) / view.price_hourly * 3600 if view.price_hourly else CHECK_INTERVAL
            await asyncio.sleep(min(max(seconds, 0.01), CHECK_INTERVAL))

    def _spent(self) -> float:
        """Return the dollars spent. The amount grows even if the clock was set back."""
        before, self._counted_at = self._counted_at, time.monotonic()
        least = self._least + self._context.view.price_hourly * (self._counted_at - before) / 3600
        self._least = max(least, self._context.view.spent(time.time()))
        return self._least

    async def _wait_raised(self, budget: float) -> bool:
        self._raised.clear()
        # Monotonic, because changes of the system clock must not change the user's time to answer.
        deadline = time.monotonic() + ANSWER_TIMEOUT
        self._emit_state("asked", budget, time.time() + ANSWER_TIMEOUT)
        while (remaining := deadline - time.monotonic()) > 0:
            # Stop waiting at intervals to check whether the user of another client has answered.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._raised.wait(), min(remaining, CHECK_INTERVAL))
                return True
            if self._current_budget() != budget:
                return True
        return False

    def _current_budget(self) -> float | None:
        """Return the budget, which another client may have changed."""
        view = self._context.view
        if view.budget is None:
            return None
        try:
            options = self._context.ledger.pool(self._context.token).spec.get("options", {})
        except LedgerError:
            return view.budget  # the ledger writer warns about ledger errors, so use the budget in the view
        written = options.get("budget")
        if written is not None and written != view.budget:
            self._emit_state("within", float(written))
        return view.budget

    def _emit_state(self, state: BudgetStatus, budget: float, ends_at: float | None = None) -> None:
        self._news.emit(events.BudgetNews(pool=self._context.name, budget=budget, state=state, ends_at=ends_at))

    def _warning(self, spent: float, budget: float) -> str:
        view = self._context.view
        cost = f"pool {view.name} has cost {_dollars(spent)} of its budget of {_dollars(budget)}"
        if not view.price_hourly:
            return cost
        hours = (budget - spent) / view.price_hourly
        return f"{cost}; at {_dollars(view.price_hourly)}/h the rest lasts {hours * 60:.0f} min"


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}"


_log = get_logger("pool")

FIRST_DELAY = 300.0  # seconds until the first renewal; the initial expiry dates are later
PERIOD = 1800.0  # seconds between renewals
DETACHED_RUN_TIME = 86_400.0  # seconds by which a detaching client extends the expiry date for its runs
EXPIRY_MARGIN = 900.0  # seconds that a machine may outlive its pool's lease
DETACH_TIMEOUT = 2.0  # seconds by which an update of the expiry date may delay a detaching client


class Expiry:
    """Expiry date of one pool's machines in the cloud account, renewed by each client that uses the pool."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context

    async def renew(self) -> None:
        """Renew the expiry date periodically."""
        if not isinstance(self._context.provider, SetsExpiryDates):
            return
        await asyncio.sleep(FIRST_DELAY)
        while True:
            await self._update(PERIOD)
            await asyncio.sleep(PERIOD)

    async def extend_for_runs(self) -> None:
        """Extend the expiry date for runs that continue after this client detaches."""
        runs = self._context.view.runs.values()
        if self._context.view.is_live and any(run.state == "running" for run in runs):
            update = asyncio.create_task(self._update(DETACHED_RUN_TIME))
            # After the time-out, do not wait for the update: a call of the provider's library cannot be cancelled.
            done, _ = await asyncio.wait([update], timeout=DETACH_TIMEOUT)
            if not done:
                _log.warning("expiry date not updated: the provider did not answer", extra={"pool": self._context.name})

    async def _update(self, seconds: float) -> None:
        context, provider = self._context, self._context.provider
        if not isinstance(provider, SetsExpiryDates):
            return
        options = context.options
        at = expiry_time(time.time(), context.row.created_at, options.idle_timeout, options.ttl, seconds)
        try:
            await log_query("date", context.name, provider.date(context.name, context.machines, at))
        except (SkywardError, OSError) as error:
            self._context.news.emit_warning(
                f"cannot update the expiry date of the machines in the account: {error_message(error)}"
            )


def expiry_time(now: float, born: float, lease: float, ttl: float | None, seconds: float) -> float:
    """Return a time at which all machines of a pool must have ended.

    Args:
        now: Unix time in seconds.
        born: Unix time of the pool's creation.
        lease: Idle time-out in seconds.
        ttl: Time to live in seconds. None: no limit.
        seconds: Longest time in seconds that the pool is expected to be used from now on.

    Returns:
        Unix time in seconds.
    """
    end = now + seconds + lease
    if ttl is not None:
        end = min(end, max(born + ttl, now + lease))
    return end + EXPIRY_MARGIN


class PoolLimits:
    """Limits of a pool: its budget, and the expiry date of its machines."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self.budget = Budget(context)
        self.expiry = Expiry(context)

    def watch(self) -> None:
        """Watch the budget and renew the expiry date, as long as this client uses the pool."""
        self._context.background.spawn(self.budget.watch())
        self._context.background.spawn(self.expiry.renew())
