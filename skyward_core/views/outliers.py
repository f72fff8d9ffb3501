"""Bands, outliers and disagreement of metrics."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import frexp, inf, isfinite
from typing import NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)

MAX_SCORE = 3.5  # of the modified z-score; what Iglewicz and Hoaglin recommend
MAX_MEAN_SCORE = 3.0  # the same by the mean deviation, where most are equal: one of four has 3.19 at most
MIN_VALUES = 4  # values of which one can be said to be odd
MIN_DEVIATION = 0.05  # of the median: who differs by less is not odd, however much alike the others are
_OF_MEDIAN, _OF_MEAN = 0.6745, 0.7979  # of a normal distribution's deviation, to be comparable


class Trace(NamedTuple):
    """One name's numbers of one sender: Unix times, oldest first, and values."""

    at: array[float]
    values: array[float]


class Band(NamedTuple):
    """What lines span, at times evenly far apart: where none has a value there is no time."""

    at: list[float]
    low: list[float]
    middle: list[float]
    high: list[float]


def compute_band(lines: Sequence[Trace], columns: int) -> Band:
    """Least, median and greatest value of all lines in each of ``columns`` parts of the time that they span.

    Least and greatest are of all values in the part, the median of each line's last one there. A line that has none
    there, but some before and after, counts with the last one before; at either end for one more of its pauses, for
    ranks send at times of their own, and one that is the first or the last to send must not look like a change of all.
    A part in which no line has a value of its own is left out. What is no finite number counts as none.
    """
    return IncrementalBand(exact=True).update(dict(enumerate(lines)), columns)


def median(values: Iterable[float]) -> float:
    """The middle one, or the mean of the two in the middle; of at least one value. (``statistics`` takes longer to be
    imported than a client that starts has.)"""
    ranked = sorted(values)
    half = len(ranked) // 2
    if len(ranked) % 2:
        return ranked[half]
    low, high = ranked[half - 1], ranked[half]
    return min(max(low / 2 + high / 2, low), high)  # the halves of the least numbers are rounded


def mean_pauses(lines: Sequence[Trace]) -> list[float]:
    """Seconds between two values of each line, on the average; of one that has a single value, as those of others."""
    known = [(line.at[-1] - line.at[0]) / (len(line.at) - 1) if len(line.at) > 1 else None for line in lines]
    several = [pause for pause in known if pause is not None]
    others = median(several) if several else inf
    return [others if pause is None else pause for pause in known]


def find_outliers(values: Mapping[Key, float], apart: float = 0.0) -> list[Key]:
    """Whose value is far from all others', the farthest first, by the median absolute deviation; what is no finite
    number is, unless none is.

    Where more than half have the same value, that deviation is 0, and the mean one takes its place. Values that are
    much alike have a small one, and what is far by it need not be far for people: 94 % where all others are at 97 %.

    Args:
        apart: the least difference from the median that matters; :data:`MIN_DEVIATION` of the median does in any case.
    """
    finite = {key: value for key, value in values.items() if isfinite(value)}
    odd = [key for key in values if key not in finite] if finite else []
    if len(finite) < MIN_VALUES:
        return odd
    # In parts of the greatest, so that no difference is infinite.
    unit = max(map(abs, finite.values())) or 1.0
    scaled = {key: value / unit for key, value in finite.items()}
    middle = median(scaled.values())
    away = {key: abs(value - middle) for key, value in scaled.items()}
    deviation = median(away.values())
    scale, far = (_OF_MEDIAN / deviation if deviation > 1e-12 else 0.0), MAX_SCORE
    if not scale:
        far = MAX_MEAN_SCORE
        mean = sum(away.values()) / len(away)
        scale = _OF_MEAN / mean if mean > 1e-12 else 0.0
    least = max(apart / unit, MIN_DEVIATION * abs(middle))
    found = [key for key, distance in away.items() if distance * scale > far and distance > least]
    return odd + sorted(found, key=lambda key: -away[key])


LEAST_STEP = 2.0**-20  # seconds


class _ScanPosition(NamedTuple):
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


