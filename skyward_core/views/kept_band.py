"""A band over lines that grow: looked at anew is only what has come.

What all ranks span is asked for again and again while they send. Of 256 with hundreds of values each, all of it takes
a twentieth of a second; what came since the last look takes a tenth of that.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from math import frexp, inf, isfinite
from typing import NamedTuple

from .spread import Band, Trace, median, pauses

LEAST_STEP = 2.0**-20  # seconds


class _Reached(NamedTuple):
    """How far a line was looked at: all columns before ``column`` are done with it.

    Attributes:
        begin: the first value that is not in one of them.
        at: the time of the one before that.
        before: the last value there; None where that is no finite number.
    """

    column: int
    begin: int
    at: float
    before: float | None


_Span = tuple[float, float, float]
"""Least, last and greatest of a line's values in a column."""


class KeptBand:
    """As :func:`.spread.band` makes one, but that its columns stay while time goes on: where there is no more room,
    they are made twice as long."""

    def __init__(self) -> None:
        self._begin(0.0, 0.0, 0)

    def _begin(self, first: float, last: float, columns: int) -> None:
        """Look at everything anew."""
        fraction, power = frexp(max((last - first) / columns, LEAST_STEP)) if columns else (0.5, 0)
        step = 2.0 ** (power - (fraction == 0.5))  # the least power of two that is no less
        self._first, self._columns = first, columns
        self._ends = [first + step * (column + 1) for column in range(columns)]
        self._lows, self._highs = [inf] * columns, [-inf] * columns
        self._middles = [array("d") for _ in range(columns)]
        self._own = [False] * columns
        self._reached: dict[int, _Reached] = {}
        self._shown: list[_Span | None] = [None] * columns
        self._changed: set[int] = set()
        self._unsure: dict[int, list[_Span]] = {}  # by column: of lines of which more may come there

    def of(self, lines: Mapping[int, Trace], columns: int) -> Band:
        """The band over lines in at most so many parts of the time that they span.

        Args:
            lines: by rank; each has grown since the last call, or is as it was.
        """
        filled = {rank: line for rank, line in lines.items() if len(line.at)}
        if not filled or columns < 1:
            return Band([], [], [], [])
        first = min(line.at[0] for line in filled.values())
        last = max(line.at[-1] for line in filled.values())
        if not self._go_on(filled, first, last, columns):
            self._begin(first, last, columns)
        many = bisect_left(self._ends, last) + 1
        self._changed |= self._unsure.keys()
        self._unsure, own = {}, set()
        for (rank, line), pause in zip(filled.items(), pauses(list(filled.values())), strict=True):
            column = self._take(rank, line)
            if self._rest(line, self._reached[rank], column, line.at[-1] + pause, many):
                own.add(column)
            self._lead(line, line.at[0] - pause)
        for column in self._changed | self._unsure.keys():
            self._shown[column] = self._work_out(column, own)
        self._changed = set()
        found = Band([], [], [], [])
        for column, end in enumerate(self._ends[:many]):
            if (shown := self._shown[column]) is not None:
                found.at.append(min(end, last))
                for each, value in zip(found[1:], shown, strict=True):
                    each.append(value)
        return found

    def _go_on(self, filled: Mapping[int, Trace], first: float, last: float, columns: int) -> bool:
        """Whether these are the lines of before, and there is room for what has come."""
        if columns != self._columns or first != self._first or last > self._ends[-1]:
            return False
        for rank, place in self._reached.items():
            line = filled.get(rank)
            if line is None or place.begin > len(line.at):
                return False
            if place.begin and line.at[place.begin - 1] != place.at:  # every other value has gone
                return False
        return True

    def _take(self, rank: int, line: Trace) -> int:
        """Have the columns know what a line is in those that it has left behind; the one in which it ends."""
        at, values = line
        ends, newest = self._ends, at[-1]
        place = self._reached.get(rank) or _Reached(bisect_left(ends, at[0]), 0, 0.0, None)
        column, begin, _, before = place
        while ends[column] < newest:
            stop = bisect_right(at, ends[column], begin)
            if stop > begin:
                span = _span(values, begin, stop)
                before = None if span is None else span[1]
                self._own[column] |= span is not None
                begin = stop
            else:
                span = None if before is None else (before, before, before)
            if span is not None:
                self._lows[column] = min(self._lows[column], span[0])
                self._middles[column].append(span[1])
                self._highs[column] = max(self._highs[column], span[2])
                self._changed.add(column)
            column += 1
        self._reached[rank] = _Reached(column, begin, at[begin - 1] if begin else 0.0, before)
        return column

    def _rest(self, line: Trace, place: _Reached, column: int, late: float, many: int) -> bool:
        """What a line is in the column in which it ends, and for a pause after that; whether it has a number there."""
        span = _span(line.values, place.begin, len(line.at))
        if span is None:
            return False
        self._unsure.setdefault(column, []).append(span)
        for after in range(column + 1, many):
            if self._ends[after] > late:
                break
            self._unsure.setdefault(after, []).append((span[1], span[1], span[1]))
        return True

    def _lead(self, line: Trace, early: float) -> None:
        """What a line is for a pause before its first value."""
        begins = bisect_left(self._ends, line.at[0])
        begin = bisect_left(self._ends, early, 0, begins)
        if begin < begins and (first := next(filter(isfinite, line.values), None)) is not None:
            for column in range(begin, begins):
                self._unsure.setdefault(column, []).append((first, first, first))

    def _work_out(self, column: int, own: set[int]) -> _Span | None:
        """Least, median and greatest there; None where no line has a value of its own."""
        if not (self._own[column] or column in own):
            return None
        unsure = self._unsure.get(column, ())
        return (
            min(self._lows[column], *(span[0] for span in unsure), inf),
            median([*self._middles[column], *(span[1] for span in unsure)]),
            max(self._highs[column], *(span[2] for span in unsure), -inf),
        )


def _span(values: array[float], begin: int, stop: int) -> _Span | None:
    """Of the finite ones among some values; None where there is none."""
    if stop == begin + 1:
        value = values[begin]
        return (value, value, value) if isfinite(value) else None
    piece = values[begin:stop]
    total = sum(piece)
    if total - total != 0:  # one of them, or their sum, is not finite
        piece = array("d", filter(isfinite, piece))
    return (min(piece), piece[-1], max(piece)) if piece else None
