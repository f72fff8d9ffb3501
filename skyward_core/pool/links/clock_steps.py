"""Whether somebody has set this machine's clock, or a node's: a duration between two of its times is none then."""

from __future__ import annotations

import time

SAME_TIME = 2.0  # seconds between two clocks that show the same time, and an answer on its way
SET = 30.0  # seconds by which what is told as it happens is off that it was not only on its way for long
# Goes on while the machine sleeps, as its clock does; the loop's time does not.
_TICKING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClockSteps:
    """Of this machine, as somebody looks again and again."""

    def __init__(self) -> None:
        self._ahead = self._now()

    def step(self) -> float:
        """Seconds by which the clock was set forward since the last look; what it drifts by is none."""
        step = self._now() - self._ahead
        if abs(step) <= SAME_TIME:
            return 0.0
        self._ahead += step
        return step

    @staticmethod
    def _now() -> float:
        return time.time() - time.clock_gettime(_TICKING)


class NodeClock:
    """By how much our clock is ahead of a node's: as its agent greets, and as either has been set since."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._steps = ClockSteps()

    def greets(self, at: float) -> None:
        """Its agent says what time it is."""
        ahead = time.time() - at
        self._ahead, self._steps = ahead if abs(ahead) > SAME_TIME else 0.0, ClockSteps()

    def tells(self, at: float) -> None:
        """Its agent tells of something as it happens, and when that is."""
        off = time.time() - at - self.ahead
        if abs(off) > SET:
            self._ahead += off

    @property
    def ahead(self) -> float:
        """Seconds; 0 where they show the same."""
        self._ahead += self._steps.step()
        return self._ahead
