"""How long a node lives without us, by a clock in the test's hand."""

from __future__ import annotations

import time

import pytest

from skyward_core.node.agent.agent_state import Lease


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_idle_time_counts_down_from_the_start(clock: Clock) -> None:
    lease = Lease(600, None)
    assert lease.remaining(in_use=False) == 600
    clock.now += 599
    assert lease.remaining(in_use=False) == 1
    clock.now += 2
    assert lease.remaining(in_use=False) == -1
    assert lease.reason() == "nobody used it for 600 s"


def test_use_stops_the_count_and_its_end_starts_it_anew(clock: Clock) -> None:
    lease = Lease(600, None)
    clock.now += 10_000
    assert lease.remaining(in_use=True) is None
    lease.renew()
    assert lease.remaining(in_use=False) == 600
    clock.now += 100
    assert lease.remaining(in_use=False) == 500


def test_a_time_to_live_counts_also_in_use(clock: Clock) -> None:
    lease = Lease(600, 3600)
    assert lease.remaining(in_use=False) == 600
    assert lease.remaining(in_use=True) == 3600
    clock.now += 3500
    lease.renew()
    assert lease.remaining(in_use=True) == lease.remaining(in_use=False) == 100
    assert lease.reason() == "nobody used it for 600 s"
    clock.now += 100
    lease.renew()
    assert lease.remaining(in_use=True) == 0
    assert lease.reason() == "its time to live of 3600 s was over"


def test_a_wall_clock_that_jumps_changes_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(0.5, None)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert lease.remaining(in_use=False) == 0.5
    assert lease.reason() == "nobody used it for 0.5 s"
