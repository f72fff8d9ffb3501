"""Receipts of teardowns, and the estimated bills of machines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_paragraph


@value
class Bill(Value):
    """Estimated cost of a machine. The provider's bill is authoritative.

    Attributes:
        machine: Provider's id of the machine.
        since, until: Start and end of the billed time as Unix time in seconds.
        hourly: Price in US dollars per hour.
    """

    machine: str
    since: float
    until: float
    hourly: float

    @property
    def dollars(self) -> float:
        """Total price in US dollars."""
        return self.hourly * max(0.0, self.until - self.since) / 3600


def machine_ended_at(gone: Machine, machines: Iterable[Machine]) -> float:
    """Return the Unix time of a machine's end: as the provider reports, else the launch of its replacement, else now.

    Args:
        gone: The machine.
        machines: All machines of the pool.
    """
    reported, made = gone.extra.get("ended"), gone.extra.get("launched")
    if reported is not None:
        return float(reported)
    later = [each.extra.get("launched", 0.0) for each in machines if each.node == gone.node and made is not None]
    return float(min((at for at in later if at > made), default=time.time()))


def make_bills(
    row: PoolRow, machines: Iterable[Machine], ended: Mapping[str, float], price: float | None
) -> tuple[Bill, ...]:
    """Return the bills of a pool's machines with known prices.

    Args:
        row: Row of the pool.
        machines: Machines of the pool.
        ended: Machine id -> Unix time of its end. Other machines are billed until now.
        price: US dollars per hour for machines without a recorded price. None: unknown.
    """
    now = time.time()
    bills = []
    for each in machines:
        if (hourly := each.extra.get("hourly", price)) is not None:
            since = each.extra.get("launched", row.created_at)
            until = max(ended.get(each.id, now), since + each.extra.get("billed_at_least", 0.0))
            bills.append(Bill(each.id, since, until, hourly))
    return tuple(bills)


# Name of a field -> key in the stored receipt, if they differ.
_RECEIPT_KEYS = {"retained": "kept", "remaining_files": "stays"}


@value
class Receipt(Value):
    """Proof of a teardown.

    Attributes:
        pool: Name of the pool.
        created: Number of machines, including replaced ones.
        gone: Nodes whose machines no longer exist according to the provider, one entry per machine.
        unaccounted: Provider's ids of resources that may still exist and cost money.
        seconds: Duration of the teardown.
        notes: Messages to the user.
        unwritten: Reason why the ledger lacks this receipt, or "".
        by: Client that tore the pool down; "" if the pool ended itself.
        retained: Descriptions of results that hosts retain.
        lost: Descriptions of unfetched files, results and logs that were deleted with the machines.
        remaining_files: Nodes on which output files remain, with the folder.
        bills: Costs of machines with known prices, including replaced ones.
        machines: Provider's ids of all machines, including replaced ones.
        start_error: Reason why the pool did not start; "" if it did, or if a user stopped the start.
    """

    pool: str
    created: int
    gone: tuple[int, ...]
    unaccounted: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    unwritten: str = ""
    by: str = ""
    retained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    remaining_files: tuple[tuple[int, str], ...] = ()
    bills: tuple[Bill, ...] = ()
    machines: tuple[str, ...] = ()
    start_error: str = ""

    @property
    def spent(self) -> float | None:
        """Total cost in US dollars. None: unknown."""
        return sum(each.dollars for each in self.bills) if self.bills else None

    @property
    def ok(self) -> bool:
        """Whether no resources remain and the ledger contains the receipt."""
        return not self.unaccounted and not self.unwritten

    def to_json(self) -> dict[str, Any]:
        """Return the receipt as JSON."""
        return {_RECEIPT_KEYS.get(name, name): value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        text = f"created {self.created}, verified gone {len(self.gone)}, unaccounted {len(self.unaccounted)}"
        text += f": {', '.join(self.unaccounted)}" if self.unaccounted else ""
        text += "" if self.spent is None else f"; cost ${self.spent:,.2f}"
        text += f"; retained: {'; '.join(self.retained)}" if self.retained else ""
        text += f"; lost: {'; '.join(self.lost)}" if self.lost else ""
        return sanitize_paragraph(f"{text}; not saved: {self.unwritten}" if self.unwritten else text)
