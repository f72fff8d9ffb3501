"""Lines of one rank in one run by number, out of the client's files: however long the log, any of them is near.

The files are read once from the start; places on the way are remembered, from where reading can go on.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..views.logs import About, Line, Ring, text_of
from ..views.logs import Lines as Splitter
from ..views.weave import STREAMS, Place, weave
from .run_logs import Part, RunLogs

STRIDE = 512  # lines, at least, between two places that are remembered
TAIL = 64  # lines of a ring that are looked for in the files
REACH = 20_000  # lines at the files' end in which they are looked for


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where reading can go on: in which part and at what place of it, with the lines begun there."""

    number: int
    part: int
    place: Place
    begun: dict[str, Splitter] = field(default_factory=lambda: {stream: Splitter() for stream in STREAMS})
    about: dict[str, About] = field(default_factory=lambda: {stream: About(stream) for stream in STREAMS})

    def kept(self) -> _Spot:
        begun = {stream: copy.copy(lines) for stream, lines in self.begun.items()}
        return _Spot(self.number, self.part, self.place, begun, dict(self.about))


class StoredLines:
    """What the files hold at one moment.

    Args:
        folder: of the files.
        parts: what the rank's workers printed in the run.
        whole: whether the run has ended, so that a last line without a newline is one.

    Attributes:
        count: how many lines there are.
    """

    def __init__(self, folder: Path, parts: Sequence[Part], *, whole: bool) -> None:
        self._folder = folder
        self._parts = list(parts)
        self._whole = whole
        start = parts[0].start if parts else (0, 0)
        self._spots = [_Spot(0, 0, start)]
        self.count = 0
        for _, spot in self._from(self._spots[0].kept(), lambda text: False):
            self.count = spot.number
            if spot.number >= self._spots[-1].number + STRIDE:
                self._spots.append(spot.kept())

    @classmethod
    def of(cls, logs: RunLogs, rank: int, *, whole: bool) -> StoredLines:
        """A rank's lines in a run; see the class. Takes as long as reading them.

        Raises:
            OSError: the files cannot be read.
        """
        return cls(logs.folder, logs.parts.get(rank, ()), whole=whole)

    def read(self, start: int, stop: int, may: Callable[[str], bool] | None = None) -> list[Line]:
        """Lines ``start`` (inclusive) to ``stop`` (exclusive).

        Args:
            may: whether any line of a text of many lines may be wanted: where it says no, all of these are left out.
        """
        found: list[Line] = []
        if start >= min(stop, self.count):
            return found
        place = bisect_right(self._spots, start, key=lambda spot: spot.number) - 1
        for lines, spot in self._from(self._spots[place].kept(), may):
            if spot.number > start:
                found += [line for line in lines if start <= line.number < stop]
            if spot.number >= stop:
                break
        return found

    def base_of(self, end: int, tail: Sequence[str]) -> int:
        """The number that a ring's line 0 has here: found by the last lines that it held, ``tail``, before ``end``."""
        if tail:
            first = max(0, self.count - REACH)
            texts = [line.text for line in self.read(first, self.count)]
            for stop in range(len(texts), len(tail) - 1, -1):
                if texts[stop - 1] == tail[-1] and texts[stop - len(tail) : stop] == list(tail):
                    return first + stop - end
        # A ring that holds nothing yet of a run under way will hold it from its first line.
        return max(0, self.count - end) if tail or self._whole else 0

    def _from(
        self, spot: _Spot, may: Callable[[str], bool] | None = None
    ) -> Iterator[tuple[list[Line], _Spot]]:
        """Read on from a place, which changes on the way; with every piece the lines that it ended, but for those of
        which ``may`` says no."""
        while spot.part < len(self._parts):
            part = self._parts[spot.part]
            for piece in weave(self._folder, part.stem, spot.place, part.end):
                spot.about[piece.stream] = about = About(piece.stream, piece.at, piece.run)
                after = piece.offset + len(piece.data)
                place = (after, spot.place[1]) if piece.stream == "out" else (spot.place[0], after)
                texts = spot.begun[piece.stream].take(piece.data)
                lines: list[Line] = []
                if may is None or (texts and may(text_of(texts))):
                    lines = [Line(number, text, about) for number, text in enumerate(texts, spot.number)]
                spot = _Spot(spot.number + len(texts), spot.part, place, spot.begun, spot.about)
                yield lines, spot
            lines = self._last_lines(spot)
            following = spot.part + 1
            start = self._parts[following].start if following < len(self._parts) else (0, 0)
            spot = _Spot(spot.number + len(lines), following, start)
            yield lines, spot

    def _last_lines(self, spot: _Spot) -> list[Line]:
        """What a part leaves unfinished at its end; where more may come, that is no line yet."""
        lines: list[Line] = []
        if self._whole or spot.part < len(self._parts) - 1:
            for stream in STREAMS:
                for text in spot.begun[stream].end():
                    lines.append(Line(spot.number + len(lines), text, spot.about[stream]))
        return lines


def tail_of(ring: Ring) -> tuple[int, list[str]]:
    """The end of a ring and its last lines, for :meth:`StoredLines.base_of`."""
    end = ring.end
    return end, ring.lines(max(ring.first, end - TAIL), end)
