"""Past runs whose logs are on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, Summary
from skyward_core.store.ledger import Ledger
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.store.state_folder import ensure_pool_folder
from tests.support.ledger_runs import record_runs


def stored_run(
    ledger: Ledger,
    run: str,
    printed: Mapping[int, bytes],
    *,
    opened_at: float,
    function: str = "train",
    given: str = "",
    error: ErrorInfo | None = None,
    state: str = "done",
) -> Path:
    """Store a run of a separate pool with its ranks' standard output and ledger rows. Return the folder of its logs."""
    ranks = max(len(printed), 1)
    spec = {"provider": "local", "nodes": ranks}
    row = ledger.record_intent(f"token-{run}", f"pool-{run}", {"provider": "local"}, spec)
    folder = ensure_pool_folder(row.key) / "logs"
    folder.mkdir()
    for rank, data in printed.items():
        (folder / f"r{rank:03d}.out").write_bytes(data)
    record_runs(ledger, opened=[(row.token, run, function, "broadcast", ranks, opened_at)])
    if state == "running":
        return folder
    kind = "returned" if error is None else "raised"
    summary = Summary("str", given) if given else None
    outcomes = [
        (run, Outcome(rank, rank, rank, kind, 3.0, summary, error), {f"r{rank:03d}.out": [0, len(data)]})  # type: ignore[arg-type]
        for rank, data in (printed or {0: b""}).items()
    ]
    record_runs(ledger, outcomes=outcomes, ends=[(run, state, opened_at + 60, None)])
    ledger.record_teardown(row.token, Receipt(row.name, ranks, tuple(range(ranks)), (), 0.0))
    return folder
