"""What pools have cost, by pool, by what ran there, and by day: added up from their receipts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .. import providers
from ..model.capabilities import price_of
from ..model.errors import SkywardError
from ..store.ledger import Ledger
from ..store.ledger_rows import Bill, PoolRow, bills_of

DAY = 86400.0
EVERY = 10_000  # pools that are looked at, at most


@dataclass(frozen=True)
class PoolCost:
    """One pool's.

    Attributes:
        pool, key: its name, and what no other one has.
        provider: whose machines they were.
        functions: what ran there, each once.
        since: when it was made, Unix time.
        dollars: what its machines cost in the time that was asked about; None where nobody knows.
        goes_on: whether they still do.
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
    """Of all pools.

    Attributes:
        pools: those that cost something, or of which nobody knows, the last one first.
        by_function: what ran -> dollars; of a pool with several, all of them together.
        by_day: local date, as "2026-11-23" -> dollars.
    """

    pools: list[PoolCost] = field(default_factory=list)
    by_function: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_day: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def dollars(self) -> float:
        """All told, as far as is known."""
        return sum(each.dollars or 0.0 for each in self.pools)


def costs(since: float) -> Spending:
    """What pools have cost from then until now.

    Args:
        since: Unix time.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    ledger = Ledger()
    try:
        return _add_up(ledger, since)
    finally:
        ledger.close()


def _add_up(ledger: Ledger, since: float) -> Spending:
    told = Spending()
    for row in [*ledger.live(), *ledger.over(since, EVERY)]:
        bills = list(bills_of_pool(ledger, row))
        if not bills and (not row.spec.get("rents") or _made_nothing(row)):
            continue
        names = tuple(dict.fromkeys(run.function for run in ledger.runs(row.token)))
        days: defaultdict[str, float] = defaultdict(float)
        for bill in bills:
            for day, dollars in _by_day(bill, since):
                days[day] += dollars
        total = sum(days.values()) if bills else None
        provider = row.spec.get("provider", "")
        told.pools.append(
            PoolCost(row.name, row.key, provider, names, row.created_at, total, row.ended_at is None)
        )
        told.by_function[", ".join(names)] += total or 0.0
        for day, dollars in days.items():
            told.by_day[day] += dollars
    return told


def _made_nothing(row: PoolRow) -> bool:
    """Whether it ended before it had a machine, as a start does that is refused."""
    receipt = row.receipt
    return receipt is not None and receipt.get("created") == 0 and not receipt.get("unaccounted")


def bills_of_pool(ledger: Ledger, row: PoolRow) -> Iterator[Bill]:
    """What each of a pool's machines has cost, as far as that is known."""
    if row.receipt is not None and row.ended_at is not None:
        for each in row.receipt.get("bills", ()):
            yield Bill(**each)
    else:
        machines = [*ledger.machines(row.token), *ledger.former(row.token)]
        try:
            price = price_of(providers.from_json(row.provider))
        except SkywardError:  # its package is not here any more
            price = None
        yield from bills_of(row, machines, {}, price)


def _by_day(bill: Bill, since: float) -> Iterator[tuple[str, float]]:
    """What a machine cost on each day of this machine's calendar."""
    at = max(bill.since, since)
    while at < bill.until:
        local = time.localtime(at)
        midnight = time.mktime((local.tm_year, local.tm_mon, local.tm_mday + 1, 0, 0, 0, 0, 0, -1))
        end = min(midnight, bill.until)
        yield time.strftime("%Y-%m-%d", local), bill.hourly * (end - at) / 3600
        at = end
