"""Suspended timeouts of paused ranks, and redacted debugger output."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.node.agent import slot_dispatcher
from skyward_core.node.agent.rank_inspection_and_debugger import _DebuggerSession
from skyward_core.node.agent.slot_dispatcher import ALL_PAUSES, PauseClock
from skyward_core.util.redaction import Redactor

SECRET = "sk-abcdefghijklmnop"


def test_pause_clock_runs_while_at_least_one_rank_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(slot_dispatcher, "monotonic", lambda: now)
    still = PauseClock()
    still.set_paused("a", False)
    assert still.paused_seconds(ALL_PAUSES) == 0
    still.set_paused("a", True)
    now += 3
    still.set_paused("b", True)
    still.set_paused("a", True)
    now += 3
    still.set_paused("a", False)
    still.set_paused("a", False)
    now += 3
    assert still.paused_seconds(ALL_PAUSES) == 9
    assert (still.paused_seconds("a"), still.paused_seconds("b")) == (6, 6)
    still.set_paused("b", False)
    now += 3
    assert still.paused_seconds(ALL_PAUSES) == 9
    still.set_paused("b", True)
    now += 3
    assert still.paused_seconds(ALL_PAUSES) == 12


async def test_remote_pause_expires() -> None:
    still = PauseClock()
    still.set_remote_pause(60)
    still.set_remote_pause(0.01)
    before = -1.0
    while before != still.paused_seconds(ALL_PAUSES):  # until it stands
        before = still.paused_seconds(ALL_PAUSES)
        await asyncio.sleep(0.02)
    still.set_remote_pause(0)
    assert still.paused_seconds(ALL_PAUSES) == before


@given(st.lists(st.integers(1, 30), max_size=6), st.booleans())
async def test_secret_split_across_debugger_output_is_redacted(ends: list[int], pauses: bool) -> None:
    text = f"(Pdb) {SECRET}\nx = {SECRET}\n".encode()
    visit, redactor = _DebuggerSession("me"), Redactor([SECRET])
    at, output = 0, b""
    for length in [*ends, len(text)]:
        output += visit.redact(text[at : at + length], redactor)
        if pauses:
            output += visit.redact(b"", redactor)
        at += length
    output += visit.redact(b"", redactor)
    visit.close()
    assert len(output) == len(text)
    assert SECRET[3:].encode() not in output
    if not pauses:
        assert output == text.replace(SECRET.encode(), b"*" * len(SECRET))
