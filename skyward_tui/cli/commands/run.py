"""Run, script, call, sweep."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from skyward_core.client import settings
from skyward_core.client.launch.launch_plan import LaunchPlan, make_plan
from skyward_core.client.launch.launch_request import LaunchRequest, parse_provider_settings
from skyward_core.client.launch.script_plugin_provider_discovery import (
    Interpreter,
    Task,
    choose_interpreter,
    lacks_module,
    query_python,
    split_target,
)
from skyward_core.client.run_history import Receipt
from skyward_core.client.session import Session
from skyward_core.client.session_interface import SessionInterface
from skyward_core.model import errors
from skyward_core.model.errors import PoolExistsError, ScriptError, SkywardError, UsageError, error_message
from skyward_core.model.outcomes import Outcome
from skyward_core.model.provider_capabilities import RunsHere
from skyward_core.model.specs import PoolSpec
from skyward_core.util.terminal_safe_text import sanitize_paragraph
from skyward_core.util.user_files import is_file
from skyward_core.views.events import PoolState, RunEnded, RunOpened
from skyward_core.views.job_steps import steps_of_job
from skyward_core.views.notification_rules import Notification, run_notification
from skyward_core.views.pool_view import PoolView, RunView, TaskView, TrialSheet
from skyward_core.views.rank_metrics import MetricStore, format_metrics
from skyward_core.views.sweep_trials import TrialRow, TrialTable, TrialTableSource, representative_task
from skyward_tui.cli.commands.leftovers import note_leftovers
from skyward_tui.cli.console import Console
from skyward_tui.cli.follow_run import MUST_FINISH, Choice, Follower, Interrupted, LiveStatus, Row, status_rows
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session
from skyward_tui.cli.run_report import (
    COLORS,
    GLYPHS,
    drop_receipts,
    exit_status,
    failure_lines,
    outcome_note,
    queue_receipt,
    receipt_line,
    show_run,
    table,
)
from skyward_tui.cli.shared_options import SCRIPT_ARGUMENTS, command, require_terminal, watch_option
from skyward_tui.launch_form.form import suggest_example
from skyward_tui.launch_form.plan_text import missing_packages_text, plan_rows, python_mismatch
from skyward_tui.notifications import Notifier
from skyward_tui.text.json_output import pool_json, run_json, trials_json
from skyward_tui.text.number_and_time_format import clip, count, count_range, duration, number, precise_duration
from skyward_tui.text.queue_sweep_comparison_rows import combination_text, gang_text, sweep_outcome

if TYPE_CHECKING:
    from skyward_core.client.launch.job_records import ShellRecord
    from skyward_core.views.pool_view import RunView


class RunNotifier:
    """Calls the person about one run; what of their settings cannot be used is said at once."""

    def __init__(self, console: Console) -> None:
        own = settings.load_user_settings()
        for said in own.refused:
            if "notify" in said:
                console.note(said)
        self._notifier = Notifier(own.notify, _ring_terminal, console.note)
        self._started_at = time.monotonic()

    def run_ended(self, run: RunView, pool: str) -> None:
        """A run has ended; returns at once."""
        self._notify(run_notification(run, pool, time.time()))

    def start_failed(self, pool: str, reason: str) -> None:
        """There is no pool, and so no run; returns at once."""
        self._notify(Notification("failed", pool, what="the start", detail=reason))

    def wait_for_command(self) -> None:
        """Wait for the person's command, which has a limit and ends with us."""
        if self._notifier.ways.command:
            from skyward_core.client.notify_command import wait_for_commands

            wait_for_commands()

    def _notify(self, told: Notification) -> None:
        # Who has waited for a pool's start has waited, however short the run was.
        waited = time.monotonic() - self._started_at
        self._notifier.notify_unless_seen(told._replace(seconds=waited), True, waited)


