"""Table of a sweep's trials, with charts of the effect of each argument and of metrics over time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple

from rich.cells import cell_len
from textual.content import Content

from skyward_core.views import group_pairs
from skyward_core.views.metric_kinds_and_order import COUNTERS
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.sweep_trials import RESULT, TrialRow, TrialTable
from skyward_tui.text.number_time_and_run_state_format import count, duration, number
from skyward_tui.text.queue_trial_and_comparison_rows import task_note
from skyward_tui.text.state_styles import state_style
from skyward_tui.text.text_width_tables_and_ascii import clip, fit_width
from skyward_tui.widgets.metric_charts import Points, overlay

MOST_VALUES = 8  # maximum number of values of an argument that a chart shows
MOST_CURVES = 32
LEAST_CURVES = 6  # minimum rows of the chart with the curves of trials
_BESIDE = 56  # width in cells of the chart of one argument; two such charts are shown side by side if both fit
_VALUE, _MEAN = 12, 10  # widths in cells of the columns with an argument's value and with the mean


class _ArgumentEffect(NamedTuple):
    """Mean, minimum and maximum of a metric over the trials that share one value of an argument."""

    value: str
    mean: float
    low: float
    high: float


class TrialCharts:
    """Charts of a sweep, drawn in the space below the rows of trials."""

    def __init__(self) -> None:
        self._name = ""
        self._against: list[tuple[str, list[_ArgumentEffect]]] = []
        self._title, self._front, self._curves = "", "", list[Points]()

    def update(
        self, table: TrialTable, rows: Sequence[TrialRow], by: str, metrics: MetricStore, default_run: str
    ) -> None:
        """Compute the charts from a table of trials.

        Args:
            rows: Rows in display order. The curve of the first row is drawn in front.
            by: Sort column. If it is a metric or a result, the charts show its values.
            metrics: Metrics that the trials logged.
            default_run: Run of the rows that do not name a run.
        """
        charted = [name for name in table.numbers if name.lower() not in COUNTERS]
        self._name, values = table.comparison_values(by, charted)
        self._against = [
            (name, groups) for at, name in enumerate(table.names) if len(groups := _grouped(at, table.rows, values)) > 1
        ]
        self._title, self._front, self._curves = "", "", []
        for name in dict.fromkeys((self._name, *charted)):
            if name in charted and self._take_curves(name, table, rows, metrics, default_run):
                break

    def _take_curves(
        self, name: str, table: TrialTable, rows: Sequence[TrialRow], metrics: MetricStore, default_run: str
    ) -> bool:
        """Collect the curves of a metric over time from the trials. Return whether any trial has values."""
        curves = ((row, _curve(row, name, metrics, row.run or default_run)) for row in rows[:MOST_CURVES])
        drawn = [(row, curve) for row, curve in curves if len(curve) > 1]
        if not drawn:
            return False
        first = drawn[0][0]
        pairs = " ".join(map("=".join, zip(table.names, first.arguments, strict=True)))
        self._title, self._front = f"{name} of {count(len(drawn), 'trial')}", f"#{first.place} {pairs}"
        self._curves = [curve for _, curve in reversed(drawn)]
        return True

    def rows(self, width: int, height: int) -> list[Content]:
        """Return the rows of the charts, as many as fit."""
        drawn = self._blocks(width)[: max(0, height)]
        drawn += [Content("")] if drawn else []
        room = height - len(drawn) - 1
        if self._curves and room >= LEAST_CURVES:
            styles = ["$muted"] * (len(self._curves) - 1) + ["$text-accent"]
            if chart := overlay(self._curves, styles, width - 1, room):
                head = (f" {self._title} ", "bold"), (clip(self._front, width // 2), "$text-accent")
                drawn += [Content.assemble(*head), *chart]
        return drawn

    def _blocks(self, width: int) -> list[Content]:
        """Return a block of rows for each argument, side by side if they fit."""
        across = max(1, min(len(self._against), width // _BESIDE))
        cells = width // across
        means = [each for _, groups in self._against for each in groups]
        span = min((each.low for each in means), default=0.0), max((each.high for each in means), default=0.0)
        rows: list[Content] = []
        for at in range(0, len(self._against), across):
            blocks = [
                _block(self._name, name, groups, span, cells - 2) for name, groups in self._against[at : at + across]
            ]
            rows += [Content("")] if rows else []
            for line in range(max(map(len, blocks))):
                cells_in_line = [block[line] if line < len(block) else Content("") for block in blocks]
                rows.append(Content.assemble(*(cell.pad_right(cells - cell.cell_length) for cell in cells_in_line)))
        return rows


def _grouped(at: int, rows: Sequence[TrialRow], values_by_place: Mapping[int, float]) -> list[_ArgumentEffect]:
    """Return statistics of the metric for each value of an argument, in the order of the sweep's combinations."""
    with_value = (row for row in rows if row.place in values_by_place)
    values = group_pairs((row.arguments[at], values_by_place[row.place]) for row in with_value)
    return [_ArgumentEffect(value, fmean(each), min(each), max(each)) for value, each in values.items()]


