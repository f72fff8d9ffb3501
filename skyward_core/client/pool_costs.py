"""Costs of pools, by pool, function and day, from the ledger."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from skyward_core import providers
from skyward_core.model.errors import SkywardError
from skyward_core.model.provider_capability_protocols import hourly_price
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow as PoolRow
from skyward_core.store.receipts_and_bills import Bill, make_bills

MAX_COSTED_POOLS = 10_000  # maximum number of pools that a cost report reads


@dataclass(frozen=True)
class PoolCost:
    """Cost of one pool.

    Attributes:
        pool, key: Name and unique key of the pool.
        provider: Name of the provider.
        functions: Names of the functions that ran, without duplicates.
        since: Creation time of the pool, Unix time.
        dollars: Cost in the requested period; None if unknown.
        goes_on: Whether the pool still costs money.
    """

    pool: str
    key: str
    provider: str
    functions: Sequence[str]
    since: float
    dollars: float | None
    goes_on: bool


@dataclass
class Spending:
    """Cost of all pools.

    Attributes:
        pools: Pools with a cost or an unknown cost, the newest first.
        by_function: Dollars by function; a pool with several functions has one combined entry.
        by_day: Dollars by local date, such as "2026-11-23".
    """

    pools: list[PoolCost] = field(default_factory=list)
    by_function: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_day: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def dollars(self) -> float:
        """Total cost in US dollars of all pools whose costs are known."""
        return sum(each.dollars or 0.0 for each in self.pools)


def costs(since: float) -> Spending:
    """Return the costs of pools since a time.

    Args:
        since: Unix time.

    Raises:
        LedgerError: If the ledger cannot be read.
    """
    spending = Spending()
    with closing(Ledger()) as ledger:
        for row in [*ledger.live_pools(), *ledger.ended_pools(since, MAX_COSTED_POOLS)]:
            _add_costs(spending, ledger, row, since)
    return spending


def cost_today() -> float:
    """Return the known cost of all pools since midnight, local time, in dollars. Raises errors like :func:`costs`."""
    midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
    return costs(midnight).dollars


def _add_costs(spending: Spending, ledger: Ledger, row: PoolRow, since: float) -> None:
    bills = list(bills_of_pool(ledger, row))
    if not bills and (not row.spec.get("rents") or _has_no_machine(row)):
        return
    names = tuple(dict.fromkeys(run.function for run in ledger.runs(row.token)))
    days: defaultdict[str, float] = defaultdict(float)
    for bill in bills:
        for day, dollars in _daily_costs(bill, since):
            days[day] += dollars
    total = sum(days.values()) if bills else None
    provider = row.spec.get("provider", "")
    spending.pools.append(PoolCost(row.name, row.key, provider, names, row.created_at, total, row.ended_at is None))
    spending.by_function[", ".join(names)] += total or 0.0
    for day, dollars in days.items():
        spending.by_day[day] += dollars


def _has_no_machine(row: PoolRow) -> bool:
    """Check whether a pool ended before it had a machine, for example because the provider rejected its start."""
    receipt = row.receipt
    return receipt is not None and receipt.get("created") == 0 and not receipt.get("unaccounted")


def bills_of_pool(ledger: Ledger, row: PoolRow) -> Iterator[Bill]:
    """Yield a bill for each known machine of a pool."""
    if row.receipt is not None and row.ended_at is not None:
        yield from (Bill(**each) for each in row.receipt.get("bills", ()))
    else:
        machines = [*ledger.machines(row.token), *ledger.replaced_machines(row.token)]
        try:
            price = hourly_price(providers.provider_from_json(row.provider))
        except SkywardError:  # without the provider's package, the hourly price is unknown
            price = None
        yield from make_bills(row, machines, {}, price)


def _daily_costs(bill: Bill, since: float) -> Iterator[tuple[str, float]]:
    """Yield the cost of a machine per day, by local date."""
    at = max(bill.since, since)
    while at < bill.until:
        local = time.localtime(at)
        midnight = time.mktime((local.tm_year, local.tm_mon, local.tm_mday + 1, 0, 0, 0, 0, 0, -1))
        end = min(midnight, bill.until)
        yield time.strftime("%Y-%m-%d", local), bill.hourly * (end - at) / 3600
        at = end
