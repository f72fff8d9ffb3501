"""Charts of metrics: lines to draw, values at an instant, and drawing in braille characters. Pictures of ranks."""

from __future__ import annotations

from array import array
from binascii import b2a_base64
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from itertools import accumulate, groupby, pairwise
from math import ceil, floor, inf, isfinite, log10, nan
from operator import sub
from sys import float_info
from typing import NamedTuple, TypeVar

from rich.cells import cell_len
from rich.color import Color
from rich.segment import ControlType, Segment
from rich.style import Style
from textual.content import Content
from textual.strip import Strip

from skyward_core.views.metric_kinds_and_order import AXES
from skyward_core.views.outliers_and_bands import IncrementalBand, Trace, compute_band, median
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_tui.text.number_time_and_run_state_format import duration, number

Points = Sequence[tuple[float, float]]

_BLANK = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
# by left (0) or right (1) half of a cell, first row and last row: the dots of these rows
_SPANS = [[[sum(half[first : last + 1]) for last in range(4)] for first in range(4)] for half in _DOTS]
# Braille characters by their dots; a cell without dots is a blank
_CHARS = [" ", *map(chr, range(_BLANK + 1, _BLANK + 256))]
_BARS = "▁▂▃▄▅▆▇█"


@cache
def _filled(at: int) -> int:
    """Return the dots of a cell after the area below its dots is filled.

    Args:
        at: Dots of the cell, plus 256 or 512 if the area below a dot of a cell above includes the left or right half.
    """
    found = (
        next((row for row in range(4) if at & (half[row] | flag)), 4)
        for half, flag in zip(_DOTS, (256, 512), strict=True)
    )
    return sum(sum(half[first:]) for half, first in zip(_DOTS, found, strict=True))


