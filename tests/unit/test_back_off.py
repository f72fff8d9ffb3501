"""What does not answer is asked ever less often."""

from __future__ import annotations

import time

import pytest

from skyward_core.client.session import RETRY_PAUSES, BackOff


def test_each_failure_doubles_the_pause_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waits = BackOff()
    pauses = []
    for _ in range(8):
        assert waits.is_due("a")
        waits.record_failure("a")
        began = now
        while not waits.is_due("a"):
            now += 0.5
        pauses.append(now - began)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60] and (pauses[0], pauses[-1]) == RETRY_PAUSES
    waits.record_failure("a")
    waits.record_failure("b")
    waits.retain_only({"b"})
    assert waits.is_due("a") and not waits.is_due("b")
    waits.reset("b")
    assert waits.is_due("b")
