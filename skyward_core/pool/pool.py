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
from skyward_core.pool.event_log import News
from skyward_core.pool.machine_metrics import Recording, StandingStill
from skyward_core.pool.node_recovery import Healing, Replacements, Watch
from skyward_core.pool.node_roster import Notices, Roster
from skyward_core.pool.pool_context import Background, PoolContext, PoolEnd
from skyward_core.pool.rank_setup import SetupKnowledge, Upkeep
from skyward_core.pool.reconciliation import close_if_gone
from skyward_core.pool.runs.run_registry import RunBook
from skyward_core.pool.runs.scheduler import Launcher
from skyward_core.pool.startup import Locks, Starting, Startup, write
from skyward_core.pool.teardown import Endings, check_now, tear_down
from skyward_core.providers import from_json
from skyward_core.providers.provider import Provider
from skyward_core.store import debug_log, pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, Receipt
from skyward_core.store.pool_folder import rank_of, said_of_nodes
from skyward_core.store.state_folder import prune_is_due
from skyward_core.views import events
from skyward_core.views.pool_view import recall_said

if TYPE_CHECKING:
    from skyward_core.pool.dashboards import Dashboards
    from skyward_core.pool.machine_metrics import Measures
    from skyward_core.pool.output_files import Outputs, Rest
    from skyward_core.protocol.frame_types import FromAgent


LOGS = 3  # of a rank: what it prints, its errors, its numbers
NODE = 3  # for its connections
SPARE = 64  # for the script, and for what comes and goes
LEAST_SPARE = 16


