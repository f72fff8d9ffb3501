"""Panel with the results of a run, the trials of a sweep, and the files that ranks wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual import work
from textual.content import Content

from skyward_core.model.errors import NoTrials, SkywardError
from skyward_core.model.output_files import WrittenFile
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.util.safe_file_access import expand_user
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import PoolView, RunView, TaskView
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.result_comparison import compare_results, find_disagreements
from skyward_tui.panels.panel import PanelExport, RunPanel, RunSelection
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.number_time_and_run_state_format import ago, count, duration, failure, number
from skyward_tui.text.queue_trial_and_comparison_rows import difference_table, parse_rank_pair, scalar_text, task_note
from skyward_tui.text.rank_states_from_views import find_paused
from skyward_tui.text.state_styles import FAILURES, state_style
from skyward_tui.text.text_width_tables_and_ascii import clip, fit_width, one_line
from skyward_tui.ui.actions import first_key
from skyward_tui.ui.run_screen_panel_list_and_layout import PanelSpec
from skyward_tui.ui.session_futures import flash_errors
from skyward_tui.widgets.sweep_table_and_charts import TrialLines
from skyward_tui.widgets.virtual_list import VirtualList

if TYPE_CHECKING:
    from concurrent.futures import Future

    from skyward_core.client.session_interface import FileListing
    from skyward_core.views.sweep_argument_combinations import TrialSheet
    from skyward_core.views.sweep_trials import TrialTableSource

# seconds between two listings of the files that ranks wrote; each listing sends a request to every node
LISTING_SECONDS = 5.0
# maximum number of results whose values are aligned in columns; comparing the keys of more results takes too long
MOST_ALIGNED = 256
# maximum number of keys of a result that is aligned in columns; maximum cells of each value
MOST_PARTS, MOST_WIDE = 8, 24
_BEFORE = 29  # cells of a row to the left of the result


def _parts(task: TaskView) -> dict[str, object] | None:
    """Return the result of a task if it is a small JSON object of scalars, which can be aligned in columns; otherwise
    None.
    """
    outcome = task.outcome
    if outcome is None or outcome.kind != "returned" or task.items or outcome.summary is None:
        return None
    value = outcome.summary.json if outcome.summary.is_json else None
    if not isinstance(value, dict) or not 0 < len(value) <= MOST_PARTS:
        return None
    return None if any(isinstance(each, dict | list) for each in value.values()) else value


def _columns(ended: list[TaskView]) -> dict[str, int]:
    """Return the width of each key if all aligned results have the same keys; otherwise an empty dict."""
    values = [value for task in ended if (value := _parts(task)) is not None]
    if not values or any(value.keys() != values[0].keys() for value in values[1:]):
        return {}
    return {
        name: min(MOST_WIDE, max(cell_len(name), *(cell_len(scalar_text(value[name])) for value in values)))
        for name in values[0]
    }


class ResultsPane(VirtualList[TaskView]):
    """Results of one run, updated while the run continues."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.run: RunView | None = None
        self._tasks: list[TaskView] = []
        self._head: list[tuple[str, str, str]] = []
        self._state: object = None
        self._paused: Collection[int] = ()
        # by key: column width in cells, if all results have the same keys; otherwise empty
        self._columns: dict[str, int] = {}
        self._files: list[WrittenFile] = []
        self._trouble = self._files_of = self._key = ""
        # rows of the sweep's trials, which replace the rows of tasks; None for other runs
        self.trials: TrialLines | None = None

    def update(self, run: RunView | None, paused: Collection[int] = ()) -> bool:
        """Show the results of a run. Return whether anything has changed.

        Args:
            paused: Ranks that wait at a breakpoint.
        """
        state = None if run is None else (run.id, run.version, run.state, paused)
        if state == self._state:
            return False
        if self.run is not None and (run is None or run.id != self.run.id):
            self.trials = None
        self.run, self._state, self._paused = run, state, paused
        self._tasks = [] if run is None else [task for _, task in sorted(run.tasks.items())]
        self._columns = _columns([task for task in self._tasks[:MOST_ALIGNED] if task.outcome is not None])
        self._head = [] if run is None else [*_cause_row(run), *_outlier_rows(run), *_aggregate_rows(run)]
        if run is None or run.id != self._files_of:
            self._files, self._trouble = [], ""
        self.refresh()
        return True

    def show_trials(self, trials: TrialLines | None) -> None:
        """Show the rows of a sweep's trials; if None, show the results of the run itself."""
        self.trials, self._state = trials, None
        self.refresh()

    def show_files(self, run: str, files: list[WrittenFile], trouble: str, key: str) -> bool:
        """Show the files that the ranks of a run wrote, or why they cannot be listed. Return whether anything has
        changed.

        Args:
            key: Displayed name of the key that fetches the files.
        """
        self._key = key
        if self.run is None or self.run.id != run:
            return False
        is_new = (files, trouble, run) != (self._files, self._trouble, self._files_of)
        self._files, self._trouble, self._files_of = files, trouble, run
        self.refresh()  # repaint even if no file is new, because the displayed ages of files change
        return is_new

    @property
    def has_files(self) -> bool:
        """Whether any written files are known."""
        return bool(self._files)

    @property
    def has_results(self) -> bool:
        """Whether there is more to show than the states of ranks: a result, a yielded item, a trial or a file."""
        shown = self.run is not None and (self.run.ended or any(task.items for task in self._tasks))
        return bool(shown or self.trials is not None or self._files or self._trouble)

    def head(self, width: int) -> list[Content]:
        lines = [
            Content.assemble((f" {name:<11}", "bold"), (clip(text, max(0, width - 12)), style))
            for name, text, style in self._head
        ]
        if self.trials is not None:
            return [*lines, self.trials.head(width)]
        if self._columns and len(self._tasks) > 1:
            names = "  ".join(fit_width(name, -room) for name, room in self._columns.items())
            before = _BEFORE if self.run is None or self.run.kind == "broadcast" else _BEFORE + 1
            lines.append(Content.styled(f"{'':{before}}{clip(names, max(0, width - before))}", "$muted"))
        return lines

    def visible_rows(self) -> list[Content]:
        """Return the visible rows. In a sweep, charts fill the space below the trials."""
        rows = super().visible_rows()
        if self.trials is None or (room := self.size.height - len(rows) - 1) < 1:
            return rows
        charts = self.trials.chart_rows(self.size.width, room)
        return [*rows, Content(""), *charts] if charts else rows

    @property
    def _count(self) -> int:
        return len(self._tasks if self.trials is None else self.trials)

    def action_sideways(self, steps: int) -> None:
        if self.trials is not None:
            self.trials.select_column(steps)
            self.refresh()

    def action_open(self) -> None:
        if self.trials is not None:
            self.trials.reverse_sort()
            self.refresh()

    def row_count(self, width: int) -> int:
        return self._count + (1 + len(self._files) if self._files or self._trouble else 0)

    def row(self, index: int, width: int) -> Content:
        if index >= self._count:
            return self._file_row(index - self._count, width)
        if self.trials is not None:
            return self.trials.row(index, width)
        task = self._tasks[index]
        mark = state_style("paused" if task.state == "running" and task.rank in self._paused else task.state)
        seconds = duration(task.outcome.seconds, precise=True) if task.outcome else ""
        name = f" r{task.rank:<4}" if self.run is None or self.run.kind == "broadcast" else f" #{task.index:<5}"
        head = f"{mark.text:<13}{seconds:>8}  "
        note = clip(self._note(task), max(0, width - len(name) - len(head)))
        dim = "$muted" if task.state in ("collateral", "waiting") else ""
        return Content.assemble((name, "bold"), (head, mark.style), (note, dim))

    def _note(self, task: TaskView) -> str:
        """Return the note of a task, aligned with the columns of keys if there are any."""
        value = _parts(task)
        if not self._columns or len(self._tasks) < 2 or value is None or value.keys() != self._columns.keys():
            return task_note(task)
        return "  ".join(fit_width(scalar_text(value[name]), -room) for name, room in self._columns.items())

    def _file_row(self, index: int, width: int) -> Content:
        if index == 0:
            size = format_size(sum(file.size for file in self._files))
            text = self._trouble or f"{count(len(self._files), 'file')} on the nodes, {size} ({self._key}: fetch)"
            return Content.assemble((" files ", "bold"), (clip(sanitize_line(text), max(0, width - 7)), "$muted"))
        file = self._files[index - 1]
        head = f" n{file.node:<4}{format_size(file.size):>9}  {ago(file.age):>8}  "
        return Content.assemble((head, "$muted"), clip(sanitize_line(file.path), max(0, width - len(head))))


