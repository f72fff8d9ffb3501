"""Session with live pools: views of the pools, and methods that run on the session's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Container, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from skyward_core import providers
from skyward_core.client import leftover_cleanup, run_comparison, sweep_launch_and_resumption
from skyward_core.client import run_history as run_history
from skyward_core.client.launch import launch_records_and_script_state as launch_records
from skyward_core.client.launch.launch_records_and_script_state import LaunchRecord, ShellRecord
from skyward_core.client.leftover_cleanup import LeftoverScan
from skyward_core.client.log_search import LogSearch
from skyward_core.client.run_history import PastRun, RunPreviewData, RunSearch
from skyward_core.client.session_interface import RejectingSession
from skyward_core.model.errors import (
    Hint,
    LedgerError,
    PoolError,
    PoolGone,
    SkywardError,
    UsageError,
    convert_errors,
    error_hint,
    error_message,
)
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.model.outcomes_states_and_alerts import PoolStatus
from skyward_core.model.output_files import Unfetched
from skyward_core.model.provider_capability_protocols import ChecksPython, RunsHere
from skyward_core.model.provider_settings_schema import make_provider
from skyward_core.model.specs import Interpreter, Options, PoolSpec
from skyward_core.pool.fetch_retained_results import fetch_retained, fetch_run, is_fetched
from skyward_core.pool.pool import Pool, flush_all
from skyward_core.pool.pool_context import CANCEL_TIMEOUT
from skyward_core.pool.rank_inspection_and_debugger import collect_stacks, profile_rank, send_to_debugger
from skyward_core.pool.rank_log_receiver import LogSink
from skyward_core.pool.runs.scheduler import new_run_id
from skyward_core.pool.unrecorded_machines_and_gone_pools import is_starting
from skyward_core.providers import provider_class
from skyward_core.store import debug_log, pool_folder
from skyward_core.store.default_and_forbidden_working_folders import require_current_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, RetainedResults, marked_pid
from skyward_core.store.past_pool_views import (
    load_finished_pool,
    set_hourly_price,
    summarize_pool,
    unreachable_view,
)
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.store.run_log_reader import RunLogs
from skyward_core.tasks.pickled_calls_and_blobs import Task
from skyward_core.transport.background_loop import cancel_tasks, submit
from skyward_core.transport.ssh.host_key_prompt import HostKeyPrompt
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.events import Event, PoolEnded
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.sweep_argument_combinations import TrialSheet
from skyward_core.views.sweep_trials import TrialTableSource

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_option_declarations import LaunchRequest
    from skyward_core.client.run_comparison import Comparison
    from skyward_core.model.thread_stacks import Stacks
    from skyward_core.pool.checkpoint_copies import CheckpointListing
    from skyward_core.pool.dashboards import Dashboard
    from skyward_core.pool.output_files import FetchResult, FileListing, Progress
    from skyward_core.pool.runs.gang_sweep import GangSweep
    from skyward_core.transport.ssh.host_key_prompt import Ask

RETRY_PAUSES = (2.0, 60.0)  # first and longest pause in seconds between attempts to connect to a pool


class BackOff:
    """Exponential back-off of the connection attempts to pools that did not answer, separate for each pool."""

    def __init__(self) -> None:
        # Name of a pool -> monotonic time of the next attempt, and the pause in seconds before it.
        self._next: dict[str, tuple[float, float]] = {}

    def is_due(self, name: str) -> bool:
        """Check whether the pause after the last failed attempt to reach a pool has ended."""
        return time.monotonic() >= self._next.get(name, (0.0, 0.0))[0]

    def record_failure(self, name: str) -> None:
        """Record a failed attempt to reach a pool, which doubles the pause before the next one."""
        pause = min(RETRY_PAUSES[1], self._next.get(name, (0.0, 0.0))[1] * 2) or RETRY_PAUSES[0]
        self._next[name] = time.monotonic() + pause, pause

    def retain_only(self, names: Container[str]) -> None:
        """Forget the failures of all pools except the given ones."""
        self._next = {name: entry for name, entry in self._next.items() if name in names}

    def reset(self, name: str) -> None:
        """Forget the failures of a pool, because it has answered."""
        self._next.pop(name, None)


CHECK_TIMEOUT = 15.0  # seconds for all checks of a provider


async def run_provider_check(
    name: str, settings: Mapping[str, str], patience: float = CHECK_TIMEOUT, *, python: Interpreter | None = None
) -> list[Check]:
    """Run a provider's own checks in a separate thread with its own event loop, so that blocking code delays nothing
    else.
    """

    async def check() -> list[Check]:
        provider: Any = make_provider(provider_class(name), settings)
        async with asyncio.timeout(patience):
            if python is not None and isinstance(provider, ChecksPython):
                return await provider.check_for(python.for_hosts)
            return list(await provider.check())

    def run() -> None:
        checked.set_running_or_notify_cancel()
        try:
            checked.set_result(asyncio.run(check()))
        except BaseException as error:  # noqa: BLE001  passed to the caller
            checked.set_exception(error)

    checked: Future[list[Check]] = Future()
    threading.Thread(target=run, name=f"check of {name}", daemon=True).start()
    try:
        return await asyncio.wait_for(asyncio.wrap_future(checked), patience)
    except TimeoutError:
        return [Check(name, "fail", f"no answer within {patience:g} s")]
    except (SkywardError, OSError) as error:
        return [Check.from_error(name, error)]
    except Exception as error:  # noqa: BLE001  a provider of another package may raise anything
        return [Check(name, "fail", f"{type(error).__name__}: {error}")]


P = ParamSpec("P")
T = TypeVar("T")
OnEvent = Callable[[Event], None]

CONNECTING_DELAY = 0.5  # seconds; a pool whose connection takes longer is listed as connecting
PROBE_TIMEOUT = 5.0  # seconds that a command waits for a pool's answer before it shows the last known state


def verb(
    method: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Session, P], Future[T]]:
    """Decorate a method to run on the session's thread; callers get a future of its result."""

    @wraps(method)
    def call(session: Session, /, *args: P.args, **options: P.kwargs) -> Future[T]:
        with session.questions.set_current():
            return submit(method(session, *args, **options))

    return call


