"""Steps of a job on each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from skyward_core.views.outliers import median
from skyward_core.views.pool_view import PoolView, RunView, TaskView

LATE_FACTOR = 1.5  # times what most others took
MIN_LATE_SECONDS = 1.0  # seconds more than these


class StepOnNode(NamedTuple):
    """One step on one node.

    Attributes:
        run: the run that it is.
        name: what it is called.
        state: waiting, running, or how it ended there.
        seconds: how long it has taken so far, or took; None where it has not begun.
        late: whether it goes on while most others have long ended; the next step waits for this node then.
    """

    run: str
    name: str
    state: str
    seconds: float | None
    late: bool = False


def steps_of_job(pool: PoolView, run: RunView | None) -> list[RunView]:
    """The runs of the job that a run is a step of, in their order; none where it is of no job."""
    if run is None or not run.job:
        return []
    found = [each for each in list(pool.runs.values()) if each.job == run.job]
    return sorted(found, key=lambda each: each.opened_at)


def steps_by_node(steps: Sequence[RunView], now: float) -> Mapping[int, list[StepOnNode]]:
    """What each node has of each step.

    Args:
        now: Unix time in seconds.
    """
    found: dict[int, list[StepOnNode]] = {}
    for run in steps:
        tasks = sorted(list(run.tasks.values()), key=lambda task: task.index)
        ended = [task.outcome.seconds for task in tasks if task.outcome is not None]
        usual = median(ended) if 2 * len(ended) >= max(2, run.total) else None
        by_node: dict[int, list[TaskView]] = {node: [] for node in run.nodes}
        for task in tasks:
            by_node.setdefault(task.node, []).append(task)
        for node, own in by_node.items():
            seconds = [spent for task in own if (spent := _elapsed_seconds(task, now)) is not None]
            state, spent = _node_state(own), max(seconds, default=None)
            late = (
                state == "running"
                and usual is not None
                and spent is not None
                and spent > max(LATE_FACTOR * usual, usual + MIN_LATE_SECONDS)
            )
            found.setdefault(node, []).append(StepOnNode(run.id, run.function, state, spent, late))
    return found


def _node_state(tasks: Sequence[TaskView]) -> str:
    """Of a node: the worst of its ranks that have ended, unless one goes on."""
    states = [task.state for task in tasks]
    order = ("raised", "exited", "lost", "running", "collateral", "waiting", "returned")
    return next((state for state in order if state in states), "waiting")


def _elapsed_seconds(task: TaskView, now: float) -> float | None:
    if task.outcome is not None:
        return task.outcome.seconds
    return None if task.began_at is None else max(0.0, now - task.began_at)


def failure_lines(pool: PoolView, steps: Sequence[RunView], most: int = 3) -> list[str]:
    """Of a job that failed: which node at what, how it ended there, and the last lines that it printed.

    Args:
        most: lines.
    """
    failed = next((run for run in steps if run.root_cause is not None), None)
    if failed is None or failed.root_cause is None:
        return []
    cause = failed.root_cause
    node = next((task.node for task in failed.tasks.values() if task.rank == cause.rank), -1)
    lines = [f"n{node} {failed.function}: {cause.message or cause.outcome}"]
    ring = pool.logs.for_run(failed.id).rank(cause.rank)
    return [*lines, *(f"  {line}" for line in ring.lines(ring.end - most, ring.end) if line.strip())]
