"""Which runs have a pool's nodes, and which wait for some, and for what."""

from __future__ import annotations

from dataclasses import dataclass

from skyward_core.views.views import PoolView, RunView


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A run that goes on, or waits.

    Attributes:
        run: its id.
        name: its function's.
        waits: whether it waits.
        nodes: that it has; none while it waits.
        wants: how many nodes it wants, while it waits.
        only: which ones these must be; () for any.
        since: Unix time, since when it has its nodes or waits for them.
        free: how many nodes are free, while it waits.
        gone: those of the nodes that it wants that are not there.
        behind: id and name of the run that is before it; ("", "") where it is the first.
        holders: who has nodes that it could have: id, name, nodes, since.
        who: whose it is, where that is told.
    """

    run: str
    name: str
    waits: bool
    nodes: tuple[int, ...] = ()
    wants: int = 0
    only: tuple[int, ...] = ()
    since: float = 0.0
    free: int = 0
    gone: tuple[int, ...] = ()
    behind: tuple[str, str] = ("", "")
    holders: tuple[tuple[str, str, tuple[int, ...], float], ...] = ()
    who: str = ""


def queue_of(view: PoolView) -> list[QueueRow]:
    """The runs of a pool that have not ended, those that have nodes first, then those that wait, in their order."""
    every = tuple(node.index for node in view.nodes)
    there = {node.index for node in view.nodes if node.phase == "ready"}
    queued = {each.run for each in view.waiting}
    going = [run for run in view.runs.values() if run.state == "running" and run.id not in queued]
    going.sort(key=lambda run: run.opened_at)
    rows: list[QueueRow] = []
    behind: list[RunView] = []
    for run in going:
        nodes = _nodes(run, every)
        if run.kind == "broadcast" and not run.tasks and any(set(nodes) & set(row.nodes) for row in rows):
            behind.append(run)  # its calls wait on its nodes already
        else:
            rows.append(QueueRow(run.id, run.function, False, nodes, since=_began(run)))
    holders = tuple((row.run, row.name, row.nodes, row.since) for row in rows if row.nodes)
    taken = {node for row in rows for node in row.nodes}
    before = ("", "")
    for run in behind:
        rows.append(
            QueueRow(run.id, run.function, True, wants=len(_nodes(run, every)), since=run.opened_at,
                     free=len(there - taken), behind=before, holders=holders)
        )  # fmt: skip
        before = (run.id, run.function)
    for each in view.waiting:
        only = tuple(each.only)
        mine = tuple(
            (run, name, tuple(node for node in nodes if not only or node in only), since)
            for run, name, nodes, since in holders
        )
        rows.append(
            QueueRow(
                each.run,
                each.name,
                True,
                wants=each.nodes or len(every),
                only=only,
                since=each.since,
                free=len(there - taken),
                gone=tuple(node for node in only or every if node not in there),
                behind=before,
                holders=tuple(holder for holder in mine if holder[2]),
                who=each.who,
            )
        )
        before = (each.run, each.name)
    return rows


def _nodes(run: RunView, every: tuple[int, ...]) -> tuple[int, ...]:
    if run.kind == "broadcast":
        return run.nodes or every
    return tuple(
        sorted({task.node for task in run.tasks.values() if task.state == "running" and task.node >= 0})
    )


def _began(run: RunView) -> float:
    began = [task.began_at for task in run.tasks.values() if task.began_at is not None]
    return min(began, default=run.opened_at)