def _cause_row(run: RunView) -> list[tuple[str, str, str]]:
    cause = run.root_cause
    if cause is None:
        return []
    text = failure(cause.outcome, cause.type, one_line(cause.message))
    rows = [("root cause", f"{cause.rank_prefix.replace('rank ', 'r')}{cause.outcome}: {text}", "$text-error")]
    if (figures := run.cause_metrics) is not None and (words := figures.describe()):
        rows.append(("before", f"n{figures.node} {', '.join(words)}", "$text-warning"))
    return rows


def _outlier_rows(run: RunView) -> list[tuple[str, str, str]]:
    """Return rows about values that differ from those of most ranks."""
    rows = list[tuple[str, str, str]]()
    for each in find_disagreements(run)[:4]:
        ranks = ", ".join(f"r{rank} {one_line(text)}" for rank, text in each.ranks.items())
        text = f"{sanitize_line(each.name)}: {ranks}; most have {one_line(each.usual)}"
        rows.append(("" if rows else "disagree", text, "$text-warning"))
    return rows


def _aggregate_rows(run: RunView) -> list[tuple[str, str, str]]:
    rows = list[tuple[str, str, str]]()
    for name, each in list((run.aggregate() or {}).items())[:6]:
        span = f"min {number(each['min'])}   max {number(each['max'])}"
        rows.append((clip(name, 10), f"mean {number(each['mean'])} ± {number(each['std'])}   {span}", "$text-accent"))
    return rows


