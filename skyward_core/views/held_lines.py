"""Lines of many ranks, held for a moment and given out side by side: a line that several of them say is given once all
of those are at it. What a rank says between such lines comes before the next of them, so that they fold into one row.

Each rank's lines stay in their order, and none is lost; which rank comes first within a moment is not kept.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from .logs import About

MOST = 100_000  # lines that are held; of more, what was to wait goes at once
LENGTH = 8 << 20  # characters of these

Key = tuple[str, str]  # stream and text


class HeldLine(NamedTuple):
    """A line of a rank. ``at``: when it came, by the clock of who holds it."""

    rank: int
    text: str
    about: About
    at: float

    @property
    def key(self) -> Key:
        return self.about.stream, self.text


class HeldLines:
    """The lines of each rank that were not given out yet.

    A line costs about as much as a look into a heap, however many ranks there are.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[HeldLine]] = {}
        self._size = self._length = 0
        self._places: dict[Key, dict[int, int]] = {}  # how often each rank's queue has it
        self._first: dict[Key, set[int]] = {}  # ranks of which it is the first line
        self._ready: list[tuple[float, int, Key]] = []  # a heap of keys that are first with all who have them
        self._count = 0

    def __len__(self) -> int:
        return self._size

    def put(self, rank: int, text: str, about: About, at: float) -> None:
        """Take a rank's next line."""
        line = HeldLine(rank, text, about, at)
        queue = self._queues.setdefault(rank, deque())
        queue.append(line)
        self._size += 1
        self._length += len(text)
        ranks = self._places.setdefault(line.key, {})
        ranks[rank] = ranks.get(rank, 0) + 1
        if len(queue) == 1:
            self._is_first(line)

    def due(self, until: float) -> Iterator[HeldLine]:
        """Give out all that came until then, with what has to come before, or beside it."""
        while self._size and (line := self._next(until)) is not None:
            ranks = sorted(self._first[line.key])
            yield from [self._take(rank) for rank in ranks]

    def rest(self) -> Iterator[HeldLine]:
        """Give out all."""
        return self.due(float("inf"))

    def _next(self, until: float) -> HeldLine | None:
        """A line whose key is to be given out now, with all that have it first."""
        best = self._peek()
        if best is not None and best.at <= until:
            return best
        oldest = min((queue[0] for queue in self._queues.values() if queue), key=lambda line: line.at)
        if oldest.at > until and self._size <= MOST and self._length <= LENGTH:
            return None
        # It waits for ranks that have something else to say before.
        return best or max(
            (queue[0] for queue in self._queues.values() if queue),
            key=lambda line: (line.at <= until, len(self._first[line.key]), -line.at),
        )

    def _peek(self) -> HeldLine | None:
        """The oldest of those that all are at who have it."""
        while self._ready:
            _, _, key = self._ready[0]
            first = self._first.get(key)
            if first and len(first) == len(self._places[key]):
                return min((self._queues[rank][0] for rank in first), key=lambda line: line.at)
            heapq.heappop(self._ready)
        return None

    def _is_first(self, line: HeldLine) -> None:
        first = self._first.setdefault(line.key, set())
        first.add(line.rank)
        if len(first) == len(self._places[line.key]):
            self._count += 1
            at = min(self._queues[rank][0].at for rank in first)
            heapq.heappush(self._ready, (at, self._count, line.key))

    def _take(self, rank: int) -> HeldLine:
        queue = self._queues[rank]
        line = queue.popleft()
        self._size -= 1
        self._length -= len(line.text)
        first, places = self._first[line.key], self._places[line.key]
        first.discard(rank)
        places[rank] -= 1
        if not places[rank]:
            del places[rank]
        if not places:
            del self._places[line.key]
        if not first:
            del self._first[line.key]
        if queue:
            self._is_first(queue[0])
        return line
