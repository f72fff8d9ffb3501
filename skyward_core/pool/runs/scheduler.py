"""When and where a run starts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import PoolError, SkywardError, UsageError
from skyward_core.model.outcomes import ErrorInfo, OutcomeKind, RunKind
from skyward_core.pool.agent_link import Link
from skyward_core.pool.blob_distribution import BlobFile
from skyward_core.pool.edited_modules import EditedModules
from skyward_core.pool.gang_and_rank_setup import RankSetup
from skyward_core.pool.pool_context import PoolContext
from skyward_core.pool.runs.run import Run
from skyward_core.tasks.task_and_blob_values import Task, delete_files
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentDropped, AgentQueue, AgentTurn, ClientEnqueue, QueuedRunKeys


POLL_INTERVAL = 5.0  # seconds after which nodes are asked again, whatever was heard of them


class ClientRunQueue:
    """One client's part of it.

    Attributes:
        is_empty: whether nobody's run waits, as far as is known here.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._turn = ""  # the run of ours that is the first of all
        self._ours: dict[str, ClientEnqueue] = {}
        self._queue: list[QueuedRunKeys] = []
        self._changed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._queue and not self._ours

    async def start(self, run: Run, keeper: RankSetup) -> None:
        """Start a run as soon as it is its turn, and its nodes are free; gives it up where nobody wants it any more.

        Raises:
            ConnectionError: the head, or a node that it was given, cannot be reached now.
            PoolError: the pool's agents know of no such runs.
        """
        head = self._context.links[0]
        if "queue" not in head.welcome.get("knows", ()):
            raise PoolError(
                f"the agents of pool {self._context.name} are of an earlier release, and run on all nodes only"
            )
        wanted = run.wanted
        asked: ClientEnqueue = {
            "t": "enqueue",
            "run": run.id,
            "name": run.name,
            "nodes": 0 if wanted is None else wanted if isinstance(wanted, int) else len(wanted),
            "only": [] if wanted is None or isinstance(wanted, int) else list(wanted),
        }
        self._ours[run.id] = asked
        try:
            if not head.send(asked):
                raise ConnectionError("the link to the head is down")
            while run.state == "running":
                self._changed.clear()
                if self._turn == run.id and await self._begin(run, keeper):
                    return
                await self._wait_change()
        finally:
            self._ours.pop(run.id, None)
            if self._turn == run.id:
                self._turn = ""
            if run.state != "running":  # who sees it leave the queue finds in the ledger what became of it
                self._context.background.run_deferred()
                self._context.news.records.flush()
            head.send({"t": "dequeue", "run": run.id})

    @staticmethod
    async def _begin(run: Run, keeper: RankSetup) -> bool:
        if run.wanted is None:
            return await keeper.start(run.send_broadcast)
        return await keeper.start_on(run.wanted, run.send_broadcast, run.tasks[0].job)

    async def _wait_change(self) -> None:
        try:
            async with asyncio.timeout(POLL_INTERVAL):
                await self._changed.wait()
        except TimeoutError:
            pass  # nodes are asked again

    def notify(self) -> None:
        """Something has happened by which nodes may have become free, or a run of ours is not wanted any more."""
        self._changed.set()

    def on_frame(self, link: Link, header: AgentQueue | AgentTurn | AgentDropped) -> str:
        """The head's word. Gives the run of ours that somebody else does not want any more; "" for none."""
        if link is not self._context.links[0]:
            return ""
        match header["t"]:
            case "queue":
                self._update_queue(link, header["waiting"])
            case "turn":
                if header["run"] in self._ours:
                    self._turn = header["run"]
                    self.notify()
            case "dropped":
                return header["run"] if header["run"] in self._ours else ""
        return ""

    def on_connect(self, link: Link) -> None:
        """The head is there (again): it has what waits of ours, in its old place, and tells of all that does."""
        if link is not self._context.links[0]:
            return
        self._turn = ""
        for asked in self._ours.values():
            link.send(asked)
        self._update_queue(link, link.welcome.get("queue", ()))

    def _update_queue(self, link: Link, waiting: Iterable[QueuedRunKeys]) -> None:
        before, self._queue = self._queue, list(waiting)
        for each in self._queue:
            if (asked := self._ours.get(each["run"])) is not None:
                asked["since"] = each["since"]
        for each in self._queue:
            if each["run"] not in self._context.registry.runs:
                self._context.registry.others.on_queued(link, each)
        if {each["run"] for each in before} - {each["run"] for each in self._queue}:
            self._context.registry.others.check_ledger()
        if before or self._queue:
            told = [
                events.QueuedRun(
                    run=each["run"],
                    name=each["name"],
                    nodes=each["nodes"],
                    only=list(each["only"]),
                    since=link.to_client_time(each["since"]),
                    who=each["who"],
                )
                for each in self._queue
            ]
            self._context.news.emit(events.QueueNews(pool=self._context.name, waiting=told))


