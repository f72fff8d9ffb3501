"""How often time alone changes what is shown of pools."""

from __future__ import annotations

import pytest

from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, apply
from skyward_tui.text.number_and_time_format import age, time_left
from skyward_tui.ui.refresh_and_repaint import refresh_token

T = 1_800_000_000.0


def beats(pool: PoolView, seconds: int = 10) -> int:
    """How many different ones there are in so many seconds."""
    return len({refresh_token([pool], T + second) for second in range(seconds)})


@pytest.fixture
def pool() -> PoolView:
    view = PoolView("p", created_at=T - 500)
    apply(view, events.PoolOpened(pool="p", spec={"nodes": 1, "worker": {"ranks_per_node": 1}}, created_at=T))
    apply(view, events.NodePhase(pool="p", node=0, phase="ready"))
    apply(view, events.PoolState(pool="p", state="up"))
    return view


def test_a_pool_at_rest_changes_every_ten_seconds_and_one_with_a_run_each_second(pool: PoolView) -> None:
    assert beats(pool) == 1 and beats(pool, 20) == 2
    apply(pool, events.RunOpened(pool="p", run="r", function="f", kind="broadcast", total=1, at=T))
    assert beats(pool) == 10
    apply(pool, events.RunEnded(pool="p", run="r", state="done", at=T))
    assert beats(pool) == 1


@pytest.mark.parametrize("state", ["starting", "stopping"])
def test_what_begins_or_ends_is_timed_by_the_second(pool: PoolView, state: str) -> None:
    apply(pool, events.PoolState(pool="p", state=state))  # type: ignore[arg-type]
    assert beats(pool) == 10


def test_a_machine_on_its_way_or_about_to_go_counts_and_one_that_is_gone_does_not(pool: PoolView) -> None:
    apply(pool, events.NodePhase(pool="p", node=0, phase="gone"))
    assert beats(pool) == 1
    apply(pool, events.NodePhase(pool="p", node=0, phase="connected"))
    assert beats(pool) == 10
    apply(pool, events.NodePhase(pool="p", node=0, phase="ready"))
    apply(pool, events.NodeNotice(pool="p", node=0, kind="terminate", ends_at=T + 90, at=T))
    assert beats(pool) == 10


def test_a_lease_counts_in_its_last_minutes(pool: PoolView) -> None:
    apply(pool, events.LeaseNews(pool="p", ends_at=T + 3600))
    assert beats(pool) == 1
    apply(pool, events.LeaseNews(pool="p", ends_at=T + 300))
    assert beats(pool) == 10


def test_what_is_over_is_at_rest_whatever_it_was_at(pool: PoolView) -> None:
    apply(pool, events.RunOpened(pool="p", run="r", function="f", kind="broadcast", total=1, at=T))
    apply(pool, events.PoolEnded(pool="p", receipt={"gone": [0]}, at=T))
    assert beats(pool) == 1


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "<1m"),
        (59, "<1m"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h 00m"),
        (7500, "2h 05m"),
        (270_000, "3d 03h"),
    ],
)
def test_what_is_at_rest_has_an_age_in_minutes(seconds: int, said: str) -> None:
    assert age(seconds) == said


def test_only_the_last_minutes_are_counted_down_by_the_second() -> None:
    assert (time_left(599), time_left(600), time_left(7500)) == ("9:59", "10m", "2h 05m")
