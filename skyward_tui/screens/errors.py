"""Screen with the failures of a run: root cause, tracebacks, source, and what happened before each failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from skyward_core.model.outcomes_states_and_alerts import Outcome, signal_name
from skyward_core.model.thread_stacks import StackFrame
from skyward_core.views import group_pairs
from skyward_core.views.machine_metrics import (
    LATE_ERROR_SECONDS,
    FailureMetrics,
    MachineView,
    MetricHistory,
    memory_share,
)
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.stack_groups_and_profiles import format_ranges, is_library, short_file
from skyward_tui.screens.base_screen import BaseScreen
from skyward_tui.source_lookup_and_editor import (
    SourceFile,
    find_source,
    open_in_editor,
    source_folders,
    source_positions,
)
from skyward_tui.text.error_hint_text import failure_hints
from skyward_tui.text.hardware_and_offer_cells import metrics_line
from skyward_tui.text.number_time_and_run_state_format import duration, failure
from skyward_tui.text.rank_states_from_views import last_lines
from skyward_tui.text.state_styles import append_block, block_room, state_style
from skyward_tui.text.text_width_tables_and_ascii import one_line
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.form_fields import OptionRows
from skyward_tui.widgets.metric_charts import curve
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Panel
from skyward_tui.widgets.source_view import CodePosition, StackCode

CURVE_SECONDS = 600.0  # seconds before a failure that the curves of machine metrics cover
_ROWS, _ROWS_TALL, _TALL = 3, 5, 34  # rows of a curve; rows of a curve in a tall panel; minimum rows of a tall panel
_LEAST_LOG = 6  # minimum rows of the log; if they do not fit, a curve is left out
_PERCENT = (0.0, 100.0)

Line = Sequence[tuple[float, float]]


class FailureContextView(Widget, can_focus=False):
    """Machine metrics and output just before one rank's failure."""

    DEFAULT_CSS = read_style_sheet(__file__, "failure_context")

    def __init__(self) -> None:
        super().__init__()
        self._subject: tuple[PoolView, RunView, Outcome] | None = None

    def show(self, pool: PoolView | None, run: RunView, outcome: Outcome) -> None:
        """Show the machine metrics and the output that preceded another failure."""
        self._subject = None if pool is None else (pool, run, outcome)
        self.refresh()

    def render(self) -> Content:
        width, height = self.size
        if self._subject is None or width < 1:
            return Content("")
        pool, run, outcome = self._subject
        rows: list[Content] = []
        for name, line in _figures(pool, run, outcome):
            drawn = curve(line, width, _ROWS_TALL if height >= _TALL else _ROWS, part_of=_PERCENT)
            if drawn and height - len(rows) - len(drawn) - 1 >= _LEAST_LOG:
                rows += [Content.assemble((name, "$muted"), (f"  {line[-1][1]:.0f} %", "bold")), *drawn]
        rank, ranks = outcome.rank, dict(pool.logs.for_run(run.id).ranks) if pool.logs.has(run.id) else {}
        printed = last_lines(pool, run, rank, block_room(rows, height))
        append_block(rows, f"last lines of rank {rank}", printed, width)
        if any(ring.end for other, ring in ranks.items() if other != rank):
            others = last_lines(pool, run, None, block_room(rows, height))
            append_block(rows, "last lines of all ranks", others, width)
        if not rows:
            rows.append(Content.styled("no machine metrics and no output before the failure", "$muted"))
        return Content("\n").join(rows[:height])


def _figures(pool: PoolView, run: RunView, outcome: Outcome) -> Iterator[tuple[str, Line]]:
    machine = pool.machines.nodes.get(outcome.node) if pool.machines is not None else None
    if machine is None:
        return
    figures = run.figures.get(outcome.node)
    until = machine.host.latest_at if figures is None else figures.failed_at + LATE_ERROR_SECONDS
    for name, line in _lines(outcome.node, machine):
        if near := [(at, value) for at, value in line if until - CURVE_SECONDS <= at <= until]:
            yield name, near


def _lines(node: int, machine: MachineView) -> Iterator[tuple[str, Line]]:
    yield f"memory of n{node}", _percent_curve(machine.host, "memory_used", "memory_total")
    if machine.gpus:
        number, fullest = max(enumerate(machine.gpus), key=lambda each: memory_share(each[1].latest))
        yield f"memory of GPU {number}", _percent_curve(fullest, "mem_used", "mem_total")
        yield f"utilization of GPU {number}", _points(fullest, "util")
    yield f"CPU of n{node}", _points(machine.host, "cpu")


def _points(track: MetricHistory, name: str) -> Line:
    return list(zip(*track.trace(name), strict=True))


def _percent_curve(track: MetricHistory, used: str, whole: str) -> Line:
    total = track.latest.get(whole)
    return [(at, 100 * value / total) for at, value in _points(track, used)] if total else []


_BESIDE = 120  # cells; a screen at least this wide also shows metrics and output, beside the traceback
_FRAMES = 3  # number of innermost frames of a traceback for which the source code is shown
_ORDER = ("raised", "exited", "lost", "collateral")


def failures(run: RunView) -> list[Outcome]:
    """Return all outcomes except successful ones: first the root cause, last the ranks that were stopped because of
    it."""
    root = run.root_cause.rank if run.root_cause else None
    failed = [outcome for outcome in run.outcomes() if outcome.kind != "returned"]
    return sorted(failed, key=lambda o: (o.rank != root or o.kind == "collateral", _ORDER.index(o.kind), o.index))


