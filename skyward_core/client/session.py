"""Pools as views, verbs as futures.

A session runs its pools on the background thread. Its methods may be called from any thread and return
``concurrent.futures.Future``; wrap one with ``asyncio.wrap_future`` to await it. It never unpickles anything.

A pool is named by its key (``PoolView.key``), which no other one ever has; where its name is given, the one of that
name that is up is meant, else the latest.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Container, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from skyward_core import providers
from skyward_core.client import leftover_cleanup
from skyward_core.client.leftover_cleanup import LeftoverScan
from skyward_core.client.run_comparison import RunComparisons
from skyward_core.client.session_part import SessionPart
from skyward_core.client.sweep_results import TrialRuns
from skyward_core.model.errors import (
    Hint,
    LedgerError,
    PoolError,
    PoolGone,
    SkywardError,
    UsageError,
    error_hint,
    error_message,
)
from skyward_core.model.machines import Check
from skyward_core.model.outcomes import PoolStatus, Unfetched
from skyward_core.model.provider_capabilities import ChecksPython, RunsHere
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.model.specs import PoolSpec
from skyward_core.pool.fetch_retained_results import fetch_retained, fetch_run, is_fetched
from skyward_core.pool.pool import Pool, flush_all
from skyward_core.pool.pool_context import CANCEL_TIMEOUT
from skyward_core.pool.rank_output import LogSink
from skyward_core.pool.reconciliation import is_starting
from skyward_core.pool.runs.scheduler import new_run_id
from skyward_core.providers import provider_class
from skyward_core.providers.provider import make_provider
from skyward_core.store import debug_log
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, Receipt, RetainedResults
from skyward_core.store.past_pools import (
    load_finished_pool,
    set_hourly_price,
    summarize_pool,
    unreachable_view,
)
from skyward_core.store.run_logs import RunLogs
from skyward_core.store.state_folder import require_current_folder
from skyward_core.tasks.pickled_call import Task
from skyward_core.transport.background_loop import submit
from skyward_core.transport.ssh.host_key_prompt import HostKeyPrompt
from skyward_core.views.events import Event, PoolEnded
from skyward_core.views.pool_view import PoolView, RunView

if TYPE_CHECKING:
    from skyward_core.client.launch.job_records import ShellRecord
    from skyward_core.client.launch.launch_records import LaunchRecord
    from skyward_core.client.launch.launch_request import LaunchRequest
    from skyward_core.client.session_protocol import SessionProtocol
    from skyward_core.model.stack_values import Stacks
    from skyward_core.pool.dashboards import Dashboard
    from skyward_core.pool.output_files import FetchResult, FileListing, Progress
    from skyward_core.pool.pool import Pool
    from skyward_core.store.ledger_rows import PoolRow, Receipt
    from skyward_core.transport.ssh.host_key_prompt import Ask
    from skyward_core.views.pool_view import PoolView


RETRY_PAUSES = (2.0, 60.0)  # seconds: the first one, and the longest


class BackOff:
    """Remembers who did not answer, by any name."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[float, float]] = {}  # when, and the pause before it

    def is_due(self, name: str) -> bool:
        """Whether it may be asked now."""
        return time.monotonic() >= self._next.get(name, (0.0, 0.0))[0]

    def record_failure(self, name: str) -> None:
        """It was asked, and did not answer."""
        before = self._next.get(name, (0.0, 0.0))[1]
        pause = min(RETRY_PAUSES[1], before * 2) or RETRY_PAUSES[0]
        self._next[name] = time.monotonic() + pause, pause

    def retain_only(self, names: Container[str]) -> None:
        """Forget all others."""
        self._next = {name: told for name, told in self._next.items() if name in names}

    def reset(self, name: str) -> None:
        """It did."""
        self._next.pop(name, None)


CHECK_TIMEOUT = 15.0  # seconds in which a provider says how it is


class ProviderCheckRunner(SessionPart):
    """The part of :class:`Session` that does so."""

    def check_provider(
        self, name: str, settings: Mapping[str, str], python: Interpreter | None = None
    ) -> Future[list[Check]]:
        """What a provider's own check-up says, of the machines or the account that the settings name; nothing is made.
        One that does not answer within 15 s is said to.

        Args:
            settings: of the provider, by name, as texts.
            python: what a script is loaded with, which its machines need then; None for what runs this.
        """
        return self._submit(run_provider_check(name, settings, python=python))