TURN_POLL_INTERVAL = 0.02  # seconds between looks
WAITING_FOR_SCRIPTS = "broadcasts wait for scripts that leave no process for them"


class BroadcastOrder:
    """Order of one client's broadcasts and scripts on a pool."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._pending: list[Run] = []  # broadcasts that are not sent yet

    def must_wait(self, run: Run) -> bool:
        """Whether another one comes first; of ranks that stand alone none does."""
        if self._context.is_standalone:
            return False
        if run.kind == "broadcast":
            return any(
                each.is_script and each.kind != "broadcast" and each.sent and each.state == "running"
                for each in self._context.registry.runs.values()
            )
        return run.is_script and bool(self._pending)

    @asynccontextmanager
    async def hold_turn(self, run: Run) -> AsyncIterator[None]:
        """The run's turn has come, or nobody wants it any more."""
        if run.kind != "broadcast":
            await self._wait_turn(run)
            yield
            return
        self._pending.append(run)
        try:
            if self.must_wait(run):
                self._context.roster.report_wait(WAITING_FOR_SCRIPTS)
                await self._wait_turn(run)
                self._context.roster.report_wait("")
            yield
        finally:
            self._pending.remove(run)

    async def _wait_turn(self, run: Run) -> None:
        while run.state == "running" and self.must_wait(run):
            await asyncio.sleep(TURN_POLL_INTERVAL)


def new_run_id() -> str:
    """A run's, which no other one has."""
    return secrets.token_hex(5)


