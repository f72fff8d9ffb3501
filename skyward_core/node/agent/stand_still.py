"""For how long ranks stood still at breakpoints: so much longer may calls take that have a time limit. Loaded when one
first does."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from time import monotonic

LONGEST = 60.0  # seconds for which a client's word on other nodes is believed, unless it is said again
ALL = "all"


class StandStill:
    """Clocks that run while something stands still: one for each, and one for all of them."""

    def __init__(self) -> None:
        self._still: dict[Hashable, set[Hashable]] = {}
        self._since: dict[Hashable, float] = {}
        self._before: dict[Hashable, float] = {}
        self._elsewhere: asyncio.TimerHandle | None = None

    def seconds(self, what: Hashable) -> float:
        """For how long something stood still, all in all; with ``ALL``, at least one of them."""
        return self._before.get(what, 0.0) + (monotonic() - self._since[what] if what in self._since else 0.0)

    def tell(self, what: Hashable, stands: bool) -> None:
        """One of them stands still now, or goes on."""
        for clock in (what, ALL):
            still = self._still.setdefault(clock, set())
            (still.add if stands else still.discard)(what)
            if still:
                self._since.setdefault(clock, monotonic())
            elif clock in self._since:
                self._before[clock] = self.seconds(clock)
                del self._since[clock]

    def elsewhere(self, seconds: float) -> None:
        """A rank of another node does, for so many seconds unless that is said again."""
        if self._elsewhere is not None:
            self._elsewhere.cancel()
            self._elsewhere = None
        self.tell("elsewhere", seconds > 0)
        if seconds > 0:
            late = min(seconds, LONGEST)
            self._elsewhere = asyncio.get_running_loop().call_later(late, self.elsewhere, 0.0)
