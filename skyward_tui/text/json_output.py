"""JSON objects of runs, pools and files, for ``--json`` and the exports of the app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skyward_core.client.run_history import Receipt, RetainedResults
from skyward_core.model.outcomes_states_and_alerts import Summary
from skyward_core.model.output_files import FetchedFile, WrittenFile
from skyward_core.views.events import attempt_end_row
from skyward_core.views.pool_view import PoolView, RunView, TaskView
from skyward_core.views.result_comparison import find_disagreements
from skyward_core.views.sweep_trials import TrialRow, TrialTable


def run_json(run: RunView, receipt: Receipt | None = None) -> dict[str, Any]:
    """Return a run as JSON object. The outcome of a rank that has not ended is its state."""
    return {
        "run": run.id,
        "pool": run.pool,
        "function": run.function,
        "ranks": [_rank_json(task) for _, task in sorted(run.tasks.items())],
        "aggregate": run.aggregate(),
        "disagreements": [
            {"name": each.name, "usual": each.usual, "ranks": dict(each.ranks)} for each in find_disagreements(run)
        ],
        "attempt": run.attempt,
        "attempts": [attempt_end_row(each) for each in run.ended_attempts],
        "root_cause": run.root_cause.to_json() if run.root_cause else None,
        "figures": run.cause_metrics.to_json() if run.cause_metrics else None,
        "receipt": receipt.to_json() if receipt else None,
    }


def _rank_json(task: TaskView) -> dict[str, Any]:
    outcome = task.raw_outcome
    error = outcome.error if outcome else None
    yielded = {"items": task.items, "last": _value_json(task.raw_last_item)} if task.items else {}
    return {
        "rank": task.rank,
        "node": task.node,
        "outcome": task.state,
        "seconds": outcome.seconds if outcome else None,
        "value": _value_json(outcome.summary if outcome else None),
        **yielded,
        "error": {"type": error.type, "message": error.message, "traceback": error.traceback} if error else None,
    }


def _value_json(summary: Summary | None) -> Any:
    if summary is None or summary.is_json:
        return summary and summary.json
    parts = {"parts": summary.json} if isinstance(summary.json, dict) else {}
    return {"type": summary.type, "text": summary.text, "size": summary.size} | parts


def trials_json(found: TrialTable, rows: Sequence[TrialRow] | None = None) -> dict[str, Any]:
    """Return the trials of a sweep as JSON object.

    Args:
        found: The trials.
        rows: The trials in another order; None for the order of the combinations.
    """
    trials = []
    for row in found.rows if rows is None else rows:
        arguments = dict(zip(found.names, row.arguments, strict=True))
        outcome = {"outcome": "waiting"} if row.task is None else _rank_json(row.task)
        trials.append({"arguments": arguments, "run": row.run or None, "numbers": dict(row.numbers), **outcome})
    return {"trials": trials}


def pool_json(pool: PoolView) -> dict[str, Any]:
    """Return a pool as JSON object."""
    return {
        "name": pool.name,
        "key": pool.key,
        "created_at": pool.created_at,
        "ended_at": pool.ended_at,
        "state": pool.state,
        "start_error": pool.start_error,
        "provider": pool.provider,
        "nodes": len(pool.nodes),
        "nodes_ready": pool.nodes_ready,
        "price_hourly": None if pool.has_unknown_price else pool.price_hourly,
        "notices": [
            {"node": node.index, "kind": node.notice, "ends_at": node.notice_ends_at}
            for node in pool.nodes
            if node.notice
        ],
        "unfetched": pool.unfetched,
        "runs": [
            {"run": r.id, "function": r.function, "state": r.state, "metrics": pool.metrics.run_values(r.id)}
            for r in pool.runs.values()
        ],
    }


def retained_json(pool: str, results: RetainedResults) -> dict[str, Any]:
    """Return the retained results of an ended pool on one host as JSON object."""
    where = {"pool": pool, "node": results.machine.node, "address": results.machine.address}
    return where | {"runs": results.runs, "bytes": results.size, "until": results.until}


def file_json(file: WrittenFile) -> dict[str, Any]:
    """Return a file on a node as JSON object."""
    return {"path": file.path, "node": file.node, "size": file.size, "changed_at": file.changed_at}


def fetch_json(each: FetchedFile) -> dict[str, Any]:
    """Return the result of downloading a file as JSON object."""
    return file_json(each.file) | {"target": str(each.target), "is_new": each.is_new, "error": each.error}
