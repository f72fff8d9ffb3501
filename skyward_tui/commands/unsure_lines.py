"""What ranks printed while nothing tells of which run it is: kept until that is known, or nobody asks any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any

UNSURE = 1 << 20  # bytes of a rank that are held until it is known whose they are; of more, the latest

Piece = tuple[str, bytes]  # a stream, and what came of it


class _HeldOfRank:
    __slots__ = ("is_cut", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: deque[Piece] = deque()
        self.size = 0
        self.is_cut = False


class UnsureLines:
    """Those of all ranks."""

    def __init__(self) -> None:
        self._ranks: dict[int, _HeldOfRank] = {}

    def hold(self, rank: int, stream: str, data: bytes) -> None:
        """Keep a piece, and of the rank's older ones what there is room for beside it."""
        held = self._ranks.setdefault(rank, _HeldOfRank())
        held.pieces.append((stream, data))
        held.size += len(data)
        while held.size > UNSURE:
            _, oldest = held.pieces.popleft()
            held.size -= len(oldest)
            held.is_cut = True

    def is_cut(self, rank: int) -> bool:
        """Whether older pieces of a rank were left out of what is held of it."""
        return rank in self._ranks and self._ranks[rank].is_cut

    def take(self, rank: int) -> Iterable[Piece]:
        """What is held of a rank, in order, and is held no more."""
        held = self._ranks.pop(rank, None)
        return held.pieces if held is not None else ()

    def drop(self, rank: int) -> None:
        """They are none of ours."""
        self._ranks.pop(rank, None)


class BeforeAnswer:
    """What comes while a launch is not answered, in order: all that ranks do, and of each rank's lines the latest."""

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}  # by their number: the order in which they came
        self._many = 0
        self._ranks: dict[int, deque[tuple[int, int]]] = {}  # numbers of a rank's lines, and their bytes
        self._sizes: dict[int, int] = {}
        self._cut: set[tuple[int, str]] = set()

    def hold(self, item: object) -> None:
        """Keep what a rank did."""
        self._items[self._many] = item
        self._many += 1

    def hold_lines(self, rank: int, run: str, stream: str, data: bytes) -> None:
        """Keep a piece of a rank's lines, and of its older ones what there is room for beside it."""
        lines = self._ranks.setdefault(rank, deque())
        lines.append((self._many, len(data)))
        self._sizes[rank] = self._sizes.get(rank, 0) + len(data)
        self.hold((rank, run, stream, data))
        while self._sizes[rank] > UNSURE:
            number, size = lines.popleft()
            self._sizes[rank] -= size
            _, of, *_ = self._items.pop(number)
            self._cut.add((rank, of))

    @property
    def cut(self) -> Collection[tuple[int, str]]:
        """Ranks, and runs as far as they are known, of which pieces were left out."""
        return self._cut

    def __iter__(self) -> Iterator[object]:
        return iter(self._items.values())
