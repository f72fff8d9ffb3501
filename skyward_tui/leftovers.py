"""What a look through accounts has found, in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .words import ago, count, duration, money

if TYPE_CHECKING:
    from skyward_core.front.sweeping import Found, Sweep
    from skyward_core.model.leftover import Leftover

COMMAND = "skyward-tui sweep"


def line_of(sweep: Sweep) -> str:
    """What nobody needs, as one line; "" where there is nothing."""
    if not sweep.left:
        return ""
    prices = [each.thing.hourly for each in sweep.left if each.thing.is_machine]
    machines = len(prices)
    parts = [f"{count(machines, 'machine')} ({_total(prices)})"] if machines else []
    parts += [count(len(sweep.left) - machines, "other thing")] if len(sweep.left) > machines else []
    return f"{' and '.join(parts)} of pools that are over {'is' if len(sweep.left) == 1 else 'are'} left: {COMMAND}"


def doubts_of(sweep: Sweep) -> str:
    """What could not be looked at, as one line; "" where all was."""
    said = "; ".join(f"{place} ({why})" for place, why in sweep.unknown.items())
    return f"could not look for what is left: {said}" if said else ""


def others_of(sweep: Sweep) -> Iterator[str]:
    """What other ledgers have there."""
    for (ledger, owner), (machines, more) in sweep.others.items():
        things = " and ".join(
            count(many, what) for many, what in ((machines, "machine"), (more, "other thing")) if many
        )
        yield f"not looked at: {things} of ledger {ledger} ({owner}): --ledger {ledger} has them looked at"


def rows_of(found: Sequence[Found]) -> list[tuple[str, ...]]:
    """A table: what it is, of which pool, where, how old, and what is to be made of it."""
    rows: list[tuple[str, ...]] = [("pool", "what", "id", "where", "age", "cost", "expires", "state")]
    for each in sorted(found, key=lambda one: (one.thing.pool, one.thing.token, not one.thing.is_machine)):
        thing = each.thing
        age = duration(time.time() - thing.since) if thing.since else "-"
        rows.append(
            (
                thing.pool,
                thing.what,
                thing.id,
                thing.place,
                age,
                _cost(thing),
                _expires(each),
                _STATES[each.verdict],
            )
        )
    return rows


_STATES = {
    "up": "its pool is up",
    "expired": "its time is over, and no agent lives there",
    "left": "left: no pool here has it",
}


def _total(prices: Sequence[float | None]) -> str:
    """Of machines, an hour."""
    return "$?/h" if None in prices else f"{money(sum(filter(None, prices)))}/h"


def _cost(thing: Leftover) -> str:
    """By the price when it was made; what costs nothing worth a word has none."""
    if not thing.is_machine:
        return "-"
    spent = "" if thing.spent is None else f", {money(thing.spent)} so far"
    return _total([thing.hourly]) + spent


def _expires(found: Found) -> str:
    at = found.thing.expires
    if at is None:
        return "-"
    return ago(time.time() - at) if found.thing.is_expired else f"in {duration(at - time.time())}"
