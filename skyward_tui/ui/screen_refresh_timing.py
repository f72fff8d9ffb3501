"""Refresh rules for displayed times, and immediate repaints after a key.

Screens redraw ages and countdowns only as often as needed: every second while a displayed timer runs, otherwise every
ten seconds. An idle app therefore uses almost no CPU time.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING

from textual import events

from skyward_tui.text.number_and_time_format import LAST_MINUTES, next_preempted

if TYPE_CHECKING:
    from skyward_core.views.pool_view import PoolView

IDLE_SECONDS = 10  # seconds; displayed ages and costs of idle pools change less often than this


def refresh_token(pools: Iterable[PoolView], now: float) -> int:
    """Return a number that changes whenever displayed times must be redrawn.

    The number changes every second while a pool has a running timer, otherwise every ten seconds.

    Args:
        now: Unix time in seconds.
    """
    return int(now) if any(has_running_timer(pool, now) for pool in pools if not pool.is_over) else idle_token(now)


def idle_token(now: float) -> int:
    """Return the token of idle pools; negative, so it never equals a token of running timers."""
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


MIN_KEY_INTERVAL = 1 / 60  # seconds; faster keys are pasted or repeated, and need no repaint of their own
REPAINT_SECONDS = 0.1  # seconds after a key in which its effect is painted at once
PAINTS_PER_KEY = 2  # one for the key's direct effect, one for a message that the effect posted


class ImmediateRepaint:
    """Counter of the immediate repaints that recent keys justify."""

    def __init__(self) -> None:
        self._last_key_at = 0.0
        self._paints_left = 0

    def on_input(self, event: events.Event) -> None:
        """Allow immediate repaints after a key."""
        now = monotonic()
        if isinstance(event, events.Key) and now - self._last_key_at >= MIN_KEY_INTERVAL:
            self._last_key_at, self._paints_left = now, PAINTS_PER_KEY

    def consume_paint(self) -> bool:
        """Return whether to paint now, and use up one repaint."""
        if self._paints_left and monotonic() - self._last_key_at < REPAINT_SECONDS:
            self._paints_left -= 1
            return True
        return False
