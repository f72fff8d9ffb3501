"""Time limits that stand still while a rank is at a breakpoint; what a debugger prints, with secrets blanked."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.node.agent import slot_dispatcher
from skyward_core.node.agent.rank_inspection import _Visit
from skyward_core.node.agent.slot_dispatcher import ALL, StandStill
from skyward_core.util.redaction import Redactor

SECRET = "sk-abcdefghijklmnop"


def test_the_clock_runs_while_at_least_one_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(slot_dispatcher, "monotonic", lambda: now)
    still = StandStill()
    still.tell("a", False)
    assert still.seconds(ALL) == 0
    still.tell("a", True)
    now += 3
    still.tell("b", True)
    still.tell("a", True)
    now += 3
    still.tell("a", False)
    still.tell("a", False)
    now += 3
    assert still.seconds(ALL) == 9
    assert (still.seconds("a"), still.seconds("b")) == (6, 6)
    still.tell("b", False)
    now += 3
    assert still.seconds(ALL) == 9
    still.tell("b", True)
    now += 3
    assert still.seconds(ALL) == 12


async def test_what_a_client_says_of_other_nodes_holds_for_a_while() -> None:
    still = StandStill()
    still.elsewhere(60)
    still.elsewhere(0.01)
    before = -1.0
    while before != still.seconds(ALL):  # until it stands
        before = still.seconds(ALL)
        await asyncio.sleep(0.02)
    still.elsewhere(0)
    assert still.seconds(ALL) == before


@given(st.lists(st.integers(1, 30), max_size=6), st.booleans())
async def test_a_secret_over_two_pieces_is_blanked(ends: list[int], pauses: bool) -> None:
    text = f"(Pdb) {SECRET}\nx = {SECRET}\n".encode()
    visit, redactor = _Visit("me"), Redactor([SECRET])
    at, said = 0, b""
    for length in [*ends, len(text)]:
        said += visit.blanked(text[at : at + length], redactor)
        if pauses:
            said += visit.blanked(b"", redactor)
        at += length
    said += visit.blanked(b"", redactor)
    visit.end()
    assert len(said) == len(text)
    assert SECRET[3:].encode() not in said
    if not pauses:
        assert said == text.replace(SECRET.encode(), b"*" * len(SECRET))
