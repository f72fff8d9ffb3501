"""A curve on a few lines, with what it is worth above it: for panels that show one thing beside others."""

from __future__ import annotations

from math import isfinite

from textual.content import Content

from skyward_core.front.charts import chart_of, names_in_order
from skyward_core.views.kept_band import KeptBand
from skyward_core.views.metrics import MetricBook
from skyward_core.wire.safe_text import field

from ..words import number
from .braille import Canvas, Points, bounds

Span = tuple[float, float]


def curve(points: Points, width: int, height: int, *, part_of: Span | None = None) -> list[Content]:
    """Points as a line; no rows where there is none to draw.

    Args:
        part_of: what it is a part of, which is what it spans, with what lies below it filled; else it spans as much as
            the points do.
    """
    spans = bounds([points])
    if spans is None or width < 1 or height < 1:
        return []
    canvas = Canvas(width, height, spans[0], part_of or spans[1])
    canvas.line(points, 1)
    if part_of is not None:
        canvas.fill(1)
    # A font that takes the dots from another one may have them of another width: blanks are no part of their pieces,
    # or a picture spreads both over the row.
    return [
        Content.assemble(*((text, "$text-primary" if owner else "") for text, owner in canvas.runs(row)))
        for row in range(height)
    ]


class NumbersChart:
    """The first of a run's numbers that is no counter, as the median of all ranks, with a line above it."""

    def __init__(self) -> None:
        self._band: tuple[object, KeptBand] = (None, KeptBand())  # of what is drawn, and what that is

    def rows(self, book: MetricBook, whose: object, run: str, width: int, height: int) -> list[Content]:
        """As many rows as asked for and one more; none where there are no numbers.

        Args:
            whose: what the book is of: of another one nothing is kept.
        """
        names, _ = names_in_order(book, run)
        if not names or width < 1:
            return []
        name = names[0]
        traces = book.traces(run, name)
        if self._band[0] != (about := (whose, run, name)):
            self._band = (about, KeptBand())
        chart = chart_of(traces, None, columns=2 * width, kept=self._band[1])
        drawn = curve(chart.front, width, height)
        if not drawn or chart.value is None:
            return []
        worth = [value for _, value in chart.front if isfinite(value)]
        newest = (f"{field(name)} ", "bold"), (number(chart.value), "")
        ranks = f"  median of {len(traces)} ranks" if len(traces) > 1 else ""
        head = Content.assemble(*newest, (f"{ranks}  {number(min(worth))} to {number(max(worth))}", "$muted"))
        if head.cell_length > width:
            head = Content.assemble(*newest, (ranks, "$muted"))
        return [head, *drawn]
