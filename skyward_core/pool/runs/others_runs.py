"""Runs of a pool that other clients dispatched: shown like our own, told by the agents in headers only."""

from __future__ import annotations

import time
from collections.abc import Container
from typing import TYPE_CHECKING

from ...model.errors import LedgerError
from ...model.outcome import Outcome, RootCause, Summary
from ...model.states import RunStatus
from ...store.ledger_rows import RunRow
from ...views import events as ev
from ...wire.value_checks import CALLS
from ..context import PoolContext
from ..links.link import Link
from ..news import News
from .outcome_frame import outcome_of
from .root_cause import root_cause

if TYPE_CHECKING:
    from ...wire.frame_types import AgentOutcome, OfRuns, Record, Remembered


class OthersRuns:
    """Turns what the agents tell of other clients' runs into events, and into the ledger where it lacks them."""

    def __init__(self, context: PoolContext, news: News) -> None:
        self._context = context
        self._pool = context.name
        self._news = news
        self._totals: dict[str, int] = {}
        self._outcomes: dict[str, dict[int, Outcome]] = {}
        self._returned: dict[
            str, dict[int, int]
        ] = {}  # tasks of a gather that returned while we were not there, by node
        self._ended: set[str] = set()
        self._latest: dict[str, float] = {}  # Unix time of the latest outcome

    def on_welcome(self, link: Link, ours: Container[str]) -> None:
        """Catch up with what an agent remembers, but for runs of ours."""
        for record in link.welcome.get("runs", ()):
            if record["run"] in ours:
                continue
            self._opened(record, link)
            if record["run"] not in self._ended:
                self._count_returned(record, link.node)
            for header in (*record["began"], *record.get("items", ())):
                self.on_frame(link, header)
            for header in record["outcomes"]:
                self._outcome(record["run"], header, link.time_of(header))
            self._check_end(record["run"], caught_up=True)
        self.ask_ledger(ours)

    def ask_ledger(self, ours: Container[str]) -> None:
        """End the runs that have ended by the ledger, once no node is left that could tell more of them: what a lost
        one, or one that came in its place, does not remember, nobody else will tell."""
        if any(not (link.up or link.gone) for link in self._context.links):
            return
        for run in self._totals.keys() - self._ended:
            if run not in ours and (written := self._written(run)) is not None:
                at = written.ended_at or time.time()
                self._end(run, written.state, at, written.root_cause)

    def _count_returned(self, record: Remembered, node: int) -> None:
        """An agent tells of tasks that returned in a number only: of those we have seen some before the link dropped.
        One that was started anew has forgotten others."""
        outcomes = self._outcomes[record["run"]].values()
        seen = sum(outcome.node == node and outcome.kind == "returned" for outcome in outcomes)
        counts = self._returned.setdefault(record["run"], {})
        counts[node] = max(counts.get(node, 0), record["returned"] - seen)

    def on_frame(self, link: Link, header: OfRuns) -> None:
        run, at = header["run"], link.time_of(header)
        match header["t"]:
            case "run":
                self._opened(header, link)
            case "began":
                self._emit(
                    ev.RankBegan(
                        pool=self._pool,
                        run=run,
                        index=header["i"],
                        rank=header["rank"],
                        node=header["node"],
                        at=at,
                    )
                )
            case "item":
                summary = Summary.from_wire(header["summary"])
                if summary is not None:
                    self._emit(
                        ev.ItemYielded(
                            pool=self._pool, run=run, index=header["i"], rank=header["rank"],
                            seq=header["seq"], summary=summary,
                        )
                    )  # fmt: skip
            case "outcome":
                self._outcome(run, header, at)
                self._check_end(run)

    def _opened(self, record: Record, link: Link) -> None:
        run, at = record["run"], link.time_of({"at": record["opened_at"]})
        if run in self._totals:
            return
        self._totals[run] = record["total"]
        self._outcomes[run] = {}
        self._news.records.opened(run, record["function"], record["kind"], record["total"], at)
        self._emit(
            ev.RunOpened(
                pool=self._pool, run=run, function=record["function"], kind=record["kind"],
                total=record["total"], at=at,
            )
        )  # fmt: skip

    def _outcome(self, run: str, header: AgentOutcome, at: float) -> None:
        outcomes = self._outcomes.setdefault(run, {})
        outcome = outcome_of(header)
        if outcome.index in outcomes or outcome.index >= self._totals.get(run, CALLS):
            return
        outcomes[outcome.index] = outcome
        self._latest[run] = max(at, self._latest.get(run, 0.0))
        self._emit(ev.RankEnded(pool=self._pool, run=run, outcome=outcome, at=at))
        self._news.records.outcome(run, outcome, header.get("log", {}))

    def _check_end(self, run: str, *, caught_up: bool = False) -> None:
        outcomes = self._outcomes[run]
        known = len(outcomes) + sum(self._returned.get(run, {}).values())
        if known < self._totals.get(run, known + 1) or run in self._ended:
            return
        at = self._latest.get(run, time.time())
        written = self._written(run) if caught_up else None
        state: RunStatus
        if written is not None:
            state, cause, at = written.state, written.root_cause, written.ended_at or at
        else:
            cause = root_cause(outcomes.values())
            done = all(outcome.kind == "returned" for outcome in outcomes.values())
            state = "done" if done else "failed" if cause else "cancelled"
            self._news.records.ended(run, state, at, cause)
        self._end(run, state, at, cause)

    def _end(self, run: str, state: RunStatus, at: float, cause: RootCause | None) -> None:
        self._ended.add(run)
        self._latest.pop(run, None)
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
