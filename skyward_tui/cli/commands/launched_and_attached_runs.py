"""Runs that a command launches or attaches to: launch, progress, interruption, report, teardown."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skyward_core.client import user_settings_and_app_state as settings
from skyward_core.client.launch.launch_option_declarations import LaunchRequest, parse_provider_settings
from skyward_core.client.launch.launch_plan import LaunchPlan, make_plan
from skyward_core.client.launch.plugin_and_provider_catalog import (
    Interpreter,
    ScriptWatch,
    Task,
    choose_interpreter,
    lacks_module,
    query_python,
    split_target,
)
from skyward_core.client.run_history import Receipt
from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import PoolExistsError, ScriptError, SkywardError, UsageError, error_message
from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.model.provider_capability_protocols import RunsHere
from skyward_core.model.specs import PoolSpec
from skyward_core.util.safe_file_access import is_file
from skyward_core.util.terminal_safe_text import sanitize_paragraph
from skyward_core.views.events import AttemptEnded, PoolState, RunEnded, RunOpened
from skyward_core.views.job_file_steps import steps_of_job
from skyward_core.views.pool_view import PoolView, RunView, TaskView
from skyward_core.views.rank_metrics_and_progress import MetricStore, format_metrics
from skyward_core.views.sweep_argument_combinations import TrialSheet
from skyward_core.views.sweep_trials import TrialRow, TrialTable, TrialTableSource, representative_task
from skyward_tui.cli.commands.cancel_down_leftovers_prune import note_leftovers
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.follow_run import MUST_FINISH, Choice, Follower, Interrupted, LiveStatus, Row, status_rows
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session
from skyward_tui.cli.result_tables_failures_and_receipts import (
    COLORS,
    drop_receipts,
    exit_status,
    failure_lines,
    outcome_note,
    queue_receipt,
    receipt_line,
    show_run,
    state_text,
)
from skyward_tui.cli.shared_options_and_command_class import SCRIPT_ARGUMENTS, command, given_parameters, watch_option
from skyward_tui.launch_form.form import suggest_example
from skyward_tui.launch_form.plan_computation_and_text import (
    missing_packages_text,
    missing_plugins_text,
    plan_rows,
    python_mismatch,
)
from skyward_tui.notifications import Notification, Notifier, run_notification
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.json_output import run_json, trials_json
from skyward_tui.text.number_time_and_run_state_format import count, count_range, duration, number
from skyward_tui.text.queue_trial_and_comparison_rows import combination_text, gang_text, queue_rows, sweep_outcome
from skyward_tui.text.text_width_tables_and_ascii import clip

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_records_and_script_state import ShellRecord


class RunNotifier:
    """Notifications to the user about one run. Invalid notification settings are reported at once."""

    def __init__(self, console: Console) -> None:
        own = settings.load_user_settings()
        for problem in own.refused:
            if "notify" in problem:
                console.note(problem)
        self._notifier = Notifier(own.notify, _ring_terminal, console.note)
        self._started_at = time.monotonic()

    def notify(self, notification: Notification) -> None:
        """Send a notification, with the duration of this command; return at once."""
        # The duration counts from the start of the command, not of the run, because the user also waited for the pool.
        waited = time.monotonic() - self._started_at
        self._notifier.notify_unless_seen(notification._replace(seconds=waited), True, waited)

    def wait_for_command(self) -> None:
        """Wait until the user's notification command has ended, because the exit of this process would kill it. The
        command has a time limit.
        """
        if self._notifier.ways.command:
            from skyward_core.client.notification_command_process import wait_for_commands

            wait_for_commands()


def _ring_terminal(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()


class TrialReporter:
    """Progress notes about a sweep: one for each trial that ends."""

    def __init__(self, console: Console, sheet: TrialSheet) -> None:
        self._console = console
        self._sheet = sheet
        self._ended_tasks: set[int] = set()
        self._run = ""
        # (run ID, outcome) of tasks that ended before the ID of the sweep's run was known
        self._early: list[tuple[str, Outcome]] = []

    def set_run(self, run: str) -> None:
        """Set the ID of the sweep's run, and report the outcomes that arrived before the ID was known."""
        self._run = run
        for of, outcome in self._early:
            self.on_outcome(of, outcome)
        self._early.clear()

    def on_outcome(self, run: str, outcome: Outcome) -> None:
        """Report the end of a trial. Ignore tasks that do not belong to the sweep."""
        if not self._run:
            self._early.append((run, outcome))
            return
        if run != self._run or outcome.index in self._ended_tasks or outcome.index >= len(self._sheet.tasks):
            return
        self._ended_tasks.add(outcome.index)
        task = TaskView(outcome.index, outcome.rank, outcome.node, outcome.kind, outcome=outcome)
        arguments = combination_text(self._sheet, self._sheet.tasks[outcome.index])
        progress = f"{len(self._ended_tasks):,}/{len(self._sheet.tasks):,}"
        line = f"{progress} {arguments}: {outcome.kind} {outcome_note(task)}".rstrip()
        self._console.note(f"{clip(line, 300)} ({duration(outcome.seconds, precise=True)})")


