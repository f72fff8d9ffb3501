"""The last lines of a stream, bounded, each with its number.

In a flood lines come by the thousand: a large piece is held as it came, once for all that hold it, and its lines are
looked at only when they are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar

ALL = 64_000_000  # bytes that all stores of one room may take together, where nobody says otherwise
LEAST = 16 << 10  # bytes that each of them may have, however many there are
A_LINE = 64  # bytes that a line takes beside its characters, where it is a text of its own
LARGE = 64  # lines of a piece that is held as it came; smaller ones are put together


class Room:
    """What several stores may take together, in equal parts.

    Attributes:
        most: bytes of each room, in this process.
    """

    __slots__ = ("_stores",)
    most: ClassVar[int] = ALL

    def __init__(self) -> None:
        self._stores = 0

    def enter(self) -> None:
        """One more store."""
        self._stores += 1

    def leave(self, stores: int) -> None:
        """Some of them are no more."""
        self._stores -= stores

    @property
    def each(self) -> int:
        """Bytes of one store."""
        return max(LEAST, self.most // max(1, self._stores))


class LineStore:
    """Lines by absolute number: line 0 is the first ever added.

    Args:
        capacity: lines that are held at most.
        room: that it shares with others; of a store that takes more than its part the oldest pieces go. None for no
            such bound.

    Attributes:
        first: number of the oldest line still held.
        end: number of the line that comes next.
    """

    __slots__ = ("_capacity", "_gathered", "_pieces", "_room", "_size", "_sizes", "_starts", "end", "first")

    def __init__(self, capacity: int, room: Room | None = None) -> None:
        self.first = 0
        self.end = 0
        self._capacity = capacity
        self._room = room
        self._sizes: deque[int] = deque()  # of the pieces, in bytes
        self._size = 0
        if room is not None:
            room.enter()
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
            self._grow(sum(map(len, lines)) + (A_LINE + len(prefix)) * len(lines))
        self.end += len(lines)
        self.first = max(self.first, self.end - self._capacity)
        most = self._room.each if self._room is not None else self._size
        while len(self._starts) > 1 and (self._starts[1] <= self.first or self._size > most):
            self._starts.popleft()
            self._pieces.popleft()
            self._size -= self._sizes.popleft()
            self.first = max(self.first, self._starts[0])

    def _begin(self, prefix: str, lines: Sequence[str]) -> None:
        self._starts.append(self.end)
        self._pieces.append((prefix, lines))
        self._sizes.append(0)
        if lines:
            self._grow(getattr(lines, "size", 0) or sum(map(len, lines)) + A_LINE * len(lines))

    def _grow(self, size: int) -> None:
        self._sizes[-1] += size
        self._size += size

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
