"""What a sweep comes to, in pictures: a number against each argument, and the curves of all trials in one chart."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple

from textual.content import Content

from skyward_core.front.charts import COUNTERS
from skyward_core.views.metrics import MetricBook
from skyward_core.views.trials import TrialRow, TrialTable

from ..words import clip, count, fit, number
from .braille import Points
from .scaled_curves import scaled

MOST_VALUES = 8  # of an argument that are shown
MOST_CURVES = 32
LEAST_CURVES = 6  # rows of a chart
_BESIDE = 56  # cells of what stands beside another one
_VALUE, _MEAN = 12, 10  # cells


class _Against(NamedTuple):
    """What trials with one value of an argument came to."""

    value: str
    mean: float
    low: float
    high: float


class TrialPicture:
    """Made of a table and of what its trials logged; drawn in what room rows leave."""

    def __init__(self) -> None:
        self._name = ""
        self._against: list[tuple[str, list[_Against]]] = []
        self._title, self._front, self._curves = "", "", list[Points]()

    def update(
        self, table: TrialTable, rows: Sequence[TrialRow], by: str, book: MetricBook, default_run: str
    ) -> None:
        """Take a table as it is now.

        Args:
            rows: in the order in which they are shown: the first one's curve is in front.
            by: the column that they are sorted by, and compared by if it is a number that trials brought about.
            default_run: whose ranks sent the numbers, where a row does not say.
        """
        telling = [name for name in table.numbers if name.lower() not in COUNTERS]
        self._name, found = table.measured(by, telling)
        self._against = [
            (name, groups)
            for at, name in enumerate(table.names)
            if len(groups := _grouped(at, table.rows, found)) > 1
        ]
        self._title, self._front, self._curves = "", "", []
        for name in dict.fromkeys((self._name, *telling)):
            if name in telling and self._take(name, table, rows, book, default_run):
                break

    def _take(
        self, name: str, table: TrialTable, rows: Sequence[TrialRow], book: MetricBook, default_run: str
    ) -> bool:
        """Take the curves of a number; whether there are any."""
        drawn = [
            (row, curve)
            for row in rows[:MOST_CURVES]
            if len(curve := _curve(row, name, book, row.run or default_run)) > 1
        ]
        if not drawn:
            return False
        first = drawn[0][0]
        pairs = " ".join(map("=".join, zip(table.names, first.arguments, strict=True)))
        self._title, self._front = f"{name} of {count(len(drawn), 'trial')}", f"#{first.place} {pairs}"
        self._curves = [curve for _, curve in reversed(drawn)]
        return True

    def rows(self, width: int, height: int) -> list[Content]:
        """As much of it as there is room for."""
        drawn = self._blocks(width)[: max(0, height)]
        drawn += [Content("")] if drawn else []
        room = height - len(drawn) - 1
        if self._curves and room >= LEAST_CURVES:
            styles = ["$muted"] * (len(self._curves) - 1) + ["$text-accent"]
            if chart := scaled(self._curves, styles, width - 1, room):
                head = (f" {self._title} ", "bold"), (clip(self._front, width // 2), "$text-accent")
                drawn += [Content.assemble(*head), *chart]
        return drawn

    def _blocks(self, width: int) -> list[Content]:
        """Each argument's values against the number, side by side where there is room."""
        across = max(1, min(len(self._against), width // _BESIDE))
        cells = width // across
        means = [each for _, groups in self._against for each in groups]
        span = min((each.low for each in means), default=0.0), max((each.high for each in means), default=0.0)
        rows: list[Content] = []
        for at in range(0, len(self._against), across):
            blocks = [
                _block(self._name, name, groups, span, cells - 2)
                for name, groups in self._against[at : at + across]
            ]
            rows += [Content("")] if rows else []
            for line in range(max(map(len, blocks))):
                there = [block[line] if line < len(block) else Content("") for block in blocks]
                rows.append(Content.assemble(*(cell.pad_right(cells - cell.cell_length) for cell in there)))
        return rows


def _grouped(at: int, rows: Sequence[TrialRow], found: Mapping[int, float]) -> list[_Against]:
    """What came of each value of an argument, in the order of the combinations."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.place in found:
            values.setdefault(row.arguments[at], []).append(found[row.place])
    return [_Against(value, fmean(each), min(each), max(each)) for value, each in values.items()]


def _curve(row: TrialRow, name: str, book: MetricBook, run: str) -> list[tuple[float, float]]:
    """What a trial logged, over the seconds since it began."""
    task = row.task
    if task is None or task.began_at is None:
        return []
    until = inf if row.seconds is None else task.began_at + row.seconds
    at, values = book.trace(run, task.rank, name)
    first, end = bisect_left(at, task.began_at), bisect_right(at, until)
    return [
        (when - task.began_at, value) for when, value in zip(at[first:end], values[first:end], strict=True)
    ]


def _block(
    measured: str, name: str, groups: Sequence[_Against], span: tuple[float, float], width: int
) -> list[Content]:
    """An argument's values: the mean of each, and from the least to the greatest on a scale that all share."""
    room = max(0, width - _VALUE - _MEAN - 3)
    low, high = map(number, span)
    scale = f"{low}{high:>{room - len(low)}}" if room > len(low) + len(high) else ""
    title = fit(f" {measured} by {name}", _VALUE + _MEAN + 1)
    head = (f"{title}  ", "bold"), (scale, "$muted")
    rows = [Content.assemble(*head)]
    for each in groups[:MOST_VALUES]:
        line = _strip(each, span, room)
        rows.append(
            Content.assemble(
                (f" {fit(each.value, -_VALUE)}", ""),
                (f"{number(each.mean):>{_MEAN}}  ", "bold"),
                *line,
            )
        )
    if hidden := len(groups) - MOST_VALUES:
        rows += [Content.styled(f" +{hidden:,} more values", "$muted")] if hidden > 0 else []
    return rows


def _strip(each: _Against, span: tuple[float, float], room: int) -> list[tuple[str, str]]:
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