class GangReporter:
    """Progress notes about a sweep in which each trial is a run on several nodes (a gang): one note when a run starts,
    and one when it ends.

    Args:
        console: Console for the notes.
        board: Trials of the sweep.
        pool: Live view of the pool.

    Attributes:
        views: Views of all started runs, because the view of the pool drops old runs.
    """

    def __init__(self, console: Console, board: TrialTableSource, pool: PoolView) -> None:
        self._console = console
        self._sheet = board.sheet
        self._rows = {run: row for row, run in board.sheet.runs.items()}
        self._pool = pool
        self._ended_count = 0
        self.views: dict[str, RunView] = {}

    def on_run_started(self, run: str) -> None:
        """Report the start of a run once. Ignore runs that do not belong to the sweep."""
        if run in self._rows and run not in self.views and (view := self._pool.runs.get(run)) is not None:
            self.views[run] = view
            progress = f"{len(self.views):,}/{len(self._rows):,}"
            self._console.note(f"run {run}: {progress} {self._combination_text(run)} on {count(view.total, 'rank')}")

    def on_run_event(self, event: RunOpened | RunEnded) -> None:
        """Report the start or the end of a run. Ignore runs that do not belong to the sweep."""
        self.on_run_started(event.run)
        if isinstance(event, RunOpened) or event.run not in self.views:
            return
        self._ended_count += 1
        view = self.views[event.run]
        task = representative_task(view.tasks.values())
        what = "" if task is None or event.state == "done" else f" ({outcome_note(task)})"
        nodes = "node" if len(view.nodes) == 1 else "nodes"
        where = f" on {nodes} {', '.join(map(str, view.nodes))}" if view.nodes else ""
        progress = f"{self._ended_count:,}/{len(self._rows):,} ended"
        line = f"run {view.id}: {progress}, {self._combination_text(view.id)}: {event.state}"
        self._console.note(f"{clip(line + what, 300)}{where} ({duration(event.at - view.opened_at, precise=True)})")

    def _combination_text(self, run: str) -> str:
        return combination_text(self._sheet, self._rows[run])


def show_trials(run: RunView, found: TrialTable, console: Console, sort: str | None = None) -> None:
    """Print the table of a sweep, and its first failure.

    Args:
        run: The run of the sweep.
        found: The trials.
        console: Console for the output.
        sort: Column to sort by, or a key of the results; a leading "-" sorts in descending order. None for the order of
            the combinations.

    Raises:
        UsageError: If the column does not exist.
    """
    rows = sorted_rows(found, sort)
    console.print_table(trial_cells(found, rows), [1, *(COLORS.get(row.state) for row in rows)], clipped=True)
    # in a sweep by gangs, each trial has its own run, so the failure of one run does not describe the sweep
    for line in failure_lines(run) if run.kind == "sweep" else ():
        console.note(line)


def sorted_rows(found: TrialTable, sort: str | None) -> list[TrialRow]:
    """Return the trials of a sweep, sorted as :func:`show_trials` describes.

    Raises:
        UsageError: If the column does not exist.
    """
    if sort is None:
        return list(found.rows)
    try:
        return found.sorted_rows(sort.removeprefix("-"), falling=sort.startswith("-"))
    except KeyError:
        raise UsageError(f"no column {sort!r}. Sort by one of: {', '.join(found.columns)}") from None


def trial_cells(found: TrialTable, rows: list[TrialRow]) -> list[tuple[str, ...]]:
    """Return the cells of the table, the header first. Results are in the last column, because they may be long."""
    cells, best = [found.columns], found.best_place
    for row in rows:
        numbers = (row.numbers.get(name) for name in found.numbers)
        time = "" if row.seconds is None else duration(row.seconds, precise=True)
        shown = ("" if each is None else number(each) for each in numbers)
        note = "" if row.task is None else outcome_note(row.task)
        place = f"{row.place}{' ★' * (row.place == best)}"
        cells.append((place, *row.arguments, state_text(row.state), time, *shown, note))
    return cells


T = TypeVar("T")

# seconds to wait for the next step of a job; the agents reserve the nodes for the next step for 10 s
NEXT_STEP_SECONDS = 15.0
EDIT_CHECK_SECONDS = 0.2  # seconds between two checks of a watched script


