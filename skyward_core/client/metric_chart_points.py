"""Points of metric charts: lines to draw, and values at an instant.

The functions are pure. Widgets only draw their results.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite, log10, nan
from typing import NamedTuple

from skyward_core.views.outliers_and_bands import IncrementalBand, Trace, compute_band, median
from skyward_core.views.rank_metrics_and_diagnostics import MetricStore

Line = Sequence[tuple[float, float]]
"""Points (Unix time, value), oldest first."""

# up to this number of ranks, each has its own line; more ranks are drawn as one band, because lines would overlap
RANKS_DRAWN = 8
RANKS_ANEW = 32  # up to this number of ranks, a band is recomputed each time, which takes a few milliseconds
SMOOTHING = 0.9  # weight of the earlier values in the moving average
COUNTERS = frozenset({"step", "global_step", "epoch", "iteration", "iter", "batch", "rank"})
_SURE = 8  # values needed to recognize a metric as a counter


class Chart(NamedTuple):
    """Lines and values of one metric's chart.

    Attributes:
        behind: Background lines: the other ranks or their band, and the raw line behind a smoothed line.
        front: The main line.
        value: Value of the selected rank (or the median of all ranks) at the instant, or the newest value; None without
            values.
        low, high: Minimum and maximum over all ranks at that time; None for a single rank.
    """

    behind: Sequence[Line]
    front: Line
    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def lines(self) -> list[Line]:
        """All lines."""
        return [*self.behind, self.front]


def is_counter(name: str, trace: Trace) -> bool:
    """Check whether a metric is only a counter, whose curve is useless: by its name, or because it grows by a constant
    whole number.
    """
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
    """Return the names of the metrics worth a chart, and the names of counters. If all are counters, the first list has
    all names.
    """
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
    bands: IncrementalBand | None = None,
) -> Chart:
    """Return the chart of one metric.

    Args:
        traces: Values by rank.
        rank: The selected rank; None for the median of all.
        columns: Time intervals of a band over ranks.
        log: Whether to draw logarithms to base 10; values that are not positive become gaps.
        smooth: Whether to smooth the main line, with the raw line behind it.
        at: Instant (Unix time) of the values; None for the newest.
        bands: Incremental band of the same metric from earlier calls, which makes bands over many ranks fast.
    """
    own = None if rank is None else traces.get(rank)
    front: Line = trace_line(own) if own is not None else []
    drawn = traces if len(traces) <= RANKS_DRAWN else {}
    others: list[Line] = [trace_line(trace) for each, trace in drawn.items() if each != rank]
    if rank is None and len(traces) == 1:
        front, others = others[0], []
    elif rank is None or len(traces) > RANKS_DRAWN:
        columns = max(2, columns)
        if bands is not None and len(traces) > RANKS_ANEW:
            span = bands.update(traces, columns)
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
    """Return the value of the selected rank (or the median of all ranks), the minimum and the maximum."""
    then = {each: value for each, trace in traces.items() if (value := value_at(trace, at)) is not None}
    finite = [value for value in then.values() if isfinite(value)]
    value = then.get(rank) if rank is not None else median(finite) if finite else next(iter(then.values()), None)
    return (value, min(finite), max(finite)) if len(traces) > 1 and finite else (value, None, None)


def trace_line(trace: Trace) -> Line:
    """Return a trace as a line."""
    return list(zip(trace.at, trace.values, strict=True))


def value_at(trace: Trace, at: float | None) -> float | None:
    """Return the last value at or before an instant, or the newest; None before the first."""
    place = len(trace.at) if at is None else bisect_right(trace.at, at)
    return trace.values[place - 1] if place else None


def smooth_line(line: Line) -> Line:
    """Return the exponential moving average of a line, corrected for bias at the start. Non-finite values are skipped
    and leave gaps.
    """
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
    """Return a line of logarithms to base 10; values that have no logarithm become gaps."""
    return [(at, log10(value) if value > 0 and isfinite(value) else nan) for at, value in line]


def time_span(charts: Sequence[Chart]) -> tuple[float, float] | None:
    """Return the common time span of charts; None if nothing is drawn."""
    ends = [end for chart in charts for line in chart.lines if line for end in (line[0][0], line[-1][0])]
    return (min(ends), max(ends)) if ends else None


def column_time(column: int, columns: int, span: tuple[float, float]) -> float:
    """Return the time of a column of a chart."""
    first, last = span
    return first + (last - first) * min(max(0, column), columns - 1) / max(1, columns - 1)


def time_column(at: float, columns: int, span: tuple[float, float]) -> int:
    """Return the column of a time; a time outside the chart gets the first or last column."""
    first, last = span
    part = (at - first) / (last - first) if last > first else 1.0
    return round(min(max(0.0, part), 1.0) * max(0, columns - 1))
