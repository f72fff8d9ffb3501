"""``skyward-tui costs``: what pools have cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from skyward_core.front.costs import PoolCost
from skyward_core.front.costs import costs as add_up
from skyward_core.model import exit_status
from skyward_core.wire.safe_text import field

from ..words import money
from .console import Console
from .reach import note_silent, opened
from .report import table


def costs(console: Console, *, seconds: float, by: str) -> int:
    """A table, and all of it added up."""
    with opened(console) as session:
        note_silent(session, console)  # a pool that has ended itself costs nothing since
    since = max(0.0, time.time() - seconds)
    found = add_up(since)
    if console.as_json:
        console.result(
            {
                "since": since,
                "dollars": found.dollars,
                "pools": [asdict(each) for each in found.pools],
                "functions": dict(found.by_function),
                "days": dict(found.by_day),
            }
        )
        return exit_status.OK
    if not found.pools:
        console.say("no pool has cost anything in that time")
        return exit_status.OK
    rows = {
        "pool": lambda: _pools(found.pools),
        "function": lambda: _sums("function", found.by_function),
        "day": lambda: _sums("day", dict(sorted(found.by_day.items()))),
    }[by]()
    for line in table([*rows, ("all", *[""] * (len(rows[0]) - 2), money(found.dollars))]):
        console.say(line)
    unknown = sum(each.dollars is None for each in found.pools)
    if unknown:
        console.note(f"of {unknown} of these pools nobody knows what they cost")
    return exit_status.OK


def _pools(pools: Sequence[PoolCost]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("pool", "provider", "made", "ran", "cost")]
    for each in pools:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.since))
        cost = "$?" if each.dollars is None else money(each.dollars)
        ran = field(", ".join(each.functions)) or "-"
        rows.append(
            (field(each.pool), field(each.provider), made, ran, cost + (" so far" if each.goes_on else ""))
        )
    return rows


def _sums(head: str, sums: Mapping[str, float]) -> list[Sequence[str]]:
    return [(head, "cost"), *((field(name) or "-", money(dollars)) for name, dollars in sums.items())]
