"""What the ranks of a node are at before their functions run, for those who wait for the first line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ...wire.frames import Header

LASTS = 0.1  # seconds after which a phase is worth telling; most are over sooner
PHASES = ("", "starting", "importing", "joining", "running", "paused")  # "": idle, as far as is known


class Phases:
    """The phase of each rank, and since when.

    Args:
        tell: gets a frame for those who watch.
    """

    def __init__(self, tell: Callable[[Header], None]) -> None:
        self._tell = tell
        self._now: dict[int, tuple[str, float]] = {}
        self._told: dict[int, tuple[str, float]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def enter(self, rank: int, phase: str, age: float = 0.0) -> None:
        """A rank is in that phase, since ``age`` seconds."""
        if phase not in PHASES:
            return
        self._now[rank] = phase, time.monotonic() - age
        if rank not in self._timers:
            self._timers[rank] = asyncio.get_running_loop().call_later(LASTS, self._due, rank)

    def frames(self) -> list[Header]:
        """Return what a client that comes now has to know: the phases that the others were told. It may never hear
        the end of a phase that is too short to be told."""
        return [self._frame(rank) for rank, (phase, _) in self._told.items() if phase]

    def _due(self, rank: int) -> None:
        del self._timers[rank]
        phase, told = self._now[rank][0], self._told.get(rank, ("", 0.0))[0]
        if phase == told or (phase == "running" and not told):
            return  # that a call runs is told with the call
        self._told[rank] = self._now[rank]
        self._tell(self._frame(rank))

    def _frame(self, rank: int) -> Header:
        phase, since = self._told[rank]
        return {"t": "phase", "rank": rank, "phase": phase, "age": round(time.monotonic() - since, 3)}
