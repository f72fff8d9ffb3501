"""Which calls are told of while they run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skyward_core.node.agent import call_outcomes
from skyward_core.node.agent.call_outcomes import SlowCalls
from skyward_core.node.agent.call_registry import Call

ASKED: Any = {}
RETURNED: Any = {"kind": "returned"}


def call(index: int) -> Call:
    return Call("r", index, ASKED, b"", None)


def test_of_many_calls_those_that_still_run_are_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    async def story() -> None:
        slow = SlowCalls(lambda rank, call: told.append((rank, call.index)))
        calls = [call(index) for index in range(100)]
        for number, each in enumerate(calls):
            slow.add(number % 4, each)
            if number % 10:
                each.outcome = RETURNED
        calls[50].pending_outcome = (RETURNED, b"")
        while len(told) < 9:
            await asyncio.sleep(0.005)
        # Those that come later are told of in their turn.
        later = call(100)
        slow.add(0, later)
        while len(told) < 10:
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 20))
    assert told == [(index % 4, index) for index in range(0, 100, 10) if index != 50] + [(0, 100)]


def test_quick_calls_set_no_timer_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_outcomes, "ANNOUNCE_DELAY", 0.01)
    looks = 0

    class Counted(SlowCalls):
        def _announce_due(self) -> None:
            nonlocal looks
            looks += 1
            super()._announce_due()

    async def story() -> float:
        slow = Counted(lambda rank, call: None)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for index in range(2000):
            each = call(index)
            slow.add(0, each)
            await asyncio.sleep(0)
            each.outcome = RETURNED
        return loop.time() - began

    took = asyncio.run(story())
    assert looks <= took / 0.01 + 1
