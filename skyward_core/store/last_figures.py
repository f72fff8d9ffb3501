"""The last figures before a run's failure, out of what was kept of its pool."""

from __future__ import annotations

from pathlib import Path

from ..views.last_figures import LATER, LastFigures, last_figures
from ..views.machines import MachineBook
from ..views.record_entries import feed, time_of
from ..views.views import PoolView, RunView
from .kept_figures import figures_near


def fill(run: RunView, folder: Path) -> None:
    """Have a run that has failed know what the machine of its root cause was at, as far as that was kept.

    Raises:
        OSError: it cannot be read.
    """
    if run.root_cause is None or run.figures:
        return
    task = next(
        (task for task in run.tasks.values() if task.rank == run.root_cause.rank and task.outcome), None
    )
    if (
        task is not None
        and (found := _before(folder, run, task.node, _failed_at(run, task.index))) is not None
    ):
        run.figures = {task.node: found}


def _failed_at(run: RunView, index: int) -> float:
    """About when a task failed: functions begin together, and the one that went on for longest ended with the run."""
    seconds = [outcome.seconds for outcome in run.outcomes()]
    own = run.tasks[index].outcome
    ended = run.opened_at if run.ended_at is None else run.ended_at
    return ended - (max(seconds) - own.seconds if own is not None and run.kind == "broadcast" else 0.0)


def _before(folder: Path, run: RunView, node: int, failed_at: float) -> LastFigures | None:
    view = PoolView(run.pool)
    view.machines = book = MachineBook()
    found: LastFigures | None = None
    for entry in figures_near(folder, failed_at):
        at = time_of(entry)
        if at is None or entry.get("k") != "figures" or entry.get("node") != node:
            continue
        if found is None and at > failed_at:
            found = last_figures(node, book.nodes.get(node), failed_at)
        if at > failed_at + LATER:
            break
        feed(view, entry)
    return found or last_figures(node, book.nodes.get(node), failed_at)
