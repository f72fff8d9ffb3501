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
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import ClientRegistry, RankPhases
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_processes import Process
from skyward_core.protocol.frame_codec import NONE_SUMMARY, PICKLED_NONE, Decoder, Header


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
