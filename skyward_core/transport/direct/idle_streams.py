"""Lines to nodes that wait for the next file: a new one costs as much time, at both ends, as 5 MB over an old one."""

from __future__ import annotations

import threading
from time import monotonic

from ...wire.tls_stream import TlsLine
from .endpoint import Endpoint

# Seconds that a line is used: RFC 8446 (5.5) wants other keys after some 400 GB, and Python cannot ask for them.
LIFE = 120.0
IDLE = 30.0  # seconds that a line may wait; it takes a thread of its node's, and a megabyte at each end


class IdleStreams:
    """See the module; used by many threads at once.

    Args:
        most: lines that may wait at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._lines: list[tuple[float, Endpoint, TlsLine]] = []  # since when, to where; the latest at the end

    def take(self, node: Endpoint) -> TlsLine | None:
        """A line to a node, if one waits. Nobody has looked whether the node is still there."""
        with self._lock:
            for at in reversed(range(len(self._lines))):
                if self._lines[at][1] == node:
                    return self._lines.pop(at)[2]
        return None

    def keep(self, node: Endpoint, line: TlsLine) -> None:
        """Have a line wait, all of whose requests have been answered in full; or close it, if it is old or there are
        enough."""
        self.expire(IDLE)
        now = monotonic()
        with self._lock:
            if len(self._lines) < self._most and now - line.made < LIFE:
                self._lines.append((now, node, line))
                return
        line.close()

    def expire(self, idle: float) -> None:
        """Close what has waited that long, in seconds."""
        since = monotonic() - idle
        with self._lock:
            old = [line for at, _, line in self._lines if at <= since]
            self._lines = [kept for kept in self._lines if kept[0] > since]
        for line in old:
            line.close()

    def close(self) -> None:
        """Close them all; none waits from now on."""
        with self._lock:
            self._most = 0
        self.expire(0)