class Canvas:
    """Grid of braille cells to draw lines on. Each cell stores the number of the part of the chart that it shows (its
    owner).

    Args:
        width, height: Size in cells.
        x, y: (minimum, maximum) of each axis, in the units of the points.
    """

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.width, self.height = width, height
        self._x, self._y = _scale(x, 2 * width - 1), _scale(y, 4 * height - 1)
        self._cells, self._owners, self._back, self._back_owners = (
            [bytearray(width) for _ in range(height)] for _ in range(4)
        )

    def draw_line(self, points: Points, owner: int) -> None:
        """Draw a line through points. Non-finite values interrupt the line.

        ``owner`` is the number that selects the line's style. A cell that several lines cross has the greatest of their
        numbers.
        """
        (x_low, x_scale), (y_low, y_scale) = self._x, self._y
        bottom, right = 4 * self.height - 1, 2 * self.width - 1
        # the column of dots that the line has reached (-2: none), the first and the last row of the line in it, and the
        # row of the last point
        column, top, low, last = -2, 0, 0, 0
        for x, y in points:
            here, row = -2, 0
            if isfinite(y):
                here, row = int((x / 2 - x_low) * x_scale + 0.5), bottom - int((y / 2 - y_low) * y_scale + 0.5)
                here = 0 if here < 0 else right if here > right else here
                row = 0 if row < 0 else bottom if row > bottom else row
            if here != column:
                if here == column + 1:  # the line ends a row before the point, in the column before the point
                    low, top = max(low, row - 1 if row > last else last), min(top, row + 1 if row < last else last)
                elif here >= 0 <= column:
                    self._stroke((column, last), (here, row), owner)
                self._draw_run(column, top, low, owner)
                column, top, low = here, row, row
            elif row < top:
                top = row
            elif row > low:
                low = row
            last = row
        self._draw_run(column, top, low, owner)

    def _draw_run(self, dot: int, top: int, bottom: int, owner: int) -> None:
        """Draw the dots of one column (-2: none) from one row to another."""
        column, spans = dot >> 1, _SPANS[dot & 1]
        for row in range(top >> 2, (bottom >> 2) + 1 if dot >= 0 else 0):
            self._cells[row][column] |= spans[max(0, top - 4 * row)][min(bottom - 4 * row, 3)]
            if owner > self._owners[row][column]:
                self._owners[row][column] = owner

    def _stroke(self, start: tuple[int, int], end: tuple[int, int], owner: int) -> None:
        (x0, y0), (x1, y1) = start, end
        width, height = x1 - x0, y1 - y0
        steps = max(abs(width), abs(height))
        for step in range(steps + 1):
            x, y = x0 + width * step // steps, y0 + height * step // steps
            self._cells[y >> 2][x >> 1] |= _DOTS[x & 1][y & 3]
            if owner > self._owners[y >> 2][x >> 1]:
                self._owners[y >> 2][x >> 1] = owner

    def fill(self, owner: int) -> None:
        """Fill the area below the drawn lines, without changing the colours of the lines."""
        below = bytearray(self.width)
        for cells, owners in zip(self._cells, self._owners, strict=True):
            cells[:] = map(_filled, map(int.__or__, cells, [dots >> 6 << 8 for dots in below]))
            owners[:] = [old or (owner if dots else 0) for old, dots in zip(owners, cells, strict=True)]
            below = cells

    def draw_vertical(self, column: int, owner: int) -> None:
        """Draw a vertical line through a column of cells. ``owner`` selects its style; lines with smaller numbers are
        behind it.
        """
        self._draw_run(2 * column, 0, 4 * self.height - 1, owner)

    def dot_row(self, y: float) -> int:
        """Return the row of dots, counted from the top, in which a y value is drawn."""
        low, scale = self._y
        return 4 * self.height - 1 - min(max(0, int((y / 2 - low) * scale + 0.5)), 4 * self.height - 1)

    def dot_column(self, x: float) -> int:
        """Return the column of dots in which an x value is drawn."""
        low, scale = self._x
        return min(max(0, int((x / 2 - low) * scale + 0.5)), 2 * self.width - 1)

    def draw_grid(self, xs: Sequence[float], ys: Sequence[float], owner: int) -> None:
        """Draw dotted lines at values of both axes, behind all lines."""
        for row in map(self.dot_row, ys):
            for column in range(self.width):
                self._put_behind(row >> 2, column, _DOTS[0][row & 3], owner)
        for dot in map(self.dot_column, xs):
            for row in range(self.height):
                self._put_behind(row, dot >> 1, _DOTS[dot & 1][0] | _DOTS[dot & 1][2], owner)

    def fill_between(self, low: Points, high: Points, owner: int) -> None:
        """Fill the area between two lines, which have the same x values, with every second dot. Other lines stay in
        front.
        """
        before: tuple[int, int, int] | None = None
        for (x, least), (_, greatest) in zip(low, high, strict=True):
            if not isfinite(least) or not isfinite(greatest):
                before = None
                continue
            here = self.dot_column(x), self.dot_row(greatest), self.dot_row(least)
            first, top, bottom = before if before is not None and before[0] < here[0] else here
            wide = here[0] - first or 1
            for dot in range(first, here[0] + 1):
                part = (dot - first) / wide
                begin, end = round(top + (here[1] - top) * part), round(bottom + (here[2] - bottom) * part)
                half, odd = _DOTS[dot & 1], dot & 1
                for row in range(begin >> 2, (end >> 2) + 1):
                    dots = half[odd] | half[odd + 2]
                    if begin >> 2 == row or end >> 2 == row:
                        inside = range(max(begin, 4 * row), min(end, 4 * row + 3) + 1)
                        dots = sum(half[at & 3] for at in inside if at & 1 == odd)
                    self._put_behind(row, dot >> 1, dots, owner)
            before = here

    def _put_behind(self, row: int, column: int, dots: int, owner: int) -> None:
        if not dots:
            return
        self._back[row][column] |= dots
        self._back_owners[row][column] = max(self._back_owners[row][column], owner)

    def runs(self, row: int) -> list[tuple[str, int]]:
        """Return a row as pieces (text, owner), in which the owner number selects the style. Blanks have the owner 0. A
        cell with a line shows only the line.
        """
        dots, owners = self._cells[row], self._owners[row]
        if any(self._back_owners[row]):
            dots = bytearray(front or back for front, back in zip(dots, self._back[row], strict=True))
            owners = bytearray(front or back for front, back in zip(owners, self._back_owners[row], strict=True))
        text = "".join(map(_CHARS.__getitem__, dots))
        ends = [*accumulate(len([*group]) for _, group in groupby(owners))]
        return [(text[begin:end], owners[begin]) for begin, end in zip([0, *ends], ends, strict=False)]


