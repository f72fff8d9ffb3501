"""A machine's own end: put off while an agent lives, by a clock in the test's hand."""

from __future__ import annotations

import time

import pytest

from skyward_core.node.agent import agent_lifetime
from skyward_core.node.agent.agent_lifetime import DeadmanSwitch


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the system was asked for."""
    found: list[str] = []
    monkeypatch.setattr(agent_lifetime, "_schedule_shutdown", found.append)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("minutes", "pause"), [(15, 60.0), (2, 24.0)])
def test_it_is_put_off_well_before_it_comes(asked: list[str], clock: list[float], minutes: int, pause: float) -> None:
    man = DeadmanSwitch(minutes)
    man.postpone()
    clock[0] += pause - 1
    man.postpone()
    assert asked == [f"+{minutes}"], "and not at each look"
    clock[0] += 1
    man.postpone()
    assert asked == [f"+{minutes}"] * 2
    man.trigger()
    assert asked[2:] == ["now"]


def test_a_machine_of_one_s_own_is_never_shut_down(asked: list[str], clock: list[float]) -> None:
    man = DeadmanSwitch(0)
    man.postpone()
    man.trigger()
    assert asked == []
