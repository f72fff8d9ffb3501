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
        self._forget()
        self._given.append((loop.time() + SLOW, rank, call))
        if self._timer is None:
            self._timer = loop.call_later(SLOW, self._look)

    def _forget(self) -> None:
        """Let go of those that have ended meanwhile: they are an agent's memory."""
        given = self._given
        while given and (given[0][2].outcome is not None or given[0][2].parting is not None):
            given.popleft()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now, given = loop.time(), self._given
        self._timer = None
        self._forget()
        while given:
            due, rank, call = given[0]
            if due > now:
                self._timer = loop.call_at(due, self._look)
                return
            given.popleft()
            self._announce(rank, call)
            self._forget()
