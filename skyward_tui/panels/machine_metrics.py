"""Panel with the metrics of machines, as a grid and over time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from statistics import fmean
from time import monotonic
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.strip import Strip

from skyward_core.model.metric_definitions_series_and_export import Unit
from skyward_core.views.machine_metrics import MachineMetrics, MachineView, MetricHistory
from skyward_core.views.outliers_and_bands import Trace
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.problem_alerts_and_stragglers import Alert
from skyward_core.views.stack_groups_and_profiles import format_ranges
from skyward_tui.panels.panel import RunPanel, RunSelection
from skyward_tui.text.hardware_and_offer_cells import (
    GPU_METRICS,
    MetricScale,
    Place,
    available_metrics,
    outlier_metrics,
    problem_text,
    quantity,
    share,
)
from skyward_tui.text.number_time_and_run_state_format import duration
from skyward_tui.text.text_width_tables_and_ascii import clip
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.metric_charts import Canvas, Points
from skyward_tui.widgets.virtual_list import PaintedLines

_BARS = " ▁▂▃▄▅▆▇█"

Span = tuple[float, float]


def gpu_rows(machine: MachineView, name: str, whole: str | float, width: int, x: Span) -> list[str]:
    """Return a row of bars for each GPU of a machine.

    Args:
        name: Metric to show.
        whole: 100 % value of the metric: a number, or the name of another metric.
        x: (first, last) Unix time of the row.
    """
    rows = []
    for track in machine.gpus:
        full = track.latest.get(whole) if isinstance(whole, str) else whole
        rows.append(_bars(track.trace(name), full, width, x) if full else "")
    return rows


def _bars(trace: Trace, full: float, width: int, x: Span) -> str:
    """Return a bar for each time step: the mean as a share of ``full``. A step without data repeats the previous
    bar."""
    at, values = trace
    if not len(at) or width < 1:
        return ""
    step = (x[1] - x[0]) / width or 1.0
    shown: list[str] = []
    first = bisect_left(at, x[0])
    for column in range(width):
        end = bisect_right(at, x[0] + step * (column + 1)) if column < width - 1 else len(at)
        if end > first:
            part = fmean(values[first:end]) / full
            bar = _BARS[1 + min(7, max(0, int(part * 8)))]
        else:
            bar = shown[-1] if shown else " "
        shown.append(bar)
        first = end
    return "".join(shown)


def _mean_utilization(machine: MachineView) -> list[tuple[float, float]]:
    traces = [track.trace("util") for track in machine.gpus]
    traces = [trace for trace in traces if len(trace.at)]
    if not traces:
        return []
    # All GPUs are sampled at the same times, so their series end at the same time and can be aligned at their ends.
    shortest = min(len(trace.at) for trace in traces)
    columns = zip(*(trace.values[-shortest:] for trace in traces), strict=True)
    return list(zip(traces[0].at[-shortest:], map(fmean, columns), strict=True))


GIB = 2**30  # bytes per GiB
CELL = 5  # width in cells of the bar of one GPU
FRESH_SECONDS = 10.0  # seconds; if the newest sample of a node is older, its agent's sampler is not working
# seconds; minimum interval between updates of the panel, because each node sends its samples at a different time
REPAINT_SECONDS = 0.9
# Metrics of nodes without GPUs: label, metric, unit, and 100 % value. The 100 % value is a number or the name of a
# metric; None stands for the greatest value of any node.
HOST_METRICS: tuple[tuple[str, str, Unit, str | float | None], ...] = (
    ("CPU", "cpu", "%", 100.0),
    ("memory", "memory_used", "B", "memory_total"),
    ("net in", "net_in", "B/s", None),
    ("net out", "net_out", "B/s", None),
    ("disk read", "disk_read", "B/s", None),
    ("disk write", "disk_write", "B/s", None),
    ("CPU pressure", "cpu_pressure", "%", 100.0),
    ("memory pressure", "memory_pressure", "%", 100.0),
    ("I/O pressure", "io_pressure", "%", 100.0),
)
HEAT_STEPS = (0.25, 0.5, 0.8)  # lower bounds of the shades mild, warm and hot, as shares of the 100 % value
HEAT_NAMES = ("cold", "mild", "warm", "hot")
RAMP_NAMES = ("low", "low", "high", "full")  # names of a gauge's colours, one for each shade in HEAT_NAMES
# Columns of node metrics, to the left of the GPUs: title, metrics whose sum is shown, and width in cells.
NODE_COLUMNS = (
    ("cpu", ("cpu",), 6), ("memory", ("memory_used",), 7), ("net in", ("net_in",), 12), ("net out", ("net_out",), 12),
    ("disk I/O", ("disk_read", "disk_write"), 12), ("disk free", ("spool_free",), 11),
)  # fmt: skip
FEW_COLUMNS = 2  # number of columns of node metrics in a narrow panel with GPUs
_UNITS = {"cpu": "%", "net_in": "B/s", "net_out": "B/s", "disk_read": "B/s", "spool_free": "B"}
_NODE = 6
# Columns in the row of a GPU: metric, unit, and text before the value.
GPU_ROW_METRICS: tuple[tuple[str, Unit, str], ...] = (
    ("util", "%", ""), ("mem_used", "B", ""), ("mem_total", "B", "of "), ("power", "W", ""), ("temp", "°C", ""),
)  # fmt: skip
GPU_WIDTHS = (6, 10, 12, 8, 7)
LEAST_CURVE = 24  # minimum width in cells of a curve
_LEAST_ROWS = 4  # minimum rows of the panel, so that there is space for curves if the pool has few nodes
MOST_ROWS = 9  # maximum rows of one node
# rows of the curve of a rate that was never above IDLE_RATE bytes/s, with its title, so that the others are taller
IDLE_ROWS, IDLE_RATE = 2, 10_000.0
MOST_BELOW = 4  # maximum rows of a curve that is drawn below a node's metrics
DRAWN_EVERY = 5  # number of new samples between two drawings of a curve


class _NodeRow(NamedTuple):
    """Data for the row of one node in the grid.

    Attributes:
        remark: Problems of the node.
        odd: By GPU: names of its outlier metrics. The key None stands for the node itself.
    """

    machine: MachineView
    cells: list[Segment]
    remark: str
    odd: dict[int | None, list[str]]


class MachineGrid(PaintedLines):
    """Grid of machine metrics with one row per node."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"grid--{heat}" for heat in (*HEAT_NAMES, *RAMP_NAMES)), "grid--muted", "grid--amiss", "grid--curve"
    }  # fmt: skip
    DEFAULT_CSS = read_style_sheet(__file__, "machine_grid")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._metrics: MachineMetrics | None = None
        self._now = 0.0
        self._updated_at = -FRESH_SECONDS
        self._seen: object = None
        self._plain = Style()
        self._top = 0
        self._metric_index = 0  # index of the selected metric in GPU_METRICS; in HOST_METRICS if no node has GPUs
        self._scale: MetricScale | None = None  # scale of the selected GPU metric
        self._outliers: dict[Place, list[str]] = {}  # by GPU or node: names of its outlier metrics at the last update
        # by index of a machine's first node: the machine, which several nodes may share
        self._machines: dict[int, MachineView] = {}
        self._labels: dict[int, str] = {}  # by index of a machine's first node: label with all nodes of the machine
        self._remarks = 0  # number of nodes with problems at the last update
        # by metric or id of a machine: the drawn curve, and the facts from which it was drawn
        self._curves: dict[str | int, tuple[object, list[list[Segment]]]] = {}

    def update(self, metrics: MachineMetrics, now: float) -> bool:
        """Show the machines of a pool; return whether anything changed."""
        stale = tuple(node for node, machine in metrics.nodes.items() if not machine.is_fresh(now))
        seen = (id(metrics), metrics.version, stale)
        # Measure the interval with the monotonic clock, because the clock of a replay may be paused.
        too_soon = (
            self._seen is not None and self._metrics is metrics and monotonic() - self._updated_at < REPAINT_SECONDS
        )
        if seen == self._seen or too_soon:
            return False
        if metrics is not self._metrics:
            self._curves.clear()
            self._scale = None
        self._metrics, self._now, self._seen, self._updated_at = metrics, now, seen, monotonic()
        if self._has_gpus:
            self._scale_of(metrics).update(metrics)
        self._outliers = outlier_metrics(metrics)
        machines = metrics.nodes_by_machine(now)
        self._machines = {nodes[0]: metrics.nodes[nodes[0]] for nodes in machines}
        self._labels = {nodes[0]: f"n{format_ranges(nodes)}" for nodes in machines}
        self._remarks = sum(self._has_problem(*each) for each in self._machines.items())
        self.refresh_if_changed()
        return True

    @property
    def total_rows(self) -> int:
        """Rows of the grid including the head. The number has a minimum, so that there is space for curves."""
        return 1 if self._metrics is None else 1 + max(_LEAST_ROWS, len(self._machines) + self._remarks)

    @property
    def has_fresh_data(self) -> bool:
        """Whether the grid was updated within the last ``FRESH_SECONDS``."""
        return monotonic() - self._updated_at < FRESH_SECONDS

    @property
    def subject(self) -> str:
        """Label of the selected GPU metric; "" without GPUs."""
        return self._scale_of(self._metrics).label if self._metrics and self._has_gpus else ""

    def _scale_of(self, metrics: MachineMetrics) -> MetricScale:
        shown = GPU_METRICS[self._metric_index % len(GPU_METRICS)]
        if self._scale is None or self._scale.metric is not shown:
            self._scale = MetricScale(metrics, shown)
        return self._scale

    @property
    def _host_figure(self) -> tuple[str, str, Unit, str | float | None]:
        """Metric shown for nodes: the selected metric. If any node has GPUs, CPU utilization, because the user then
        selects a GPU metric.
        """
        return HOST_METRICS[0 if self._has_gpus else self._metric_index % len(HOST_METRICS)]

    @property
    def _most(self) -> float:
        """Maximum of the shown node metric over all nodes, which gives all curves the same scale."""
        _, name, _, whole = self._host_figure
        if isinstance(whole, float) or self._metrics is None:
            return whole if isinstance(whole, float) else 0.0
        return max((machine.host.maximum(name) for machine in self._metrics.nodes.values()), default=0.0)

    @property
    def _host_metric_text(self) -> str:
        name, _, unit, whole = self._host_figure
        share_of = " %" if isinstance(whole, str) or unit == "%" else f", 0 to {quantity(self._most, unit)}"
        return f"{name}{share_of} (←→ metric)"

    @property
    def _has_gpus(self) -> bool:
        return self._metrics is not None and any(machine.gpus for machine in self._metrics.nodes.values())

    def _has_problem(self, node: int, machine: MachineView) -> bool:
        """Check whether a node has problems, because the text about them may need a row of its own."""
        if not machine.is_fresh(self._now):
            return False
        odd = any(of == node for of, _ in self._outliers)
        return bool(machine.why) or odd or any(problem_text(track.latest) for track in machine.gpus)

    # Selection of a metric, and scrolling

    def action_step(self, step: int) -> None:
        most = max(0, len(self._machines) - self._room)
        self._top = min(max(0, self._top + step), most)
        self.refresh_if_changed()

    def action_page(self, pages: int) -> None:
        self.action_step(pages * self._room)

    def action_edge(self, end: int) -> None:
        self.action_step(10**9 if end else -(10**9))

    def action_sideways(self, steps: int) -> None:
        """Show another metric."""
        if self._metrics is None:
            return
        places = available_metrics(self._metrics) if self._has_gpus else list(range(len(HOST_METRICS)))
        here = places.index(self._metric_index) if self._metric_index in places else 0
        self._metric_index = places[(here + steps) % len(places)]
        if self._has_gpus:
            self._scale_of(self._metrics)
        self._seen = None  # makes the next update refresh the title, too
        self.refresh_if_changed()

    # Painting of the grid

    @property
    def _room(self) -> int:
        return max(1, self.size.height - 1)

    def paint(self, width: int, height: int) -> list[Strip]:
        metrics = self._metrics
        if metrics is None or not width or not height:
            return []
        self._plain = self.rich_style  # stored, because Textual computes ``rich_style`` at each access
        nodes = list(self._machines.items())[self._top : self._top + self._room]
        drawn = []
        spans = [machine.host.span for _, machine in nodes if machine.host.seen]
        if spans and len(nodes) == len(self._machines):
            span = min(first for first, _ in spans), max(last for _, last in spans)
            rows = [self._row(node, machine) for node, machine in nodes]
            drawn = (
                self._rows_by_metric(rows, span, width, height)
                or self._rows_with_side_curves(rows, span, width, height)
                or self._rows_with_curves_below(rows, span, width, height)
            )
        drawn = drawn or self._rows_without_curves(nodes, width)[:height]
        return [strip.extend_cell_length(width, self._plain).crop(0, width) for strip in drawn]

    def _rows_without_curves(self, nodes: list[tuple[int, MachineView]], width: int) -> list[Strip]:
        head = self._head()
        if hidden := len(self._machines) - len(nodes):
            head.append(Segment(f"  +{hidden} more nodes", self._style("muted")))
        lines = [head]
        for node, machine in nodes:
            row = self._row(node, machine)
            remark = Segment(f"  {row.remark}", self._plain + self._style("amiss"))
            if not row.remark or Segment.get_line_length([*row.cells, remark]) <= width:
                lines.append([*row.cells, remark])
            else:
                lines += [row.cells, self._remark_row(row.remark)]
        return [*map(Strip, lines)]

    def _rows_by_metric(self, rows: list[_NodeRow], span: tuple[float, float], width: int, height: int) -> list[Strip]:
        """Return one curve per metric, for a pool whose only machine has no GPUs; empty if the curves do not fit."""
        machine, host = rows[0].machine, rows[0].machine.host
        highest = {each[1]: host.maximum(each[1]) for each in HOST_METRICS}
        shown = [each for each in HOST_METRICS if highest[each[1]] >= 1]
        busy = [each for each in shown if each[2] != "B/s" or highest[each[1]] >= IDLE_RATE]
        idle_rows = IDLE_ROWS * (len(shown) - len(busy))
        tall, spare = divmod(height - 1 - bool(rows[0].remark) - idle_rows, max(1, len(busy)))
        if len(rows) > 1 or machine.gpus or not shown or width < LEAST_CURVE or tall < 2:
            return []
        title = f" {self._labels[next(iter(self._machines))]}  last {duration(span[1] - span[0])}"
        strips = [Strip([Segment(title, self._plain + self._style("muted")), *self._legend()])]
        if rows[0].remark:
            strips.append(Strip(self._remark_row(rows[0].remark)))
        for each in shown:
            label, metric, unit, whole = each
            room = IDLE_ROWS if each not in busy else tall + (busy.index(each) < spare)
            full = host.latest.get(whole, 0.0) if isinstance(whole, str) else whole or highest[metric]
            value = host.latest.get(metric, 0.0)
            text = quantity(value, unit) + ("" if whole else f", most {quantity(full, unit)}")
            if isinstance(whole, str):
                text = f"{value / GIB:.1f} of {full / GIB:.1f} GiB"
            strips.append(Strip([Segment(f" {label}  {text}", self._plain)]))
            key = (id(host), host.seen // DRAWN_EVERY, width, room, self._plain, full)
            if self._curves.get(metric, (None,))[0] != key:
                lines = self._drawn(list(zip(*host.trace(metric), strict=True)), full or 1.0, width - 1, room - 1, span)
                self._curves[metric] = key, self._coloured([f" {line}" for line in lines], has_ramp=bool(whole))
            strips += map(Strip, self._curves[metric][1])
        return strips[:height]

    def _drawn(self, points: Points, full: float, width: int, height: int, x: Span) -> list[str]:
        """Draw a curve, and return its rows. If the curve has several rows, fill the area below it."""
        canvas = Canvas(width, height, x, (0.0, full))
        canvas.draw_line(points, 1)
        if height > 1:
            canvas.fill(1)
        return ["".join(text for text, _ in canvas.runs(row)) for row in range(height)]

    def _coloured(self, rows: list[str], *, has_ramp: bool) -> list[list[Segment]]:
        style = self._plain + self._style("curve")
        return [[Segment(text, self._ramp(1 - at / len(rows)) if has_ramp else style)] for at, text in enumerate(rows)]

    def _ramp(self, part: float) -> Style:
        """Return the colour of a gauge at a share of the 100 % value."""
        return self._plain + self._style(RAMP_NAMES[sum(part > step for step in HEAT_STEPS)])

    def _legend(self) -> list[Segment]:
        middle, top = (f"{100 * step:.0f}" for step in HEAT_STEPS[1:])
        texts = zip((f"to {middle}", f"to {top}", f"> {top} %"), RAMP_NAMES[1:], strict=True)
        return [Segment(f"  ▇ {text}", self._plain + self._style(name)) for text, name in texts]

    def _rows_with_side_curves(
        self, rows: list[_NodeRow], span: tuple[float, float], width: int, height: int
    ) -> list[Strip]:
        """Return the rows with a curve to the right of each node; empty if the curves do not fit."""
        before = max(Segment.get_line_length(row.cells) for row in rows)
        tall, room = min(MOST_ROWS, (height - 1) // len(rows)), width - before - 2
        # With one row per node, there is no space for the text of a node's problems, which needs a second row.
        if room < LEAST_CURVE or tall < 1 or (tall == 1 and any(row.remark for row in rows)):
            return []
        by_gpu = any(_shows_gpus(row.machine, tall) for row in rows)
        metric = self.subject if by_gpu else "GPU utilization %" if self._has_gpus else self._host_metric_text
        head = [*self._head(), Segment(" " * (before - Segment.get_line_length(self._head())), self._plain)]
        title = Segment(f"  {metric}, last {duration(span[1] - span[0])}", self._plain + self._style("muted"))
        strips = [Strip([*head, title])]
        for row in rows:
            curve = self._curve(row.machine, room, tall, span)
            lines = [row.cells]
            if _shows_gpus(row.machine, tall):
                lines += [self._gpu_row(row.machine, gpu, row.odd) for gpu in range(tall - 1)]
            elif row.remark:
                lines.append(self._remark_row(row.remark))
            for at in range(tall):
                cells = _clipped(lines[at], before) if at < len(lines) else []
                gap = Segment(" " * (before + 2 - Segment.get_line_length(cells)), self._plain)
                strips.append(Strip([*cells, gap, *curve[at]] if at < len(curve) else cells))
        return strips

    def _rows_with_curves_below(
        self, rows: list[_NodeRow], span: tuple[float, float], width: int, height: int
    ) -> list[Strip]:
        """Return the rows with a curve below each node, for narrow panels; empty if the curves do not fit."""
        rows_each = (height - 1) // len(rows) - 1 - any(row.remark for row in rows)
        tall, room = min(MOST_BELOW if len(rows) > 1 else MOST_ROWS, rows_each), width - _NODE - 1
        if tall < 2 or room < LEAST_CURVE:
            return []
        strips = [Strip(self._head())]
        for row in rows:
            strips.append(Strip(row.cells))
            if row.remark:
                strips.append(Strip(self._remark_row(row.remark)))
            by_gpu = _shows_gpus(row.machine, tall + 1)
            for at, curve in enumerate(self._curve(row.machine, room, tall + 1, span)[1 if by_gpu else 0 :]):
                label = Segment(f"{at if by_gpu else '':>{_NODE}} ", self._plain + self._style("muted"))
                strips.append(Strip([label, *curve]))
        return strips[:height]

    def _remark_row(self, remark: str) -> list[Segment]:
        return [Segment(f"{'':{_NODE}}  {remark}", self._plain + self._style("amiss"))]

    def _curve(self, machine: MachineView, width: int, height: int, x: tuple[float, float]) -> list[list[Segment]]:
        """Return the curve of a machine. It is cached until new samples may change a column."""
        whole = self._scale.whole if self._scale else 0.0
        key = (machine.host.seen // DRAWN_EVERY, width, height, self._plain, self._metric_index, whole)
        if self._curves.get(id(machine), (None,))[0] == key:
            return self._curves[id(machine)][1]
        if self._scale and _shows_gpus(machine, height):
            lines = ["", *gpu_rows(machine, self._scale.metric.metric, whole, width, x)]
        else:
            canvas_height = height if height < 3 else height - 1
            points, full = _mean_utilization(machine), 100.0
            if not machine.gpus:
                points = list(zip(*machine.host.trace(self._host_figure[1]), strict=True))
                maximum = self._host_figure[-1]
                full = (machine.host.latest.get(maximum, 0.0) if isinstance(maximum, str) else self._most) or 1.0
            lines = self._drawn(points, full, width, canvas_height, x)
        has_ramp = len(lines) > 1 and not machine.gpus and self._host_figure[-1] is not None
        self._curves[id(machine)] = key, self._coloured(lines, has_ramp=has_ramp)
        return self._curves[id(machine)][1]

    def _gpu_row(self, machine: MachineView, gpu: int, odd: dict[int | None, list[str]]) -> list[Segment]:
        """Return a row with the metrics and problems of one GPU."""
        if gpu >= len(machine.gpus):
            return []
        figures = machine.gpus[gpu].latest
        bad, muted = self._plain + self._style("amiss"), self._plain + self._style("muted")
        remark = problem_text(figures, odd.get(gpu, ()))
        cells = [Segment(f"{'':{_NODE}}  GPU {gpu:<3}", bad if remark else muted)]
        for (name, unit, before), width in zip(GPU_ROW_METRICS, GPU_WIDTHS, strict=True):
            text = before + quantity(figures[name], unit) if name in figures else "–"
            cells.append(Segment(f"{text:>{width}}", self._plain))
        return [*cells, Segment(f"  {remark}", bad)] if remark else cells

    def _head(self) -> list[Segment]:
        names = "".join(f"{head:>{width}}" for head, _, width in self._columns)
        gpus = f"  GPUs: {self.subject} (←→ metric)" if self._has_gpus else ""
        return [Segment(f" {'node':<{_NODE - 1}}{names}{gpus}", self._style("muted"))]

    @property
    def _columns(self) -> tuple[tuple[str, tuple[str, ...], int], ...]:
        if self._has_gpus and self.size.width < 120:
            return NODE_COLUMNS[:FEW_COLUMNS]
        ends = accumulate((width for _, _, width in NODE_COLUMNS), initial=_NODE)
        return NODE_COLUMNS[: sum(end <= self.size.width for end in ends) - 1]

    def _row(self, node: int, machine: MachineView) -> _NodeRow:
        odd = {gpu: names for (n, gpu), names in self._outliers.items() if n == node}
        cells = [Segment(f" {clip(self._labels[node], _NODE - 1):<{_NODE - 1}}", self._plain)]
        if not machine.is_fresh(self._now):
            cells.append(Segment(f" {machine.why or 'no data'}", self._style("muted")))
            return _NodeRow(machine, cells, "", odd)
        cells += [self._figure(machine.host, *column[1:]) for column in self._columns]
        remarks = [machine.why, problem_text({}, odd.get(None, ()))]
        if machine.gpus:
            cells.append(Segment("  ", self._plain))
        room = (self.size.width - Segment.get_line_length(cells)) // CELL
        shown = len(machine.gpus) if len(machine.gpus) <= room else max(0, room - 1)
        for gpu, track in enumerate(machine.gpus):
            problem = problem_text(track.latest, odd.get(gpu, ()))
            if gpu < shown:
                cells.append(self._cell(track, bad=bool(problem)))
            remarks.append(f"GPU {gpu}: {problem}" if problem else "")
        if hidden := len(machine.gpus) - shown:
            cells.append(Segment(f"{f'+{hidden}':>{CELL - 1}}", self._style("muted")))
        return _NodeRow(machine, cells, "; ".join(filter(None, remarks)), odd)

    def _figure(self, host: MetricHistory, names: tuple[str, ...], width: int) -> Segment:
        figures = host.latest
        if names[0] == "memory_used":
            text = share(figures.get("memory_used"), figures.get("memory_total"))
        elif names[0] in figures:
            total = sum(figures.get(name, 0.0) for name in names)
            text = quantity(total, _UNITS[names[0]])  # type: ignore[arg-type]
        else:
            text = "–"
        return Segment(f"{text:>{width}}", self._plain)

    def _cell(self, track: MetricHistory, *, bad: bool) -> Segment:
        part = self._scale.part(track.latest) if self._scale else None
        mark = "!" if bad else " "
        if part is None:
            style = self._plain + self._style("amiss") if bad else self._style("muted")
            return Segment(f"{'–':>{CELL - 1}}{mark}", style)
        heat = HEAT_NAMES[sum(part >= step for step in HEAT_STEPS)]
        style = self._style(heat) + (self._style("amiss") if bad else Style())
        return Segment(f"{100 * part:>{CELL - 1}.0f}{mark}", style)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"grid--{name}", partial=name == "amiss")


def _shows_gpus(machine: MachineView, height: int) -> bool:
    """Check whether each GPU gets a separate row below its node's row."""
    return 0 < len(machine.gpus) < height


def _clipped(row: list[Segment], width: int) -> list[Segment]:
    clipped = list(Segment.adjust_line_length(row, width, pad=False))
    if Segment.get_line_length(row) > width and clipped:
        clipped[-1] = Segment(clipped[-1].text[:-1] + "…", clipped[-1].style)
    return clipped


class MachinesPanel(RunPanel[MachineGrid]):
    """Machines of the pool. Sampling starts when a run is selected, so that it does not slow down the pool's start."""

    CALM = True
    FITS_ROWS = True
    MAIN = MachineGrid
    _measured_pool = ""

    @property
    def needs_polling(self) -> bool:
        return self.main.has_fresh_data

    def alert_rank(self, alert: Alert, pool: PoolView) -> int | None:
        return None if alert.node is None else alert.node * pool.ranks_per_node

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        metrics, session = pool.machines, self.app.session
        if metrics is None and run is not None and pool.state == "up" and session and self._measured_pool != pool.key:
            self._measured_pool = pool.key
            # the future is ignored, because samples and errors arrive through the pool's view
            session.start_sampling(pool.key)
        has_nodes = metrics is not None and bool(metrics.nodes)
        changed = has_nodes != self.has_content
        self.has_content = has_nodes
        if metrics is not None and has_nodes:
            changed |= self.main.update(metrics, now)
            if changed:
                self.set_titles(Content(f"{self.heading}  {self.main.subject or 'CPU, memory, network, disk'}"))
        return changed