class RunScheduler:
    """Starts the runs that one client dispatches to a pool.

    Attributes:
        queue: Runs that wait for nodes.
        modules: Modules that the user edits while ranks have them loaded.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self.modules = EditedModules(context)
        self.queue = ClientRunQueue(context)
        self._broadcast_order = BroadcastOrder(context)

    def open(
        self,
        kind: RunKind,
        tasks: Sequence[Task],
        *,
        consumed: bool = False,
        future: Future[Run] | None = None,
        run_id: str = "",
        stays: bool = False,
    ) -> Run:
        """Dispatch a run: "broadcast" (one task to every rank), "single", "gather", "sweep", or "map" (one task, its
        function; see ``map_run.MapRun``).

        Args:
            run_id: what it is called, where something was written down of it before; as :func:`new_run_id` makes it.
            stays: its results are for whoever comes later, though they are told here. All of a sweep is handed to nodes
                at once then, as nobody will be there to hand it out.
            consumed: a reader takes a generator's values one by one.
            future: set when the run has ended.

        Raises:
            PoolGone: the pool has ended.
            UsageError: the tasks were pickled by another Python than the pool has, or want nodes that it has not.
        """
        context = self._context
        if context.external_end is not None:
            delete_files(tasks)
            raise context.external_end.error()
        try:
            context.check_interpreter(tasks)
            wanted = self._wanted_nodes(kind, tasks)
        except UsageError:
            delete_files(tasks)
            raise
        nodes = len(context.links) if wanted is None else wanted if isinstance(wanted, int) else len(wanted)
        by_rank = kind in ("broadcast", "map")
        total = nodes * context.ranks_per_node if by_rank else len(tasks)
        run = self._context.registry.add(run_id or new_run_id(), kind, tasks, total, future)
        run.wanted = wanted
        run.consumed, run.stays = consumed, stays
        leaving = kind == "broadcast" and self._context.roster.has_pending_preemptions
        parts = wanted is not None and not context.links[0].gone and self._has_enough_nodes(wanted)
        whole = parts or not (self._context.roster.is_replacing or leaving or any(link.gone for link in context.links))
        large = any(blob.path for task in tasks for blob in (task.fn, task.args))
        edited = self.modules.has_edits
        if whole and not large and not edited:
            # The calls leave first, the records are written while the nodes work: should we die between the two,
            # the agents still know the run, and whoever comes next enters it.
            self._start(run)
        self._save_opened(run)
        self._context.background.run_deferred()
        if not whole and self._needs_lost_nodes(run):
            run.mark_waiting()
            self._context.background.spawn(self._start_later(run, complete=True))
        elif edited:
            run.mark_waiting()
            self._context.background.spawn(self._start_later(run, complete=False))
        elif not whole or large:
            self._start_or_reject(run)
        return run

    def _wanted_nodes(self, kind: RunKind, tasks: Sequence[Task]) -> int | tuple[int, ...] | None:
        """How many nodes a run is to have, or which; None for all.

        Raises:
            UsageError: the pool has not so many, or not these; or it is no run on all ranks.
        """
        if kind != "broadcast":
            if named := next((task.name for task in tasks if task.nodes is not None), None):
                raise UsageError(
                    f"{named} runs on one rank, and cannot be told nodes: send it with @, or leave out with_nodes"
                )
            return None
        wanted, has = tasks[0].nodes, len(self._context.links)
        if wanted is None:
            return None
        if isinstance(wanted, int):
            if wanted > has:
                raise UsageError(f"{tasks[0].name} wants {wanted} nodes, and pool {self._context.name} has {has}")
            return None if wanted == has else wanted
        if wanted[-1] >= has:
            last = f"0 to {has - 1}" if has > 1 else "0 only"
            raise UsageError(f"pool {self._context.name} has no node {wanted[-1]}: it has {last}")
        return None if len(wanted) == has else wanted

    def _has_enough_nodes(self, wanted: int | tuple[int, ...]) -> bool:
        """Whether there are as many nodes as a run wants, or may be again."""
        links = self._context.links
        there = {link.node for link in links if not link.gone or self._context.roster.may_return(link.node)}
        return len(there) >= wanted if isinstance(wanted, int) else there.issuperset(wanted)

    def restart(self, run: Run) -> None:
        """Have a broadcast of which no rank has begun handed to a whole gang."""
        self._context.background.spawn(self._start_gang(run))

    def on_gang_broken(self) -> None:
        """A worker died. Work that waits for the plugins' contexts needs a new epoch to go on."""
        context, gang = self._context, self._context.setup.rank_setup
        self.queue.notify()
        idle = gang is None or gang.is_ready or not self._context.registry.runs
        if not idle and context.external_end is None and not context.observer:
            self._context.background.spawn(self._reform_gang())

    def on_new_agent(self) -> None:
        """An agent knows no epoch yet; calls that were sent again wait for one."""
        self._context.background.spawn(
            self._context.setup.ensure_set_up() if self._context.is_standalone else self._reform_gang()
        )

    async def _start_gang(self, run: Run) -> None:
        gang = self._context.setup.rank_setup
        if gang is None:
            raise PoolError(f"pool {self._context.name} is not up")
        try:
            if run.wanted is not None:
                await self._retry_on_reconnect([run], lambda: self.queue.start(run, gang))
                return
            async with self._broadcast_order.hold_turn(run):
                await self._retry_on_reconnect([run], lambda: self._start_whole(run, gang))
        except OSError as error:
            self._fail(run, f"the gang could not be formed: {error}")
        except PoolError as error:
            self._fail(run, str(error))

    async def _start_whole(self, run: Run, gang: RankSetup) -> None:
        if not (self.queue.is_empty and await gang.start(run.send_broadcast)):
            await self.queue.start(run, gang)

    def _save_opened(self, run: Run) -> None:
        now = time.time()
        self._context.news.records.add_run(run.id, run.name, run.kind, run.total, now, ours=True)
        if run.wanted is not None and not run.nodes:
            self._context.news.records.set_columns(run.id, nodes=())
        self._context.news.emit(
            events.RunOpened(
                pool=self._context.name,
                run=run.id,
                function=run.name,
                kind=run.kind,
                total=run.total,
                at=now,
                job=run.tasks[0].job,
                more=run.tasks[0].more,
            )
        )

    # -- in a pool that lacks nodes ----------------------------------------------------------------------

    def _needs_lost_nodes(self, run: Run) -> bool:
        """Whether a run needs nodes that are gone and that may come back."""
        links = self._context.links
        gone = [link.node for link in links if link.gone]
        if run.wanted is not None:
            return self._has_enough_nodes(run.wanted) and self._context.roster.may_return(0)
        if not all(self._context.roster.may_return(node) for node in gone):
            return False
        return run.kind == "broadcast" or len(gone) == len(links)

    async def _start_later(self, run: Run, *, complete: bool) -> None:
        """Bring edited modules to the nodes, and start a run if it is still wanted then.

        Args:
            complete: Whether it waits for nodes that get another machine, first.
        """
        wanted = False
        try:
            if complete:
                await self._context.roster.wait_replacements()
            if not complete or self.modules.has_edits:  # since it was opened, perhaps long ago
                await self._retry_on_reconnect([run], self.modules.reload)
            wanted = run.end_waiting()
        except (PoolError, OSError) as error:
            run.end_waiting()
            self._fail(run, f"edited modules could not be brought to the nodes: {error}")
        finally:
            if not wanted:  # it was cancelled, or we leave
                delete_files(run.tasks)
        if wanted:
            self._start_or_reject(run)

    def _start_or_reject(self, run: Run) -> None:
        """Start a run, or refuse it, in a pool that may lack nodes."""
        context = self._context
        gone = [link.node for link in context.links if link.gone]
        parts = run.wanted is not None and 0 not in gone and self._has_enough_nodes(run.wanted)
        if run.kind == "broadcast" and gone and not parts and (context.options.fail_fast or not context.is_standalone):
            reason = self._context.roster.replacement_failure(gone[0])
            self._reject(run, f"node {gone[0]} of the pool is gone" + (f": {reason}" if reason else ""))
        elif any(blob.path for task in run.tasks for blob in (task.fn, task.args)):
            self._context.background.spawn(self._upload_and_start(run))
        else:
            self._start(run)

    # -- to the nodes ------------------------------------------------------------------------------------

    async def _upload_and_start(self, run: Run) -> None:
        blobs = {blob.hash: blob for task in run.tasks for blob in (task.fn, task.args)}
        parcels = [BlobFile(b.hash, b.path, b.size) for b in blobs.values() if b.path is not None]
        try:
            links = await self._context.registry.blobs.ensure_uploaded(run.id, parcels)
        except (SkywardError, OSError) as error:
            self._fail(run, f"its arguments could not be sent to the nodes: {error}")
            return
        finally:
            delete_files(run.tasks)
        run.stocked = links
        self._start(run)

    def _start(self, run: Run) -> None:
        gang = self._context.setup.rank_setup
        waits = self._broadcast_order.must_wait(run)
        if run.kind == "broadcast":
            parts = run.wanted is not None or not self.queue.is_empty
            if gang is None or waits or parts or not gang.try_start(run.send_broadcast):
                self._context.background.spawn(self._start_gang(run))
        elif waits:
            self._context.background.spawn(self._start_in_turn(run))
        elif gang is not None and not gang.is_ready:
            self._context.background.spawn(self._dispatch_with_gang(run))
        else:
            run.dispatch()

    async def _start_in_turn(self, run: Run) -> None:
        async with self._broadcast_order.hold_turn(run):
            self._start(run)

    async def _dispatch_with_gang(self, run: Run) -> None:
        context, gang = self._context, self._context.setup.rank_setup
        try:
            if not context.is_standalone:
                if any(link.gone for link in context.links) and not await self._context.setup.has_plugins():
                    run.dispatch()  # no contexts are to be entered, so there is no need of a gang
                    return
                await self._context.roster.wait_replacements()
            if gang is not None:
                await self._retry_on_reconnect([run], gang.ensure_set_up)
        except OSError as error:
            self._fail(run, f"the gang could not be formed: {error}")
            return
        run.dispatch()

    async def _reform_gang(self) -> None:
        """A gang broke: tasks that wait on nodes for the plugins' contexts need a new one to go on."""
        gang = self._context.setup.rank_setup
        tasks = [run for run in self._context.registry.runs.values() if run.kind != "broadcast"]
        if gang is None or not tasks or self._context.roster.is_replacing:  # its end is a new gang
            return
        try:
            await self._retry_on_reconnect(tasks, gang.ensure_set_up)
        except OSError as error:
            reason = f"the gang broke, and could not be formed anew: {error}"
            self._context.news.emit_warning(reason)
            for link in self._context.links:
                if link.up and not link.epoch:  # its agent waits for that with what it was asked
                    for run in tasks:
                        for index in run.calls_on(link):
                            run.reject(index, link, "lost", ErrorInfo("PoolError", reason))

    async def _retry_on_reconnect(self, runs: Sequence[Run], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what runs that still go on need the nodes for, once more after each time that a link was down for it
        and has come up again.

        Raises:
            ConnectionError: it cannot be done, and no link is on its way up.
        """
        links = self._context.links
        while any(run.state == "running" for run in runs):
            connections = [link.welcome for link in links]
            try:
                return await work()
            except ConnectionError:
                same = all(link.welcome is had for link, had in zip(links, connections, strict=True))
                if same and not self._has_returning_links:
                    raise
            while self._has_returning_links and any(run.state == "running" for run in runs):
                await asyncio.sleep(0.02)

    @property
    def _has_returning_links(self) -> bool:
        """Whether a link is down, and may come up again."""
        return not self._context.leaving and any(not link.up and not link.gone for link in self._context.links)

    # -- not to be started -------------------------------------------------------------------------------

    def _reject(self, run: Run, reason: str) -> None:
        """A broadcast lacks nodes for good."""
        delete_files(run.tasks)
        for index in range(run.total):
            link = self._context.links[max(0, run.place_of(index)[1])]
            kind: OutcomeKind = "lost" if link.gone else "collateral"
            run.reject(index, link, kind, ErrorInfo("NodeLost", reason))

    def _fail(self, run: Run, reason: str) -> None:
        for index in range(run.total if run.kind != "map" else 1):
            node = run.place_of(index)[1] if run.kind == "broadcast" else 0
            run.reject(index, self._context.links[max(0, node)], "lost", ErrorInfo("PoolError", reason))