class IncrementalBand:
    """A band as of :func:`compute_band`, whose columns stay while time goes on: if there is no more room, they become
    twice as long.

    Args:
        exact: Whether the columns divide the time evenly; those of lines that grow are powers of two long.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self._reset(0.0, 0.0, 0)

    def _reset(self, first: float, last: float, columns: int) -> None:
        """Look at everything anew."""
        step = (last - first) / max(1, columns)
        if not self._exact:
            fraction, power = frexp(max(step, LEAST_STEP))
            step = 2.0 ** (power - (fraction == 0.5))  # the least power of two that is no less
        self._first, self._columns = first, columns
        self._ends = [first + step * (column + 1) for column in range(columns)]
        if self._exact and columns:
            self._ends[-1] = last  # whatever was rounded
        self._lows, self._highs = [inf] * columns, [-inf] * columns
        self._middles = [array("d") for _ in range(columns)]
        self._own = [False] * columns
        self._reached: dict[int, _ScanPosition] = {}
        self._column_spans: list[_Span | None] = [None] * columns
        self._changed: set[int] = set()
        self._provisional: dict[int, list[_Span]] = {}  # by column: of lines of which more may come there

    def update(self, lines: Mapping[int, Trace], columns: int) -> Band:
        """The band over lines in at most so many parts of the time that they span.

        Args:
            lines: by rank; each has grown since the last call, or is as it was.
        """
        filled = {rank: line for rank, line in lines.items() if len(line.at)}
        if not filled or columns < 1:
            return Band([], [], [], [])
        first = min(line.at[0] for line in filled.values())
        last = max(line.at[-1] for line in filled.values())
        if not self._can_extend(filled, first, last, columns):
            self._reset(first, last, columns)
        many = bisect_left(self._ends, last) + 1
        self._changed |= self._provisional.keys()
        self._provisional, own = {}, set()
        for (rank, line), pause in zip(filled.items(), mean_pauses(list(filled.values())), strict=True):
            column = self._add_values(rank, line)
            if self._add_tail(line, self._reached[rank], column, line.at[-1] + pause, many):
                own.add(column)
            self._add_lead(line, line.at[0] - pause)
        for column in self._changed | self._provisional.keys():
            self._column_spans[column] = self._compute_column(column, own)
        self._changed = set()
        found = Band([], [], [], [])
        for column, end in enumerate(self._ends[:many]):
            if (shown := self._column_spans[column]) is not None:
                found.at.append(min(end, last))
                for each, value in zip(found[1:], shown, strict=True):
                    each.append(value)
        return found

    def _can_extend(self, filled: Mapping[int, Trace], first: float, last: float, columns: int) -> bool:
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

    def _add_values(self, rank: int, line: Trace) -> int:
        """Have the columns know what a line is in those that it has left behind; the one in which it ends."""
        at, values = line
        ends, newest = self._ends, at[-1]
        place = self._reached.get(rank) or _ScanPosition(bisect_left(ends, at[0]), 0, 0.0, None)
        column, begin, _, before = place
        while ends[column] < newest:
            stop = bisect_right(at, ends[column], begin)
            if stop > begin:
                span = _finite_span(values, begin, stop)
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
        self._reached[rank] = _ScanPosition(column, begin, at[begin - 1] if begin else 0.0, before)
        return column

    def _add_tail(self, line: Trace, place: _ScanPosition, column: int, late: float, many: int) -> bool:
        """What a line is in the column in which it ends, and for a pause after that; whether it has a number there."""
        span = _finite_span(line.values, place.begin, len(line.at))
        if span is None:
            return False
        self._provisional.setdefault(column, []).append(span)
        for after in range(column + 1, many):
            if self._ends[after] > late:
                break
            self._provisional.setdefault(after, []).append((span[1], span[1], span[1]))
        return True

    def _add_lead(self, line: Trace, early: float) -> None:
        """What a line is for a pause before its first value."""
        begins = bisect_left(self._ends, line.at[0])
        begin = bisect_left(self._ends, early, 0, begins)
        if begin < begins and (first := next(filter(isfinite, line.values), None)) is not None:
            for column in range(begin, begins):
                self._provisional.setdefault(column, []).append((first, first, first))

    def _compute_column(self, column: int, own: set[int]) -> _Span | None:
        """Least, median and greatest there; None where no line has a value of its own."""
        if not (self._own[column] or column in own):
            return None
        unsure = self._provisional.get(column, ())
        return (
            min(self._lows[column], *(span[0] for span in unsure), inf),
            median([*self._middles[column], *(span[1] for span in unsure)]),
            max(self._highs[column], *(span[2] for span in unsure), -inf),
        )


def _finite_span(values: array[float], begin: int, stop: int) -> _Span | None:
    """Of the finite ones among some values; None where there is none."""
    if stop == begin + 1:
        value = values[begin]
        return (value, value, value) if isfinite(value) else None
    piece = values[begin:stop]
    total = sum(piece)
    if total - total != 0:  # one of them, or their sum, is not finite
        piece = array("d", filter(isfinite, piece))
    return (min(piece), piece[-1], max(piece)) if piece else None