async def run_provider_check(
    name: str,
    settings: Mapping[str, str],
    patience: float = CHECK_TIMEOUT,
    *,
    python: Interpreter | None = None,
) -> list[Check]:
    """The same; the check-up has a thread and a loop of its own, so that what blocks there holds nobody up."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[list[Check]] = loop.create_future()

    def tell(lines: list[Check]) -> None:
        if not told.done():
            told.set_result(lines)

    def act() -> None:
        lines = asyncio.run(_run_check(name, settings, patience, python))
        try:
            loop.call_soon_threadsafe(tell, lines)
        except RuntimeError:  # the loop has ended: nobody waits
            return

    threading.Thread(target=act, name=f"check of {name}", daemon=True).start()
    try:
        return await asyncio.wait_for(told, patience)
    except TimeoutError:
        return [_no_answer(name, patience)]


async def _run_check(
    name: str, settings: Mapping[str, str], patience: float, python: Interpreter | None
) -> list[Check]:
    try:
        provider: Any = make_provider(provider_class(name), settings)
        async with asyncio.timeout(patience):
            if python is not None and isinstance(provider, ChecksPython):
                return await provider.check_for(python.for_hosts)
            return list(await provider.check())
    except TimeoutError:
        return [_no_answer(name, patience)]
    except (SkywardError, OSError) as error:
        return [Check(name, "fail", error_message(error), error_hint(error))]
    except Exception as error:  # noqa: BLE001  one of another package may raise anything
        return [Check(name, "fail", f"{type(error).__name__}: {error}")]


def _no_answer(name: str, patience: float) -> Check:
    return Check(name, "fail", f"no answer within {patience:g} s")


class RankInspection(SessionPart):
    """The part of :class:`Session` that does so. To ask keeps no pool alive."""

    def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Future[Stacks]:
        """Where the ranks of a pool are; see ``rank_inspection.stacks``.

        Raises (through the future):
            PoolError: there is no such pool, or it cannot be reached.
        """

        async def work() -> Stacks:
            from skyward_core.pool.rank_inspection import collect_stacks

            return await collect_stacks((await self._observe_pool(pool)).context, run, ranks, signal=signal)

        return self._submit(work())

    def profile(self, pool: str, rank: int, seconds: float) -> Future[str]:
        """Where a rank spends its time, looked at for so long; see ``stack_groups.parsed``.

        Raises (through the future):
            UsageError: there is no such rank, or that is no time.
            PoolError: there is no such pool, it cannot be reached, or it cannot tell.
        """

        async def work() -> str:
            from skyward_core.pool.rank_inspection import profile_rank

            return await profile_rank((await self._observe_pool(pool)).context, rank, seconds)

        return self._submit(work())

    def debug(self, pool: str, rank: int, who: str, *, text: str = "", eof: bool = False) -> Future[tuple[bytes, bool]]:
        """What the debugger of a rank that waits at a breakpoint prints, and whether that is over; see
        ``rank_inspection.debug``.

        Raises (through the future):
            UsageError: there is no such rank.
            PoolError: there is no such pool, it cannot be reached, or the rank waits at no breakpoint.
        """

        async def work() -> tuple[bytes, bool]:
            from skyward_core.pool.rank_inspection import send_to_debugger

            return await send_to_debugger((await self._observe_pool(pool)).context, rank, who, text=text, eof=eof)

        return self._submit(work())

    def dashboards(self, pool: str) -> Future[list[Dashboard]]:
        """Web pages of a pool's head that answer, such as its plugins' dashboards and a TensorBoard, at addresses here.

        Raises (through the future):
            PoolError: there is no such pool, or its head cannot be reached.
        """

        async def work() -> list[Dashboard]:
            from skyward_core.store.pool_folder import read_dashboards as kept

            found = await self._observe_pool(pool)
            try:
                known = kept(found.row.key)
            except (OSError, ValueError, TypeError) as error:
                raise PoolError(f"where the pages of pool {pool} are cannot be read: {error}") from error
            return await found.dashboards.find_available(known)

        return self._submit(work())

    def start_sampling(self, pool: str) -> Future[PoolView]:
        """Have a pool's machines measured from now on, into its view; resolves when each node has told of itself. It
        keeps no pool alive, and raises as :meth:`stacks`."""

        async def work() -> PoolView:
            found = await self._observe_pool(pool)
            await found.metrics_collector.wait_for_samples()
            return found.view

        return self._submit(work())


class RunLauncher(SessionPart):
    """The part of a session that launches them."""

    ledger: Ledger

    def launch(
        self,
        pool: str,
        task: Task,
        *,
        one: bool = False,
        stays: bool = False,
        request: LaunchRequest | ShellRecord | None = None,
        joined: bool = False,
    ) -> Future[RunView]:
        """See ``session_protocol.SessionProtocol.launch``."""

        async def work() -> RunView:
            found = await self._attach_pool(pool)
            id = new_run_id()
            if request is not None:
                from skyward_core.client.launch.launch_records import save_before_launch

                save_before_launch(found.view.key, id, request, joined=joined)
            try:
                run = found.launcher.open("single" if one else "broadcast", [task], run_id=id, stays=stays)
            except BaseException:
                if request is not None:
                    from skyward_core.client.launch.launch_records import delete_launch_record

                    delete_launch_record(found.view.key, id)
                raise
            return found.view.runs[run.id]

        return self._submit(work())

    def save_launch(self, pool: str, run: str, request: LaunchRequest, *, joined: bool) -> Future[None]:
        """Keep all of what a run was launched with, the state of its script's repository too.

        Args:
            pool: its key.
            joined: whether the pool was up before.

        Raises (through the future):
            OSError: it cannot be written.
        """

        async def work() -> None:
            from skyward_core.client.launch.launch_records import capture_script_state, save_launch_record

            source = await asyncio.to_thread(capture_script_state, request)
            await asyncio.to_thread(save_launch_record, pool, run, request, joined=joined, source=source)

        return self._submit(work())

    def load_launch(self, run: str) -> Future[LaunchRecord | ShellRecord]:
        """What a run was launched with, or the job that it was a step of.

        Raises (through the future):
            UsageError: nothing is kept of it.
            LedgerError: the ledger cannot be read.
        """

        async def work() -> LaunchRecord | ShellRecord:
            from skyward_core.client.launch.launch_records import load_any_record

            if (row := self.ledger.run(run)) is None:
                raise UsageError(f"the ledger has no run {run}")
            return await asyncio.to_thread(load_any_record, self.ledger, row)

        return self._submit(work())


class OutputFiles(SessionPart):
    """The part of :class:`Session` that does so."""

    def files(
        self, pool: str, run: str | None = None, patterns: Sequence[str] = (), *, whole: bool = False
    ) -> Future[FileListing]:
        """The files that ranks wrote in their working folder: of a run, or of all of a pool's time. To ask keeps no
        pool alive.

        Args:
            whole: whether nodes are asked again for what does not go into one answer; a screen holds no more than that.

        Raises (through the future):
            UsageError: a pattern leads out of the working folder.
            PoolError: there is no such pool, or it cannot be reached.
        """

        async def work() -> FileListing:
            return await (await self._observe_pool(pool)).outputs.files(patterns, run, whole=whole)

        return self._submit(work())

    def fetch_files(
        self,
        pool: str,
        run: str | None = None,
        patterns: Sequence[str] = (),
        to: Path | None = None,
        progress: Progress | None = None,
    ) -> Future[FetchResult]:
        """Bring such files here; see :meth:`skyward_core.Compute.fetch`.

        Args:
            progress: told, on the session's thread, how many bytes have come, and of how many.

        Raises (through the future):
            UsageError: a pattern leads out of the working folder.
            PoolError: there is no such pool, or no node of it can be asked.
        """

        async def work() -> FetchResult:
            return await (await self._attach_pool(pool)).outputs.fetch(patterns, to, run, progress)

        return self._submit(work())

    @staticmethod
    def is_working_locally(pool: PoolRow) -> bool:
        """Whether the ranks of a pool work, or worked, in this machine's own folders: what they write is here."""
        try:
            return isinstance(providers.provider_from_json(pool.provider), RunsHere)
        except SkywardError:  # of a package that is not installed any more
            return False

    def unfetched_files(self, pool: str) -> Future[Unfetched]:
        """The files of its ranks that nobody has fetched, and what a teardown would make of them. To ask keeps no pool
        alive; raises as :meth:`look`."""

        async def work() -> Unfetched:
            return await (await self._observe_pool(pool)).outputs.unfetched()

        return self._submit(work())


