"""Panel with the results of a run, the trials of a sweep, and the files that ranks wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual import work
from textual.content import Content

from skyward_core.model.errors import NoTrials, SkywardError
from skyward_core.util.safe_file_access import expand_user
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.result_comparison import compare_results, find_disagreements
from skyward_tui.panels.panel import PanelExport, RunPanel, RunSelection
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.number_time_and_run_state_format import count
from skyward_tui.text.queue_trial_and_comparison_rows import difference_table, parse_rank_pair
from skyward_tui.text.state_styles import FAILURES
from skyward_tui.ui.actions import first_key
from skyward_tui.ui.panel_table_and_layout import PanelSpec
from skyward_tui.ui.session_futures import flash_errors
from skyward_tui.widgets.result_and_file_list import ResultsPane
from skyward_tui.widgets.sweep_table_and_charts import TrialLines

if TYPE_CHECKING:
    from concurrent.futures import Future

    from skyward_core.client.session_interface import FileListing
    from skyward_core.views.sweep_argument_combinations import TrialSheet
    from skyward_core.views.sweep_trials import TrialTableSource

LISTING_SECONDS = 5.0  # seconds between two listings of written files; each listing sends a request to every node


class ResultsPanel(RunPanel[ResultsPane]):
    """Results of the run, with the numbers of ended and failed ranks in the title."""

    MAIN = ResultsPane
    FITS_ROWS = True

    def __init__(self, row: PanelSpec, show: Callable[[], None]) -> None:
        super().__init__(row, show)
        self._listing: Future[FileListing] | None = None
        self._about: tuple[str, str] | None = None  # ID and state of the run whose files were listed
        self._listed_at = 0.0
        self._boards: dict[str, Future[TrialTableSource]] = {}  # trials of the shown run, by the run's ID
        self._trials, self._seen = TrialLines(), ("", 0, 0)
        # whether to show the results of one run of a sweep by gangs, instead of the sweep's trials
        self._shows_own_results = False

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        changed = self.main.update(run)
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
        # Metrics of running trials change, so they are read again once a second.
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
        # the pool's view has dropped a run; reload the trials, because the ledger has the run's outcome
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
        """Check whether any run of a sweep by gangs is missing in both the pool's view and the table."""
        runs = list(board.sheet.runs.values())
        while runs and runs[-1] not in pool.runs:  # skip runs that have not started yet
            runs.pop()
        return any(run not in pool.runs and (run, 0) not in board.earlier for run in runs)

    def _sheet(self, run: RunView) -> TrialSheet | None:
        """Return the sheet of the sweep that a run belongs to; None if the run is not part of a sweep, or this is not
        known yet."""
        request = self._boards.get(run.id)
        return request.result().sheet if request and request.done() and not request.exception() else None

    def action_turn_trials(self) -> None:
        run = self.main.run
        sheet = None if run is None else self._sheet(run)
        if sheet is None or not sheet.gang:
            return self.app.flash("this run does not belong to a gang sweep: it has no other trials")
        self._shows_own_results = not self._shows_own_results
        self.main.show_trials(None if self._shows_own_results else self._trials)
        self._seen = ("", 0, 0)

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
        if pool.is_over and self._about is not None:  # the nodes and their files no longer exist
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
