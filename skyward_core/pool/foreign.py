"""Runs of a pool that other clients dispatched: shown like our own, told by the agents in headers only."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .. import events as ev
from ..outcome import Outcome, Summary
from ..wire import Header
from .cause import root_cause
from .run import outcome_of

if TYPE_CHECKING:
    from .lifecycle import Pool


class ForeignRuns:
    """Turns what the agents tell of other clients' runs into events, and into the ledger where it lacks them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._totals: dict[str, int] = {}
        self._outcomes: dict[str, dict[int, Outcome]] = {}
        self._returned: dict[
            str, dict[int, int]
        ] = {}  # tasks of a gather that had returned before we came, by node
        self._ended: set[str] = set()

    def on_welcome(self, welcome: Header) -> None:
        """Catch up with what an agent remembers."""
        for record in welcome.get("runs", ()):
            if record["run"] in self._pool.runs:
                continue
            self._opened(record)
            if record["run"] not in self._ended:
                self._returned.setdefault(record["run"], {})[welcome["node"]] = record["returned"]
            for header in record["began"]:
                self.on_frame(header)
            for header in record["outcomes"]:
                self.on_frame(header)
            self._check_end(record["run"])

    def on_frame(self, header: Header) -> None:
        run = header["run"]
        match header["t"]:
            case "run":
                self._opened(header)
            case "began":
                self._emit(
                    ev.RankBegan(
                        pool=self._pool.name,
                        run=run,
                        index=header["i"],
                        rank=header["rank"],
                        node=header["node"],
                    )
                )
            case "item":
                summary = Summary.from_wire(header["summary"])
                if summary is not None:
                    self._emit(
                        ev.ItemYielded(
                            pool=self._pool.name, run=run, index=header["i"], rank=header["rank"],
                            seq=header["seq"], summary=summary,
                        )
                    )  # fmt: skip
            case "outcome":
                self._outcome(run, header)

    def _opened(self, record: dict[str, Any]) -> None:
        run = record["run"]
        if run in self._totals:
            return
        self._totals[run] = record["total"]
        self._outcomes[run] = {}
        self._pool.records.opened(
            run, record["function"], record["kind"], record["total"], record["opened_at"]
        )
        self._emit(
            ev.RunOpened(
                pool=self._pool.name, run=run, function=record["function"], kind=record["kind"],
                total=record["total"], at=record["opened_at"],
            )
        )  # fmt: skip

    def _outcome(self, run: str, header: Header) -> None:
        outcomes = self._outcomes.setdefault(run, {})
        outcome = outcome_of(header)
        if outcome.index in outcomes:
            return
        outcomes[outcome.index] = outcome
        self._emit(ev.RankEnded(pool=self._pool.name, run=run, outcome=outcome))
        self._pool.records.outcome(run, outcome, header.get("log", {}))
        self._check_end(run)

    def _check_end(self, run: str) -> None:
        outcomes = self._outcomes[run]
        known = len(outcomes) + sum(self._returned.get(run, {}).values())
        if known >= self._totals.get(run, known + 1) and run not in self._ended:
            self._ended.add(run)
            cause = root_cause(outcomes.values())
            done = all(outcome.kind == "returned" for outcome in outcomes.values())
            state = "done" if done else "failed" if cause else "cancelled"
            self._pool.records.ended(run, state, time.time(), cause)
            self._emit(ev.RunEnded(pool=self._pool.name, run=run, state=state, root_cause=cause))

    def _emit(self, event: ev.Event) -> None:
        self._pool.emit(event)