def _curve(row: TrialRow, name: str, metrics: MetricStore, run: str) -> list[tuple[float, float]]:
    """Return a metric of a trial, as pairs of seconds since the trial began and value."""
    task = row.task
    if task is None or task.began_at is None:
        return []
    until = inf if row.seconds is None else task.began_at + row.seconds
    at, values = metrics.trace(run, task.rank, name)
    first, end = bisect_left(at, task.began_at), bisect_right(at, until)
    return [(when - task.began_at, value) for when, value in zip(at[first:end], values[first:end], strict=True)]


def _block(
    measured: str, name: str, groups: Sequence[_ArgumentEffect], span: tuple[float, float], width: int
) -> list[Content]:
    """Return the rows for an argument: mean and range for each value, on a scale common to all arguments."""
    room = max(0, width - _VALUE - _MEAN - 3)
    low, high = map(number, span)
    scale = f"{low}{high:>{room - len(low)}}" if room > len(low) + len(high) else ""
    title = fit_width(f" {measured} by {name}", _VALUE + _MEAN + 1)
    head = (f"{title}  ", "bold"), (scale, "$muted")
    rows = [Content.assemble(*head)]
    for each in groups[:MOST_VALUES]:
        line = _strip(each, span, room)
        value, mean = f" {fit_width(each.value, -_VALUE)}", f"{number(each.mean):>{_MEAN}}  "
        rows.append(Content.assemble((value, ""), (mean, "bold"), *line))
    if hidden := len(groups) - MOST_VALUES:
        rows += [Content.styled(f" +{hidden:,} more values", "$muted")] if hidden > 0 else []
    return rows


def _strip(each: _ArgumentEffect, span: tuple[float, float], room: int) -> list[tuple[str, str]]:
    if room < 1:
        return []
    low, wide = span[0], span[1] - span[0]
    first, middle, last = (
        min(room - 1, max(0, round((value - low) / wide * (room - 1)))) if wide > 0 else 0
        for value in (each.low, each.mean, each.high)
    )
    return [
        (" " * first + "─" * (middle - first), "$muted"), ("●", "$text-accent"), ("─" * (last - middle), "$muted")
    ]  # fmt: skip


MAX_COLUMN_WIDTH = 24  # maximum cells of each column except the last
GAP = 2  # number of blank cells between two columns
_UP, _DOWN = "▲", "▼"