def _scale(span: tuple[float, float], most: int) -> tuple[float, float]:
    """Return half of the minimum, and the number of dots per unit of a halved value (0 for an empty span).

    Values are halved because the difference between maximum and minimum may overflow to infinity.
    """
    low, high = span
    room = high / 2 - low / 2
    scale = most / room if room > 0 else 0.0
    return low / 2, scale if isfinite(scale) else 0.0


def bounds(series: Sequence[Points]) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return (minimum, maximum) of x and of y over all finite points; None if there are none. If all y are equal, the
    range of y gets a margin.
    """
    xs = [x for points in series for x, y in points if isfinite(y)]
    ys = [y for points in series for _, y in points if isfinite(y)]
    if not ys:
        return None
    low, high = min(ys), max(ys)
    if low == high:
        room = abs(low) / 2 or 1.0
        low, high = max(low - room, -float_info.max), min(high + room, float_info.max)
    return (min(xs), max(xs)), (low, high)


def spark(points: Points, width: int) -> str:
    """Return values as a row of bars, the newest on the right. Each bar shows the last value of its time interval."""
    values = [value for _, value in points if isfinite(value)]
    if not values or width < 1:
        return ""
    columns = min(width, len(values))
    picked = [values[(column + 1) * len(values) // columns - 1] for column in range(columns)]
    low, scale = _scale((min(picked), max(picked)), len(_BARS) - 1)
    heights = (int((value / 2 - low) * scale + 0.5) if scale else len(_BARS) // 2 - 1 for value in picked)
    return "".join(_BARS[min(max(0, height), len(_BARS) - 1)] for height in heights)


Span = tuple[float, float]


def curve(points: Points, width: int, height: int, *, part_of: Span | None = None) -> list[Content]:
    """Return a line chart; empty without points.

    Args:
        part_of: (minimum, maximum) of the y axis; if given, the area below the line is filled. None for the range of
            the points.
    """
    spans = bounds([points])
    if spans is None or width < 1 or height < 1:
        return []
    canvas = Canvas(width, height, spans[0], part_of or spans[1])
    canvas.draw_line(points, 1)
    if part_of is not None:
        canvas.fill(1)
    # Blanks are separate segments. A fallback font may have a different width for braille characters, and an SVG export
    # would stretch a single segment over the whole row.
    return [
        Content.assemble(*((text, "$text-primary" if owner else "") for text, owner in canvas.runs(row)))
        for row in range(height)
    ]


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Return at most ``most`` round values from ``low`` to ``high``; both ends if there is no round value between."""
    raw = (high / most - low / most) if high > low else 0.0
    power = 10.0 ** floor(log10(raw)) if raw > 0 else 0.0
    for factor in (1, 2, 5, 10, 20, 50):
        step = factor * power
        if not step or not isfinite(step) or max(abs(low), abs(high)) / step > 2**50:
            break
        first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
        if 0 <= last - first < most:
            return [min(max(low, place * step), high) for place in range(first, last + 1)]
    return [low, high][: most if high > low else 1]


