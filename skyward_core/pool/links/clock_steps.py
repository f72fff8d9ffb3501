"""Whether somebody has set this machine's clock: a duration between two of its times is none then."""

from __future__ import annotations

import time

SAME_TIME = 2.0  # seconds between two clocks that show the same time, and an answer on its way
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
