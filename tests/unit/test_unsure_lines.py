"""Lines of a rank of which nothing tells the run: a command that waits for nodes holds them until more is known."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.outcome import Outcome
from skyward_core.views.events import Event, QueuedRun, QueueNews, RankBegan, RankEnded
from skyward_core.views.views import RunView
from skyward_tui.commands.console import Console
from skyward_tui.commands.follow import UNSURE
from skyward_tui.commands.run import Job


def waits(*runs: str) -> QueueNews:
    told = [QueuedRun(run=run, name=run, nodes=1, only=[], since=0.0, who="me") for run in runs]
    return QueueNews(pool="p", waiting=told)


def begins(run: str, rank: int = 0) -> RankBegan:
    return RankBegan(pool="p", run=run, index=rank, rank=rank, node=rank)


def ends(run: str, rank: int = 0) -> RankEnded:
    return RankEnded(pool="p", run=run, outcome=Outcome(rank, rank, rank, "returned"))


def shown(capfd: pytest.CaptureFixture[str], *came: Event | str) -> list[str]:
    """What a command whose run is ``mine`` prints of what comes, where a text is a line of rank 0."""
    session: Any = SimpleNamespace(view=lambda key: SimpleNamespace(ranks_per_node=1))
    job = Job(session, Console(), "p", ours=False, keep=True)
    job.run = RunView("mine", "p", "f", "broadcast", 1, 0.0)
    job._own.add("mine")
    job.follower.prints = job.prints
    for each in came:
        if isinstance(each, str):
            job.follower.on_log(0, "out", 0, f"{each}\n".encode(), "")
        else:
            job.follower.on_event(each)
    over: Future[None] = Future()
    over.set_result(None)
    job.follower.wait(over)
    job.follower.finish()
    return capfd.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "before",
    [[begins("mine")], [], [begins("other"), ends("other")]],
    ids=["begun", "unheard", "after another"],
)
def test_ours_are_shown_though_the_head_says_later_that_we_wait_no_more(
    capfd: pytest.CaptureFixture[str], before: list[Event]
) -> None:
    assert shown(capfd, waits("mine"), *before, "hello", begins("mine"), waits(), ends("mine")) == [
        "r000| hello"
    ]


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


def test_what_is_held_has_a_bound(capfd: pytest.CaptureFixture[str]) -> None:
    large = "x" * (UNSURE // 4)
    said = shown(capfd, waits("mine"), "first", *[large] * 4, "last", begins("mine"), waits())
    assert said[-1] == "r000| last" and len(said) == 4 and "r000| first" not in said
