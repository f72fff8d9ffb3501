"""Runs by id, ours and other clients'."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Container, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from skyward_core.model.errors import Hint, LedgerError, PoolError
from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause, RunKind, RunStatus, Summary
from skyward_core.model.root_cause import summarize_outcomes
from skyward_core.pool.agent_link import Link
from skyward_core.pool.blob_distribution import BlobCache, DirectConnections
from skyward_core.pool.runs.map_run import MapRun
from skyward_core.pool.runs.run import Run, outcome_of
from skyward_core.pool.runs.run_results import already_fetched_error
from skyward_core.protocol.frame_codec import WireError
from skyward_core.protocol.validators import CALLS
from skyward_core.store.ledger_rows import RunRow
from skyward_core.tasks.task_and_blob_values import EMPTY_BLOB, Task
from skyward_core.transport.downloads import ResultDownload
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.pool.agent_link import RunFrame
    from skyward_core.protocol.frame_types import (
        AgentOutcome,
        QueuedRunKeys,
        RememberedRun,
        RunKeys,
    )


DISPATCH_GRACE = 10.0  # seconds after its dispatch in which an agent may not have heard of a run


class OrphanedRuns:
    """Those of one pool, as one client sees them."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._knows: dict[str, set[int]] = {}  # by run, the nodes whose agents have told of it
        self._active: dict[str, dict[int, int]] = {}  # by run and node, calls that go on

    def drop_forgotten(self, link: Link) -> bool:
        """An agent is there, perhaps another than before: it tells of all that it knows. Says whether the one before
        knew of a run of which this one does not."""
        told = {record["run"] for record in link.welcome.get("runs", ())}
        forgotten = [run for run, nodes in self._knows.items() if link.node in nodes and run not in told]
        for run in forgotten:
            self._knows[run].discard(link.node)
            self._active.get(run, {}).pop(link.node, None)
        return bool(forgotten)

    def on_run_reported(self, link: Link, record: RememberedRun) -> None:
        """An agent that has greeted us remembers a run."""
        self.mark_known(link, record["run"])
        self._active.setdefault(record["run"], {})[link.node] = record.get("active", 0)

    def mark_known(self, link: Link, run: str) -> None:
        self._knows.setdefault(run, set()).add(link.node)

    def on_call_ended(self, link: Link, run: str) -> None:
        """An agent tells of a call's end."""
        left = self._active.get(run, {})
        left[link.node] = max(0, left.get(link.node, 0) - 1)

    def forget(self, run: str) -> None:
        self._knows.pop(run, None)
        self._active.pop(run, None)

    def find(self, but: Container[str]) -> list[RunRow]:
        """Runs that have no client by the ledger's word, and are not just being sent out."""
        context = self._context
        if context.row.state == "starting" and not self._knows:
            return []  # it is as new as we are
        try:
            rows = context.ledger.unfinished_runs(context.token)
        except LedgerError:  # whoever comes next tells of them
            return []
        now = time.time()
        return [
            row for row in rows if row.run not in but and now - row.opened_at > DISPATCH_GRACE and not row.has_client
        ]

    def has_unfinished(self, but: Container[str]) -> bool:
        """Whether there are runs of whose end the ledger knows nothing, with a client or without."""
        try:
            return any(row.run not in but for row in self._context.ledger.unfinished_runs(self._context.token))
        except LedgerError:  # it may be read later
            return True

    def lost_outcomes(self, row: RunRow, ended: Collection[int], returned: int) -> Iterator[Outcome]:
        """What was lost of a run, as far as that can be told of single calls.

        Args:
            ended: the calls whose ends are known.
            returned: how many more are known to have returned; nobody knows which.
        """
        if row.kind == "broadcast" and row.nodes == ():
            if not self._knows.get(row.run) and all(link.up or link.gone for link in self._context.links):
                never = ErrorInfo("PoolError", "its client went away while it waited for nodes; it was not begun")
                yield from (Outcome(index, -1, -1, "lost", error=never) for index in range(row.total))
        elif row.kind == "broadcast":
            each = self._context.ranks_per_node
            for index in sorted(set(range(row.total)) - set(ended)):
                node = index // each if row.nodes is None else row.nodes[index // each]
                link = self._context.links[node]
                if why := self._lost_error(link, row.run):
                    yield Outcome(index, node * each + index % each, node, "lost", error=why)
        elif row.total - len(ended) - returned > 0 and not self.is_running(row.run):
            where, why = self._find_lost_node(row.run)
            rank = -1 if where is None else where.node * self._context.ranks_per_node
            node = -1 if where is None else where.node
            for index in sorted(set(range(row.total)) - set(ended))[: row.total - len(ended) - returned]:
                yield Outcome(index, rank, node, "lost", error=why)

    def is_running(self, run: str) -> bool:
        """Whether a node has calls of a run that have not ended, or results of which it has forgotten all else."""
        active = self._active.get(run, {})
        return any(
            link.up and (active.get(link.node) or (not active and run in link.welcome.get("unfetched", ())))
            for link in self._context.links
        )

    def _find_lost_node(self, run: str) -> tuple[Link | None, ErrorInfo]:
        """The node that had a call of which no node tells, where it can only be one."""
        lost = [(link, why) for link in self._context.links if (why := self._lost_error(link, run))]
        if len(lost) == 1:
            return lost[0]
        gone = [(link, why) for link, why in lost if link.gone]
        if len(gone) == 1:
            return gone[0]
        named = ", ".join(str(link.node) for link, _ in gone or lost)
        words = f"its client is gone, and it was on one of the nodes {named}" if named else "its client is gone"
        return None, ErrorInfo("NodeLost", f"{words}; no node that is there knows of it")

    def _lost_error(self, link: Link, run: str) -> ErrorInfo | None:
        """Why nothing of a run can come from a node any more; None where it can."""
        if link.gone:
            said = ": ".join(filter(None, (f"node {link.node} is gone", link.lost_reason)))
            return ErrorInfo(link.lost_error_type, said if link.lost_error_type == "NodeLost" else link.lost_reason)
        if link.up and link.node not in self._knows.get(run, ()):
            if run in link.welcome.get("unfetched", ()):
                return None
            words = f"node {link.node} knows nothing of it: another machine or agent is there than when it began"
            return ErrorInfo("NodeLost", words)
        return None


