"""A past run below the list of them: how it went and what came of it on the left, its curve and last lines beside."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator

from textual.content import Content
from textual.widget import Widget

from skyward_core.front.line_search import FoundInLogs
from skyward_core.front.past_looks import PastLook
from skyward_core.front.past_runs import PastRun
from skyward_core.views.views import RunView
from skyward_core.wire.safe_text import field

from ..sgr import plain
from ..styles import beside
from ..theme import look
from ..words import clip, count, duration, money, number, one_line
from .results import task_note
from .small_chart import NumbersChart
from .trial_lines import TrialLines

_CHART = 6  # rows of a curve
_RESULTS = 8  # of which each has a line
_ERROR = 6  # lines of a root cause
_LEFT = 0.4  # of the width
_BESIDE = 90  # columns from which lines and curves stand beside what it is, else below
_TOGETHER = ("mean", "min", "max")  # of all results that are numbers

Part = tuple[str, str]


class RunLook(Widget, can_focus=False):
    """One run. It reads nothing: what is not told it yet is not shown."""

    DEFAULT_CSS = beside(__file__)

    def __init__(self) -> None:
        super().__init__()
        self._shown: object = None
        self._run: PastRun | None = None
        self._look: PastLook | None = None
        self._found: FoundInLogs | None = None
        self._now = 0.0
        self._chart = NumbersChart()
        self._trials: TrialLines | None = (
            None  # of a sweep: what curves of its trials, end to end, do not tell
        )

    def update(
        self, run: PastRun | None, seen: PastLook | None, now: float, found: FoundInLogs | None = None
    ) -> None:
        """Show another one.

        Args:
            seen: what was read of it; None while it is read.
            found: where in its log the words are that are looked for.
        """
        shown = (run, id(seen), int(now) if run is not None and run.ended_at is None else 0, found)
        if shown != self._shown:
            self._shown, self._run, self._look, self._now, self._found = shown, run, seen, now, found
            self._trials = None
            if run is not None and seen is not None and seen.trials is not None:
                self._trials = TrialLines()
                self._trials.update(seen.trials, seen.book, run.run)
            self.refresh()

    def render(self) -> Content:
        width, height = self.size
        if self._run is None or width < 1:
            return Content("")
        if width < _BESIDE:
            above = self._left(self._run, width)
            more = self._right(self._run, width, height - len(above) - 1)
            rows = [*above, Content(""), *more]
            return Content("\n").join(row.truncate(width) for row in rows[:height])
        left_width = max(1, int(width * _LEFT) - 2)
        right_width = max(1, width - left_width - 3)
        left, right = self._left(self._run, left_width), self._right(self._run, right_width, height)
        rows = []
        for at in range(min(height, max(len(left), len(right)))):
            cell = left[at].truncate(left_width) if at < len(left) else Content("")
            other = right[at] if at < len(right) else Content("")
            rows.append(Content.assemble(cell.pad_right(left_width - cell.cell_length), ("  ", ""), other))
        return Content("\n").join(rows)

    def _left(self, run: PastRun, width: int) -> list[Content]:
        return [
            Content.styled(line, style)
            for text, style in self._facts(run)
            for line in (textwrap.wrap(text, max(20, width))[:_ERROR] if text else [""])
        ]

    def _facts(self, run: PastRun) -> Iterator[Part]:
        mark = look(run.state)
        yield f"{mark.text} {run.function or '(no run)'}, {duration(run.seconds(self._now))}", mark.style
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.opened_at))
        cost = "" if not run.dollars else f", {money(run.dollars)}"
        ranks = f", {count(run.ranks, run.counted)}" if run.ranks else ""
        yield f"{when} on {run.provider}{ranks}{cost}", "$muted"
        if run.error:
            yield run.error, "$text-error"
        if run.figures_note:
            yield run.figures_note, "$text-warning"
        if self._found is not None:
            yield "", ""
            yield self._found.where, "$text-accent"
            yield f"  {self._found.line}", ""
        if run.script or run.arguments:
            yield "", ""
            yield run.script or "arguments", "$muted"
            for text in run.arguments:
                yield f"  {one_line(text)}", ""
        if self._look is not None and self._look.view is not None:
            yield from _results(self._look.view)

    def _right(self, run: PastRun, width: int, height: int) -> list[Content]:
        seen = self._look
        if seen is None:
            return [Content.styled("reading …", "$muted")] if run.run else []
        if self._trials is not None:
            shown = [self._trials.row(at, width) for at in range(min(len(self._trials), max(0, height - 1)))]
            rows = [self._trials.head(width), *shown]
            room = height - len(rows) - 1
            return [*rows, Content(""), *self._trials.below(width, room)] if room > 0 else rows
        tall = max(_CHART, height // 2 - 1)
        rows = self._chart.rows(seen.book, id(seen), run.run, width, tall)
        room = height - len(rows) - (2 if rows else 1)
        if seen.lines and room > 0:
            rows += [Content("")] if rows else []
            rows.append(Content.styled(f"last lines of rank {seen.rank}", "$muted"))
            rows += [Content(clip(plain(text).rstrip(), width)) for text in list(seen.lines)[-room:]]
        elif not rows:
            rows.append(
                Content.styled("nothing was printed, or nothing of it is kept here any more", "$muted")
            )
        return rows


def _results(run: RunView) -> Iterator[Part]:
    """What ranks gave: numbers together, else each of the first ones."""
    tasks = [task for _, task in sorted(run.tasks.items()) if task.outcome is not None]
    if not tasks:
        return
    yield "", ""
    yield ", ".join(f"{many:,} {look(kind).word}" for kind, many in run.counts.items() if many), "$muted"
    if together := run.aggregate():
        for name, stats in list(together.items())[:_RESULTS]:
            said = "  ".join(f"{each} {number(stats[each])}" for each in _TOGETHER)
            yield f"  {field(name)}  {said}", ""
        return
    for task in tasks[:_RESULTS]:
        yield f"  r{task.rank} {one_line(task_note(task))}", ""
    if len(tasks) > _RESULTS:
        yield f"  and {count(len(tasks) - _RESULTS, 'other')}", "$muted"