class Session:
    """The pools of this machine's ledger: views of pools, and methods that return futures.

    ``pool`` is the key of a pool, ``run`` the ID of a run. Methods that take long return a future. Any thread may wait
    for the future, which also delivers errors.

    The session connects to pools that it did not create as an observer, which does not keep them alive.

    Raises:
        UsageError: If ``SKYWARD_LOG`` is not a log level.
        LedgerError: If the ledger cannot be opened.
    """

    def __init__(self) -> None:
        self._log_problem = debug_log.start_logging()
        self.ledger = Ledger()
        self.questions = HostKeyPrompt()
        self._pools: dict[str, Pool] = {}  # connected pools by token
        self._attaching: set[str] = set()
        self._starting: set[asyncio.Task[Any] | None] = set()
        self._scans: set[asyncio.Task[list[PoolView]]] = set()
        self._unreachable: dict[str, PoolView] = {}
        self._back_off = BackOff()
        # Token -> view of a pool that another client tore down. Most of these views lack logs and outcomes.
        self._ended: dict[str, PoolView] = {}
        self._ended_until = 0.0  # Unix time of the latest end of a pool in `_ended`
        # Change stamp of the ledger, and the rows of the live pools that were read at that stamp.
        self._rows: tuple[tuple[int, ...], list[PoolRow]] | None = None
        self._ended_stamp: tuple[int, ...] = ()  # change stamp of the ledger when the ended pools were last read
        self._loaded_token = ""  # token of the ended pool whose view is fully loaded
        self._launches: dict[str, run_history.LaunchSummary] = {}  # run -> its saved launch, which never changes
        self._measured: run_history.MetricCache = {}
        # Run -> sweep by gangs of this session to which the run belongs.
        self._sweeps: dict[str, GangSweep] = {}
        self._is_prompting_for_budgets = False

    @property
    def notice(self) -> str:
        """Warning that the user must read before the first screen, or ""."""
        aside = self.ledger.damaged_copy
        damage = f"the ledger was damaged. It was saved as {aside} and replaced by a new one" if aside else ""
        reason = self.ledger.read_only_reason
        unwritten = f"nothing can be recorded, because the ledger cannot be written: {reason}" if reason else ""
        return "; ".join(filter(None, (damage, unwritten, self._log_problem)))

    def on_host_key(self, ask: Ask) -> None:
        """Set the function that accepts or rejects unknown host keys, called on the session's thread. Without one,
        unknown keys are rejected.
        """
        self.questions.set_handler(ask)

    def enable_budget_prompts(self) -> None:
        """Let pools that have spent their budget wait for :meth:`raise_budget` instead of ending at once."""
        self._is_prompting_for_budgets = True

    @verb
    async def raise_budget(self, pool: str, dollars: float) -> None:
        """Raise the budget of a pool.

        Raises:
            UsageError: If the pool has already cost more than the new budget.
            PoolError: If the pool does not exist, or cannot be reached.
        """
        found = await self._attach_pool(pool)
        if dollars <= (spent := found.view.spent(time.time())):
            raise UsageError(f"pool {found.name} has already cost ${spent:,.2f}. Give a larger budget")
        found.context.limits.budget.raise_to(dollars)

    # -- views ---------------------------------------------------------------------------------------------

    def pools(self) -> list[PoolView]:
        """Return the known pools: live ones, newest first, then ended ones."""
        known = {token: pool.view for token, pool in list(self._pools.items())}
        views = {**self._ended, **self._unreachable, **known}.values()
        return sorted(views, key=lambda view: (view.is_over, -view.created_at))

    def view(self, pool: str) -> PoolView:
        """Return the view of a pool that this session is connected to.

        Raises:
            PoolError: If the session is not connected to the pool.
        """
        return self._find(pool).view

    @verb
    async def subscribe(
        self,
        name: str,
        on_event: OnEvent | None = None,
        on_log: LogSink | None = None,
        *,
        missed: bool = False,
    ) -> Callable[[], None]:
        """Subscribe to every event and every piece of log ``(rank, stream, offset, bytes, run)`` of a pool, in order.

        The functions are called on the session's thread. The run of a piece is "" if it is unknown. Returns the
        function that ends the subscription.

        Args:
            missed: Whether to begin with the logs received since this session connected to the pool.
        """
        return self._find(name).news.subscribe(on_event, on_log, missed=missed)

    @verb
    async def refresh(self, *, over: bool = False, patient: bool = False) -> list[PoolView]:
        """Find pools that other processes created on this machine, and connect to them as an observer.

        Args:
            over: Whether to include ended pools from the ledger.
            patient: Whether to skip pools that did not answer recently.
        """
        return await self._run_scan(self._refresh(over, patient))

    async def _refresh(self, over: bool, patient: bool) -> list[PoolView]:
        as_of = self.ledger.change_stamp()
        if self._rows is None or self._rows[0] != as_of:
            self._rows = as_of, self.ledger.live_pools()
        rows = self._rows[1]
        live = {row.token for row in rows}
        unknown = [row for row in rows if row.token not in self._pools and row.token not in self._attaching]
        new = [row for row in unknown if not patient or self._back_off.is_due(row.token)]
        self._back_off.retain_only(live)
        known = [pool for token, pool in self._pools.items() if token in live]
        others = [pool for token, pool in self._pools.items() if token not in live]
        gone = [pool for pool in others if pool.context.observer and pool.view.is_live]
        probes = [self._probe_safely(pool, pool.context.recovery.reconnect_lost()) for pool in known]
        probes += [self._probe_safely(pool, self._mark_gone(pool)) for pool in gone]
        await asyncio.gather(*map(self._probe, new), *probes)
        if over and self._ended_stamp != as_of:
            await self._read_history()
            self._ended_stamp = as_of
        for token in self._unreachable.keys() - live:
            del self._unreachable[token]
        return self.pools()

    async def _probe(self, row: PoolRow) -> None:
        """Connect to a pool that is not connected yet, or mark it as gone."""
        # If connecting takes long, list the pool as connecting until then.
        slow = asyncio.get_running_loop().call_later(CONNECTING_DELAY, self._list_connecting, row)
        try:
            try:
                await self._watch(row, observer=True)
            except PoolGone:
                self._ended[row.token] = summarize_pool(self.ledger, self.ledger.pool(row.token))
                self._unreachable.pop(row.token, None)
        except Exception as error:  # noqa: BLE001  an error of one pool must not hide the others
            if not is_starting(row):
                self._back_off.record_failure(row.token)
            self._mark_unreachable(row, _describe_error(error), error_hint(error))
        finally:
            slow.cancel()

    @verb
    async def probe_pools(self, pools: Collection[str] = ()) -> list[PoolView]:
        """Probe the pools that the ledger lists as up, and record their present state in the ledger.

        Args:
            pools: Keys of pools; empty for all.

        Returns:
            Pools that did not answer within :data:`PROBE_TIMEOUT` seconds.
        """

        async def probe() -> list[PoolView]:
            rows = [row for row in self.ledger.live_pools() if not pools or row.key in pools]
            new = [row for row in rows if row.token not in self._pools]
            probes = {asyncio.create_task(self._probe(row)): row for row in new}
            _, late = await asyncio.wait(probes, timeout=PROBE_TIMEOUT) if probes else ((), ())
            for each in late:
                each.cancel()
                self._list_unreachable(probes[each], "unreachable", f"no answer within {PROBE_TIMEOUT:g} s")
            await flush_all()
            return [self._unreachable[row.token] for row in rows if row.token in self._unreachable]

        return await self._run_scan(probe())

    async def _run_scan(self, work: Coroutine[Any, Any, list[PoolView]]) -> list[PoolView]:
        """Run a scan of pools until the scan or this session ends."""
        look = asyncio.create_task(work)
        self._scans.add(look)
        look.add_done_callback(self._scans.discard)
        return await look

    def _list_connecting(self, row: PoolRow) -> None:
        if row.token in self._attaching and row.token not in self._unreachable:
            self._list_unreachable(row, "connecting", "")

    @staticmethod
    async def _probe_safely(pool: Pool, look: Coroutine[Any, Any, None]) -> None:
        """Probe a pool, and convert an error into a warning about the pool."""
        try:
            await look
        except Exception as error:  # noqa: BLE001  shown with its pool
            if (warning := f"the pool cannot be inspected: {_describe_error(error)}") != pool.view.detail:
                pool.news.emit_warning(warning)

    async def _read_history(self) -> None:
        """Read pools that ended recently from the ledger."""
        rows = self.ledger.ended_pools(self._ended_until)
        self._ended_until = max([self._ended_until, *(row.ended_at or 0.0 for row in rows)])
        new = [row for row in rows if row.token not in self._ended and row.token not in self._pools]
        for row in new:
            # Read one pool at a time, in a thread, so that a long history does not block the session.
            self._ended[row.token] = await asyncio.to_thread(summarize_pool, self.ledger, row)

    @verb
    async def load_ended_pool(self, pool: str) -> PoolView:
        """Load an ended pool with its outcomes and logs. Only one ended pool is fully loaded at a time.

        Raises:
            PoolError: If the pool does not exist.
            LedgerError, OSError: If its files cannot be read.
        """
        row = self.ledger.find_pool(pool)
        if row is None:
            raise PoolError(f"the ledger has no pool {pool!r}", hint=Hint("list-all"))
        if row.token in self._pools or row.ended_at is None:
            return self.view(row.key)
        view = await asyncio.to_thread(load_finished_pool, self.ledger, row)
        if self._loaded_token and self._loaded_token != row.token:
            before = self.ledger.pool(self._loaded_token)
            self._ended[before.token] = await asyncio.to_thread(summarize_pool, self.ledger, before)
        self._ended[row.token], self._loaded_token = view, row.token
        return view

    async def _watch(self, row: PoolRow, *, observer: bool) -> Pool:
        self._attaching.add(row.token)
        try:
            if is_starting(row):
                raise PoolError(f"pool {row.name} is being started by process {marked_pid(row.pid or 0)}")
            pool = Pool(row, providers.provider_from_json(row.provider), self.ledger, observer=observer)
            pool.context.limits.budget.prompts_user = self._is_prompting_for_budgets
            try:
                await pool.attach()
            except BaseException:
                await pool.detach()
                raise
            self._pools[row.token] = pool
            self._unreachable.pop(row.token, None)
            self._back_off.reset(row.token)
            return pool
        finally:
            self._attaching.discard(row.token)

    def _mark_unreachable(self, row: PoolRow, reason: str, hint: Hint | None) -> None:
        state: PoolStatus = "starting" if row.state == "starting" else "unreachable"
        with suppress(LedgerError):  # if the ledger cannot be read, keep the last known state of the pool
            now = self.ledger.pool(row.token)
            # The start cannot continue, because the client that created the pool has exited.
            if now.state == "starting" and not is_starting(now):
                state, hint = "unfinished", hint or Hint("down", row.name)
        self._list_unreachable(row, state, reason).hint = hint

    def _list_unreachable(self, row: PoolRow, state: PoolStatus, reason: str) -> PoolView:
        view = self._unreachable[row.token] = unreachable_view(row, state, reason)
        set_hourly_price(view, self.ledger, row)
        return view

    async def _mark_gone(self, pool: Pool) -> None:
        """Mark a watched pool as torn down by another client."""
        row = self.ledger.pool(pool.row.token)
        pool.news.emit(PoolEnded(pool=pool.name, receipt=row.receipt or {}, at=row.ended_at or time.time()))
        await pool.detach()

    # -- past runs -----------------------------------------------------------------------------------------

    @verb
    async def past_runs(self, search: RunSearch) -> list[PastRun]:
        """Return the runs that the search selects, newest first; see ``run_history.past_runs``."""
        live = {run: pool for pool in self.pools() if pool.is_live for run in list(pool.runs)}
        queued = {run for pool in self.pools() if pool.is_live for run in pool.queued_runs()}
        caches = self._launches, self._runs_by_id(), self._measured
        found = await asyncio.to_thread(run_history.past_runs, self.ledger, search, *caches)
        found = [replace(run, state="queued") if run.run in queued else run for run in found]
        merge, logged = run_history.merge_summaries, run_history.logged_summaries
        return [
            run if run.metrics or run.run not in live
            else replace(run, metrics=merge(logged(live[run.run].metrics, run.run)))
            for run in found
        ]  # fmt: skip

    def search_logs(self, runs: Sequence[PastRun], words: Sequence[str]) -> LogSearch:
        """Return a search in the stored output of runs. Nothing is read before the first step of the search."""
        return LogSearch(self.ledger, runs, words)

    @verb
    async def preview_run(self, run: str) -> RunPreviewData:
        """Load the outcomes, metrics and last lines of a run; see ``run_history.load_preview``."""
        return await asyncio.to_thread(run_history.load_preview, self.ledger, run)

    @verb
    async def failures(self) -> list[PastRun]:
        """Return recent undismissed failures, newest first; see ``run_history.failures``."""
        return await asyncio.to_thread(run_history.failures, self.ledger, self._runs_by_id())

    @verb
    async def dismiss(self, runs: Sequence[str]) -> None:
        """Dismiss failures.

        Raises:
            OSError: If the dismissal cannot be written.
        """
        await asyncio.to_thread(pool_folder.add_dismissed, runs)

    @verb
    async def set_note(self, run: str, text: str) -> None:
        """Replace the user's note of a run; "" deletes the note.

        Raises:
            OSError: If the note cannot be written.
        """
        await asyncio.to_thread(pool_folder.write_note, run, sanitize_line(text).strip()[:MAX_NOTE])

    @verb
    async def compare(self, left: str, right: str) -> Comparison:
        """Load two runs for a comparison.

        Raises:
            UsageError: If a run does not exist, or both are the same.
            LedgerError: If the ledger cannot be read.
        """
        return await asyncio.to_thread(run_comparison.compare_runs, self.ledger, left, right)

    def _runs_by_id(self) -> dict[str, RunView]:
        return {run.id: run for pool in self.pools() for run in list(pool.runs.values())}

    def run_logs(self, run: str) -> RunLogs:
        """Return the locations of a run's stored output.

        Raises:
            UsageError: If the ledger has no such run.
        """
        return RunLogs(self.ledger, run)

    def result_values(self, run: RunView) -> dict[int, Path]:
        """Return the files with the pickled values of a run's ranks or tasks.

        Raises:
            UsageError: If some values are not stored on this machine. The message states the reason.
            LedgerError: If the ledger cannot be read.
        """
        return run_history.result_pickles(self.ledger, run)

    def retained_results(self) -> list[RetainedResults]:
        """Return the retained results on the hosts of ended pools."""
        return self.ledger.unfetched_results()

    @verb
    async def fetch(self, token: str, *, give_up: bool = False) -> list[str]:
        """Fetch the retained results of an ended pool. Return a description of each action.

        Args:
            token: Token of the pool.
            give_up: Whether to remove the results instead.

        Raises:
            PoolError: If a result cannot be fetched. The result stays on its host.
        """
        return await fetch_retained(self.ledger.pool(token), self.ledger, give_up=give_up)

    @verb
    async def fetch_run(self, run: str) -> list[str]:
        """Fetch the results of an ended run that has no client from the nodes of a live pool. Return a description of
        each action.

        Raises:
            PoolError: If a result cannot be fetched now. The result stays on its node.
        """
        row = self.ledger.run(run)
        if row is None or row.kind == "map" or row.has_client or is_fetched(self.ledger, run):
            # The values are on this machine or will be sent to another client; the values of a map go to its caller
            # only.
            return []
        pool = await self._observe_pool(self.ledger.pool(row.token).key)
        view = pool.view.runs.get(run)
        return [] if view is None or view.state == "running" else await fetch_run(pool.row, run, self.ledger)

    # -- runs ----------------------------------------------------------------------------------------------

    @verb
    async def launch(
        self,
        pool: str,
        task: Task,
        *,
        one: bool = False,
        is_retained: bool = False,
        request: LaunchRequest | ShellRecord | None = None,
        joined: bool = False,
    ) -> RunView:
        """Run a task on every rank. The future is done when the run is registered.

        Args:
            one: Whether to run the task on a single rank.
            is_retained: Whether nodes retain the results for a later client even after this session has received them.
            request: The launch request, or the record of the job or command that this run belongs to. Saved before the
                run starts.
            joined: Whether the pool existed before this launch.
        """
        found = await self._attach_pool(pool)
        id = new_run_id()
        if request is not None:
            launch_records.save_before_launch(found.view.key, id, request, joined=joined)
        try:
            run = found.context.scheduler.open(
                "single" if one else "broadcast", [task], run_id=id, is_retained=is_retained
            )
        except BaseException:
            if request is not None:
                pool_folder.remove_launch(found.view.key, id)
            raise
        return found.view.runs[run.id]

    @verb
    async def launch_sweep(
        self,
        pool: str,
        tasks: Sequence[Task],
        sheet: TrialSheet,
        request: LaunchRequest,
        *,
        joined: bool,
        is_retained: bool = False,
    ) -> RunView:
        """Run a task for each combination of arguments, either each on one rank, or each on a gang.

        In a sweep by gangs, each combination is a run on some of the nodes, and as many runs as fit are active at a
        time. A failure does not stop the other combinations. Sheet and request are on disk before the first task
        starts.

        Args:
            sheet: The combinations.
            request: The launch request.
            joined: Whether the pool existed before this launch.
            is_retained: Whether nodes retain the results for a later client even after this session has received them.

        Returns:
            The run; in a sweep by gangs, the first run.

        Raises:
            PoolError: If the pool does not exist, or the sheet cannot be written; nothing has started.
            UsageError: If the pool has fewer nodes than a gang needs.
        """
        found = await self._attach_pool(pool)
        run, sweep = await sweep_launch_and_resumption.launch_trials(
            found, tasks, sheet, request, joined=joined, is_retained=is_retained
        )
        if sweep is not None:
            self._sweeps |= dict.fromkeys(sweep.ids, sweep)
        return found.view.runs[run]

    @verb
    async def wait_for_sweep(self, pool: str, run: str) -> None:
        """Wait until all runs of a sweep of this session have ended and their logs are complete.

        Args:
            run: The run of the sweep; in a sweep by gangs, any of its runs.

        Raises:
            SkywardError: If remaining runs were not started. A cancelled sweep raises nothing.
        """
        if (sweep := self._sweeps.get(run)) is None:
            await asyncio.wrap_future(self.wait(pool, run))
            return
        try:
            await sweep.wait()
        finally:
            for each in sweep.begun_ids:
                if each in self.view(pool).runs:  # skip an ended run that the view has dropped to save memory
                    await asyncio.wrap_future(self.wait(pool, each))

    @verb
    async def trials(self, pool: str, run: RunView) -> TrialTableSource:
        """Load the data for the table of a sweep.

        Raises:
            NoTrials: If the run is not a sweep.
            UsageError: If the sheet cannot be read.
            LedgerError: If the ledger cannot be read.
        """
        known: Mapping[str, RunView] = {}
        with suppress(PoolError):  # if the session is not connected, use the ledger, which contains all ended runs
            known = self.view(pool).runs
        return await asyncio.to_thread(sweep_launch_and_resumption.trial_table_source, self.ledger, pool, run, known)

    @verb
    async def save_launch(self, pool: str, run: str, request: LaunchRequest, *, joined: bool) -> None:
        """Save the request of a run, and the state of the script's repository, so that the run can be launched again.

        Args:
            joined: Whether the pool existed before this launch.

        Raises:
            OSError: If the record cannot be written.
        """
        source = await asyncio.to_thread(launch_records.ScriptState.capture, Path(request.script))
        await asyncio.to_thread(launch_records.save_launch_record, pool, run, request, joined=joined, source=source)

    @verb
    async def load_launch(self, run: str, pool: str = "") -> LaunchRecord | ShellRecord:
        """Load the request of a run, or the record of the job or command that the run belongs to.

        Args:
            run: Id of the run; "" for the launch that created a pool.
            pool: Key of that pool.

        Raises:
            UsageError: If the run or the pool has no saved launch.
            LedgerError: If the ledger cannot be read.
        """
        if not run and (created := self.ledger.find_pool(pool)) is not None:
            return await asyncio.to_thread(launch_records.load_pool_record, created)
        return await asyncio.to_thread(launch_records.load_any_record, self.ledger, self.ledger.require_run(run))

    @verb
    async def wait(self, pool: str, run: str) -> RunView:
        """Wait until a run has ended and its logs are complete."""
        found = self._find(pool)
        view = found.view.runs.get(run)
        if view is None:
            raise UsageError(f"pool {pool} has no run {run}")
        ended = asyncio.Event()
        stop = found.news.subscribe(lambda event: ended.set(), None)
        try:
            while view.state == "running" and found.view.is_live:
                ended.clear()
                await ended.wait()
        finally:
            stop()
        await found.news.wait_logs_complete(run)
        return view

    @verb
    async def cancel(self, pool: str, run: str, grace: float | None = None, *, save: bool = False) -> None:
        """Stop a run of any client. For a run of a sweep by gangs, stop the whole sweep.

        Args:
            grace: Seconds between SIGTERM and SIGKILL; by default the pool's.
            save: Whether the ranks save their work within these seconds, as after a preemption notice.
        """
        Options(grace=grace)  # validates the grace period; agents do not accept infinity
        found = await self._attach_pool(pool)
        if (sweep := self._sweeps.get(run)) is not None:
            sweep.cancel("save" if save else "cancel", grace)
        found.context.registry.cancel(run, grace=grace, save=save)

    @verb
    async def survives_exit(self, pool: str, run: str) -> bool:
        """Check whether a run continues after this session ends. A waiting run that no node has received does not
        continue.
        """
        ours = self._find(pool).context.registry.runs.get(run)
        return ours is None or ours.sent

    # -- ranks and machines --------------------------------------------------------------------------------

    @verb
    async def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Stacks:
        """Collect the stacks of ranks; see ``pool.rank_inspection_and_debugger``. Does not keep the pool alive.

        Args:
            signal: Whether to send a signal to ranks whose stacks cannot be read otherwise.

        Raises:
            PoolError: If the pool does not exist, or cannot be reached.
        """
        return await collect_stacks((await self._observe_pool(pool)).context, run, ranks, signal=signal)

    @verb
    async def profile(self, pool: str, rank: int, seconds: float) -> str:
        """Sample a rank's stacks for the given duration; see ``stack_groups_and_profiles.parse_profile``.

        Does not keep the pool alive.

        Raises:
            UsageError: If the rank does not exist, or the duration is invalid.
            PoolError: If the pool does not exist, cannot be reached, or has no profiler.
        """
        return await profile_rank((await self._observe_pool(pool)).context, rank, seconds)

    @verb
    async def debug(self, pool: str, rank: int, who: str, *, text: str = "", eof: bool = False) -> tuple[bytes, bool]:
        """Send text to the debugger of a rank at a breakpoint. Return the debugger's output, and whether debugging has
        ended.

        Raises:
            UsageError: If the rank does not exist.
            PoolError: If the pool does not exist or cannot be reached, or if the rank is not at a breakpoint.
        """
        return await send_to_debugger((await self._observe_pool(pool)).context, rank, who, text=text, eof=eof)

    @verb
    async def dashboards(self, pool: str) -> list[Dashboard]:
        """Find the web dashboards on a pool's head node. Their addresses are on this machine.

        Raises:
            PoolError: If the pool does not exist, or its head node cannot be reached.
        """
        found = await self._observe_pool(pool)
        unreadable = f"the dashboard addresses of pool {pool} cannot be read"
        with convert_errors(unreadable, PoolError, (OSError, ValueError, TypeError)):
            known = pool_folder.read_dashboards(found.row.key)
        return await found.dashboards.find_available(known)

    @verb
    async def start_sampling(self, pool: str) -> PoolView:
        """Start sampling the metrics of a pool's machines, without keeping the pool alive. The future is done when each
        node has sent a sample.
        """
        found = await self._observe_pool(pool)
        await found.context.metrics.start_collector().wait_for_samples()
        return found.view

    @verb
    async def check_provider(
        self, name: str, settings: Mapping[str, str], python: Interpreter | None = None
    ) -> list[Check]:
        """Run a provider's own checks, without creating anything. If the provider does not answer within 15 s, its
        check fails.

        Args:
            settings: Settings of the provider, as texts.
            python: Interpreter of the script, whose version the machines must provide; None for that of this process.
        """
        return await run_provider_check(name, settings, python=python)

    # -- files of ranks ------------------------------------------------------------------------------------

    @verb
    async def files(
        self, pool: str, run: str | None = None, patterns: Sequence[str] = (), *, whole: bool = False
    ) -> FileListing:
        """List the output files in the working folder of the ranks, of one run or of all runs. Does not keep the pool
        alive.

        Args:
            whole: Whether to request all parts of a long answer; screens show one part only.

        Raises:
            PoolError: If the pool does not exist, or cannot be reached.
            UsageError: If a pattern leads out of the working folder.
        """
        return await (await self._observe_pool(pool)).context.outputs.files(patterns, run, whole=whole)

    @verb
    async def fetch_files(
        self,
        pool: str,
        run: str | None = None,
        patterns: Sequence[str] | None = (),
        to: Path | None = None,
        progress: Progress | None = None,
    ) -> FetchResult:
        """Download the output files of ranks, like :meth:`skyward_core.Compute.fetch`.

        Args:
            progress: Called on the session's thread with the bytes received and the total.

        Raises:
            PoolError: If the pool does not exist, or none of its nodes answers.
            UsageError: If a pattern leads out of the working folder.
        """
        return await (await self._attach_pool(pool)).context.outputs.fetch(patterns, to, run, progress)

    @verb
    async def checkpoints(self, run: str) -> CheckpointListing:
        """List the checkpoints of a run and where their copies are, also after the end of the pool.

        Raises:
            UsageError: If the run does not exist.
        """
        # Imported late, because few sessions list checkpoints.
        from skyward_core.pool.checkpoint_copies import list_copies
        from skyward_core.pool.output_files import FileListing, output_patterns

        row = self.ledger.pool(self.ledger.require_run(run).token)
        found, patterns = FileListing([], 0, {}, {}), output_patterns(row.spec)
        if row.ended_at is None and patterns:
            found = await (await self._observe_pool(row.key)).context.outputs.files(patterns, run)
        return await asyncio.to_thread(list_copies, row, run, found, is_local=self.is_working_locally(row))

    def delete_checkpoints(self, pool: PoolRow, *, only_look: bool) -> int:
        """Delete an ended pool's checkpoints on this machine, except those that other pools wrote or continue.

        Args:
            pool: The pool.
            only_look: Delete nothing; only return the size.

        Returns:
            Bytes of the files.
        """
        from skyward_core.pool import output_files  # imported late, because few sessions delete checkpoints

        rows = *self.ledger.live_pools(), *self.ledger.ended_pools(limit=-1)
        # Keep the checkpoints of a run that another pool resumes, even before that pool starts the run. If this pool
        # itself resumed a run, keep that run's checkpoints while the pool in which it first ran still owns them.
        used = {row.spec["options"].get("resume") for row in rows if row.token != pool.token}
        own = pool.spec["options"].get("resume")
        first = self.ledger.run(own) if own else None
        if first is not None and (self.ledger.pool(first.token).ended_at or inf) > (pool.ended_at or 0.0):
            used.add(own)
        found = output_files.checkpoint_folders(pool, self.ledger)
        folders = [each for each in found if each.rpartition("/")[2] not in used]
        is_local = self.is_working_locally(pool)
        return output_files.delete_checkpoints(pool, folders, is_local=is_local, only_look=only_look)

    @staticmethod
    def is_working_locally(pool: PoolRow) -> bool:
        """Check whether the ranks of a pool work in folders of this machine, so that their output files are already
        here.
        """
        with suppress(SkywardError):  # without the provider's package, assume that the ranks work on other machines
            return isinstance(providers.provider_from_json(pool.provider), RunsHere)
        return False

    @verb
    async def unfetched_files(self, pool: str) -> Unfetched:
        """List the files of a pool that are not downloaded yet, and whether a teardown would download or lose them.
        Does not keep the pool alive.
        """
        return await (await self._observe_pool(pool)).context.outputs.unfetched()

    # -- start and end of pools ----------------------------------------------------------------------------

    @verb
    async def create(
        self,
        spec: PoolSpec,
        *,
        begun: Future[PoolView] | None = None,
        request: LaunchRequest | ShellRecord | None = None,
    ) -> PoolView:
        """Start a pool; its view shows the progress.

        Args:
            begun: Receives the view as soon as the pool is registered, or the error. Callbacks of this future must not
                block.
            request: The launch that the pool is for, saved with the pool before its start.

        Raises:
            PoolExistsError: If the name is taken.
            PoolError: If the start failed; no resources of the pool remain.
            Cancelled: If :meth:`tear_down` or :meth:`detach` interrupted the start.
        """
        try:
            pool = await Pool.register(spec, self.ledger, str(require_current_folder()))
        except BaseException as error:
            if begun is not None:
                begun.set_exception(error)
            raise
        self._pools[pool.row.token] = pool
        if request is not None:
            launch_records.save_before_launch(pool.row.key, launch_records.POOL_LAUNCH, request, joined=False)
        pool.context.limits.budget.prompts_user = self._is_prompting_for_budgets
        if begun is not None:
            begun.set_result(pool.view)
        starting = asyncio.current_task()
        self._starting.add(starting)
        try:
            await pool.start(spec)
        finally:
            self._starting.discard(starting)
        return pool.view

    @verb
    async def observe(self, name: str) -> PoolView:
        """Connect to a live pool as an observer, which does not renew its lease.

        Raises:
            PoolError: If the pool does not exist, or cannot be reached.
        """
        return (await self._observe_pool(name)).view

    @verb
    async def attach(self, name: str) -> PoolView:
        """Connect to a live pool in order to run calls. Raises the same errors as :meth:`observe`."""
        return (await self._attach_pool(name)).view

    @verb
    async def tear_down(
        self, pool: str, *, give_up: bool = False, keep_outputs: int | None = None, now: bool = False
    ) -> Receipt:
        """Tear a pool down and return the receipt. Unfetched results are downloaded, or retained on their hosts.

        Args:
            give_up: Whether to remove unfetched results.
            keep_outputs: Maximum bytes of output files to download before the teardown; None for the limit in the
                pool's options.
            now: Whether to terminate the pool's machines at once, without contacting them.

        Raises:
            PoolError: If the pool does not exist.
            UsageError: If the provider cannot terminate machines at once; nothing was terminated.
        """
        row = self._live_row(pool)
        found = self._pools.get(row.token)
        if found is None:
            # Attach to an unfinished pool as an observer, because an ordinary client would complete its start.
            unfinished = row.state == "starting"
            found = Pool(row, providers.provider_from_json(row.provider), self.ledger, observer=unfinished)
            try:
                if not now:
                    await found.attach()
            except Exception:  # noqa: BLE001  the pool must end whatever an agent answers
                # the agents do not answer, so let the provider terminate the machines without them
                found.context.machines[:] = self.ledger.machines(row.token)
            self._pools[row.token] = found
        return await found.down(give_up=give_up, keep_outputs=keep_outputs, now=now)

    @verb
    async def scan_leftovers(
        self, asked: Mapping[str, Sequence[str]] | None = None, *,
        everywhere: bool = False, ledgers: Sequence[str] = (),
    ) -> LeftoverScan:  # fmt: skip
        """Scan the accounts of former pools, or of the named providers, for leftovers; changes nothing.

        Raises:
            UsageError: If a provider has no account to scan, or lacks a given setting.
        """
        accounts = await asyncio.to_thread(leftover_cleanup.find_accounts, self.ledger, asked)
        return await leftover_cleanup.scan_accounts(self.ledger, accounts, everywhere=everywhere, ledgers=ledgers)

    @verb
    async def remove_leftovers(self, scan: LeftoverScan, tell: Callable[[str], None] = lambda line: None) -> list[str]:
        """Remove the leftovers that a scan found, and return descriptions of the leftovers that remain."""

        async def down(pool: str) -> Receipt:
            return await asyncio.wrap_future(self.tear_down(pool))

        return await leftover_cleanup.remove_leftovers(scan, self.ledger, down, tell)

    @verb
    async def detach_pool(self, name: str) -> None:
        """Disconnect from a pool and leave it up. Own runs that no node has received are cancelled; all others
        continue.
        """
        pool = self._find(name)
        del self._pools[pool.row.token]
        if pool.view.is_live:
            await pool.detach()

    def detach(self) -> None:
        """Disconnect from all pools, which stay up. Afterwards, no method may be called."""
        self._detach().result()

    @verb
    async def _detach(self) -> None:
        """Disconnect from all pools, and close the ledger. A pool that is still starting stays incomplete until another
        client resumes its start.
        """
        self.questions.close()
        # Cancel the scans first, because they read the ledger, which is closed below.
        await cancel_tasks(self._scans, CANCEL_TIMEOUT)
        pools = self._pools.values()
        last = [pool.detach() if pool.view.is_live else pool.context.shutdown.wait_recorded() for pool in pools]
        try:
            for failure in await asyncio.gather(*last, return_exceptions=True):
                if failure is not None:
                    # Raised after all pools are detached, so that an error of one pool does not prevent the others.
                    raise failure
        finally:
            if starting := list(filter(None, self._starting)):
                await asyncio.wait(starting)  # wait until the cancelled starts have written their last ledger rows
            self.ledger.close()

    def _find(self, pool: str) -> Pool:
        newest_first = sorted(self._pools.values(), key=lambda each: -each.row.created_at)
        found = [each for each in newest_first if pool in (each.row.key, each.name)]
        if not found:
            raise PoolError(f"this session has no pool {pool!r}", hint=Hint("list-all"))
        return next((each for each in found if each.view.is_live), found[0])

    def _live_row(self, name: str) -> PoolRow:
        row = self.ledger.find_pool(name)
        if row is None or row.ended_at is not None:
            raise PoolError(f"no pool named {name!r} is up", hint=Hint("list"))
        return row

    async def _observe_pool(self, name: str) -> Pool:
        """Return a live pool, after connecting to it as an observer if necessary."""
        row = self._live_row(name)
        return self._pools.get(row.token) or await self._watch(row, observer=True)

    async def _attach_pool(self, name: str) -> Pool:
        row = self._live_row(name)
        pool = self._pools.get(row.token)
        if pool is None:
            pool = await self._watch(row, observer=False)
        elif pool.context.observer:
            await pool.context.startup.activate()
        return pool


