"""Screen that compares two runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget

from skyward_core.views.metric_kinds_and_order import COUNTERS
from skyward_tui.screens.base_screen import BaseScreen
from skyward_tui.text.number_time_and_run_state_format import number
from skyward_tui.text.queue_trial_and_comparison_rows import ComparedLine, comparison_lines, task_note
from skyward_tui.text.text_width_tables_and_ascii import clip, fit_width
from skyward_tui.ui.actions import bindings, first_key
from skyward_tui.ui.session_futures import flash_errors, wait_shielded
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.metric_charts import Points, overlay, place_runs
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Panel
from skyward_tui.widgets.virtual_list import VirtualList

if TYPE_CHECKING:
    from skyward_core.client.run_comparison import Comparison


MAX_DIFF_LINES = 2000  # maximum lines of the diff of scripts that the dialog shows
DIFF_STYLES = {"+": "$text-success", "-": "$text-error", "@": "$text-accent"}  # by the first character of a line
LEFT, RIGHT = 1, 2  # indices in STYLES of the styles of the left run and of the right run
STYLES = ("", "$text-accent", "$text-warning")


class ComparisonList(VirtualList[ComparedLine]):
    """Rows of the comparison, with differences marked. ``name_shown`` is the name of the metric in the chart."""

    def __init__(self) -> None:
        super().__init__(id="rows")
        self.names: list[str] = []
        self.name_shown = ""

    def update(self, lines: Sequence[ComparedLine], names: Sequence[str]) -> None:
        """Show the rows of a comparison.

        Args:
            names: Metrics that can be charted.
        """
        self.rows, self.names = list(lines), list(names)
        if self.name_shown not in self.names:
            curves = (name for name in self.names if name.lower() not in COUNTERS)
            self.name_shown = next(curves, next(iter(names), ""))
        self.refresh()

    def select_metric(self, steps: int) -> None:
        """Select the next or previous metric for the chart."""
        if self.names:
            self.name_shown = self.names[(self.names.index(self.name_shown) + steps) % len(self.names)]
            self.refresh()

    def row(self, index: int, width: int) -> Content:
        line = self.rows[index]
        if line.is_heading:
            return Content.styled(clip(f" {line.name}", width), "bold $text-accent")
        name = min(18, max(cell_len(each.name) for each in self.rows if not each.is_heading))
        side = max(8, (width - name - 6) // 2)
        mark = "≠" if line.differs and line.name else " "
        drawn = line.name == self.name_shown and line.name in self.names
        left, right = (f"{fit_width(text, side - 1)} " for text in (line.left, line.right))
        plain = "bold" if line.differs else "$muted"
        styles = (plain, plain) if line.name else (f"bold {STYLES[LEFT]}", f"bold {STYLES[RIGHT]}")
        return Content.assemble(
            (f" {fit_width(line.name, name)} ", "bold $text-accent" if drawn else ""),
            (f"{mark} ", "$text-warning"),
            (left, styles[0]),
            (clip(right.rstrip(), max(0, width - name - 4 - side)), styles[1]),
        )


def different_lines(lines: Sequence[ComparedLine]) -> list[ComparedLine]:
    """Leave out lines with equal values, and headings of sections without a difference."""
    kept = [line for line in lines if line.differs or line.is_heading or not line.name]
    end = ComparedLine("", is_heading=True)
    return [line for line, after in pairwise([*kept, end]) if not (line.is_heading and after.is_heading)]


class CurveComparison(Widget):
    """Chart of one metric of both runs, by step or by the time since the start of each run."""

    DEFAULT_CSS = read_style_sheet(__file__, "curve_comparison")

    def __init__(self) -> None:
        super().__init__(id="curves")
        self._curves: Sequence[Points] = ()
        self._note = self._axis = ""

    def show(self, curves: Sequence[Points], axis: str, note: str) -> None:
        """Show a metric's curves of two runs.

        Args:
            axis: Name of the counter on the x axis; "" for seconds.
            note: Text shown if there is nothing to draw.
        """
        self._curves, self._axis, self._note = curves, axis, note
        self.refresh()

    def render(self) -> Content:
        width, height = self.size
        drawn = overlay(self._curves, STYLES[LEFT:], width, height, self._axis)
        return Content("\n").join(drawn) if drawn else Content(clip(f" {self._note}", max(0, width)))


class CompareScreen(BaseScreen[None]):
    """Comparison of two runs, which are loaded when the screen opens.

    Args:
        left, right: IDs of the runs.
    """

    SCOPE = "compare"
    BINDINGS = bindings("compare")
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self, left: str, right: str) -> None:
        super().__init__()
        self._ids = left, right
        self._comparison: Comparison | None = None
        self._by_time = self._hides_equal = False

    def body(self) -> ComposeResult:
        yield Panel(ComparisonList(), id="both", title="two runs")
        yield Panel(CurveComparison(), id="chart", title="metrics")

    def on_mount(self) -> None:
        self.query_one(ComparisonList).focus()
        self._load()
        self.tick(self.app.clock())

    def tick(self, now: float) -> None:
        runs = [
            Content.styled(f"━ {run}", f"bold {style}") for style, run in zip(STYLES[LEFT:], self._ids, strict=True)
        ]
        self.query_one(Breadcrumbs).update_trail(["pools", "history", "compare"], runs)
        super().tick(now)

    @work(group="compare", exclusive=True)
    async def _load(self) -> None:
        with flash_errors(self.app):
            self._comparison = await wait_shielded(self.app.required_session.compare(*self._ids))
            if self.has_widgets:
                self._show()

    def _show(self) -> None:
        comparison = self._comparison
        if comparison is None:
            return
        listed = self.query_one(ComparisonList)
        names = [row.name for row in comparison.numbers()]
        shown = self._lines(comparison)
        listed.update(different_lines(shown) if self._hides_equal else shown, names)
        self.query_one("#both", Panel).border_title = "differences" if self._hides_equal else "two runs"
        name = listed.name_shown
        runs = comparison.left, comparison.right
        lines = {each.past.run: (each.book, each.past.opened_at, each.curve(name)) for each in runs}
        axis, curves = place_runs(lines, by_time=self._by_time)
        # The title names the final value of each run, because colours alone would not identify the curves on all
        # terminals.
        ends = [
            f"{each.past.run} ends at {number(summary.last)}"
            for each in runs
            if (summary := each.numbers.get(name)) is not None and summary.last is not None
        ]
        title = f"{name}: {', '.join(ends)}" if ends else name or "metrics"
        self.query_one("#chart", Panel).border_title = title
        note = "neither run logged metrics" if not names else "these metrics are no longer stored"
        self.query_one(CurveComparison).show(curves, axis, note)

    def _lines(self, comparison: Comparison) -> list[ComparedLine]:
        hint = f"{first_key('compare.diff', self.app.keys)} shows them"
        return list(comparison_lines(comparison, self.app.clock(), task_note, hint))

    def action_number(self, steps: int) -> None:
        self.query_one(ComparisonList).select_metric(steps)
        self._show()

    def action_equal(self) -> None:
        self._hides_equal = not self._hides_equal
        self._show()

    def action_axis(self) -> None:
        self._by_time = not self._by_time
        self._show()

    def action_diff(self) -> None:
        if (found := self._comparison) is None:
            return
        if not found.script_diff:
            return self.flash(found.no_diff_reason)
        lines = list(found.script_diff[:MAX_DIFF_LINES])
        if (hidden := len(found.script_diff) - len(lines)) > 0:
            lines.append(f"… {hidden:,} more lines. Print all with: skyward-tui compare {' '.join(self._ids)} --diff")
        self.app.show_differences(f"script text: {found.diff_summary}", lines, DIFF_STYLES)

    def action_copy(self) -> None:
        if self._comparison is not None:
            lines = self._lines(self._comparison)
            self.app.copy("\n".join("\t".join((line.name, line.left, line.right)) for line in lines), "comparison")
