"""The numbers that ranks log and yield: a line of bars for each name, and one name as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from time import monotonic
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.strip import Strip
from textual.widget import Widget

from skyward_core.views.metrics import MetricBook
from skyward_core.views.spread import Band, Trace, band, median, outliers

from ..actions import bindings
from ..styles import beside
from ..words import clip, duration, number
from .braille import Canvas, Points, bounds, spark

REPAINT_SECONDS = 0.5  # between two looks at numbers that keep coming
RANKS_DRAWN = 8  # more are drawn as what they span: a chart of 256 lines shows none of them
MANY = 128  # ranks of which all are looked at half as often
ODD_NAMED = 4  # of those that are far from all others
NAMES_SHOWN = 64
COUNTERS = ("step", "epoch", "iteration", "iter", "batch", "rank", "global_step")
_NAME, _VALUE = 12, 9  # columns
_SCALE = 9
_OTHERS, _CHOSEN = 1, 2


class NumbersPane(Widget, can_focus=True):
    """What a run's ranks sent, looked at no more than twice a second however fast they send."""

    BINDINGS = bindings("panel")
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "numbers--chosen", "numbers--others", "numbers--muted", "numbers--cursor"
    }  # fmt: skip
    DEFAULT_CSS = beside(__file__)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.names: list[str] = []
        self.name_shown = ""
        self.ranks: list[int] = []
        self._chosen_name = False
        self._book: MetricBook | None = None
        self._run = ""
        self._rank: int | None = 0
        self._seen: object = None
        self._looked_at = 0.0
        self._rows: list[Strip] | None = None

    # What it shows

    def update(self, book: MetricBook, run: str, rank: int | None) -> bool:
        """Look at a run's numbers, of one rank before the others, or with None of all merged.

        Returns:
            Whether it looked: numbers that keep coming wait for their turn.
        """
        if run != self._run:
            self._run, self._chosen_name, self.name_shown, self.names = run, False, "", []
            self._seen = None
        seen = (run, rank, book.version)
        now = monotonic()
        turned = rank != self._rank or self._seen is None
        pause = REPAINT_SECONDS * (1 + len(self.ranks) // MANY)
        if seen == self._seen or (not turned and now - self._looked_at < pause):
            return False
        self._book, self._rank, self._seen, self._looked_at = book, rank, seen, now
        self.ranks = book.ranks(run)
        self.names = book.names(run)[:NAMES_SHOWN]
        if not self._chosen_name and self.names:
            self.name_shown = next(
                (name for name in self.names if name.lower() not in COUNTERS), self.names[0]
            )
        if self.is_on_screen:
            self._repaint()
        else:
            self._rows = None
        return True

    @property
    def subject(self) -> str:
        """Whose numbers these are."""
        whose = f"rank {self._rank}"
        if self._rank is None:
            many = len(self.ranks)
            whose = f"median of {many} ranks" if many > 1 else f"rank {self.ranks[0]} alone"
        odd = self._far_off(self.name_shown)
        if not odd:
            return whose
        more = f" and {len(odd) - ODD_NAMED} more" if len(odd) > ODD_NAMED else ""
        return f"! far off: {', '.join(f'r{rank}' for rank in odd[:ODD_NAMED])}{more}  {whose}"

    def _far_off(self, name: str) -> list[int]:
        """The ranks whose newest value is far from all others'."""
        return [] if self._book is None else outliers(self._book.latest_of(self._run, name))

    def action_step(self, step: int) -> None:
        if self.names:
            place = self.names.index(self.name_shown) + step
            self.name_shown = self.names[min(max(0, place), len(self.names) - 1)]
            self._chosen_name = True
            self._repaint()

    def action_page(self, pages: int) -> None:
        self.action_step(pages * max(1, self._listed()))

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.names) if end else -len(self.names))

    def action_sideways(self, steps: int) -> None:
        """Nothing lies beside a name."""

    def action_open(self) -> None:
        """Nothing to open."""

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_step(-1)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_step(1)

    # Painting

    def _repaint(self) -> None:
        self._rows = None
        self.refresh()

    def notify_style_update(self) -> None:
        self._rows = None
        super().notify_style_update()

    def on_resize(self) -> None:
        self._rows = None

    def on_focus(self) -> None:
        self._rows = None

    def on_blur(self) -> None:
        self._rows = None

    def render_line(self, y: int) -> Strip:
        if self._rows is None:
            self._rows = self._paint(*self.size)
        return self._rows[y] if y < len(self._rows) else Strip.blank(self.size.width, self.rich_style)

    def _listed(self) -> int:
        """Rows for the names: half of the pane at most, and none where there is one name and little room."""
        return min(len(self.names), max(1, self.size.height // 2))

    def _paint(self, width: int, height: int) -> list[Strip]:
        book = self._book
        if book is None or not self.names or not width:
            return []
        listed = self._listed()
        place = self.names.index(self.name_shown)
        top = min(max(0, place - listed + 1), len(self.names) - listed)
        rows = [self._name_row(book, name, width) for name in self.names[top : top + listed]]
        if height - listed >= 3 and width > 2 * _SCALE:
            rows += self._chart(book, width, height - listed)
        return [row.extend_cell_length(width, self.rich_style).crop(0, width) for row in rows]

    def _series(self, book: MetricBook, name: str) -> tuple[Sequence[Points], Points]:
        """The lines behind, of all ranks or what they span, and the one that is in front."""
        traces = book.traces(self._run, name)
        own = None if self._rank is None else traces.get(self._rank)
        front = _points(own) if own is not None else []
        if self._rank is None and len(traces) == 1:
            return [], _points(*traces.values())
        if len(traces) <= RANKS_DRAWN and self._rank is not None:
            return [_points(trace) for rank, trace in traces.items() if rank != self._rank], front
        span = band(list(traces.values()), max(2, 2 * self.size.width))
        few = len(traces) <= RANKS_DRAWN
        behind = [_points(trace) for trace in traces.values()] if few else _edges(span)
        middle = list(zip(span.at, span.middle, strict=True))
        return (behind, middle) if self._rank is None else ([*behind, middle], front)

    def _latest(self, book: MetricBook, name: str) -> str:
        latest = book.latest_of(self._run, name)
        values = (
            list(latest.values())
            if self._rank is None
            else [latest[self._rank]]
            if self._rank in latest
            else []
        )
        if not values:
            return "–"
        finite = [value for value in values if isfinite(value)]
        return number(median(finite)) if finite else f"{values[0]}"

    def _name_row(self, book: MetricBook, name: str, width: int) -> Strip:
        style = self.rich_style
        mark = "!" if self._far_off(name) else " "
        head = f" {clip(name, _NAME):<{_NAME}} {clip(self._latest(book, name), _VALUE):>{_VALUE}}{mark}"
        cursor = self.get_component_rich_style("numbers--cursor") if name == self.name_shown else style
        ranks = self.ranks[:1] if self._rank is None else [self._rank]
        bars = "".join(spark(book.history(self._run, rank, name), width - len(head) - 1) for rank in ranks)
        tint = "chosen" if name == self.name_shown else "muted"
        return Strip([Segment(head, cursor), Segment(f" {bars}", self._style(tint))])

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"numbers--{name}")

    def _chart(self, book: MetricBook, width: int, height: int) -> list[Strip]:
        others, chosen = self._series(book, self.name_shown)
        spanned = bounds([*others, chosen])
        muted = self._style("muted")
        if spanned is None:
            return [Strip([Segment(" no finite number so far", muted)])]
        (first, last), (low, high) = spanned
        canvas = Canvas(width - _SCALE - 1, height - 1, (first, last), (low, high))
        for points in others:
            canvas.line(points, _OTHERS)
        canvas.line(chosen, _CHOSEN)
        styles = [self.rich_style, self._style("others"), self._style("chosen")]
        rows = []
        for row in range(canvas.height):
            mark = f"{high:.3g}" if row == 0 else f"{low:.3g}" if row == canvas.height - 1 else ""
            scale = Segment(f"{clip(mark, _SCALE - 1):>{_SCALE - 1}} ┤" if mark else f"{'':{_SCALE}}│", muted)
            rows.append(Strip([scale, *(Segment(text, styles[owner]) for text, owner in canvas.runs(row))]))
        span = duration(last - first)
        axis = f"{'':{_SCALE}}└ 0:00 {'─' * max(0, canvas.width - len(span) - 7)} {span}"
        return [*rows, Strip([Segment(axis, muted)])]


def _points(trace: Trace) -> Points:
    return list(zip(trace.at, trace.values, strict=True))


def _edges(span: Band) -> list[Points]:
    """The least and the greatest of all, as lines; a value that one rank had once is a peak of its own."""
    return [list(zip(span.at, edge, strict=True)) for edge in (span.low, span.high)]
