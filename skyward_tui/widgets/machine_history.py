"""What machines were at until now, beside their figures: a filled curve for each, or a row of bars for each GPU."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from statistics import fmean

from skyward_core.views.machines import MachineView
from skyward_core.views.spread import Trace

from .braille import Canvas

_BARS = " ▁▂▃▄▅▆▇█"
FULL = 100.0

Span = tuple[float, float]


def use_curve(machine: MachineView, width: int, height: int, x: Span) -> list[str]:
    """How much of its GPUs was used over time, as rows."""
    return _filled(_use(machine), FULL, width, height, x)


def host_curve(machine: MachineView, name: str, full: float, width: int, height: int, x: Span) -> list[str]:
    """One of the node's own figures over time, as rows.

    Args:
        full: what the whole height is.
    """
    return _filled(list(zip(*machine.host.trace(name), strict=True)), full, width, height, x)


def greatest(machines: Iterable[MachineView], name: str) -> float:
    """The greatest value that any of them has had, so that all curves have one scale."""
    return max((machine.host.greatest(name) for machine in machines), default=0.0)


def _filled(points: list[tuple[float, float]], full: float, width: int, height: int, x: Span) -> list[str]:
    canvas = Canvas(width, height, x, (0.0, full or 1.0))
    canvas.line(points, 1)
    if height > 1:
        canvas.fill(1)
    return ["".join(text for text, _ in canvas.runs(row)) for row in range(height)]


def gpu_rows(machine: MachineView, name: str, whole: str | float, width: int, x: Span) -> list[str]:
    """A row for each of its GPUs.

    Args:
        name, whole: the figure, and the one that it is a part of, or how much of it is all.
    """
    rows = []
    for track in machine.gpus:
        full = track.latest.get(whole) if isinstance(whole, str) else whole
        rows.append(_bars(track.trace(name), full, width, x) if full else "")
    return rows


def _bars(trace: Trace, full: float, columns: int, x: Span) -> str:
    """What it was on average in each part of the time; what was not measured is as it was before."""
    at, values = trace
    if not len(at) or columns < 1:
        return ""
    step = (x[1] - x[0]) / columns or 1.0
    shown: list[str] = []
    first = bisect_left(at, x[0])
    for column in range(columns):
        end = bisect_right(at, x[0] + step * (column + 1)) if column < columns - 1 else len(at)
        if end > first:
            part = fmean(values[first:end]) / full
            bar = _BARS[1 + min(7, max(0, int(part * 8)))]
        else:
            bar = shown[-1] if shown else " "
        shown.append(bar)
        first = end
    return "".join(shown)


def _use(machine: MachineView) -> list[tuple[float, float]]:
    traces = [track.trace("util") for track in machine.gpus]
    traces = [trace for trace in traces if len(trace.at)]
    if not traces:
        return []
    shortest = min(len(trace.at) for trace in traces)  # all were measured at once
    columns = zip(*(trace.values[-shortest:] for trace in traces), strict=True)
    return list(zip(traces[0].at[-shortest:], map(fmean, columns), strict=True))
