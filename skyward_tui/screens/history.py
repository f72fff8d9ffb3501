"""Screen with past runs, a search in their data and logs, and a preview."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from skyward_core.client.log_search import LineMatch
from skyward_core.client.run_history import (
    COLUMNS,
    PastRun,
    RunPreviewData,
    RunSearch,
    best_runs,
    chosen_columns,
    metric_value,
    sorted_runs,
)
from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.metric_kinds_and_order import main_metric, metric_direction
from skyward_core.views.pool_view import RunView
from skyward_tui.screens.base_screen import BaseScreen, ListScreen
from skyward_tui.text.ansi_colours import plain
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.number_time_and_run_state_format import (
    ago,
    count,
    date_time,
    duration,
    metric_text,
    money,
    number,
    run_status,
)
from skyward_tui.text.queue_trial_and_comparison_rows import task_note
from skyward_tui.text.state_styles import append_block, block_room, state_style
from skyward_tui.text.text_width_tables_and_ascii import clip, one_line
from skyward_tui.ui.actions import bindings, first_key, with_keys
from skyward_tui.ui.session_futures import flash_errors, wait_shielded
from skyward_tui.ui.themes import rank_style, read_style_sheet
from skyward_tui.widgets.metric_charts import overlay, place_runs
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Panel
from skyward_tui.widgets.sweep_table_and_charts import TrialLines
from skyward_tui.widgets.virtual_list import CursorList, Part

if TYPE_CHECKING:
    from textual.timer import Timer

    from skyward_core.client.log_search import LogSearch
    from skyward_tui.ui.saved_state import ScreenState


TYPING_SECONDS = 0.3  # seconds without a key press after which the search in logs starts


class LogSearcher:
    """Search in stored logs, executed step by step and paused while another screen covers the history.

    Args:
        screen: The history screen.

    Attributes:
        matches: First match by run.
        changes: Version number of ``matches``.
    """

    def __init__(self, screen: BaseScreen[None]) -> None:
        self._screen = screen
        self.matches: Mapping[str, LineMatch] = {}
        self.changes = 0
        self._search: LogSearch | None = None
        # search whose next step a worker is executing; None if no worker is active
        self._stepping: LogSearch | None = None
        self._typing: Timer | None = None  # timer that starts a search as soon as the user pauses typing

    @property
    def is_searching(self) -> bool:
        """Whether logs remain to be searched."""
        return self._search is not None and not self._search.done

    def schedule_search(self, search: Callable[[], None]) -> None:
        """Drop the matches so far, and call ``search`` as soon as the user has stopped typing."""
        self.reset()
        if self._typing is not None:
            self._typing.stop()
        self._typing = self._screen.set_timer(TYPING_SECONDS, search)

    def search(self, runs: Sequence[PastRun], words: Sequence[str]) -> None:
        """Search the logs of runs for words, the newest run first."""
        self.reset()
        session = self._screen.app.session
        if session is not None and words and runs:
            self._search = session.search_logs(runs, words)
            self.resume()

    def reset(self) -> None:
        if self._search is not None:
            self._search.cancel()
        self._search, self.matches = None, {}
        self.changes += 1

    def resume(self) -> None:
        """Continue the search, which pauses while another screen covers the history."""
        search = self._search
        if search is not None and search is not self._stepping:
            self._stepping = search
            self._screen.run_worker(self._run_steps(search), group="logs")

    async def _run_steps(self, search: LogSearch) -> None:
        screen = self._screen
        try:
            while search is self._search and not search.done and screen.is_current:
                found = await asyncio.to_thread(search.step)
                if search is self._search and screen.has_widgets:
                    if found:
                        self.matches = {**self.matches, **found}
                        self.changes += 1
                    screen.tick(screen.app.clock())
        except SkywardError as error:
            self.reset()
            screen.flash(format_error(error), "error")
        finally:
            if search is self._stepping:
                self._stepping = None

    def progress(self) -> list[Content]:
        """Return a text about the progress of the search, with the number of unreadable logs."""
        search, parts = self._search, list[Content]()
        if search is None:
            return parts
        if not search.done:
            parts.append(Content.styled(f"searching logs: {search.searched:,} of {search.runs:,}", "$muted"))
        if search.unread:
            parts.append(Content.styled(f"{count(search.unread, 'log')} not readable", "$text-warning"))
        return parts


MAX_MARKED = 8  # maximum number of marked runs, whose metrics are drawn in one chart
# cells; a list narrower than _ROOMY leaves out columns, and a list narrower than _FULL shows ages instead of times
_ROOMY, _FULL = 120, 150
_CELL = 9  # minimum width in cells of the column of a metric
_LEAST_NOTE = 16  # minimum width in cells of the last column, which shows errors


class PastRunList(CursorList[PastRun]):
    """Sortable list of past runs, in which runs can be marked. It chooses columns of arguments and metrics itself."""

    TITLES: Mapping[str, str] = MappingProxyType({"what": "ARGUMENTS / ERROR", "took": "TIME"})
    MARGIN = 4
    sort_column, is_descending = "when", True

    def __init__(self) -> None:
        super().__init__(id="list")
        self.marked: list[str] = []  # IDs of the marked runs, in the order in which the user marked them
        self._found: Sequence[PastRun] = ()
        self._now = 0.0
        self._in_logs: Mapping[str, LineMatch] = {}
        self._metrics: Sequence[str] = ()  # names of the metrics that have a column
        self._arguments: Sequence[str] = ()
        self._best: Mapping[str, Collection[str]] = {}  # by column: IDs of the runs with the column's best value
        self._widest = 0, 0  # cells of the longest pool name and of the longest function name

    def row_id(self, row: PastRun) -> tuple[str, str]:
        return row.run, row.key

    def update(
        self, found: Sequence[PastRun], note: str, now: float, in_logs: Mapping[str, LineMatch] | None = None
    ) -> None:
        """Show past runs in the list.

        Args:
            note: Text shown if there are no runs.
            in_logs: By run: the match in its log.
        """
        self._found, self.note, self._now, self._in_logs = found, note, now, in_logs or {}
        self._metrics, self._arguments = chosen_columns(found)
        self._widest = (
            max((len(run.pool) for run in found), default=0),
            max((len(run.function) for run in found), default=0),
        )
        self._best = {column: best_runs(found, column) for column in self._metrics[::2]}
        chosen = (*self._metrics, *self._arguments)
        self.TITLES = {**PastRunList.TITLES, **{column: _title(column) for column in chosen}}
        self.SORT_COLUMNS = (*COLUMNS[:5], *chosen, *COLUMNS[5:])
        higher = (column for column in self._metrics if metric_direction(column.partition(":")[2]) > 0)
        self.LARGEST_FIRST = ("when", "took", "cost", *higher)
        if self.sort_column not in self.SORT_COLUMNS:
            self.sort_column, self.is_descending = "when", True
        self._sort_again()

    def tick(self, now: float) -> None:
        """Refresh ages, and the durations of unfinished runs, at most once a second."""
        if int(now) != int(self._now):
            self._now = now
            self.refresh()

    def sort(self) -> None:
        self.set_rows(sorted_runs(self._found, self.sort_column, self._now, falling=self.is_descending))

    def toggle_mark(self) -> None:
        if (run := self.chosen) is None or not run.run:
            return
        if run.run in self.marked:
            self.marked.remove(run.run)
        else:
            # at the maximum number of marks, the oldest mark is removed
            self.marked = [*self.marked, run.run][-MAX_MARKED:]
        self.refresh()

    def columns(self, width: int) -> Sequence[tuple[str, int | None]]:
        roomy = width >= _ROOMY
        pool, function = self._widest
        chosen = {column: -max(_CELL, min(len(_title(column)) + 1, 14)) for column in self._metrics}
        chosen |= {column: max(_CELL - 2, min(len(_title(column)) + 1, 14)) for column in self._arguments}
        widths = {
            "when": 16 if width >= _FULL else -8, "run": 10, "pool": max(4, min(pool, 20 if roomy else 12)),
            "function": max(9, min(function, 20 if roomy else 9)), "outcome": 11, "took": -8, "cost": -9, "script": 14,
            **chosen,
        }  # fmt: skip
        # Choose the most important columns that fit, and leave at least _LEAST_NOTE cells for the column with errors.
        order = [self.sort_column, "outcome", "when", "took", "function", *self._metrics[:2], *self._arguments[:1]]
        costs = ["cost"] if any(run.dollars != 0 for run in self._found) else []
        order += ["pool", *costs, *self._metrics[2:4], *self._arguments[1:3], *(["run"] if roomy else []), "script"]
        room, taken = width - self.MARGIN - max(_LEAST_NOTE, width // 5), set[str]()
        for column in dict.fromkeys(order):
            if room >= abs(widths[column]) + 1 or len(taken) < 4:
                room -= abs(widths[column]) + 1
                taken.add(column)
        shown = ("when", "run", *self.SORT_COLUMNS[1:])
        return [*((column, widths[column]) for column in shown if column in taken), ("what", None)]

    def parts(self, row: PastRun, width: int) -> Iterator[Part]:
        in_log, mark = self._in_logs.get(row.run), state_style(row.state)
        columns = dict(self.columns(width))
        when = date_time(row.opened_at)
        shown = {column[4:] for column in columns if column.startswith("arg:")}
        note = one_line(row.note_without(shown)) if in_log is None else in_log.note
        what = _join_notes(note, row.figures_note if in_log is None else "", self.last_width(width))
        arguments = row.named_arguments()
        cells = {
            "when": (when if columns["when"] == 16 else ago(self._now - row.opened_at), "$muted"),
            "run": (row.run, "$muted"),
            "pool": (row.pool, ""),
            "function": (row.function or "(no run)", "bold"),
            "outcome": (mark.text, mark.style),
            "took": (duration(row.seconds(self._now)), ""),
            "cost": ("$?" if row.dollars is None else money(row.dollars) if row.dollars else "", "$muted"),
            "script": (row.script, "$muted"),
            "what": (what, mark.style if row.error and in_log is None else ""),
            **{f"arg:{name}": (one_line(arguments.get(name, "")), "") for name in shown},
        }
        for column in self._metrics:
            value, is_best = metric_value(row, column), row.run in self._best.get(column, ())
            text = "" if value is None else f"{'★ ' if is_best else ''}{number(value)}"
            cells[column] = text, "bold $text-success" if is_best else ""
        yield " ", ""
        is_marked = row.run in self.marked  # the mark has the colour of the run's line in the chart
        yield "◆ " if is_marked else "  ", rank_style(self.marked.index(row.run)) if is_marked else ""
        yield from self.cells(cells, width)


def _title(column: str) -> str:
    """Return the title of a column of an argument or a metric."""
    kind, _, name = column.partition(":")
    return name.lstrip("-").upper() if kind == "arg" else f"{kind} {name}".upper()


def _join_notes(note: str, figures: str, room: int) -> str:
    """Join the error of a run and the metrics of its machine in one line. Each gets at least half of the width."""
    if not (note and figures):
        return clip(note or figures, room)
    return clip(f"{clip(note, max(room // 2, room - len(figures) - 3))} · {figures}", room)


_CHART = 6  # rows of the preview's chart
_RESULTS = 8  # maximum lines for results in the preview
_ERROR = 6  # maximum lines for the root cause of a failure in the preview
_LEFT = 0.4  # share of the preview's width for its left column
_BESIDE = 90  # cells; a preview narrower than this has one column instead of two
_STATISTICS = ("mean", "min", "max")  # statistics that the preview shows for numeric results


class RunPreview(Widget, can_focus=False):
    """Preview of one run. The screen loads the data."""

    DEFAULT_CSS = read_style_sheet(__file__, "run_preview")

    def __init__(self) -> None:
        super().__init__()
        self._shown: object = None
        self._run: PastRun | None = None
        self._preview: RunPreviewData | None = None
        self._match: LineMatch | None = None
        self._now = 0.0
        # table of a sweep's trials, shown instead of the chart; None for other runs
        self._trials: TrialLines | None = None
        self._marked: Mapping[str, RunPreviewData] = {}
        self.by_time = False  # whether the x axis of the chart is the time, also if the runs logged steps

    def update(
        self,
        run: PastRun | None,
        data: RunPreviewData | None,
        now: float,
        match: LineMatch | None = None,
        marked: Mapping[str, RunPreviewData] = MappingProxyType({}),
    ) -> None:
        """Show the preview of a run.

        Args:
            data: Stored data of the run; None while it is being read.
            match: Match of the search in the run's log.
            marked: Stored data of the marked runs, whose main metric is drawn in one chart if there are several.
        """
        at = int(now) if run is not None and run.ended_at is None else 0
        shown = (run, id(data), at, match, [(each, id(of)) for each, of in marked.items()])
        if shown != self._shown:
            self._shown, self._run, self._preview, self._now, self._match = shown, run, data, now, match
            self._marked = marked
            self._trials = None
            if run is not None and data is not None and data.trials is not None:
                self._trials = TrialLines()
                self._trials.update(data.trials, data.book, run.run)
            self.refresh()

    def render(self) -> Content:
        width, height = self.size
        if self._run is None or width < 1:
            return Content("")
        if width < _BESIDE:
            above = [] if overlaid_runs(self._marked, width, height, 2) else self._left_column(self._run, width)
            rows = [*above, Content(""), *self._right_column(self._run, width, height - len(above) - 1)]
            return Content("\n").join(row.truncate(width) for row in rows[:height])
        left_width = max(1, int(width * _LEFT) - 2)
        right_width = max(1, width - left_width - 3)
        left, right = self._left_column(self._run, left_width), self._right_column(self._run, right_width, height)
        rows = []
        for at in range(min(height, max(len(left), len(right)))):
            cell = left[at].truncate(left_width) if at < len(left) else Content("")
            other = right[at] if at < len(right) else Content("")
            rows.append(Content.assemble(cell.pad_right(left_width - cell.cell_length), ("  ", ""), other))
        return Content("\n").join(rows)

    def _left_column(self, run: PastRun, width: int) -> list[Content]:
        return [
            Content.styled(line, style)
            for text, style in self._facts(run)
            for line in (textwrap.wrap(text, max(20, width))[:_ERROR] if text else [""])
        ]

    def _facts(self, run: PastRun) -> Iterator[Part]:
        mark = state_style(run.state)
        yield f"{mark.text} {run.function or '(no run)'}, {duration(run.seconds(self._now))}", mark.style
        when = date_time(run.opened_at)
        cost = "" if not run.dollars else f", {money(run.dollars)}"
        ranks = f", {count(run.ranks, run.counted)}" if run.ranks else ""
        yield f"{when} on {run.provider}{ranks}{cost}", "$muted"
        if run.user_note:
            yield run.user_note, "$text-accent"
        if run.error:
            yield run.error, "$text-error"
        if run.figures_note:
            yield run.figures_note, "$text-warning"
        if self._match is not None:
            yield "", ""
            yield self._match.location_text, "$text-accent"
            yield f"  {self._match.line}", ""
        if run.script or run.arguments:
            yield "", ""
            yield run.script or "arguments", "$muted"
            yield from ((f"  {one_line(text)}", "") for text in run.arguments)
        if self._preview is not None and self._preview.view is not None:
            yield from _results(self._preview.view)

    def _right_column(self, run: PastRun, width: int, height: int) -> list[Content]:
        data = self._preview
        if overlay := overlaid_runs(self._marked, width, max(_CHART, height), 2, by_time=self.by_time):
            return overlay
        if data is None:
            return [Content.styled("reading …", "$muted")] if run.run else []
        if self._trials is not None:
            shown = [self._trials.row(at, width) for at in range(min(len(self._trials), max(0, height - 1)))]
            rows = [self._trials.head(width), *shown]
            room = height - len(rows) - 1
            return [*rows, Content(""), *self._trials.chart_rows(width, room)] if room > 0 else rows
        rows = overlaid_runs({run.run: data}, width, max(_CHART, height // 2), by_time=self.by_time)
        room = block_room(rows, height)
        printed = [plain(text).rstrip() for text in list(data.lines)[-room:]] if room > 0 else []
        append_block(rows, f"last lines of rank {data.rank}", printed, width)
        if not rows:
            rows.append(Content.styled("no output, or its log is no longer stored", "$muted"))
        return rows


def overlaid_runs(
    data: Mapping[str, RunPreviewData], width: int, height: int, least: int = 1, *, by_time: bool = False
) -> list[Content]:
    """Return a chart of the main metric of runs, with a legend. The x axis is the step if all runs logged it, else the
    seconds since the first value. Empty if fewer than ``least`` runs have logged the metric.
    """
    names = [name for run, each in data.items() for name in each.book.sorted_names(run)[0]]
    metric = main_metric(names) or next(iter(names), "")
    traces = {run: each.book.first_trace(run, metric) for run, each in data.items() if metric}
    traces = {run: trace for run, trace in traces.items() if trace.values}
    lines = {run: (data[run].book, each.at[0], list(zip(*each, strict=True))) for run, each in traces.items()}
    axis, curves = place_runs(lines, by_time=by_time)
    styles = [rank_style(place) for place, run in enumerate(data) if run in traces]
    lasts = [metric_text(metric, data[run].book.run_value(run, metric)) for run in traces]
    legend = [
        Content.assemble(("━ ", style), f"{run}  ", (last, "$muted"))
        for style, run, last in zip(styles, traces, lasts, strict=True)
    ]
    legend = legend[: max(1, height - _CHART)]  # the marks in the list have the same colours
    chart = overlay(curves, styles, width, height - len(legend), axis) if len(curves) >= least else []
    return [*legend, *chart] if chart else []


def _results(run: RunView) -> Iterator[Part]:
    """Yield the statistics of numeric results; if results are not numeric, the first results."""
    tasks = [task for _, task in sorted(run.tasks.items()) if task.outcome is not None]
    if not tasks:
        return
    yield "", ""
    yield ", ".join(f"{many:,} {state_style(kind).word}" for kind, many in run.counts.items() if many), "$muted"
    if aggregate := run.aggregate():
        for name, stats in list(aggregate.items())[:_RESULTS]:
            text = "  ".join(f"{each} {number(stats[each])}" for each in _STATISTICS)
            yield f"  {sanitize_line(name)}  {text}", ""
        return
    yield from ((f"  r{task.rank} {one_line(task_note(task))}", "") for task in tasks[:_RESULTS])
    if len(tasks) > _RESULTS:
        yield f"  and {count(len(tasks) - _RESULTS, 'other')}", "$muted"


_NO_RUN = "No runs yet. {pools.new} on the list of pools: launch a script."
REST_SECONDS = 0.15  # seconds without cursor movement after which the preview of the selected run is loaded
MAX_PREVIEWS = 64  # maximum number of previews in the cache
_AROUND = 2  # rows of the screen above and below the list and the preview: breadcrumbs and hint line
_HEAD = 3  # rows of the list's border and column titles
_LEAST = 8  # minimum rows of the preview below a list that gets all the rows it needs
# minimum height and width of a screen on which a long list gets only the share _PART of the rows, so that the preview
# fits
_TALL, _WIDE, _PART = 30, 100, 0.45
REFRESH_SECONDS = 2.0  # seconds; minimum interval between two reads of the ledger while runs start and end


class HistoryScreen(ListScreen[PastRunList]):
    """Screen with past runs. Reads the ledger when the screen opens, and after a run has started or ended.

    Args:
        inbox: Whether to show only recent undismissed failures, of all pools.
    """

    SCOPE = "history"
    BINDINGS = bindings("history")
    DEFAULT_CSS = read_style_sheet(__file__)
    WORDS = "words: pool, function, script, argument, error, log"

    def __init__(self, *, inbox: bool = False) -> None:
        super().__init__(PastRunList())
        self._shows_failures = inbox
        self._runs: list[PastRun] = []
        self._search = RunSearch()
        self._failed = ""
        self._read_at: float | None = None
        self._shown: object = None
        self._seen: object = None  # value of ``_runs_token`` at the last read of the ledger
        self._log_searcher = LogSearcher(self)
        self._previews: dict[str, RunPreviewData] = {}  # by run ID: cached data of the run's preview
        self._previewed: PastRun | None = None  # run whose preview is shown, or is to be loaded
        self._rest: Timer | None = None  # timer that loads a preview once the cursor no longer moves

    def body(self) -> ComposeResult:
        yield Panel(self.listed, id="runs", title=self._title)
        self._preview_pane = RunPreview()
        yield Panel(self._preview_pane, id="look", title="details")
        yield self.words_line()

    def on_mount(self) -> None:
        self._read()

    @property
    def _title(self) -> str:
        return "failures" if self._shows_failures else "history"

    @property
    def reopen_state(self) -> ScreenState:
        return {"screen": self.SCOPE, "inbox": self._shows_failures}

    @property
    def first_hints(self) -> Sequence[str]:
        return ("history.compare",) if len(self.listed.marked) > 1 else ()

    def time_token(self, now: float) -> object:
        is_active = any(run.ended_at is None for run in self._runs) or self._runs_token() != self._seen
        return int(now) if is_active else super().time_token(now)

    def tick(self, now: float) -> None:
        listed = self.listed
        if self._read_at is not None and now - self._read_at > REFRESH_SECONDS and self._runs_token() != self._seen:
            self._read()
        logs = self._log_searcher
        state = id(self._runs), self._search, self._failed, self._read_at, logs.changes, logs.is_searching
        if state != self._shown:
            self._shown = state
            listed.update(list(filter(self._is_match, self._runs)), self._note(), now, logs.matches)
        else:
            listed.tick(now)
        self._layout_preview(len(listed.rows))
        self.query_one(Breadcrumbs).update_trail(["pools", self._title], self._status(len(listed.rows)))
        self._show_preview(listed.chosen, now)
        super().tick(now)

    def _is_match(self, run: PastRun) -> bool:
        return self._search.matches(run) or (
            run.run in self._log_searcher.matches and self._search.matches_filters(run)
        )

    def _layout_preview(self, runs: int) -> None:
        """Give the list the rows that it needs and the preview the remaining rows, if both fit."""
        room, needed = self.size.height - _AROUND, runs + _HEAD
        is_large = self.size.height >= _TALL and self.size.width >= _WIDE
        shows_chart = len(self.listed.marked) > 1
        most = max(needed if needed + _LEAST <= room else 0, int(room * _PART) if is_large or shows_chart else 0)
        is_shown = bool(runs and most)
        self.query_one("#look").display = is_shown
        self.query_one("#runs").styles.height = max(_HEAD + 1, min(needed, most)) if is_shown else "1fr"

    def _show_preview(self, chosen: PastRun | None, now: float) -> None:
        """Show the preview of the selected run. Data that is not cached is loaded as soon as the cursor rests."""
        if not self.query_one("#look").display:
            return
        run = "" if chosen is None else chosen.run
        marked = {each: self._previews[each] for each in self.listed.marked if each in self._previews}
        marked = marked if len(marked) > 1 else {}
        self._preview_pane.update(chosen, self._previews.get(run), now, self._log_searcher.matches.get(run), marked)
        if chosen == self._previewed:
            return
        self._previewed = chosen
        if self._rest is not None:
            self._rest.stop()
        missing = {run, *self.listed.marked} - self._previews.keys()
        if chosen is not None and run and (missing or chosen.ended_at is None):
            self._rest = self.set_timer(REST_SECONDS, partial(self._fetch_preview, run))

    @work(group="look", exclusive=True)
    async def _fetch_preview(self, run: str) -> None:
        with flash_errors(self.app):
            for each in {run, *(set(self.listed.marked) - self._previews.keys())}:
                data = await wait_shielded(self.app.required_session.preview_run(each))
                self._previews = {**dict(list(self._previews.items())[-MAX_PREVIEWS:]), each: data}
            if self.has_widgets:
                self.tick(self.app.clock())

    def _status(self, shown: int) -> list[Content]:
        parts = [Content.styled(f"{shown:,} of {count(len(self._runs), 'run')}", "$muted")]
        if failed := sum(run.has_failed for run in self._runs):
            parts.insert(0, Content.styled(f"✗ {failed:,} failed", "$text-error"))
        if self._search.failed:
            parts.append(Content.styled("only failures", "$text-warning"))
        if self._search.words:
            parts.append(Content.styled(f"with: {' '.join(self._search.words)}", "$text-warning"))
        return parts + self._log_searcher.progress()

    def _runs_token(self) -> object:
        """Return a value that changes when a run starts or ends."""
        pools = self.app.pools()
        runs = [(run.id, run_status(pool, run)[0]) for pool in pools if not pool.is_over for run in pool.runs.values()]
        return len(pools), runs

    def _note(self) -> str:
        if self._failed:
            return f"✗ {self._failed}"
        if self._read_at is None:
            return "loading past runs …"
        if self._log_searcher.is_searching:
            return "no matching run yet; searching the logs …"
        if self._runs:
            return "no matching run; change or clear the filter"
        if self._shows_failures:
            return "No undismissed failures."
        return with_keys(_NO_RUN, self.app.keys)

    @work(group="history", exclusive=True)
    async def _read(self, *, search_logs: bool = False) -> None:
        self._seen = self._runs_token()
        try:
            session = self.app.required_session
            future = session.failures() if self._shows_failures else session.past_runs(RunSearch())
            self._runs, self._failed = await wait_shielded(future), ""
        except SkywardError as error:
            self._failed = format_error(error)
        self._read_at = self.app.clock()
        if search_logs:
            self._search_logs()
        if self.has_widgets:
            self.tick(self.app.clock())

    # Search in past runs and their logs

    def on_input_changed(self, event: Input.Changed) -> None:
        self._search = RunSearch(tuple(event.value.split()), self._search.failed)
        self._log_searcher.schedule_search(self._search_logs)
        self.tick(self.app.clock())

    def _search_logs(self) -> None:
        self._log_searcher.search(self._runs, self._search.words)

    def on_screen_resume(self) -> None:
        self._log_searcher.resume()
        if self._read_at is not None:
            self.tick(self.app.clock())

    def on_unmount(self) -> None:
        self._log_searcher.reset()

    def action_failed(self) -> None:
        self._search = RunSearch(self._search.words, not self._search.failed)
        self.tick(self.app.clock())

    # Actions of the history screen

    def command_fields(self) -> Mapping[str, str]:
        run = self.listed.chosen
        return {} if run is None else {"pool": run.pool, "run": run.run, "script": run.script}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen, has_runs = self.listed.chosen, bool(self._runs)
        return {
            "note": chosen is not None and bool(chosen.run),
            "failed": has_runs and not self._shows_failures,
            **dict.fromkeys(("find", "compare", "sort", "turn"), has_runs),
            **dict.fromkeys(("open", "mark", "launch_again"), chosen is not None),
            **dict.fromkeys(("dismiss_chosen", "dismiss_all"), chosen is not None and self._shows_failures),
        }.get(action, True)

    def action_compare(self) -> None:
        marked = self.listed.marked
        if len(marked) < 2:
            return self.flash(f"mark two runs to compare ({first_key('history.mark', self.app.keys)}: mark)")
        self.app.show_comparison(*marked[-2:])

    def action_axis(self) -> None:
        self._preview_pane.by_time = not self._preview_pane.by_time
        self._preview_pane.refresh()

    @work(group="note", exclusive=True)
    async def action_note(self) -> None:
        """Ask the user for a note, and save it with the selected run."""
        if (chosen := self.listed.chosen) is None:
            return
        text = await self.app.ask(f"Note of run {chosen.run} (words that begin with # are tags)", chosen.user_note)
        if text is not None:
            with flash_errors(self.app, "could not save the note: "):
                await wait_shielded(self.app.required_session.set_note(chosen.run, text))
                self._read()

    def action_dismiss_chosen(self) -> None:
        if (chosen := self.listed.chosen) is not None:
            self._dismiss([chosen.id])

    def action_dismiss_all(self) -> None:
        self._dismiss([run.id for run in self.listed.rows])

    @work(group="dismiss")
    async def _dismiss(self, runs: list[str]) -> None:
        with flash_errors(self.app, "could not dismiss the failure: "):
            await wait_shielded(self.app.required_session.dismiss(runs))
            self._read()
            self.app.count_failures()

    def action_open(self) -> None:
        if (chosen := self.listed.chosen) is not None:
            self.app.show_run(chosen.key, chosen.run, self._log_searcher.matches.get(chosen.run))

    def action_launch_again(self) -> None:
        if (chosen := self.listed.chosen) is not None:
            self.app.launch_again(chosen.key, chosen.run)

    def action_again(self) -> None:
        self._read(search_logs=True)
        self.flash("loading past runs …")

    def action_back(self) -> None:
        """Clear the filter. Without a filter, leave the screen."""
        if not self.stop_finding():
            self.dismiss()
