"""Scheduling of one client's runs: when and on which nodes each run starts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import PoolError, SkywardError, UsageError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, OutcomeKind, RunKind
from skyward_core.pool.agent_link import Link
from skyward_core.pool.blob_distribution import BlobFile
from skyward_core.pool.edited_modules import EditedModules
from skyward_core.pool.gang_and_rank_setup import RankSetup
from skyward_core.pool.pool_context import PoolContext
from skyward_core.pool.runs.run import Run
from skyward_core.pool.runs.runs_on_fewer_nodes import choose_attempt_nodes, watch_growth
from skyward_core.tasks.pickled_calls_and_blobs import Task, delete_files
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentDropped, AgentQueue, AgentTurn, ClientEnqueue, QueuedRunKeys


POLL_INTERVAL = 5.0  # seconds after which a run queries the nodes again, even without a call of `notify`


class ClientRunQueue:
    """One client's part of the pool's queue of runs.

    Attributes:
        is_empty: Whether no run of any client waits, as far as this client knows.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._turn = ""  # id of this client's run that is first in the queue; "" if there is none
        self._ours: dict[str, ClientEnqueue] = {}
        self._queue: list[QueuedRunKeys] = []
        self._changed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._queue and not self._ours

    async def start(self, run: Run, keeper: RankSetup) -> None:
        """Start a run when it is first in the queue and its nodes are free. Return early if the run is cancelled.

        Raises:
            ConnectionError: If the head or an assigned node cannot be reached now.
            PoolError: If the agents are too old for runs on some of the nodes.
        """
        head = self._context.links[0]
        if "queue" not in head.welcome.get("knows", ()):
            raise PoolError(
                f"Cannot queue run {run.id}: the agents of pool {self._context.name} are from an older release, "
                "which runs functions on all nodes only. Create a new pool."
            )
        nodes = run.requested_nodes
        request: ClientEnqueue = {
            "t": "enqueue",
            "run": run.id,
            "name": run.name,
            "nodes": 0 if nodes is None else nodes if isinstance(nodes, int) else len(nodes),
            "only": [] if nodes is None or isinstance(nodes, int) else list(nodes),
        }
        self._ours[run.id] = request
        try:
            if not head.send(request):
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
            # Write the state before the run leaves the queue, because other clients then look it up in the ledger.
            if run.state != "running":
                self._context.background.run_deferred()
                self._context.news.records.flush()
            head.send({"t": "dequeue", "run": run.id})

    @staticmethod
    async def _begin(run: Run, keeper: RankSetup) -> bool:
        if run.requested_nodes is None:
            return await keeper.start(run.send_broadcast)
        return await keeper.start_on(run.requested_nodes, run.send_broadcast, run.tasks[0].job)

    async def _wait_change(self) -> None:
        with suppress(TimeoutError):  # nothing has changed within the interval: query the nodes again
            async with asyncio.timeout(POLL_INTERVAL):
                await self._changed.wait()

    def notify(self) -> None:
        """Wake the runs that wait for their start, because nodes may have become free or a run was cancelled."""
        self._changed.set()

    def on_frame(self, link: Link, header: AgentQueue | AgentTurn | AgentDropped) -> str:
        """Process the head's frame about the queue.

        Return the id of this client's run that another client cancelled, or "".
        """
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
        """Submit the waiting runs again to a head that has connected. The runs keep their places in the queue."""
        if link is not self._context.links[0]:
            return
        self._turn = ""
        for request in self._ours.values():
            link.send(request)
        self._update_queue(link, link.welcome.get("queue", ()))

    def _update_queue(self, link: Link, waiting: Iterable[QueuedRunKeys]) -> None:
        before, self._queue = self._queue, list(waiting)
        for each in self._queue:
            if (request := self._ours.get(each["run"])) is not None:
                request["since"] = each["since"]
        for each in self._queue:
            if each["run"] not in self._context.registry.runs:
                self._context.registry.others.on_queued(link, each)
        if {each["run"] for each in before} - {each["run"] for each in self._queue}:
            self._context.registry.others.check_ledger()
        if before or self._queue:
            queued_runs = [
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
            self._context.news.emit(events.QueueNews(pool=self._context.name, waiting=queued_runs))


TURN_POLL_INTERVAL = 0.02  # seconds between checks whether it is a run's turn


class BroadcastOrder:
    """Order of one client's broadcasts and scripts on a pool."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._pending: list[Run] = []  # broadcasts that are still to be sent, in the order of their dispatch

    def must_wait(self, run: Run) -> bool:
        """Check whether a run must wait for another run. In a standalone pool no run must wait."""
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
        """Wait for a run's turn, or for its cancellation, and hold the turn."""
        if run.kind != "broadcast":
            await self._wait_turn(run)
            yield
            return
        self._pending.append(run)
        try:
            if self.must_wait(run):
                self._context.roster.report_wait("broadcasts wait for scripts that use all processes")
                await self._wait_turn(run)
                self._context.roster.report_wait("")
            yield
        finally:
            self._pending.remove(run)

    async def _wait_turn(self, run: Run) -> None:
        while run.state == "running" and self.must_wait(run):
            await asyncio.sleep(TURN_POLL_INTERVAL)


def new_run_id() -> str:
    """Return a new unique run id."""
    return secrets.token_hex(5)


class RunScheduler:
    """Scheduler of the runs that one client dispatches to a pool.

    Attributes:
        queue: Runs that wait for nodes.
        modules: Modules that the user edited after ranks loaded them.
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
        is_retained: bool = False,
    ) -> Run:
        """Dispatch a run.

        Args:
            kind: "broadcast" (one task for every rank), "single", "gather", "sweep", or "map" (one task with the
                function; see ``map_run.MapRun``).
            tasks: Tasks of the run.
            consumed: Whether a reader consumes a generator's items one by one.
            future: Future that gets the run as its result at the end of the run.
            run_id: Id from :func:`new_run_id` under which data was already saved. "": a new id.
            is_retained: Whether a later client will fetch the results, while this client only receives the outcomes. If
                so, all trials of a sweep are sent at once, because no client will send them later.

        Returns:
            The run.

        Raises:
            PoolGone: If the pool has ended.
            UsageError: If the tasks were pickled by an incompatible Python, request nodes that the pool lacks, or
                stream values on a pool with restarts.
        """
        context = self._context
        if context.external_end is not None:
            delete_files(tasks)
            raise context.external_end.error()
        try:
            context.check_interpreter(tasks)
            requested = self._requested_nodes(kind, tasks)
            self._check_repeatable(tasks)
        except UsageError:
            delete_files(tasks)
            raise
        nodes = len(context.links) if requested is None else requested if isinstance(requested, int) else len(requested)
        total = nodes * context.ranks_per_node if kind in ("broadcast", "map") else len(tasks)
        run = self._context.registry.add(run_id or new_run_id(), kind, tasks, total, future)
        run.requested_nodes = requested
        run.consumed, run.is_retained = consumed, is_retained
        whole_gang = kind == "broadcast" and requested is None and not tasks[0].job
        run.is_elastic = whole_gang and run.may_restart and context.least_nodes is not None
        leaving = kind == "broadcast" and self._context.roster.has_pending_preemptions
        parts = requested is not None and not context.links[0].gone and self._has_enough_nodes(requested)
        whole = parts or not (self._context.roster.is_replacing or leaving or any(link.gone for link in context.links))
        large = any(blob.path for task in tasks for blob in (task.fn, task.args))
        edited = self.modules.has_edits
        resumes = context.options.resume is not None and not context.checkpoints.has_resumed
        if whole and not large and not edited and not resumes:
            # Send the calls first, so that the nodes work while the records are written. If this process dies before
            # the write, the agents know the run, and the next client records it.
            self._start(run)
        self._save_opened(run)
        self._context.background.run_deferred()
        if not whole and self._needs_lost_nodes(run):
            run.mark_waiting()
            self._context.background.spawn(self._start_later(run, complete=True))
        elif edited or resumes:
            run.mark_waiting()
            self._context.background.spawn(self._start_later(run, complete=False))
        elif not whole or large:
            self._start_or_reject(run)
        return run

    def _requested_nodes(self, kind: RunKind, tasks: Sequence[Task]) -> int | tuple[int, ...] | None:
        """Return the number or the indices of the requested nodes. None: all.

        Raises:
            UsageError: If the pool lacks such nodes, or the run does not use all ranks of its nodes.
        """
        if kind != "broadcast":
            if named := next((task.name for task in tasks if task.nodes is not None), None):
                raise UsageError(
                    f"{named} runs on one rank, so with_nodes does not apply. Dispatch it with @, or remove with_nodes."
                )
            return None
        choice, has = tasks[0].nodes, len(self._context.links)
        if choice is None:
            return None
        if isinstance(choice, int):
            if choice > has:
                raise UsageError(f"{tasks[0].name} requests {choice} nodes, but pool {self._context.name} has {has}.")
            return None if choice == has else choice
        if choice[-1] >= has:
            last = f"0 to {has - 1}" if has > 1 else "0 only"
            raise UsageError(f"Pool {self._context.name} has no node {choice[-1]}: its nodes are {last}.")
        return None if len(choice) == has else choice

    def _check_repeatable(self, tasks: Sequence[Task]) -> None:
        """Check that another attempt could repeat the tasks if the pool restarts failed runs.

        Raises:
            UsageError: If values are streamed to or from a task.
        """
        streaming = next((task for task in tasks if task.feeds or task.stream), None)
        if streaming is None or self._context.options.on_loss != "restart":
            return
        what, fix = ("yields values", "Return a list") if streaming.stream else ("reads an iterator", "Pass a list")
        raise UsageError(
            f'Cannot run {streaming.name} on pool {self._context.name}: it {what}, which on_loss="restart" cannot '
            f'repeat in another attempt. {fix}, or create the pool with on_loss="replace".'
        )

    def _has_enough_nodes(self, requested: int | tuple[int, ...]) -> bool:
        """Check whether enough requested nodes are present or may return."""
        links = self._context.links
        usable = {link.node for link in links if not link.gone or self._context.roster.may_return(link.node)}
        return len(usable) >= requested if isinstance(requested, int) else usable.issuperset(requested)

    def restart(self, run: Run, pause: float | None = None) -> None:
        """Start a run again.

        Args:
            run: The run.
            pause: Seconds to wait before its next attempt. None for a broadcast that no rank has begun, which needs
                neither a pause nor new processes.
        """
        self._context.background.spawn(self._start_gang(run) if pause is None else self._start_attempt(run, pause))

    async def _start_attempt(self, run: Run, pause: float) -> None:
        """Start the next attempt of a run: with replacements of the lost nodes, and new processes for its ranks."""
        context, gang = self._context, self._context.setup.rank_setup
        await asyncio.sleep(pause)
        if context.roster.has_pending_preemptions:
            # Copy checkpoints from machines that will be preempted to the other nodes.
            await self._restore_checkpoints(run)
            try:
                await context.recovery.release_preempted(run.id)
            except (SkywardError, OSError) as error:
                context.news.emit_warning(f"run {run.id} waits until the preempted machines end: {error}")
        await self._wait_for_nodes(run)
        if run.lost_job_node is not None and (reason := await self._repeat_steps(run)):
            self._fail(run, reason)
            return
        await self._restore_checkpoints(run)
        if context.is_standalone and gang is not None:
            try:
                await self._retry_on_reconnect([run], gang.restart_processes)
            except OSError as error:
                self._fail(run, f"cannot start new processes: {error}")
        if run.state == "running" and not run.sent:
            self._start_or_reject(run)

    async def _repeat_steps(self, run: Run) -> str:
        """Repeat the earlier steps of a job on its nodes, because a machine was replaced. Return why that failed."""
        task = run.tasks[0]
        before = task.before or ()
        for number, step in enumerate(before):
            place: dict[str, Any] = {"nodes": run.nodes or step.nodes, "job": task.job, "more": True}
            again = self.open("broadcast", [replace(step, before=before[:number], **place)])
            while again.state == run.state == "running":
                await asyncio.sleep(TURN_POLL_INTERVAL)
            if run.cancelled:
                again.cancel("its job was cancelled")
            if again.state != "done":
                return f"a machine was replaced, and {step.name} failed on the new one (run {again.id})"
        return run.step_obstacle

    async def _wait_for_nodes(self, run: Run) -> None:
        """Wait for replacements of lost nodes. If the run may use fewer nodes, wait only until each was tried once."""
        if run.is_elastic:
            await self._context.roster.wait_replacements(until_failed=True)
        if not (run.is_elastic and choose_attempt_nodes(self._context)[0]):
            await self._context.roster.wait_replacements()

    async def _restore_checkpoints(self, run: Run) -> None:
        try:
            await self._context.checkpoints.restore(run.id)
        except (SkywardError, OSError) as error:
            self._context.news.emit_warning(f"run {run.id} continues without checkpoints of other nodes: {error}")

    def on_gang_broken(self) -> None:
        """Form a new gang after a worker died, if tasks wait for the plugins' contexts."""
        context, gang = self._context, self._context.setup.rank_setup
        self.queue.notify()
        idle = gang is None or gang.is_ready or not self._context.registry.runs
        if not idle and context.external_end is None and not context.observer:
            self._context.background.spawn(self._reform_gang())

    def on_new_agent(self) -> None:
        """Set up the ranks of a new agent, because calls that were sent again wait for the set-up."""
        self._context.background.spawn(
            self._context.setup.ensure_set_up() if self._context.is_standalone else self._reform_gang()
        )

    async def _start_gang(self, run: Run) -> None:
        gang = self._context.setup.rank_setup
        if gang is None:
            raise PoolError(f"Pool {self._context.name} is not up.")
        try:
            if run.requested_nodes is not None:
                await self._retry_on_reconnect([run], lambda: self.queue.start(run, gang))
                return
            async with self._broadcast_order.hold_turn(run):
                await self._retry_on_reconnect([run], lambda: self._start_whole(run, gang))
        except OSError as error:
            self._fail(run, f"cannot form the gang: {error}")
        except PoolError as error:
            self._fail(run, str(error))

    async def _start_whole(self, run: Run, gang: RankSetup) -> None:
        if not (self.queue.is_empty and await gang.start(run.send_broadcast)):
            await self.queue.start(run, gang)

    def _save_opened(self, run: Run) -> None:
        task, pool, now = run.tasks[0], self._context.name, time.time()
        self._context.news.records.add_run(run.id, run.name, run.kind, run.total, now, ours=True)
        if run.requested_nodes is not None and not run.nodes:
            self._context.news.records.set_columns(run.id, nodes=())
        opened = events.RunOpened(
            pool=pool,
            run=run.id,
            function=run.name,
            kind=run.kind,
            total=run.total,
            at=now,
            job=task.job,
            more=task.more,
        )
        self._context.news.emit(opened)

    # -- in a pool that lacks nodes ------------------------------------------------------------------------

    def _needs_lost_nodes(self, run: Run) -> bool:
        """Check whether a run needs lost nodes that may return."""
        links = self._context.links
        gone = [link.node for link in links if link.gone]
        if run.requested_nodes is not None:
            return self._has_enough_nodes(run.requested_nodes) and self._context.roster.may_return(0)
        if not all(self._context.roster.may_return(node) for node in gone):
            return False
        return run.kind == "broadcast" or len(gone) == len(links)

    async def _start_later(self, run: Run, *, complete: bool) -> None:
        """Send edited modules to the nodes, and then start a run if it is still active.

        Args:
            run: The run.
            complete: Whether to wait for replacement machines first.
        """
        was_waiting = False
        try:
            if complete:
                await self._wait_for_nodes(run)
            # The user may have edited modules while the run waited for machines.
            if not complete or self.modules.has_edits:
                await self._retry_on_reconnect([run], self.modules.reload)
            if self._context.options.resume is not None:
                await self._context.checkpoints.resume()
            was_waiting = run.end_waiting()
        except (SkywardError, OSError) as error:
            run.end_waiting()
            self._fail(run, f"cannot send edited modules or checkpoints to the nodes: {error}")
        finally:
            if not was_waiting:  # delete the arguments, because the run was cancelled or this client is detaching
                delete_files(run.tasks)
        if was_waiting:
            self._start_or_reject(run)

    def _start_or_reject(self, run: Run) -> None:
        """Start a run, or reject it if the pool lacks required nodes."""
        context = self._context
        if run.is_elastic:
            nodes, reason = choose_attempt_nodes(context)
            if not nodes:
                return self._reject(run, reason)
            run.place(nodes)
            watch_growth(context, run)
            if reason:
                context.news.emit_warning(f"run {run.id} runs {reason}")
        gone = [link.node for link in context.links if link.gone]
        parts = run.requested_nodes is not None and 0 not in gone and self._has_enough_nodes(run.requested_nodes)
        if run.kind == "broadcast" and gone and not parts and (context.options.fail_fast or not context.is_standalone):
            reason = self._context.roster.replacement_failure(gone[0])
            self._reject(run, f"node {gone[0]} of the pool is lost" + (f": {reason}" if reason else ""))
        elif any(blob.path for task in run.tasks for blob in (task.fn, task.args)):
            self._context.background.spawn(self._upload_and_start(run))
        else:
            self._start(run)

    # -- dispatch ------------------------------------------------------------------------------------------

    async def _upload_and_start(self, run: Run) -> None:
        blobs = {blob.hash: blob for task in run.tasks for blob in (task.fn, task.args)}
        parcels = [BlobFile(b.hash, b.path, b.size) for b in blobs.values() if b.path is not None]
        try:
            links = await self._context.registry.blobs.ensure_uploaded(run.id, parcels)
        except (SkywardError, OSError) as error:
            self._fail(run, f"cannot send the arguments to the nodes: {error}")
            return
        finally:
            # Keep the uploaded files while the run may restart, because a new machine may need them.
            if not run.may_restart:
                delete_files(run.tasks)
        run.stocked = links
        self._start(run)

    def _start(self, run: Run) -> None:
        gang = self._context.setup.rank_setup
        waits = self._broadcast_order.must_wait(run)
        if run.kind == "broadcast":
            parts = run.requested_nodes is not None or not self.queue.is_empty
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
                    # Dispatch on the remaining nodes, because tasks without plugin contexts need no gang.
                    run.dispatch()
                    return
                await self._context.roster.wait_replacements()
            if gang is not None:
                await self._retry_on_reconnect([run], gang.ensure_set_up)
        except OSError as error:
            self._fail(run, f"cannot form the gang: {error}")
            return
        run.dispatch()

    async def _reform_gang(self) -> None:
        """Form a new gang for tasks that wait on the nodes for the plugins' contexts."""
        gang = self._context.setup.rank_setup
        tasks = [run for run in self._context.registry.runs.values() if run.kind != "broadcast"]
        # An active replacement of a machine forms a new gang anyway.
        if gang is None or not tasks or self._context.roster.is_replacing:
            return
        try:
            await self._retry_on_reconnect(tasks, gang.ensure_set_up)
        except OSError as error:
            reason = f"the gang broke and cannot be formed again: {error}"
            self._context.news.emit_warning(reason)
            for link in self._context.links:
                if link.up and not link.epoch:  # a node without a gang retains its calls until a new gang exists
                    for run in tasks:
                        for index in run.calls_on(link):
                            run.reject(index, link, "lost", ErrorInfo("PoolError", reason))

    async def _retry_on_reconnect(self, runs: Sequence[Run], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Perform work for active runs, and repeat it after each reconnection of a link.

        Raises:
            ConnectionError: If the work fails and no link is reconnecting.
        """
        links = self._context.links
        while any(run.state == "running" for run in runs):
            connections = [link.welcome for link in links]
            try:
                return await work()
            except ConnectionError:
                same = all(link.welcome is welcome for link, welcome in zip(links, connections, strict=True))
                if same and not self._has_returning_links:
                    raise
            while self._has_returning_links and any(run.state == "running" for run in runs):
                await asyncio.sleep(0.02)

    @property
    def _has_returning_links(self) -> bool:
        """Check whether a link is down and may reconnect."""
        return not self._context.leaving and any(not link.up and not link.gone for link in self._context.links)

    # -- rejection -----------------------------------------------------------------------------------------

    def _reject(self, run: Run, reason: str) -> None:
        """Reject a broadcast that needs a node that is lost for good."""
        delete_files(run.tasks)
        for index in range(run.total):
            link = self._context.links[max(0, run.place_of(index)[1])]
            kind: OutcomeKind = "lost" if link.gone else "collateral"
            run.reject(index, link, kind, ErrorInfo("NodeLost", reason))

    def _fail(self, run: Run, reason: str) -> None:
        for index in range(run.total if run.kind != "map" else 1):
            node = run.place_of(index)[1] if run.kind == "broadcast" else 0
            run.reject(index, self._context.links[max(0, node)], "lost", ErrorInfo("PoolError", reason))
