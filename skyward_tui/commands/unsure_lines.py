"""What ranks printed while nothing tells of which run it is: kept until that is known, or nobody asks any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

UNSURE = 1 << 20  # bytes of a rank that are held until it is known whose they are; of more, the latest

Piece = tuple[str, bytes]  # a stream, and what came of it


class _HeldOfRank:
    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces: deque[Piece] = deque()
        self.size = 0


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

    def take(self, rank: int) -> Iterable[Piece]:
        """What is held of a rank, in order, and is held no more."""
        held = self._ranks.pop(rank, None)
        return held.pieces if held is not None else ()

    def drop(self, rank: int) -> None:
        """They are none of ours."""
        self._ranks.pop(rank, None)
