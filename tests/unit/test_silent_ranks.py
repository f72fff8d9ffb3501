"""Detection of ranks that are silent for unusually long, also across clock changes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skyward_core.pool.agent_link import ClockSteps
from skyward_core.views import events
from skyward_core.views.log_buffers_and_rank_activity import MAX_SILENCE, MIN_SIGNS, MIN_SILENCE, Clocks, PoolActivity
from tests.support.fake_session import FakeSession
from tests.support.pool_parts import World, attached, intended

BEGAN = 1000.0


@pytest.mark.parametrize(
    ("pauses", "silent", "is_reported"),
    [
        # (how long it was quiet between signs, how long it has been now, whether that is told of)
        ([], MAX_SILENCE - 1, False),  # nothing was ever heard: it may load, or compile
        ([], MAX_SILENCE + 1, True),
        ([5], MIN_SILENCE + 1, False),  # next to nothing is known
        ([5] * 10, MIN_SILENCE - 1, False),
        ([5] * 10, MIN_SILENCE + 1, True),
        ([20] * 10, 59, False),
        ([20] * 10, 61, True),
        ([600] * 10, MAX_SILENCE - 1, False),  # a line an epoch
        ([600] * 10, MAX_SILENCE + 1, True),
        ([5] * 10 + [40], 119, False),  # it validates now and then
        ([5] * 10 + [40] + [5] * 40, 40, True),  # as it did once, long ago
        ([900] + [5] * 80, 40, True),  # a compilation at the beginning
        ([0.1] * 1000, MIN_SILENCE + 1, True),  # a flood is a sign now and then
    ],
)
def test_unusual_silence_is_learned_from_earlier_pauses(pauses: list[float], silent: float, is_reported: bool) -> None:
    rhythms, at = PoolActivity(), BEGAN
    for pause in [0.0, *pauses] if pauses else []:
        at += pause
        rhythms.record_activity("run", 3, at)
    found = rhythms.unusual_silence("run", 3, BEGAN, at + silent)
    assert (found is not None) is is_reported
    assert found is None or found == pytest.approx(silent)
    assert rhythms.unusual_silence("other", 3, at, at + MIN_SILENCE) is None


@given(st.floats(1, 1000), st.integers(MIN_SIGNS, 20), st.floats(0, 400))
def test_rank_is_silent_after_three_usual_pauses_within_fixed_limits(pause: float, signs: int, silent: float) -> None:
    rhythms = PoolActivity()
    for sign in range(signs + 1):
        rhythms.record_activity("run", 3, BEGAN + sign * pause)
    allowed = min(300, max(30, 3 * pause))
    assume(abs(silent - allowed) > 0.01)
    found = rhythms.unusual_silence("run", 3, BEGAN, BEGAN + signs * pause + silent)
    assert (found is not None) is (silent > allowed)


@given(st.lists(st.floats(0, 1e9)), st.floats(0, 1e9))
def test_rank_heard_just_now_is_not_silent_at_any_clock(times: list[float], now: float) -> None:
    rhythms = PoolActivity()
    for at in times:
        rhythms.record_activity("run", 0, at)
    rhythms.record_activity("run", 0, now)
    assert rhythms.unusual_silence("run", 0, 0.0, now + MIN_SILENCE) is None


@pytest.mark.parametrize(
    ("share", "is_reported"),
    [
        (0.0, True),
        (0.01, True),
        (0.5, False),
        (40.0, False),
    ],  # of a processor; threads of a framework that waits take some
)
def test_rank_that_uses_cpu_time_is_not_silent(share: float, is_reported: bool) -> None:
    rhythms, at, spent = PoolActivity(), BEGAN, 3.0
    for _ in range(600):  # as agents tell it
        at += 2.0
        spent += 2.0 * share
        rhythms.record_cpu_time(3, spent, at)
        rhythms.record_cpu_time(3, spent, at + 0.01)  # another ping
    assert (rhythms.unusual_silence("run", 3, BEGAN, at) is not None) is is_reported
    rhythms.record_cpu_time(3, 0.0, at + 2)  # another process
    assert (rhythms.unusual_silence("run", 3, BEGAN, at + 2) is not None) is is_reported


def test_ranks_paused_at_a_breakpoint_are_not_silent() -> None:
    session = FakeSession()
    view = session.pool("llama-ft", 2)
    run = session.open_run(view)
    at = session.now
    for _ in range(10):
        at += 5
        for rank in (0, 1):
            view.activity.record_activity(run.id, rank, at)
    session.emit(view, events.RankPhase(pool=view.name, rank=1, phase="paused", at=at))
    assert [view.activity.unusual_silence(run.id, rank, BEGAN, at + 3600) for rank in (0, 1)] == [None, None]
    at += 3600
    session.emit(view, events.RankPhase(pool=view.name, rank=1, phase="running", at=at))
    assert view.activity.unusual_silence(run.id, 0, BEGAN, at + MIN_SILENCE - 1) is None
    for rank in (0, 1):
        view.activity.record_activity(run.id, rank, at + 5)
    assert [view.activity.unusual_silence(run.id, rank, BEGAN, at + 6 + MIN_SILENCE) for rank in (0, 1)] == [
        MIN_SILENCE + 1
    ] * 2
    session.emit(view, events.RankPhase(pool=view.name, rank=1, phase="paused", at=at + 6))
    session.emit(view, events.NodePhase(pool=view.name, node=1, phase="gone", at=at + 7))
    assert view.activity.unusual_silence(run.id, 0, BEGAN, at + 8 + MIN_SILENCE) == MIN_SILENCE + 1, (
        "it stands nowhere any more"
    )
    assert view.rank_phases == {}


HOUR = 3600.0


class OurClock:
    """Clock of the client, and its knowledge of a node's clock."""

    def __init__(self) -> None:
        self.at, self.known = BEGAN + 1e6, 0.0
        self.rhythms = PoolActivity()
        self.rhythms.clocks = Clocks(lambda: self.at, lambda rank: self.known)

    def hears(self, node_clock: float, source: str = "r003", *, ago: float = 0.0) -> None:
        """Record a line that arrives now from a node whose clock is behind by the given seconds."""
        self.rhythms.record_activity("run", 3, self.at - node_clock - ago, source)

    def quiet(self) -> float | None:
        return self.rhythms.unusual_silence("run", 3, BEGAN, self.at)


