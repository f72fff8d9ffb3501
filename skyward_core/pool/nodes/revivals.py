"""How often a node's agent may be started anew where the last one died.

Whatever ended an agent may still go on while the next one starts: the system that is short of memory, somebody who
ends processes by name. So one start that fails says nothing yet, and several in a row say that it is no accident.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STARTS = 3  # agents that a node may get within the window; more than that is no accident
WINDOW = 60.0  # seconds
FAILURES = 4  # starts that may fail in a row
PAUSE = 0.5  # seconds after the first of them; twice as long after each further one


class Revivals:
    """Of the nodes of one pool.

    Args:
        clock: seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: dict[int, list[float]] = {}
        self._failed: dict[int, list[tuple[float, str]]] = {}  # since one came up: when, and why

    def refused(self, node: int) -> str:
        """Why the node gets no further agent; "" if it may have one."""
        failed = self._failed.get(node, [])
        if len(failed) >= FAILURES:
            return f"{len(failed)} attempts to start a new agent failed; the last: {failed[-1][1]}"
        recent = self._started[node] = [
            at for at in self._started.get(node, ()) if self._clock() - at < WINDOW
        ]
        if len(recent) >= STARTS:
            return f"its agent died {len(recent) + 1} times within {WINDOW:.0f} s"
        return ""

    def is_due(self, node: int) -> bool:
        """Whether the last start that failed is long enough ago."""
        failed = self._failed.get(node)
        return not failed or self._clock() - failed[-1][0] >= PAUSE * 2 ** (len(failed) - 1)

    def failed(self, node: int, why: str) -> None:
        """A start came to nothing."""
        self._failed.setdefault(node, []).append((self._clock(), why))

    def succeeded(self, node: int) -> None:
        """A new agent runs."""
        self._failed.pop(node, None)
        self._started.setdefault(node, []).append(self._clock())
