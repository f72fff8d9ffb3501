"""Rules for refreshing displayed times.

Ages and countdowns are redrawn only as often as needed: every second while a displayed timer runs, otherwise every ten
seconds. An idle app therefore uses almost no CPU time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from skyward_tui.text.number_time_and_run_state_format import LAST_MINUTES, next_preempted

if TYPE_CHECKING:
    from skyward_core.views.pool_view import PoolView

IDLE_SECONDS = 10  # seconds between two updates of displayed ages and costs while no timer runs


def refresh_token(pools: Iterable[PoolView], now: float) -> int:
    """Return a number that changes whenever displayed times must be redrawn.

    The number changes every second while a pool has a running timer, otherwise every ten seconds.

    Args:
        now: Unix time in seconds.
    """
    return int(now) if any(has_running_timer(pool, now) for pool in pools if not pool.is_over) else idle_token(now)


def idle_token(now: float) -> int:
    """Return the number for pools without a running timer. It is negative, so that it never equals a number for a
    running timer.
    """
    return -(int(now) // IDLE_SECONDS)


def has_running_timer(pool: PoolView, now: float) -> bool:
    """Check whether a displayed time of the pool changes every second."""
    lease_left = pool.lease_left(now)
    return (
        pool.state in ("starting", "stopping")
        or any(run.state == "running" for run in list(pool.runs.values()))
        or (lease_left is not None and lease_left < LAST_MINUTES)
        or next_preempted(pool.nodes) is not None
        or (pool.is_live and any(node.phase not in ("ready", "gone") for node in pool.nodes))
    )