class ResultsPanel(RunPanel[ResultsPane]):
    """Results of the run, with the numbers of ended and failed ranks in the title."""

    MAIN = ResultsPane
    FITS_ROWS = True

    def __init__(self, row: PanelSpec, show: Callable[[], None]) -> None:
        super().__init__(row, show)
        self._listing: Future[FileListing] | None = None
        self._about: tuple[str, str] | None = None  # ID and state of the run whose files were last listed
        self._listed_at = 0.0
        self._boards: dict[str, Future[TrialTableSource]] = {}  # by ID of the shown run: the trials of its sweep
        self._trials, self._seen = TrialLines(), ("", 0, 0)
        # if the run is a trial of a sweep by gangs: whether to show the results of this run instead of all trials
        self._shows_own_results = False

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        changed = self.main.update(run, find_paused(pool))
        changed |= self._update_trials(pool, run, now)
        changed |= self._update_files(pool, run, now)
        had_content, self.has_content = self.has_content, self.main.has_results or self.has_class("-active")
        changed |= had_content != self.has_content
        if changed and run is not None:
            failed = sum(run.counts.get(kind, 0) for kind in FAILURES)
            ended, total = (run.ended, run.total) if self.main.trials is None else self._trials.progress_text
            parts: list[tuple[str, str]] = [(f"{self.heading}  {ended:,}/{total:,}", "")]
            keys = self.app.keys
            if self.main.trials is not None:
                left, right, turn = (first_key(f"panel.{each}", keys) for each in ("left", "right", "open"))
                parts.append((f"  {left}{right} sort column, {turn} reverse", "$muted"))
            if (sheet := self._sheet(run)) is not None and sheet.gang:
                other = "all trials" if self._shows_own_results else "this run only"
                parts.append((f"  {first_key('run.trials', keys)}: {other}", "$muted"))
            if failed:
                parts.append((f"  {failed} failed ({first_key('run.errors', keys)}: details)", "$text-error"))
            self.set_titles(Content.assemble(*parts))
        return changed

    @property
    def needs_polling(self) -> bool:
        return self._listing is not None or not all(board.done() for board in self._boards.values())

    def _update_trials(self, pool: PoolView, run: RunView | None, now: float) -> bool:
        """Show the trials if the run belongs to a sweep. The data is requested from the session once per run."""
        session = self.app.session
        if run is None or run.kind not in ("sweep", "broadcast") or session is None:
            return False
        request = self._boards.get(run.id)
        if request is None:
            request = session.trials(pool.key, run)
            self._boards = {run.id: request}
        if not request.done() or isinstance(request.exception(), NoTrials):
            return False
        sheet = self._sheet(run)
        if sheet is not None and sheet.gang and self._shows_own_results:
            return False
        runs = [run]
        if sheet is not None and sheet.gang:
            runs = [pool.runs[each] for each in sheet.runs.values() if each in pool.runs]
        # The table shows metrics of running trials, so read these metrics again once a second.
        is_running = any(each.state == "running" for each in runs)
        seen = run.id, len(runs) + sum(each.version for each in runs), int(now) if is_running else 0
        if self.main.trials is not None and self._seen == seen:
            return False
        self._seen = seen
        try:
            board = request.result()
        except SkywardError as error:
            self.app.flash(format_error(error), "error")
            return False
        # The pool's view no longer has a run of the sweep. Load the table again, because the ledger has the outcome of
        # that run.
        if board.sheet.gang and self._has_lost_run(board, pool):
            self._boards, self._seen = {run.id: session.trials(pool.key, run)}, ("", 0, 0)
            return False
        here = run.id if board.sheet.gang else ""
        self._trials.update(board.table(run.id, run.tasks, pool.metrics, pool.runs), pool.metrics, run.id, here)
        self.main.trials = self._trials
        self.main.refresh()
        return True

    @staticmethod
    def _has_lost_run(board: TrialTableSource, pool: PoolView) -> bool:
        """Check whether the pool's view has dropped a run of a sweep by gangs that the loaded table of trials lacks,
        too.
        """
        runs = list(board.sheet.runs.values())
        # ignore the last runs if the pool's view does not have them, because these runs have not started yet
        while runs and runs[-1] not in pool.runs:
            runs.pop()
        return any(run not in pool.runs and (run, 0) not in board.earlier for run in runs)

    def _sheet(self, run: RunView) -> TrialSheet | None:
        """Return the list of trials of the sweep that a run belongs to; None if the run does not belong to a sweep, or
        the list is not loaded yet.
        """
        request = self._boards.get(run.id)
        return request.result().sheet if request and request.done() and not request.exception() else None

    def action_turn_trials(self) -> None:
        run = self.main.run
        sheet = None if run is None else self._sheet(run)
        if sheet is None or not sheet.gang:
            return self.app.flash("this run is not a trial of a sweep by gangs")
        self._shows_own_results = not self._shows_own_results
        self.main.show_trials(None if self._shows_own_results else self._trials)
        self._seen = ("", 0, 0)

    @property
    def preferred_rows(self) -> int | None:
        # Charts of trials fill all rows below the table.
        return super().preferred_rows if self.main.trials is None else None

    def cancel_side_effects(self, run: RunView) -> str:
        sheet = self._sheet(run)
        if sheet is None or not sheet.gang:
            return ""
        return f"This cancels the whole sweep of {count(len(sheet.tasks), 'combination')}"

    def _update_files(self, pool: PoolView, run: RunView | None, now: float) -> bool:
        """List the files of a run every few seconds while the run is active, and once after its end."""
        if (request := self._listing) is not None:
            if not request.done():
                return False
            self._listing = None
            try:
                files, trouble = request.result().files, ""
            except (SkywardError, OSError) as error:
                files, trouble = [], format_error(error)
            key = first_key("run.fetch", self.app.keys)
            return self._about is not None and self.main.show_files(self._about[0], files, trouble, key)
        session = self.app.session
        if pool.is_over and self._about is not None:  # the pool has ended, so its nodes and their files no longer exist
            run_id, self._about = self._about[0], None
            return self.main.show_files(run_id, [], "", "")
        if session is None or run is None or not pool.is_live or (self.has_content and not self.main.size.height):
            return False
        state = run.id, run.state
        if state != self._about or (run.state == "running" and now > self._listed_at + LISTING_SECONDS):
            self._about, self._listed_at = state, now
            self._listing = session.files(pool.key, run.id)
        return False

    @work(group="ask", exclusive=True)
    async def action_diff(self) -> None:
        run = self.main.run
        if run is None or len(run.outcomes()) < 2:
            return self.app.flash("fewer than two results to compare")
        ranks = sorted(run.tasks)
        odd = {rank for each in find_disagreements(run) for rank in each.ranks}
        usual = next((rank for rank in ranks if rank not in odd), ranks[0])
        other = next((rank for rank in (*sorted(odd), *ranks) if rank != usual), usual)
        answer = await self.app.ask("Ranks whose results to compare, such as 0,1", f"{usual},{other}")
        if answer is None:
            return
        with flash_errors(self.app):
            pair = parse_rank_pair(run, answer)
            found, equal = compare_results(*(task.outcome.summary if task.outcome else None for task in pair))
            names = [f"r{task.index}" if run.kind == "broadcast" else f"#{task.index}" for task in pair]
            lines = difference_table(names, found, equal)
            self.app.show_differences(f"{names[0]} and {names[1]} of {run.function}", lines)

    @work(exclusive=True, group="export")
    async def action_export(self) -> None:
        """Write the results to a file. Runs in a thread, because copying large values and importing pyarrow take
        time."""
        from skyward_tui.file_export import ENDINGS, check_output, write_results

        run = self.main.run
        if run is None or not run.ended:
            return self.app.flash("no result to export yet")
        kinds, session = f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}", self.app.session
        name = await self.app.ask(f"Export results to file ({kinds})", f"{run.pool}-{run.id}-results{ENDINGS[0]}")
        if name is None or session is None:
            return

        def written() -> str:
            check_output(str(path))
            return write_results(run, str(path), session.result_values)

        with flash_errors(self.app):
            try:
                path = expand_user(name)
                remark = await asyncio.to_thread(written)
            except OSError as error:
                return self.app.flash(f"could not write {name}: {error.strerror or error}", "error")
            self.app.flash(f"wrote {path}" + (f": {remark}" if remark else ""), "done")

    def offers(self, action: str) -> bool:
        if action == "run.export":
            return self.main.run is not None and bool(self.main.run.ended)
        return action != "run.fetch" or self.main.has_files

    def clipboard_text(self) -> tuple[str, str] | None:
        from skyward_tui.file_export import results_text

        return None if self.main.run is None else (results_text(self.main.run), "results")

    async def exported_files(self, run: RunView | None, chosen: RunSelection) -> PanelExport:
        from skyward_tui.file_export import results_csv, results_json, trials_csv

        if run is None:
            return PanelExport({})
        files = {"results.json": [results_json(run)], "results.csv": [results_csv(run)]}
        board = self._boards.get(run.id)
        if board is not None and board.done() and board.exception() is None:
            files["trials.csv"] = [trials_csv(board.result().table(run.id, run.tasks, MetricStore()))]
        return PanelExport(files)
