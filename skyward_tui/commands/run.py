"""``skyward-tui run`` and ``attach``: see a run to its end, and leave nothing half done."""

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

from skyward_core.front.base import Front
from skyward_core.front.history import Receipt
from skyward_core.front.launch_plan import LaunchPlan
from skyward_core.front.launch_request import LaunchRequest
from skyward_core.front.scripts import Interpreter, Task
from skyward_core.front.session import Session
from skyward_core.front.user_files import is_file
from skyward_core.model import exit_status
from skyward_core.model.capabilities import RunsHere
from skyward_core.model.errors import PoolExistsError, ScriptError, SkywardError, UsageError, what_of
from skyward_core.model.spec import PoolSpec
from skyward_core.views.events import PoolState, RunEnded, RunOpened
from skyward_core.views.job_steps import steps_of
from skyward_core.views.metrics import MetricBook, numbers_line
from skyward_core.views.trial_sheet import TrialSheet
from skyward_core.views.trials import TrialTable
from skyward_core.views.views import PoolView, RunView
from skyward_core.wire.safe_text import paragraph

from ..as_json import pool_json, run_json, trials_json
from ..launch_plan import lacking, rows, unfit
from ..packaged import meant
from ..trial_words import gang_words, outcome_line
from ..words import between, count, duration
from .calling import Caller
from .console import Console
from .follow import MUST_FINISH, Choice, Follower, Interrupted
from .reach import opened, up
from .report import drop_shown, keep_unshown, receipt_line, show_run, status_of, table
from .sweep import note_left
from .trials import GangNotes, TrialNotes, show_trials

if TYPE_CHECKING:
    from skyward_core.front.kept_commands import KeptShell

T = TypeVar("T")

NEXT_STEP = 15.0  # seconds that a job's next step may take to come; its nodes are kept for it for 10


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
        have_terminal(console, detach=request.detach)
    with opened(console) as session:
        found = live_pool(session, request.pool)
        if found is not None and request.shapes_pool:
            raise UsageError(
                f"pool {found.name} is up already ({count(len(found.nodes), 'node')} on {found.provider}): "
                "leave out --provider, --hosts, --set, --nodes, --ranks-per-node, --accelerator, --allocation, "
                "--max-hourly, --selection, --budget, --wait-for-capacity, --debug-wait, --plugin, "
                "--image-set, --lock, --requirements, --project and --output to "
                f"run on it as it is, end it (skyward-tui down {found.name}), or choose another name"
            )
        plan = _plan(request, launching=not dry_run)
        if missing is not None:
            plan = replace(plan, sheet=missing)
        if found is not None:
            plan = plan.on(found)
        plan = plan.with_gangs()
        if said := plan.since(before[1]):
            console.note(f"run {before[0]}: {said}")
        if dry_run:
            return _tell(plan, console)
        if plan.loses_files and not console.is_terminal:
            console.note(f"pool {plan.pool.name}: {plan.loses_files}")
        if request.outputs and plan.spec is not None and isinstance(plan.spec.provider, RunsHere):
            console.note("ranks work in your own folder here: --output has nothing to bring")
        if said := unfit(plan, as_options=True):
            console.note(said)
        if said := lacking(plan, as_options=True):
            console.note(said)
        tasks = plan.tasks(echo=True)
        caller = None if request.detach else Caller(console)
        job = Job(session, console, plan.pool.name, ours=found is None, keep=plan.keep, caller=caller)
        if watch:
            job.watch()
        with job.follower.signals():
            return job.execute(plan.spec, tasks, request, plan.sheet)


def have_terminal(console: Console, *, detach: bool = False) -> None:
    """See to it that there is one for what ``--watch`` draws.

    Raises:
        UsageError: there is none, or something else was asked for, too, that has none.
    """
    if console.as_json or detach:
        raise UsageError(
            f"--watch stays and draws: leave it out, or {'--json' if console.as_json else '--detach'}"
        )
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        raise UsageError("--watch draws on a terminal, and standard error is none")


