"""How often what is shown may be another although nothing has come: time passes, and is told as coarsely as it can be.
A screen whose beat is as it was is left alone, and an app that nobody touches costs next to nothing."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING

from textual import events

from skyward_tui.text.number_and_time_format import LAST_MINUTES, next_preempted

if TYPE_CHECKING:
    from skyward_core.views.pool_view import PoolView

IDLE_SECONDS = 10  # seconds in which what is at rest gets no other age, and costs no other sum, that matters


def refresh_token(pools: Iterable[PoolView], now: float) -> int:
    """Another number whenever what is told of pools may be another by time alone: each second where something goes on,
    or counts down; else every ten.

    Args:
        now: Unix time in seconds.
    """
    return int(now) if any(has_running_timer(pool, now) for pool in pools if not pool.is_over) else idle_token(now)


def idle_token(now: float) -> int:
    """The beat where nothing goes on; another number than any that counts seconds."""
    return -(int(now) // IDLE_SECONDS)


def has_running_timer(pool: PoolView, now: float) -> bool:
    """Whether something there is timed by the second: a start, an end, a run, a machine that goes, the last minutes of
    a lease."""
    left = pool.lease_left(now)
    return (
        pool.state in ("starting", "stopping")
        or any(run.state == "running" for run in list(pool.runs.values()))
        or (left is not None and left < LAST_MINUTES)
        or next_preempted(pool.nodes) is not None
        or (pool.is_live and any(node.phase not in ("ready", "gone") for node in pool.nodes))
    )


MIN_KEY_INTERVAL = 1 / 60  # between two keys of which both are painted for: pasted ones, or one that is held down
REPAINT_SECONDS = 0.1  # in which a key shows what it does, or waits like all else
PAINTS_PER_KEY = 2  # for one key: of what it did, and of what followed from that


class ImmediateRepaint:
    """Keeps when a key came, and how often was painted for it."""

    def __init__(self) -> None:
        self._last_key_at = 0.0
        self._paints_left = 0

    def on_input(self, event: events.Event) -> None:
        """Something has come from the terminal."""
        now = monotonic()
        if isinstance(event, events.Key) and now - self._last_key_at >= MIN_KEY_INTERVAL:
            self._last_key_at, self._paints_left = now, PAINTS_PER_KEY

    def consume_paint(self) -> bool:
        """Whether to paint now what there is to paint."""
        if self._paints_left and monotonic() - self._last_key_at < REPAINT_SECONDS:
            self._paints_left -= 1
            return True
        return False
