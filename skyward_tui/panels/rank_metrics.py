"""Panel with charts of the metrics that ranks log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from time import monotonic
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.strip import Strip

from skyward_core.views.outliers_and_bands import IncrementalBand, median
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.rank_metrics_and_diagnostics import MetricStore
from skyward_tui.panels.panel import RunPanel, RunSelection
from skyward_tui.text.number_and_time_format import duration, number
from skyward_tui.text.text_width_and_tables import clip, fit_width
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.metric_charts import (
    SCALE,
    Canvas,
    Chart,
    bounds,
    column_time,
    framed,
    make_chart,
    sort_names,
    spark,
    time_column,
    time_span,
    value_at,
)
from skyward_tui.widgets.virtual_list import PaintedLines

REPAINT_SECONDS = 0.5  # seconds; minimum interval between updates while metrics arrive
MANY_RANKS = 128  # number of ranks for which the minimum interval grows by one REPAINT_SECONDS, to limit the load
MAX_NAMED_OUTLIERS = 4  # maximum number of outlier ranks that the title names
NAMES_SHOWN = 64
_NAME, _VALUE = 12, 9  # cells of the columns
_OTHERS, _CHOSEN, _HAIR = 1, 2, 3
_LEAST_WIDTH, _LEAST_HEIGHT = 40, 6  # minimum cells of a chart in the grid


class MetricsPane(PaintedLines):
    """Charts of a run's metrics, updated at most twice a second."""

    BINDINGS = [*bindings("panel"), *bindings("numbers")]  # noqa: RUF012
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "numbers--chosen", "numbers--others", "numbers--muted", "numbers--cursor", "numbers--hair"
    }  # fmt: skip
    DEFAULT_CSS = read_style_sheet(__file__, "metrics_pane")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.names: list[str] = []
        self.counters: list[str] = []  # names of counters, such as step; they are at the end of ``names``
        self.name_shown = ""
        self.ranks: list[int] = []
        self._chosen_name = False
        self._metrics: MetricStore | None = None
        self._bands: dict[str, IncrementalBand] = {}  # by metric name
        self._run = ""
        self._rank: int | None = 0
        self._seen: object = None
        self._updated_at = 0.0
        self.log_scale = self.smooth = False
        self.all = False  # whether all metrics are charted
        self.instant: float | None = None  # Unix time of the cursor line; None without a cursor line
        self._span: tuple[float, float] | None = None  # (first, last) Unix time of the charts on the screen
        self._restarts: tuple[float, ...] = ()  # Unix times at which attempts of the run ended
        self._columns = 1  # cells of each chart on the screen
        self._lefts: list[int] = []  # first column of each chart on the screen
        self._plain = Style()

    def update(self, metrics: MetricStore, run: str, rank: int | None, restarts: Sequence[float] = ()) -> bool:
        """Show the metrics of a run. One rank is highlighted; if ``rank`` is None, the median of all ranks.

        Args:
            metrics: Metrics of the pool.
            run: ID of the run.
            rank: Rank to highlight.
            restarts: Unix times at which attempts of the run ended, each marked by a vertical line.

        Returns:
            Whether the pane was updated, which happens at limited intervals.
        """
        if run != self._run:
            self._run, self._chosen_name, self.name_shown, self.names = run, False, "", []
            self._bands = {}
            self.instant = None
            self._seen = None
        seen, self._restarts = (run, rank, metrics.version, restarts), tuple(restarts)
        now = monotonic()
        is_other = rank != self._rank or self._seen is None
        interval = REPAINT_SECONDS * (1 + len(self.ranks) // MANY_RANKS)
        if seen == self._seen or (not is_other and now - self._updated_at < interval):
            return False
        self._metrics, self._rank, self._seen, self._updated_at = metrics, rank, seen, now
        self.ranks = metrics.ranks(run)
        charted, self.counters = sort_names(metrics, run)
        self.names = (charted + self.counters)[:NAMES_SHOWN]
        if not self._chosen_name and self.names:
            self.name_shown = self.names[0]
        self.refresh_if_changed()
        return True

    @property
    def subject(self) -> str:
        """Shown ranks, display options and outliers, for the title."""
        subject = f"rank {self._rank}"
        if self._rank is None:
            many = len(self.ranks)
            subject = f"median of {many} ranks" if many > 1 else f"only rank {self.ranks[0]}"
        subject += f"  at {duration(self.instant - self._span[0])}" if self.instant is not None and self._span else ""
        subject += "  log scale" if self.log_scale else ""
        subject += "  smoothed" if self.smooth else ""
        odd = self._outlier_ranks(self.name_shown)
        if not odd:
            return subject
        more = f" and {len(odd) - MAX_NAMED_OUTLIERS} more" if len(odd) > MAX_NAMED_OUTLIERS else ""
        return f"! outlier: {', '.join(f'r{rank}' for rank in odd[:MAX_NAMED_OUTLIERS])}{more}  {subject}"

    def _outlier_ranks(self, name: str) -> list[int]:
        """Return the ranks whose latest values are outliers; empty if there are too few ranks to judge."""
        return [] if self._metrics is None else self._metrics.outlier_ranks(self._run, name)

    def action_step(self, step: int) -> None:
        if self.names:
            place = self.names.index(self.name_shown) + step
            self.name_shown = self.names[min(max(0, place), len(self.names) - 1)]
            self._chosen_name = True
            self.refresh_if_changed()

    def action_page(self, pages: int) -> None:
        self.action_step(pages * max(1, self._list_height()))

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.names) if end else -len(self.names))

    def action_sideways(self, steps: int) -> None:
        """Move the cursor line by columns. At first, it appears at the newest values."""
        if self._span is not None:
            at = self._span[1] if self.instant is None else self.instant
            self._show_hairline(time_column(at, self._columns, self._span) + steps)

    def _show_hairline(self, column: int) -> None:
        if self._span is not None:
            self.instant = column_time(column, self._columns, self._span)
            self._force_repaint()

    def hide_hairline(self) -> bool:
        """Hide the cursor line. Return whether it was visible."""
        was_shown, self.instant = self.instant is not None, None
        if was_shown:
            self._force_repaint()
        return was_shown

    def _force_repaint(self) -> None:
        """Repaint, and let the next update refresh the title."""
        self._seen = None
        self.refresh_if_changed()

    def action_scale(self) -> None:
        self.log_scale = not self.log_scale
        self._force_repaint()

    def action_smooth(self) -> None:
        self.smooth = not self.smooth
        self._force_repaint()

    def action_charts(self) -> None:
        self.all = not self.all
        self._force_repaint()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._on_pointer(event)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if event.button:
            self._on_pointer(event)

    def _on_pointer(self, event: events.MouseEvent) -> None:
        """Move the cursor line to the mouse pointer, if the pointer is in a chart."""
        if not self.all and event.y < self._list_height():
            return
        left = max((left for left in self._lefts if left <= event.x), default=None)
        if left is not None and event.x - left < self._columns:
            self._show_hairline(event.x - left)

    # Painting

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def _list_height(self) -> int:
        """Return the number of rows for the list of names, at most half of the pane."""
        return min(len(self.names), max(1, self.size.height // 2))

    def paint(self, width: int, height: int) -> list[Strip]:
        metrics = self._metrics
        if metrics is None or not self.names or not width:
            return []
        self._plain = self.rich_style  # stored here because Textual computes the property at each access
        self._lefts = []
        if self.all and width >= _LEAST_WIDTH and height >= _LEAST_HEIGHT:
            rows = self._grid(metrics, width, height)
        else:
            rows = self._list(metrics, width, height)
        return [row.extend_cell_length(width, self._plain).crop(0, width) for row in rows]

    def _list(self, metrics: MetricStore, width: int, height: int) -> list[Strip]:
        """Return a row for each name, and a chart of the selected metric below."""
        listed = self._list_height()
        place = self.names.index(self.name_shown)
        top = min(max(0, place - listed + 1), len(self.names) - listed)
        rows = [self._name_row(metrics, name, width) for name in self.names[top : top + listed]]
        if height - listed >= 3 and width > 2 * SCALE:
            chart = self._chart_of(metrics, self.name_shown, width)
            self._span = time_span([chart])
            rows += self._draw_chart(chart, width, height - listed, 0)
        return rows

    def _grid(self, metrics: MetricStore, width: int, height: int) -> list[Strip]:
        """Return charts of as many metrics as fit, with a common time axis, and a row with the counters below."""
        charted = [name for name in self.names if name not in self.counters]
        height -= bool(self.counters)
        across = max(1, min(width // _LEAST_WIDTH, len(charted)))
        down = max(1, min(height // _LEAST_HEIGHT, -(-len(charted) // across)))
        place = charted.index(self.name_shown) if self.name_shown in charted else len(charted) - 1
        names = charted[place // (across * down) * across * down :][: across * down]
        charts = [self._chart_of(metrics, name, width // across) for name in names]
        self._span = time_span(charts)
        rows: list[Strip] = []
        for at in range(0, len(charts), across):
            beside = [
                [
                    self._title(name, chart, width // across),
                    *self._draw_chart(chart, width // across, height // down - 1, left),
                ]
                for name, chart, left in zip(
                    names[at : at + across],
                    charts[at : at + across],
                    range(0, width, width // across),
                    strict=False,
                )
            ]
            rows += [Strip.join(cells) for cells in zip(*beside, strict=True)]
        if self.counters:
            rows += [Strip([])] * (height - len(rows))
            rows.append(Strip([self._counter_text(metrics, name) for name in self.counters]))
        return rows

    def _counter_text(self, metrics: MetricStore, name: str) -> Segment:
        """Return a counter's name and current value."""
        cursor = self.get_component_rich_style("numbers--cursor")
        return Segment(
            f" {name} {self._latest(metrics, name)} ",
            cursor if name == self.name_shown else self._style("muted"),
        )

    def _title(self, name: str, chart: Chart, width: int) -> Strip:
        """Return the title of a chart: name, value, and the range over all ranks."""
        span = "" if chart.low is None or chart.high is None else f"  {number(chart.low)} to {number(chart.high)}"
        value = "–" if chart.value is None else number(chart.value)
        mark = " !" if self._outlier_ranks(name) else ""
        cursor = self.get_component_rich_style("numbers--cursor") if name == self.name_shown else self._plain
        head = clip(f" {name} {value}{mark}", width)
        room = clip(span, width - cell_len(head) - 1)
        strip = Strip([Segment(head, cursor), Segment(room, self._style("muted"))])
        return strip.extend_cell_length(width, self._plain).crop(0, width)

    def _chart_of(self, metrics: MetricStore, name: str, width: int) -> Chart:
        return make_chart(
            metrics.traces(self._run, name), self._rank, columns=2 * width, log=self.log_scale, smooth=self.smooth,
            at=self.instant, bands=self._bands.setdefault(name, IncrementalBand()),
        )  # fmt: skip

    def _latest(self, metrics: MetricStore, name: str) -> str:
        """Return the value of a metric at the cursor line, or the latest one."""
        if self.instant is None:
            by_rank: dict[int, float] = metrics.latest_by_rank(self._run, name)
        else:
            traces = metrics.traces(self._run, name).items()
            by_rank = {rank: value for rank, each in traces if (value := value_at(each, self.instant)) is not None}
        values = (
            list(by_rank.values()) if self._rank is None else [by_rank[self._rank]] if self._rank in by_rank else []
        )
        if not values:
            return "–"
        finite = [value for value in values if isfinite(value)]
        return number(median(finite)) if finite else f"{values[0]}"

    def _name_row(self, metrics: MetricStore, name: str, width: int) -> Strip:
        style = self._plain
        mark = "!" if self._outlier_ranks(name) else " "
        head = f" {fit_width(name, _NAME)} {fit_width(self._latest(metrics, name), -_VALUE)}{mark}"
        cursor = self.get_component_rich_style("numbers--cursor") if name == self.name_shown else style
        ranks = self.ranks[:1] if self._rank is None else [self._rank]
        room = width - cell_len(head) - 1
        bars = "".join(spark(metrics.history(self._run, rank, name), room) for rank in ranks)
        tint = "chosen" if name == self.name_shown else "muted"
        return Strip([Segment(head, cursor), Segment(f" {bars}", self._style(tint))])

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"numbers--{name}")

    def _draw_chart(self, chart: Chart, width: int, height: int, left: int) -> list[Strip]:
        """Return the rows of a chart with its scales.

        Args:
            left: First column of the chart in the pane.
        """
        spanned = bounds(chart.lines)
        muted = self._style("muted")
        if spanned is None or self._span is None:
            reason = " no value above 0" if self.log_scale and chart.value is not None else " no finite value yet"
            rows = [Strip([Segment(clip(reason, width), muted)]), *[Strip([])] * (height - 1)]
            return [row.extend_cell_length(width, self._plain) for row in rows]
        low, high = spanned[1]
        self._columns = width - SCALE - 1
        self._lefts.append(left + SCALE)
        canvas = Canvas(self._columns, height - 1, self._span, (low, high))
        for at in self._restarts:
            if self._span[0] <= at <= self._span[1]:
                canvas.draw_vertical(time_column(at, self._columns, self._span), _OTHERS)
        for line in chart.behind:
            canvas.draw_line(line, _OTHERS)
        canvas.draw_line(chart.front, _CHOSEN)
        if self.instant is not None:
            canvas.draw_vertical(time_column(self.instant, self._columns, self._span), _HAIR)
        styles = [self._plain, self._style("others"), self._style("chosen"), self._style("hair"), muted]
        ends = duration(0), duration(self._span[1] - self._span[0])
        framing = framed(canvas, self._scale_text(low), self._scale_text(high), *ends)
        rows = [Strip(Segment(text, styles[owner]) for text, owner in row) for row in framing]
        return [row.extend_cell_length(width, self._plain).crop(0, width) for row in rows]

    def _scale_text(self, value: float) -> str:
        """Return the label of a scale value. On a logarithmic scale, the value is a logarithm."""
        return f"{10**value if self.log_scale else value:.3g}"


class MetricsPanel(RunPanel[MetricsPane]):
    """Metrics of the selected rank, or of all ranks."""

    DEFAULT_CSS = read_style_sheet(__file__)
    SCOPED_CSS = False  # the style sheet also changes the screen's grid
    MAIN = MetricsPane

    def saved_state(self) -> Mapping[str, str | bool]:
        pane = self.main
        return {"log_scale": pane.log_scale, "smooth": pane.smooth, "charts": pane.all}

    def restore(self, saved: Mapping[str, str | bool]) -> None:
        pane = self.main
        pane.log_scale, pane.smooth, pane.all = (saved.get(name) is True for name in ("log_scale", "smooth", "charts"))

    def close_one(self) -> bool:
        return self.main.hide_hairline()

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        rank = None if chosen.merged else chosen.rank
        restarts = [] if run is None else [each.at for each in run.ended_attempts]
        changed = run is not None and self.main.update(pool.metrics, run.id, rank, restarts)
        has_metrics = run is not None and bool(self.main.names)
        changed |= has_metrics != self.has_content
        self.has_content = has_metrics
        if has_metrics:
            self.set_titles(Content(f"{self.heading}  {self.main.subject}"))
        return changed
