"""The parts, put together."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from skyward_core.model.errors import LedgerError, PoolError, SkywardError, UsageError
from skyward_core.model.specs import PoolSpec
from skyward_core.pool.agent_link import Link
from skyward_core.pool.budget_and_expiry import Budget, Expiry
from skyward_core.pool.edited_modules import EditedModules
from skyward_core.pool.event_log import EventPublisher
from skyward_core.pool.machine_metrics import MetricsRecorder, PauseNotifier
from skyward_core.pool.node_recovery import NodeFailureHandler, NodeReconnector, NodeReplacements
from skyward_core.pool.node_roster import NodeRoster, PreemptionNotices
from skyward_core.pool.pool_context import BackgroundTasks, PoolContext, PoolEnd
from skyward_core.pool.rank_setup import RankSetupManager, SetupConfig
from skyward_core.pool.reconciliation import close_if_gone
from skyward_core.pool.runs.run_registry import RunRegistry
from skyward_core.pool.runs.scheduler import Launcher
from skyward_core.pool.startup import EnvironmentLocks, NodeStartup, StartupTask, write_intent
from skyward_core.pool.teardown import ExternalTeardown, check_can_end_now, tear_down
from skyward_core.providers import provider_from_json
from skyward_core.providers.provider import Provider
from skyward_core.store import debug_log, pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, Receipt
from skyward_core.store.pool_folder import node_events, parse_rank
from skyward_core.store.state_folder import prune_is_due
from skyward_core.views import events
from skyward_core.views.pool_view import restore_node_details

if TYPE_CHECKING:
    from skyward_core.pool.dashboards import Dashboards
    from skyward_core.pool.machine_metrics import MetricsCollector
    from skyward_core.pool.output_files import Outputs, RemainingFiles
    from skyward_core.protocol.frame_types import FromAgent


FILES_PER_RANK = 3  # of a rank: what it prints, its errors, its numbers
FILES_PER_NODE = 3  # for its connections
SPARE_FILES = 64  # for the script, and for what comes and goes
MIN_SPARE_FILES = 16


def raise_file_limit(nodes: int, ranks: int, least: int | None = None) -> None:
    """Raise this process's own limit of open files so far as such a pool asks for it, and as the system lets us.

    Args:
        nodes: how many at most.
        ranks: how many on each.
        least: how many nodes it must be; None for all.

    Raises:
        UsageError: the system does not let us have even the connections.
    """
    import resource  # late: not all starts come this far

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    held = len(os.listdir("/dev/fd"))  # noqa: PTH208  no pathlib for a number
    wanted = held + nodes * (FILES_PER_NODE + FILES_PER_RANK * ranks) + SPARE_FILES
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY:
        needed = held + (nodes if least is None else least) + MIN_SPARE_FILES
        if hard < needed:
            raise UsageError(
                f"{nodes} nodes need at least {needed} open files here, and this process may have {hard}: "
                f"raise that (ulimit -Hn {wanted}, or LimitNOFILE= of its service), or have fewer nodes"
            )
        wanted = min(wanted, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class ClientTeardown:
    """One pool's.

    Args:
        stop_starting: breaks off its start.
        outputs: gives what its ranks wrote.
        leave: closes what this client has open of the pool.
    """

    def __init__(
        self, context: PoolContext, news: EventPublisher, background: BackgroundTasks, book: RunRegistry,
        replacements: NodeReplacements,
        locks: EnvironmentLocks, stop_starting: Callable[[], Awaitable[object]], outputs: Callable[[], Outputs],
        leave: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._context = context
        self._news = news
        self._background = background
        self._run_registry = book
        self._replacements = replacements
        self._locks = locks
        self._stop_starting = stop_starting
        self._outputs = outputs
        self._leave = leave
        self._task: asyncio.Task[Receipt] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it has been asked for."""
        return self._task is not None

    def begin(self, give_up: bool, keep_outputs: int | None, *, now: bool = False) -> asyncio.Task[Receipt]:
        """Tear the pool down, or go on with that; one that came to nothing is begun anew."""
        if self._task is None or (self._task.done() and not self._has_succeeded(self._task)):
            self._context.leaving = True
            self._task = asyncio.create_task(self._tear_down(give_up, keep_outputs, now))
        return self._task

    def begin_with_reason(self, why: str) -> None:
        """The same where nobody has asked for it, for a reason in words, which its runs and its receipt tell."""
        self._context.end_reason = why
        for run in list(self._run_registry.runs.values()):
            run.cancel(f"pool {self._context.name} ends: {why}")
        self.begin(False, None)

    async def wait_recorded(self) -> None:
        """Wait for the end of a teardown that has told of its receipt: it is not in the ledger yet."""
        if self._task is not None:
            await asyncio.wait([self._task])

    @staticmethod
    def _has_succeeded(task: asyncio.Task[Receipt]) -> bool:
        return task.exception() is None and task.result().ok

    async def _tear_down(self, give_up: bool, keep_outputs: int | None, now: bool) -> Receipt:
        context = self._context
        debug_log.pool.set(context.name)
        # Nothing may come up behind the back of a teardown that has verified that nothing is there.
        await self._stop_starting()
        locks = asyncio.create_task(self._locks.save_remaining())  # while nodes end: nobody waits for it

        async def save() -> RemainingFiles:
            return await self._outputs().save(give_up=give_up, most=keep_outputs)

        receipt = await tear_down(
            context, self._news, self._background, self._run_registry, self._replacements.stop, save, self._leave,
            give_up=give_up, now=now,
        )  # fmt: skip
        await locks
        if not receipt.kept:
            return receipt
        from skyward_core.pool.fetch_retained_results import fetch_after_teardown

        return await fetch_after_teardown(context.row, context.ledger, receipt, give_up=give_up)


