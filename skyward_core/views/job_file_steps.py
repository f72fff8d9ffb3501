"""Progress of a job's steps on each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from skyward_core.views import group_pairs
from skyward_core.views.outliers_and_bands import median
from skyward_core.views.pool_view import PoolView, RunView, TaskView

LATE_FACTOR = 1.5  # multiple of the ended ranks' median duration after which a step counts as late
MIN_LATE_SECONDS = 1.0  # minimum seconds beyond the ended ranks' median duration for a step to count as late


class StepOnNode(NamedTuple):
    """State of one step of a job on one node.

    Attributes:
        run: Run of the step.
        name: Name of the step.
        state: waiting, running, or the outcome on the node.
        seconds: Duration so far. None if the step has not begun.
        late: Whether the step still runs long after most other nodes have finished. The next step then waits for this
            node.
    """

    run: str
    name: str
    state: str
    seconds: float | None
    late: bool = False


def steps_of_job(pool: PoolView, run: RunView | None) -> list[RunView]:
    """Return all runs of the job to which a run belongs, in order; empty if the run belongs to no job."""
    if run is None or not run.job:
        return []
    found = [each for each in list(pool.runs.values()) if each.job == run.job]
    return sorted(found, key=lambda each: each.opened_at)


def steps_by_node(steps: Sequence[RunView], now: float) -> Mapping[int, list[StepOnNode]]:
    """Return the state of each step of a job on each node.

    Args:
        steps: Runs of the job.
        now: Unix time in seconds.
    """
    found: dict[int, list[StepOnNode]] = {}
    for run in steps:
        tasks = sorted(list(run.tasks.values()), key=lambda task: task.index)
        ended = [task.outcome.seconds for task in tasks if task.outcome is not None]
        usual = median(ended) if 2 * len(ended) >= max(2, run.total) else None
        by_node: dict[int, list[TaskView]] = {node: [] for node in run.nodes}
        by_node |= group_pairs((task.node, task) for task in tasks)
        for node, node_tasks in by_node.items():
            seconds = [spent for task in node_tasks if (spent := _elapsed_seconds(task, now)) is not None]
            state, spent = _node_state(node_tasks), max(seconds, default=None)
            late = (
                state == "running"
                and usual is not None
                and spent is not None
                and spent > max(LATE_FACTOR * usual, usual + MIN_LATE_SECONDS)
            )
            found.setdefault(node, []).append(StepOnNode(run.id, run.function, state, spent, late))
    return found


def _node_state(tasks: Sequence[TaskView]) -> str:
    """Return the state of a run on a node: running if any rank is running, otherwise the worst outcome of the ranks."""
    states = [task.state for task in tasks]
    order = ("raised", "exited", "lost", "running", "collateral", "waiting", "returned")
    return next((state for state in order if state in states), "waiting")


def _elapsed_seconds(task: TaskView, now: float) -> float | None:
    if task.outcome is not None:
        return task.outcome.seconds
    return None if task.began_at is None else max(0.0, now - task.began_at)


def failure_lines(pool: PoolView, steps: Sequence[RunView], most: int = 3) -> list[str]:
    """Describe a failed job: the node, the step, the error, and the last lines of output.

    Args:
        pool: The pool.
        steps: Runs of the job.
        most: Number of output lines.
    """
    failed = next((run for run in steps if run.root_cause is not None), None)
    if failed is None or failed.root_cause is None:
        return []
    cause = failed.root_cause
    node = next((task.node for task in failed.tasks.values() if task.rank == cause.rank), -1)
    lines = [f"n{node} {failed.function}: {cause.message or cause.outcome}"]
    ring = pool.logs.for_run(failed.id).rank(cause.rank)
    return [*lines, *(f"  {line}" for line in ring.lines(ring.end - most, ring.end) if line.strip())]