class TrialLines:
    """Rows of trials that can be sorted. Only the visible rows are formatted."""

    def __init__(self) -> None:
        self._table = TrialTable((), (), ())
        self._current_run = ""
        self._sort_column, self._is_descending = "", False
        self._rows: list[TrialRow] = []
        self._cells: list[list[str]] = []
        self._widths: list[int] = []
        self._right: set[int] = set()  # indices of the columns with numbers, which are aligned to the right
        self._metrics, self._run, self._picture = MetricStore(), "", TrialCharts()

    def update(self, table: TrialTable, metrics: MetricStore, run: str, here: str = "") -> None:
        """Show a table of trials.

        Args:
            metrics: Metrics that the trials logged.
            run: Run of the rows that do not name a run.
            here: Run whose rows are marked.
        """
        self._table, self._current_run, self._metrics, self._run = table, here, metrics, run
        self._sort()

    def chart_rows(self, width: int, height: int) -> list[Content]:
        """Return chart rows for the space below the table."""
        return self._picture.rows(width, height)

    @property
    def progress_text(self) -> tuple[int, int]:
        """Number of ended trials, and number of all trials."""
        return sum(row.state not in ("waiting", "running") for row in self._rows), len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def select_column(self, steps: int) -> None:
        """Sort by the column that is ``steps`` columns to the right of the present sort column."""
        columns = self._table.columns
        at = columns.index(self._sort_column) if self._sort_column in columns else 0
        self._sort_column = columns[(at + steps) % len(columns)]
        self._is_descending = False
        self._sort()

    def reverse_sort(self) -> None:
        """Toggle between ascending and descending order."""
        self._is_descending = not self._is_descending
        self._sort()

    def _sort(self) -> None:
        columns = self._table.columns
        if self._sort_column not in columns:
            self._sort_column = columns[0]
        self._rows = self._table.sorted_rows(self._sort_column, falling=self._is_descending)
        self._picture.update(self._table, self._rows, self._sort_column, self._metrics, self._run)
        best = self._table.best_place
        self._cells = [self._texts(row, is_best=row.place == best) for row in self._rows]
        everything = [[self._head_of(column) for column in columns], *self._cells]
        self._widths = [min(MAX_COLUMN_WIDTH, max(map(cell_len, column))) for column in zip(*everything, strict=True)]

        cells = list(zip(*self._cells, strict=True))
        self._right = {at for at, column in enumerate(cells) if at and all(map(_is_figure, filter(None, column)))}

    def _head_of(self, column: str) -> str:
        return f"{column}{_DOWN if self._is_descending else _UP}" if column == self._sort_column else column

    def _texts(self, row: TrialRow, *, is_best: bool) -> list[str]:
        numbers = (row.numbers.get(name) for name in self._table.numbers)
        return [
            f"{row.place}{' ★' * is_best}", *row.arguments,
            state_style(row.state).text, "" if row.seconds is None else duration(row.seconds, precise=True),
            *("" if each is None else number(each) for each in numbers),
            "" if row.task is None else task_note(row.task),
        ]  # fmt: skip

    def _visible_columns(self, width: int) -> list[int]:
        """Return the columns that fit: the first column, and a range of the others that contains the sort column."""
        columns = self._table.columns
        chosen, rest = columns.index(self._sort_column), list(range(1, len(columns)))
        room = width - 1 - self._widths[0]
        while chosen in rest[1:] and sum(self._room(at) for at in rest[: rest.index(chosen) + 1]) > room:
            del rest[0]
        return [0, *rest]

    def _room(self, at: int) -> int:
        return GAP + (self._widths[at] if at < len(self._widths) - 1 else len(RESULT) + 1)

    def head(self, width: int) -> Content:
        """Return the line with the column titles, in which the sort column is marked."""
        parts = []
        for at in self._visible_columns(width):
            column = self._table.columns[at]
            style = "bold $text-accent" if column == self._sort_column else "$muted"
            parts.append((self._cell(self._head_of(column), at), style))
        return _cut([(" ", ""), *parts], width)

    def row(self, index: int, width: int) -> Content:
        """Return a row of the table in the current order."""
        texts, trial = self._cells[index], self._rows[index]
        state = trial.state
        dim = "$muted" if state in ("collateral", "waiting") else ""
        # styles of the columns with the trial's number and with its outcome, by index of the column
        styles = {0: "bold", self._table.outcome_column: state_style(state).style}
        parts = [(self._cell(texts[at], at), styles.get(at, dim)) for at in self._visible_columns(width)]
        mark = ("▸", "$text-accent") if self._current_run and trial.run == self._current_run else (" ", "")
        return _cut([mark, *parts], width)

    def _cell(self, text: str, at: int) -> str:
        if at == len(self._widths) - 1:  # the last column, which shows the result, gets the remaining width
            return text
        room = self._widths[at]
        return fit_width(text, -room if at in self._right else room) + " " * GAP


def _is_figure(text: str) -> bool:
    """Check whether a text is a number or a duration."""
    return text[0] in "+-.0123456789" and not text.strip("+-.,:0123456789einf ms")


def _cut(parts: list[tuple[str, str]], width: int) -> Content:
    """Return the styled parts of a line, cut to a width in cells."""
    fitting = []
    for text, style in parts:
        if width <= 0:
            break
        fitting.append((clip(text, width), style))
        width -= cell_len(text)
    return Content.assemble(*fitting)
