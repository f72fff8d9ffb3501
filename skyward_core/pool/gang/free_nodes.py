"""Which nodes a run on some of the pool's nodes may have now: pure functions of what the nodes tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .keeper import NodesWanted

if TYPE_CHECKING:
    from ...wire.agent_frame_types import HereOfGang


class NodeHolds(NamedTuple):
    """What a node has.

    Attributes:
        node: its index.
        there: whether it answers.
        gone: whether it is gone for good.
        epoch: of its gang; 0 for none.
        broken: whether that takes no other run, and what it runs is about to end.
        members: that gang's nodes; () for all.
        runs: what became of the calls that the gang was given here, by run.
    """

    node: int
    there: bool
    gone: bool = False
    epoch: int = 0
    broken: bool = False
    members: tuple[int, ...] = ()
    runs: Mapping[str, HereOfGang] = {}


def held(nodes: Sequence[NodeHolds], job: str = "", *, of_parts: bool = False) -> set[int]:
    """The nodes that somebody's run has.

    A run has all nodes of its gang until the last of its ranks has ended: the others may wait for that one.

    Args:
        job: that asks; what is kept for its next step it may have.
        of_parts: of those that are on some of the nodes only.
    """
    found: set[int] = set()
    for epoch in {each.epoch for each in nodes if each.epoch}:
        gang = [each for each in nodes if each.epoch == epoch and not each.broken]
        if of_parts:
            gang = [each for each in gang if each.members]
        answer = [each for each in gang if each.there]
        silent = any(not each.there and not each.gone for each in gang)
        for run in {run for each in answer for run in each.runs}:
            told = [each.runs[run] for each in answer if run in each.runs]
            goes_on = any(one["active"] or one["kept"] not in ("", job) for one in told)
            # A node that does not answer just now may have ranks of it.
            ended, total = sum(one["ended"] for one in told), max(one["total"] for one in told)
            if goes_on or (silent and ended < total):
                found |= {each.node for each in gang}
                break
    return found


def choose(wanted: NodesWanted, nodes: Sequence[NodeHolds], job: str = "") -> tuple[int, ...]:
    """The nodes that a run gets now, in order; () where it has to wait.

    A gang that is there, and has as many nodes as are wanted, is taken again: its processes are. Else nodes that are in
    no such gang come first, so that others find theirs as they left it.

    Args:
        wanted: how many nodes, or which.
        job: that asks; what is kept for its next step it may have.
    """
    taken = held(nodes, job)
    free = {each.node: each for each in nodes if each.there and not each.gone and each.node not in taken}
    if not isinstance(wanted, int):
        return tuple(wanted) if all(node in free for node in wanted) else ()
    gangs = {each.members for each in free.values() if each.members and not each.broken}
    for members in sorted(gangs):
        is_whole = all(node in free and free[node].members == members for node in members)
        if len(members) == wanted and is_whole:
            return members
    if len(free) < wanted:
        return ()
    in_order = sorted(free.values(), key=lambda each: (bool(each.members) and not each.broken, each.node))
    return tuple(sorted(each.node for each in in_order[:wanted]))