def _tell(plan: LaunchPlan, console: Console) -> int:
    """What a run would do."""
    rental = plan.rental()
    told = rows(plan, as_options=True)
    for line in table(told):
        console.say(line)
    attempts = [asdict(each) | {"billed_hourly": each.billed_hourly} for each in rental.attempts]
    hourly = rental.hourly if rental.attempts or not plan.rents else None
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
    return exit_status.OK


def _plan(request: LaunchRequest, *, launching: bool) -> LaunchPlan:
    try:
        return request.plan(launching=launching)
    except ScriptError as error:
        if example := meant(Path(request.script)):
            raise ScriptError(f"{error}\nthere is an example of that name: run {example}") from error
        if "." in request.script and is_file(f"{request.script.replace('.', '/')}.py"):
            raise ScriptError(f"{error}; a module is run with -m: run -m {request.script}") from error
        raise


def attach(pool: str, console: Console, *, watch: bool = False) -> int:
    """Follow what runs on a pool until it ends, and give its exit status; the pool stays up.

    Args:
        watch: tell how it is in a few lines, in place of all that ranks print.
    """
    if watch:
        have_terminal(console)
    with opened(console) as session:
        (row,) = up(session, (pool,))
        view = session.look(row.key).result()
        running = [run for run in view.runs.values() if run.state == "running"]
        if not running:
            console.note(f"nothing runs on pool {pool} ({view.state}, {count(len(view.nodes), 'node')})")
            console.result(pool_json(view))
            return exit_status.OK
        if any(task.state == "lost" for task in running[-1].tasks.values()):
            # Who only looks changes nothing, and what waits for the lost ranks would wait for ever: as the run's client
            # would, we have it stopped.
            session.attach(row.key).result()
        caller = Caller(console)
        job = Job(session, console, pool, ours=False, keep=True, off_terminal="detach", caller=caller)
        if watch:
            job.watch()
        with job.follower.signals():
            return job.resume(running[-1])


def live_pool(session: Front, name: str | None) -> PoolView | None:
    """The pool of that name that is up."""
    if name is None:
        return None
    return next((p for p in session.refresh().result() if p.name == name and p.is_live), None)


