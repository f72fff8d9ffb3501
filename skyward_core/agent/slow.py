"""Tells of calls that take a while: most are over before anybody could look."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from .calls import Call

SLOW = 0.05  # seconds after which a call that still runs is announced as running


class SlowCalls:
    """Calls that were given to workers just now, in that order, with one timer for them all.

    Args:
        announce: told of each that still runs a moment later, and its rank.
    """

    def __init__(self, announce: Callable[[int, Call], None]) -> None:
        self._announce = announce
        self._given: deque[tuple[float, int, Call]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, rank: int, call: Call) -> None:
        """A worker was given a call."""
        loop = asyncio.get_running_loop()
        self._given.append((loop.time() + SLOW, rank, call))
        if self._timer is None:
            self._timer = loop.call_later(SLOW, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now, given = loop.time(), self._given
        while given:
            due, rank, call = given[0]
            runs = call.outcome is None and call.parting is None
            if runs and due > now:
                self._timer = loop.call_at(due, self._look)
                return
            given.popleft()
            if runs:
                self._announce(rank, call)
        self._timer = None
