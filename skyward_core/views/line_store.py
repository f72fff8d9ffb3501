"""The last lines of a stream, bounded, each with its number.

In a flood lines come by the thousand: a large piece is held as it came, once for all that hold it, and its lines are
looked at only when they are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

LARGE = 64  # lines of a piece that is held as it came; smaller ones are put together


class LineStore:
    """Lines by absolute number: line 0 is the first ever added.

    Attributes:
        first: number of the oldest line still held.
        end: number of the line that comes next.
    """

    __slots__ = ("_capacity", "_gathered", "_pieces", "_starts", "end", "first")

    def __init__(self, capacity: int) -> None:
        self.first = 0
        self.end = 0
        self._capacity = capacity
        self._starts: deque[int] = deque()
        self._pieces: deque[tuple[str, Sequence[str]]] = (
            deque()
        )  # what stands before each line, and the lines
        self._gathered: list[str] | None = None  # the last piece, where it is ours to add to

    def add(self, lines: Sequence[str], prefix: str = "") -> None:
        """Append lines, which nobody may change from now on.

        Args:
            prefix: what stands before each of them.
        """
        if len(lines) >= LARGE:
            self._begin(prefix, lines)
            self._gathered = None
        elif lines:
            if self._gathered is None or len(self._gathered) >= LARGE:
                self._gathered = []
                self._begin("", self._gathered)
            self._gathered.extend([prefix + line for line in lines] if prefix else lines)
        self.end += len(lines)
        self.first = max(self.first, self.end - self._capacity)
        while len(self._starts) > 1 and self._starts[1] <= self.first:
            self._starts.popleft()
            self._pieces.popleft()

    def _begin(self, prefix: str, lines: Sequence[str]) -> None:
        self._starts.append(self.end)
        self._pieces.append((prefix, lines))

    def read(self, start: int, stop: int) -> list[str]:
        """Lines ``start`` (inclusive) to ``stop`` (exclusive); those that are not held are left out."""
        return list(self._between(max(start, self.first), min(stop, self.end)))

    def _between(self, start: int, stop: int) -> Iterator[str]:
        place = bisect_right(self._starts, start) - 1
        for begin, (prefix, lines) in zip(
            islice(self._starts, max(place, 0), None), islice(self._pieces, max(place, 0), None), strict=True
        ):
            if begin >= stop:
                return
            some = lines[max(start - begin, 0) : stop - begin]
            yield from [prefix + line for line in some] if prefix else some
