"""Lines of a rank of which nothing tells the run: a command that waits for nodes holds them until more is known."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.outcomes import Outcome
from skyward_core.views.events import Event, QueuedRun, QueueNews, RankBegan, RankEnded
from skyward_core.views.pool_view import RunView
from skyward_tui.cli.commands.run import PoolCommand
from skyward_tui.cli.console import Console
from skyward_tui.cli.follow_run import MAX_BUFFERED_BYTES, PendingLaunchEvents, UnattributedLines


def waits(*runs: str) -> QueueNews:
    told = [QueuedRun(run=run, name=run, nodes=1, only=[], since=0.0, who="me") for run in runs]
    return QueueNews(pool="p", waiting=told)


def begins(run: str, rank: int = 0) -> RankBegan:
    return RankBegan(pool="p", run=run, index=rank, rank=rank, node=rank)


def ends(run: str, rank: int = 0) -> RankEnded:
    return RankEnded(pool="p", run=run, outcome=Outcome(rank, rank, rank, "returned"))


def feed(*came: Event | str) -> None:
    """Have a command whose run is ``mine`` hear of things, where a text is a line of rank 0."""
    session: Any = SimpleNamespace(view=lambda key: SimpleNamespace(ranks_per_node=1))
    job = PoolCommand(session, Console(), "p", ours=False, keep=True)
    job.run = RunView("mine", "p", "f", "broadcast", 1, 0.0)
    job._own_run_ids.add("mine")
    job.follower.is_output_ours = job.is_output_ours
    for each in came:
        if isinstance(each, str):
            job.follower.on_log(0, "out", 0, f"{each}\n".encode(), "")
        else:
            job.follower.on_event(each)
    over: Future[None] = Future()
    over.set_result(None)
    job.follower.wait(over)
    job.follower.finish()


def shown(capfd: pytest.CaptureFixture[str], *came: Event | str) -> list[str]:
    """What such a command prints of what comes."""
    feed(*came)
    return capfd.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "before",
    [[begins("mine")], [], [begins("other"), ends("other")]],
    ids=["begun", "unheard", "after another"],
)
def test_ours_are_shown_though_the_head_says_later_that_we_wait_no_more(
    capfd: pytest.CaptureFixture[str], before: list[Event]
) -> None:
    assert shown(capfd, waits("mine"), *before, "hello", begins("mine"), waits(), ends("mine")) == ["r000| hello"]


def test_those_of_a_rank_whose_beginning_was_not_heard_are_shown_at_its_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert shown(capfd, waits("mine"), "hello", ends("mine"), waits()) == ["r000| hello"]


def test_those_of_the_run_that_was_there_before_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    came: list[Event | str] = [
        begins("other"),
        waits("mine"),
        "theirs",
        begins("third", 1),
        ends("other"),
        begins("mine"),
        waits(),
        "ours",
    ]
    assert shown(capfd, *came) == ["r000| ours"]


@pytest.mark.parametrize("told", ["mine", ""])
@pytest.mark.parametrize("before", ["", "before"], ids=["first", "second step"])
def test_what_comes_before_the_launch_is_answered_is_shown(
    capfd: pytest.CaptureFixture[str], told: str, before: str
) -> None:
    """The session puts it there as soon as the run is begun, and the answer only when all of the launch is done."""
    session: Any = SimpleNamespace(view=lambda key: SimpleNamespace(ranks_per_node=1))
    job = PoolCommand(session, Console(), "p", ours=False, keep=True)
    job.follower.is_output_ours = job.is_output_ours
    if before:
        job.run = RunView(before, "p", "f", "broadcast", 1, 0.0, state="done")
        job._own_run_ids.add(before)
    launched: Future[RunView] = Future()
    job.follower.on_event(begins("mine"))
    job.follower.on_log(0, "out", 0, b"hello\n", told)
    job.follower.on_log(1, "out", 0, b"theirs\n", "other")
    job.follower.on_event(ends("mine"))
    launched.set_result(RunView("mine", "p", "f", "broadcast", 1, 0.0))
    assert job._wait_for_launch(launched).id == "mine"
    job.follower.finish()
    assert capfd.readouterr().out.splitlines() == ["r000| hello"]


def launching(ours: str, whose: str, *, joined: bool = True) -> PoolCommand:
    """A command that joined a pool, or made one, to which the answer to its launch comes after two large pieces."""
    session: Any = SimpleNamespace(view=lambda key: SimpleNamespace(ranks_per_node=1))
    job = PoolCommand(session, Console(), "p", ours=not joined, keep=True)
    if joined:
        job.follower.is_output_ours = job.is_output_ours
    launched: Future[RunView] = Future()
    for line in ("first", "x" * (MAX_BUFFERED_BYTES // 2), "y" * (MAX_BUFFERED_BYTES // 2), "last"):
        job.follower.on_log(0, "out", 0, f"{line}\n".encode(), whose)
    launched.set_result(RunView(ours, "p", "f", "broadcast", 1, 0.0))
    job._wait_for_launch(launched)
    job.follower.finish()
    return job


@pytest.mark.parametrize("told", ["mine", ""])
def test_what_is_held_until_the_launch_is_answered_has_a_bound_and_what_it_cost_is_said(
    capfd: pytest.CaptureFixture[str], told: str
) -> None:
    launching("mine", told)
    said = capfd.readouterr()
    assert said.out.splitlines()[-1] == "r000| last" and "first" not in said.out
    assert "older lines are left out here (skyward-tui logs has them)" in said.err


def test_nothing_is_said_of_lines_of_others_that_were_let_go(capfd: pytest.CaptureFixture[str]) -> None:
    launching("mine", "others")
    assert capfd.readouterr() == ("", "")


def test_on_a_pool_of_our_own_nothing_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    launching("mine", "", joined=False)
    said = capfd.readouterr()
    assert [line[:11] for line in said.out.splitlines()] == [
        "r000| first",
        "r000| xxxxx",
        "r000| yyyyy",
        "r000| last",
    ]
    assert said.err == ""


def test_what_ranks_do_is_kept_while_their_lines_are_let_go() -> None:
    held = PendingLaunchEvents()
    held.buffer(begins("mine"))
    for _ in range(5):
        held.buffer_lines(0, "mine", "out", b"x" * (MAX_BUFFERED_BYTES // 2))
    held.buffer_lines(1, "mine", "out", b"y")
    held.buffer(ends("mine"))
    kept = list(held)
    assert [type(each).__name__ for each in kept] == ["RankBegan", "tuple", "tuple", "tuple", "RankEnded"]
    assert held.truncated == {(0, "mine")}


def test_what_is_held_has_a_bound(capfd: pytest.CaptureFixture[str]) -> None:
    large = "x" * (MAX_BUFFERED_BYTES // 4)
    said = shown(capfd, waits("mine"), "first", *[large] * 4, "last", begins("mine"), waits())
    assert said[-1] == "r000| last" and len(said) == 4 and "r000| first" not in said


def test_what_its_bound_cost_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    feed(waits("mine"), "first", "x" * MAX_BUFFERED_BYTES, "last", begins("mine"), waits())
    said = capfd.readouterr()
    assert said.out.splitlines() == ["r000| last"]
    assert "rank 0 printed more than is held" in said.err


def test_those_that_are_held_when_the_command_ends_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """Who leaves the queue has printed nothing: they are of the run that has the nodes, and in its log."""
    assert shown(capfd, begins("other"), waits("mine"), "theirs") == []


def test_holding_a_piece_takes_no_longer_the_more_are_held() -> None:
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
