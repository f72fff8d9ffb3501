"""What is told of calls, and to whom; what is written down before and after."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent import call_journal
from skyward_core.node.agent.agent_lifetime import recover_state
from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.call_outcomes import CallLifecycle
from skyward_core.node.agent.call_registry import MAX_RECORDS, Call, CallRegistry
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import ClientRegistry, RankPhases
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_processes import Process
from skyward_core.protocol.frame_codec import NONE_SUMMARY, PICKLED_NONE, Decoder, Header, encode_json


class Peer(Connection):
    """A connection that remembers what is written to it."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None, lambda _: None)
        self.is_open = True
        self.told: list[Header] = []

    def write(self, data: bytes) -> None:
        self.told += [header for header, _ in Decoder().feed(data)]


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    config = AgentConfig(
        pool="p", node=3, nodes=4, folder=str(tmp_path), socket=str(tmp_path / "s"), idle_timeout=9.0, grace=1.0
    )
    config.spool.mkdir()
    return config


class Desk:
    def __init__(self, config: AgentConfig) -> None:
        self.state = NodeState(config)
        self.audience = ClientRegistry()
        self.desk = CallLifecycle(self.state, self.audience)
        self.owner, self.watcher, self.other = Peer(), Peer(), Peer()
        for peer in (self.owner, self.watcher, self.other):
            self.audience.add(peer)
        self.audience[self.watcher].watches = True

    def call(self, **header: Any) -> Call:
        told: Any = {"kind": "single", "total": 1, "name": "f"} | header
        call = Call("r1", 0, told, b"", self.owner, rank=3)
        self.state.registry.add(call)
        return call


def returned(call: Call, **more: Any) -> Any:
    return call.make_outcome({"kind": "returned"}) | more


def judged(desk: Desk, call: Call, killed: str = "", **told: Any) -> Any:
    header: Any = {"t": "outcome", "run": call.run, "i": call.index} | told
    return desk.desk.finalize_outcome(call, header, killed)


async def test_an_outcome_goes_to_its_owner_and_those_who_watch_once(config: AgentConfig) -> None:
    desk = Desk(config)
    call = desk.call()
    desk.desk.finish(call, returned(call))
    assert [told["t"] for told in desk.owner.told] == ["outcome"]
    assert [told["t"] for told in desk.watcher.told] == ["outcome"]
    assert desk.other.told == []
    assert (desk.owner.told[0]["rank"], desk.owner.told[0]["node"], desk.owner.told[0]["begun"]) == (
        3,
        3,
        False,
    )


async def test_what_was_given_and_what_came_of_it_is_in_the_journal_until_it_is_acknowledged(
    config: AgentConfig,
) -> None:
    desk = Desk(config)
    first, path = desk.call(), config.spool / "journal"
    asked: Any = {}
    second = Call("r2", 0, asked, b"", desk.owner)
    desk.state.registry.add(second)
    first.started_at = 1.0
    desk.desk.on_call_started(first, '{"t":"call","run":"r1","i":0}')
    desk.desk.finish(first, returned(first), b"result")
    assert [header["t"] for header, _ in call_journal.read_journal(path)] == ["given", "outcome"]
    desk.desk.acknowledge({"r1": None})
    assert [header["t"] for header, _ in call_journal.read_journal(path)] == ["given", "outcome", "ack"]
    desk.desk.finish(second, returned(second))
    desk.desk.acknowledge({"r2": [0]})
    assert call_journal.read_journal(path) == [], "nothing waits for anybody"


