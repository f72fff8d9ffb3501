"""Attribution of log lines to runs, choice of nodes, preemption notices, and steps of jobs."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause
from skyward_core.pool.gang_and_rank_setup import NodeGangState, busy_nodes, choose_nodes
from skyward_core.pool.preemption_notice_forwarding import PreemptionNotices
from skyward_core.views import events
from skyward_core.views.events import Event, QueuedRun, QueueNews, RankBegan, RankEnded
from skyward_core.views.job_file_steps import failure_lines, steps_by_node, steps_of_job
from skyward_core.views.pool_view import PoolView, RunView, apply
from skyward_core.views.recording_entries import parse_event
from skyward_tui.cli.commands.launched_and_attached_runs import PoolCommand
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.follow_run import MAX_BUFFERED_BYTES, PendingLaunchEvents, UnattributedLines
from skyward_tui.text.queue_trial_and_comparison_rows import queue_row_json, queue_rows, waiting_reason


def queue_news(*runs: str) -> QueueNews:
    reported = [QueuedRun(run=run, name=run, nodes=1, only=[], since=0.0, who="me") for run in runs]
    return QueueNews(pool="p", waiting=reported)


def rank_began(run: str, rank: int = 0) -> RankBegan:
    return RankBegan(pool="p", run=run, index=rank, rank=rank, node=rank)


def rank_ended(run: str, rank: int = 0) -> RankEnded:
    return RankEnded(pool="p", run=run, outcome=Outcome(rank, rank, rank, "returned"))


def command(*, joined: bool = True) -> PoolCommand:
    """Command on a pool that it joined or created."""
    session: Any = SimpleNamespace(view=lambda key: SimpleNamespace(ranks_per_node=1))
    job = PoolCommand(session, Console(), "p", ours=not joined, keep=True)
    if joined:
        job.follower.is_output_ours = job.is_output_ours
    return job


def feed(*arrivals: Event | str) -> None:
    """Send events to a command whose run is ``mine``. A text stands for a line of rank 0."""
    job = command()
    job.run = RunView("mine", "p", "f", "broadcast", 1, 0.0)
    job._own_run_ids.add("mine")
    for each in arrivals:
        if isinstance(each, str):
            job.follower.on_log(0, "out", 0, f"{each}\n".encode(), "")
        else:
            job.follower.on_event(each)
    over: Future[None] = Future()
    over.set_result(None)
    job.follower.wait(over)
    job.follower.finish()


def printed_lines(capfd: pytest.CaptureFixture[str], *arrivals: Event | str) -> list[str]:
    """Return the lines that such a command prints."""
    feed(*arrivals)
    return capfd.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "before",
    [[rank_began("mine")], [], [rank_began("other"), rank_ended("other")]],
    ids=["own rank began", "no event", "other run ended"],
)
def test_own_lines_are_shown_before_the_head_ends_the_wait(
    capfd: pytest.CaptureFixture[str], before: list[Event]
) -> None:
    assert printed_lines(
        capfd, queue_news("mine"), *before, "hello", rank_began("mine"), queue_news(), rank_ended("mine")
    ) == ["r000| hello"]


def test_lines_of_a_rank_with_unreported_begin_are_shown_at_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    assert printed_lines(capfd, queue_news("mine"), "hello", rank_ended("mine"), queue_news()) == ["r000| hello"]


def test_lines_of_the_run_before_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    received: list[Event | str] = [
        rank_began("other"), queue_news("mine"), "theirs", rank_began("third", 1), rank_ended("other"),
        rank_began("mine"), queue_news(), "ours",
    ]  # fmt: skip
    assert printed_lines(capfd, *received) == ["r000| ours"]


@pytest.mark.parametrize("expected", ["mine", ""])
@pytest.mark.parametrize("before", ["", "before"], ids=["first step", "second step"])
def test_lines_before_the_launch_reply_are_shown(capfd: pytest.CaptureFixture[str], expected: str, before: str) -> None:
    """The session has the run as soon as it begins, and the reply only after the whole launch."""
    job = command()
    if before:
        job.run = RunView(before, "p", "f", "broadcast", 1, 0.0, state="done")
        job._own_run_ids.add(before)
    launched: Future[RunView] = Future()
    job.follower.on_event(rank_began("mine"))
    job.follower.on_log(0, "out", 0, b"hello\n", expected)
    job.follower.on_log(1, "out", 0, b"theirs\n", "other")
    job.follower.on_event(rank_ended("mine"))
    launched.set_result(RunView("mine", "p", "f", "broadcast", 1, 0.0))
    assert job._wait_for_launch(launched).id == "mine"
    job.follower.finish()
    assert capfd.readouterr().out.splitlines() == ["r000| hello"]


def launching(ours: str, whose: str, *, joined: bool = True) -> PoolCommand:
    """Command that joined or created a pool, and gets the launch reply after two large pieces of output."""
    job = command(joined=joined)
    launched: Future[RunView] = Future()
    for line in ("first", "x" * (MAX_BUFFERED_BYTES // 2), "y" * (MAX_BUFFERED_BYTES // 2), "last"):
        job.follower.on_log(0, "out", 0, f"{line}\n".encode(), whose)
    launched.set_result(RunView(ours, "p", "f", "broadcast", 1, 0.0))
    job._wait_for_launch(launched)
    job.follower.finish()
    return job


@pytest.mark.parametrize("expected", ["mine", ""])
def test_lines_held_for_the_launch_reply_are_bounded(capfd: pytest.CaptureFixture[str], expected: str) -> None:
    launching("mine", expected)
    output = capfd.readouterr()
    assert output.out.splitlines()[-1] == "r000| last" and "first" not in output.out
    assert "is not shown here; read all of it with skyward-tui logs" in output.err


def test_dropped_lines_of_other_runs_are_not_reported(capfd: pytest.CaptureFixture[str]) -> None:
    launching("mine", "others")
    assert capfd.readouterr() == ("", "")


def test_all_lines_of_a_pool_made_by_the_command_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    launching("mine", "", joined=False)
    output = capfd.readouterr()
    assert [line[:11] for line in output.out.splitlines()] == [
        "r000| first",
        "r000| xxxxx",
        "r000| yyyyy",
        "r000| last",
    ]
    assert output.err == ""


def test_events_are_kept_while_lines_are_dropped() -> None:
    held = PendingLaunchEvents()
    held.buffer(rank_began("mine"))
    for _ in range(5):
        held.buffer_lines(0, "mine", "out", b"x" * (MAX_BUFFERED_BYTES // 2))
    held.buffer_lines(1, "mine", "out", b"y")
    held.buffer(rank_ended("mine"))
    stored = list(held)
    assert [type(each).__name__ for each in stored] == ["RankBegan", "tuple", "tuple", "tuple", "RankEnded"]
    assert held.truncated == {(0, "mine")}


def test_held_lines_are_bounded_and_the_loss_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    large = "x" * (MAX_BUFFERED_BYTES // 4)
    feed(queue_news("mine"), "first", *[large] * 4, "last", rank_began("mine"), queue_news())
    output = capfd.readouterr()
    lines = output.out.splitlines()
    assert lines[-1] == "r000| last" and len(lines) == 4 and "r000| first" not in lines
    assert "older output of rank 0 is not shown here" in output.err


def test_lines_held_at_the_end_of_the_command_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """The lines belong to the run on those nodes, and are in its log."""
    assert printed_lines(capfd, rank_began("other"), queue_news("mine"), "theirs") == []


def test_buffering_a_piece_takes_constant_time() -> None:
    asked = 0

    class Piece(bytes):
        def __len__(self) -> int:
            nonlocal asked
            asked += 1
            return super().__len__()

    lines, pieces = UnattributedLines(), 3000
    for number in range(pieces):
        lines.buffer(0, "out", Piece(b"x" * (MAX_BUFFERED_BYTES // (pieces // 2)) + b"%d" % number))
    assert asked <= 2 * pieces
    left = [data for _, data in lines.pop(0)]
    assert sum(len(data) for data in left) <= MAX_BUFFERED_BYTES and left[-1].endswith(b"2999")
    assert len(left) > pieces // 3 and lines.pop(0) == []


# Which nodes a run gets, and who it waits for: by tables.


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
        recovery = SimpleNamespace(replacements=SimpleNamespace(request_early=self.requested.append))
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
    job.session = SimpleNamespace(view=lambda key: view, subscribe=lambda *_, **__: None)  # type: ignore[assignment]
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
