"""When what did not answer is asked again by itself: ever later, as each attempt costs calls or connections."""

from __future__ import annotations

import time
from collections.abc import Container

PAUSES = (2.0, 60.0)  # seconds: the first one, and the longest


class BackOff:
    """Remembers who did not answer, by any name."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[float, float]] = {}  # when, and the pause before it

    def is_due(self, name: str) -> bool:
        """Whether it may be asked now."""
        return time.monotonic() >= self._next.get(name, (0.0, 0.0))[0]

    def failed(self, name: str) -> None:
        """It was asked, and did not answer."""
        before = self._next.get(name, (0.0, 0.0))[1]
        pause = min(PAUSES[1], before * 2) or PAUSES[0]
        self._next[name] = time.monotonic() + pause, pause

    def keep_only(self, names: Container[str]) -> None:
        """Forget all others."""
        self._next = {name: told for name, told in self._next.items() if name in names}

    def answered(self, name: str) -> None:
        """It did."""
        self._next.pop(name, None)