CONNECTING_DELAY = 0.5  # after which a pool to which the way is long is listed
PROBE_TIMEOUT = 5.0  # seconds that a command waits for a pool before it shows it as it was last seen

T = TypeVar("T")

OnEvent = Callable[[Event], None]


class Session(ProviderCheckRunner, RunComparisons, RankInspection, RunLauncher, OutputFiles, TrialRuns):
    """All that an app or a command needs of the core.

    Pools that this session did not create are watched as an observer: looking at a pool does not keep it alive.

    Raises:
        UsageError: ``SKYWARD_LOG`` names no level.
        LedgerError: the ledger cannot be opened.
    """

    def __init__(self) -> None:
        self._log_problem = debug_log.start_logging()
        self.ledger = Ledger()
        self._pools: dict[str, Pool] = {}  # by token
        self._attaching: set[str] = set()
        self._starting: set[asyncio.Task[Any] | None] = set()
        self._scans: set[asyncio.Task[list[PoolView]]] = set()
        self._unreachable: dict[str, PoolView] = {}
        self._back_off = BackOff()
        self._ended: dict[str, PoolView] = {}  # ended, and not by us; most as outlines
        self._ended_until = 0.0  # the end of the last of them
        self._rows: tuple[tuple[int, ...], list[PoolRow]] | None = None  # those that are not over, and when that was so
        self._ended_stamp: tuple[int, ...] = ()  # the same of what was read of those that are
        self._loaded_token = ""  # token of the one of them that is whole
        self._questions = HostKeyPrompt()
        self._launches = {}
        self._sweeps = {}
        self._is_prompting_for_budgets = False

    @property
    def notice(self) -> str:
        """What a person should know about the ledger and the log, or ""."""
        aside = self.ledger.damaged_copy
        said = f"the ledger was damaged; it is kept as {aside}, and a new one was begun" if aside else ""
        return "; ".join(filter(None, (said, self._log_problem)))

    def on_host_key(self, ask: Ask) -> None:
        """Have somebody judge the keys of hosts that no file knows, where a provider says ``host_keys="ask"``.

        Args:
            ask: says whether a key is to be believed, which then is written down. It runs on the session's thread,
                and is cancelled where nobody wants to know any more. Until there is one, and once this session
                has ended, the answer is no.
        """
        self._questions.set_handler(ask)

    def enable_budget_prompts(self) -> None:
        """From now on, pools of this session wait a while for `raise_budget` when they have cost what they may."""
        self._is_prompting_for_budgets = True

    def raise_budget(self, pool: str, dollars: float) -> Future[None]:
        """Let a pool cost more.

        Raises (through the future):
            UsageError, PoolError: it has cost that much already; or there is no such pool, or no way to it.
        """

        async def work() -> None:
            found = await self._attach_pool(pool)
            if dollars <= (spent := found.view.spent(time.time())):
                raise UsageError(f"pool {found.name} has cost ${spent:,.2f} already: give a larger budget")
            found.budget.raise_to(dollars)

        return self._submit(work())

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._questions.set_current():
            return submit(work)

    # -- looking -----------------------------------------------------------------------------------------

    def pools(self) -> list[PoolView]:
        """Pools known to this session: those that are not over, newest first, then the others."""
        known = {token: pool.view for token, pool in list(self._pools.items())}
        views = {**self._ended, **self._unreachable, **known}.values()
        return sorted(views, key=lambda view: (view.is_over, -view.created_at))

    def _known_pools(self) -> list[Pool]:
        return sorted(self._pools.values(), key=lambda pool: -pool.row.created_at)

    def view(self, pool: str) -> PoolView:
        """What a pool that this session is connected to looks like.

        Raises:
            PoolError: this session knows none.
        """
        return self._find(pool).view

    def subscribe(
        self,
        name: str,
        on_event: OnEvent | None = None,
        on_log: LogSink | None = None,
        *,
        missed: bool = False,
    ) -> Future[Callable[[], None]]:
        """Hear of every event and every piece of log ``(rank, stream, offset, bytes, run)`` of a pool, in order, on
        the session's thread; the run is "" where nothing tells whose they are. Resolves to what ends it.

        Args:
            missed: begin with the logs that have come since this session came to the pool.
        """

        async def work() -> Callable[[], None]:
            return self._find(name).news.subscribe(on_event, on_log, missed=missed)

        return self._submit(work())

    def refresh(self, *, over: bool = False, patient: bool = False) -> Future[list[PoolView]]:
        """Look for pools that others made on this machine, and watch them; with ``over`` read from the ledger also
        those that have ended, with ``patient`` pass by those that did not answer of late."""

        return self._submit(self._run_scan(self._refresh(over, patient)))

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
        gone = [pool for token, pool in self._pools.items() if token not in live]
        await asyncio.gather(
            *(self._probe(row) for row in new),
            *(self._probe_safely(pool, pool.reconnector.reconnect_lost()) for pool in known),
            *(
                self._probe_safely(pool, self._mark_gone(pool))
                for pool in gone
                if pool.context.observer and pool.view.is_live
            ),
        )
        if over and self._ended_stamp != as_of:
            await self._read_history()
            self._ended_stamp = as_of
        for token in self._unreachable.keys() - live:
            del self._unreachable[token]
        return self.pools()

    async def _probe(self, row: PoolRow) -> None:
        """Come to a pool that we do not know, or see that it is gone."""
        # Who lists pools sees it although the way to its machines is long.
        slow = asyncio.get_running_loop().call_later(CONNECTING_DELAY, self._list_connecting, row)
        try:
            try:
                await self._watch(row, observer=True)
            except PoolGone:
                self._ended[row.token] = summarize_pool(self.ledger, self.ledger.pool(row.token))
                self._unreachable.pop(row.token, None)
        except Exception as error:  # noqa: BLE001  whatever is wrong with one pool, the others are shown
            if not is_starting(row):
                self._back_off.record_failure(row.token)
            self._mark_unreachable(row, _describe_error(error), error_hint(error))
        finally:
            slow.cancel()

    def probe_pools(self, pools: Collection[str] = ()) -> Future[list[PoolView]]:
        """Record in the ledger what has become of the pools that it lists as up.

        Args:
            pools: Their keys; none for all.

        Returns:
            Pools that did not answer within :data:`LOOK` seconds.
        """

        async def look() -> list[PoolView]:
            rows = [row for row in self.ledger.live_pools() if not pools or row.key in pools]
            new = [row for row in rows if row.token not in self._pools]
            looks = {asyncio.create_task(self._probe(row)): row for row in new}
            _, late = await asyncio.wait(looks, timeout=PROBE_TIMEOUT) if looks else ((), ())
            for each in late:
                each.cancel()
                self._list_unreachable(looks[each], "unreachable", f"no answer within {PROBE_TIMEOUT:g} s")
            await flush_all()
            return [self._unreachable[row.token] for row in rows if row.token in self._unreachable]

        return self._submit(self._run_scan(look()))

    async def _run_scan(self, work: Coroutine[Any, Any, list[PoolView]]) -> list[PoolView]:
        """Look at pools until that is done, or this session ends."""
        look = asyncio.create_task(work)
        self._scans.add(look)
        look.add_done_callback(self._scans.discard)
        return await look

    def _list_connecting(self, row: PoolRow) -> None:
        if row.token in self._attaching and row.token not in self._unreachable:
            self._list_unreachable(row, "connecting", "")

    @staticmethod
    async def _probe_safely(pool: Pool, look: Coroutine[Any, Any, None]) -> None:
        """Look at a pool; whatever is wrong with it, the others are looked at, too."""
        try:
            await look
        except Exception as error:  # noqa: BLE001  shown with its pool
            if (said := f"it cannot be looked at: {_describe_error(error)}") != pool.view.detail:
                pool.news.emit_warning(said)

    async def _read_history(self) -> None:
        """Take from the ledger the pools that have ended since we last looked."""
        rows = self.ledger.ended_pools(self._ended_until)
        self._ended_until = max([self._ended_until, *(row.ended_at or 0.0 for row in rows)])
        new = [row for row in rows if row.token not in self._ended and row.token not in self._pools]
        for row in new:
            # One at a time, in a thread: whoever has years of pools waits for none of them.
            self._ended[row.token] = await asyncio.to_thread(summarize_pool, self.ledger, row)

    def load_ended_pool(self, pool: str) -> Future[PoolView]:
        """Have a pool that has ended, whole: with its outcomes and logs. Of one at a time, all of it is kept.

        Raises (through the future):
            PoolError: there is no such pool.
            LedgerError, OSError: what was kept of it cannot be read.
        """

        async def work() -> PoolView:
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

        return self._submit(work())

    async def _watch(self, row: PoolRow, *, observer: bool) -> Pool:
        self._attaching.add(row.token)
        try:
            if is_starting(row):
                raise PoolError(f"pool {row.name} is being started by process {row.pid}")
            pool = Pool(row, providers.provider_from_json(row.provider), self.ledger, observer=observer)
            pool.budget.prompts_user = self._is_prompting_for_budgets
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

    def _mark_unreachable(self, row: PoolRow, why: str, hint: Hint | None) -> None:
        state: PoolStatus = "starting" if row.state == "starting" else "unreachable"
        with suppress(LedgerError):  # it may be up by now
            now = self.ledger.pool(row.token)
            if now.state == "starting" and not is_starting(now):  # who brought it up is gone
                state, hint = "unfinished", hint or Hint("down", row.name)
        self._list_unreachable(row, state, why).hint = hint

    def _list_unreachable(self, row: PoolRow, state: PoolStatus, why: str) -> PoolView:
        view = self._unreachable[row.token] = unreachable_view(row, state, why)
        set_hourly_price(view, self.ledger, row)
        return view

    async def _mark_gone(self, pool: Pool) -> None:
        """A pool that we watched was torn down by somebody else."""
        row = self.ledger.pool(pool.row.token)
        pool.news.emit(PoolEnded(pool=pool.name, receipt=row.receipt or {}, at=row.ended_at or time.time()))
        await pool.detach()

    # -- doing -------------------------------------------------------------------------------------------

    def create(
        self, spec: PoolSpec, cwd: Path | None = None, *, begun: Future[PoolView] | None = None
    ) -> Future[PoolView]:
        """Bring a pool up; its view moves through the phases.

        Args:
            begun: has the view as soon as there is a pool to look at, or else why there is none. What reads it by
                callbacks must not wait there.

        Raises (through the future):
            PoolExistsError: the name is taken.
            PoolError: it could not come up; nothing of it is left.
            Cancelled: :meth:`down` or :meth:`detach` came in between.
        """

        async def work() -> PoolView:
            try:
                pool = await Pool.register(spec, self.ledger, str(cwd or require_current_folder()))
            except BaseException as error:
                if begun is not None:
                    begun.set_exception(error)
                raise
            self._pools[pool.row.token] = pool
            pool.budget.prompts_user = self._is_prompting_for_budgets
            if begun is not None:
                begun.set_result(pool.view)
            starting = asyncio.current_task()
            self._starting.add(starting)
            try:
                await pool.start(spec)
            finally:
                self._starting.discard(starting)
            return pool.view

        return self._submit(work())

    def run_logs(self, run: str) -> RunLogs:
        """Where what the ranks of a run printed is kept on this machine, as of now.

        Raises:
            UsageError: the ledger knows no such run.
        """
        return RunLogs(self.ledger, run)

    def result_values(self, run: RunView) -> dict[int, Path]:
        """The files that have the values of a run's ranks, or tasks, as they pickled them.

        Raises:
            UsageError: they are not all kept here, and why.
            LedgerError: the ledger cannot be read.
        """
        from skyward_core.client.run_history import result_pickles

        return result_pickles(self.ledger, run)

    def wait(self, pool: str, run: str) -> Future[RunView]:
        """Resolves when a run has ended, and its logs are here."""

        async def work() -> RunView:
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

        return self._submit(work())

    def cancel(self, pool: str, run: str) -> Future[None]:
        """Stop a run, whoever dispatched it; with one of a sweep by gangs the whole sweep."""

        async def work() -> None:
            found = await self._attach_pool(pool)
            if (sweep := self._sweeps.get(run)) is not None:
                sweep.cancel()
            found.run_registry.cancel(run)

        return self._submit(work())

    def observe(self, name: str) -> Future[PoolView]:
        """Connect to a pool that is up, as one who only looks: its lease goes on as if nobody were here.

        Raises (through the future):
            PoolError: there is no such pool, or it cannot be reached.
        """

        async def work() -> PoolView:
            return (await self._observe_pool(name)).view

        return self._submit(work())

    def attach(self, name: str) -> Future[PoolView]:
        """Connect to a pool that is up, as one who uses it; raises as :meth:`look`."""

        async def work() -> PoolView:
            return (await self._attach_pool(name)).view

        return self._submit(work())

    def retained_results(self) -> list[RetainedResults]:
        """What the hosts of pools that have ended keep, because nobody has fetched it."""
        return self.ledger.unfetched_results()

    def fetch(self, token: str, *, give_up: bool = False) -> Future[list[str]]:
        """Bring home what the hosts keep of a pool that has ended; gives what was done, in words.

        Args:
            token: the pool's, as :meth:`kept` tells it.
            give_up: have it removed in place of that.

        Raises (through the future):
            PoolError: something could not be had, and stays where it is.
        """

        async def work() -> list[str]:
            return await fetch_retained(self.ledger.pool(token), self.ledger, give_up=give_up)

        return self._submit(work())

    def fetch_run(self, run: str) -> Future[list[str]]:
        """Bring home what the nodes of a pool that is up hold of a run that is over and has no client; gives what was
        done, in words.

        Raises (through the future):
            PoolError: it cannot be had now, and stays where it is.
        """

        async def work() -> list[str]:
            row = self.ledger.run(run)
            if row is None or row.kind == "map" or row.has_client or is_fetched(self.ledger, run):
                return []  # a client has its values, or we have; a map's go to its caller alone
            pool = await self._observe_pool(self.ledger.pool(row.token).key)
            view = pool.view.runs.get(run)
            if view is None or view.state == "running":
                return []
            return await fetch_run(pool.row, run, self.ledger)

        return self._submit(work())

    def tear_down(
        self, pool: str, *, give_up: bool = False, keep_outputs: int | None = None, now: bool = False
    ) -> Future[Receipt]:
        """Tear a pool down, with proof. What nobody has fetched is brought here, or stays on its host: the receipt
        tells.

        Args:
            give_up: remove what nobody has fetched.
            keep_outputs: bytes of files of ranks that are brought here before their machines go, in place of what the
                pool's options say.
            now: ask nothing of its machines, and have them ended at once.

        Raises (through the future):
            UsageError: its provider cannot end machines at once; nothing was ended.
            PoolError: there is no such pool.
        """

        async def work() -> Receipt:
            row = self.ledger.find_pool(pool)
            if row is None or row.ended_at is not None:
                raise PoolError(f"no pool named {pool!r} is up", hint=Hint("list"))
            found = self._pools.get(row.token)
            if found is None:
                # What its client has left half made is not finished only to be ended.
                unfinished = row.state == "starting"
                found = Pool(row, providers.provider_from_json(row.provider), self.ledger, observer=unfinished)
                try:
                    if not now:  # then nobody is asked
                        await found.attach()
                except Exception:  # noqa: BLE001  whatever an agent said or did not say, the pool has to end
                    found.machines = self.ledger.machines(row.token)  # nobody answers: the provider must do
                self._pools[row.token] = found
            return await found.down(give_up=give_up, keep_outputs=keep_outputs, now=now)

        return self._submit(work())

    def scan_leftovers(
        self, asked: Mapping[str, Sequence[str]] | None = None, *,
        everywhere: bool = False, ledgers: Sequence[str] = (),
    ) -> Future[LeftoverScan]:  # fmt: skip
        """Look through accounts for what is left of pools, as ``client.leftover_cleanup`` takes it; changes nothing.

        Raises (through the future):
            UsageError: one of the providers has no account, or no such setting.
        """

        async def work() -> LeftoverScan:
            accounts = await asyncio.to_thread(leftover_cleanup.find_accounts, self.ledger, asked)
            return await leftover_cleanup.scan_accounts(self.ledger, accounts, everywhere=everywhere, ledgers=ledgers)

        return self._submit(work())

    def remove_leftovers(
        self, sweep: LeftoverScan, tell: Callable[[str], None] = lambda said: None
    ) -> Future[list[str]]:
        """End what a sweep found that nobody needs, as ``leftover_cleanup.end`` does; gives what remains, in words."""

        async def down(pool: str) -> Receipt:
            return await asyncio.wrap_future(self.tear_down(pool))

        return self._submit(leftover_cleanup.remove_leftovers(sweep, self.ledger, down, tell))

    def survives_exit(self, pool: str, run: str) -> Future[bool]:
        """Whether a run would go on without us now: not one of ours that waits, and that no node has got."""

        async def work() -> bool:
            ours = self._find(pool).runs.get(run)
            return ours is None or ours.sent

        return self._submit(work())

    def detach_pool(self, name: str) -> Future[None]:
        """Leave a pool as it is; runs of ours that no node has got are cancelled, and all others go on."""

        async def work() -> None:
            pool = self._find(name)
            del self._pools[pool.row.token]
            if pool.view.is_live:
                await pool.detach()

        return self._submit(work())

    def detach(self) -> None:
        """Leave all pools as they are, and close the ledger. One that is still starting is left half made: whoever
        uses it next goes on with what is there."""

        async def work() -> None:
            self._questions.close()
            for look in self._scans:
                look.cancel()  # what it would find nobody is told, and it would ask a ledger that is closed
            if self._scans:
                await asyncio.wait(self._scans, timeout=CANCEL_TIMEOUT)
            pools = self._pools.values()
            last = [pool.detach() if pool.view.is_live else pool.wait_recorded() for pool in pools]
            try:
                for failure in await asyncio.gather(*last, return_exceptions=True):
                    if failure is not None:
                        raise failure  # the others are left by now, too
            finally:
                if starting := list(filter(None, self._starting)):
                    await asyncio.wait(starting)  # what they write last is written
                self.ledger.close()

        self._submit(work()).result()

    def _find(self, pool: str) -> Pool:
        found = [each for each in self._known_pools() if pool in (each.row.key, each.name)]
        if not found:
            raise PoolError(f"no pool {pool!r} is known here", hint=Hint("list-all"))
        return next((each for each in found if each.view.is_live), found[0])

    def _live_row(self, name: str) -> PoolRow:
        row = self.ledger.find_pool(name)
        if row is None or row.ended_at is not None:
            raise PoolError(f"no pool named {name!r} is up", hint=Hint("list"))
        return row

    async def _observe_pool(self, name: str) -> Pool:
        """A pool that is up, as one who only looks."""
        row = self._live_row(name)
        return self._pools.get(row.token) or await self._watch(row, observer=True)

    async def _attach_pool(self, name: str) -> Pool:
        row = self._live_row(name)
        pool = self._pools.get(row.token)
        if pool is None:
            pool = await self._watch(row, observer=False)
        elif pool.context.observer:
            await pool.activate()
        return pool