class Job:
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
        caller: Caller | None = None,
    ) -> None:
        self.session = session
        self.console = console
        self.follower = Follower(console)
        self.pool = pool
        self.key = pool  # its own as soon as there is one, which no other pool ever has; "" for none
        self.begun: Future[PoolView] | None = None
        self.ours = ours
        self.leave = keep or not ours
        self.off_terminal = off_terminal
        self.caller = caller  # None where nobody waits for the run's end
        self.run: RunView | None = None
        self._own: set[str] = set()  # ids of all runs that this began
        self.error: Exception | None = None
        self.kept: Future[None] | None = None  # what the run was launched with
        self.leaving = ""  # what it is to leave the run, where more is to be said of that
        self.by_gangs = False  # a sweep, of which each combination is a run
        self.trials: TrialTable | None = None  # of a sweep that has ended
        self._teardown: Future[Receipt] | None = None  # begun on the session's thread when the run ended
        self._is_interrupted = False  # from then on the main thread decides about the pool, not the run's end
        self._deciding = threading.Lock()
        self._is_shown = False  # the receipt

    def execute(
        self, spec: PoolSpec | None, tasks: Sequence[Task], request: LaunchRequest, sheet: TrialSheet | None
    ) -> int:
        """Create the pool where a spec says how, run the task (or those of a sweep, of which there is a sheet), report,
        and tear down where that is due."""

        if spec is None:
            self.follower.prints = self.prints

        def work() -> int:
            joined, stays = spec is None, request.detach
            if sheet is not None and sheet.gang:
                return self._gangs(tasks, sheet, request, joined=joined)
            if sheet is not None:
                run = self._launch_sweep(tasks, sheet, request, joined=joined, stays=stays)
            else:
                run = self.launch(tasks[0], one=request.one, stays=stays, request=request, joined=joined)
            self.kept = self.session.keep_launch(self.key, run.id, request, joined=joined)
            return self.see_out(run, request.detach)

        return self.through(spec, work)

    def through(self, spec: PoolSpec | None, work: Callable[[], int]) -> int:
        """Create the pool where a spec says how, have work done on it that gives an exit status, and tear down where
        that is due."""
        up = spec is None
        try:
            if spec is not None:
                nodes = between(spec.least_nodes, spec.most_nodes, "node")
                self.console.note(f"pool {spec.name}: {nodes} on {spec.provider.name}")
                self.key, self.begun = "", Future()
                self.begun.add_done_callback(self._watch)
                self.follower.wait(self.session.create(spec, begun=self.begun))
                up = True
            else:
                # It may have been starting when we looked.
                self.key = self.follower.wait(self.session.attach(self.key)).key
                self.session.subscribe(self.key, self.follower.on_event, self.follower.on_log)
            status = work()
        except (Interrupted, KeyboardInterrupt):
            status = exit_status.INTERRUPTED
            self.leave &= up  # a pool half made is no use to keep
        except SkywardError as error:
            self.error, status = error, exit_status.of_error(error)
            self.leave &= up
            self.leave |= isinstance(error, PoolExistsError)  # that one is somebody else's
            if self.caller is not None and self.run is None:
                self.caller.start_failed(self.pool, what_of(error))
        except Exception as error:  # noqa: BLE001  a defect of this program: the pool is still torn down
            status = exit_status.FAILED
            self._show_defect(error)
            self.leave &= up
        return self._finish(status)

    def _show_defect(self, error: Exception) -> None:
        """Show where this program failed."""
        self.error = error
        print(paragraph("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)  # noqa: T201

    def _when_over(self, ended: Future[Any]) -> None:
        """Begin the teardown that is due after a run; called on the session's thread.

        The main thread may still be writing what the ranks printed, and may wait for a reader that has stopped reading.
        """
        with self._deciding:
            run = self.run
            more = run is not None and run.more and status_of(run) == exit_status.OK
            if not (self._is_interrupted or self.leave or more or ended.cancelled()):
                self._teardown = self.session.down(self.key)

    def _may_decide(self) -> bool:
        """Return whether a signal decides about the pool; it does not if the run's end has begun the teardown."""
        with self._deciding:
            self._is_interrupted = True
        if self._teardown is not None:
            self.console.note(MUST_FINISH)
        return self._teardown is None

    def _launch_sweep(
        self, tasks: Sequence[Task], sheet: TrialSheet, request: LaunchRequest, *, joined: bool, stays: bool
    ) -> RunView:
        notes = TrialNotes(self.console, sheet)
        self.follower.on_trial = notes.told
        launched = self.session.launch_sweep(self.key, tasks, sheet, request, joined=joined, stays=stays)
        run = self._begun(launched)
        self.console.note(f"run {run.id}: {tasks[0].name} on {count(run.total, 'combination')}")
        notes.begin(run.id)
        return run

    def launch(
        self,
        task: Task,
        *,
        one: bool = False,
        stays: bool = False,
        request: LaunchRequest | KeptShell | None = None,
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
        run = self._begun(launched)
        self.console.note(f"run {run.id}: {task.name} on {count(run.total, 'rank')}")
        return run

    def _begun(self, launched: Future[RunView]) -> RunView:
        with self.follower.until_known():
            self.run = run = self.follower.wait(launched)
            self._own.add(run.id)
        return run

    def prints(self, rank: int, of: str) -> bool | None:
        """Whether what a rank prints is for us, on a pool where others' runs may be, too. None where only the rank's
        next news tells: it may be another run's, which was there before, or ours, of which we hear too late.

        Args:
            of: the run that it is of; "" where nothing tells.
        """
        if of:
            return of in self._own
        if (run := self.run) is None:
            return False
        if run.id in self.follower.queued and not self.follower.is_at(rank, run.id):
            return None
        return not run.nodes or rank // self.session.view(self.key).ranks_per_node in run.nodes

    def _watch(self, begun: Future[PoolView]) -> None:
        """There is a pool of ours: hear of it. Called on the session's thread."""
        if begun.exception() is None:
            view = begun.result()
            self.key = view.key
            if view.detail:  # said before there was anybody to hear it
                told = PoolState(pool=view.name, state=view.state, detail=view.detail, hint=view.hint)
                self.follower.on_event(told)
            self.session.subscribe(self.key, self.follower.on_event, self.follower.on_log)

    def watch(self) -> None:
        """Tell how the run is, in place of all that its ranks print."""
        from .live import LiveBlock, Row, rows

        def look(said: str) -> list[Row]:
            view = next(filter(self._is_ours, self.session.pools()), None)
            return [] if view is None else rows(view, self.run, said, time.time())

        self.follower.live = LiveBlock(self.console, look)

    def resume(self, run: RunView) -> int:
        """Follow a run that is under way, and, where it is a step of somebody's job, those that follow."""
        self.run, self.key = run, self.session.view(self.pool).key
        self.session.subscribe(self.key, self.follower.on_event, self.follower.on_log, missed=True)
        try:
            while True:
                self.console.note(f"run {run.id}: {run.function} on {count(run.total, 'rank')}")
                status = self.see_out(run)
                if status != exit_status.OK or not run.more:
                    return self._finish(status)
                if (step := self._next_step(run)) is None:
                    return self._finish(exit_status.FAILED)  # the job is not done
                self.run = run = step
        except Interrupted:  # between two steps
            return self._finish(exit_status.INTERRUPTED)

    def _next_step(self, run: RunView) -> RunView | None:
        """The step of a job that follows one that has ended; None where it does not come."""

        def found() -> RunView | None:
            view = self.session.view(self.key)
            steps = [each for each in steps_of(view, run) if each.opened_at > run.opened_at]
            return next(iter(steps), None)

        def is_over() -> bool:
            return found() is not None or not self.session.view(self.key).is_live

        if not self.follower.wait_until(is_over, NEXT_STEP):
            self.console.note(
                f"what follows {run.function} has not begun: its client is gone, or it waits for nodes "
                f"(skyward-tui queue {self.pool})"
            )
        return found()

    def see_out(self, run: RunView, detach: bool = False) -> int:
        """Wait for the run's end, whatever signals come, and give the exit status."""
        if detach:
            # Until its ranks have begun, the run needs us.
            most = self.session.view(self.key).world_size if run.kind == "sweep" else run.total
            self.follower.wait_until(lambda: run.state != "running" or len(run.tasks) >= min(most, run.total))
            self._part(run)
            return exit_status.OK
        ended = self.session.wait(self.key, run.id)
        ended.add_done_callback(self._when_over)
        try:
            self.follower.wait(ended)
        except Interrupted as interruption:
            if self._may_decide():
                self._interrupted(run, ended, interruption)
                return exit_status.INTERRUPTED
        self._report(ended.result())
        if self.caller is not None:
            self.caller.run_ended(run, self.pool)
        return status_of(run)

    def _gangs(
        self, tasks: Sequence[Task], sheet: TrialSheet, request: LaunchRequest, *, joined: bool
    ) -> int:
        """Run each combination as a gang, as many at a time as fit; the status is that of the first that failed."""
        self.by_gangs = True
        launched = self.session.launch_sweep(self.key, tasks, sheet, request, joined=joined)
        run = self._begun(launched)
        view = self.session.view(self.key)
        # Not waited for by the follower: what ranks print is shown once it is known whose runs are ours.
        board = self.session.trials(self.key, run).result()
        self._own |= set(board.sheet.runs.values())
        many = count(len(tasks), "combination")
        self.console.note(f"{tasks[0].name}: {many}, {gang_words(sheet.nodes, len(view.nodes))}")
        notes = GangNotes(self.console, board, view)
        notes.began(run.id)

        def told(event: RunOpened | RunEnded) -> None:
            notes.told(event)
            # What a live block shows: the newest of those that go on.
            going = (each for each in reversed(notes.views.values()) if each.state == "running")
            self.run = next(going, self.run)

        self.follower.on_run = told
        over = self.session.sweep_over(self.key, run.id)
        over.add_done_callback(self._when_over)
        try:
            self.follower.wait(over)
        except Interrupted as interruption:
            if self._may_decide():
                return self._interrupted_gangs(run, over, interruption)
        finally:
            begun = list(notes.views.values())
            self.run = next((each for each in begun if each.state not in ("running", "done")), begun[-1])
        self._report(self.run)
        return status_of(self.run)

    def _interrupted_gangs(self, run: RunView, over: Future[None], interruption: Interrupted) -> int:
        """A signal came while a sweep by gangs was awaited."""
        leaving = "and leave running what runs: the rest does not begin"
        choice = self._chosen("the sweep", interruption, outlives_us=True, leaving=leaving)
        if choice == "detach":
            over.cancel()
            self._part(self.run or run)
            self.console.note(
                f"what has not begun of the sweep does not: skyward-tui rerun {run.id} --missing runs it later"
            )
            return exit_status.INTERRUPTED
        self.console.note("cancelling the sweep")
        try:
            self.follower.wait(self.session.cancel(self.key, run.id))
            self.follower.wait(self.session.sweep_over(self.key, run.id))
            self._report(self.run or run)
        except Interrupted:
            self.leave &= not self.ours  # no patience left: the teardown stops the runs as well
        return exit_status.INTERRUPTED

    def _interrupted(self, run: RunView, ended: Future[RunView], interruption: Interrupted) -> None:
        """A signal came while a run was awaited."""
        choice = self._chosen(f"run {run.id}", interruption, outlives_us=None, leaving=self.leaving)
        if choice == "detach":
            ended.cancel()  # nobody waits any more
            self._part(run)
        else:
            self._cancel(run, ended)

    def _chosen(
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
                asked = self.session.outlives_us(self.key, self.run.id if self.run is not None else "")
                outlives_us = self.follower.wait(asked, heed=False)
            with suppress(Interrupted):  # nobody is there any more
                choice = self.follower.ask(what, outlives_us=outlives_us, leaving=leaving)
                self.leave = choice != "down"  # whoever answers has said what becomes of the pool
        return choice

    def _cancel(self, run: RunView, ended: Future[RunView]) -> None:
        why = ": its output has no reader any more" if self.console.unread else ""
        self.console.note(f"cancelling run {run.id}{why}")
        try:
            self.follower.wait(self.session.cancel(self.key, run.id))
            self._report(self.follower.wait(ended))
        except Interrupted:
            self.leave &= not self.ours  # no patience left: the teardown stops the run as well

    def _finish(self, status: int) -> int:
        """Tear down where that is due, say what is left to say, and give the exit status."""
        receipt: Receipt | None = None
        if self.begun is not None:  # nothing may begin to exist behind our back
            with suppress(Exception):  # it is the error of the start, too, and was handled as that
                self._must(self.begun)
        with self._deciding:
            self._is_interrupted = True
            down = self._teardown
        if not self.leave and any(self._is_ours(view) and view.is_live for view in self.session.pools()):
            down = down or self.session.down(self.key)
        if down is not None:
            try:
                receipt = self._must(down)
            except SkywardError as error:
                self.error, status = error, exit_status.UNVERIFIED
            except Exception as error:  # noqa: BLE001  a defect of this program
                self._show_defect(error)
                status = exit_status.UNVERIFIED
            else:
                status = status if receipt.ok else exit_status.UNVERIFIED
        if receipt is not None:
            keep_unshown(self.session, self.key, receipt)  # before it is printed: the client may be killed
        try:
            self._tell_end(receipt)
        except Exception as error:  # noqa: BLE001  a defect of this program
            self._show_defect(error)
        if receipt is not None and self._is_shown:
            drop_shown(self.session, [self.key.partition(".")[2]])
        return status or (exit_status.OK if self.error is None else exit_status.FAILED)

    def _must(self, future: Future[T]) -> T:
        """Wait for what has to finish, whatever fails while its events are printed."""
        try:
            return self.follower.wait(future, heed=False)
        except Exception as error:
            if future.done() and future.exception() is error:
                raise
            self._show_defect(error)
            return future.result()

    def _tell_end(self, receipt: Receipt | None) -> None:
        """Say what is left to say."""
        self.follower.finish()
        self._see_kept()
        if receipt is not None:
            self.console.note(receipt_line(receipt))
            self._is_shown = self.console.shows_notes
            ours = filter(self._is_ours, self.session.pools())
            note_left(self.session, [view.spec for view in ours], self.console)
        if self.error is not None:
            self.console.fail(self.error)
        if self.run is not None:
            trials = trials_json(self.trials) if self.trials is not None else {}
            self.console.result(run_json(self.run, receipt) | trials)
            self._is_shown |= self.console.shows_results
        if self.caller is not None:
            self.caller.settle()

    def _see_kept(self) -> None:
        """The run's launch is kept, or it is told why not."""
        if self.kept is None:
            return
        try:
            self.follower.wait(self.kept, heed=False)
        except (OSError, SkywardError) as error:
            self.console.note(
                f"how the run was launched is not kept whole, and rerun may know nothing of it: {error}"
            )

    def _is_ours(self, view: PoolView) -> bool:
        return self.key == view.key

    def _report(self, run: RunView) -> None:
        self.follower.finish()
        if run.kind == "sweep" or self.by_gangs:
            board = self.session.trials(self.key, run).result()
            runs = self.session.view(self.key).runs
            self.trials = board.table(run.id, run.tasks, MetricBook(), runs)
            show_trials(run, self.trials, self.console)
            if self.by_gangs and (said := outcome_line(self.trials, run.id)):
                self.console.note(said)
        else:
            show_run(run, self.console)
        if self.follower.live is not None:
            self.console.note(f"what its ranks printed: skyward-tui logs {run.id}")
        view = next(filter(self._is_ours, self.session.pools()), None)
        ranks = view.metrics.ranks(run.id) if view is not None and self.trials is None else []
        if view is not None and ranks:
            more = f" (and {count(len(ranks) - 1, 'rank')} more)" if len(ranks) > 1 else ""
            last = numbers_line(view.metrics.latest(run.id, ranks[0]))
            self.console.note(f"last numbers of rank {ranks[0]}{more}: {last}")

    def _part(self, run: RunView) -> None:
        """Leave the pool as it is, and tell what became of the run."""
        was_over = run.state != "running"
        until = next(map(_machines_end, filter(self._is_ours, self.session.pools())), "")
        self.follower.wait(self.session.leave(self.key), heed=False)
        results, end = f"skyward-tui results {run.id}", f"the pool's end: skyward-tui down {self.pool}"
        if run.state == "running":
            said = f"goes on; watch it with: skyward-tui attach {self.pool}\nits results: {results}; {end}"
        elif was_over:
            said = f"has ended ({run.state}); its results: {results}\n{end}"
        else:
            said = f"is cancelled: no node had got any of it\n{end}"
        self.console.note(f"run {run.id} {said}{until}")


def _machines_end(view: PoolView) -> str:
    """When a pool that nobody uses ends, where what nobody has fetched goes with its machines; else ""."""
    if not (view.rents or view.price_hourly):
        return ""
    seconds = float(view.spec.get("options", {}).get("idle_timeout", 0.0))
    return f"\nits machines end {duration(seconds)} after the last run, and what nobody has fetched with them"
