"""Runs of a pool that other clients dispatched: shown like our own, told by the agents in headers only."""

from __future__ import annotations

import time
from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING

from ...model.errors import LedgerError
from ...model.outcome import Outcome, RootCause, Summary
from ...model.states import RunKind, RunStatus
from ...store.ledger_rows import RunRow
from ...views import events as ev
from ...wire.value_checks import CALLS
from ..context import PoolContext
from ..links.link import Link
from ..news import News
from .outcome_frame import outcome_of
from .root_cause import end_of
from .unclaimed import Unclaimed

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentOutcome, OfRuns, QueuedKeys, Record, Remembered


class OthersRuns:
    """Turns what the agents tell of other clients' runs into events, and into the ledger where it lacks them.

    Attributes:
        stops: whether ranks that wait for lost ones are stopped, though this client may only look.
    """

    def __init__(self, context: PoolContext, news: News) -> None:
        self._context = context
        self._pool = context.name
        self._news = news
        self._totals: dict[str, int] = {}
        self._outcomes: dict[str, dict[int, Outcome]] = {}
        self._returned: dict[
            str, dict[int, int]
        ] = {}  # tasks of a gather that returned while we were not there, by node
        self._maps: dict[str, dict[int, int]] = {}  # items that are done, by rank
        self._map_seconds: dict[str, dict[int, float]] = {}
        self._ended: set[str] = set()
        self._latest: dict[str, float] = {}  # Unix time of the latest outcome
        self._unclaimed = Unclaimed(context)
        self.stops = False

    def on_welcome(self, link: Link, ours: Container[str]) -> None:
        """Catch up with what an agent remembers, but for runs of ours."""
        for record in link.welcome.get("runs", ()):
            if record["run"] in ours:
                continue
            self._opened(record, link)
            self._unclaimed.told(link, record)
            if record["run"] not in self._ended:
                self._count_returned(record, link.node)
            for header in (*record["began"], *record.get("items", ())):
                self.on_frame(link, header)
            for header in record["outcomes"]:
                self._outcome(record["run"], header, link.time_of(header))
            self._check_end(record["run"], caught_up=True)
            if record.get("over") and record["run"] in self._maps:
                self._end_map(record["run"])
        self.ask_ledger(ours)

    def has_forgotten(self, link: Link) -> bool:
        """Whether the agent that greets is another one, and knows nothing of a run that the one before had told of."""
        return self._unclaimed.greeted(link)

    def ask_ledger(self, ours: Container[str]) -> None:
        """End the runs that have ended by the ledger, once no node is left that could tell more of them: what a lost
        one, or one that came in its place, does not remember, nobody else will tell."""
        if any(not (link.up or link.gone) for link in self._context.links):
            return
        for run in self._totals.keys() - self._ended:
            if run not in ours and (written := self._written(run)) is not None:
                at = written.ended_at or time.time()
                self._end(run, written.state, at, written.root_cause)
        for row in self._unclaimed.find(ours):
            if row.run not in self._ended:
                self._tell_lost(row)

    def go_on(self, ours: Container[str]) -> bool:
        """Whether a run is under way, as far as agents and the ledger tell."""
        return any(run not in ours for run in self._totals.keys() - self._ended) or self._unclaimed.go_on(
            ours
        )

    def _tell_lost(self, row: RunRow) -> None:
        """Tell what was lost of a run while nobody was there; the ranks that wait for lost ones are stopped."""
        run, context = row.run, self._context
        if row.kind == "map":
            return self._tell_lost_map(row)
        written = self._written_outcomes(run)
        known = self._outcomes.get(run, {}) | written
        returned = sum(self._returned.get(run, {}).values())
        lost = list(self._unclaimed.lost(row, known, returned))
        is_over = len(known) + len(lost) + returned == row.total
        if not (is_over or lost or any(each.kind == "lost" for each in known.values())):
            return
        if run not in self._totals:
            self._begin(run, row.function, row.kind, row.total, row.opened_at, row.nodes or ())
        for outcome in written.values():
            self._enter(run, outcome, row.opened_at)
        if returned and lost:  # which tasks these are nobody knows
            cause, now = RootCause.of(lost[0]), time.time()
            self._news.records.ended(run, "failed", now, cause)
            return self._end(run, "failed", now, cause)
        for outcome in lost:
            self._enter(run, outcome, time.time())
            self._news.records.outcome(run, outcome, {})
        may_stop = context.options.fail_fast and (self.stops or not context.observer)
        if not is_over and row.kind == "broadcast" and may_stop:
            for link in context.links:
                stop = {"t": "stop", "run": run, "why": "fail-fast", "grace": context.options.grace}
                link.send(stop | {"break": link.epoch})
        self._check_end(run)

    def _tell_lost_map(self, row: RunRow) -> None:
        """Nobody gives a map its items any more."""
        if self._unclaimed.goes_on(row.run):
            return
        if row.run not in self._totals:
            self._begin(row.run, row.function, row.kind, row.total, row.opened_at, ())
        cause, now = (
            RootCause(-1, "lost", "PoolError", "its client is gone, who gave it its items"),
            time.time(),
        )
        self._news.records.ended(row.run, "failed", now, cause)
        self._end(row.run, "failed", now, cause)

    def _written_outcomes(self, run: str) -> dict[int, Outcome]:
        try:
            return {outcome.index: outcome for outcome, _ in self._context.ledger.outcomes(run)}
        except LedgerError:  # what agents remember has to do
            return {}

    def _count_returned(self, record: Remembered, node: int) -> None:
        """An agent tells of tasks that returned in a number only: of those we have seen some before the link dropped.
        One that was started anew has forgotten others."""
        outcomes = self._outcomes[record["run"]].values()
        seen = sum(outcome.node == node and outcome.kind == "returned" for outcome in outcomes)
        counts = self._returned.setdefault(record["run"], {})
        counts[node] = max(counts.get(node, 0), record["returned"] - seen)

    def on_frame(self, link: Link, header: OfRuns) -> None:
        if header["t"] == "want":
            return  # its own client has the values
        run, at = header["run"], link.time_of(header)
        match header["t"]:
            case "run":
                self._opened(header, link)
                self._unclaimed.knows(link, run)
                if header.get("over") and run in self._maps:
                    self._end_map(run)
            case "began":
                self._emit(
                    ev.RankBegan(
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
                        ev.ItemYielded(
                            pool=self._pool, run=run, index=header["i"], rank=header["rank"],
                            seq=header["seq"], summary=summary,
                        )
                    )  # fmt: skip
            case "outcome" if run in self._maps and header["kind"] == "returned":
                self._count(run, header)
            case "outcome":
                self._outcome(run, header, at)
                self._unclaimed.ended(link, run)
                self._check_end(run)

    def _opened(self, record: Record, link: Link) -> None:
        run, at = record["run"], link.time_of({"at": record["opened_at"]})
        nodes = tuple(record.get("nodes", ()))
        job, more = record.get("job", ""), record.get("more", False)
        if run in self._totals:
            if nodes or job:  # it has waited for them
                self._emit(
                    ev.RunPlaced(pool=self._pool, run=run, nodes=list(nodes), at=at, job=job, more=more)
                )
            return
        self._news.records.opened(run, record["function"], record["kind"], record["total"], at)
        if nodes:
            self._news.records.placed(run, nodes)
        self._begin(
            run, record["function"], record["kind"], record["total"], at, nodes, job,
            more=more, width=record.get("width", 1),
        )  # fmt: skip

    def waits(self, link: Link, queued: QueuedKeys) -> None:
        """A run waits for nodes, as the head tells."""
        context = self._context
        if queued["run"] not in self._totals:
            total = (queued["nodes"] or len(context.links)) * context.ranks_per_node
            since = link.by_our_clock(queued["since"])
            self._begin(queued["run"], queued["name"], "broadcast", total, since, ())

    def _begin(
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
        width: int = 1,
    ) -> None:
        self._totals[run] = total
        self._outcomes[run] = {}
        if kind == "map":
            self._maps[run] = {}
        self._emit(
            ev.RunOpened(
                pool=self._pool,
                run=run,
                function=function,
                kind=kind,
                total=total,
                at=at,
                job=job,
                more=more,
                width=width,
            )
        )
        if nodes:
            self._emit(ev.RunPlaced(pool=self._pool, run=run, nodes=list(nodes), at=at))

    def _outcome(self, run: str, header: AgentOutcome, at: float) -> None:
        outcome = outcome_of(header)
        if run in self._maps:  # a row for each rank
            outcome = replace(outcome, index=outcome.rank, items=self._maps[run].get(outcome.rank, 0))
        if self._enter(run, outcome, at):
            self._news.records.outcome(run, outcome, header.get("log", {}))

    def _count(self, run: str, header: AgentOutcome) -> None:
        """A rank has done some more items of a map."""
        done = self._maps[run]
        done[header["rank"]] = done.get(header["rank"], 0) + header.get("items", 0)
        took = self._map_seconds.setdefault(run, {})
        took[header["rank"]] = took.get(header["rank"], 0.0) + header.get("seconds", 0.0)
        summary = Summary.from_wire(header.get("summary"))
        if summary is not None and done[header["rank"]]:
            self._emit(
                ev.ItemYielded(
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
                self._enter(run, row, time.time())
        self._check_end(run)

    def _enter(self, run: str, outcome: Outcome, at: float) -> bool:
        """Tell of an outcome, the first time; says whether it was that."""
        outcomes = self._outcomes.setdefault(run, {})
        if outcome.index in outcomes or outcome.index >= self._totals.get(run, CALLS):
            return False
        outcomes[outcome.index] = outcome
        self._latest[run] = max(at, self._latest.get(run, 0.0))
        self._emit(ev.RankEnded(pool=self._pool, run=run, outcome=outcome, at=at))
        return True

    def _check_end(self, run: str, *, caught_up: bool = False) -> None:
        outcomes = self._outcomes[run]
        known = len(outcomes) + (sum(self._returned.get(run, {}).values()) if run not in self._maps else 0)
        if known < self._totals.get(run, known + 1) or run in self._ended:
            return
        at = self._latest.get(run, time.time())
        written = self._written(run) if caught_up else None
        state: RunStatus
        if written is not None:
            state, cause, at = written.state, written.root_cause, written.ended_at or at
        else:
            state, cause = end_of(outcomes.values())
            self._news.records.ended(run, state, at, cause)
        self._end(run, state, at, cause)

    def _end(self, run: str, state: RunStatus, at: float, cause: RootCause | None) -> None:
        self._ended.add(run)
        self._latest.pop(run, None)
        self._unclaimed.forget(run)
        self._emit(ev.RunEnded(pool=self._pool, run=run, state=state, root_cause=cause, at=at))

    def _written(self, run: str) -> RunRow | None:
        """How a run ended before we came, by who was there: agents remember neither the order of its failures nor when
        each task returned."""
        try:
            row = self._context.ledger.run(run)
        except LedgerError:  # what agents remember has to do
            return None
        return row if row is not None and row.ended_at is not None else None

    def _emit(self, event: ev.Event) -> None:
        self._news.emit(event)