def run(
    request: LaunchRequest,
    console: Console,
    *,
    dry_run: bool = False,
    watch: bool = False,
    on_change: bool = False,
    missing: TrialSheet | None = None,
    before: tuple[str, Interpreter | None] = ("", None),
) -> int:
    """Run a script's function on a pool, and return the exit status.

    The pool is created for the run and torn down afterwards. A running pool of the requested name is used, and stays.

    Args:
        request: What to run, and on which pool.
        console: Console for the output.
        dry_run: Whether to show the plan without creating, loading or running anything.
        watch: Whether to show a live summary instead of the output of the ranks.
        on_change: Whether to run the script again on the same pool whenever it changes, until a signal arrives.
        missing: The trials of a sweep that have no result; None to run all.
        before: ID of the run that is run again, and the Python that it used.
    """
    excluded = {"--detach": request.detach, "--sweep": request.sweep, "--dry-run": dry_run}
    for option in filter(excluded.get, excluded if on_change else ()):
        raise UsageError(f"--on-change cannot be combined with {option}. Remove one of the two")
    with open_session(console) as session:
        found = live_pool(session, request.pool)
        if found is not None and (options := request.shapes_pool):
            raise UsageError(
                f"pool {found.name} is already up ({count(len(found.nodes), 'node')} on {found.provider}). "
                f"Remove {', '.join(options)} to use the pool as it is, tear it down (skyward-tui down {found.name}), "
                "or choose another name"
            )
        script = ScriptWatch(Path(request.script), request.module) if on_change else None
        plan = _make_plan(request, launching=not dry_run)
        if missing is not None:
            plan = replace(plan, sheet=missing)
        if found is not None:
            plan = plan.on_pool(found)
        plan = plan.check_gangs()
        if change := plan.describe_python_change(before[1]):
            console.note(f"run {before[0]}: {change}")
        if dry_run:
            return _show_plan(plan, console)
        if plan.file_loss_warning and not console.is_terminal:
            console.note(f"pool {plan.pool.name}: {plan.file_loss_warning}")
        if request.outputs and plan.spec is not None and isinstance(plan.spec.provider, RunsHere):
            console.note("--outputs is ignored: ranks write directly to this folder")
        warnings = [python_mismatch, missing_packages_text]
        if plan.pool.world_size > 1 and not request.one and plan.sheet is None:
            warnings.append(missing_plugins_text)
        for note in filter(None, (warning(plan, as_options=True) for warning in warnings)):
            console.note(note)
        tasks = plan.load_tasks(echo=True)
        caller = None if request.detach else RunNotifier(console)
        job = PoolCommand(
            session, console, plan.pool.name, ours=found is None, keep=plan.keep, caller=caller, watch=watch
        )
        job.script = script
        with job.follower.catch_signals():
            return job.execute(plan.spec, tasks, request, plan.sheet)


def _show_plan(plan: LaunchPlan, console: Console) -> int:
    """Print the plan of a run."""
    rental = plan.rental_plan()
    rows = plan_rows(plan, as_options=True)
    console.print_table(rows)
    attempts = [asdict(each) | {"billed_hourly": each.billed_hourly} for each in rental.attempts]
    hourly = rental.hourly if rental.attempts or not plan.has_unknown_price else None
    shown = {"plan": [list(each) for each in rows], "hourly": plan.price_hourly or hourly, "attempts": attempts}
    requests = {"creates": list(rental.creates), "requests": [dict(each) for each in rental.requests]}
    console.result(shown | requests | {"notes": list(rental.notes)})
    return errors.OK


def _make_plan(request: LaunchRequest, *, launching: bool) -> LaunchPlan:
    try:
        return make_plan(request, launching=launching)
    except ScriptError as error:
        if example := suggest_example(Path(request.script)):
            raise ScriptError(f"{error}\nTo run the packaged example: run {example}") from error
        if "." in request.script and is_file(f"{request.script.replace('.', '/')}.py"):
            raise ScriptError(f"{error}. To run a module: run -m {request.script}") from error
        raise


@command()
@click.argument("pool")
@watch_option
def attach(console: Console, pool: str, watch: bool) -> int:
    """Watch the current run of a pool until it ends."""
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        view = session.observe(row.key).result()
        queued = {each.run for each in queue_rows(view) if each.waits}
        running = [run for run in view.runs.values() if run.state == "running"]
        running = [run for run in running if run.id not in queued] or running
        if not running:
            console.note(f"nothing runs on pool {pool} ({view.state}, {count(len(view.nodes), 'node')})")
            last = next(reversed(view.runs.values()), None)
            console.result({"run": None, "pool": view.name} if last is None else run_json(last))
            return errors.OK
        if any(task.state == "lost" for task in running[-1].tasks.values()):
            # Ranks that wait for lost peers hang until a client stops them. Observers cannot stop ranks, so attach as a
            # client.
            session.attach(row.key).result()
        caller = RunNotifier(console)
        job = PoolCommand(
            session, console, pool, ours=False, keep=True, off_terminal="detach", caller=caller, watch=watch
        )
        with job.follower.catch_signals():
            return job.resume(running[-1])


def live_pool(session: Session, name: str | None) -> PoolView | None:
    """Return the running pool with a name; None if there is none."""
    if name is None:
        return None
    return next((p for p in session.refresh().result() if p.name == name and p.is_live), None)