@pytest.mark.parametrize("behind", [HOUR, -HOUR, 0.0])
def test_rank_on_a_node_with_a_wrong_clock_is_not_silent(behind: float) -> None:
    clock = OurClock()
    clock.known = behind
    clock.hears(behind, ago=20)
    assert clock.quiet() is None
    clock.hears(behind)
    clock.at += MAX_SILENCE + 1
    assert clock.quiet() == pytest.approx(MAX_SILENCE + 1)


@pytest.mark.parametrize("before", [HOUR, 0.0])
@pytest.mark.parametrize("after", [HOUR, -HOUR, 0.0])
def test_rank_whose_node_clock_changes_is_not_silent(before: float, after: float) -> None:
    clock = OurClock()
    clock.known = before
    for node_clock in (before, before, after, after):
        clock.at += 20
        clock.hears(node_clock)
        clock.hears(node_clock, "r003.metrics")
        assert clock.quiet() is None
    clock.at += MAX_SILENCE + 1
    assert clock.quiet() == pytest.approx(MAX_SILENCE + 1)


def test_delayed_output_counts_with_its_own_time() -> None:
    clock = OurClock()
    for ago in (HOUR + 30, HOUR + 10, HOUR):
        clock.hears(0.0, ago=ago)
    assert clock.quiet() == pytest.approx(HOUR)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_client_clock_change_makes_no_rank_silent(seconds: float) -> None:
    clock = OurClock()
    clock.hears(0.0)
    clock.rhythms.record_cpu_time(3, 0.0, clock.at - 20)
    clock.rhythms.record_cpu_time(3, 5.0, clock.at - 10)
    clock.at += seconds
    clock.rhythms.shift_clock(seconds)
    assert clock.quiet() is None
    clock.at += MAX_SILENCE + 1
    assert clock.quiet() == pytest.approx(MAX_SILENCE + 1)


async def test_client_tracks_node_clock_offsets_and_its_own_clock_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ahead = 1e6
    monkeypatch.setattr(ClockSteps, "_now", staticmethod(lambda: ahead))
    world = World()
    client = await attached(world, replace(intended(world)[1], state="up"))
    link, view = client.context.links[0], client.context.view
    link._on_welcome(link.welcome | {"now": time.time() - HOUR})  # type: ignore[typeddict-item]
    data = {"at": time.time() - HOUR, "run": "ab12", "values": {"loss": 1.0}}
    client.news.live_logs.receive("r000.metrics", 0, json.dumps(data).encode() + b"\n")
    assert view.activity.unusual_silence("ab12", 0, 0.0, time.time()) is None
    ahead += HOUR
    client.news.update_cpu_time(link, {"t": "pong", "lease": None})
    assert view.activity.unusual_silence("ab12", 0, 0.0, time.time() + HOUR) is None
    assert view.activity.unusual_silence("ab12", 0, 0.0, time.time() + HOUR + MAX_SILENCE + 1) is not None
    await client.close()