def log_ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Return at most ``most`` logarithms to base 10 of round values. ``low`` and ``high`` are logarithms, too."""
    first, last = ceil(low), floor(high)
    if last - first < 1:
        ends = (_power(low), _power(high))
        return [min(max(low, log10(value)), high) for value in ticks(*ends, most) if value > 0] or [low, high]
    stride = (last - first) // most + 1
    return [float(power) for power in range(first, last + 1, stride)]


def _power(exponent: float) -> float:
    return 10.0**exponent if exponent < float_info.max_10_exp else float_info.max


def tick_labels(values: Sequence[float], *, log: bool = False) -> list[str]:
    """Return the labels of ticks; on a logarithmic scale, ticks are logarithms."""
    if log:
        return [number(_power(value)) for value in values]
    step = values[1] - values[0] if len(values) > 1 else 0.0
    return [number(value, step if isfinite(step) else 0.0) for value in values]


def framed_ticks(
    canvas: Canvas, y: Sequence[tuple[float, str]], x: Sequence[tuple[float, str]], margin: int, corner: str = "└"
) -> Iterator[list[tuple[str, int]]]:
    """Yield the rows of a canvas with labels of ticks, as pieces (text, owner), in which the owner number selects the
    style. The labels have the owner -1.

    Args:
        y, x: Position and label of each tick.
        margin: Cells to the left of the canvas.
        corner: Text that ends where the axes meet.
    """
    labels = {canvas.dot_row(value) >> 2: label for value, label in reversed(y)}
    for row in range(canvas.height):
        text = labels.get(row)
        yield [(f"{text or '':>{margin - 1}}{'│' if text is None else '┤'}", -1), *canvas.runs(row)]
    axis = "─" * canvas.width
    free = 0  # first cell after the last label, where the next label may begin
    for value, label in x:
        at = max(0, min(canvas.dot_column(value) >> 1, canvas.width - len(label)))
        if at >= free:
            axis = f"{axis[:at]}{label}{axis[at + len(label) :]}"
            free = at + len(label) + 1
    yield [(f"{corner:>{margin}}{axis[: canvas.width]}", -1)]


LEAST_WIDTH, LEAST_HEIGHT = 30, 7  # minimum width and minimum height of a chart, in cells


def y_ticks(span: Span, height: int, *, log: bool) -> list[tuple[float, str]]:
    """Return position and label of the ticks of a y axis with the given number of rows."""
    most = 4 if height >= LEAST_HEIGHT else 3 if height > 3 else 2
    found = log_ticks(*span, most) if log else ticks(*span, most)
    return list(zip(found, tick_labels(found, log=log), strict=True))


def x_ticks(span: Span, width: int, axis: str, origin: float = 0.0) -> list[tuple[float, str]]:
    """Return position and label of the ticks of an x axis with the given number of columns.

    Args:
        axis: Name of the counter on the axis; "" for a time in seconds.
        origin: Time from which the labels count.
    """
    most = 4 if width >= 2 * LEAST_WIDTH // 3 else 3
    if axis:
        found = [at for at in ticks(*span, most) if at.is_integer()] or [*span]
        return list(zip(found, tick_labels(found), strict=True))
    unit = next((unit for unit in (3600.0, 60.0) if span[1] - span[0] > 2 * unit), 1.0)
    found = ticks((span[0] - origin) / unit, (span[1] - origin) / unit, most)
    return [(origin + unit * at, duration(unit * at)) for at in found]


def overlay(curves: Sequence[Points], styles: Sequence[str], width: int, height: int, axis: str = "") -> list[Content]:
    """Return a chart of several curves; empty without data or space. The scale is logarithmic if the values span
    decades.

    Args:
        styles: Style of each curve. A cell that several curves cross has the style of the last one.
        axis: Name of the counter on the x axis; "" for seconds.
    """
    is_log = spans_decades(curves)
    lines = list(map(log_scale, curves)) if is_log else curves
    spans = bounds(lines)
    if spans is None or height < 3 or width < LEAST_WIDTH:
        return []
    marks = y_ticks(spans[1], height - 1, log=is_log)
    margin = max(cell_len(label) for _, label in marks) + 1
    canvas = Canvas(width - margin - 1, height - 1, *spans)
    across = x_ticks(spans[0], canvas.width, axis)
    canvas.draw_grid([at for at, _ in across], [at for at, _ in marks], 1)
    for owner, line in enumerate(lines, 2):
        canvas.draw_line(line, owner)
    across[0] = across[0][0], f"{axis} {across[0][1]}".lstrip()
    by_owner = ("", "$border-blurred", *styles, "$muted")
    framing = framed_ticks(canvas, marks, across, margin, "log └" if is_log else "└")
    return [Content.assemble(*((text, by_owner[owner]) for text, owner in row)) for row in framing]


Line = Sequence[tuple[float, float]]
"""Points (Unix time, value), oldest first."""

# up to this number of ranks, a chart has one line per rank; more ranks are drawn as one band, because lines would
# overlap
RANKS_DRAWN = 8
BAND = -2  # hue number of the edges of a band
PLAIN = -1  # hue number of lines that do not belong to a rank, such as a median
AUTO_LOG = 100.0  # a scale is logarithmic by default if the maximum is more than this many times the minimum
# up to this number of ranks, the band over all ranks is computed from scratch, which takes a few milliseconds
RANKS_ANEW = 32
# A line counts as noisy if, on average, it rises or falls per column by more than this share of the chart's height.
NOISE = 0.125
LEAST_NOISY = 24  # minimum number of values of a line that can count as noisy
BIN_COLUMNS = 6  # columns per group of values: of a noisy line, the median of each group is drawn
SMOOTHING = 0.9  # weight, from 0 to 1, of the earlier values in the moving average


class Chart(NamedTuple):
    """Lines and values of one metric's chart.

    Attributes:
        behind: Background lines: the other ranks or their band, and the raw line behind a smoothed line.
        front: The main line.
        value: Value of the selected rank (or the median of all ranks) at the instant, or the newest value; None without
            values.
        low, high: Minimum and maximum over all ranks at the time of ``value``; None for a single rank.
        hues: Rank of each background line, or ``PLAIN``, or ``BAND`` for the lower and the upper edge of a band.
        is_log: Whether the lines are logarithms.
    """

    behind: Sequence[Line]
    front: Line
    value: float | None
    low: float | None = None
    high: float | None = None
    hues: Sequence[int] = ()
    is_log: bool = False

    @property
    def lines(self) -> list[Line]:
        """All lines of the chart, those in the background first."""
        return [*self.behind, self.front]


class StepAxis:
    """Step or epoch of a rank over time, which converts times to positions on the x axis.

    Args:
        trace: At least one step, all finite.
    """

    def __init__(self, trace: Trace) -> None:
        self._at, self._steps = trace

    @classmethod
    def of(cls, trace: Trace) -> StepAxis | None:
        """Return the axis of a counter; None if the counter has no two different finite values."""
        steps = trace.values
        return cls(trace) if len(steps) > 1 and all(map(isfinite, steps)) and min(steps) < max(steps) else None

    def position(self, at: float) -> float:
        """Return the step at a time, interpolated between logged steps."""
        place = bisect_right(self._at, at) - 1
        if place < 0 or place + 1 == len(self._at):
            return self._steps[max(0, place)]
        (begin, end), (low, high) = self._at[place : place + 2], self._steps[place : place + 2]
        return low + (high - low) * (at - begin) / (end - begin) if high > low and at < end else low

    def time(self, position: float) -> float:
        """Return the last time at which the step was at most ``position``."""
        steps = self._steps
        place = bisect_right(steps, position) - 1
        # a later step is smaller, because the run was restarted
        if place + 1 < len(steps) and any(step <= position for step in steps[place + 1 :]):
            place = max(place for place, step in enumerate(steps) if step <= position)
        return self._at[max(0, place)]

    def snap(self, position: float, origin: float) -> float:
        """Return the last logged step up to a position. If the position is to the right of ``origin``, but no logged
        step is between them, return the first logged step after ``origin``."""
        below = max((step for step in self._steps if step <= position), default=min(self._steps))
        if position > origin >= below:
            return min((step for step in self._steps if step > origin), default=below)
        return below

    def place(self, line: Line) -> Line:
        """Return a line with steps as x values. It is interrupted where the steps fall, because a run was restarted."""
        found: list[tuple[float, float]] = []
        last = -inf
        for at, value in line:
            if (here := self.position(at)) < last:
                found.append((here, nan))
            found.append((here, value))
            last = here
        return found


Key = TypeVar("Key")


def find_step_axes(
    names: Iterable[str], keys: Collection[Key], trace_of: Callable[[Key, str], Trace], *, needs_all: bool = False
) -> tuple[str, dict[Key, StepAxis]]:
    """Choose the counter for the x axis: the first counter of ``AXES`` whose values grow.

    Args:
        names: Names of metrics.
        keys: Owners of the lines, such as ranks.
        trace_of: Returns the values of an owner's metric.
        needs_all: Whether all owners must have the counter.

    Returns:
        The name of the counter, and its axes by owner; ("", {}) if there is no counter.
    """
    for name in sorted({name for name in names if name.lower() in AXES}, key=lambda name: AXES.index(name.lower())):
        found = {key: axis for key in keys if (axis := StepAxis.of(trace_of(key, name))) is not None}
        if found and (len(found) == len(keys) or not needs_all):
            return name, found
    return "", {}


def place_runs(runs: Mapping[str, tuple[MetricStore, float, Line]], *, by_time: bool) -> tuple[str, list[Line]]:
    """Place the lines of several runs on a common x axis: the step if all runs logged it, else seconds.

    Args:
        runs: By ID: metrics of the run, Unix time of its second 0, and points (Unix time, value) of its line.
        by_time: Whether to use seconds in any case.

    Returns:
        The name of the counter on the x axis ("" for seconds), and the lines.
    """
    names = [name for run, (metrics, *_) in runs.items() for name in metrics.names(run) if not by_time]
    axis, axes = find_step_axes(names, runs, lambda run, name: runs[run][0].first_trace(run, name), needs_all=True)
    if axis:
        return axis, [axes[run].place(line) for run, (*_, line) in runs.items()]
    return "", [[(at - start, value) for at, value in line] for _, start, line in runs.values()]


def make_chart(
    traces: Mapping[int, Trace],
    rank: int | None,
    *,
    columns: int,
    log: bool | None = False,
    smooth: bool = False,
    at: float | None = None,
    bands: IncrementalBand | None = None,
    axes: Mapping[int, StepAxis] | None = None,
) -> Chart:
    """Compute the chart of one metric from the values of all ranks.

    Args:
        traces: Values by rank.
        rank: The selected rank; None for the median of all.
        columns: Time intervals of a band over ranks, and maximum number of intervals of a line.
        log: Whether to draw logarithms to base 10; values that are not positive become gaps. None if the values decide.
        smooth: Whether to smooth the main line, with the raw line behind it.
        at: Instant (Unix time) of the values; None for the newest.
        bands: Band of the same metric from an earlier call, which is updated. This makes charts of many ranks fast.
        axes: X axis of each rank; empty for time. Ranks without an axis use the first axis.
    """
    columns = max(2, columns)
    common = next(iter(axes.values()), None) if axes else None

    def placed(line: Line, of: int) -> Line:
        axis = common if axes is None else axes.get(of, common)
        return line if axis is None else axis.place(line)

    own = None if rank is None else traces.get(rank)
    front: Line = readable_line(own, columns) if own is not None else []
    edges = [] if own is None or len(traces) > RANKS_DRAWN else noise_band(own, columns)
    main = PLAIN if rank is None else rank
    drawn = traces if len(traces) <= RANKS_DRAWN else {}
    others = [(each, readable_line(trace, columns)) for each, trace in drawn.items() if each != rank]
    if rank is None and len(traces) == 1:
        (main, front), others = others[0], []
    elif rank is None or len(traces) > RANKS_DRAWN:
        if bands is not None and len(traces) > RANKS_ANEW:
            span = bands.update(traces, columns)
        else:
            span = compute_band(list(traces.values()), columns)
        middle = list(zip(span.at, span.middle, strict=True))
        if len(traces) > RANKS_DRAWN:
            others = [(BAND, list(zip(span.at, edge, strict=True))) for edge in (span.low, span.high)]
        if rank is None:
            front = middle
        else:
            others.append((PLAIN, middle))
    others, front = [(hue, placed(line, hue)) for hue, line in others], placed(front, main)
    others += [(BAND, placed(edge, main)) for edge in edges]
    if smooth:
        others, front = [*others, (PLAIN, front)], smooth_line(front)
    behind = [line for _, line in others]
    if log is None:
        log = spans_decades([*behind, front])
    if log:
        behind, front = [log_scale(line) for line in behind], log_scale(front)
    return Chart(behind, front, *_values(traces, rank, at), [hue for hue, _ in others], log)


def spans_decades(lines: Sequence[Line]) -> bool:
    """Check whether the values of lines are easier to read on a logarithmic scale."""
    values = [value for line in lines for _, value in line if isfinite(value)]
    return bool(values) and min(values) > 0 and max(values) / AUTO_LOG > min(values)


def _values(
    traces: Mapping[int, Trace], rank: int | None, at: float | None
) -> tuple[float | None, float | None, float | None]:
    """Return the value of the selected rank (or the median of all), and the minimum and maximum over all ranks."""
    then = {each: value for each, trace in traces.items() if (value := value_at(trace, at)) is not None}
    finite = [value for value in then.values() if isfinite(value)]
    value = then.get(rank) if rank is not None else median(finite) if finite else next(iter(then.values()), None)
    return (value, min(finite), max(finite)) if len(traces) > 1 and finite else (value, None, None)


def trace_line(trace: Trace, columns: int = 0) -> Line:
    """Convert the values of a metric over time to a line of points.

    Args:
        columns: If there are more than twice as many values, return the minimum and the maximum of each of about
            ``columns`` groups of values; 0 for all values.
    """
    at, values = trace
    size = len(at) // columns if columns else 0
    if size < 2:
        return list(zip(at, values, strict=True))
    found: list[tuple[float, float]] = []
    for begin in range(0, len(at), size):
        group = values[begin : begin + size]
        total = sum(group)
        if total - total != 0:  # the sum is not finite, so a value of this group is not finite
            found += zip(at[begin : begin + size], group, strict=True)
        else:
            ends = (min(group), max(group)) if group[0] <= group[-1] else (max(group), min(group))
            found += [(at[begin], each) for each in ends]
    found.append((at[-1], values[-1]))
    return found


def readable_line(trace: Trace, columns: int) -> Line:
    """Return a trace as a line: all values, or medians of groups of values if the trace is noisy."""
    if not _is_noisy(trace, columns):
        return trace_line(trace, columns)
    return [(middle, median(group)) for middle, group in _bins(trace, columns)]


def noise_band(trace: Trace, columns: int) -> list[Line]:
    """Return the lower and the upper edge of a noisy trace; empty if the trace is smooth enough to draw each value."""
    if not _is_noisy(trace, columns):
        return []
    found = _bins(trace, columns)
    return [[(middle, edge(group)) for middle, group in found] for edge in (min, max)]


def _is_noisy(trace: Trace, columns: int) -> bool:
    """Check whether a line through all values would fill the chart, because values rise and fall in most columns."""
    values = trace.values
    if len(values) < LEAST_NOISY:
        return False
    sweeps = sum(map(abs, map(sub, values[1:], values)))
    return isfinite(sweeps) and sweeps > columns * NOISE * (max(values) - min(values)) > 0


def _bins(trace: Trace, columns: int) -> list[tuple[float, array[float]]]:
    """Return groups of successive values, each with the middle of its times. The first group has the first time of the
    trace, and the last group has the last time."""
    at, values = trace
    many = max(2, columns // BIN_COLUMNS)
    edges = [len(at) * place // many for place in range(many + 1)]
    groups = [(begin, end) for begin, end in pairwise(edges) if end > begin]
    middles = [at[0], *((at[begin] + at[end - 1]) / 2 for begin, end in groups[1:-1]), at[-1]]
    return [(middle, values[begin:end]) for middle, (begin, end) in zip(middles, groups, strict=True)]


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
    """Return the common span of the x axis of charts; None if nothing is drawn."""
    places = [place for chart in charts for line in chart.lines for place, _ in line]
    return (min(places), max(places)) if places else None


def column_time(column: int, columns: int, span: tuple[float, float]) -> float:
    """Return the x value (a time or a step) of a column of a chart."""
    first, last = span
    return first + (last - first) * min(max(0, column), columns - 1) / max(1, columns - 1)


def time_column(at: float, columns: int, span: tuple[float, float]) -> int:
    """Return the column of a time; a time outside the chart gets the first or last column."""
    first, last = span
    part = (at - first) / (last - first) if last > first else 1.0
    return round(min(max(0.0, part), 1.0) * max(0, columns - 1))


# maximum number of pixels of an image that is decoded; decoding blocks the app for about 10 ms
MAX_PIXELS = 640 * 480
START_OF_SCAN = b"\xff\xda"  # marker in a JPEG file, once unless the file is progressive
PICTURE_SIDE = 320  # pixels; maximum side of a picture that the terminal receives
KITTY_CHUNK = 4096  # maximum characters of an image in one escape sequence
# Character that Kitty replaces by a part of an image, and the characters that number its rows.
_PART = chr(0x10EEEE)
_CONTROL = [(ControlType.CURSOR_FORWARD, 0)]  # marks a segment as an escape sequence without width
_ROWS = "".join(map(chr, (0x305, 0x30D, 0x30E, 0x310, 0x312, 0x33D, 0x33E, 0x33F, *range(0x363, 0x370))))


def image_protocol(environ: Mapping[str, str]) -> str:
    """Return how the terminal shows images: "kitty", "sixel", or "blocks" for half blocks.

    The terminal is not asked, because its answer would mix with the user's keys.
    """
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if term in ("xterm-kitty", "xterm-ghostty"):
        return "kitty"
    has_sixel = term.startswith(("foot", "mlterm")) or (term[:5] == "xterm" and program in ("WezTerm", "iTerm.app"))
    return "sixel" if has_sixel and find_spec("textual_image") else "blocks"


def draw_image(
    data: bytes, width: int, height: int, protocol: str, number: int, send: Callable[[str], object]
) -> list[Strip]:
    """Return rows of cells that show an image of a rank, which may be invalid or malicious.

    Args:
        data: PNG or JPEG file.
        width, height: Available cells.
        protocol: Result of :func:`image_protocol`.
        number: Number of the image in the terminal, from 1 to 255. A new image replaces the image of the same number.
        send: Sends an escape sequence to the terminal.

    Raises:
        ImportError: If Pillow is not installed.
        Exception: If the file is invalid. Pillow raises exceptions of many types.
    """
    from PIL import Image  # imported late, because the package is optional

    with Image.open(BytesIO(data), formats=("PNG", "JPEG")) as file:
        # A short JPEG file can contain thousands of scans, and each one takes as long as an image.
        scans = data.count(START_OF_SCAN) if file.format == "JPEG" else 1
        if file.width * file.height * scans > MAX_PIXELS:
            raise ValueError("too many pixels")
        image = file.convert("RGB")
    scale = min(width / image.width, 2 * min(height, len(_ROWS)) / image.height)
    columns, rows = max(1, round(image.width * scale)), max(1, round(image.height * scale / 2))
    if protocol == "kitty":
        image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
        image.save(png := BytesIO(), "PNG")
        text = b2a_base64(png.getvalue(), newline=False).decode()
        keys = f"a=T,U=1,q=2,f=100,i={number},c={columns},r={rows},m=1"
        for at in range(0, len(text), KITTY_CHUNK):
            send(f"\x1b_G{'m=1' if at else keys};{text[at : at + KITTY_CHUNK]}\x1b\\")
        send("\x1b_Gm=0;\x1b\\")
        style = Style.from_color(Color.from_rgb(0, 0, number))
        return [Strip([Segment(_PART + mark + _ROWS[0] + _PART * (columns - 1), style)]) for mark in _ROWS[:rows]]
    if protocol == "sixel":
        from textual_image._posix import get_tiocgwinsz
        from textual_image._sixel import image_to_sixels

        lines, cells, across, down = get_tiocgwinsz()
        sixels = image_to_sixels(image.resize((columns * (across // cells or 8), rows * (down // lines or 16))))
        # Return to the first cell of the picture, draw it, and restore the position of the cursor.
        drawing = Segment(f"\x1b7\x1b[{columns}D\x1b[{rows}A\x1b[B{sixels}\x1b8", None, _CONTROL)
        return [*[Strip([])] * (rows - 1), Strip([Segment(" " * columns), drawing], columns)]
    pixels = image.resize((columns, 2 * rows)).tobytes()
    colors = [Color.from_rgb(*pixels[at : at + 3]) for at in range(0, len(pixels), 3)]
    halves = [colors[at : at + columns] for at in range(0, len(colors), columns)]
    return [
        Strip([Segment("▀", Style.from_color(*pair)) for pair in zip(upper, lower, strict=True)])
        for upper, lower in zip(halves[::2], halves[1::2], strict=True)
    ]
