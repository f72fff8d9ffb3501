"""Numbers of ranks as charts: what is drawn, and what it is worth at an instant. Pure functions; who paints does only
that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite, log10, nan
from typing import NamedTuple

from skyward_core.views.outliers import IncrementalBand, Trace, compute_band, median
from skyward_core.views.rank_metrics import MetricStore

Line = Sequence[tuple[float, float]]
"""(Unix time, value), oldest first."""

RANKS_DRAWN = 8  # more are drawn as what they span: a chart of 256 lines shows none of them
RANKS_ANEW = 32  # whose band is made anew each time: a few thousandths of a second
SMOOTHING = 0.9  # of what was before is left with each value
COUNTERS = frozenset({"step", "global_step", "epoch", "iteration", "iter", "batch", "rank"})
_SURE = 8  # values by which a number of another name is known to count only


class Chart(NamedTuple):
    """One name's numbers, as they are drawn.

    Attributes:
        behind: lines that stand back: other ranks or what all span, and the raw line of one that is smoothed.
        front: the line that is looked at.
        value: of the rank that is looked at, or the median of all, at the instant, or the newest; None where there is
            none.
        low, high: the least and the greatest of all ranks then; None where there is one rank.
    """

    behind: Sequence[Line]
    front: Line
    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def lines(self) -> list[Line]:
        """All of them."""
        return [*self.behind, self.front]


def is_counter(name: str, trace: Trace) -> bool:
    """Whether a number only counts (by its name, or since it grows by one whole number, always the same): its curve
    tells nothing."""
    if name.lower() in COUNTERS:
        return True
    values = trace.values
    if len(values) < _SURE:
        return False
    grows = values[1] - values[0]
    return (
        isfinite(grows)
        and grows > 0
        and grows.is_integer()
        and values[0].is_integer()
        and all(after - before == grows for before, after in pairwise(values))
    )


def sort_names(metrics: MetricStore, run: str) -> tuple[list[str], list[str]]:
    """A run's names whose curves tell something, and those that only count; where all do, all are the former."""
    names = metrics.names(run)
    counts = [name for name in names if is_counter(name, metrics.first_trace(run, name))]
    return ([name for name in names if name not in counts], counts) if len(counts) < len(names) else (names, [])


def make_chart(
    traces: Mapping[int, Trace],
    rank: int | None,
    *,
    columns: int,
    log: bool = False,
    smooth: bool = False,
    at: float | None = None,
    kept: IncrementalBand | None = None,
) -> Chart:
    """A chart of one name.

    Args:
        traces: its numbers, by rank.
        rank: the one that is looked at; None for the median of all.
        columns: parts of the time that a band over ranks has.
        log: whether lines are of the values' logarithms (base 10); what is not above 0 has none.
        smooth: whether the line that is looked at is smoothed, and stands raw behind.
        at: the instant (Unix time) whose values are told; None for the newest.
        kept: of the same numbers, when they were asked for before; makes a band over many ranks quick.
    """
    own = None if rank is None else traces.get(rank)
    front: Line = trace_line(own) if own is not None else []
    drawn = traces if len(traces) <= RANKS_DRAWN else {}
    others: list[Line] = [trace_line(trace) for each, trace in drawn.items() if each != rank]
    if rank is None and len(traces) == 1:
        front, others = others[0], []
    elif rank is None or len(traces) > RANKS_DRAWN:
        columns = max(2, columns)
        if kept is not None and len(traces) > RANKS_ANEW:
            span = kept.update(traces, columns)
        else:
            span = compute_band(list(traces.values()), columns)
        middle = list(zip(span.at, span.middle, strict=True))
        if len(traces) > RANKS_DRAWN:
            others = [list(zip(span.at, edge, strict=True)) for edge in (span.low, span.high)]
        if rank is None:
            front = middle
        else:
            others.append(middle)
    behind = [*others, front] if smooth else others
    front = smooth_line(front) if smooth else front
    if log:
        behind, front = [log_scale(line) for line in behind], log_scale(front)
    return Chart(behind, front, *_values(traces, rank, at))


def _values(
    traces: Mapping[int, Trace], rank: int | None, at: float | None
) -> tuple[float | None, float | None, float | None]:
    """Of the rank, or the median; the least and the greatest."""
    then = {each: value for each, trace in traces.items() if (value := value_at(trace, at)) is not None}
    finite = [value for value in then.values() if isfinite(value)]
    value = then.get(rank) if rank is not None else median(finite) if finite else next(iter(then.values()), None)
    return (value, min(finite), max(finite)) if len(traces) > 1 and finite else (value, None, None)


def trace_line(trace: Trace) -> Line:
    """A trace as a line."""
    return list(zip(trace.at, trace.values, strict=True))


def value_at(trace: Trace, at: float | None) -> float | None:
    """The value that held at an instant, the last one before it; the newest where there is none. None before the
    first."""
    place = len(trace.at) if at is None else bisect_right(trace.at, at)
    return trace.values[place - 1] if place else None


def smooth_line(line: Line) -> Line:
    """The exponential moving average, which begins at the first value and not at 0. What is no finite number is a gap,
    and has no part in it."""
    found: list[tuple[float, float]] = []
    mean, share = 0.0, 1.0
    for at, value in line:
        if not isfinite(value):
            found.append((at, nan))
            continue
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        share *= SMOOTHING
        found.append((at, mean / (1 - share)))
    return found


def log_scale(line: Line) -> Line:
    """The values' logarithms to base 10; a gap for what has none."""
    return [(at, log10(value) if value > 0 and isfinite(value) else nan) for at, value in line]


def time_span(charts: Sequence[Chart]) -> tuple[float, float] | None:
    """The time that several charts span together; None where nothing is drawn."""
    ends = [end for chart in charts for line in chart.lines if line for end in (line[0][0], line[-1][0])]
    return (min(ends), max(ends)) if ends else None


def column_time(column: int, columns: int, span: tuple[float, float]) -> float:
    """The time of a column of a chart."""
    first, last = span
    return first + (last - first) * min(max(0, column), columns - 1) / max(1, columns - 1)


def time_column(at: float, columns: int, span: tuple[float, float]) -> int:
    """The column of a time; the nearest one where it is outside of the chart."""
    first, last = span
    part = (at - first) / (last - first) if last > first else 1.0
    return round(min(max(0.0, part), 1.0) * max(0, columns - 1))
