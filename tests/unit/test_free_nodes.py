"""Which nodes a run gets, and who it waits for: by tables."""

from __future__ import annotations

from typing import Any

import pytest

from skyward_core.pool.gang_setup import NodeGangState, busy_nodes, choose_nodes
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, apply
from skyward_core.views.recorded_events import parse_event
from skyward_core.views.stack_groups import format_ranges
from skyward_tui.text.queue_sweep_comparison_rows import queue_row_json, queue_rows, waiting_reason


def node(at: int, epoch: int, members: str = "", *, active: int = 0, kept: str = "", **more: bool) -> NodeGangState:
    """A node whose gang has had one run on as many ranks as it has nodes, or, with ``total``, on more."""
    named = tuple(map(int, members))
    run = {"active": active, "ended": 1 - active, "total": len(named) or 4, "kept": kept}
    there = more.pop("there", True)
    runs: Any = {f"r{epoch}": run} if there else {}
    return NodeGangState(at, there, epoch=epoch, members=named, runs=runs, **more)


IDLE = [node(at, 1) for at in range(4)]
PAIR = [node(0, 2, "01", active=1), node(1, 2, "01"), node(2, 1), node(3, 1)]
BROKEN = [node(0, 2, "01", active=1, broken=True), node(1, 2, "01", broken=True), node(2, 1), node(3, 1)]
SILENT = [node(0, 2, "01"), node(1, 2, "01", there=False), node(2, 1), node(3, 1)]
LOST = [node(0, 2, "01"), node(1, 2, "01", there=False, gone=True), node(2, 1), node(3, 1)]
TWO = [node(0, 3, "03"), node(1, 2, "12"), node(2, 2, "12"), node(3, 3, "03")]
KEPT = [node(0, 2, "01", kept="job"), node(1, 2, "01", kept="job"), node(2, 1), node(3, 1)]
BUSY = [node(at, 1, active=1) for at in range(4)]


@pytest.mark.parametrize(
    "nodes, wanted, got",
    [
        (IDLE, 2, (0, 1)),
        (IDLE, (1, 3), (1, 3)),
        (IDLE, 4, (0, 1, 2, 3)),
        (PAIR, 2, (2, 3)),  # node 1 has ended its part, but node 0 may need it
        (PAIR, 3, ()),
        (PAIR, (1, 2), ()),
        (BROKEN, 3, (0, 1, 2)),  # what runs there is about to end
        (SILENT, 3, ()),  # who knows what node 1 does; node 0 waits for it, perhaps
        (SILENT, 2, (2, 3)),
        (LOST, 3, (0, 2, 3)),
        (TWO, 2, (0, 3)),  # a gang that is there
        (TWO, 1, (0,)),
        (TWO, 3, (0, 1, 2)),
        (KEPT, 2, (2, 3)),
        (KEPT, 3, ()),
        (BUSY, 1, ()),
    ],
)
def test_a_run_gets_nodes_whose_gangs_have_nothing_to_do(
    nodes: list[NodeGangState], wanted: object, got: object
) -> None:
    assert choose_nodes(wanted, nodes) == got  # type: ignore[arg-type]


def test_what_is_kept_for_a_job_it_gets() -> None:
    assert choose_nodes((0, 1), KEPT, "job") == (0, 1)
    assert choose_nodes((0, 1), KEPT, "other") == ()


def test_a_run_on_all_nodes_waits_for_those_on_some_only() -> None:
    assert busy_nodes(BUSY, of_parts=True) == set() and busy_nodes(BUSY) == {0, 1, 2, 3}
    assert busy_nodes(PAIR, of_parts=True) == {0, 1}


def shown() -> PoolView:
    view = PoolView("p", key="p.1")
    apply(view, events.PoolOpened(pool="p", spec={"nodes": 4}, created_at=0.0, at=0.0))
    for at in range(4):
        apply(view, events.NodePhase(pool="p", node=at, phase="ready"))
    for run, total, nodes in (("a", 2, [0, 1]), ("b", 1, [2])):
        apply(
            view,
            events.RunOpened(pool="p", run=run, function=f"job-{run}", kind="broadcast", total=total, at=10.0),
        )
        apply(view, events.RunPlaced(pool="p", run=run, nodes=nodes))
    line = [
        events.QueuedRun(run="c", name="wide\x1b[2J", nodes=2, only=[], since=70.0, who="me"),
        events.QueuedRun(run="d", name="d", nodes=1, only=[1], since=80.0),
    ]
    told = events.QueueNews(pool="p", waiting=line)
    assert parse_event(events.to_json(told)) == told
    apply(view, told)
    return view


def test_who_waits_is_told_for_what_and_who_has_it() -> None:
    rows = queue_rows(shown())
    assert [(row.run, row.waits, row.nodes) for row in rows] == [
        ("a", False, (0, 1)),
        ("b", False, (2,)),
        ("c", True, ()),
        ("d", True, ()),
    ]
    assert waiting_reason(rows[0], 130.0) == ""
    assert waiting_reason(rows[2], 130.0) == (
        "waits for 2 nodes: 1 free, job-a (a) has nodes 0-1 for 2:00, job-b (b) has node 2 for 2:00"
    )
    assert waiting_reason(rows[3], 130.0).startswith("waits for node 1: 1 free; wide")
    assert waiting_reason(rows[3], 130.0).endswith("(c) is before it, job-a (a) has node 1 for 2:00")
    assert "\x1b" not in str(queue_row_json(rows[2], 130.0))


def test_a_run_whose_nodes_have_another_one_to_do_first_waits_too() -> None:
    view = shown()
    apply(view, events.QueueNews(pool="p", waiting=[]))
    apply(view, events.RunOpened(pool="p", run="e", function="all", kind="broadcast", total=4, at=90.0))
    row = queue_rows(view)[-1]
    assert (row.run, row.waits, row.wants) == ("e", True, 4)


def test_nodes_are_told_in_their_shortest_form() -> None:
    assert [format_ranges(each) for each in ((3,), (2, 0, 1), (0, 2, 3, 5))] == ["3", "0-2", "0,2-3,5"]