def failure_report(outcome: Outcome, figures: FailureMetrics | None = None, hints: Sequence[str] = ()) -> str:
    """Return a failure as text, with the last machine metrics before it, and advice."""
    state, seconds = state_style(outcome.kind).word, duration(outcome.seconds, precise=True)
    head = f"rank {outcome.rank} on node {outcome.node} {state} after {seconds}"
    if outcome.signal is not None:
        head += f", ended by {signal_name(outcome.signal)}"
    elif outcome.exit_code is not None:
        head += f", exit status {outcome.exit_code}"
    if figures is not None:
        head += f"\n{metrics_line(figures)}"
    head = "\n".join([head, *hints])
    if outcome.error is None:
        return head
    error = failure(outcome.kind, outcome.error.type, outcome.error.message)
    return "\n\n".join(part for part in (head, error, outcome.error.traceback.strip()) if part)


class ErrorsScreen(BaseScreen[int | None]):
    """Failures of a run. Returns the rank whose log the user wants to open, or None."""

    SCOPE = "errors"
    BINDINGS = bindings("errors")
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self, run: RunView) -> None:
        super().__init__()
        # Ranks that failed equally share a row, except the root cause.
        found = [((not at, o.kind, o.signal, o.exit_code, o.error), o) for at, o in enumerate(failures(run))]
        self._groups = list(group_pairs(found).values())
        self._run = run
        self._shown_report = ""

    def body(self) -> ComposeResult:
        rows = (Option(self._row(group, first=i == 0), id=str(i)) for i, group in enumerate(self._groups))
        yield Panel(OptionRows(*rows, compact=True), id="failed", title="failures")
        self._code = StackCode(id="code")
        trace = Panel(VerticalScroll(Static(id="traceback")), self._code, id="trace", title="traceback")
        self._before = FailureContextView()
        yield Horizontal(trace, Panel(self._before, id="before", title="just before"), id="sides")

    def _row(self, group: Sequence[Outcome], *, first: bool) -> Content:
        outcome, mark = group[0], state_style(group[0].kind)
        cause = first and self._run.root_cause is not None
        dim = outcome.kind == "collateral"
        ranks, nodes = [each.rank for each in group], [each.node for each in group]
        error = outcome.error
        text = failure(outcome.kind, error.type, one_line(error.message)) if error else ""
        if outcome.signal is not None and signal_name(outcome.signal) not in text:
            text = f"{signal_name(outcome.signal)}: {text}".rstrip(": ")
        return Content.assemble(
            (" ROOT CAUSE " if cause else "            ", "bold $text-error" if cause else ""),
            (f" {format_ranges(ranks, 'r'):<4} {format_ranges(nodes, 'n'):<4} ", "$muted" if dim else "bold"),
            (f"{mark.text:<14}", mark.style),
            (text, "$muted" if dim else ""),
        )

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._show(self._groups[0][0])
        self.tick(self.app.clock())

    def on_resize(self) -> None:
        self.set_class(self.size.width >= _BESIDE, "-beside")

    def tick(self, now: float) -> None:
        counts = [
            Content.styled(f"{state_style(kind).glyph} {many} {state_style(kind).word}", state_style(kind).style)
            for kind in _ORDER
            if (many := self._run.counts.get(kind))
        ]
        self.query_one(Breadcrumbs).update_trail(["pools", self._run.pool, self._run.function, "errors"], counts)
        # The report of a failure can change later, for example if the kernel's log reports a GPU error.
        if self._shown_report != self._failure_report(self._chosen):
            self._show(self._chosen)
        super().tick(now)

    @property
    def _chosen(self) -> Outcome:
        return self._groups[self.query_one(OptionList).highlighted or 0][0]

    def _show(self, outcome: Outcome) -> None:
        self.query_one("#trace").border_title = f"rank {outcome.rank}"
        self._shown_report = self._failure_report(outcome)
        self.query_one("#traceback", Static).update(Content(self._shown_report))
        pool = next((each for each in self.app.pools() if self._run.id in each.runs), None)
        self._before.show(pool, self._run, outcome)
        self.run_worker(self._show_code(outcome), group="code", exclusive=True)

    async def _show_code(self, outcome: Outcome) -> None:
        """Show the user's source lines at the failure, innermost frame first, if the files are on this machine."""
        locations = [] if outcome.error is None else list(source_positions(outcome.error.traceback.splitlines()))
        frames = [StackFrame("", name, line) for name, line in dict.fromkeys(locations) if not is_library(name)]
        folders = await source_folders(self.app, self._run)
        sources = await asyncio.to_thread(lambda: [find_source(frame, folders) for frame in frames[:_FRAMES]])
        if self.has_widgets:
            positions = [
                CodePosition(self._head_of(frame, source, folders), source)
                for frame, source in zip(frames, sources, strict=False)
                if source is not None
            ]
            self._code.update(positions)
            self.query_one("#trace").set_class(bool(positions), "-code")

    def _head_of(self, frame: StackFrame, source: SourceFile, folders: Sequence[Path]) -> Content:
        place = f"{short_file(frame.file, tuple(map(str, folders)))}:{frame.line}"
        changed = source.changed_at > self._run.opened_at
        return Content.assemble(
            (place, "$text-accent"), ("  ! file changed since the run began" if changed else "", "$text-warning")
        )

    def _failure_report(self, outcome: Outcome) -> str:
        figures = self._run.figures.get(outcome.node) if outcome.kind != "collateral" else None
        return failure_report(outcome, figures, failure_hints(self._run) if outcome is self._groups[0][0] else ())

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._show(self._groups[event.option_index][0])

    def on_option_list_option_selected(self) -> None:
        self.action_log()

    def action_log(self) -> None:
        self.dismiss(self._chosen.rank)

    def action_copy(self) -> None:
        self.app.copy(self._failure_report(self._chosen), "traceback")

    def action_editor(self) -> None:
        lines = self._failure_report(self._chosen).splitlines()
        self.run_worker(open_in_editor(self.app, self._run, lines), group="editor", exclusive=True)
