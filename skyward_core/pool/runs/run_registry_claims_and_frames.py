"""Registry of a pool's runs: this client's own runs, and other clients' runs as agents and ledger report them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Container, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from skyward_core.model.errors import Hint, LedgerError, PoolError
from skyward_core.model.outcomes_states_and_alerts import RunKind
from skyward_core.pool.agent_link import Link
from skyward_core.pool.blob_distribution import BlobCache
from skyward_core.pool.direct_file_transfers import DirectConnections
from skyward_core.pool.runs.map_run import MapRun
from skyward_core.pool.runs.other_clients_runs import DECISION_INTERVAL, MAX_DECISION_INTERVAL, OtherClientRuns
from skyward_core.pool.runs.result_loading_and_run_errors import already_fetched_error
from skyward_core.pool.runs.run import Run
from skyward_core.protocol.frame_codec import WireError
from skyward_core.tasks.pickled_calls_and_blobs import EMPTY_BLOB, Task, delete_files
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.pool.agent_link import RunFrame
    from skyward_core.protocol.frame_types import RunKeys


# Seconds until the first check whether a run that lost a node still has a client. Doubles after each check.
CHECK_INTERVAL = 10.0
MAX_CHECK_INTERVAL = 60.0  # maximum seconds between checks whether a run that lost a node still has a client
ADOPTION_INTERVAL = 0.05  # seconds between checks whether all nodes are connected or lost
MAX_ENDED_RUNS = 16_384  # number of ended runs to remember; fewer runs end before an agent gets their acknowledgements


class RunRegistry:
    """Runs of one pool, for one client.

    Attributes:
        runs: This client's active runs by id.
        others: Runs of other clients.
        blobs: Large arguments on the nodes.
        direct: Direct connections to the nodes.
        is_read_only: Whether this client must not change anything.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self.others = OtherClientRuns(context)
        self.is_read_only = self._is_checking = False
        # Run -> task in which this client takes over the restart decisions.
        self._adoptions: dict[str, asyncio.Task[None]] = {}
        self.runs: dict[str, Run] = {}
        # Ended runs in order. Agents may report them again until they receive the acknowledgement.
        self._ended_runs: OrderedDict[str, None] = OrderedDict()
        self.direct = DirectConnections(context)
        self.blobs = BlobCache(context, self.direct)

    def add(
        self,
        run: str,
        kind: RunKind,
        tasks: Sequence[Task],
        total: int,
        future: Future[Run] | None = None,
    ) -> Run:
        """Add a run of this client."""
        if kind == "map":
            self.runs[run] = MapRun(self._context, run, tasks[0], total)
        else:
            self.runs[run] = Run(self._context, run, kind, tasks, total, future)
        return self.runs[run]

    def adopt(self, run: str) -> bool:
        """Take over restart decisions for a run whose client has exited. Return whether this client now decides."""
        context, ours = self._context, self.runs.get(run)
        if run in self._adoptions or (run in self.own_runs and not (ours and ours.awaits_decision)):
            return True
        # After a ledger error, the caller tries again to adopt a run that waits for a client.
        with suppress(LedgerError):
            if not (context.observer or context.leaving) and context.ledger.adopt_run(run):
                self._adoptions[run] = task = context.background.spawn(self._adopt(run))
                # A callback also runs if the task is cancelled before its first step.
                task.add_done_callback(lambda _: self._on_adoption_end(run))
        return run in self._adoptions

    def _on_adoption_end(self, run: str) -> None:
        del self._adoptions[run]
        if (ours := self.runs.get(run)) is None or not ours.is_adopted:
            # The adoption failed, or this client detached: the ledger must not name this process as the run's client.
            self._news.records.set_columns(run, pid=None)

    async def _adopt(self, run: str) -> None:
        """Get the function and the outcomes of a run from the nodes. If the run has failed, this client restarts it."""
        context, view, followed = self._context, self._context.view.runs[run], self.runs.get(run)
        try:
            await self._wait_for_links()
            if followed is not None and followed.state != "running":
                return
            attempt = self.others.attempt_of(run) if followed is None else followed.attempt
            future = None if followed is None else followed.future
            adopted = self.add(run, view.kind, [Task(view.function, EMPTY_BLOB, EMPTY_BLOB)], view.total, future)
            adopted.claim_from(context.links, view.nodes, attempt, decides=True)
            adopted.is_retained = followed is None
            while True:
                links = [link for link in context.links if link.up]
                # The agent of a cut link has released the claim, so claim again after the reconnection.
                with suppress(ConnectionError):
                    answers = await asyncio.gather(*(link.claim(run, decides=True) for link in links))
                    break
                await self._wait_for_links()
            known = {link: answer["calls"] for link, (answer, _) in zip(links, answers, strict=True)}
            for link in context.links:
                for index in set(adopted.calls_on(link)).difference(known.get(link, ())):
                    if not self.others.has_lost(link, run):
                        raise PoolError(f"node {link.node} no longer has the result of call {index}")
                    adopted.mark_lost(index)
            calls = [(answer["call"], body) for answer, body in answers if "call" in answer]
            adopted.adopt(*calls[0] if calls else (None, b""))
        except (PoolError, OSError) as error:
            for link in context.links:
                link.release_claim(run, owned=link.up)
            self.runs.pop(run, None)
            self._news.emit_warning(f"this client cannot restart run {run}: {error}")
            if followed is not None:
                self.runs[run] = followed
                for link in context.links:
                    link.claim_next_attempt(run, decides=False)
                followed.stop_following()
                return
            self.others.on_adoption_failed(run)
            # release_claim closes this client's links, so wait for their reconnection.
            await self._wait_for_links()

    async def _follow(self, run: Run) -> None:
        """Follow another client's run. Adopt the run if that client exits, or end it if that client has ended it."""
        pause = DECISION_INTERVAL
        while run.awaits_decision and run.state == "running" and self.runs.get(run.id) is run:
            row = self.others.ledger_row(run.id)
            if row is None or row.ended_at is None:
                if row is not None and not row.has_client:
                    self.adopt(run.id)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_DECISION_INTERVAL)
                continue
            with suppress(ConnectionError):  # the agents send outstanding outcomes before they answer
                await asyncio.gather(*(link.claim(run.id) for link in self._context.links if link.up))
            if not run.stop_following(self.others.saved_outcomes(run.id).values()):
                del self.runs[run.id]
                if not run.future.done():  # the future is done if a caller has cancelled it
                    run.future.set_exception(already_fetched_error(run.id))

    async def _wait_for_links(self) -> None:
        # A link still counts as up for a moment after its connection was closed.
        await asyncio.sleep(ADOPTION_INTERVAL)
        while any(not (link.up or link.gone) for link in self._context.links):
            await asyncio.sleep(ADOPTION_INTERVAL)

    async def claim(self, run: str) -> Run:
        """Claim the results of a run whose client has exited.

        Args:
            run: Id of the run.

        Returns:
            The run, whose outcomes arrive from now on.

        Raises:
            PoolGone: If the pool has ended.
            PoolError: If the pool does not know the run, or the nodes lack some of its results.
        """
        context = self._context
        if context.external_end is not None:
            raise context.external_end.error()
        if run in self._ended_runs:
            raise already_fetched_error(run)
        view = context.view.runs.get(run)
        is_waiting = any(each.run == run for each in context.view.waiting)
        may_restart = context.options.on_loss == "restart" and not context.is_standalone
        is_broadcast = view is not None and view.kind == "broadcast"
        has_other_client = is_broadcast and may_restart and not is_waiting and not self.adopt(run)
        if run in self._adoptions:
            await asyncio.wait([self._adoptions[run]])
        if (known_run := self.runs.get(run)) is not None:
            # Do not retain the results for a later client, because the caller reads them now.
            known_run.is_retained &= not known_run.is_adopted
            return known_run
        if view is None:
            raise PoolError(f"Pool {context.name} does not know run {run}.")
        if is_waiting:
            raise PoolError(f"Cannot claim run {run}: it still waits for nodes. Try again when it has begun.")
        if view.kind == "map":
            raise PoolError(f"Cannot claim run {run}: the results of a map can only be read by its caller.")
        claimed = self.add(run, view.kind, [Task(view.function, EMPTY_BLOB, EMPTY_BLOB)], view.total)
        claimed.claim_from(context.links, view.nodes, self.others.attempt_of(run))
        if has_other_client and (row := self.others.ledger_row(run)) is not None and row.ended_at is None:
            claimed.awaits_decision = True
            context.background.spawn(self._follow(claimed))
        links = [link for link in context.links if link.up]
        known = [answer["calls"] for answer, _ in await asyncio.gather(*(link.claim(run) for link in links))]
        missing = view.total - sum(map(len, known))
        if missing > 0 and all(link.up for link in context.links) and not claimed.awaits_decision:
            del self.runs[run]
            for link, calls in zip(links, known, strict=True):
                link.release_claim(run, owned=bool(calls))
            if missing == view.total:
                raise already_fetched_error(run)
            raise PoolError(
                f"Cannot claim run {run}: the nodes have {view.total - missing} of {view.total} results. The others "
                "were already fetched, or their tasks were never sent.",
                hint=Hint("results", run),
            )
        for link in context.links:
            if link.gone:  # a node that was lost before this client attached cannot report its outcomes
                self._mark_run_calls_lost(claimed, link)
        return claimed

    def cancel(self, run: str, reason: str = "asked for", grace: float | None = None, *, save: bool = False) -> None:
        """Stop a run of any client.

        Args:
            run: Id of the run.
            reason: Reason of the cancellation.
            grace: Seconds between SIGTERM and SIGKILL, also of ranks that are already being stopped; by default the
                pool's.
            save: Whether the ranks get these seconds to save their work, as after a preemption notice.

        Raises:
            PoolError: If an agent of an older release cannot let its ranks save.
        """
        how = "save" if save else "cancel"
        if save and any("save" not in link.welcome.get("knows", ()) for link in self._context.links if link.up):
            raise PoolError("The agents of this pool are from an older release. Cancel the run without save.")
        ours = self.runs.get(run)
        if ours is not None:
            ours.cancel(reason, how, grace)
        if ours is None or (ours.state == "running" and grace is not None and not save):
            own = {} if grace is None else {"grace": grace}
            for link in self._context.links:
                link.send({"t": "stop", "run": run, "why": how, "break": link.epoch} | own)

    # -- reports from nodes --------------------------------------------------------------------------------

    def check_welcome(self, link: Link) -> None:
        """Check that an agent's welcome reports runs of its own ranks only.

        Raises:
            WireError: If the welcome reports other ranks.
        """
        for record in link.welcome["runs"]:
            for header in (*record["began"], *record["outcomes"]):
                self._context.check_rank(link, header["rank"], header["node"])

    def sync_from_agent(self, link: Link) -> None:
        """Update other clients' runs from an agent's welcome."""
        if self.others.drop_forgotten(link):
            self.on_node_lost()
        self.others.on_welcome(link)
        for record in link.welcome["runs"]:
            if record["run"] in self.runs:
                self._on_attempt(link, record)
        for run in list(self.runs.values()):
            run.on_connect(link)

    @property
    def own_runs(self) -> Container[str]:
        """Ids of this client's runs, active and ended."""
        return self.runs.keys() | self._ended_runs.keys()

    def on_frame(self, link: Link, header: RunFrame, body: bytes) -> None:
        """Pass an agent's frame to the run that the frame is about.

        Raises:
            WireError: If the run has no such call, or the node has not received it.
        """
        if header["t"] in ("outcome", "item", "began"):
            self._context.check_rank(link, header["rank"], header.get("node"))
        run = self.runs.get(header["run"])
        if run is None:
            if header["run"] not in self._ended_runs:
                self.others.on_frame(link, header)
            return
        if header["t"] == "run":
            # The frame matters only if it reports a new attempt. Otherwise this client's own state is authoritative.
            self._on_attempt(link, header)
            return
        if run.attempt > 1 and run.nodes and link.node not in run.nodes:
            return  # ignore a lost node that still has ranks of an earlier attempt
        if not run.is_sent_to(link, header["i"]):
            if not run.has_call(header["i"]):
                raise WireError(f"run {run.id} has no call {header['i']}")
            raise WireError(f"node {link.node} sent a frame about call {header['i']}, which it did not receive")
        match header["t"]:
            case "outcome":
                run.on_outcome(link, header, body)
            case "item":
                run.on_item(link, header, body)
            case "stale":
                run.on_stale(header["i"], header.get("why", ""), spent=header.get("spent", False))
            case "want":
                run.on_want(link, header)
            case "began":
                run.set_rank(header["i"], header["rank"])
                self._news.emit(
                    events.RankBegan(
                        pool=self._context.name, run=run.id, index=run.row_of(header["i"], header["rank"]),
                        rank=header["rank"], node=header["node"], at=link.time_of(header),
                    )
                )  # fmt: skip

    def _on_attempt(self, link: Link, record: RunKeys) -> None:
        run = self.runs[record["run"]]
        run.on_attempt(record)
        if run.awaits_decision:  # a node that has just joined the pool must also send its outcomes to this client
            link.claim_next_attempt(run.id, decides=False)

    def drop_link(self, link: Link) -> None:
        """End all calls on a link that is lost for good."""
        link.mark_lost()
        self.mark_calls_lost(link)
        self.others.check_ledger()

    def on_node_lost(self) -> None:
        """Start to watch for ranks that wait for lost ranks. Called after a node or the state of an agent was lost.

        This client stops such ranks once the client of their run has exited. Even an observer stops them, because it
        may remain the only client.
        """
        self.others.may_stop_ranks = not self.is_read_only
        if not self._is_checking:
            self._is_checking = True
            self._context.background.spawn(self._check_orphaned_loop())

    async def _check_orphaned_loop(self) -> None:
        """Check for orphaned runs until no run from before the loss of a node is active.

        Later runs need no check, because they start on the present nodes.
        """
        context, pause = self._context, CHECK_INTERVAL
        while not (context.leaving or context.external_end):
            await asyncio.sleep(pause)
            self.others.check_ledger()
            if not self.others.has_unfinished():
                break
            pause = min(2 * pause, max(MAX_CHECK_INTERVAL, CHECK_INTERVAL))
        self._is_checking = False

    def mark_calls_lost(self, link: Link) -> None:
        """End the calls that a node can no longer answer."""
        for run in list(self.runs.values()):
            self._mark_run_calls_lost(run, link)

    @staticmethod
    def _mark_run_calls_lost(run: Run, link: Link) -> None:
        for index in () if run.awaits_decision else run.calls_on(link):
            run.mark_lost(index)

    async def fetch(self, link: Link, name: str, landing: ResultDownload) -> None:
        """Download a file of a node's spool on the fastest path.

        Raises:
            OSError: If the file does not exist or cannot be written here.
            ConnectionError: If the link is down. The received part is kept for the next attempt.
        """
        # Standalone nodes open no port for direct downloads.
        if self._context.is_standalone or not await self.direct.download_result(link, name, landing):
            await link.fetch(name, landing)

    def on_run_end(self, run: Run) -> None:
        """Record the end of one of this client's runs."""
        self.runs.pop(run.id, None)
        # The files of a job's earlier steps are removed with the job's folder, because the steps may be repeated.
        if run.may_restart and not run.tasks[0].more:
            delete_files(run.tasks)
        # Agents may still report a run that was lost with its pool, so do not ignore their frames.
        if run.state != "lost":
            self._ended_runs[run.id] = None
            if len(self._ended_runs) > MAX_ENDED_RUNS:
                self._ended_runs.popitem(last=False)
        if self._context.roster.early_requests:
            self._context.recovery.replacements.early.return_unneeded()
        if self.blobs.users:
            self.blobs.release(run.id)
        self._news.records.add_run_end(run.id, run.state, time.time(), run.root_cause)
        self._news.emit(
            events.RunEnded(pool=self._context.name, run=run.id, state=run.state, root_cause=run.root_cause)
        )