def _describe_error(error: Exception) -> str:
    """Errors of ours are words already; of others, which nobody thought of, the type says most."""
    return error_message(error) if isinstance(error, SkywardError | OSError) else f"{type(error).__name__}: {error}"


class ReadOnlySession(Session):
    """The same pools, as one who only looks; no key of a host is believed that no file knows.

    Raises (through the futures of all that would change something):
        UsageError: this session only looks.
    """

    async def _watch(self, row: PoolRow, *, observer: bool) -> Pool:
        pool = await super()._watch(row, observer=observer)
        pool.run_registry.is_read_only = True
        return pool

    async def _attach_pool(self, name: str) -> Pool:
        """Who uses a pool comes to it by this."""
        _raise_read_only()

    def create(
        self, spec: PoolSpec, cwd: Path | None = None, *, begun: Future[PoolView] | None = None
    ) -> Future[PoolView]:
        if begun is not None:
            begun.set_exception(_read_only_error())
        return _read_only_future()

    def tear_down(
        self, pool: str, *, give_up: bool = False, keep_outputs: int | None = None, now: bool = False
    ) -> Future[Receipt]:
        return _read_only_future()

    def fetch(self, token: str, *, give_up: bool = False) -> Future[list[str]]:
        return _read_only_future()

    def fetch_run(self, run: str) -> Future[list[str]]:
        return _read_only_future()

    def dismiss(self, runs: Sequence[str]) -> Future[None]:
        return _read_only_future()

    def remove_leftovers(
        self, sweep: LeftoverScan, tell: Callable[[str], None] = lambda said: None
    ) -> Future[list[str]]:
        return _read_only_future()

    def check_provider(
        self, name: str, settings: Mapping[str, str], python: Interpreter | None = None
    ) -> Future[list[Check]]:
        # A host that is checked gets a folder of ours.
        return _read_only_future()

    def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Future[Stacks]:
        # A signal can interrupt what a rank waits in.
        return _read_only_future() if signal else super().stacks(pool, run, ranks)

    def debug(self, pool: str, rank: int, who: str, *, text: str = "", eof: bool = False) -> Future[tuple[bytes, bool]]:
        # Who debugs a rank has it do what they type.
        return _read_only_future()

    def on_host_key(self, ask: Ask) -> None:
        """Nobody is asked."""


def _read_only_error() -> UsageError:
    return UsageError("this only looks at pools (--read-only), and changes nothing")


def _raise_read_only() -> NoReturn:
    raise _read_only_error()


def _read_only_future() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(_read_only_error())
    return future


if TYPE_CHECKING:
    _is_a_front: type[SessionProtocol] = Session
