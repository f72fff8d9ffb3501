"""How long a node lives without us. Armed before anything else happens; a busy node is never ended by it."""

from __future__ import annotations

import time


class Lease:
    """Counts idle time (no client that owns or uses the pool, no active call) and age.

    Times are of the monotonic clock, so that a clock that jumps neither ends nor saves a node.
    """

    def __init__(self, idle_timeout: float, ttl: float | None) -> None:
        self.idle_timeout = idle_timeout
        self.ttl = ttl
        self._born = self._used = time.monotonic()

    def renew(self) -> None:
        self._used = time.monotonic()

    def remaining(self, *, in_use: bool) -> float | None:
        """Seconds until the node ends itself as things stand; None when nothing counts down."""
        now = time.monotonic()
        left = None if in_use else self._used + self.idle_timeout - now
        if self.ttl is not None:
            end = self._born + self.ttl - now
            left = end if left is None else min(left, end)
        return left

    def reason(self) -> str:
        if self.ttl is not None and time.monotonic() - self._born >= self.ttl:
            return f"its time to live of {self.ttl:g} s was over"
        return f"nobody used it for {self.idle_timeout:g} s"