def name_limit(error: OSError) -> OSError:
    """Return an error that names the limit of open files or processes to raise, or the same error without a limit."""
    # Imported late, because few errors are about limits.
    from skyward_core.node.agent.worker_processes import LIMITS, describe_shortage

    return OSError(describe_shortage(error, "this machine")) if error.errno in LIMITS else error


def _describe_error(error: Exception) -> str:
    """Return the message of our own errors unchanged, and that of other errors with the error's type."""
    return error_message(error) if isinstance(error, SkywardError | OSError) else f"{type(error).__name__}: {error}"


MAX_NOTE = 500  # maximum number of characters of the user's note of a run
# Names of changing methods that a read-only session must reject explicitly, because they do not call ``_attach_pool``.
CHANGING = (
    "create", "tear_down", "fetch", "fetch_run", "dismiss", "set_note", "remove_leftovers", "debug", "check_provider",
)  # fmt: skip


class ReadOnlySession(Session):
    """Session that only watches. Methods that change state are rejected, and unknown host keys are not accepted."""

    REFUSAL = "this session is read-only (--read-only)"
    reject = RejectingSession.reject

    def on_host_key(self, ask: Ask) -> None:
        """Ignore the prompt: unknown keys are rejected."""

    def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Future[Stacks]:
        # Send no signals, because a signal can interrupt a rank's system call, which a read-only session must not do.
        return self.reject() if signal else super().stacks(pool, run, ranks)

    async def _watch(self, row: PoolRow, *, observer: bool) -> Pool:
        pool = await super()._watch(row, observer=observer)
        pool.context.registry.is_read_only = True
        return pool

    async def _attach_pool(self, name: str) -> Pool:
        raise UsageError(self.REFUSAL)


for _name in CHANGING:
    setattr(ReadOnlySession, _name, ReadOnlySession.reject)
