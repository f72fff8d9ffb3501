"""Choice of nodes for runs and the shown queue, preemption notices, and steps of jobs."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause
from skyward_core.pool.gang_and_rank_setup import NodeGangState, busy_nodes, choose_nodes
from skyward_core.pool.node_recovery import NodeReplacements
from skyward_core.pool.preemption_notices_and_early_replacements import PreemptionNotices
from skyward_core.pool.silent_and_missing_nodes import NodeRoster
from skyward_core.store.ledger import Ledger
from skyward_core.views import events
from skyward_core.views.job_file_steps import failure_lines, steps_by_node, steps_of_job
from skyward_core.views.pool_view import PoolView, RunView, apply
from skyward_core.views.recording_entries import parse_event
from skyward_tui.cli.commands.launched_and_attached_runs import PoolCommand
from skyward_tui.text.queue_trial_and_comparison_rows import queue_row_json, queue_rows, waiting_reason


def node(at: int, epoch: int, members: str = "", *, active: int = 0, job: str = "", **more: bool) -> NodeGangState:
    """Node whose gang has had one run on as many ranks as it has nodes, or on ``total`` ranks."""
    named = tuple(map(int, members))
    run = {"active": active, "ended": 1 - active, "total": len(named) or 4, "kept": job}
    there = more.pop("there", True)
    runs: Any = {f"r{epoch}": run} if there else {}
    return NodeGangState(at, there, epoch=epoch, members=named, runs=runs, **more)


IDLE = [node(at, 1) for at in range(4)]
PAIR = [node(0, 2, "01", active=1), node(1, 2, "01"), node(2, 1), node(3, 1)]
BROKEN = [node(0, 2, "01", active=1, broken=True), node(1, 2, "01", broken=True), node(2, 1), node(3, 1)]
SILENT = [node(0, 2, "01"), node(1, 2, "01", there=False), node(2, 1), node(3, 1)]
LOST = [node(0, 2, "01"), node(1, 2, "01", there=False, gone=True), node(2, 1), node(3, 1)]
TWO = [node(0, 3, "03"), node(1, 2, "12"), node(2, 2, "12"), node(3, 3, "03")]
KEPT = [node(0, 2, "01", job="job"), node(1, 2, "01", job="job"), node(2, 1), node(3, 1)]
BUSY = [node(at, 1, active=1) for at in range(4)]


@pytest.mark.parametrize(
    "nodes, requested, got",
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
def test_run_gets_nodes_of_idle_gangs(nodes: list[NodeGangState], requested: object, got: object) -> None:
    assert choose_nodes(requested, nodes) == got  # type: ignore[arg-type]


def test_job_gets_the_nodes_reserved_for_it() -> None:
    assert choose_nodes((0, 1), KEPT, "job") == (0, 1)
    assert choose_nodes((0, 1), KEPT, "other") == ()


def test_run_on_all_nodes_waits_for_runs_on_some_nodes() -> None:
    assert busy_nodes(BUSY, of_parts=True) == set() and busy_nodes(BUSY) == {0, 1, 2, 3}
    assert busy_nodes(PAIR, of_parts=True) == {0, 1}


def free_nodes_shown() -> PoolView:
    view = PoolView("p", key="p.1")
    apply(view, events.PoolOpened(pool="p", spec={"nodes": 4}, created_at=0.0, at=0.0))
    for at in range(4):
        apply(view, events.NodePhase(pool="p", node=at, phase="ready"))
    for run, total, nodes in (("a", 2, [0, 1]), ("b", 1, [2])):
        apply(view, events.RunOpened(pool="p", run=run, function=f"job-{run}", kind="broadcast", total=total, at=10.0))
        apply(view, events.RunPlaced(pool="p", run=run, nodes=nodes))
    line = [
        events.QueuedRun(run="c", name="wide\x1b[2J", nodes=2, only=[], since=70.0, who="me"),
        events.QueuedRun(run="d", name="d", nodes=1, only=[1], since=80.0),
    ]
    event = events.QueueNews(pool="p", waiting=line)
    assert parse_event(events.to_json(event)) == event
    apply(view, event)
    return view


def test_queued_run_names_missing_nodes_and_their_runs() -> None:
    rows = queue_rows(free_nodes_shown())
    assert [(row.run, row.waits, row.nodes) for row in rows] == [
        ("a", False, (0, 1)),
        ("b", False, (2,)),
        ("c", True, ()),
        ("d", True, ()),
    ]
    assert waiting_reason(rows[0], 130.0) == ""
    assert waiting_reason(rows[2], 130.0) == (
        "queued: needs 2 nodes, 1 free; job-a (a) holds nodes 0-1 for 2:00; job-b (b) holds node 2 for 2:00"
    )
    assert waiting_reason(rows[3], 130.0).startswith("queued: needs node 1, 1 free; behind wide")
    assert waiting_reason(rows[3], 130.0).endswith("(c); job-a (a) holds node 1 for 2:00")
    assert "\x1b" not in str(queue_row_json(rows[2], 130.0))


def test_run_behind_another_run_of_its_nodes_waits() -> None:
    view = free_nodes_shown()
    apply(view, events.QueueNews(pool="p", waiting=[]))
    apply(view, events.RunOpened(pool="p", run="e", function="all", kind="broadcast", total=4, at=90.0))
    row = queue_rows(view)[-1]
    assert (row.run, row.waits, row.wants) == ("e", True, 4)


# What a client makes of a notice, and to which nodes it hands it on.


class Stage:
    """Pool of four nodes, of which node 3 is down."""

    def __init__(self, *, observer: bool = False, alone: bool = False) -> None:
        self.view = PoolView("p")
        apply(self.view, events.PoolOpened(pool="p", spec={"nodes": 4}, created_at=0.0))
        self.warned: list[tuple[int, int, int]] = []
        self.messages: list[str] = []
        self.links = [self.link(node) for node in range(4)]
        self.links[3].up = False
        news = SimpleNamespace(emit=lambda event: apply(self.view, event), emit_warning=self.messages.append)
        self.requested: list[int] = []
        early = SimpleNamespace(request=self.requested.append)
        recovery = SimpleNamespace(replacements=SimpleNamespace(early=early))
        context: Any = SimpleNamespace(
            name="p", view=self.view, links=self.links, observer=observer, is_standalone=alone, news=news,
            recovery=recovery,
        )  # fmt: skip
        self.notices = PreemptionNotices(context)

    def link(self, node: int) -> Any:
        def warn(about: int, left: float) -> None:
            self.warned.append((node, about, round(left)))

        return SimpleNamespace(node=node, up=True, welcome={}, warn_preemption=warn)

    def hear(self, node: int, kind: Any = "terminate", left: float | None = 60.0) -> None:
        self.notices.on_notice(self.links[node], {"kind": kind, "left": left})


def test_preemption_notice_is_shown_once_and_sent_to_other_nodes() -> None:
    stage = Stage()
    stage.hear(1)
    assert stage.warned == [(0, 1, 60), (2, 1, 60)] and len(stage.messages) == 1 and stage.requested == [1]
    stage.hear(1, left=59.0)
    assert len(stage.warned) == 2 and len(stage.messages) == 1
    stage.hear(2, left=None)
    assert stage.warned[2:] == [(0, 2, 0), (1, 2, 0)] and "preempted now" in stage.messages[1]
    # Who was not there hears of both when it comes; who comes back says again what is known.
    stage.warned.clear()
    stage.notices.on_connect(stage.links[3])
    assert stage.warned == [(3, 1, 60), (3, 2, 0)]
    stage.warned.clear()
    stage.links[1].welcome = {"notices": [{"kind": "terminate", "left": 58.0}]}
    stage.notices.on_connect(stage.links[1])
    assert stage.warned == [(1, 2, 0)] and len(stage.messages) == 2


@pytest.mark.parametrize("of", [{"observer": True}, {"alone": True}])
def test_observer_and_standalone_pool_send_no_preemption_notice(of: dict[str, bool]) -> None:
    stage = Stage(**of)
    stage.hear(1)
    stage.notices.on_connect(stage.links[0])
    assert stage.view.nodes[1].is_preempted and stage.warned == []


def test_rebalance_recommendation_is_only_shown() -> None:
    stage = Stage()
    stage.hear(1, "rebalance", None)
    stage.notices.on_connect(stage.links[0])
    assert stage.view.nodes[1].notice == "rebalance" and stage.warned == []
    assert stage.messages == [
        "the machine of node 1 may be preempted soon (rebalance recommendation); no action is taken"
    ]
    stage.hear(1)
    ends_at = stage.view.nodes[1].notice_ends_at
    assert ends_at is not None and 59 < ends_at - time.time() <= 60 and len(stage.warned) == 2


@pytest.mark.parametrize("left", [-9e15, 9e15])
def test_preemption_time_far_in_past_or_future_is_bounded(left: float) -> None:
    stage = Stage()
    stage.hear(1, left=left)
    ends_at = stage.view.nodes[1].notice_ends_at
    assert ends_at is not None and -60 < ends_at - time.time() <= 24 * 3600


# Where each node is in a job's steps.

SPEC = {"provider": "local", "nodes": 4, "worker": {"ranks_per_node": 1}}


def pool() -> PoolView:
    view = PoolView("p")
    apply(view, events.PoolOpened(pool="p", spec=SPEC, created_at=0.0, at=0.0))
    for node in range(4):
        apply(view, events.NodePhase(pool="p", node=node, phase="ready", at=1.0))
    return view


def opened(view: PoolView, run: str, name: str, at: float, job: str = "j") -> RunView:
    apply(view, events.RunOpened(pool="p", run=run, function=name, kind="broadcast", total=4, at=at, job=job))
    for node in range(4):
        apply(view, events.RankBegan(pool="p", run=run, index=node, rank=node, node=node, at=at))
    return view.runs[run]


def end_call(view: PoolView, run: str, node: int, seconds: float, kind: str = "returned") -> None:
    error = None if kind == "returned" else ErrorInfo("Exit", "ended with status 3")
    outcome = Outcome(node, node, node, kind, seconds, error=error)  # type: ignore[arg-type]
    apply(view, events.RankEnded(pool="p", run=run, outcome=outcome))


def test_steps_of_each_node_have_their_times() -> None:
    view = pool()
    opened(view, "b", "setup", 20.0)
    opened(view, "a", "workdir", 10.0)
    opened(view, "x", "other", 15.0, job="")
    for node in range(4):
        end_call(view, "a", node, 2.0 + node)
    end_call(view, "b", 0, 1.0)
    steps = steps_of_job(view, view.runs["b"])
    assert [run.id for run in steps] == ["a", "b"]
    found = steps_by_node(steps, 23.5)
    assert [(step.name, step.state, step.seconds) for step in found[0]] == [
        ("workdir", "returned", 2.0), ("setup", "returned", 1.0)
    ]  # fmt: skip
    assert found[3][1].state == "running" and found[3][1].seconds == 3.5
    assert steps_of_job(view, view.runs["x"]) == [] and steps_of_job(view, None) == []


def test_node_that_others_wait_for_is_late() -> None:
    view = pool()
    opened(view, "b", "setup", 20.0)

    def late(now: float) -> list[bool]:
        found = steps_by_node(steps_of_job(view, view.runs["b"]), now)
        return [found[node][0].late for node in range(4)]

    assert late(100.0) == [False] * 4, "nobody has ended: nobody is late"
    end_call(view, "b", 0, 10.0)
    assert late(100.0) == [False] * 4, "one alone says little"
    end_call(view, "b", 1, 12.0)
    assert late(34.0) == [False] * 4
    assert late(37.0) == [False, False, True, True]
    end_call(view, "b", 2, 20.0)
    end_call(view, "b", 3, 40.0)
    assert late(99.0) == [False] * 4


def test_failed_step_shows_its_last_lines() -> None:
    view = pool()
    opened(view, "b", "setup", 20.0)
    for line in range(9):
        view.logs.feed(2, "out", f"line {line}\n".encode(), 21.0, "b", "r002")
    assert failure_lines(view, steps_of_job(view, view.runs["b"])) == []
    end_call(view, "b", 2, 1.0, "exited")
    cause = RootCause(2, "exited", "Exit", "ended with status 3")
    apply(view, events.RunEnded(pool="p", run="b", state="failed", root_cause=cause, at=22.0))
    text = failure_lines(view, steps_of_job(view, view.runs["b"]))
    assert text == ["n2 setup: ended with status 3", "  line 6", "  line 7", "  line 8"]


def test_run_placed_event_sets_the_job() -> None:
    view = pool()
    opened(view, "b", "setup", 20.0, job="")
    apply(view, events.RunPlaced(pool="p", run="b", nodes=[1, 2], job="j"))
    assert steps_of_job(view, view.runs["b"]) == [view.runs["b"]]


def test_following_a_job_continues_with_its_next_step() -> None:
    view, messages, statuses = pool(), list[str](), iter((0, 0, 0, 7))
    run = opened(view, "a", "setup", 10.0)
    job = PoolCommand.__new__(PoolCommand)
    job.pool = job.key = "p"
    subscribed = SimpleNamespace(result=lambda: None)
    job.session = SimpleNamespace(view=lambda key: view, subscribe=lambda *_, **__: subscribed)  # type: ignore[assignment]
    job.console = SimpleNamespace(note=messages.append)  # type: ignore[assignment]
    job.follower = SimpleNamespace(  # type: ignore[assignment]
        wait_until=lambda come, most: come(), on_event=None, on_log=None
    )
    job.wait_and_report = lambda run, detach=False: next(statuses)  # type: ignore[method-assign]
    job._finish = lambda status: status  # type: ignore[method-assign]
    assert job.resume(run) == 0 and messages == ["run a: setup on 4 ranks"], "it was the last one"
    run.more = True
    assert job.resume(run) == 1, "the job is not done"
    assert messages[2:] == [
        "the step after setup has not started: its client has exited, or it is queued (skyward-tui queue p)"
    ]
    opened(view, "x", "other", 11.0, job="k")
    opened(view, "b", "train", 12.0)
    del messages[:]
    assert job.resume(run) == 7 and messages == ["run a: setup on 4 ranks", "run b: train on 4 ranks"]


class Renter:
    """Provider that names its machines after the intents of their requests."""

    def __init__(self) -> None:
        self.rented: list[str] = []
        self.up = asyncio.Event()

    async def replace(self, pool: str, intent: str, node: int, *_: object) -> Machine:
        await self.up.wait()
        self.rented.append(intent)
        return Machine(intent, node, "", "")

    async def terminate(self, pool: str, machines: list[Machine]) -> None:
        for each in machines:
            self.rented.remove(each.id)


async def test_machine_requested_early_is_returned_after_the_run(ledger: Ledger) -> None:
    row = ledger.record_intent("t", "p", {"provider": "fake"}, {})
    ledger.record_discovered(row.token, [Machine("first", 0, "", "")])
    renter, run = Renter(), SimpleNamespace(may_restart=True)
    context: Any = SimpleNamespace(
        name="p", token=row.token, ledger=ledger, provider=renter, observer=False, news=None,
        options=SimpleNamespace(on_loss="restart"), registry=SimpleNamespace(runs={"r": run, "s": run}),
    )  # fmt: skip
    context.roster = roster = NodeRoster(context)
    early = NodeReplacements(context).early
    for up_first in (True, False):
        context.registry.runs = {"r": run}
        early.request(0)
        if up_first:
            renter.up.set()
            await roster.early_requests[0]
        early.return_unneeded()
        assert 0 in roster.early_requests, "the run may restart"
        context.registry.runs = {}
        early.return_unneeded()
        renter.up.set()
        await roster.early_returns[0]
        assert (renter.rented, roster.early_requests, ledger.replacements(row.token)) == ([], {}, [])
        renter.up.clear()
    context.registry.runs = {"r": run}
    early.request(0)
    context.registry.runs = {}
    early.return_unneeded()
    await roster.stop_replacing()  # the pool ends before the machine is there: its teardown must find all machines
    assert roster.early_returns[0].cancelled()