KILLED = """
import asyncio, os, signal, socket, sys
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.call_outcomes import CallLifecycle
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.agent_state import NodeState

async def main(folder, descriptor):
    config = AgentConfig(pool="p", node=3, nodes=4, folder=folder, socket="", idle_timeout=9.0, grace=1.0)
    state, owner = NodeState(config), Connection(print, print)
    await asyncio.get_running_loop().create_connection(lambda: owner, sock=socket.socket(fileno=int(descriptor)))
    desk, call = CallLifecycle(state, ClientRegistry()), Call("r1", 0, {}, b"", owner, rank=3)
    state.registry.add(call)
    call.started_at = 1.0
    desk.on_call_started(call, '{"t":"call","run":"r1","i":0}')
    desk.finish(call, call.make_outcome({"kind": "returned"}) | {"size": 6}, b"result", more=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


def told_by_one_that_is_killed(config: AgentConfig) -> bytes:
    here, there = socket.socketpair()
    with closing(there):
        words = [sys.executable, "-c", KILLED, config.folder, str(here.fileno())]
        done = subprocess.run(words, pass_fds=[here.fileno()], capture_output=True, text=True, timeout=60)
        here.close()
        assert done.returncode == -signal.SIGKILL, done.stderr
        return there.recv(1 << 16)


async def test_an_agent_that_is_killed_before_it_has_told_what_waits_leaves_it_to_the_next(
    config: AgentConfig,
) -> None:
    assert told_by_one_that_is_killed(config) == b""
    desk = Desk(config)
    slots = SlotDispatcher(desk.state, desk.audience, desk.desk, RankPhases(desk.audience.send_to_watchers))
    await recover_state(desk.state, slots, desk.desk)
    (call,) = desk.state.registry.calls.values()
    desk.desk.claim(desk.other, call, {"t": "claim", "run": "r1"})
    assert [(told["t"], told["kind"], told["size"]) for told in desk.other.told] == [("outcome", "returned", 6)]
    assert call.result == b"result"


async def test_the_file_of_a_result_goes_with_its_acknowledgement(config: AgentConfig) -> None:
    desk = Desk(config)
    call = desk.call()
    (config.spool / "r1.0.result").write_bytes(b"x")
    desk.desk.finish(call, returned(call, file="r1.0.result"))
    desk.desk.acknowledge({"r1": [0]})
    assert not (config.spool / "r1.0.result").exists()


async def test_what_came_of_a_call_waits_for_another_client(config: AgentConfig) -> None:
    desk = Desk(config)
    call = desk.call()
    desk.desk.on_client_gone(desk.owner)
    desk.desk.finish(call, returned(call, size=7))
    assert desk.owner.told == [] and desk.desk.unfetched_sizes() == {"r1": 7}
    desk.desk.claim(desk.other, call, {"t": "claim", "run": "r1"})
    assert [told["t"] for told in desk.other.told] == ["outcome"] and desk.desk.unfetched_sizes() == {}


async def test_none_needs_no_fetching_and_is_told_of_all_the_same(config: AgentConfig) -> None:
    desk = Desk(config)
    call = desk.call()
    desk.desk.on_client_gone(desk.owner)
    desk.desk.finish(call, returned(call, summary=NONE_SUMMARY, size=len(PICKLED_NONE)))
    assert desk.desk.unfetched_sizes() == {"r1": 0}


async def test_an_exception_is_something_to_fetch_though_no_header_tells_its_size(
    config: AgentConfig,
) -> None:
    desk = Desk(config)
    call = desk.call()
    desk.desk.on_client_gone(desk.owner)
    desk.desk.finish(call, call.make_outcome({"kind": "raised"}), b"pickled")
    assert desk.desk.unfetched_sizes() == {"r1": 7}


async def test_a_call_of_a_gang_that_is_no_more_is_handed_back_and_forgotten(config: AgentConfig) -> None:
    desk = Desk(config)
    call = desk.call(gang=True)
    desk.state.gang.epoch, desk.state.gang.broken_reason = 4, "a rank died"
    desk.desk.reject_stale(call)
    assert desk.owner.told == [{"t": "stale", "run": "r1", "i": 0, "epoch": 4, "why": "a rank died"}]
    assert not desk.state.registry.calls and not desk.state.registry.active


@pytest.mark.parametrize(
    ("killed", "ending", "closing", "kind"),
    [
        ("", {}, False, "exited"),
        ("its gang was replaced", {}, False, "collateral"),
        ("the pool is torn down", {"t": "ending"}, True, "collateral"),
        ("the pool is torn down", {}, True, "lost"),
    ],
)
async def test_how_the_end_of_a_worker_is_told(
    config: AgentConfig, killed: str, ending: Header, closing: bool, kind: str
) -> None:
    desk = Desk(config)
    call, process = desk.call(), Process(1)
    process.kill_reason = killed
    desk.state.end_frame, desk.state.is_closing = ending, closing
    (config.spool / "r003.err").write_text("no such module\n")
    desk.desk.on_worker_death(call, process, 9, logs=_NoLogs())  # type: ignore[arg-type]
    assert desk.owner.told[0]["kind"] == kind
    assert killed or "no such module" in desk.owner.told[0]["error"]["message"]


async def test_a_call_that_was_stopped_is_told_as_that_whatever_its_worker_says(config: AgentConfig) -> None:
    desk = Desk(config)
    call = desk.call(timeout=2.0)
    call.stop_reason = "timeout"
    told = judged(desk, call, kind="raised", error={"type": "OSError", "message": ""})
    assert told["kind"] == "exited" and told["error"]["type"] == "TimeoutError"
    assert judged(desk, call, kind="returned")["kind"] == "returned", "it was quicker"


@pytest.mark.parametrize(
    ("status", "killed", "kind"),
    [
        (15, "", "Preempted"),
        (143 << 8, "", "Preempted"),
        (0, "", "Preempted"),
        (9, "", "RankExit"),
        (1 << 8, "", "RankExit"),
        (15, "its gang was replaced", "Stopped"),
    ],
)
async def test_what_ends_as_its_machine_is_taken_back_is_lost_to_that(
    config: AgentConfig, status: int, killed: str, kind: str
) -> None:
    desk = Desk(config)
    desk.state.is_preempted = True
    process = Process(1)
    process.kill_reason, process.is_script, process.connection = killed, True, Peer()
    desk.desk.on_worker_death(desk.call(), process, status, logs=_NoLogs())  # type: ignore[arg-type]
    assert desk.owner.told[0]["error"]["type"] == kind
    assert (desk.owner.told[0]["kind"] == "lost") is (kind == "Preempted")


async def test_what_its_worker_says_is_believed_unless_it_was_told_to_end(config: AgentConfig) -> None:
    desk = Desk(config)
    desk.state.is_preempted = True
    call, process = desk.call(), Process(1)
    for told, kind in (
        ({"kind": "collateral"}, "lost"),
        ({"kind": "exited", "exit_code": 143, "error": {"type": "SystemExit", "message": ""}}, "lost"),
        ({"kind": "exited", "exit_code": 1, "error": {"type": "SystemExit", "message": ""}}, "exited"),
        ({"kind": "returned"}, "returned"),
        ({"kind": "raised", "error": {"type": "ValueError", "message": "no"}}, "raised"),
    ):
        heard: Any = call.make_outcome({"kind": "returned"}) | told
        judgement = desk.desk.finalize_outcome(call, heard, "", process)
        assert judgement["kind"] == kind
        assert kind != "lost" or judgement["exit_code"] is None
    desk.state.is_closing = True
    assert judged(desk, call, "the pool is torn down", kind="collateral")["error"]["type"] == "Preempted"
    call.stop_reason = "fail-fast"
    assert judged(desk, call, kind="collateral")["error"]["message"] == "stopped because another rank failed"


async def test_sigterm_from_elsewhere_is_no_stop_of_ours(config: AgentConfig) -> None:
    desk = Desk(config)
    call = desk.call()
    assert judged(desk, call, kind="collateral")["signal"] == 15
    assert "torn down" in judged(desk, call, "it is torn down", kind="collateral")["error"]["message"]


async def test_a_call_that_still_runs_a_moment_later_is_announced(config: AgentConfig) -> None:
    desk = Desk(config)
    call = desk.call()
    call.started_at = asyncio.get_running_loop().time()
    desk.desk.on_call_started(call, '{"t":"call"}')
    async with asyncio.timeout(10):
        while not desk.watcher.told:
            await asyncio.sleep(0.005)
    assert desk.owner.told[0]["t"] == desk.watcher.told[0]["t"] == "began"
    assert desk.state.registry.records["r1"].began


class _NoLogs:
    names = ("r003.out", "r003.err")


# What an agent remembers of calls and runs, and what it forgets.


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