ACKNOWLEDGE_TIMEOUT = 2.0  # seconds for an agent to say that it has heard our last word
LOCK_DELAY = 1.0  # seconds after a start in which nothing is done that can wait


_POOLS: WeakSet[Pool] = WeakSet()  # of this process


async def flush_all() -> None:
    """Have ledger and files tell all that this process knows of its pools."""
    for pool in list(_POOLS):
        pool.background.run_deferred()
        pool.news.records.flush()


class Pool:
    """One pool as one client has it: its parts, and what goes from one to another.

    Attributes:
        context: its data, which the parts share.
        news: where all that is seen of it goes.
        book: runs that this client dispatched and that have not ended.
        launch: dispatches runs.
        healing: looks again at nodes that are not there.
    """

    def __init__(self, row: PoolRow, provider: Provider, ledger: Ledger, *, observer: bool = False) -> None:
        self.name = row.name
        self.row = row
        self.provider = provider
        self.ledger = ledger
        self.context = context = PoolContext(row, provider, ledger, observer=observer)
        self.view, self.archive, self.options = context.view, context.archive, context.options
        self.links, self.machines = context.links, context.machines
        self.news = news = EventPublisher(context)
        self.background = background = BackgroundTasks()
        self.run_registry = book = RunRegistry(context, news, background, lambda run: self.launcher.restart(run))
        self.runs = book.runs
        self.roster = roster = NodeRoster(context, news)
        self._setup_config = knowledge = SetupConfig(context, news)
        self.setup_manager = upkeep = RankSetupManager(context, news, knowledge, roster)
        self._startup = startup = NodeStartup(context, news, background, knowledge, roster, self, book.drop_link)
        self._modules = modules = EditedModules(
            context, news, knowledge.cwd, startup.send_folder, upkeep.restart_processes
        )
        self.launcher = Launcher(context, news, background, book, roster, upkeep, knowledge, modules)
        self._replacements = NodeReplacements(context, news, roster, startup, upkeep.on_node_replaced)
        self.reconnector = NodeReconnector(context, news, roster, startup, upkeep.on_node_replaced)
        self._notices = PreemptionNotices(context, news)
        self._pause_notifier = PauseNotifier(context, background)
        self._external_teardown = ExternalTeardown(context, news, background, book)
        self._expiry = Expiry(context, news)
        self.failure_handler = NodeFailureHandler(
            context, news, background, roster, book, self._external_teardown, startup, self._replacements
        )
        self._startup_task = starting = StartupTask(context, news, self._start, self.down)
        self._teardown = ClientTeardown(
            context, news, background, book, self._replacements, startup.locks, starting.stop,
            lambda: self.outputs, self.detach,
        )  # fmt: skip
        self.budget = Budget(context, news, self._teardown.begin_with_reason)
        self._outputs: Outputs | None = None
        self._metrics_collector: MetricsCollector | None = None
        self._dashboards: Dashboards | None = None
        self._metrics_recorder = MetricsRecorder(context, news, lambda: self.metrics_collector)
        if (row.spec.get("image") or {}).get("outputs") and not (observer or context.is_local):
            self.outputs.start_fetching()
        news.emit_opened()
        _POOLS.add(self)

    @property
    def outputs(self) -> Outputs:
        """What its ranks wrote; made when somebody first asks, as most pools are started without."""
        if self._outputs is None:
            from skyward_core.pool.output_files import Outputs

            self._outputs = Outputs(self.context, self.news, self.run_registry)
        return self._outputs

    @property
    def metrics_collector(self) -> MetricsCollector:
        """What its machines are measured at; from the first time that somebody asks."""
        if self._metrics_collector is None:
            from skyward_core.pool.machine_metrics import MetricsCollector

            self._metrics_collector = MetricsCollector(self.context)
        return self._metrics_collector

    @property
    def dashboards(self) -> Dashboards:
        """Web pages that its head has; from the first time that somebody asks."""
        if self._dashboards is None:
            from skyward_core.pool.dashboards import Dashboards

            self._dashboards = Dashboards(self.context)
        return self._dashboards

    # -- coming up ---------------------------------------------------------------------------------------

    @classmethod
    async def register(cls, spec: PoolSpec, ledger: Ledger, cwd: str = "") -> Pool:
        """Make the object of a pool that is wanted, which stands in the ledger then; nothing of it exists yet.

        Raises:
            as ``startup.write``; UsageError where this process may not have so many files open.
        """
        raise_file_limit(spec.most_nodes, spec.ranks_per_node, spec.least_nodes)
        intent = await write_intent(spec, ledger, cwd)
        pool = cls(intent.row, spec.provider, ledger)
        pool._setup_config.set_image(intent.image, intent.interpreter, intent.packages)
        if intent.notice:
            pool.news.emit_warning(intent.notice)
        return pool

    async def start(self, spec: PoolSpec) -> None:
        """Create the machines and bring every node to ready; on failure nothing of it is left.

        Raises:
            PoolError: says which node failed, at what, and what to do.
            Cancelled: :meth:`down` or :meth:`detach` came in between.
        """
        debug_log.pool.set(self.name)
        await self._startup_task.start(spec)

    @property
    def is_starting(self) -> bool:
        """Whether its start goes on, and has not failed."""
        return self._startup_task.is_running

    async def _start(self, spec: PoolSpec) -> None:
        await self._startup.start(spec)
        self.setup_manager.create(spec.plugins)
        with suppress(OSError):  # then other clients do not find them
            pool_folder.save_dashboards(self.context.row.key, self.name, spec.plugins)
        if self.setup_manager.rank_setup is not None:
            await self.setup_manager.rank_setup.ensure_set_up()
        self.roster.save_state()
        self.background.spawn(self._save_locks())
        self.background.spawn(self.budget.watch())
        self.background.spawn(self._expiry.renew())
        if prune_is_due():
            from skyward_core.store.pruning import prune_when_due

            self.background.spawn(asyncio.to_thread(prune_when_due, self.ledger))

    async def _save_locks(self) -> None:
        await asyncio.sleep(LOCK_DELAY)
        await self._startup.locks.save_remaining()

    @classmethod
    async def attach_to(cls, row: PoolRow, ledger: Ledger, *, observer: bool = False) -> Pool:
        """Return a pool that this client is connected to; raises as :meth:`attach`."""
        pool = cls(row, provider_from_json(row.provider), ledger, observer=observer)
        try:
            await pool.attach()
        except BaseException:
            await pool.detach()
            raise
        return pool

    async def attach(self) -> None:
        """Connect to a pool that the ledger has as up, and close it there if its provider says that it has ended.

        Raises:
            PoolGone: The pool has ended.
            PoolError: No node of the pool can be reached.
            UsageError: This process may not have so many files open.
        """
        debug_log.pool.set(self.name)
        raise_file_limit(self.context.row.spec["nodes"], self.context.ranks_per_node)
        came = time.time()
        try:
            await self._startup.attach()
        except PoolError:
            # Nobody may have been there to write down its end, by its lease for example.
            row = self.ledger.pool(self.row.token)
            with suppress(SkywardError, OSError):  # then nothing is known but that no node answers
                await close_if_gone(row, self.provider, self.ledger)
            if (row := self.ledger.pool(row.token)).ended_at is None:
                raise
            raise PoolEnd.from_ledger(row).error() from None
        self.background.spawn(self._replay_node_messages(came))
        self.setup_manager.create(None)
        self.roster.save_state()
        self._replacements.resume()
        if not self.context.observer:
            self.background.spawn(self.budget.watch())
        try:
            # Now: later the agents that know may be gone, and this the only client.
            await self._setup_config.fetch_from_nodes()
        except OSError as error:
            self.news.emit_node_note(self.links[0], f"{error}; asked again when it is needed")
        if not self.context.observer:
            self.background.spawn(self._expiry.renew())

    async def _replay_node_messages(self, before: float) -> None:
        """What was said of the nodes on their way: only who made the pool was told, and has written it down if it did
        so on this machine."""
        said = await asyncio.to_thread(lambda: list(node_events(self.context.archive.folder, before)))
        restore_node_details(self.context.view, said)

    async def activate(self) -> None:
        """From an observer become one whose presence keeps the pool alive, and who goes on with what its maker left.

        Raises:
            PoolError: it was never up, and a machine of it is not what was bought, and could not be exchanged.
        """
        self.context.observer = False
        self.background.spawn(self.budget.watch())
        self.background.spawn(self._expiry.renew())
        for link in self.links:
            link.activate()
        self.run_registry.check_orphaned()
        await self._startup.finish()
        self.roster.save_state()

    # -- what comes over the links -----------------------------------------------------------------------

    def cursors(self, node: int) -> dict[str, int]:
        """How many bytes of each log file of a node are here; a node that has just greeted us is asked so."""
        self.news.set_ranks_per_node(self.links[node].welcome["ranks_per_node"])
        return self.context.cursors(node)

    def on_frame(self, link: Link, header: FromAgent, body: bytes) -> None:
        """What an agent tells.

        Raises:
            WireError: it cannot be.
        """
        match header["t"]:
            case "log":
                self.context.check_rank(link, parse_rank(header["f"]))
                self.news.log_receiver.receive(header["f"], header["at"], body)
            case "granted" | "wanted" | "held":
                self.setup_manager.on_frame(link, header)
            case "queue" | "turn" | "dropped":
                if unwanted := self.launcher.queue.on_frame(link, header):
                    self.run_registry.cancel(unwanted)
                    self.launcher.queue.notify()
            case "gang":
                self.launcher.on_gang_broken()
            case "outcome" | "item" | "began" | "stale" | "run" | "want":
                self.run_registry.on_frame(link, header, body)
                if header["t"] == "outcome":
                    self.launcher.queue.notify()
            case "ending":
                self._external_teardown.on_external_end(PoolEnd.from_agent(self.name, header))
            case "phase":
                self.news.emit_rank_phase(link, header)
                self._pause_notifier.on_phase()
            case "notice":
                self._notices.on_notice(link, header)
            case "metrics":
                if self._metrics_collector is not None:
                    self._metrics_collector.on_frame(link, header, body)
                    self._metrics_recorder.save_metrics(link, header, body)
            case "modules":
                self._modules.update_loaded(link, header["files"])
            case "pong":
                self.news.update_lease(header["lease"])
                self.news.update_retained_results(link, header)
                self.news.update_cpu_time(link, header)
                self._metrics_recorder.save_cpu_time(link, header)
            case "error":
                self.news.emit_node_note(link, header["message"])

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        """A link is up, or down, or still down."""
        context = self.context
        if context.detached and not up:
            return  # it is we who went
        if not up:
            detail = self.failure_handler.on_disconnect(link, detail)
        self.news.emit(events.NodeLink(pool=self.name, node=link.node, up=up, detail=detail))
        self.launcher.queue.notify()
        if up:
            self.failure_handler.suspects.clear(link)
            if not link.silent:  # else its last greeting is old, and all that came since has been heard
                self._on_connect(link)
            return
        if link.silent:
            return  # still connected: it is shown, nothing is done about it
        self.setup_manager.on_down(link)
        if not (context.leaving or link.gone or context.external_end):
            self.failure_handler.diagnose(link)

    def _on_connect(self, link: Link) -> None:
        self.news.update_lease(link.welcome["lease"])
        self.run_registry.check_welcome(link)
        self.news.update_rank_phases(link)
        self._pause_notifier.on_phase()
        self.news.update_retained_results(link, link.welcome)
        self._modules.update_loaded(link, link.welcome.get("modules", {}))
        self.run_registry.sync_from_agent(link)
        self.launcher.queue.on_connect(link)
        self._notices.on_connect(link)
        if self._metrics_collector is not None:
            self._metrics_collector.on_connect(link)
        if not link.epoch and not self.context.observer:
            self.launcher.on_new_agent()

    # -- going down --------------------------------------------------------------------------------------

    async def down(self, *, give_up: bool = False, keep_outputs: int | None = None, now: bool = False) -> Receipt:
        """Tear the pool down; a second call waits for the first.

        Args:
            give_up: remove results and logs that nobody has fetched, in place of fetching them.
            keep_outputs: bytes of files that are brought here first, in place of what the pool's options say.
            now: ask nothing of its machines, and have them ended at once.

        Raises:
            UsageError: its provider cannot do that; nothing was ended.
        """
        if now:
            await check_can_end_now(self.context.provider)
        return await asyncio.shield(self._teardown.begin(give_up, keep_outputs, now=now))

    async def wait_recorded(self) -> None:
        """Wait for the end of a teardown that has told of its receipt: it is not in the ledger yet."""
        await self._teardown.wait_recorded()

    @staticmethod
    async def _acknowledge(link: Link) -> None:
        """Have an agent hear which results are here, and written down. A host may drop what it has not handed on when
        the connection ends: so its answer to what comes behind that is waited for."""
        if link.flush_acknowledgements() and link.up:
            with suppress(ConnectionError, TimeoutError):  # then they stay there
                async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT):
                    await link.ask({"t": "ping"})

    async def detach(self) -> None:
        """Leave the pool as it is; see :meth:`Run.leave` for what becomes of runs. One that is still starting is left
        half made, as if this process had died: whoever uses it next goes on with what is there."""
        self.context.detached = self.context.leaving = True
        if await self._startup_task.stop():
            with suppress(LedgerError):  # who comes next then waits until this process is gone
                self.ledger.release_pool(self.row.token)
        await self._startup.locks.save_remaining()
        if not self._teardown.has_begun:
            await asyncio.gather(*(link.transport.finish_uploads() for link in self.links))
        for run in list(self.runs.values()):
            run.detach()
        if self._outputs is not None:
            self._outputs.stop_fetching()
        if not self.context.observer:
            await self._expiry.extend_for_runs()
        self.background.run_deferred()
        await self._replacements.stop()
        self.failure_handler.suspects.stop()
        self.news.log_receiver.stop()
        self.news.records.flush()
        await asyncio.gather(*map(self._acknowledge, self.links))
        for link in self.links:
            await link.close()
        await self.background.stop()
        self.run_registry.direct.close()
        self._modules.close()
        self._metrics_recorder.close()
        self.news.close()
