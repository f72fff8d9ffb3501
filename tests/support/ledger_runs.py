"""Run rows that tests write to a ledger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skyward_core.model.outcomes_states_and_alerts import Outcome, RootCause
from skyward_core.store.ledger import Ledger


def record_runs(
    ledger: Ledger,
    opened: Iterable[tuple[str, str, str, str, int, float]] = (),
    outcomes: Iterable[tuple[str, Outcome, dict[str, list[int]]]] = (),
    ends: Iterable[tuple[str, str, float, RootCause | None]] = (),
    patience: float | None = None,
) -> None:
    """Record opened runs (token, run, function, kind, total, when) and ends of runs (run, state, when, root cause)."""
    runs: dict[str, dict[str, Any]] = {}
    for token, run, function, kind, total, at in opened:
        runs[run] = {"token": token, "function": function, "kind": kind, "total": total, "opened_at": at}
    for run, state, when, cause in ends:
        runs.setdefault(run, {}).update(state=state, ended_at=when, root_cause=cause)
    ledger.record_runs(runs, outcomes, patience)
