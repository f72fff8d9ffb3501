"""Token bucket, with which EC2 throttles requests: a rate per second, and a short burst."""

from __future__ import annotations

import time


class Bucket:
    def __init__(self) -> None:
        self._rate: float | None = None
        self._tokens = 0.0
        self._at = 0.0

    def take(self, rate: float) -> bool:
        """Check whether a request is accepted at ``rate`` per second. The bucket holds the tokens of one second."""
        now = time.monotonic()
        if rate != self._rate:
            self._rate, self._tokens, self._at = rate, max(1.0, rate), now
        self._tokens = min(max(1.0, rate), self._tokens + (now - self._at) * rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
