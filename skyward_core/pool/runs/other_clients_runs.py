"""Runs of other clients of a pool, as agents and ledger report them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import LedgerError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause, RunStatus, Summary
from skyward_core.model.restart_policy import AttemptEnd, RestartDecision, decide_restart, describe_end
from skyward_core.model.root_cause import summarize_outcomes
from skyward_core.pool.agent_link import Link
from skyward_core.pool.runs.run import outcome_of
from skyward_core.protocol.frame_codec import AnyHeader
from skyward_core.protocol.validators import CALLS
from skyward_core.store.ledger_rows import RunRow
from skyward_core.views import events
from skyward_core.views.recording_entries import parse_attempt_ends

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.pool.agent_link import RunFrame
    from skyward_core.protocol import frame_types as frames


DECISION_INTERVAL = 0.2  # seconds between queries about the next attempt of another client's run
# Seconds; the interval between queries grows up to this value, because a ledger may be on a network file system.
MAX_DECISION_INTERVAL = 1.0
DECISION_GRACE = 1.0  # seconds until the ledger names the client of a run of which this client has just learned
DISPATCH_GRACE = 10.0  # seconds after the dispatch of a run during which agents may not have received it


class OtherRun:
    """State of another client's run, as far as this client knows it.

    Attributes:
        total: Number of ranks or tasks. None until an agent or the ledger has described the run.
        outcomes: Outcomes by index.
        returned: Node -> number of a gather's tasks that returned while this client was disconnected.
        items: For a map, number of finished items by rank. None for other runs.
        seconds: For a map, total duration by rank.
        latest: Unix time of the latest outcome; 0 if there is none.
        has_ended: Whether the run has ended.
        attempt: Number of the run's latest attempt, from 1.
        known_since: Monotonic time at which this client learned of the run.
        task_attempts: Index -> number of the latest attempt, for tasks that ran again.
        decided_after: Number of the last failed attempt after which the run's client decides about another one.
        known_by: Nodes whose agents know the run.
        active: Node -> number of active calls.
        waiting: The agents' record of a run that only a client can restart. None for other runs.
    """

    def __init__(self) -> None:
        self.total: int | None = None
        self.outcomes: dict[int, Outcome] = {}
        self.returned: dict[int, int] = {}
        self.items: dict[int, int] | None = None
        self.seconds: dict[int, float] = {}
        self.latest = 0.0
        self.has_ended = False
        self.attempt = 1
        self.known_since = time.monotonic()
        self.decided_after = 0
        self.task_attempts: dict[int, int] = {}
        self.known_by: set[int] = set()
        self.active: dict[int, int] = {}
        self.waiting: frames.RunKeys | None = None

    def add(self, outcome: Outcome, at: float, attempt: int = 1) -> bool:
        """Add an outcome. ``attempt``: attempt of a single task. Return whether the outcome is new."""
        if attempt > self.task_attempts.get(outcome.index, 1):
            self.task_attempts[outcome.index] = attempt
        elif outcome.index in self.outcomes:
            return False
        if outcome.index >= (CALLS if self.total is None else self.total):
            return False
        self.outcomes[outcome.index] = outcome
        self.latest = max(at, self.latest)
        return True

    def is_running(self, links: Iterable[Link], run: str) -> bool:
        """Check whether a node has active calls of the run.

        If no node has reported active calls, a node with unfetched results of the run counts as well.
        """
        return any(
            link.up and (self.active.get(link.node) or (not self.active and run in link.welcome.get("unfetched", ())))
            for link in links
        )

    def lost_error(self, link: Link, run: str) -> ErrorInfo | None:
        """Return the reason why a node can report nothing more about the run; None if it can still report."""
        if link.gone:
            return link.lost_error
        if link.up and link.node not in self.known_by and run not in link.welcome.get("unfetched", ()):
            words = f"node {link.node} does not know the run: its machine or agent was replaced after the run began"
            return ErrorInfo("NodeLost", words)
        return None


class OtherClientRuns:
    """Other clients' runs, as agents report them. Publishes their events and adds missing rows to the ledger.

    Attributes:
        may_stop_ranks: Whether even an observer stops ranks that wait for lost ranks.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._pool = context.name
        self._news = context.news
        self._runs: defaultdict[str, OtherRun] = defaultdict(OtherRun)
        self.may_stop_ranks = False

    def on_welcome(self, link: Link) -> None:
        """Process the runs in an agent's welcome frame, except for this client's own runs."""
        ours = self._context.registry.own_runs
        for record in link.welcome.get("runs", ()):
            if record["run"] in ours:
                continue
            self._on_opened(record, link)
            known = self._runs[record["run"]]
            if record.get("attempt", 1) < known.attempt:
                continue  # skip this node: the client exited before it started the latest attempt there
            known.known_by.add(link.node)
            known.active[link.node] = record.get("active", 0)
            if not known.has_ended:
                self._count_returned(record, link.node)
            for header in (*record["began"], *record.get("items", ())):
                self.on_frame(link, header)
            for header in record["outcomes"]:
                self._on_outcome(record["run"], header, link.time_of(header))
            self._check_end(record["run"], caught_up=True)
            if record.get("over") and known.items is not None:
                self._end_map(record["run"])
        self.check_ledger()

    def drop_forgotten(self, link: Link) -> bool:
        """Drop runs and outcomes that a new agent of the node does not know. Return whether a run was dropped."""
        remembered = {record["run"] for record in link.welcome.get("runs", ())}
        forgotten = [each for run, each in self._runs.items() if link.node in each.known_by and run not in remembered]
        for each in forgotten:
            each.known_by.discard(link.node)
            each.active.pop(link.node, None)
        return bool(forgotten)

    @property
    def _unfinished(self) -> list[str]:
        """Runs of other clients that have begun and have not ended, as far as this client knows."""
        ours = self._context.registry.own_runs
        return [
            run for run, each in self._runs.items() if each.total is not None and not each.has_ended and run not in ours
        ]

    def check_ledger(self) -> None:
        """End the runs that have ended according to the ledger, if every node is connected or lost.

        Does nothing while a node is reconnecting, because this node may report more about the runs.
        """
        if any(not (link.up or link.gone) for link in self._context.links):
            return
        for run in self._unfinished:
            if (written := self._saved_run(run)) is not None:
                self._end(run, written.state, written.ended_at or time.time(), written.root_cause)
        for row in self._find_restarting():
            self._add_row(row)
            self._on_attempt(row.run, {"attempt": row.attempts or 1})
        for row in self._find_orphaned():
            if not (row.run in self._runs and self._runs[row.run].has_ended):
                self._report_lost(row)

    def _find_restarting(self) -> list[RunRow]:
        """Return the runs between two attempts that no agent has reported to this client."""
        # If the ledger cannot be read, return no runs, because the agents will report the next attempts.
        rows = self._unfinished_rows() if self._context.options.on_loss == "restart" else None
        return [row for row in rows or () if row.attempts and self._runs[row.run].total is None]

    def _unfinished_rows(self) -> list[RunRow] | None:
        """Return the other clients' unfinished runs in the ledger; None if the ledger cannot be read."""
        try:
            rows = self._context.ledger.unfinished_runs(self._context.token)
        except LedgerError:
            return None
        return [row for row in rows if row.run not in self._context.registry.own_runs]

    def _find_orphaned(self) -> list[RunRow]:
        """Return unfinished runs without a client, except recently dispatched ones."""
        if self._context.row.state == "starting" and not self._runs:
            return []  # a pool that this client has just created cannot have runs of earlier clients
        # If the ledger cannot be read, return no runs, because a later client will report them.
        rows, now = self._unfinished_rows() or (), time.time()
        return [row for row in rows if now - row.opened_at > DISPATCH_GRACE and not row.has_client]

    def has_unfinished(self) -> bool:
        """Check whether another client's run is active according to the agents or the ledger."""
        # If the ledger cannot be read, assume an active run, because the ledger may contain one.
        return bool(self._unfinished) or self._unfinished_rows() != []

    def _lost_outcomes(self, row: RunRow, ended: Collection[int], returned: int) -> Iterator[Outcome]:
        """Yield an outcome "lost" for each call of a run whose outcome can no longer arrive.

        Args:
            row: Row of the run.
            ended: Calls with known outcomes.
            returned: Number of further calls that returned. Their indices are unknown.
        """
        context, known = self._context, self._runs[row.run]
        each = context.ranks_per_node
        if row.kind == "broadcast" and row.nodes == ():
            if not known.known_by and all(link.up or link.gone for link in context.links):
                never = ErrorInfo("PoolError", "its client exited while the run waited for nodes; it never began")
                yield from (Outcome(index, -1, -1, "lost", error=never) for index in range(row.total))
        elif row.kind == "broadcast":
            for index in sorted(set(range(row.total)) - set(ended)):
                node = index // each if row.nodes is None else row.nodes[index // each]
                if reason := known.lost_error(context.links[node], row.run):
                    yield Outcome(index, node * each + index % each, node, "lost", error=reason)
        elif row.total - len(ended) - returned > 0 and not known.is_running(context.links, row.run):
            node, error = self._find_lost_node(row.run)
            for index in sorted(set(range(row.total)) - set(ended))[: row.total - len(ended) - returned]:
                yield Outcome(index, -1 if node < 0 else node * each, node, "lost", error=error)

    def _find_lost_node(self, run: str) -> tuple[int, ErrorInfo]:
        """Return the node that had a lost call, and the error. The node is -1 if several nodes may have had it."""
        links = self._context.links
        lost = [(link, reason) for link in links if (reason := self._runs[run].lost_error(link, run))]
        gone = [(link, reason) for link, reason in lost if link.gone]
        for found in (lost, gone):
            if len(found) == 1:
                return found[0][0].node, found[0][1]
        named = ", ".join(str(link.node) for link, _ in gone or lost)
        place = f", and the call was on one of the nodes {named}" if named else ""
        return -1, ErrorInfo("NodeLost", f"its client has exited{place}; no connected node knows the call")

    def _report_lost(self, row: RunRow) -> None:
        """Report the lost calls of a run without a client. Stop the run's ranks that wait for lost ranks."""
        run, context = row.run, self._context
        if row.kind == "map":
            return self._report_lost_map(row)
        if self._runs[run].total not in (None, row.total):
            return  # the ledger still describes an earlier attempt with another number of ranks
        written = self.saved_outcomes(run)
        known = self._runs[run].outcomes | written
        returned = sum(self._runs[run].returned.values())
        lost = list(self._lost_outcomes(row, known, returned))
        is_over = len(known) + len(lost) + returned == row.total
        if not (is_over or lost or any(each.kind == "lost" for each in known.values())):
            return
        if self._runs[run].total is None:
            self._add_row(row)
        for outcome in written.values():
            self._add_outcome(run, outcome, row.opened_at)
        if returned and lost:  # some tasks returned and others are lost, but agents do not say which ones
            return self._fail(run, RootCause.from_outcome(lost[0]))
        for outcome in lost:
            self._add_outcome(run, outcome, time.time())
            self._news.records.add_outcome(run, outcome, {})
        may_stop = context.options.fail_fast and (self.may_stop_ranks or not context.observer)
        if not is_over and row.kind == "broadcast" and may_stop:
            for link in context.links:
                link.send({"t": "stop", "run": run, "why": "fail-fast", "break": link.epoch})
        self._check_end(run)

    def _report_lost_map(self, row: RunRow) -> None:
        """End a map without a client, because no client supplies its items."""
        if self._runs[row.run].is_running(self._context.links, row.run):
            return
        if self._runs[row.run].total is None:
            self._add_row(row)
        self._fail(row.run, RootCause(-1, "lost", "PoolError", "its client, which supplied the items, has exited"))

    def _fail(self, run: str, cause: RootCause) -> None:
        now = time.time()
        self._news.records.add_run_end(run, "failed", now, cause)
        self._end(run, "failed", now, cause)

    def saved_outcomes(self, run: str) -> dict[int, Outcome]:
        """Return the outcomes of a run in the ledger, by index."""
        try:
            return {outcome.index: outcome for outcome, _ in self._context.ledger.outcomes(run)}
        except LedgerError:  # the ledger cannot be read, so use the outcomes that agents report
            return {}

    def _count_returned(self, record: frames.RememberedRun, node: int) -> None:
        """Update the number of returned tasks from an agent's count.

        The count may include tasks that were reported before the link dropped, and a restarted agent does not count
        tasks that ended before its start.
        """
        known = self._runs[record["run"]]
        seen = sum(outcome.node == node and outcome.kind == "returned" for outcome in known.outcomes.values())
        known.returned[node] = max(known.returned.get(node, 0), record["returned"] - seen)

    def on_frame(self, link: Link, header: RunFrame) -> None:
        if header["t"] == "want":
            return  # ignore the request, because the run's own client sends the values
        run, at = header["run"], link.time_of(header)
        known = self._runs[run]
        match header["t"]:
            case "run":
                self._on_opened(header, link)
                known.known_by.add(link.node)
                if header.get("over") and known.items is not None:
                    self._end_map(run)
            case "began":
                index, rank = header["i"] if known.items is None else header["rank"], header["rank"]
                self._news.emit(
                    events.RankBegan(pool=self._pool, run=run, index=index, rank=rank, node=header["node"], at=at)
                )
            case "item":
                is_new = self._emit_item(run, header["i"], header["rank"], header["seq"], header["summary"])
                if is_new and known.items is not None:
                    known.items[header["rank"]] = header["seq"] + 1
            case "outcome" if known.items is not None and header["kind"] == "returned":
                self._count_items(run, known.items, header)
            case "outcome" if known.items is not None and self._may_restart(run):
                self._await_decision(run)
            case "outcome" if header.get("attempt", 1) < known.attempt:
                return
            case "outcome":
                self._on_outcome(run, header, at)
                if link.node in known.active:
                    known.active[link.node] = max(0, known.active[link.node] - 1)
                self._check_end(run)

    def _emit_item(self, run: str, index: int, rank: int, seq: int, data: Any) -> bool:
        if (summary := Summary.from_wire(data)) is not None:
            self._news.emit(
                events.ItemYielded(pool=self._pool, run=run, index=index, rank=rank, seq=seq, summary=summary)
            )
        return summary is not None

    def _on_opened(self, record: frames.RunKeys, link: Link) -> None:
        run, at = record["run"], link.time_of({"at": record["opened_at"]})
        nodes = tuple(record.get("nodes", ()))
        self._on_attempt(run, record)
        job, more = record.get("job", ""), record.get("more", False)
        if self._runs[run].total is not None:
            if nodes or job:  # the run is already in the view, because it was queued until nodes were free
                self._news.emit(
                    events.RunPlaced(pool=self._pool, run=run, nodes=list(nodes), at=at, job=job, more=more)
                )
            return self._publish_last_end(run, record)
        function, kind, total = record["function"], record["kind"], record["total"]
        self._news.records.add_run(run, function, kind, total, at)
        if nodes:
            self._news.records.set_columns(run, nodes=nodes)
        opened = events.RunOpened(
            pool=self._pool, run=run, function=function, kind=kind, total=total, at=at, job=job, more=more
        )
        self._add_run(opened, nodes)
        self._on_attempt(run, record)
        self._publish_last_end(run, record)

    def attempt_of(self, run: str) -> int:
        """Return the number of a run's latest attempt."""
        return self._runs[run].attempt

    def _on_attempt(self, run: str, record: frames.RunKeys | AnyHeader) -> None:
        """Forget the outcomes of a run's earlier attempts, and publish how they ended."""
        known, attempt = self._runs[run], record.get("attempt", 1)
        if known.total is None or attempt <= known.attempt:
            return
        self._publish_saved_ends(run, attempt)
        ends = [AttemptEnd.from_keys(keys) for keys in record.get("ends", ())]
        if not ends:  # agents of older releases do not report how attempts ended, so derive it from the outcomes
            root = summarize_outcomes(known.outcomes.values())[1]
            root = root or RootCause(-1, "lost", "NodeLost", "its client started the run again")
            ends = [describe_end(attempt - 1, root, known.outcomes.values(), None)]
        self.publish_ends(run, ends)
        known.attempt, known.outcomes, known.has_ended, known.waiting = attempt, {}, False, None
        if (total := record.get("total", known.total)) != known.total:
            known.total, nodes = total, record.get("nodes", [])
            everywhere = range(len(self._context.links))
            self._news.records.set_columns(run, total=total, nodes=tuple(nodes or everywhere))
            self._news.emit(events.RunPlaced(pool=self._pool, run=run, nodes=nodes))
        known.returned, known.latest = {}, 0.0
        known.active.clear()
        if record.get("unattended"):
            self._news.save_attempt_ends(run)
        else:
            # The run's client may die before all nodes have received the attempt, so forget which nodes know the run.
            # An attempt that the agents start without a client begins on all nodes or on none.
            known.known_by.clear()
        self._news.records.restart_run(run, attempt)

    def _publish_last_end(self, run: str, record: frames.RunKeys) -> None:
        """Publish why the head started no further attempt without a client, or start one here if the policy allows."""
        view = self._context.view.runs.get(run)
        if (keys := record.get("last_end")) is None or view is None or view.attempt != keys["number"]:
            return
        ends = [AttemptEnd.from_keys(each) for each in (*record.get("ends", ()), keys)]
        if decide_restart(ends, self._context.options).restarts and not self._runs[run].has_ended:
            self._runs[run].waiting = record
            if self._context.registry.adopt(run):
                return
            # Wait until another client, or this client after its activation, decides about another attempt.
            self._await_decision(run)
        self.publish_end(run, ends[-1], RestartDecision(False, ""))
        self._news.save_attempt_ends(run)

    def has_lost(self, link: Link, run: str) -> bool:
        """Check whether a node has lost its calls of a run."""
        return self._runs[run].lost_error(link, run) is not None

    def adopt_waiting(self) -> None:
        """Continue the runs that wait for a client, because this client is no longer an observer."""
        for run, known in list(self._runs.items()):
            if known.waiting is not None:
                self._publish_last_end(run, known.waiting)

    def on_adoption_failed(self, run: str) -> None:
        """End a run that this client cannot restart."""
        known = self._runs[run]
        if known.waiting is not None and (keys := known.waiting.get("last_end")) is not None:
            self.publish_end(run, AttemptEnd.from_keys(keys), RestartDecision(False, ""))
            self._news.save_attempt_ends(run)
        known.waiting, known.decided_after = None, 0
        self._check_end(run, caught_up=True)

    def publish_end(self, run: str, end: AttemptEnd, then: RestartDecision) -> None:
        """Publish the end of an attempt of a run, whose client may be this one."""
        self._news.emit(
            events.AttemptEnded(
                pool=self._pool, run=run, number=end.number, cause=end.cause, message=end.message,
                restarts=then.restarts, reason=end.reason, pause=then.pause, step=end.progress, left=then.left,
                at=end.at or time.time(),
            )
        )  # fmt: skip

    def publish_ends(self, run: str, ends: Iterable[AttemptEnd]) -> None:
        """Publish the ends of attempts that are not in the view yet."""
        view = self._context.view.runs.get(run)
        latest = 0 if view is None else view.attempt - 1
        ends = list(ends)
        for place, end in enumerate(ends, 1):
            if end.number > latest:
                decision = decide_restart(ends[:place], self._context.options)
                self.publish_end(run, end, replace(decision, restarts=True))

    def _publish_saved_ends(self, run: str, attempt: int) -> None:
        """Publish the ends of the attempts before ``attempt`` that the ledger contains and the view does not."""
        view, row = self._context.view.runs.get(run), self.ledger_row(run)
        for end in parse_attempt_ends(self._pool, run, (row and row.attempt_ends) or ()):
            if view is not None and view.attempt <= end.number < attempt:
                self._news.emit(end)

    def on_queued(self, link: Link, queued: frames.QueuedRunKeys) -> None:
        """Publish a run that waits for nodes, as the head reports it."""
        context = self._context
        if self._runs[queued["run"]].total is None:
            total = (queued["nodes"] or len(context.links)) * context.ranks_per_node
            run, name, at = queued["run"], queued["name"], link.to_client_time(queued["since"])
            self._add_run(
                events.RunOpened(pool=self._pool, run=run, function=name, kind="broadcast", total=total, at=at)
            )

    def _add_row(self, row: RunRow) -> None:
        """Add a run as the ledger describes it."""
        opened = events.RunOpened(
            pool=self._pool, run=row.run, function=row.function, kind=row.kind, total=row.total, at=row.opened_at
        )
        self._add_run(opened, row.nodes or ())

    def _add_run(self, opened: events.RunOpened, nodes: Sequence[int] = ()) -> None:
        known = self._runs[opened.run]
        known.total, known.outcomes = opened.total, {}
        if opened.kind == "map":
            known.items = {}
        self._news.emit(opened)
        if nodes:
            self._news.emit(events.RunPlaced(pool=self._pool, run=opened.run, nodes=list(nodes), at=opened.at))

    def _on_outcome(self, run: str, header: frames.AgentOutcome, at: float) -> None:
        outcome = outcome_of(header)
        if (items := self._runs[run].items) is not None:  # the view shows a map's outcomes as one row per rank
            outcome = replace(outcome, index=outcome.rank, items=items.get(outcome.rank, 0))
        attempt = header.get("attempt", 1) if self._runs[run].attempt == 1 else 1
        if self._add_outcome(run, outcome, at, attempt):
            self._news.records.add_outcome(run, outcome, header.get("log", {}))

    def _count_items(self, run: str, done: dict[int, int], header: frames.AgentOutcome) -> None:
        """Update the number of items that each rank of a map has finished."""
        rank, took = header["rank"], self._runs[run].seconds
        done[rank] = done.get(rank, 0) + header.get("items", 0)
        took[rank] = took.get(rank, 0.0) + header.get("seconds", 0.0)
        if done[rank]:
            self._emit_item(run, rank, rank, done[rank] - 1, header.get("summary"))

    def _end_map(self, run: str) -> None:
        """End a map whose client has sent all items."""
        known = self._runs[run]
        if known.has_ended:
            return
        for rank in range(known.total or 0):
            if rank not in known.outcomes:
                node, items = self._context.link_of(rank).node, (known.items or {}).get(rank, 0)
                row = Outcome(rank, rank, node, "returned", known.seconds.get(rank, 0.0), items=items)
                self._add_outcome(run, row, time.time())
        self._check_end(run)

    def _add_outcome(self, run: str, outcome: Outcome, at: float, attempt: int = 1) -> bool:
        """Publish an outcome. Return whether it is new."""
        if new := self._runs[run].add(outcome, at, attempt):
            self._news.emit(events.RankEnded(pool=self._pool, run=run, outcome=outcome, at=at))
        return new

    def _check_end(self, run: str, *, caught_up: bool = False) -> None:
        known = self._runs[run]
        returned = sum(known.returned.values()) if known.items is None else 0
        if known.has_ended or known.total is None or len(known.outcomes) + returned < known.total:
            return
        at = known.latest or time.time()
        written = self._saved_run(run) if caught_up else None
        state: RunStatus
        if written is not None:
            state, cause, at = written.state, written.root_cause, written.ended_at or at
        else:
            state, cause = summarize_outcomes(known.outcomes.values())
            if state == "failed" and self._may_restart(run):
                self._await_decision(run)
                return
            self._news.records.add_run_end(run, state, at, cause)
        self._end(run, state, at, cause)

    def _may_restart(self, run: str) -> bool:
        """Check whether the client of a failed run has yet to decide about another attempt."""
        if self._context.options.on_loss != "restart":
            return False
        row = self.ledger_row(run)
        if row is not None and (row.ended_at is not None or row.has_client):
            return row.ended_at is None
        if self._runs[run].waiting is not None:
            return True
        return time.monotonic() - self._runs[run].known_since < DECISION_GRACE

    def _await_decision(self, run: str) -> None:
        known = self._runs[run]
        if known.decided_after != known.attempt:
            known.decided_after = known.attempt
            self._context.background.spawn(self._await_next_attempt(run, known.attempt))

    async def _await_next_attempt(self, run: str, attempt: int) -> None:
        """Wait until the client of a failed run ends it, or until the ranks of its next attempt are known."""
        known, context, pause = self._runs[run], self._context, DECISION_INTERVAL
        while not (known.has_ended or (known.attempt > attempt and known.known_by)):
            if context.leaving or context.external_end or run in context.registry.own_runs:
                break
            row = self.ledger_row(run)
            if row is not None and (row.attempts or 1) > known.attempt:
                self._on_attempt(run, {"attempt": row.attempts or 1})
            elif row is not None and row.ended_at is not None:
                self._end(run, row.state, row.ended_at, row.root_cause)
            elif row is None or not row.has_client:
                if known.waiting is not None:
                    context.registry.adopt(run)
                self._check_end(run, caught_up=True)
                if row is not None and not known.has_ended:
                    self._report_lost(row)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_DECISION_INTERVAL)

    def _end(self, run: str, state: RunStatus, at: float, cause: RootCause | None) -> None:
        known = self._runs[run]
        known.has_ended, known.latest = True, 0.0
        known.known_by.clear()
        known.active.clear()
        self._news.emit(events.RunEnded(pool=self._pool, run=run, state=state, root_cause=cause, at=at))

    def _saved_run(self, run: str) -> RunRow | None:
        """Return the end of a run as saved in the ledger.

        The ledger also has the order of the failures and the times of the tasks, which the agents do not know.
        """
        row = self.ledger_row(run)
        return row if row is not None and row.ended_at is not None else None

    def ledger_row(self, run: str) -> RunRow | None:
        """Return the row of a run in the ledger. None if there is no row or the ledger cannot be read."""
        try:
            return self._context.ledger.run(run)
        except LedgerError:  # without the ledger, the agents' reports describe the run
            return None