class PoolCommand:
    """Execution of a run, including the start and the teardown of its pool.

    Args:
        session: Session of this command.
        console: Console for the output.
        pool: Name or key of the pool.
        ours: Whether this command creates the pool.
        keep: Whether the pool stays up afterwards.
        off_terminal: Reaction to a signal if there is no terminal to ask the user.
        caller: Notifies the user about the end of the run; None if no user waits for it.
        watch: Whether to show a live summary instead of the output.
    """

    def __init__(
        self,
        session: Session,
        console: Console,
        pool: str,
        *,
        ours: bool,
        keep: bool,
        off_terminal: Choice = "cancel",
        caller: RunNotifier | None = None,
        watch: bool = False,
    ) -> None:
        self.session = session
        self.console = console
        self.follower = Follower(console)
        self.pool = pool
        # unique key of the pool; the name given by the user until the key is known, "" while the pool is created
        self.key = pool
        self.begun: Future[PoolView] | None = None
        self.is_owner = ours
        self.leave_pool = keep or not ours
        self.off_terminal = off_terminal
        self.notifier = caller
        self.run: RunView | None = None
        self._own_run_ids: set[str] = set()  # IDs of all runs that this command started
        self.error: Exception | None = None
        self.launch_saved: Future[None] | None = None
        # for the question after ctrl-c: description of what a detach does; "" for the default text
        self.detach_text = ""
        self.is_gang_sweep = False
        self.script: ScriptWatch | None = None  # script that runs again after each edit; None to run it once
        self.trials: TrialTable | None = None  # table of the sweep's trials, once the sweep has ended
        # future of the pool's teardown; set on the session's thread when the run ends
        self._teardown: Future[Receipt] | None = None
        # whether the end of the run no longer starts the teardown, because a signal has arrived or the command finishes
        self._is_interrupted = False
        self._deciding = threading.Lock()
        self._is_shown = False  # whether the receipt of the teardown was printed
        if watch:
            self.follower.live = LiveStatus(console, self._status_rows)

    def execute(
        self, spec: PoolSpec | None, tasks: Sequence[Task], request: LaunchRequest, sheet: TrialSheet | None
    ) -> int:
        """Run a task, or the tasks of a sweep, on the pool. Print the report, and tear the pool down unless it is to
        stay.

        Args:
            spec: The pool to create; None for a running pool.
            tasks: The single task, or the tasks of a sweep.
            request: The request, saved for ``rerun``.
            sheet: Trials of a sweep; None for a single task.

        Returns:
            The exit status.
        """

        if spec is None:
            self.follower.is_output_ours = self.is_output_ours

        def launch(tasks: Sequence[Task]) -> int:
            joined, is_retained = spec is None, request.detach
            if sheet is not None and sheet.gang:
                return self._run_gangs(tasks, sheet, request, joined=joined)
            if sheet is not None:
                run = self._launch_sweep(tasks, sheet, request, joined=joined, is_retained=is_retained)
            else:
                run = self.launch(tasks[0], one=request.one, is_retained=is_retained, request=request, joined=joined)
            self.launch_saved = self.session.save_launch(self.key, run.id, request, joined=joined)
            return self.wait_and_report(run, request.detach)

        status = self.run_on_pool(spec, lambda: self._run_after_edits(launch(tasks), launch, request), request)
        is_kept = spec is not None and self.leave_pool and not request.detach and status != errors.INTERRUPTED
        if is_kept and any(self._is_ours(view) and view.is_live for view in self.session.pools()):
            self.console.note(f"pool {self.pool} stays up; {self._teardown_text()}")
        return status

    def _run_after_edits(self, status: int, launch: Callable[[Sequence[Task]], int], request: LaunchRequest) -> int:
        """Run a watched script again after each edit, until a signal arrives or the pool ends.

        Args:
            status: Exit status of the first run.
            launch: Runs the tasks of the edited script, and returns the exit status.
            request: The request.

        Returns:
            The exit status of the last run.
        """
        name = Path(request.script).name
        while self.script is not None and not self._is_interrupted:
            self.console.note(f"watching {name}; ctrl-c ends")
            try:
                while not (edited := self.script.edited_file()):
                    if self.console.has_no_reader or not self.session.view(self.key).is_live:
                        return status
                    self.follower.wait_until(lambda: False, EDIT_CHECK_SECONDS)
            except Interrupted:
                break
            self.console.note(f"{edited} changed; running {name} again")
            self.script = ScriptWatch(Path(request.script), request.module)
            try:
                plan = _make_plan(request.on_pool(self.pool), launching=True).on_pool(self.session.view(self.key))
                status = launch(plan.load_tasks(echo=True))
            except SkywardError as error:
                self.console.note(f"error: {format_error(error)}")
                status = errors.error_exit_code(error)
        return status

    def _cancel_after_edit(self, run: RunView, ended: Future[RunView]) -> None:
        """Wait until the run of a watched script ends, or cancel the run after an edit."""
        while self.script is not None and not self.follower.wait_until(ended.done, EDIT_CHECK_SECONDS):
            if self.console.has_no_reader:
                return
            if self.script.edited_file():
                self.console.note(f"stopping run {run.id}")
                return self.follower.wait(self.session.cancel(self.key, run.id))

    def run_on_pool(
        self, spec: PoolSpec | None, work: Callable[[], int], request: LaunchRequest | ShellRecord | None = None
    ) -> int:
        """Do work on the pool, and tear the pool down afterwards unless it is to stay.

        Args:
            spec: The pool to create; None for a running pool.
            work: Returns the exit status.
            request: The launch, saved with a new pool.

        Returns:
            The exit status of the work, or that of the first error.
        """
        up = spec is None
        try:
            if spec is not None:
                nodes = count_range(spec.least_nodes, spec.most_nodes, "node")
                self.console.note(f"pool {spec.name}: {nodes} on {spec.provider.name}")
                self.key, self.begun = "", Future()
                self.begun.add_done_callback(self._subscribe)
                self.follower.wait(self.session.create(spec, begun=self.begun, request=request))
                up = True
            else:
                # Until the attach returns, ``self.key`` may be the pool's name, because the key of a starting pool may
                # be unknown.
                self.key = self.follower.wait(self.session.attach(self.key)).key
                self.session.subscribe(self.key, self.follower.on_event, self.follower.on_log)
            status = work()
        except (Interrupted, KeyboardInterrupt):
            status = errors.INTERRUPTED
            # after an interruption, a pool whose start is incomplete is torn down even with --keep
            self.leave_pool &= up
        except SkywardError as error:
            self.error, status = error, errors.error_exit_code(error)
            self.leave_pool &= up
            # the name belongs to a pool of another client, which must not be torn down
            self.leave_pool |= isinstance(error, PoolExistsError)
            if self.notifier is not None and self.run is None:
                reason = error_message(error)
                self.notifier.notify(Notification("failed", self.pool, what="the start", detail=reason))
        except Exception as error:  # noqa: BLE001  an internal error: the pool must still be torn down
            status = errors.FAILED
            self._show_defect(error)
            self.leave_pool &= up
        return self._finish(status)

    def _show_defect(self, error: Exception) -> None:
        """Print the traceback of an internal error."""
        self.error = error
        print(sanitize_paragraph("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)  # noqa: T201

    def _start_teardown(self, ended: Future[Any]) -> None:
        """Start the teardown that follows a run; called on the session's thread.

        The main thread cannot do this, because it may be blocked: it writes the output of the ranks, and the reader of
        that output may have stopped reading.
        """
        with self._deciding:
            run = self.run
            more = self.script is not None or (run is not None and run.more and exit_status(run) == errors.OK)
            if not (self._is_interrupted or self.leave_pool or more or ended.cancelled()):
                self._teardown = self.session.tear_down(self.key)

    def _can_decide(self) -> bool:
        """Return whether the teardown after the run has not started yet, so that a signal can still prevent it."""
        with self._deciding:
            self._is_interrupted = True
        if self._teardown is not None:
            self.console.note(MUST_FINISH)
        return self._teardown is None

    def _launch_sweep(
        self, tasks: Sequence[Task], sheet: TrialSheet, request: LaunchRequest, *, joined: bool, is_retained: bool
    ) -> RunView:
        notes = TrialReporter(self.console, sheet)
        self.follower.on_trial = notes.on_outcome
        launched = self.session.launch_sweep(self.key, tasks, sheet, request, joined=joined, is_retained=is_retained)
        run = self._wait_for_launch(launched)
        self.console.note(f"run {run.id}: {tasks[0].name} on {count(run.total, 'combination')}")
        notes.set_run(run.id)
        return run

    def launch(
        self,
        task: Task,
        *,
        one: bool = False,
        is_retained: bool = False,
        request: LaunchRequest | ShellRecord | None = None,
        joined: bool = False,
    ) -> RunView:
        """Start a run of a task on the pool, and return its view.

        Args:
            task: The task.
            one: Whether to run it on one node only.
            is_retained: Whether the nodes retain the run's results for a later client.
            request: The request or the job, saved with the run for ``rerun``; None to save nothing.
            joined: Whether the pool was up before this launch.
        """
        if self.follower.live is not None:
            self.follower.live.open()
        launched = self.session.launch(self.key, task, one=one, is_retained=is_retained, request=request, joined=joined)
        run = self._wait_for_launch(launched)
        self.console.note(f"run {run.id}: {task.name} on {count(run.total, 'rank')}")
        return run

    def _wait_for_launch(self, launched: Future[RunView]) -> RunView:
        with self.follower.buffer_until_known():
            self.run = run = self.follower.wait(launched)
            self._own_run_ids.add(run.id)
        return run

    def is_output_ours(self, rank: int, of: str) -> bool | None:
        """Check whether the output of a rank belongs to a run of this command. A pool may have runs of several clients.

        Args:
            rank: The rank.
            of: ID of the run that printed the output; "" if unknown.

        Returns:
            None if the run is not known yet: the output may belong to an older run of the rank, or to a run of this
            command whose start is not reported yet. The rank's next event shows which.
        """
        if (run := self.run) is None:
            return False
        if of:
            # A job repeats its earlier steps on a new machine, in runs that this command did not launch.
            found = self.session.view(self.key).runs.get(of) if run.job else None
            return of in self._own_run_ids or (found is not None and found.job == run.job)
        if run.id in self.follower.queued and not self.follower.is_running(rank, run.id):
            return None
        return not run.nodes or rank // self.session.view(self.key).ranks_per_node in run.nodes

    def _subscribe(self, begun: Future[PoolView]) -> None:
        """Subscribe to the events of the new pool; called on the session's thread."""
        if begun.exception() is None:
            view = begun.result()
            self.key = view.key
            if view.detail:  # the session published this state before the follower subscribed, so pass it on now
                self.follower.on_event(PoolState(pool=view.name, state=view.state, detail=view.detail, hint=view.hint))
            self.session.subscribe(self.key, self.follower.on_event, self.follower.on_log)

    def _status_rows(self, last_line: str) -> list[Row]:
        """Return the lines of the live summary of pool and run."""
        view = next(filter(self._is_ours, self.session.pools()), None)
        return [] if view is None else status_rows(view, self.run, last_line, time.time())

    def resume(self, run: RunView) -> int:
        """Follow a run that another client started. If it is a step of a job, follow the next steps, too."""
        self.run, self.key = run, self.session.view(self.pool).key
        self.session.subscribe(self.key, self.follower.on_event, self.follower.on_log, missed=True).result()
        self.follower.on_attempt_end = self._continue_waiting
        for end in run.ended_attempts:
            self._continue_waiting(end)
        try:
            while True:
                self.console.note(f"run {run.id}: {run.function} on {count(run.total, 'rank')}")
                status = self.wait_and_report(run)
                if status != errors.OK or not run.more:
                    return self._finish(status)
                if (step := self._wait_for_next_step(run)) is None:
                    return self._finish(errors.FAILED)  # the next step of the job did not start
                self.run = run = step
        except Interrupted:  # a signal arrived between two steps of the job
            return self._finish(errors.INTERRUPTED)

    def _continue_waiting(self, end: AttemptEnded) -> None:
        """Attach to the pool as a client if the run waits for a client to restart it, because observers cannot restart
        runs.
        """
        if self.run is not None and end.run == self.run.id and not end.restarts:
            self.session.attach(self.key).result()

    def _wait_for_next_step(self, run: RunView) -> RunView | None:
        """Wait until the next step of a job starts, and return its run; None if the step does not start in time."""

        def found() -> RunView | None:
            view = self.session.view(self.key)
            steps = [each for each in steps_of_job(view, run) if each.opened_at > run.opened_at]
            return next(iter(steps), None)

        def is_over() -> bool:
            return found() is not None or not self.session.view(self.key).is_live

        if not self.follower.wait_until(is_over, NEXT_STEP_SECONDS):
            self.console.note(
                f"the step after {run.function} has not started: its client has exited, or it is queued "
                f"(skyward-tui queue {self.pool})"
            )
        return found()

    def wait_and_report(self, run: RunView, detach: bool = False) -> int:
        """Wait until a run ends or a signal arrives. Print the report, and return the exit status."""
        if detach:
            # The run needs this client until all its ranks have started, so detach only then.
            most = self.session.view(self.key).world_size if run.kind == "sweep" else run.total
            self.follower.wait_until(lambda: run.state != "running" or len(run.tasks) >= min(most, run.total))
            self._detach(run)
            return errors.OK
        ended = self.session.wait(self.key, run.id)
        ended.add_done_callback(self._start_teardown)
        try:
            self._cancel_after_edit(run, ended)
            self.follower.wait(ended)
        except Interrupted as interruption:
            if self._can_decide():
                return self._on_interrupted(run, ended, interruption)
        self._report(ended.result())
        if self.notifier is not None:
            self.notifier.notify(run_notification(run, self.pool, time.time()))
        return exit_status(run)

    def _run_gangs(self, tasks: Sequence[Task], sheet: TrialSheet, request: LaunchRequest, *, joined: bool) -> int:
        """Run each trial as a gang, as many gangs at a time as fit. Return the status of the first failed trial."""
        self.is_gang_sweep = True
        run = self._wait_for_launch(self.session.launch_sweep(self.key, tasks, sheet, request, joined=joined))
        view = self.session.view(self.key)
        # Do not use ``follower.wait``: it would print output of ranks before the IDs of this command's runs are known.
        board = self.session.trials(self.key, run).result()
        self._own_run_ids |= set(board.sheet.runs.values())
        many = count(len(tasks), "combination")
        self.console.note(f"{tasks[0].name}: {many}, {gang_text(sheet.nodes, len(view.nodes))}")
        notes = GangReporter(self.console, board, view)
        notes.on_run_started(run.id)

        def on_run(event: RunOpened | RunEnded) -> None:
            notes.on_run_event(event)
            # The live summary shows one run: the newest active one.
            active = (each for each in reversed(notes.views.values()) if each.state == "running")
            self.run = next(active, self.run)

        self.follower.on_run = on_run
        over = self.session.wait_for_sweep(self.key, run.id)
        over.add_done_callback(self._start_teardown)
        try:
            self.follower.wait(over)
        except Interrupted as interruption:
            if self._can_decide():
                return self._on_interrupted(run, over, interruption)
        finally:
            started = list(notes.views.values())
            self.run = next((each for each in started if each.state not in ("running", "done")), started[-1])
        self._report(self.run)
        return exit_status(self.run)

    def _on_interrupted(self, run: RunView, ended: Future[Any], interruption: Interrupted) -> int:
        """After a signal, detach from the run or the sweep, or cancel it, as :meth:`_ask_choice` decides. Return the
        exit status.

        Args:
            run: The run; of a sweep the first run.
            ended: Future that completes when the run or the sweep has ended.
            interruption: The signal.
        """
        what, leaving = f"run {run.id}", self.detach_text
        if self.is_gang_sweep:
            what, leaving = "the sweep", "running trials continue, pending trials are cancelled"
        if self._ask_choice(what, interruption, leaving) == "detach":
            ended.cancel()
            self._detach(self.run or run)
            if self.is_gang_sweep:
                self.console.note(
                    f"pending trials were cancelled. Run them later with: skyward-tui rerun {run.id} --missing"
                )
            return errors.INTERRUPTED
        reason = ": nothing reads its output any more" if self.console.has_no_reader else ""
        self.console.note(f"cancelling {what}{reason}")
        try:
            self.follower.wait(self.session.cancel(self.key, run.id))
            self._report(self.follower.wait(ended) or self.run or run)
        except Interrupted:
            # after a second signal, a pool that this command has created is torn down, which also stops its runs
            self.leave_pool &= not self.is_owner
        return errors.INTERRUPTED

    def _ask_choice(self, what: str, interruption: Interrupted, leaving: str) -> Choice:
        """Decide what happens to a run or sweep after a signal. Ask the user if there is a terminal.

        Args:
            what: Description of the run or sweep, for the question.
            interruption: The signal.
            leaving: Description of what a detach does; "" for the default text.
        """
        choice = self.off_terminal
        if interruption.number == SIGINT and self.console.is_terminal:
            outlives_us = self.is_gang_sweep
            if not outlives_us:
                asked = self.session.survives_exit(self.key, self.run.id if self.run is not None else "")
                outlives_us = self.follower.wait(asked, interruptible=False)
            # after another signal, or if the terminal is gone, the choice without a terminal applies
            with suppress(Interrupted):
                choice = self.follower.ask(what, outlives_us=outlives_us, leaving=leaving)
                self.leave_pool = choice != "down"
        return choice

    def _finish(self, status: int) -> int:
        """Tear the pool down unless it is to stay, print the final report, and return the exit status."""
        receipt: Receipt | None = None
        # wait until the pool is registered, because only then is its key known, with which it can be torn down
        if self.begun is not None:
            with suppress(Exception):  # ``run_on_pool`` has already handled the error of the start
                self._wait_uninterrupted(self.begun)
        with self._deciding:
            self._is_interrupted = True
            down = self._teardown
        if not self.leave_pool and any(self._is_ours(view) and view.is_live for view in self.session.pools()):
            down = down or self.session.tear_down(self.key)
        if down is not None:
            try:
                receipt = self._wait_uninterrupted(down)
            except SkywardError as error:
                self.error, status = error, errors.UNVERIFIED
            except Exception as error:  # noqa: BLE001  an internal error
                self._show_defect(error)
                status = errors.UNVERIFIED
            else:
                status = status if receipt.ok else errors.UNVERIFIED
        if receipt is not None:
            # The receipt is saved before it is printed, because the client may be killed in between.
            queue_receipt(self.session, self.key, receipt)
        try:
            self._report_end(receipt)
        except Exception as error:  # noqa: BLE001  an internal error
            self._show_defect(error)
        if receipt is not None and self._is_shown:
            drop_receipts(self.session, [self.key.partition(".")[2]])
        return status or (errors.OK if self.error is None else errors.FAILED)

    def _wait_uninterrupted(self, future: Future[T]) -> T:
        """Wait until a future is done, even if printing the events that arrive during the wait fails."""
        try:
            return self.follower.wait(future, interruptible=False)
        except Exception as error:
            if future.done() and future.exception() is error:
                raise
            self._show_defect(error)
            return future.result()

    def _report_end(self, receipt: Receipt | None) -> None:
        """Print the final report: receipt, leftovers, error, result."""
        self.follower.finish()
        if self.launch_saved is not None:
            try:
                self.follower.wait(self.launch_saved, interruptible=False)
            except (OSError, SkywardError) as error:
                self.console.note(f"the launch was not saved completely, so rerun may not find it: {error}")
        if receipt is not None:
            ours = list(filter(self._is_ours, self.session.pools()))
            rented = any(view.spec.get("rents") for view in ours)
            self.console.note(receipt_line(receipt, machines=rented and self.run is None))
            self._is_shown = self.console.shows_notes
            note_leftovers(self.session, [view.spec for view in ours], self.console)
        if self.error is not None:
            self.console.report_error(self.error)
        if self.run is not None:
            trials = trials_json(self.trials) if self.trials is not None else {}
            self.console.result(run_json(self.run, receipt) | trials)
            self._is_shown |= self.console.shows_results
        if self.notifier is not None:
            self.notifier.wait_for_command()

    def _is_ours(self, view: PoolView) -> bool:
        return self.key == view.key

    def _report(self, run: RunView) -> None:
        self.follower.finish()
        if run.kind == "sweep" or self.is_gang_sweep:
            board = self.session.trials(self.key, run).result()
            self.trials = board.table(run.id, run.tasks, MetricStore(), self.session.view(self.key).runs)
            show_trials(run, self.trials, self.console)
            if self.is_gang_sweep and (outcome := sweep_outcome(self.trials, run.id)):
                self.console.note(outcome)
        else:
            show_run(run, self.console, self.follower.printed_errors)
        if self.follower.live is not None:
            self.console.note(f"output of the ranks: skyward-tui logs {run.id}")
        view = next(filter(self._is_ours, self.session.pools()), None)
        if view is not None and self.trials is None and (values := view.metrics.run_values(run.id)):
            ranks = view.metrics.ranks(run.id)
            who = f"rank 0 of {len(ranks)}" if ranks[0] == 0 else f"median of {count(len(ranks), 'rank')}"
            self.console.note(f"last metrics ({who}): {format_metrics(values)}")

    def _detach(self, run: RunView) -> None:
        """Detach from the pool, and report the state of the run."""
        was_over = run.state != "running"
        results, end = f"results: skyward-tui results {run.id}", self._teardown_text()
        self.follower.wait(self.session.detach_pool(self.key), interruptible=False)
        if run.state == "running":
            state = f"keeps running; watch: skyward-tui attach {self.pool}\n{results}; {end}"
        elif was_over:
            state = f"has ended ({run.state}); {results}\n{end}"
        else:
            state = f"was cancelled: it had not reached any node\n{end}"
        self.console.note(f"run {run.id} {state}")

    def _teardown_text(self) -> str:
        """Return a text about how the pool is torn down."""
        until = next(map(_idle_end_text, filter(self._is_ours, self.session.pools())), "")
        return f"tear down the pool: skyward-tui down {self.pool}{until}"


def _idle_end_text(view: PoolView) -> str:
    """Return a warning that unfetched results are lost when the idle pool shuts down; "" if its machines are not
    rented.
    """
    if not (view.has_unknown_price or view.price_hourly):
        return ""
    seconds = float(view.spec.get("options", {}).get("idle_timeout", 0.0))
    return f"\nits machines shut down {duration(seconds)} after the last run; unfetched results are lost then"


# Options of ``run`` that also apply to a script with ``sky.app`` commands. All other options are rejected, because such
# a script configures everything else itself.
SUPPORTED_OPTIONS = ("target", "arguments", "provider", "hosts", "settings", "nodes", "python", "debug")
LIBRARY = "skyward_core"


def run_command(context: click.Context, target: str, commands: Sequence[str], console: Console) -> int:
    """Replace this process by ``python -m skyward_core``, which runs a script with commands of ``sky.app``.

    Args:
        context: Context of the ``run`` command.
        target: The script, or ``script:command``.
        commands: Names of the script's commands.
        console: Console for the output.

    Raises:
        UsageError: If an option does not apply to such a script.
    """
    path, command = split_target(target)
    options = context.params
    if options["dry_run"]:
        raise UsageError(
            f"--dry-run cannot show the machines of {path}: its sky.app commands set them when they run. Use "
            f"`python -m {LIBRARY} --dry-run {path}`, which runs the script but rents nothing"
        )
    if unsupported := [each.opts[-1] for each in given_parameters(context) if each.name not in SUPPORTED_OPTIONS]:
        raise UsageError(
            f"{path} has commands of sky.app ({', '.join(commands)}), which set their own machines. Remove "
            f"{', '.join(unsupported)}; only --provider, --hosts, --set, --nodes and --python apply"
        )
    provider, settings = parse_provider_settings(options["provider"], options["hosts"], options["settings"])
    words = [] if provider is None else ["--provider", provider]
    for name, text in settings.items():
        words += ["--set", f"{name}={text}"]
    words += [] if options["nodes"] is None else ["--nodes", str(options["nodes"])]
    words += [str(path), *([] if command is None else [command])]
    words += [f"--{each}" for each in options["arguments"]]
    words += [*context.args, *(context.meta[SCRIPT_ARGUMENTS] or ())]
    python = _resolve_interpreter(str(path), options["python"], console)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [python, "-m", LIBRARY, *words])


def _resolve_interpreter(script: str, asked: str | None, console: Console) -> str:
    """Return the script's interpreter if it has this library, which the script needs to create pools. Otherwise return
    our own interpreter.

    Raises:
        UsageError: If the requested interpreter lacks the library.
    """
    found = choose_interpreter(split_target(script)[0], asked, ask=query_python)
    if not lacks_module(found, LIBRARY):
        return found.path
    if asked is not None:
        raise UsageError(f"{LIBRARY} is not installed for {asked}, but the script needs it. Install it there")
    console.note(f"{LIBRARY} is not installed for {found}: running the script with {sys.executable}")
    return sys.executable
