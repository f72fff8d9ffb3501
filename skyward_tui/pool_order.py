"""Which pools are listed, and in which order: found by words, sorted by a column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .theme import look

if TYPE_CHECKING:
    from skyward_core.views.views import PoolView, RunView

AS_THEY_COME = ""
COLUMNS = (AS_THEY_COME, "pool", "state", "nodes", "ranks", "provider", "use", "age", "$/h", "run")
_LARGEST_FIRST = ("nodes", "ranks", "use", "$/h")  # what is wanted first of these


def falls(by: str) -> bool:
    """Whether what is greatest comes first, unless somebody turns it round."""
    return by in _LARGEST_FIRST


def use_of(pool: PoolView, now: float) -> str:
    """How busy its GPUs are, and how many there are, or else its processors; "" where nobody has measured them of
    late."""
    book = pool.machines
    if book is None or pool.is_over or not any(each.is_fresh(now) for each in book.nodes.values()):
        return ""
    gpus = sum(len(each.gpus) for each in book.nodes.values())
    return f"{gpus:,} × {_used(pool):.0f} %" if gpus else f"cpu {_used(pool):.0f} %"


def _used(pool: PoolView) -> float:
    """The mean, in percent."""
    if pool.machines is None or pool.is_over:
        return 0.0
    found = pool.machines.latest("util") or pool.machines.latest("cpu")
    return sum(found.values()) / len(found) if found else 0.0


def ordered(pools: Sequence[PoolView], words: Iterable[str], by: str, *, falling: bool) -> list[PoolView]:
    """Those that have all of some words in what is said of them, by one of :data:`COLUMNS`; what is equal stays as it
    stood."""
    wanted = [word.casefold() for word in words]
    found = [pool for pool in pools if all(word in _said(pool) for word in wanted)]
    if by == AS_THEY_COME:
        return found[::-1] if falling else found
    keys: dict[str, Callable[[PoolView], Any]] = {
        "pool": lambda pool: pool.name,
        "state": lambda pool: look(pool.state).word,
        "nodes": lambda pool: pool.node_count,
        "ranks": lambda pool: pool.node_count * pool.ranks_per_node,
        "provider": lambda pool: pool.provider,
        "use": _used,
        "age": lambda pool: -(pool.created_at if pool.ended_at is None else pool.ended_at),
        "$/h": lambda pool: pool.price_hourly or float(pool.rents),
        "run": lambda pool: "" if (run := _newest(pool)) is None else run.function,
    }
    return sorted(found, key=keys[by], reverse=falling)


def _said(pool: PoolView) -> str:
    run = _newest(pool)
    last = () if run is None else (run.function, look(run.state).word)
    return "\n".join((pool.name, pool.provider, look(pool.state).word, *last)).casefold()


def _newest(pool: PoolView) -> RunView | None:
    return next(reversed(list(pool.runs.values())), None)