def make_room(nodes: int, ranks: int, least: int | None = None) -> None:
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
    wanted = held + nodes * (NODE + LOGS * ranks) + SPARE
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY:
        needed = held + (nodes if least is None else least) + LEAST_SPARE
        if hard < needed:
            raise UsageError(
                f"{nodes} nodes need at least {needed} open files here, and this process may have {hard}: "
                f"raise that (ulimit -Hn {wanted}, or LimitNOFILE= of its service), or have fewer nodes"
            )
        wanted = min(wanted, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class OwnEnd:
    """One pool's.

    Args:
        stop_starting: breaks off its start.
        outputs: gives what its ranks wrote.
        leave: closes what this client has open of the pool.
    """

    def __init__(
        self, context: PoolContext, news: News, background: Background, book: RunBook, replacements: Replacements,
        locks: Locks, stop_starting: Callable[[], Awaitable[object]], outputs: Callable[[], Outputs],
        leave: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._context = context
        self._news = news
        self._background = background
        self._book = book
        self._replacements = replacements
        self._locks = locks
        self._stop_starting = stop_starting
        self._outputs = outputs
        self._leave = leave
        self._task: asyncio.Task[Receipt] | None = None

    @property
    def begun(self) -> bool:
        """Whether it has been asked for."""
        return self._task is not None

    def begin(self, give_up: bool, keep_outputs: int | None, *, now: bool = False) -> asyncio.Task[Receipt]:
        """Tear the pool down, or go on with that; one that came to nothing is begun anew."""
        if self._task is None or (self._task.done() and not self._is_done(self._task)):
            self._context.leaving = True
            self._task = asyncio.create_task(self._end(give_up, keep_outputs, now))
        return self._task

    def begin_for(self, why: str) -> None:
        """The same where nobody has asked for it, for a reason in words, which its runs and its receipt tell."""
        self._context.why_ended = why
        for run in list(self._book.runs.values()):
            run.cancel(f"pool {self._context.name} ends: {why}")
        self.begin(False, None)

    async def written_down(self) -> None:
        """Wait for the end of a teardown that has told of its receipt: it is not in the ledger yet."""
        if self._task is not None:
            await asyncio.wait([self._task])

    @staticmethod
    def _is_done(task: asyncio.Task[Receipt]) -> bool:
        return task.exception() is None and task.result().ok

    async def _end(self, give_up: bool, keep_outputs: int | None, now: bool) -> Receipt:
        context = self._context
        debug_log.pool.set(context.name)
        # Nothing may come up behind the back of a teardown that has verified that nothing is there.
        await self._stop_starting()
        locks = asyncio.create_task(self._locks.keep_the_rest())  # while nodes end: nobody waits for it

        async def save() -> Rest:
            return await self._outputs().save(give_up=give_up, most=keep_outputs)

        receipt = await tear_down(
            context, self._news, self._background, self._book, self._replacements.stop, save, self._leave,
            give_up=give_up, now=now,
        )  # fmt: skip
        await locks
        if not receipt.kept:
            return receipt
        from skyward_core.pool.fetch_retained_results import bring_home

        return await bring_home(context.row, context.ledger, receipt, give_up=give_up)


HEARD = 2.0  # seconds for an agent to say that it has heard our last word
QUIET = 1.0  # seconds after a start in which nothing is done that can wait


_POOLS: WeakSet[Pool] = WeakSet()  # of this process


async def write_down() -> None:
    """Have ledger and files tell all that this process knows of its pools."""
    for pool in list(_POOLS):
        pool.background.catch_up()
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
        self.news = news = News(context)
        self.background = background = Background()
        self.book = book = RunBook(context, news, background, lambda run: self.launch.start_anew(run))
        self.runs = book.runs
        self.roster = roster = Roster(context, news)
        self._knowledge = knowledge = SetupKnowledge(context, news)
        self.upkeep = upkeep = Upkeep(context, news, knowledge, roster)
        self._startup = startup = Startup(context, news, background, knowledge, roster, self, book.drop)
        self._modules = modules = EditedModules(
            context, news, knowledge.cwd, startup.send_folder, upkeep.renew_processes
        )
        self.launch = Launcher(context, news, background, book, roster, upkeep, knowledge, modules)
        self._replacements = Replacements(context, news, roster, startup, upkeep.renewed)
        self.healing = Healing(context, news, roster, startup, upkeep.renewed)
        self._notices = Notices(context, news)
        self._still = StandingStill(context, background)
        self._endings = Endings(context, news, background, book)
        self._expiry = Expiry(context, news)
        self.watch = Watch(context, news, background, roster, book, self._endings, startup, self._replacements)
        self._starting = starting = Starting(context, news, self._start, self.down)
        self._own_end = OwnEnd(
            context, news, background, book, self._replacements, startup.locks, starting.stop,
            lambda: self.outputs, self.detach,
        )  # fmt: skip
        self.budget = Budget(context, news, self._own_end.begin_for)
        self._outputs: Outputs | None = None
        self._measures: Measures | None = None
        self._dashboards: Dashboards | None = None
        self._recording = Recording(context, news, lambda: self.measures)
        if (row.spec.get("image") or {}).get("outputs") and not (observer or context.runs_here):
            self.outputs.keep()
        news.opened()
        _POOLS.add(self)

    @property
    def outputs(self) -> Outputs:
        """What its ranks wrote; made when somebody first asks, as most pools are started without."""
        if self._outputs is None:
            from skyward_core.pool.output_files import Outputs

            self._outputs = Outputs(self.context, self.news, self.book)
        return self._outputs

    @property
    def measures(self) -> Measures:
        """What its machines are measured at; from the first time that somebody asks."""
        if self._measures is None:
            from skyward_core.pool.machine_metrics import Measures

            self._measures = Measures(self.context)
        return self._measures

    @property
    def dashboards(self) -> Dashboards:
        """Web pages that its head has; from the first time that somebody asks."""
        if self._dashboards is None:
            from skyward_core.pool.dashboards import Dashboards

            self._dashboards = Dashboards(self.context)
        return self._dashboards

    # -- coming up ---------------------------------------------------------------------------------------

    @classmethod
    async def intend(cls, spec: PoolSpec, ledger: Ledger, cwd: str = "") -> Pool:
        """Make the object of a pool that is wanted, which stands in the ledger then; nothing of it exists yet.

        Raises:
            as ``startup.write``; UsageError where this process may not have so many files open.
        """
        make_room(spec.most_nodes, spec.ranks_per_node, spec.least_nodes)
        intent = await write(spec, ledger, cwd)
        pool = cls(intent.row, spec.provider, ledger)
        pool._knowledge.know(intent.image, intent.interpreter, intent.packages)
        if intent.notice:
            pool.news.complain(intent.notice)
        return pool

    async def start(self, spec: PoolSpec) -> None:
        """Create the machines and bring every node to ready; on failure nothing of it is left.

        Raises:
            PoolError: says which node failed, at what, and what to do.
            Cancelled: :meth:`down` or :meth:`detach` came in between.
        """
        debug_log.pool.set(self.name)
        await self._starting.start(spec)

    @property
    def is_starting(self) -> bool:
        """Whether its start goes on, and has not failed."""
        return self._starting.goes_on

    async def _start(self, spec: PoolSpec) -> None:
        await self._startup.start(spec)
        self.upkeep.make(spec.plugins)
        with suppress(OSError):  # then other clients do not find them
            pool_folder.save_dashboards(self.context.row.key, self.name, spec.plugins)
        if self.upkeep.keeper is not None:
            await self.upkeep.keeper.ensure()
        self.roster.note()
        self.background.spawn(self._keep_locks())
        self.background.spawn(self.budget.watch())
        self.background.spawn(self._expiry.keep())
        if prune_is_due():
            from skyward_core.store.pruning import prune_when_due

            self.background.spawn(asyncio.to_thread(prune_when_due, self.ledger))

    async def _keep_locks(self) -> None:
        await asyncio.sleep(QUIET)
        await self._startup.locks.keep_the_rest()

    @classmethod
    async def attached(cls, row: PoolRow, ledger: Ledger, *, observer: bool = False) -> Pool:
        """Return a pool that this client is connected to; raises as :meth:`attach`."""
        pool = cls(row, from_json(row.provider), ledger, observer=observer)
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
        make_room(self.context.row.spec["nodes"], self.context.ranks_per_node)
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
            raise PoolEnd.written(row).error() from None
        self.background.spawn(self._recall_said(came))
        self.upkeep.make(None)
        self.roster.note()
        self._replacements.resume()
        if not self.context.observer:
            self.background.spawn(self.budget.watch())
        try:
            # Now: later the agents that know may be gone, and this the only client.
            await self._knowledge.learn()
        except OSError as error:
            self.news.mention(self.links[0], f"{error}; asked again when it is needed")
        if not self.context.observer:
            self.background.spawn(self._expiry.keep())

    async def _recall_said(self, before: float) -> None:
        """What was said of the nodes on their way: only who made the pool was told, and has written it down if it did
        so on this machine."""
        said = await asyncio.to_thread(lambda: list(said_of_nodes(self.context.archive.folder, before)))
        recall_said(self.context.view, said)

    async def use(self) -> None:
        """From an observer become one whose presence keeps the pool alive, and who goes on with what its maker left.

        Raises:
            PoolError: it was never up, and a machine of it is not what was bought, and could not be exchanged.
        """
        self.context.observer = False
        self.background.spawn(self.budget.watch())
        self.background.spawn(self._expiry.keep())
        for link in self.links:
            link.use()
        self.book.look_again()
        await self._startup.finish()
        self.roster.note()

    # -- what comes over the links -----------------------------------------------------------------------

    def cursors(self, node: int) -> dict[str, int]:
        """How many bytes of each log file of a node are here; a node that has just greeted us is asked so."""
        self.news.learn_ranks(self.links[node].welcome["ranks_per_node"])
        return self.context.cursors(node)

    def on_frame(self, link: Link, header: FromAgent, body: bytes) -> None:
        """What an agent tells.

        Raises:
            WireError: it cannot be.
        """
        match header["t"]:
            case "log":
                self.context.check_rank(link, rank_of(header["f"]))
                self.news.intake.take(header["f"], header["at"], body)
            case "granted" | "wanted" | "held":
                self.upkeep.on_frame(link, header)
            case "queue" | "turn" | "dropped":
                if unwanted := self.launch.line.on_frame(link, header):
                    self.book.cancel(unwanted)
                    self.launch.line.note()
            case "gang":
                self.launch.gang_broke()
            case "outcome" | "item" | "began" | "stale" | "run" | "want":
                self.book.on_frame(link, header, body)
                if header["t"] == "outcome":
                    self.launch.line.note()
            case "ending":
                self._endings.by_others(PoolEnd.told(self.name, header))
            case "phase":
                self.news.enter_phase(link, header)
                self._still.look()
            case "notice":
                self._notices.heard(link, header)
            case "metrics":
                if self._measures is not None:
                    self._measures.on_frame(link, header, body)
                    self._recording.figures(link, header, body)
            case "modules":
                self._modules.learn(link, header["files"])
            case "pong":
                self.news.learn_lease(header["lease"])
                self.news.learn_unfetched(link, header)
                self.news.learn_work(link, header)
                self._recording.work(link, header)
            case "error":
                self.news.mention(link, header["message"])

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        """A link is up, or down, or still down."""
        context = self.context
        if context.detached and not up:
            return  # it is we who went
        if not up:
            detail = self.watch.down(link, detail)
        self.news.emit(events.NodeLink(pool=self.name, node=link.node, up=up, detail=detail))
        self.launch.line.note()
        if up:
            self.watch.suspicion.up(link)
            if not link.silent:  # else its last greeting is old, and all that came since has been heard
                self._greeted(link)
            return
        if link.silent:
            return  # still connected: it is shown, nothing is done about it
        self.upkeep.on_down(link)
        if not (context.leaving or link.gone or context.ending):
            self.watch.examine(link)

    def _greeted(self, link: Link) -> None:
        self.news.learn_lease(link.welcome["lease"])
        self.book.check_welcome(link)
        self.news.learn_phases(link)
        self._still.look()
        self.news.learn_unfetched(link, link.welcome)
        self._modules.learn(link, link.welcome.get("modules", {}))
        self.book.catch_up(link)
        self.launch.line.greeted(link)
        self._notices.greeted(link)
        if self._measures is not None:
            self._measures.greeted(link)
        if not link.epoch and not self.context.observer:
            self.launch.agent_is_new()

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
            await check_now(self.context.provider)
        return await asyncio.shield(self._own_end.begin(give_up, keep_outputs, now=now))

    async def written_down(self) -> None:
        """Wait for the end of a teardown that has told of its receipt: it is not in the ledger yet."""
        await self._own_end.written_down()

    @staticmethod
    async def _acknowledge(link: Link) -> None:
        """Have an agent hear which results are here, and written down. A host may drop what it has not handed on when
        the connection ends: so its answer to what comes behind that is waited for."""
        if link.flush_acknowledgements() and link.up:
            with suppress(ConnectionError, TimeoutError):  # then they stay there
                async with asyncio.timeout(HEARD):
                    await link.ask({"t": "ping"})

    async def detach(self) -> None:
        """Leave the pool as it is; see :meth:`Run.leave` for what becomes of runs. One that is still starting is left
        half made, as if this process had died: whoever uses it next goes on with what is there."""
        self.context.detached = self.context.leaving = True
        if await self._starting.stop():
            with suppress(LedgerError):  # who comes next then waits until this process is gone
                self.ledger.left(self.row.token)
        await self._startup.locks.keep_the_rest()
        if not self._own_end.begun:
            await asyncio.gather(*(link.transport.settle() for link in self.links))
        for run in list(self.runs.values()):
            run.leave()
        if self._outputs is not None:
            self._outputs.leave()
        if not self.context.observer:
            await self._expiry.leave()
        self.background.catch_up()
        await self._replacements.stop()
        self.watch.suspicion.stop()
        self.news.intake.stop()
        self.news.records.flush()
        await asyncio.gather(*map(self._acknowledge, self.links))
        for link in self.links:
            await link.close()
        await self.background.stop()
        self.book.direct.close()
        self._modules.close()
        self._recording.close()
        self.news.close()