def _ring_terminal(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()


class TrialReporter:
    """Tells of each trial of a run as it ends."""

    def __init__(self, console: Console, sheet: TrialSheet) -> None:
        self._console = console
        self._sheet = sheet
        self._ended_tasks: set[int] = set()
        self._run = ""
        self._early: list[tuple[str, Outcome]] = []  # until it is known which run is the sweep's

    def set_run(self, run: str) -> None:
        """The sweep is that run."""
        self._run = run
        for of, outcome in self._early:
            self.on_outcome(of, outcome)
        self._early.clear()

    def on_outcome(self, run: str, outcome: Outcome) -> None:
        """A task of a run of the pool has ended."""
        if not self._run:
            self._early.append((run, outcome))
            return
        if run != self._run or outcome.index in self._ended_tasks or outcome.index >= len(self._sheet.tasks):
            return
        self._ended_tasks.add(outcome.index)
        task = TaskView(outcome.index, outcome.rank, outcome.node, outcome.kind, outcome=outcome)
        said = combination_text(self._sheet, self._sheet.tasks[outcome.index])
        so_far = f"{len(self._ended_tasks):,}/{len(self._sheet.tasks):,}"
        line = f"{so_far} {said}: {outcome.kind} {outcome_note(task)}".rstrip()
        self._console.note(f"{clip(line, 300)} ({precise_duration(outcome.seconds)})")


class GangReporter:
    """Tells of each run of a sweep by gangs as it begins, and as it ends.

    Args:
        board: of the sweep.
        pool: what it looks like, always as it is now.

    Attributes:
        views: of the runs that have begun; a pool has those of late alone.
    """

    def __init__(self, console: Console, board: TrialTableSource, pool: PoolView) -> None:
        self._console = console
        self._sheet = board.sheet
        self._rows = {run: row for row, run in board.sheet.runs.items()}
        self._pool = pool
        self._ended_count = 0
        self.views: dict[str, RunView] = {}

    def on_run_started(self, run: str) -> None:
        """A run of the pool has begun."""
        if run in self._rows and run not in self.views and (view := self._pool.runs.get(run)) is not None:
            self.views[run] = view
            so_far = f"{len(self.views):,}/{len(self._rows):,}"
            self._console.note(f"run {run}: {so_far} {self._combination_text(run)} on {count(view.total, 'rank')}")

    def on_run_event(self, event: RunOpened | RunEnded) -> None:
        """A run of the pool begins, or has ended."""
        self.on_run_started(event.run)
        if isinstance(event, RunOpened) or event.run not in self.views:
            return
        self._ended_count += 1
        view = self.views[event.run]
        stands = representative_task(view.tasks.values())
        what = "" if stands is None or event.state == "done" else f" ({outcome_note(stands)})"
        nodes = "node" if len(view.nodes) == 1 else "nodes"
        where = f" on {nodes} {', '.join(map(str, view.nodes))}" if view.nodes else ""
        progress = f"{self._ended_count:,}/{len(self._rows):,} have ended"
        line = f"run {view.id}: {progress}, {self._combination_text(view.id)}: {event.state}"
        self._console.note(f"{clip(line + what, 300)}{where} ({precise_duration(event.at - view.opened_at)})")

    def _combination_text(self, run: str) -> str:
        return combination_text(self._sheet, self._rows[run])


def show_trials(run: RunView, found: TrialTable, console: Console, sort: str | None = None) -> None:
    """The table of a sweep, and the first failure.

    Args:
        sort: a column, or a key of the results; with a - before it the greatest first. None: as combined.

    Raises:
        UsageError: there is no such column.
    """
    rows = sorted_rows(found, sort)
    lines = table(trial_cells(found, rows))
    console.print_line(clip(lines[0], console.width), 1)
    for line, row in zip(lines[1:], rows, strict=True):
        codes = (COLORS[row.state],) if row.state in COLORS else ()
        console.print_line(clip(line, console.width), *codes)
    for line in failure_lines(run) if run.kind == "sweep" else ():  # by gangs it is of one trial alone
        console.note(line)


def sorted_rows(found: TrialTable, sort: str | None) -> list[TrialRow]:
    """The rows as a person wants them.

    Raises:
        UsageError: there is no such column.
    """
    if sort is None:
        return list(found.rows)
    try:
        return found.sorted_rows(sort.removeprefix("-"), falling=sort.startswith("-"))
    except KeyError:
        raise UsageError(f"there is no column {sort!r} to sort by; there are {', '.join(found.columns)}") from None


def trial_cells(found: TrialTable, rows: list[TrialRow]) -> list[tuple[str, ...]]:
    """The table's texts, its head first; results last, which may be long."""
    cells = [found.columns]
    for row in rows:
        numbers = (row.numbers.get(name) for name in found.numbers)
        state = f"{GLYPHS.get(row.state, '◌')} {row.state}"
        time = "" if row.seconds is None else precise_duration(row.seconds)
        shown = ("" if each is None else number(each) for each in numbers)
        note = "" if row.task is None else outcome_note(row.task)
        cells.append((str(row.place), *row.arguments, state, time, *shown, note))
    return cells


T = TypeVar("T")

NEXT_STEP_SECONDS = 15.0  # seconds that a job's next step may take to come; its nodes are kept for it for 10


def run(
    request: LaunchRequest,
    console: Console,
    *,
    dry_run: bool = False,
    watch: bool = False,
    missing: TrialSheet | None = None,
    before: tuple[str, Interpreter | None] = ("", None),
) -> int:
    """Run a script's function on a pool, and give the exit status.

    The pool is made for the run and torn down after it; one of that name that is up is used, and stays.

    Args:
        dry_run: make, load and run nothing; tell what would be.
        watch: tell how it is in a few lines, in place of all that ranks print.
        missing: of a sweep, what is to be run of it.
        before: the run that this one is again, and the Python that it had.
    """
    if watch:
        require_terminal(console, detach=request.detach)
    with open_session(console) as session:
        found = live_pool(session, request.pool)
        if found is not None and (options := request.shapes_pool):
            raise UsageError(
                f"pool {found.name} is up already ({count(len(found.nodes), 'node')} on {found.provider}): "
                f"leave out {', '.join(options)} to run on it as it is, end it (skyward-tui down {found.name}), "
                "or choose another name"
            )
        plan = _make_plan(request, launching=not dry_run)
        if missing is not None:
            plan = replace(plan, sheet=missing)
        if found is not None:
            plan = plan.on_pool(found)
        plan = plan.with_gangs()
        if said := plan.describe_python_change(before[1]):
            console.note(f"run {before[0]}: {said}")
        if dry_run:
            return _show_plan(plan, console)
        if plan.file_loss_warning and not console.is_terminal:
            console.note(f"pool {plan.pool.name}: {plan.file_loss_warning}")
        if request.outputs and plan.spec is not None and isinstance(plan.spec.provider, RunsHere):
            console.note("ranks work in your own folder here: --output has nothing to bring")
        if said := python_mismatch(plan, as_options=True):
            console.note(said)
        if said := missing_packages_text(plan, as_options=True):
            console.note(said)
        tasks = plan.load_tasks(echo=True)
        caller = None if request.detach else RunNotifier(console)
        job = PoolCommand(
            session, console, plan.pool.name, ours=found is None, keep=plan.keep, caller=caller, watch=watch
        )
        with job.follower.catch_signals():
            return job.execute(plan.spec, tasks, request, plan.sheet)


def _show_plan(plan: LaunchPlan, console: Console) -> int:
    """What a run would do."""
    rental = plan.rental_plan()
    told = plan_rows(plan, as_options=True)
    console.print_line("\n".join(table(told)))
    attempts = [asdict(each) | {"billed_hourly": each.billed_hourly} for each in rental.attempts]
    hourly = rental.hourly if rental.attempts or not plan.has_unknown_price else None
    console.result(
        {
            "plan": [list(each) for each in told],
            "hourly": plan.price_hourly or hourly,
            "attempts": attempts,
            "creates": list(rental.creates),
            "requests": [dict(each) for each in rental.requests],
            "notes": list(rental.notes),
        }
    )
    return errors.OK


def _make_plan(request: LaunchRequest, *, launching: bool) -> LaunchPlan:
    try:
        return make_plan(request, launching=launching)
    except ScriptError as error:
        if example := suggest_example(Path(request.script)):
            raise ScriptError(f"{error}\nthere is an example of that name: run {example}") from error
        if "." in request.script and is_file(f"{request.script.replace('.', '/')}.py"):
            raise ScriptError(f"{error}; a module is run with -m: run -m {request.script}") from error
        raise


@command()
@click.argument("pool")
@watch_option
def attach(console: Console, pool: str, watch: bool) -> int:
    """Watch what runs on a pool, until it ends."""
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        view = session.observe(row.key).result()
        running = [run for run in view.runs.values() if run.state == "running"]
        if not running:
            console.note(f"nothing runs on pool {pool} ({view.state}, {count(len(view.nodes), 'node')})")
            console.result(pool_json(view))
            return errors.OK
        if any(task.state == "lost" for task in running[-1].tasks.values()):
            # Who only looks changes nothing, and what waits for the lost ranks would wait for ever: as the run's client
            # would, we have it stopped.
            session.attach(row.key).result()
        caller = RunNotifier(console)
        job = PoolCommand(
            session, console, pool, ours=False, keep=True, off_terminal="detach", caller=caller, watch=watch
        )
        with job.follower.catch_signals():
            return job.resume(running[-1])


def live_pool(session: SessionInterface, name: str | None) -> PoolView | None:
    """The pool of that name that is up."""
    if name is None:
        return None
    return next((p for p in session.refresh().result() if p.name == name and p.is_live), None)


class PoolCommand:
    """One run and its pool, from the first request to the receipt."""

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
        self.key = pool  # its own as soon as there is one, which no other pool ever has; "" for none
        self.begun: Future[PoolView] | None = None
        self.is_owner = ours
        self.leave_pool = keep or not ours
        self.off_terminal = off_terminal
        self.notifier = caller  # None where nobody waits for the run's end
        self.run: RunView | None = None
        self._own_run_ids: set[str] = set()  # ids of all runs that this began
        self.error: Exception | None = None
        self.launch_saved: Future[None] | None = None  # what the run was launched with
        self.detach_text = ""  # what it is to leave the run, where more is to be said of that
        self.is_gang_sweep = False  # a sweep, of which each combination is a run
        self.trials: TrialTable | None = None  # of a sweep that has ended
        self._teardown: Future[Receipt] | None = None  # begun on the session's thread when the run ended
        self._is_interrupted = False  # from then on the main thread decides about the pool, not the run's end
        self._deciding = threading.Lock()
        self._is_shown = False  # the receipt
        if watch:
            self.follower.live = LiveStatus(console, self._status_rows)

    def execute(
        self, spec: PoolSpec | None, tasks: Sequence[Task], request: LaunchRequest, sheet: TrialSheet | None
    ) -> int:
        """Create the pool where a spec says how, run the task (or those of a sweep, of which there is a sheet), report,
        and tear down where that is due."""

        if spec is None:
            self.follower.is_output_ours = self.is_output_ours

        def work() -> int:
            joined, stays = spec is None, request.detach
            if sheet is not None and sheet.gang:
                return self._run_gangs(tasks, sheet, request, joined=joined)
            if sheet is not None:
                run = self._launch_sweep(tasks, sheet, request, joined=joined, stays=stays)
            else:
                run = self.launch(tasks[0], one=request.one, stays=stays, request=request, joined=joined)
            self.launch_saved = self.session.save_launch(self.key, run.id, request, joined=joined)
            return self.wait_and_report(run, request.detach)

        return self.run_on_pool(spec, work)

    def run_on_pool(self, spec: PoolSpec | None, work: Callable[[], int]) -> int:
        """Create the pool where a spec says how, have work done on it that gives an exit status, and tear down where
        that is due."""
        up = spec is None
        try:
            if spec is not None:
                nodes = count_range(spec.least_nodes, spec.most_nodes, "node")
                self.console.note(f"pool {spec.name}: {nodes} on {spec.provider.name}")
                self.key, self.begun = "", Future()
                self.begun.add_done_callback(self._subscribe)
                self.follower.wait(self.session.create(spec, begun=self.begun))
                up = True
            else:
                # It may have been starting when we looked.
                self.key = self.follower.wait(self.session.attach(self.key)).key
                self.session.subscribe(self.key, self.follower.on_event, self.follower.on_log)
            status = work()
        except (Interrupted, KeyboardInterrupt):
            status = errors.INTERRUPTED
            self.leave_pool &= up  # a pool half made is no use to keep
        except SkywardError as error:
            self.error, status = error, errors.error_exit_code(error)
            self.leave_pool &= up
            self.leave_pool |= isinstance(error, PoolExistsError)  # that one is somebody else's
            if self.notifier is not None and self.run is None:
                self.notifier.start_failed(self.pool, error_message(error))
        except Exception as error:  # noqa: BLE001  a defect of this program: the pool is still torn down
            status = errors.FAILED
            self._show_defect(error)
            self.leave_pool &= up
        return self._finish(status)

    def _show_defect(self, error: Exception) -> None:
        """Show where this program failed."""
        self.error = error
        print(sanitize_paragraph("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)  # noqa: T201

    def _start_teardown(self, ended: Future[Any]) -> None:
        """Begin the teardown that is due after a run; called on the session's thread.

        The main thread may still be writing what the ranks printed, and may wait for a reader that has stopped reading.
        """
        with self._deciding:
            run = self.run
            more = run is not None and run.more and exit_status(run) == errors.OK
            if not (self._is_interrupted or self.leave_pool or more or ended.cancelled()):
                self._teardown = self.session.tear_down(self.key)

    def _can_decide(self) -> bool:
        """Return whether a signal decides about the pool; it does not if the run's end has begun the teardown."""
        with self._deciding:
            self._is_interrupted = True
        if self._teardown is not None:
            self.console.note(MUST_FINISH)
        return self._teardown is None

    def _launch_sweep(
        self, tasks: Sequence[Task], sheet: TrialSheet, request: LaunchRequest, *, joined: bool, stays: bool
    ) -> RunView:
        notes = TrialReporter(self.console, sheet)
        self.follower.on_trial = notes.on_outcome
        launched = self.session.launch_sweep(self.key, tasks, sheet, request, joined=joined, stays=stays)
        run = self._wait_for_launch(launched)
        self.console.note(f"run {run.id}: {tasks[0].name} on {count(run.total, 'combination')}")
        notes.set_run(run.id)
        return run

    def launch(
        self,
        task: Task,
        *,
        one: bool = False,
        stays: bool = False,
        request: LaunchRequest | ShellRecord | None = None,
        joined: bool = False,
    ) -> RunView:
        """Start a run on the pool.

        Args:
            request: what it was launched with, or the job that it is a step of, to be kept; None for neither.
            joined: whether the pool was up before.
        """
        if self.follower.live is not None:
            self.follower.live.open()
        launched = self.session.launch(self.key, task, one=one, stays=stays, request=request, joined=joined)
        run = self._wait_for_launch(launched)
        self.console.note(f"run {run.id}: {task.name} on {count(run.total, 'rank')}")
        return run

    def _wait_for_launch(self, launched: Future[RunView]) -> RunView:
        with self.follower.buffer_until_known():
            self.run = run = self.follower.wait(launched)
            self._own_run_ids.add(run.id)
        return run

    def is_output_ours(self, rank: int, of: str) -> bool | None:
        """Whether what a rank prints is for us, on a pool where others' runs may be, too. None where only the rank's
        next news tells: it may be another run's, which was there before, or ours, of which we hear too late.

        Args:
            of: the run that it is of; "" where nothing tells.
        """
        if of:
            return of in self._own_run_ids
        if (run := self.run) is None:
            return False
        if run.id in self.follower.queued and not self.follower.is_running(rank, run.id):
            return None
        return not run.nodes or rank // self.session.view(self.key).ranks_per_node in run.nodes

    def _subscribe(self, begun: Future[PoolView]) -> None:
        """There is a pool of ours: hear of it. Called on the session's thread."""
        if begun.exception() is None:
            view = begun.result()
            self.key = view.key
            if view.detail:  # said before there was anybody to hear it
                told = PoolState(pool=view.name, state=view.state, detail=view.detail, hint=view.hint)
                self.follower.on_event(told)
            self.session.subscribe(self.key, self.follower.on_event, self.follower.on_log)

    def _status_rows(self, said: str) -> list[Row]:
        """Return what to draw in place of all that ranks print."""
        view = next(filter(self._is_ours, self.session.pools()), None)
        return [] if view is None else status_rows(view, self.run, said, time.time())

    def resume(self, run: RunView) -> int:
        """Follow a run that is under way, and, where it is a step of somebody's job, those that follow."""
        self.run, self.key = run, self.session.view(self.pool).key
        self.session.subscribe(self.key, self.follower.on_event, self.follower.on_log, missed=True)
        try:
            while True:
                self.console.note(f"run {run.id}: {run.function} on {count(run.total, 'rank')}")
                status = self.wait_and_report(run)
                if status != errors.OK or not run.more:
                    return self._finish(status)
                if (step := self._wait_for_next_step(run)) is None:
                    return self._finish(errors.FAILED)  # the job is not done
                self.run = run = step
        except Interrupted:  # between two steps
            return self._finish(errors.INTERRUPTED)

    def _wait_for_next_step(self, run: RunView) -> RunView | None:
        """The step of a job that follows one that has ended; None where it does not come."""

        def found() -> RunView | None:
            view = self.session.view(self.key)
            steps = [each for each in steps_of_job(view, run) if each.opened_at > run.opened_at]
            return next(iter(steps), None)

        def is_over() -> bool:
            return found() is not None or not self.session.view(self.key).is_live

        if not self.follower.wait_until(is_over, NEXT_STEP_SECONDS):
            self.console.note(
                f"what follows {run.function} has not begun: its client is gone, or it waits for nodes "
                f"(skyward-tui queue {self.pool})"
            )
        return found()

    def wait_and_report(self, run: RunView, detach: bool = False) -> int:
        """Wait for the run's end, whatever signals come, and give the exit status."""
        if detach:
            # Until its ranks have begun, the run needs us.
            most = self.session.view(self.key).world_size if run.kind == "sweep" else run.total
            self.follower.wait_until(lambda: run.state != "running" or len(run.tasks) >= min(most, run.total))
            self._detach(run)
            return errors.OK
        ended = self.session.wait(self.key, run.id)
        ended.add_done_callback(self._start_teardown)
        try:
            self.follower.wait(ended)
        except Interrupted as interruption:
            if self._can_decide():
                self._on_interrupted(run, ended, interruption)
                return errors.INTERRUPTED
        self._report(ended.result())
        if self.notifier is not None:
            self.notifier.run_ended(run, self.pool)
        return exit_status(run)

    def _run_gangs(self, tasks: Sequence[Task], sheet: TrialSheet, request: LaunchRequest, *, joined: bool) -> int:
        """Run each combination as a gang, as many at a time as fit; the status is that of the first that failed."""
        self.is_gang_sweep = True
        launched = self.session.launch_sweep(self.key, tasks, sheet, request, joined=joined)
        run = self._wait_for_launch(launched)
        view = self.session.view(self.key)
        # Not waited for by the follower: what ranks print is shown once it is known whose runs are ours.
        board = self.session.trials(self.key, run).result()
        self._own_run_ids |= set(board.sheet.runs.values())
        many = count(len(tasks), "combination")
        self.console.note(f"{tasks[0].name}: {many}, {gang_text(sheet.nodes, len(view.nodes))}")
        notes = GangReporter(self.console, board, view)
        notes.on_run_started(run.id)

        def told(event: RunOpened | RunEnded) -> None:
            notes.on_run_event(event)
            # What a live block shows: the newest of those that go on.
            going = (each for each in reversed(notes.views.values()) if each.state == "running")
            self.run = next(going, self.run)

        self.follower.on_run = told
        over = self.session.wait_for_sweep(self.key, run.id)
        over.add_done_callback(self._start_teardown)
        try:
            self.follower.wait(over)
        except Interrupted as interruption:
            if self._can_decide():
                return self._on_sweep_interrupted(run, over, interruption)
        finally:
            begun = list(notes.views.values())
            self.run = next((each for each in begun if each.state not in ("running", "done")), begun[-1])
        self._report(self.run)
        return exit_status(self.run)

    def _on_sweep_interrupted(self, run: RunView, over: Future[None], interruption: Interrupted) -> int:
        """A signal came while a sweep by gangs was awaited."""
        leaving = "and leave running what runs: the rest does not begin"
        choice = self._ask_choice("the sweep", interruption, outlives_us=True, leaving=leaving)
        if choice == "detach":
            over.cancel()
            self._detach(self.run or run)
            self.console.note(
                f"what has not begun of the sweep does not: skyward-tui rerun {run.id} --missing runs it later"
            )
            return errors.INTERRUPTED
        self.console.note("cancelling the sweep")
        try:
            self.follower.wait(self.session.cancel(self.key, run.id))
            self.follower.wait(self.session.wait_for_sweep(self.key, run.id))
            self._report(self.run or run)
        except Interrupted:
            self.leave_pool &= not self.is_owner  # no patience left: the teardown stops the runs as well
        return errors.INTERRUPTED

    def _on_interrupted(self, run: RunView, ended: Future[RunView], interruption: Interrupted) -> None:
        """A signal came while a run was awaited."""
        choice = self._ask_choice(f"run {run.id}", interruption, outlives_us=None, leaving=self.detach_text)
        if choice == "detach":
            ended.cancel()  # nobody waits any more
            self._detach(run)
        else:
            self._cancel_run(run, ended)

    def _ask_choice(
        self, what: str, interruption: Interrupted, *, outlives_us: bool | None, leaving: str = ""
    ) -> Choice:
        """What becomes of what is awaited, as the person says, where there is one.

        Args:
            outlives_us: whether it goes on when we leave; None to ask the session that.
            leaving: what it is to leave it, where more is to be said of that.
        """
        choice = self.off_terminal
        if interruption.number == SIGINT and self.console.is_terminal:
            if outlives_us is None:
                asked = self.session.survives_exit(self.key, self.run.id if self.run is not None else "")
                outlives_us = self.follower.wait(asked, heed=False)
            with suppress(Interrupted):  # nobody is there any more
                choice = self.follower.ask(what, outlives_us=outlives_us, leaving=leaving)
                self.leave_pool = choice != "down"  # whoever answers has said what becomes of the pool
        return choice

    def _cancel_run(self, run: RunView, ended: Future[RunView]) -> None:
        reason = ": its output has no reader any more" if self.console.has_no_reader else ""
        self.console.note(f"cancelling run {run.id}{reason}")
        try:
            self.follower.wait(self.session.cancel(self.key, run.id))
            self._report(self.follower.wait(ended))
        except Interrupted:
            self.leave_pool &= not self.is_owner  # no patience left: the teardown stops the run as well

    def _finish(self, status: int) -> int:
        """Tear down where that is due, say what is left to say, and give the exit status."""
        receipt: Receipt | None = None
        if self.begun is not None:  # nothing may begin to exist behind our back
            with suppress(Exception):  # it is the error of the start, too, and was handled as that
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
            except Exception as error:  # noqa: BLE001  a defect of this program
                self._show_defect(error)
                status = errors.UNVERIFIED
            else:
                status = status if receipt.ok else errors.UNVERIFIED
        if receipt is not None:
            queue_receipt(self.session, self.key, receipt)  # before it is printed: the client may be killed
        try:
            self._report_end(receipt)
        except Exception as error:  # noqa: BLE001  a defect of this program
            self._show_defect(error)
        if receipt is not None and self._is_shown:
            drop_receipts(self.session, [self.key.partition(".")[2]])
        return status or (errors.OK if self.error is None else errors.FAILED)

    def _wait_uninterrupted(self, future: Future[T]) -> T:
        """Wait for what has to finish, whatever fails while its events are printed."""
        try:
            return self.follower.wait(future, heed=False)
        except Exception as error:
            if future.done() and future.exception() is error:
                raise
            self._show_defect(error)
            return future.result()

    def _report_end(self, receipt: Receipt | None) -> None:
        """Say what is left to say."""
        self.follower.finish()
        self._check_launch_saved()
        if receipt is not None:
            self.console.note(receipt_line(receipt))
            self._is_shown = self.console.shows_notes
            ours = filter(self._is_ours, self.session.pools())
            note_leftovers(self.session, [view.spec for view in ours], self.console)
        if self.error is not None:
            self.console.report_error(self.error)
        if self.run is not None:
            trials = trials_json(self.trials) if self.trials is not None else {}
            self.console.result(run_json(self.run, receipt) | trials)
            self._is_shown |= self.console.shows_results
        if self.notifier is not None:
            self.notifier.wait_for_command()

    def _check_launch_saved(self) -> None:
        """The run's launch is kept, or it is told why not."""
        if self.launch_saved is None:
            return
        try:
            self.follower.wait(self.launch_saved, heed=False)
        except (OSError, SkywardError) as error:
            self.console.note(f"how the run was launched is not kept whole, and rerun may know nothing of it: {error}")

    def _is_ours(self, view: PoolView) -> bool:
        return self.key == view.key

    def _report(self, run: RunView) -> None:
        self.follower.finish()
        if run.kind == "sweep" or self.is_gang_sweep:
            board = self.session.trials(self.key, run).result()
            runs = self.session.view(self.key).runs
            self.trials = board.table(run.id, run.tasks, MetricStore(), runs)
            show_trials(run, self.trials, self.console)
            if self.is_gang_sweep and (said := sweep_outcome(self.trials, run.id)):
                self.console.note(said)
        else:
            show_run(run, self.console)
        if self.follower.live is not None:
            self.console.note(f"what its ranks printed: skyward-tui logs {run.id}")
        view = next(filter(self._is_ours, self.session.pools()), None)
        ranks = view.metrics.ranks(run.id) if view is not None and self.trials is None else []
        if view is not None and ranks:
            more = f" (and {count(len(ranks) - 1, 'rank')} more)" if len(ranks) > 1 else ""
            last = format_metrics(view.metrics.latest(run.id, ranks[0]))
            self.console.note(f"last numbers of rank {ranks[0]}{more}: {last}")

    def _detach(self, run: RunView) -> None:
        """Leave the pool as it is, and tell what became of the run."""
        was_over = run.state != "running"
        until = next(map(_idle_end_text, filter(self._is_ours, self.session.pools())), "")
        self.follower.wait(self.session.detach_pool(self.key), heed=False)
        results, end = f"skyward-tui results {run.id}", f"the pool's end: skyward-tui down {self.pool}"
        if run.state == "running":
            said = f"goes on; watch it with: skyward-tui attach {self.pool}\nits results: {results}; {end}"
        elif was_over:
            said = f"has ended ({run.state}); its results: {results}\n{end}"
        else:
            said = f"is cancelled: no node had got any of it\n{end}"
        self.console.note(f"run {run.id} {said}{until}")


def _idle_end_text(view: PoolView) -> str:
    """When a pool that nobody uses ends, where what nobody has fetched goes with its machines; else ""."""
    if not (view.has_unknown_price or view.price_hourly):
        return ""
    seconds = float(view.spec.get("options", {}).get("idle_timeout", 0.0))
    return f"\nits machines end {duration(seconds)} after the last run, and what nobody has fetched with them"


# Options of ours that mean something there; all else the script says itself.
SUPPORTED_OPTIONS = ("target", "arguments", "provider", "hosts", "settings", "nodes", "python", "debug")
LIBRARY = "skyward_core"


def run_command(context: click.Context, target: str, commands: Sequence[str], console: Console) -> int:
    """Have ``python -m skyward_core`` run it in the place of this process.

    Args:
        target: the script, or ``script:command``.
        commands: those that the script has.

    Raises:
        UsageError: an option is none of such a script.
    """
    path, command = split_target(target)
    said = context.params
    if said["dry_run"]:
        raise UsageError(
            f"run --dry-run loads nothing, and only running {path} tells which machines its commands have: "
            f"`python -m {LIBRARY} --dry-run {path}` runs it, and rents nothing"
        )
    if unheeded := list(_ignored_options(context)):
        raise UsageError(
            f"{path} has commands of sky.app ({', '.join(commands)}), which says what machines they have: "
            f"{', '.join(unheeded)} {'is' if len(unheeded) == 1 else 'are'} not for them. --provider, --hosts, --set, "
            "--nodes and --python are"
        )
    provider, settings = parse_provider_settings(said["provider"], said["hosts"], said["settings"])
    words = [] if provider is None else ["--provider", provider]
    for name, text in settings.items():
        words += ["--set", f"{name}={text}"]
    words += [] if said["nodes"] is None else ["--nodes", str(said["nodes"])]
    words += [str(path), *([] if command is None else [command])]
    words += [f"--{each}" for each in said["arguments"]]
    words += [*context.args, *(context.meta[SCRIPT_ARGUMENTS] or ())]
    python = _resolve_interpreter(str(path), said["python"], console)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [python, "-m", LIBRARY, *words])


def _resolve_interpreter(script: str, asked: str | None, console: Console) -> str:
    """The interpreter that the script is for, if this library is installed there, as it makes the pool; else our own.

    Raises:
        UsageError: the one that was asked for has no such library.
    """
    found = choose_interpreter(split_target(script)[0], asked, ask=query_python)
    if not lacks_module(found, LIBRARY):
        return found.path
    if asked is not None:
        raise UsageError(f"{LIBRARY} is not installed for {asked}, and has to be where the script makes a pool")
    console.note(f"{LIBRARY} is not installed for {found}: the script runs with {sys.executable}")
    return sys.executable


def _ignored_options(context: click.Context) -> Iterator[str]:
    """The options that were given, and are of no use."""
    for each in context.command.params:
        name = each.name or ""
        if name not in SUPPORTED_OPTIONS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield each.opts[-1]
