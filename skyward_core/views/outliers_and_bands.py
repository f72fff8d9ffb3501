"""Detection of outliers among values, and bands (minimum, median, maximum) over several metric series."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import frexp, inf, isfinite
from typing import NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)

MAX_SCORE = 3.5  # minimum modified z-score of an outlier, as recommended by Iglewicz and Hoaglin
# minimum score by mean deviation, which is used if most values are equal; one outlier of four scores 3.19
MAX_MEAN_SCORE = 3.0
MIN_VALUES = 4  # minimum number of values for one of them to count as an outlier
MIN_DEVIATION = 0.05  # share of the median by which an outlier must differ from the median
_OF_MEDIAN, _OF_MEAN = 0.6745, 0.7979  # factors that make median and mean deviation comparable to a standard deviation


class Trace(NamedTuple):
    """One metric series: Unix times, oldest first, and values."""

    at: array[float]
    values: array[float]


class Band(NamedTuple):
    """Minimum, median and maximum of several metric series at increasing times.

    Times at which no series has a value are omitted.
    """

    at: list[float]
    low: list[float]
    middle: list[float]
    high: list[float]


def compute_band(lines: Sequence[Trace], columns: int) -> Band:
    """Return the minimum, median and maximum of all series in each of ``columns`` equal parts of their time.

    Minimum and maximum cover all values of a part. The median covers the last value of each series in the part. A
    series without values in a part, but with values before and after the part, counts with its previous value. The
    first value also counts during one average pause before it, and the last value during one average pause after it.
    Ranks log at different times, so without this rule a part with values of only the earliest or the latest rank would
    look like a change of all ranks. Parts without values and non-finite values are omitted.
    """
    return IncrementalBand(exact=True).update(dict(enumerate(lines)), columns)


def median(values: Iterable[float]) -> float:
    """Return the median of at least one value. Used because importing the ``statistics`` module takes too long."""
    ranked = sorted(values)
    half = len(ranked) // 2
    if len(ranked) % 2:
        return ranked[half]
    low, high = ranked[half - 1], ranked[half]
    # Limit the result to the values' range, because halving the smallest floats rounds them.
    return min(max(low / 2 + high / 2, low), high)


def mean_pauses(lines: Sequence[Trace]) -> list[float]:
    """Return the mean seconds between values of each series. A series of one value gets the median of the others."""
    known = [(line.at[-1] - line.at[0]) / (len(line.at) - 1) if len(line.at) > 1 else None for line in lines]
    several = [pause for pause in known if pause is not None]
    others = median(several) if several else inf
    return [others if pause is None else pause for pause in known]


def find_outliers(values: Mapping[Key, float], apart: float = 0.0) -> list[Key]:
    """Return the keys of values that are outliers by the median absolute deviation, farthest first.

    Non-finite values are outliers unless all values are non-finite. If more than half of the values are equal, the
    median deviation is 0 and the mean deviation is used. Very similar values have a tiny deviation, so a minimum
    distance from the median is required in addition.

    Args:
        values: Values by key.
        apart: Smallest relevant distance from the median. In any case, at least :data:`MIN_DEVIATION` of the median is
            required.
    """
    finite = {key: value for key, value in values.items() if isfinite(value)}
    odd = [key for key in values if key not in finite] if finite else []
    if len(finite) < MIN_VALUES:
        return odd
    # Divide all values by the greatest one, so that no difference overflows.
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


LEAST_STEP = 2.0**-20  # minimum seconds of a column


class _ScanPosition(NamedTuple):
    """Position in a metric series up to which the band was computed.

    Attributes:
        column: Index of the first column that is not computed yet.
        begin: First value after the computed columns.
        at: Time of the value before ``begin``.
        before: Value before ``begin``. None if it is not finite.
    """

    column: int
    begin: int
    at: float
    before: float | None


# Minimum, last and maximum of a series' values in a column.
_Span = tuple[float, float, float]


class IncrementalBand:
    """Band like the one of :func:`compute_band`, but updated incrementally.

    Charts request the band on every refresh. Columns keep their times while the series grow. When all columns are used,
    their length doubles.

    Args:
        exact: Whether the columns divide the time evenly. Otherwise their length is a power of two.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self._reset(0.0, 0.0, 0)

    def _reset(self, first: float, last: float, columns: int) -> None:
        """Discard all computed columns, and divide a span of time into new columns."""
        step = (last - first) / max(1, columns)
        if not self._exact:
            fraction, power = frexp(max(step, LEAST_STEP))
            step = 2.0 ** (power - (fraction == 0.5))  # Round the column's length up to a power of two.
        self._first, self._columns = first, columns
        self._ends = [first + step * (column + 1) for column in range(columns)]
        if self._exact and columns:
            self._ends[-1] = last  # Set the exact end, because the computed end may have a rounding error.
        self._lows, self._highs = [inf] * columns, [-inf] * columns
        self._middles = [array("d") for _ in range(columns)]
        self._own = [False] * columns
        self._reached: dict[int, _ScanPosition] = {}
        self._column_spans: list[_Span | None] = [None] * columns
        self._changed: set[int] = set()
        # column -> spans of series that may still get values in this column
        self._provisional: dict[int, list[_Span]] = {}

    def update(self, lines: Mapping[int, Trace], columns: int) -> Band:
        """Return the band over all series, in at most ``columns`` parts of their time.

        Args:
            lines: Series by rank. Since the last call, values were only appended to each series.
            columns: Greatest number of parts.
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
            if line.at[0] > self._ends[0]:
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
        """Check whether values were only appended since the last call, and all new values fit into the columns."""
        if columns != self._columns or first != self._first or last > self._ends[-1]:
            return False
        for rank, place in self._reached.items():
            line = filled.get(rank)
            if line is None or place.begin > len(line.at):
                return False
            if place.begin and line.at[place.begin - 1] != place.at:
                # Values before the scan position were dropped, because the series was thinned since the last call.
                return False
        return True

    def _add_values(self, rank: int, line: Trace) -> int:
        """Add a series' new values to all columns that the series has passed. Return the column of its last value."""
        at, values = line
        ends, newest = self._ends, at[-1]
        known = self._reached.get(rank)
        column, begin, _, before = known or _ScanPosition(bisect_left(ends, at[0]), 0, 0.0, None)
        if known is not None and newest <= ends[column]:
            return column
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
        """Add a series' values to its last column, and extend its last value for one pause.

        Returns:
            Whether the series has a finite value in that column.
        """
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
        """Extend the first value of a series to the columns within one average pause before it."""
        begins = bisect_left(self._ends, line.at[0])
        begin = bisect_left(self._ends, early, 0, begins)
        if begin < begins and (first := next(filter(isfinite, line.values), None)) is not None:
            for column in range(begin, begins):
                self._provisional.setdefault(column, []).append((first, first, first))

    def _compute_column(self, column: int, own: set[int]) -> _Span | None:
        """Return the column's minimum, median and maximum. None if no series has a value in it."""
        if not (self._own[column] or column in own):
            return None
        unsure = self._provisional.get(column, ())
        return (
            min(self._lows[column], *(span[0] for span in unsure), inf),
            median([*self._middles[column], *(span[1] for span in unsure)]),
            max(self._highs[column], *(span[2] for span in unsure), -inf),
        )


def _finite_span(values: array[float], begin: int, stop: int) -> _Span | None:
    """Return minimum, last and maximum of the finite values in a range of a series; None if there are none."""
    if stop == begin + 1:
        value = values[begin]
        return (value, value, value) if isfinite(value) else None
    piece = values[begin:stop]
    total = sum(piece)
    if total - total != 0:  # Some value, or the sum, is not finite. Drop non-finite values.
        piece = array("d", filter(isfinite, piece))
    return (min(piece), piece[-1], max(piece)) if piece else None
