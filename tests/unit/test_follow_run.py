"""Attribution of log lines to the run that a command follows."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.views.events import Event, QueuedRun, QueueNews, RankBegan, RankEnded
from skyward_core.views.pool_view import RunView
from skyward_tui.cli.commands.launched_and_attached_runs import PoolCommand
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.follow_run import MAX_BUFFERED_BYTES


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
