"""A pool on the client, from the intent in the ledger to the receipt. Everything here runs on one loop."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from ..model.errors import LedgerError, PoolError, SkywardError
from ..model.spec import PoolSpec
from ..providers import from_json
from ..providers.base import Provider
from ..store import kept_dashboards, loggers
from ..store.archive import rank_of, said_of_nodes
from ..store.home import prune_is_due
from ..store.ledger import Ledger
from ..store.ledger_rows import PoolRow, Receipt
from ..views import events as ev
from ..views.views import recall_said
from .background import Background
from .budget import Budget
from .context import PoolContext
from .edited_modules import EditedModules
from .endings import Endings
from .expiry import Expiry
from .gang.upkeep import Upkeep
from .intent import write
from .links.link import Link
from .news import News
from .nodes.heal import Healing
from .nodes.notices import Notices
from .nodes.reconcile import close_if_gone
from .nodes.replace import Replacements
from .nodes.roster import Roster
from .nodes.startup import Startup
from .nodes.watch import Watch
from .open_files import make_room
from .own_end import OwnEnd
from .pool_end import PoolEnd
from .recording import Recording
from .runs.book import RunBook
from .runs.launch import Launcher
from .setup_knowledge import SetupKnowledge
from .standing_still import StandingStill
from .starting import Starting
from .teardown import check_now

if TYPE_CHECKING:
    from ..wire.agent_frame_types import FromAgent
    from .dashboards import Dashboards
    from .measures import Measures
    from .outputs.outputs import Outputs


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
        self.watch = Watch(
            context, news, background, roster, book, self._endings, startup, self._replacements
        )
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
            from .outputs.outputs import Outputs

            self._outputs = Outputs(self.context, self.news, self.book)
        return self._outputs

    @property
    def measures(self) -> Measures:
        """What its machines are measured at; from the first time that somebody asks."""
        if self._measures is None:
            from .measures import Measures

            self._measures = Measures(self.context)
        return self._measures

    @property
    def dashboards(self) -> Dashboards:
        """Web pages that its head has; from the first time that somebody asks."""
        if self._dashboards is None:
            from .dashboards import Dashboards

            self._dashboards = Dashboards(self.context)
        return self._dashboards

    # -- coming up ---------------------------------------------------------------------------------------

    @classmethod
    async def intend(cls, spec: PoolSpec, ledger: Ledger, cwd: str = "") -> Pool:
        """Make the object of a pool that is wanted, which stands in the ledger then; nothing of it exists yet.

        Raises:
            as :func:`.intent.write`; UsageError where this process may not have so many files open.
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
        loggers.pool.set(self.name)
        await self._starting.start(spec)

    @property
    def is_starting(self) -> bool:
        """Whether its start goes on, and has not failed."""
        return self._starting.goes_on

    async def _start(self, spec: PoolSpec) -> None:
        await self._startup.start(spec)
        self.upkeep.make(spec.plugins)
        with suppress(OSError):  # then other clients do not find them
            kept_dashboards.keep(self.context.row.key, self.name, spec.plugins)
        if self.upkeep.keeper is not None:
            await self.upkeep.keeper.ensure()
        self.roster.note()
        self.background.spawn(self._keep_locks())
        self.background.spawn(self.budget.watch())
        self.background.spawn(self._expiry.keep())
        if prune_is_due():
            from ..store.prune import prune_when_due

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
        loggers.pool.set(self.name)
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
        self.news.emit(ev.NodeLink(pool=self.name, node=link.node, up=up, detail=detail))
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

    async def down(
        self, *, give_up: bool = False, keep_outputs: int | None = None, now: bool = False
    ) -> Receipt:
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
