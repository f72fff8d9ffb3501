"""What an agent remembers of calls and runs, and what it forgets."""

from __future__ import annotations

import asyncio
from typing import Any

from skyward_core.node.agent.call_registry import MAX_RECORDS, Call, CallRegistry
from skyward_core.protocol.frame_codec import Decoder, encode_json


def call(run: str, index: int, kind: str = "broadcast", **header: Any) -> Call:
    told: Any = {"name": "f", "kind": kind, "total": 4} | header
    return Call(run, index, told, b"body", None)


def outcome(index: int, kind: str = "returned") -> Any:
    return {"t": "outcome", "i": index, "kind": kind}


def test_calls_are_found_by_run_and_index() -> None:
    register = CallRegistry()
    a, b, c = call("r1", 0), call("r1", 1), call("r2", 0)
    assert [register.add(each) for each in (a, b, c)] == [True, False, True]
    assert register.calls == {("r1", 0): a, ("r1", 1): b, ("r2", 0): c}
    assert register.calls_of_run("r1") == [a, b]
    assert register.select_calls("r1", [1, 7]) == [b]
    assert register.calls_of_run("r9") == register.select_calls("r9", [0]) == []
    assert register.active == 3


def test_an_ended_call_waits_to_be_acknowledged() -> None:
    register, one = CallRegistry(), call("r1", 0)
    register.add(one)
    register.records["r1"].began[0] = {"t": "began", "run": "r1", "i": 0, "rank": 0, "node": 0}
    register.record_outcome(one, outcome(0))
    assert register.calls == {("r1", 0): one}
    assert (one.outcome, one.body) == (outcome(0), b""), "what it was asked with is not needed any more"
    assert register.active == 0
    record = register.records["r1"].to_json()
    assert (record["outcomes"], record["began"], record["active"]) == ([outcome(0)], [], 0)
    register.drop(one)
    assert register.calls == {}
    assert register.calls_of_run("r1") == []
    assert list(register.records) == ["r1"]


def test_a_record_tells_who_comes_later() -> None:
    register = CallRegistry()
    for index in range(2):
        register.add(call("r1", index))
    register.record_outcome(register.calls["r1", 1], outcome(1, "raised"))
    record = register.records["r1"].to_json()
    assert (record["run"], record["function"], record["kind"], record["total"]) == ("r1", "f", "broadcast", 4)
    assert (record["outcomes"], record["active"]) == ([outcome(1, "raised")], 1)


def test_a_large_gather_is_remembered_by_its_failures() -> None:
    register = CallRegistry()
    for index in range(5000):
        one = call("r1", index, "gather")
        register.add(one)
        register.record_outcome(one, outcome(index, "raised" if index in (7, 4999) else "returned"))
        register.drop(one)
    record = register.records["r1"]
    assert sorted(record.outcomes) == [7, 4999]
    assert record.returned == 4998


def test_of_a_sweep_every_outcome_is_remembered_without_what_is_long() -> None:
    register = CallRegistry()
    for index in range(4096):
        register.add(call("r1", index, "sweep", total=4096))
        summary = {
            "type": "dict",
            "text": "x" * 200,
            "json": {"x": "y" * 16_000},
            "is_json": True,
            "size": 16_020,
        }
        numbers = {f"{'n' * 190}{name}": [1.0, 1.0, 1.0] for name in range(64)}
        register.record_outcome(
            register.calls["r1", index], outcome(index) | {"rank": 0, "summary": summary, "numbers": numbers}
        )
    record = register.records["r1"].to_json()
    assert [each["i"] for each in record["outcomes"]] == list(range(4096)) and record["returned"] == 0
    assert len(encode_json(record)) < 4 << 20, "one greeting tells of all runs"
    whole = register.calls["r1", 0].outcome
    assert whole is not None and whole["summary"] and whole["summary"]["json"] and whole["numbers"], "for its client"
    short = outcome(0) | {"summary": {"type": "int", "text": "7", "json": 7, "is_json": True, "size": 5}}
    register.add(call("r2", 0, "sweep"))
    register.record_outcome(register.calls["r2", 0], short)
    assert register.records["r2"].to_json()["outcomes"] == [short]


def test_only_so_many_runs_are_remembered_and_every_active_one() -> None:
    register = CallRegistry()
    busy = call("busy", 0)
    register.add(busy)
    for number in range(2 * MAX_RECORDS):
        one = call(f"r{number}", 0)
        register.add(one)
        register.record_outcome(one, outcome(0))
        register.drop(one)
    assert len(register.records) == MAX_RECORDS
    assert "busy" in register.records
    assert f"r{2 * MAX_RECORDS - 1}" in register.records
    assert "r0" not in register.records
    register.record_outcome(busy, outcome(0))


def test_what_a_call_says_of_itself() -> None:
    assert call("r", 2).key == ("r", 2)
    assert call("r", 0, gang=True).is_gang_call
    assert not call("r", 0).is_gang_call
    assert call("r", 0, timeout=5).timeout == 5
    assert call("r", 0).timeout is None


def test_what_the_journal_says_of_a_call_is_a_frame_with_all_that_the_next_agent_needs() -> None:
    """Its header is put in as it was encoded for the worker: whatever it holds, the frame around it is whole."""
    one = call("r", 2, i=2, gang=True, name='"}, ü\n', more={"a": [None, "\ud800"]})
    one.rank, one.slot, one.log_start = 5, 1, {"r005.1.out": 77}
    told = {"t": "given", "slot": 1, "rank": 5, "log": {"r005.1.out": 77}, "call": one.header}
    for data in (one.given_frame(), one.given_frame(encode_json(one.header))):
        assert list(Decoder().feed(data)) == [(told, b"")]
    other = call("r", 3, i=3)
    assert next(Decoder().feed(one.given_frame(encode_json(other.header))))[0]["call"] == other.header, (
        "not encoded again"
    )


async def test_a_disarmed_call_has_no_timers() -> None:
    fired: list[int] = []
    one = call("r", 0)
    one.timers.append(asyncio.get_running_loop().call_later(0, fired.append, 1))
    one.cancel_timers()
    for _ in range(3):
        await asyncio.sleep(0)
    assert fired == []
    assert one.timers == []
