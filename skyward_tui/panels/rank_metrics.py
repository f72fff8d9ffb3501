"""Panel with charts of the metrics that ranks log."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import isfinite, log
from operator import is_
from time import monotonic
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip

from skyward_core.util.number_size_and_time_format import NUMBER_WIDTH
from skyward_core.views.metric_kinds_and_order import classify_metric
from skyward_core.views.outliers_and_bands import IncrementalBand, Trace, median
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.rank_metrics_and_progress import LoggedImage, MetricStore
from skyward_tui.panels.panel import InstantChosen, RunPanel, RunSelection
from skyward_tui.text.number_time_and_run_state_format import duration, number
from skyward_tui.text.text_width_tables_and_ascii import clip, fit_width
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import RANK_HUES, PlainAscii, read_style_sheet
from skyward_tui.widgets.metric_charts import (
    BAND,
    LEAST_HEIGHT,
    LEAST_WIDTH,
    PLAIN,
    RANKS_DRAWN,
    Canvas,
    Chart,
    StepAxis,
    bounds,
    column_time,
    draw_image,
    find_step_axes,
    framed_ticks,
    image_protocol,
    make_chart,
    spark,
    time_column,
    time_span,
    value_at,
    x_ticks,
    y_ticks,
)
from skyward_tui.widgets.virtual_list import PaintedLines

REPAINT_SECONDS = 0.5  # seconds; minimum interval between two updates of the charts while metrics arrive
# The minimum interval between updates grows by REPAINT_SECONDS for each such number of ranks, to limit the load.
MANY_RANKS = 128
MAX_NAMED_OUTLIERS = 4  # maximum number of outlier ranks that the panel's title names
NAMES_SHOWN = 64
LAST_VALUES = 60  # number of last values before a failure that a chart shows, unless the panel is zoomed
MAX_CHARTS = 6
_NAME, _VALUE = 12, 9  # widths in cells of the name and the value of a metric that has no chart
_ASPECT = 3.5  # preferred width of a chart in cells, divided by its height
SCALES = ("", "log", "linear")  # names of the scales of the y axis; "" selects a scale by the values
# Numbers of the parts of a chart ("owners"), which select the style of a cell. If several parts meet in a cell, the
# part with the greatest number is shown. The numbers between _OTHERS and _CHOSEN are the hues of ranks.
_GRID, _BAND, _OTHERS = 1, 2, 3
_CHOSEN = _OTHERS + RANK_HUES + 1
_HAIR = _CHOSEN + 1


class _Scaled(NamedTuple):
    """Chart with its y axis: (minimum, maximum), and position and label of each tick."""

    chart: Chart
    span: tuple[float, float]
    ticks: Sequence[tuple[float, str]]


class MetricsPane(PaintedLines):
    """Charts of a run's metrics with a common x axis, updated at most twice a second."""

    BINDINGS = [*bindings("panel"), *bindings("metrics")]  # noqa: RUF012
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "metrics--chosen", "metrics--others", "metrics--muted", "metrics--faint", "metrics--cursor", "metrics--hair",
        *(f"metrics--rank-{hue}" for hue in range(RANK_HUES)),
    }  # fmt: skip
    DEFAULT_CSS = read_style_sheet(__file__, "metrics_pane")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.names: list[str] = []
        self.counters: list[str] = []  # names of counters, such as "step"; counters have no chart
        self.name_shown = ""
        self.ranks: list[int] = []
        self._chosen_name = False
        self._metrics: MetricStore | None = None
        self._bands: dict[str, IncrementalBand] = {}  # by metric name: the band over all ranks
        self._run = ""
        self._rank: int | None = 0
        self._seen: object = None
        self._updated_at = 0.0
        self.scale = ""  # selected scale of the y axis: an element of SCALES
        self.smooth = self.single = self.by_time = False
        self.only_last = False  # whether the charts show only the last values before a failure
        self.axis = ""  # name of the counter on the x axis; "" for time
        self._axes: dict[int, StepAxis] = {}
        # position of the hairline on the x axis; None if the user has not placed a hairline
        self.hairline: float | None = None
        self._span: tuple[float, float] | None = None  # first and last value of the x axis
        self._restarts: tuple[float, ...] = ()  # Unix times at which attempts of the run ended
        self._charts: dict[str, Chart] = {}
        # by metric: cache key and painted rows of the metric's chart
        self._cells: dict[str, tuple[object, list[Strip]]] = {}
        # by row of the grid: the painted charts, and the rows of cells that result from joining the charts side by side
        self._joined: dict[int, tuple[list[list[Strip]], list[Strip]]] = {}
        # by metric: chart, rows of the chart, and the chart with its y axis
        self._scaled: dict[str, tuple[Chart, int, _Scaled | None]] = {}
        self._turn = 0  # number of the chart that was last searched for outlier ranks; the charts take turns
        self._outliers: dict[str, list[int]] = {}  # by metric: ranks whose latest values are outliers
        # cache key and painted rows of the metrics without a chart
        self._listed: tuple[object, list[Strip]] = (None, [])
        self._stale: set[str] = set()  # names of the metrics whose charts do not show the newest values yet
        self._budget = 0  # number of outdated charts that the next paint may compute, so that a paint stays short
        # by place: cache key and painted rows of an image
        self._pictures: dict[int, tuple[object, list[Strip]]] = {}
        self._areas: list[tuple[Region, str]] = []  # area on the screen, and metric, of each chart
        # styles of the parts of a chart; the numbers of parts, such as _GRID, are the indices
        self._styles: list[Style] = []
        # (base style, hue, whether there are many ranks) from which ``_styles`` was computed; None after a change of
        # the theme
        self._styled_for: object = None
        self._plain = Style()

    def update(self, metrics: MetricStore, run: str, rank: int | None, restarts: Sequence[float] = ()) -> bool:
        """Show the metrics of a run, and highlight one rank; if ``rank`` is None, highlight the median of all ranks.

        Args:
            metrics: Metrics of the pool.
            run: ID of the run.
            rank: Rank to highlight.
            restarts: Unix times at which attempts of the run ended, each marked by a vertical line.

        Returns:
            Whether the pane was updated, which happens at limited intervals. For many ranks, one chart at a time is
            updated.
        """
        if run != self._run:
            self._run, self._chosen_name, self.name_shown, self.names = run, False, "", []
            self._bands, self._outliers = {}, {}
            self.hairline = self._seen = None
        seen, self._restarts = (run, rank, metrics.version, restarts), tuple(restarts)
        now, many = monotonic(), len(self.ranks) > RANKS_DRAWN
        is_forced = rank != self._rank or self._seen is None
        is_new = seen != self._seen
        interval = REPAINT_SECONDS * (1 + len(self.ranks) // MANY_RANKS) / (len(self._areas) or 1 if many else 1)
        if not (is_new or self._stale) or (not is_forced and now - self._updated_at < interval):
            return False
        self._metrics, self._rank, self._updated_at = metrics, rank, now
        if is_forced:
            self._charts.clear()
            self._outliers.clear()
        if is_forced or not self._stale:
            self._seen = seen
            self.ranks = metrics.ranks(run)
            charted, self.counters = metrics.sorted_names(run)
            self.names = charted[:NAMES_SHOWN]
            if self.name_shown not in self.names or not self._chosen_name:
                self.name_shown = self.names[0] if self.names else ""
            self._find_axis(metrics)
            self._stale = set(self.names)
            # If the run has many ranks, this call only searches one chart for outlier ranks. The next calls update the
            # charts one by one.
            if many and not is_forced and self._areas:
                self._turn, self._budget = self._turn + 1, 0
                self._outliers.pop(self._areas[self._turn % len(self._areas)][1], None)
                self.refresh_if_changed()
                return True
        self._budget = 1 if many and not is_forced else len(self.names)
        self.refresh_if_changed()
        return True

    def _find_axis(self, metrics: MetricStore) -> None:
        """Choose the counter for the x axis."""
        lead = self._rank if self._rank is not None and self._rank in self.ranks else next(iter(self.ranks), 0)
        ranks = list(dict.fromkeys([lead, *self.ranks])) if len(self.ranks) <= RANKS_DRAWN else [lead]
        counters = () if self.by_time or not self.ranks else self.counters
        self.axis, self._axes = find_step_axes(counters, ranks, partial(metrics.trace, self._run))

    @property
    def _lead(self) -> StepAxis | None:
        """Step axis that converts between times and positions on the x axis; None if the x axis is the time."""
        return next(iter(self._axes.values()), None)

    @property
    def instant(self) -> float | None:
        """Unix time of the hairline; None without a hairline."""
        lead = self._lead
        return self.hairline if lead is None or self.hairline is None else lead.time(self.hairline)

    @property
    def subject(self) -> str:
        """Shown ranks, display options and outliers, for the title."""
        if not self.ranks:
            return "images"
        subject = f"rank {self._rank}"
        if self._rank is None:
            many = len(self.ranks)
            subject = f"median of {many} ranks" if many > 1 else f"only rank {self.ranks[0]}"
        if self.hairline is not None and self._span is not None:
            here = f"{self.hairline:,.6g}" if self.axis else duration(self.hairline - self._span[0])
            subject += f"  at {f'{self.axis} ' if self.axis else ''}{here}"
        else:
            subject += f"  x: {self.axis or 'time'}"
        subject += f"  {self.scale} scale" if self.scale else ""
        subject += "  smoothed" if self.smooth else ""
        subject += f"  last {LAST_VALUES} values before the failure" if self.only_last else ""
        odd = self._outlier_ranks(self.name_shown)
        if not odd:
            return subject
        more = f" and {len(odd) - MAX_NAMED_OUTLIERS} more" if len(odd) > MAX_NAMED_OUTLIERS else ""
        return f"! outlier: {', '.join(f'r{rank}' for rank in odd[:MAX_NAMED_OUTLIERS])}{more}  {subject}"

    @property
    def is_behind(self) -> bool:
        """Whether some charts lack the newest values."""
        return bool(self._stale)

    def _outlier_ranks(self, name: str) -> list[int]:
        """Return the ranks whose latest values are outliers; empty if there are too few ranks to judge. The result is
        cached until the metric's chart is computed again."""
        if name not in self._outliers and self._metrics is not None:
            self._outliers[name] = self._metrics.outlier_ranks(self._run, name)
        return self._outliers.get(name, [])

    def action_step(self, step: int) -> None:
        if self.names:
            place = self.names.index(self.name_shown) + step
            self.name_shown = self.names[min(max(0, place), len(self.names) - 1)]
            self._chosen_name = True
            self._budget = len(self.names)
            self.refresh_if_changed()

    def action_page(self, pages: int) -> None:
        self.action_step(pages * max(1, len(self._areas)))

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.names) if end else -len(self.names))

    def action_sideways(self, steps: int) -> None:
        """Move the hairline by columns. At first, it appears at the newest values."""
        if self._span is not None and self._areas:
            columns = self._areas[0][0].width
            at = self._span[1] if self.hairline is None else self.hairline
            here = column_time(time_column(at, columns, self._span) + steps, columns, self._span)
            self._show_hairline(here if self._lead is None else self._lead.snap(here, at))

    def _show_hairline(self, position: float | None) -> None:
        self.hairline = position
        self._force_repaint()
        self.post_message(InstantChosen(self.instant))

    def hide_hairline(self) -> bool:
        """Hide the hairline. Return whether it was visible."""
        was_shown = self.hairline is not None
        if was_shown:
            self._show_hairline(None)
        return was_shown

    def _force_repaint(self) -> None:
        """Repaint all charts."""
        self._charts.clear()
        self._budget = len(self.names)
        self.refresh_if_changed()

    def show_only_last(self, only: bool) -> None:
        """Draw only the last values, or all."""
        self.only_last = only
        self._force_repaint()

    def action_scale(self) -> None:
        """Switch to the next scale: automatic, logarithmic, linear."""
        self.scale = SCALES[(SCALES.index(self.scale) + 1) % len(SCALES)]
        self._force_repaint()

    def action_smooth(self) -> None:
        self.smooth = not self.smooth
        self._force_repaint()

    def action_charts(self) -> None:
        self.single = not self.single
        self._force_repaint()

    def action_axis(self) -> None:
        """Switch the x axis between step and time. The hairline stays at its time."""
        at, self.by_time = self.instant, not self.by_time
        if self._metrics is not None and self.ranks:
            self._find_axis(self._metrics)
            if at is not None:
                self.hairline = at if self._lead is None else self._lead.position(at)
        self._force_repaint()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._on_pointer(event, chooses=True)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if event.button:
            self._on_pointer(event)

    def _on_pointer(self, event: events.MouseEvent, *, chooses: bool = False) -> None:
        """Move the hairline to the mouse pointer, if the pointer is in a chart."""
        for area, name in self._areas:
            if area.contains(event.x, event.y) and self._span is not None:
                if chooses:
                    self.name_shown, self._chosen_name = name, True
                here = column_time(event.x - area.x, area.width, self._span)
                self._show_hairline(here if self._lead is None else self._lead.snap(here, here))

    # Painting of the charts

    def notify_style_update(self) -> None:
        self._cells.clear()
        self._styled_for = None
        super().notify_style_update()

    def _grid(self, width: int, height: int) -> tuple[list[int], int]:
        """Return the number of charts in each row of the grid, and the number of rows for metrics without a chart."""
        across, down = width // LEAST_WIDTH, 0 if width < 2 * LEAST_WIDTH // 3 else height // LEAST_HEIGHT
        most = min(MAX_CHARTS, len(self.names), max(1, across) * down, 1 if self.single else MAX_CHARTS)
        if most < 1:
            return [], height
        beside = 2 if width >= 2 * LEAST_WIDTH else 1
        wanted = -(-(len(self.names) - most) // beside)
        listed = min(wanted, height // 2 if self.single else max(height % LEAST_HEIGHT, 2))
        down = max(1, (height - listed) // LEAST_HEIGHT)
        most = min(most, max(1, across) * down)

        def misfit(columns: int) -> float:
            rows = -(-most // columns)
            return abs(log(width / columns / ((height - listed) / rows) / _ASPECT)) if rows <= down else 99.0

        columns = min(range(1, min(max(1, across), most) + 1), key=misfit)
        rows = -(-most // columns)
        # The upper rows of the grid have fewer charts, so that the first metric gets the widest chart.
        return [most // rows + (row >= rows - most % rows) for row in range(rows)], listed

    def paint(self, width: int, height: int) -> list[Strip]:
        metrics = self._metrics
        if metrics is None or not width:
            return []
        images = metrics.images(self._run)
        share = height if not self.names else 2 * height // 5 if height >= 2 * LEAST_HEIGHT else 0
        pictures, height = self._image_rows(images, width, share), height - share * bool(images)
        self._plain = self.rich_style  # stored, because Textual computes ``rich_style`` at each access
        self._make_styles()
        counts, listed = self._grid(width, height)
        many = sum(counts)
        top = self.names.index(self.name_shown) // many * many if many else 0
        top = max(0, min(top, len(self.names) - many))
        shown = self.names[top : top + many]
        rows = self._chart_rows(metrics, shown, counts, width, height - listed)
        self._stale.intersection_update(shown)
        self._charts = {name: chart for name, chart in self._charts.items() if name in shown}
        rows += self._listed_rows(metrics, [name for name in self.names if name not in shown], width, listed)
        rows += [Strip([])] * (height - len(rows)) + pictures
        return [row.extend_cell_length(width, self._plain).crop(0, width) for row in rows]

    def _image_rows(self, images: Sequence[LoggedImage], width: int, height: int) -> list[Strip]:
        """Return the rows of the newest images side by side, each below its title."""
        across = min(len(images), max(1, width // LEAST_WIDTH)) if height else 0
        for place, image in enumerate(images[:across]):
            room = width * (place + 1) // across - width * place // across
            hidden = len(images) - across if place == across - 1 else 0
            key = image, room, height, hidden, self._plain
            if self._pictures.get(place, (None,))[0] != key:
                title = f"{image.name}{'' if image.step is None else f'  step {image.step:,.12g}'}  r{image.rank}"
                head = clip(f"{title}  +{hidden} images" if hidden else title, room - 2)
                rows = [Strip([Segment(head, self._plain)]), *self._draw_image(image, room - 2, height - 1, place + 1)]
                margin = Strip.blank(1, self._plain)
                rows = [Strip.join([margin, row]).extend_cell_length(room, self._plain).crop(0, room) for row in rows]
                self._pictures[place] = key, [*rows, *[Strip.blank(room, self._plain)] * (height - len(rows))]
        return [Strip.join(parts) for parts in zip(*(self._pictures[at][1] for at in range(across)), strict=True)]

    def _draw_image(self, image: LoggedImage, width: int, height: int, number: int) -> list[Strip]:
        """Return the rows of a picture; the path of its file if the terminal cannot show it."""
        hint = image.path
        try:
            if not self.app.no_color and image.preview:
                is_ascii = any(isinstance(each, PlainAscii) for each in self.app.get_line_filters())
                protocol = "blocks" if is_ascii else image_protocol(os.environ)
                send = getattr(self.app._driver, "write", str)  # sends before the next frame
                return draw_image(image.preview, width, height, protocol, number, send)
        except ImportError:
            hint = f"{hint} (install skyward-tui[images] to show it)"
        except Exception:  # noqa: BLE001  # An invalid file of a rank must not end the app.
            hint = f"{hint} (invalid)"
        return [Strip([Segment(clip(hint, width), self._style("muted"))])]

    def _make_styles(self) -> None:
        """Store the styles of the parts of a chart (grid, lines, hairline), because Textual computes a style at each
        access.
        """
        many = len(self.ranks) > RANKS_DRAWN
        if self._styled_for == (key := (self._plain, self._hue, many)):
            return
        hues = [self._style(f"rank-{hue}") for hue in range(RANK_HUES)]
        front = self._style("chosen") if many or self._hue == PLAIN else hues[self._hue]
        faint, others, hair, muted = (self._style(name) for name in ("faint", "others", "hair", "muted"))
        self._styles = [self._plain, faint, faint, others, *hues, front + Style(bold=True), hair, muted]
        self._styled_for = key

    @property
    def _hue(self) -> int:
        """Number of the hue of the main line; ``PLAIN`` if the main line is a median."""
        rank = self.ranks[0] if self._rank is None and len(self.ranks) == 1 else self._rank
        return PLAIN if rank is None else rank % RANK_HUES

    def _chart_rows(
        self, metrics: MetricStore, names: Sequence[str], counts: Sequence[int], width: int, height: int
    ) -> list[Strip]:
        """Return the rows of the grid of charts.

        Args:
            counts: Number of charts in each row of the grid.
        """
        self._areas = []
        if not counts:
            return []
        tall = [height // len(counts) + (row < height % len(counts)) for row in range(len(counts))]
        places: list[tuple[str, Region]] = []
        y = 0
        for many, high in zip(counts, tall, strict=True):
            edges = [width * place // many for place in range(many + 1)]
            for x, end in pairwise(edges):
                places.append((names[len(places)], Region(x, y, end - x, high)))
            y += high
        for name, area in places:
            is_new = name not in self._charts
            if is_new or (name in self._stale and self._budget > 0):
                self._budget -= not is_new
                self._stale.discard(name)
                self._charts[name] = self._chart_of(metrics, name, area.width)
                if len(self.ranks) <= RANKS_DRAWN:
                    self._outliers.pop(name, None)
                self._cells.pop(name, None)
        charts = [self._charts[name] for name in names]
        self._span = time_span(charts)
        scaled = [self._scale_of(name, area.height - 2) for name, area in places]
        margin = 1 + max((cell_len(label) for each in scaled if each for _, label in each.ticks), default=NUMBER_WIDTH)
        cells = []
        for (name, area), each in zip(places, scaled, strict=True):
            self._areas.append((Region(area.x + margin, area.y, area.width - margin - 1, area.height), name))
            cells.append(self._cell(name, each, area.size.width, area.height, margin))
        rows: list[Strip] = []
        for row, many in enumerate(counts):
            before, joined = self._joined.get(row, ([], []))
            if len(before) != many or not all(map(is_, before, cells)):
                joined = [Strip.join(parts) for parts in zip(*cells[:many], strict=True)]
                self._joined[row] = cells[:many], joined
            rows += joined
            del cells[:many]
        return rows

    def _scale_of(self, name: str, height: int) -> _Scaled | None:
        """Return a chart with its y axis, cached until the chart changes."""
        cached = self._scaled.get(name)
        if cached is None or cached[0] is not self._charts[name] or cached[1] != height:
            cached = self._scaled[name] = (self._charts[name], height, _scaled(self._charts[name], height))
        return cached[2]

    def _chart_of(self, metrics: MetricStore, name: str, width: int) -> Chart:
        traces = metrics.traces(self._run, name)
        if self.only_last:
            traces = {rank: Trace(at[-LAST_VALUES:], values[-LAST_VALUES:]) for rank, (at, values) in traces.items()}
        return make_chart(
            traces, self._rank, columns=2 * width, smooth=self.smooth, at=self.instant,
            log=None if not self.scale else self.scale == "log", axes=self._axes or None,
            bands=self._bands.setdefault(name, IncrementalBand()),
        )  # fmt: skip

    def _cell(self, name: str, scaled: _Scaled | None, width: int, height: int, margin: int) -> list[Strip]:
        """Return the rows of a chart: title, lines, and x axis. They are cached until the chart changes."""
        chosen = name == self.name_shown and self.has_focus
        key = (width, height, margin, chosen, id(self._charts[name]), self.hairline, self._plain)
        cached = self._cells.get(name)
        if cached is not None and cached[0] == key:
            return cached[1]
        rows = [self._title(name, self._charts[name], width - 1)]
        if scaled is None or self._span is None:
            has_value = self._charts[name].value is not None
            reason = " no value above 0" if self._charts[name].is_log and has_value else " no finite value yet"
            rows += [Strip([Segment(clip(reason, width), self._style("muted"))]), *[Strip([])] * (height - 2)]
        else:
            rows += self._draw_chart(scaled, width - margin - 1, height - 2, margin)
        rows = [row.extend_cell_length(width, self._plain).crop(0, width) for row in rows]
        self._cells[name] = key, rows
        return rows

    def _draw_chart(self, scaled: _Scaled, width: int, height: int, margin: int) -> list[Strip]:
        chart, span = scaled.chart, self._span or (0.0, 0.0)
        canvas = Canvas(width, height, span, scaled.span)
        across = x_ticks(span, width, self.axis, span[0])
        canvas.draw_grid([at for at, _ in across], [at for at, _ in scaled.ticks], _GRID)
        edges = [line for line, hue in zip(chart.behind, chart.hues, strict=True) if hue == BAND]
        if edges:
            canvas.fill_between(edges[0], edges[1], _BAND)
        lead = self._lead
        for at in self._restarts:
            position = at if lead is None else lead.position(at)
            if span[0] <= position <= span[1]:
                canvas.draw_vertical(canvas.dot_column(position) >> 1, _OTHERS)
        for line, hue in zip(chart.behind, chart.hues, strict=True):
            if hue != BAND:
                canvas.draw_line(line, _OTHERS if hue == PLAIN else _OTHERS + 1 + hue % RANK_HUES)
        canvas.draw_line(chart.front, _CHOSEN)
        if self.hairline is not None:
            canvas.draw_vertical(time_column(self.hairline, width, span), _HAIR)
        framing = framed_ticks(canvas, scaled.ticks, across, margin)
        return [Strip(Segment(text, self._styles[owner]) for text, owner in row) for row in framing]

    def _title(self, name: str, chart: Chart, width: int) -> Strip:
        """Return the title of a chart: name and value, then the range over all ranks, the best loss, the scale and the
        metric's source, such as "from the log"."""
        value = "–" if chart.value is None else number(chart.value)
        mark = " !" if self._outlier_ranks(name) else ""
        head = clip(f" {name} {value}{mark}", width)
        span = [] if chart.low is None or chart.high is None else [number(chart.low), number(chart.high)]
        more = [f"r{self.ranks[0]}-{self.ranks[-1]} {'…'.join(span)}"] if len(set(span)) > 1 else []
        low = chart.behind[chart.hues.index(BAND)] if BAND in chart.hues and len(self.ranks) <= RANKS_DRAWN else ()
        best = [each for _, each in (*chart.front, *low) if isfinite(each)]
        if best and classify_metric(name) == "loss" and not self.smooth:
            more.append(f"best {number(10 ** min(best) if chart.is_log else min(best))}")
        more += ["log scale"] if chart.is_log and not self.scale else []
        more.append("" if self._metrics is None else self._metrics.origin(self._run, name))
        text = ""
        for part in filter(None, more):
            text += f"  {part}" if cell_len(f"{head}{text}  {part}") <= width else ""
        cursor = self.get_component_rich_style("metrics--cursor") if name == self.name_shown else self._plain
        return Strip([Segment(head, cursor), Segment(text, self._style("muted"))])

    def _listed_rows(self, metrics: MetricStore, names: Sequence[str], width: int, rows: int) -> list[Strip]:
        """Return a row with value and sparkline for each metric that has no chart, in two columns if they fit."""
        key = (tuple(names), width, rows, self._seen, self.hairline, self.name_shown, self.has_focus, self._plain)
        if self._listed[0] == key:
            return self._listed[1]
        if len(self.ranks) <= RANKS_DRAWN:
            for name in names:
                self._outliers.pop(name, None)
        beside = 2 if width >= 2 * LEAST_WIDTH else 1
        room, fitting = width // beside, rows * beside
        cells = [self._name_row(metrics, name, room) for name in names[:fitting]]
        if len(names) > fitting and cells:
            hidden = f" {len(names) - fitting + 1} more: {', '.join(names[fitting - 1 :])}"
            cells[-1] = Strip([Segment(clip(hidden, room), self._style("muted"))])
        cells = [cell.extend_cell_length(room, self._plain).crop(0, room) for cell in cells]
        self._listed = key, [Strip.join(cells[at : at + beside]) for at in range(0, len(cells), beside)]
        return self._listed[1]

    def _latest(self, metrics: MetricStore, name: str) -> str:
        """Return the value of a metric at the hairline, or the latest one."""
        if (instant := self.instant) is None:
            by_rank: dict[int, float] = metrics.latest_by_rank(self._run, name)
        else:
            traces = metrics.traces(self._run, name).items()
            by_rank = {rank: value for rank, each in traces if (value := value_at(each, instant)) is not None}
        values = [value for rank, value in by_rank.items() if self._rank in (None, rank)]
        if not values:
            return "–"
        finite = [value for value in values if isfinite(value)]
        return number(median(finite)) if finite else f"{values[0]}"

    def _name_row(self, metrics: MetricStore, name: str, width: int) -> Strip:
        mark = "!" if self._outlier_ranks(name) else " "
        head = f" {fit_width(name, _NAME)} {fit_width(self._latest(metrics, name), -_VALUE)}{mark}"
        cursor = self.get_component_rich_style("metrics--cursor") if name == self.name_shown else self._plain
        ranks = self.ranks[:1] if self._rank is None else [self._rank]
        room = width - cell_len(head) - 2
        bars = "".join(spark(metrics.history(self._run, rank, name), room) for rank in ranks)
        return Strip([Segment(head, cursor), Segment(f" {bars}", self._style("muted"))])

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"metrics--{name}")


def _scaled(chart: Chart, height: int) -> _Scaled | None:
    """Return a chart with its y axis; None without finite values."""
    spanned = bounds(chart.lines)
    if spanned is None:
        return None
    return _Scaled(chart, spanned[1], y_ticks(spanned[1], height, log=chart.is_log))


class MetricsPanel(RunPanel[MetricsPane]):
    """Metrics of the selected rank, or of all ranks."""

    MAIN = MetricsPane

    def saved_state(self) -> Mapping[str, str | bool]:
        pane = self.main
        return {"scale": pane.scale, "smooth": pane.smooth, "one_chart": pane.single, "by_time": pane.by_time}

    def restore(self, saved: Mapping[str, str | bool]) -> None:
        pane = self.main
        pane.scale = next((each for each in SCALES if each == saved.get("scale")), "")
        pane.smooth, pane.single, pane.by_time = (
            saved.get(name) is True for name in ("smooth", "one_chart", "by_time")
        )

    def close_one(self) -> bool:
        return self.main.hide_hairline()

    def on_instant_chosen(self) -> None:
        self.set_titles(Content(f"{self.heading}  {self.main.subject}"))

    @property
    def needs_polling(self) -> bool:
        return self.main.is_behind

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        rank = None if chosen.merged else chosen.rank
        restarts = [] if run is None else [each.at for each in run.ended_attempts]
        only_last = run is not None and run.state == "failed" and not self.screen.has_class("-zoom")
        if only_last != self.main.only_last:
            self.main.show_only_last(only_last)
        changed = run is not None and self.main.update(pool.metrics, run.id, rank, restarts)
        has_metrics = run is not None and bool(self.main.names or pool.metrics.images(run.id))
        changed |= has_metrics != self.has_content
        self.has_content = has_metrics
        if has_metrics:
            self.set_titles(Content(f"{self.heading}  {self.main.subject}"))
        return changed