class OtherClientRuns:
    """Turns what the agents tell of other clients' runs into events, and into the ledger where it lacks them.

    Attributes:
        stops: whether ranks that wait for lost ones are stopped, though this client may only look.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._pool = context.name
        self._news = context.news
        self._totals: dict[str, int] = {}
        self._outcomes: dict[str, dict[int, Outcome]] = {}
        self._returned: dict[
            str, dict[int, int]
        ] = {}  # tasks of a gather that returned while we were not there, by node
        self._maps: dict[str, dict[int, int]] = {}  # items that are done, by rank
        self._map_seconds: dict[str, dict[int, float]] = {}
        self._ended: set[str] = set()
        self._latest: dict[str, float] = {}  # Unix time of the latest outcome
        self._orphaned = OrphanedRuns(context)
        self.may_stop_ranks = False

    def on_welcome(self, link: Link, ours: Container[str]) -> None:
        """Catch up with what an agent remembers, but for runs of ours."""
        for record in link.welcome.get("runs", ()):
            if record["run"] in ours:
                continue
            self._on_opened(record, link)
            self._orphaned.on_run_reported(link, record)
            if record["run"] not in self._ended:
                self._count_returned(record, link.node)
            for header in (*record["began"], *record.get("items", ())):
                self.on_frame(link, header)
            for header in record["outcomes"]:
                self._on_outcome(record["run"], header, link.time_of(header))
            self._check_end(record["run"], caught_up=True)
            if record.get("over") and record["run"] in self._maps:
                self._end_map(record["run"])
        self.check_ledger(ours)

    def has_forgotten(self, link: Link) -> bool:
        """Whether the agent that greets is another one, and knows nothing of a run that the one before had told of."""
        return self._orphaned.drop_forgotten(link)

    def check_ledger(self, ours: Container[str]) -> None:
        """End the runs that have ended by the ledger, once no node is left that could tell more of them: what a lost
        one, or one that came in its place, does not remember, nobody else will tell."""
        if any(not (link.up or link.gone) for link in self._context.links):
            return
        for run in self._totals.keys() - self._ended:
            if run not in ours and (written := self._saved_run(run)) is not None:
                at = written.ended_at or time.time()
                self._end(run, written.state, at, written.root_cause)
        for row in self._orphaned.find(ours):
            if row.run not in self._ended:
                self._report_lost(row)

    def has_unfinished(self, ours: Container[str]) -> bool:
        """Whether a run is under way, as far as agents and the ledger tell."""
        return any(run not in ours for run in self._totals.keys() - self._ended) or self._orphaned.has_unfinished(ours)

    def _report_lost(self, row: RunRow) -> None:
        """Tell what was lost of a run while nobody was there; the ranks that wait for lost ones are stopped."""
        run, context = row.run, self._context
        if row.kind == "map":
            return self._report_lost_map(row)
        written = self._saved_outcomes(run)
        known = self._outcomes.get(run, {}) | written
        returned = sum(self._returned.get(run, {}).values())
        lost = list(self._orphaned.lost_outcomes(row, known, returned))
        is_over = len(known) + len(lost) + returned == row.total
        if not (is_over or lost or any(each.kind == "lost" for each in known.values())):
            return
        if run not in self._totals:
            self._add_run(run, row.function, row.kind, row.total, row.opened_at, row.nodes or ())
        for outcome in written.values():
            self._add_outcome(run, outcome, row.opened_at)
        if returned and lost:  # which tasks these are nobody knows
            cause, now = RootCause.from_outcome(lost[0]), time.time()
            self._news.records.add_run_end(run, "failed", now, cause)
            return self._end(run, "failed", now, cause)
        for outcome in lost:
            self._add_outcome(run, outcome, time.time())
            self._news.records.add_outcome(run, outcome, {})
        may_stop = context.options.fail_fast and (self.may_stop_ranks or not context.observer)
        if not is_over and row.kind == "broadcast" and may_stop:
            for link in context.links:
                stop = {"t": "stop", "run": run, "why": "fail-fast", "grace": context.options.grace}
                link.send(stop | {"break": link.epoch})
        self._check_end(run)

    def _report_lost_map(self, row: RunRow) -> None:
        """Nobody gives a map its items any more."""
        if self._orphaned.is_running(row.run):
            return
        if row.run not in self._totals:
            self._add_run(row.run, row.function, row.kind, row.total, row.opened_at, ())
        cause, now = (
            RootCause(-1, "lost", "PoolError", "its client is gone, who gave it its items"),
            time.time(),
        )
        self._news.records.add_run_end(row.run, "failed", now, cause)
        self._end(row.run, "failed", now, cause)

    def _saved_outcomes(self, run: str) -> dict[int, Outcome]:
        try:
            return {outcome.index: outcome for outcome, _ in self._context.ledger.outcomes(run)}
        except LedgerError:  # what agents remember has to do
            return {}

    def _count_returned(self, record: RememberedRun, node: int) -> None:
        """An agent tells of tasks that returned in a number only: of those we have seen some before the link dropped.
        One that was started anew has forgotten others."""
        outcomes = self._outcomes[record["run"]].values()
        seen = sum(outcome.node == node and outcome.kind == "returned" for outcome in outcomes)
        counts = self._returned.setdefault(record["run"], {})
        counts[node] = max(counts.get(node, 0), record["returned"] - seen)

    def on_frame(self, link: Link, header: RunFrame) -> None:
        if header["t"] == "want":
            return  # its own client has the values
        run, at = header["run"], link.time_of(header)
        match header["t"]:
            case "run":
                self._on_opened(header, link)
                self._orphaned.mark_known(link, run)
                if header.get("over") and run in self._maps:
                    self._end_map(run)
            case "began":
                self._emit(
                    events.RankBegan(
                        pool=self._pool,
                        run=run,
                        index=header["i"] if run not in self._maps else header["rank"],
                        rank=header["rank"],
                        node=header["node"],
                        at=at,
                    )
                )
            case "item":
                summary = Summary.from_wire(header["summary"])
                if summary is not None:
                    if run in self._maps:
                        self._maps[run][header["rank"]] = header["seq"] + 1
                    self._emit(
                        events.ItemYielded(
                            pool=self._pool, run=run, index=header["i"], rank=header["rank"],
                            seq=header["seq"], summary=summary,
                        )
                    )  # fmt: skip
            case "outcome" if run in self._maps and header["kind"] == "returned":
                self._count_items(run, header)
            case "outcome":
                self._on_outcome(run, header, at)
                self._orphaned.on_call_ended(link, run)
                self._check_end(run)

    def _on_opened(self, record: RunKeys, link: Link) -> None:
        run, at = record["run"], link.time_of({"at": record["opened_at"]})
        nodes = tuple(record.get("nodes", ()))
        job, more = record.get("job", ""), record.get("more", False)
        if run in self._totals:
            if nodes or job:  # it has waited for them
                self._emit(events.RunPlaced(pool=self._pool, run=run, nodes=list(nodes), at=at, job=job, more=more))
            return
        self._news.records.add_run(run, record["function"], record["kind"], record["total"], at)
        if nodes:
            self._news.records.set_columns(run, nodes=nodes)
        self._add_run(run, record["function"], record["kind"], record["total"], at, nodes, job, more=more)

    def on_queued(self, link: Link, queued: QueuedRunKeys) -> None:
        """A run waits for nodes, as the head tells."""
        context = self._context
        if queued["run"] not in self._totals:
            total = (queued["nodes"] or len(context.links)) * context.ranks_per_node
            since = link.to_client_time(queued["since"])
            self._add_run(queued["run"], queued["name"], "broadcast", total, since, ())

    def _add_run(
        self,
        run: str,
        function: str,
        kind: RunKind,
        total: int,
        at: float,
        nodes: tuple[int, ...],
        job: str = "",
        *,
        more: bool = False,
    ) -> None:
        self._totals[run] = total
        self._outcomes[run] = {}
        if kind == "map":
            self._maps[run] = {}
        self._emit(
            events.RunOpened(
                pool=self._pool,
                run=run,
                function=function,
                kind=kind,
                total=total,
                at=at,
                job=job,
                more=more,
            )
        )
        if nodes:
            self._emit(events.RunPlaced(pool=self._pool, run=run, nodes=list(nodes), at=at))

    def _on_outcome(self, run: str, header: AgentOutcome, at: float) -> None:
        outcome = outcome_of(header)
        if run in self._maps:  # a row for each rank
            outcome = replace(outcome, index=outcome.rank, items=self._maps[run].get(outcome.rank, 0))
        if self._add_outcome(run, outcome, at):
            self._news.records.add_outcome(run, outcome, header.get("log", {}))

    def _count_items(self, run: str, header: AgentOutcome) -> None:
        """A rank has done some more items of a map."""
        done = self._maps[run]
        done[header["rank"]] = done.get(header["rank"], 0) + header.get("items", 0)
        took = self._map_seconds.setdefault(run, {})
        took[header["rank"]] = took.get(header["rank"], 0.0) + header.get("seconds", 0.0)
        summary = Summary.from_wire(header.get("summary"))
        if summary is not None and done[header["rank"]]:
            self._emit(
                events.ItemYielded(
                    pool=self._pool, run=run, index=header["rank"], rank=header["rank"],
                    seq=done[header["rank"]] - 1, summary=summary,
                )
            )  # fmt: skip

    def _end_map(self, run: str) -> None:
        """Its client has said that this was all."""
        if run in self._ended:
            return
        for rank in range(self._totals[run]):
            node = self._context.link_of(rank).node
            if rank not in self._outcomes[run]:
                seconds = self._map_seconds.get(run, {}).get(rank, 0.0)
                row = Outcome(rank, rank, node, "returned", seconds, items=self._maps[run].get(rank, 0))
                self._add_outcome(run, row, time.time())
        self._check_end(run)

    def _add_outcome(self, run: str, outcome: Outcome, at: float) -> bool:
        """Tell of an outcome, the first time; says whether it was that."""
        outcomes = self._outcomes.setdefault(run, {})
        if outcome.index in outcomes or outcome.index >= self._totals.get(run, CALLS):
            return False
        outcomes[outcome.index] = outcome
        self._latest[run] = max(at, self._latest.get(run, 0.0))
        self._emit(events.RankEnded(pool=self._pool, run=run, outcome=outcome, at=at))
        return True

    def _check_end(self, run: str, *, caught_up: bool = False) -> None:
        outcomes = self._outcomes[run]
        known = len(outcomes) + (sum(self._returned.get(run, {}).values()) if run not in self._maps else 0)
        if known < self._totals.get(run, known + 1) or run in self._ended:
            return
        at = self._latest.get(run, time.time())
        written = self._saved_run(run) if caught_up else None
        state: RunStatus
        if written is not None:
            state, cause, at = written.state, written.root_cause, written.ended_at or at
        else:
            state, cause = summarize_outcomes(outcomes.values())
            self._news.records.add_run_end(run, state, at, cause)
        self._end(run, state, at, cause)

    def _end(self, run: str, state: RunStatus, at: float, cause: RootCause | None) -> None:
        self._ended.add(run)
        self._latest.pop(run, None)
        self._orphaned.forget(run)
        self._emit(events.RunEnded(pool=self._pool, run=run, state=state, root_cause=cause, at=at))

    def _saved_run(self, run: str) -> RunRow | None:
        """How a run ended before we came, by who was there: agents remember neither the order of its failures nor when
        each task returned."""
        try:
            row = self._context.ledger.run(run)
        except LedgerError:  # what agents remember has to do
            return None
        return row if row is not None and row.ended_at is not None else None

    def _emit(self, event: events.Event) -> None:
        self._news.emit(event)


CHECK_INTERVAL = 10.0  # seconds until it is looked whether a run that lost a node has a client still; then ever longer
MAX_CHECK_INTERVAL = 60.0  # the same at most
MAX_ENDED_RUNS = 16_384  # runs: more than end between two words to an agent


class RunRegistry:
    """Runs of one pool, as one client has them.

    Attributes:
        runs: those that have not ended, by id.
        blobs: large arguments on their way to the nodes.
        direct: lines to the nodes past their SSH connections.
        only_looks: whether nothing is to be changed from here, whatever is seen.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._others = OtherClientRuns(context)
        self.is_read_only = self._is_checking = False
        self.runs: dict[str, Run] = {}
        # Ended ones that agents may tell of once more, until they hear that the outcomes are here; in order.
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

    async def claim(self, run: str) -> Run:
        """Take over a run whose client is gone: its results come here.

        Raises:
            PoolGone: the pool has ended.
            PoolError: the pool does not remember it, or results of it have been fetched, or were never asked for.
        """
        context = self._context
        if context.external_end is not None:
            raise context.external_end.error()
        if run in self._ended_runs:
            raise already_fetched_error(run)
        if run in self.runs:
            return self.runs[run]
        view = context.view.runs.get(run)
        if view is None:
            raise PoolError(f"pool {context.name} remembers no run {run}")
        if any(each.run == run for each in context.view.waiting):
            raise PoolError(f"run {run} waits for nodes, and is its client's until it has them")
        if view.kind == "map":
            raise PoolError(f"run {run} is a map: what it gives goes to its caller, item by item, and nowhere else")
        taken = self.add(run, view.kind, [Task(view.function, EMPTY_BLOB, EMPTY_BLOB)], view.total)
        taken.claim_from(context.links, view.nodes)
        asked = [link for link in context.links if link.up]
        known = await asyncio.gather(*(link.claim(run) for link in asked))
        lacks = view.total - sum(map(len, known))
        if lacks > 0 and all(link.up for link in context.links):
            del self.runs[run]
            for link, calls in zip(asked, known, strict=True):
                link.release_claim(run, owned=bool(calls))
            if lacks == view.total:
                raise already_fetched_error(run)
            raise PoolError(
                f"of run {run} the nodes have {view.total - lacks} of {view.total} results: the others have been "
                "fetched before, or their tasks had been sent to no node when the run's client left",
                hint=Hint("results", run),
            )
        for link in context.links:
            if link.gone:  # before we came, perhaps: nobody else would say so
                self._mark_run_calls_lost(taken, link)
        return taken

    def cancel(self, run: str, why: str = "asked for") -> None:
        """Stop a run, whoever dispatched it."""
        if ours := self.runs.get(run):
            ours.cancel(why)
            return
        for link in self._context.links:
            grace = self._context.options.grace
            link.send({"t": "stop", "run": run, "why": "cancel", "grace": grace, "break": link.epoch})

    # -- what nodes tell ---------------------------------------------------------------------------------

    def check_welcome(self, link: Link) -> None:
        """See whether an agent that greets us remembers runs of its own ranks only.

        Raises:
            WireError: it does not.
        """
        for record in link.welcome["runs"]:
            for header in (*record["began"], *record["outcomes"]):
                self._context.check_rank(link, header["rank"], header["node"])

    def sync_from_agent(self, link: Link) -> None:
        """Show what an agent remembers of others' runs."""
        if self._others.has_forgotten(link):
            self.on_node_lost()
        self._others.on_welcome(link, self._own_runs)

    @property
    def _own_runs(self) -> Container[str]:
        """Runs that are told of by ourselves."""
        return self.runs.keys() | self._ended_runs.keys()

    def on_frame(self, link: Link, header: RunFrame, body: bytes) -> None:
        """News of a run.

        Raises:
            WireError: there is no such call, or that node was not given it.
        """
        if header["t"] in ("outcome", "item", "began"):
            self._context.check_rank(link, header["rank"], header.get("node"))
        run = self.runs.get(header["run"])
        if run is None:
            if header["run"] not in self._ended_runs:
                self._others.on_frame(link, header)
            return
        if header["t"] == "run":
            return  # we know it best
        if not run.has_call(header["i"]):
            raise WireError(f"run {run.id} has no call {header['i']}")
        if not run.is_sent_to(link, header["i"]):
            raise WireError(f"node {link.node} speaks of call {header['i']}, which it was not given")
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

    def drop_link(self, link: Link) -> None:
        """Nothing comes over a link any more: calls on it end as lost."""
        link.mark_lost()
        self.mark_calls_lost(link)
        self._others.check_ledger(self._own_runs)

    def on_node_lost(self) -> None:
        """A node went while we were there, or its agent with all that it knew. Ranks that wait for those of it are
        stopped where nobody else does that, be it later, once their client is gone; and though we may only look: nobody
        who uses the pool need ever come."""
        self._others.may_stop_ranks = not self.is_read_only
        if not self._is_checking:
            self._is_checking = True
            self._context.background.spawn(self._check_orphaned_loop())

    async def _check_orphaned_loop(self) -> None:
        """Until no run goes on that may have lost something: one that begins later knows which nodes there are."""
        context, pause = self._context, CHECK_INTERVAL
        while not (context.leaving or context.external_end):
            await asyncio.sleep(pause)
            self._others.check_ledger(self._own_runs)
            if not self._others.has_unfinished(self._own_runs):
                break
            pause = min(2 * pause, max(MAX_CHECK_INTERVAL, CHECK_INTERVAL))
        self._is_checking = False

    def mark_calls_lost(self, link: Link) -> None:
        """What a node was given and has not answered, it will not."""
        for run in list(self.runs.values()):
            self._mark_run_calls_lost(run, link)

    @staticmethod
    def _mark_run_calls_lost(run: Run, link: Link) -> None:
        for index in run.calls_on(link):
            run.mark_lost(index)

    def on_other_run_queued(self, link: Link, queued: QueuedRunKeys) -> None:
        """A run of another client waits for nodes; no node but the head knows of it yet."""
        self._others.on_queued(link, queued)

    def check_orphaned(self) -> None:
        """We use the pool from now on: see to runs that nobody sees to."""
        self._others.check_ledger(self._own_runs)

    async def fetch(self, link: Link, name: str, landing: ResultDownload) -> None:
        """Bring a file of a node's spool here, by the best way there is.

        Raises:
            OSError: it is not there, or cannot be written here.
            ConnectionError: the link is down; what has come is kept for the next attempt.
        """
        # Standalone nodes listen nowhere.
        if self._context.is_standalone or not await self.direct.download_result(link, name, landing):
            await link.fetch(name, landing)

    def on_run_end(self, run: Run) -> None:
        """A run of ours is over."""
        self.runs.pop(run.id, None)
        if run.state != "lost":  # of one that its pool ended under more may be heard
            self._ended_runs[run.id] = None
            if len(self._ended_runs) > MAX_ENDED_RUNS:
                self._ended_runs.popitem(last=False)
        self.blobs.release(run.id)
        self._news.records.add_run_end(run.id, run.state, time.time(), run.root_cause)
        self._news.emit(
            events.RunEnded(pool=self._context.name, run=run.id, state=run.state, root_cause=run.root_cause)
        )
