"""Calls on an agent: notification of clients, journal, outcomes, preemption notices and metrics sampling."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from skyward_core.node.agent import call_journal, metrics_sampler_supervisor, preemption_notices
from skyward_core.node.agent.agent import recover_state
from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_lifecycle import CallLifecycle, SlowCalls
from skyward_core.node.agent.call_registry import MAX_RECORDS, Call, CallRegistry
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.fail_fast_without_client import FailFast
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.metrics_sampler_supervisor import SamplerProcess
from skyward_core.node.agent.preemption_notices import PreemptionNotifier
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_processes import Process
from skyward_core.node.agent.worker_slot_queue_and_process import RankPhases
from skyward_core.node.bootstrap.host_inspection import find_node_processes
from skyward_core.node.machine_metrics_sampler import SampleFiles
from skyward_core.protocol.frame_codec import NONE_SUMMARY, PICKLED_NONE, Header, encode_json
from skyward_core.runtime import preemption
from skyward_core.runtime.preemption import PreemptionNotice, on_preempt
from tests.support.agent_parts import Node, Peer, Speaker
from tests.support.waiting import until


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
        data: Any = {"kind": "single", "total": 1, "name": "f"} | header
        call = Call("r1", 0, data, b"", self.owner, rank=3)
        self.state.registry.add(call)
        return call


@pytest.fixture
def desk(config: AgentConfig) -> Desk:
    return Desk(config)


def returned(call: Call, **more: Any) -> Any:
    return call.make_outcome({"kind": "returned"}) | more


def finalize(desk: Desk, call: Call, killed: str = "", **options: Any) -> Any:
    header: Any = {"t": "outcome", "run": call.run, "i": call.index} | options
    return desk.desk.finalize_outcome(call, header, killed)


async def test_outcome_is_sent_once_to_owner_and_watchers(desk: Desk) -> None:
    call = desk.call()
    desk.desk.finish(call, returned(call))
    assert [frame["t"] for frame in desk.owner.frames] == ["outcome"]
    assert [frame["t"] for frame in desk.watcher.frames] == ["outcome"]
    assert desk.other.frames == []
    assert (desk.owner.frames[0]["rank"], desk.owner.frames[0]["node"], desk.owner.frames[0]["begun"]) == (3, 3, False)


async def test_owner_takes_its_call_back_and_readers_keep_their_copies(desk: Desk) -> None:
    call, first, second, owner_again = desk.call(), desk.other, Peer(), Peer()
    again: Any = call.header | {"t": "call"}
    for peer in (first, second, second):  # a client may wait for a run twice
        desk.desk.claim(peer, call, {"t": "claim", "run": "r1"})
    desk.desk.on_client_gone(desk.owner)
    assert call.owner is second
    desk.desk.claim(owner_again, call, again)
    desk.desk.finish(call, returned(call), b"result")
    for peer in (owner_again, first, second):
        assert [frame["t"] for frame in peer.frames] == ["outcome"]
    assert desk.owner.frames == []


async def test_client_that_claims_a_run_twice_gets_one_copy(desk: Desk) -> None:
    call = desk.call()
    for _ in range(2):
        desk.desk.claim(desk.other, call, {"t": "claim", "run": "r1"})
    desk.desk.finish(call, returned(call), b"result")
    assert [frame["t"] for frame in desk.other.frames] == ["outcome"]


async def test_only_acknowledgements_of_readers_are_ignored(desk: Desk) -> None:
    call, first, second, owner_again = desk.call(), desk.other, Peer(), Peer()
    again: Any = call.header | {"t": "call"}

    def readers() -> list[Connection]:
        return [peer for peer in (desk.owner, first, second, owner_again) if desk.desk.has_copies(peer, "r1")]

    for peer in (first, second):
        desk.desk.claim(peer, call, {"t": "claim", "run": "r1"})
    assert readers()[:-1] == [first, second]
    desk.desk.on_client_gone(desk.owner)
    # An owner that has received its outcomes does not send its calls again, but its acknowledgements count.
    assert call.owner is second and readers() == [first]
    desk.desk.claim(owner_again, call, again)
    assert readers()[1:] == [first, second]
    desk.desk.claim(first, call, {"t": "claim", "run": "r1", "decides": True})
    assert readers()[1:] == [second, owner_again]
    desk.desk.finish(call, returned(call))
    assert owner_again.frames == [], "the client that decides next has taken the run over"


async def test_call_journal_keeps_calls_and_outcomes_until_acknowledged(config: AgentConfig, desk: Desk) -> None:
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
from skyward_core.node.agent.call_lifecycle import CallLifecycle
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState

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


async def test_next_agent_delivers_outcomes_of_a_killed_one(config: AgentConfig) -> None:
    assert told_by_one_that_is_killed(config) == b""
    desk = Desk(config)
    slots = SlotDispatcher(desk.state, desk.audience, desk.desk, RankPhases(desk.audience.send_to_watchers))
    await recover_state(desk.state, slots, desk.desk)
    (call,) = desk.state.registry.calls.values()
    desk.desk.claim(desk.other, call, {"t": "claim", "run": "r1"})
    assert [(frame["t"], frame["kind"], frame["size"]) for frame in desk.other.frames] == [("outcome", "returned", 6)]
    assert call.result == b"result"


async def test_next_agent_counts_only_the_latest_attempt_as_active(config: AgentConfig) -> None:
    desk, successor = Desk(config.replace(node=0)), Desk(config.replace(node=0))
    for number in (1, 2):
        attempt: Any = {"number": number, "restarts": 3, "cause": "", "message": "", "lost": [], "ends": []}
        one = desk.call(gang=True, run="r1", i=0, attempt=attempt)
        one.owner, one.started_at = None, 1.0
        desk.desk.on_call_started(one, encode_json(one.header))
        desk.desk.finish(one, returned(one))
    slots = SlotDispatcher(
        successor.state, successor.audience, successor.desk, RankPhases(successor.audience.send_to_watchers)
    )
    await recover_state(successor.state, slots, successor.desk)
    assert successor.state.registry.active == 1, "the outcome of the second attempt is withheld"


async def test_result_file_is_removed_when_its_outcome_is_acknowledged(config: AgentConfig, desk: Desk) -> None:
    call = desk.call()
    (config.spool / "r1.0.result").write_bytes(b"x")
    desk.desk.finish(call, returned(call, file="r1.0.result"))
    desk.desk.acknowledge({"r1": [0]})
    assert not (config.spool / "r1.0.result").exists()


@pytest.mark.parametrize(
    ("outcome", "result", "size"),
    [
        ({"kind": "returned", "size": 7}, b"", 7),
        ({"kind": "returned", "summary": NONE_SUMMARY, "size": len(PICKLED_NONE)}, b"", 0),
        ({"kind": "raised"}, b"pickled", 7),
    ],
)
async def test_result_counts_as_unfetched_until_claimed(desk: Desk, outcome: Any, result: bytes, size: int) -> None:
    call = desk.call()
    desk.desk.on_client_gone(desk.owner)
    desk.desk.finish(call, call.make_outcome(outcome), result)
    assert desk.owner.frames == [] and desk.desk.unfetched_sizes() == {"r1": size}
    desk.desk.claim(desk.other, call, {"t": "claim", "run": "r1"})
    assert [frame["t"] for frame in desk.other.frames] == ["outcome"] and desk.desk.unfetched_sizes() == {}


async def test_call_for_an_outdated_gang_epoch_is_returned_and_dropped(desk: Desk) -> None:
    call = desk.call(gang=True)
    desk.state.gang.epoch, desk.state.gang.broken_reason = 4, "a rank died"
    desk.desk.reject_stale(call)
    assert desk.owner.frames == [{"t": "stale", "run": "r1", "i": 0, "epoch": 4, "why": "a rank died"}]
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
async def test_outcome_kind_after_worker_death_depends_on_its_cause(
    config: AgentConfig, killed: str, ending: Header, closing: bool, kind: str, desk: Desk
) -> None:
    call, process = desk.call(), Process(1)
    process.kill_reason = killed
    desk.state.end_frame, desk.state.is_closing = ending, closing
    (config.spool / "r003.err").write_text("no such module\n")
    desk.desk.on_worker_death(call, process, 9, logs=_NoLogs())  # type: ignore[arg-type]
    assert desk.owner.frames[0]["kind"] == kind
    assert killed or "no such module" in desk.owner.frames[0]["error"]["message"]


async def test_stopped_call_keeps_its_stop_reason_over_the_worker_report(desk: Desk) -> None:
    call = desk.call(timeout=2.0)
    call.stop_reason = "timeout"
    outcome = finalize(desk, call, kind="raised", error={"type": "OSError", "message": ""})
    assert outcome["kind"] == "exited" and outcome["error"]["type"] == "TimeoutError"
    assert finalize(desk, call, kind="returned")["kind"] == "returned", "it was quicker"


@pytest.mark.parametrize(
    ("status", "killed", "kind"),
    [
        (15, "", "Preempted"), (143 << 8, "", "Preempted"), (0, "", "Preempted"), (9, "", "RankExit"),
        (1 << 8, "", "RankExit"), (15, "its gang was replaced", "Stopped"),
    ],
)  # fmt: skip
async def test_outcome_of_worker_death_after_preemption_depends_on_status(
    desk: Desk, status: int, killed: str, kind: str
) -> None:
    desk.state.is_preempted = True
    process = Process(1)
    process.kill_reason, process.is_script, process.connection = killed, True, Peer()
    desk.desk.on_worker_death(desk.call(), process, status, logs=_NoLogs())  # type: ignore[arg-type]
    assert desk.owner.frames[0]["error"]["type"] == kind
    assert (desk.owner.frames[0]["kind"] == "lost") is (kind == "Preempted")


async def test_worker_report_after_preemption_is_kept_unless_it_was_stopped(desk: Desk) -> None:
    desk.state.is_preempted = True
    call, process = desk.call(), Process(1)
    for report, kind in (
        ({"kind": "collateral"}, "lost"),
        ({"kind": "exited", "exit_code": 143, "error": {"type": "SystemExit", "message": ""}}, "lost"),
        ({"kind": "exited", "exit_code": 1, "error": {"type": "SystemExit", "message": ""}}, "exited"),
        ({"kind": "returned"}, "returned"),
        ({"kind": "raised", "error": {"type": "ValueError", "message": "no"}}, "raised"),
    ):
        heard: Any = call.make_outcome({"kind": "returned"}) | report
        judgement = desk.desk.finalize_outcome(call, heard, "", process)
        assert judgement["kind"] == kind
        assert kind != "lost" or judgement["exit_code"] is None
    desk.state.is_closing = True
    assert finalize(desk, call, "the pool is torn down", kind="collateral")["error"]["type"] == "Preempted"
    call.stop_reason = "fail-fast"
    assert finalize(desk, call, kind="collateral")["error"]["message"] == "stopped because another rank failed"


async def test_sigterm_from_outside_is_not_reported_as_teardown(desk: Desk) -> None:
    call = desk.call()
    assert finalize(desk, call, kind="collateral")["signal"] == 15
    assert "torn down" in finalize(desk, call, "it is torn down", kind="collateral")["error"]["message"]


async def test_call_that_runs_for_a_moment_is_announced_as_begun(desk: Desk) -> None:
    call = desk.call()
    call.started_at = asyncio.get_running_loop().time()
    desk.desk.on_call_started(call, '{"t":"call"}')
    async with asyncio.timeout(10):
        while not desk.watcher.frames:
            await asyncio.sleep(0.005)
    assert desk.owner.frames[0]["t"] == desk.watcher.frames[0]["t"] == "began"
    assert desk.state.registry.records["r1"].began


class _NoLogs:
    names = ("r003.out", "r003.err")


# What an agent remembers of calls and runs, and what it forgets.


def call(run: str, index: int, kind: str = "broadcast", **header: Any) -> Call:
    data: Any = {"name": "f", "kind": kind, "total": 4} | header
    return Call(run, index, data, b"body", None)


def outcome(index: int, kind: str = "returned") -> Any:
    return {"t": "outcome", "i": index, "kind": kind}


def test_ended_call_stays_registered_until_acknowledged() -> None:
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


def test_large_gather_record_saves_only_failures() -> None:
    register = CallRegistry()
    for index in range(5000):
        one = call("r1", index, "gather")
        register.add(one)
        register.record_outcome(one, outcome(index, "raised" if index in (7, 4999) else "returned"))
        register.drop(one)
    record = register.records["r1"]
    assert sorted(record.outcomes) == [7, 4999]
    assert record.returned == 4998


def test_sweep_record_saves_short_outcomes_of_all_trials() -> None:
    register = CallRegistry()
    for index in range(4096):
        register.add(call("r1", index, "sweep", total=4096))
        summary = {"type": "dict", "text": "x" * 200, "json": {"x": "y" * 16_000}, "is_json": True, "size": 16_020}
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


def test_run_records_are_bounded_except_active_runs() -> None:
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


# What an agent makes of what its provider's program says, and what a rank's process makes of notices.

SAYS = """
import sys
for line in open({path!r}):
    sys.stdout.write(line)
sys.stdout.flush()
sys.stdin.read()
"""


def make_notifier(node: Node) -> PreemptionNotifier:
    return PreemptionNotifier(
        node.state, node.audience, node.desk, node.slots, FailFast(node.state, node.slots).notify_preemption
    )


def node_with_notices(folder: Path, *lines: str) -> tuple[Node, PreemptionNotifier]:
    file = folder / "said"
    file.write_text("".join(f"{line}\n" for line in lines))
    node = Node(folder, notices=SAYS.format(path=str(file)))
    desk = make_notifier(node)
    desk.start()
    return node, desk


async def test_preemption_monitor_sends_each_valid_notice_once(tmp_path: Path) -> None:
    kind = '{"kind": "terminate", "left": %s}'
    nonsense = [
        "",
        "[]",
        "nothing",
        "[" * 3000,
        '{"kind": "explode", "left": 3}',
        '{"kind": ["stop"], "left": 3}',
        '{"left": 3}',
        *(kind % left for left in ("-1", "1e9", "NaN", '"soon"', "true", "[1]")),
    ]
    good = [kind % 100, kind % 99, '{"error": "no answer"}', '{"kind": "rebalance", "left": null}']
    node, desk = node_with_notices(tmp_path, *nonsense, *good)
    await until(lambda: len(node.peer.frames) == 3)
    terminate, error, rebalance = node.peer.frames
    assert (terminate["t"], terminate["kind"]) == ("notice", "terminate") and 98 < terminate["left"] <= 100
    assert error["message"].endswith("cannot poll for preemption notices: no answer")
    assert rebalance == {"t": "notice", "kind": "rebalance", "left": None}
    assert node.state.is_preempted and list(node.state.notices) == ["terminate", "rebalance"]
    assert 97 < node.state.preemption_ends - time.monotonic() <= 100
    desk.stop()


async def test_failing_preemption_notice_program_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption_notices, "RESTART_DELAYS", (0.01, 0.02))
    starts = tmp_path / "starts"
    for number, text in enumerate(("raise SystemExit(3)", "while True: print('x' * 9999, end='')")):
        folder = tmp_path / str(number)
        folder.mkdir()
        node = Node(folder, notices=f"open({str(starts)!r}, 'a').write('{number}')\n{text}")
        desk = make_notifier(node)
        desk.start()
        await until(lambda: starts.exists() and starts.read_text().count(str(number)) > 3)  # noqa: B023
        desk.stop()
        assert len(node.peer.frames) == 1, "it is said once"
        assert not node.state.is_preempted


async def test_ranks_are_notified_once_about_preemption_of_other_nodes(tmp_path: Path) -> None:
    node, desk = node_with_notices(tmp_path)
    file = Path(node.state.config.paths.notices)

    def written() -> list[tuple[int, bool]]:
        return [(each[0], each[1]) for each in json.loads(file.read_text())]

    desk.on_remote_notice(0, 60.0)
    before = file.read_text()
    desk.on_remote_notice(0, 70.0)
    desk.on_remote_notice(1, 60.0)  # itself
    assert file.read_text() == before and written() == [(0, False)]
    desk.on_remote_notice(2, -5.0)
    desk.on_remote_notice(3, 1e12)
    assert written() == [(0, False), (2, False), (3, False)]
    assert node.peer.frames == [] and not node.state.is_preempted
    desk.stop()
    # The next agent goes on with it; garbage of a rank is no notice.
    file.write_text(json.dumps([[1, True, monotonic() + 60, [7], True]]))
    again = make_notifier(node)
    again.start()
    assert node.state.is_preempted
    again.stop()
    file.write_text('[{"node": []}]')
    node.state.is_preempted = False
    again.start()
    assert not node.state.is_preempted
    again.stop()


def running() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


@pytest.mark.parametrize("sent", [False, True])
async def test_next_agent_sends_pending_preemption_signal_once(tmp_path: Path, sent: bool) -> None:
    node = Node(tmp_path, notices="import sys; sys.stdin.read()")
    file = Path(node.state.config.paths.notices)
    with running() as rank:
        process = node.slots.slots[0].process = Process(rank.pid)
        process.connection, process.is_ready = node.peer, True
        file.write_text(json.dumps([[1, True, monotonic() + 60, [rank.pid], sent]]))
        desk = make_notifier(node)
        desk.start()
        desk.stop()
        assert json.loads(file.read_text())[0][4] is True
        if sent:
            assert rank.poll() is None
            rank.kill()
        assert rank.wait() == (-signal.SIGKILL if sent else -signal.SIGTERM)


def run_restarting_call(node: Node, rank: subprocess.Popen[bytes]) -> Call:
    """Let a rank of the node run a call that starts again after a preemption."""
    slot = node.slots.slots[0]
    slot.process = Process(rank.pid)
    slot.process.connection, slot.process.is_ready = node.peer, True
    begun = call("r1", 0, gang=True, attempt={"number": 1})
    node.state.registry.add(begun)
    slot.running[begun.key] = begun
    return begun


async def test_rank_that_begins_after_the_notice_gets_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not the ranks of the next attempt, although the notice of the machine that they replace still stands."""
    monkeypatch.setattr(preemption_notices, "CALLBACK_HEAD_START", 0.0)
    node = Node(tmp_path)
    desk = make_notifier(node)
    desk.on_remote_notice(0, 60.0)

    def saved() -> list[Any]:
        return list(json.loads(Path(node.state.config.paths.notices).read_text())[0])

    await until(lambda: saved()[4])
    with running() as rank, running() as later:
        run_restarting_call(node, rank)
        desk.check()
        assert rank.wait() == -signal.SIGTERM
        assert saved()[3:] == [[rank.pid], True]
        node.state.gang.epoch += 1
        run_restarting_call(node, later)
        desk.check()
        assert saved()[3] == [rank.pid]
        later.kill()
        assert later.wait() == -signal.SIGKILL


async def test_cancel_that_saves_does_not_interrupt_a_save_before_a_preemption(tmp_path: Path) -> None:
    node = Node(tmp_path)
    desk = make_notifier(node)
    with running() as rank:
        run_restarting_call(node, rank)
        slot = node.slots.slots[0]
        slot.mark_saving(0, monotonic() + 60)  # for the preemption of node 0, with SIGTERM
        desk.save_run("r1", 30.0)
        node.slots.stop_run("r1", "cancel", 30.0, breaks=True)
        assert slot.process is not None and slot.process.kill_reason == "cancel of run r1"
        rank.kill()
        assert rank.wait() == -signal.SIGKILL, "no SIGTERM before"


# -- in a rank's process ---------------------------------------------------------------------------------------


@pytest.fixture
def write_notices(tmp_path: Path) -> Iterator[Any]:
    """Write preemption notices for this process, as its node's agent does."""
    file = tmp_path / "notices.json"
    before = signal.getsignal(preemption.NOTICE_SIGNAL)

    def write(*notices: PreemptionNotice) -> None:
        file.write_text(json.dumps([each.to_json() for each in notices]))

    preemption.install_handler(str(file))
    preemption.start_call(in_gang=True)
    yield write
    signal.signal(preemption.NOTICE_SIGNAL, before)
    preemption._notice_file, preemption._callbacks[:], preemption._persistent_callbacks = "", [], 0
    preemption._received_sigterms.clear()
    preemption.start_call(in_gang=False)


def make_notice(node: int = 0, ends: float | None = None, *, mine: bool = True) -> PreemptionNotice:
    return PreemptionNotice(node, mine, monotonic() + 60 if ends is None else ends, (os.getpid(),) if mine else ())


def test_on_preempt_callbacks_run_in_order_with_accepted_arguments(write_notices: Any, capfd: Any) -> None:
    heard: list[Any] = []

    class Saves:
        def __call__(self, seconds: float, /, into: str = "model.pt", *rest: int, quick: bool = True) -> None:
            heard.append((round(seconds), into, rest))

    on_preempt(lambda: heard.append("first"))
    on_preempt(Saves())
    assert on_preempt(heard.clear) is not None  # C code that requires nothing
    on_preempt(lambda seconds, node: heard.append(node))
    one = make_notice(3, mine=False)
    write_notices(one)
    os.kill(os.getpid(), preemption.NOTICE_SIGNAL)
    assert heard == [3], "in this order: the third has cleared what the first two have said"
    os.kill(os.getpid(), preemption.NOTICE_SIGNAL)
    write_notices(one, make_notice(4, ends=monotonic() - 60, mine=False))  # its time is over
    assert preemption.run_callbacks() and heard == [3], "once each"
    preemption.start_call(in_gang=False)
    write_notices(one, make_notice(5, mine=False))
    assert preemption.run_callbacks() and heard == [3], "other nodes' machines are of no interest to a single task"
    write_notices(one, make_notice(0))
    assert preemption.run_callbacks() and heard == [0]


@pytest.mark.parametrize("callback", [lambda a, b, c: None, lambda *, into: None, "save"], ids=range(3))
def test_on_preempt_rejects_callback_with_unsupported_signature(callback: Any) -> None:
    before = list(preemption._callbacks)
    with pytest.raises(TypeError, match="on_preempt"):
        on_preempt(callback)
    assert preemption._callbacks == before


def test_failing_on_preempt_callback_stops_no_other_callback(write_notices: Any, capfd: Any) -> None:
    heard: list[int] = []
    write_notices(make_notice())

    @on_preempt
    def save() -> None:
        raise OSError("the disk is full")

    assert "save, a callback of on_preempt, failed" in (output := capfd.readouterr().err)
    assert "OSError: the disk is full" in output
    preemption._callbacks[:] = []
    write_notices()
    for callback in (save, lambda: os._exit if heard else exit(7), lambda: heard.append(1)):
        on_preempt(callback)
    write_notices(make_notice(ends=monotonic() + 90))
    with pytest.raises(SystemExit) as left:
        preemption.run_callbacks()
    assert (left.value.code, heard) == (7, [1])


def test_first_announced_sigterm_counts_as_preemption(write_notices: Any) -> None:
    assert not preemption.is_preemption_sigterm() and not preemption.is_sigterm_pending()
    write_notices(make_notice(2, mine=False), PreemptionNotice(0, True, monotonic() + 60, (1,)))
    assert not preemption.is_preemption_sigterm() and not preemption.is_sigterm_announced(), "it was started since"
    write_notices(make_notice())
    assert preemption.is_sigterm_pending() and preemption.is_sigterm_announced()
    assert (
        preemption.is_preemption_sigterm()
        and not preemption.is_preemption_sigterm()
        and not preemption.is_sigterm_pending()
    )


def test_on_preempt_callbacks_of_a_call_end_with_the_call(write_notices: Any) -> None:
    heard: list[str] = []
    on_preempt(lambda: heard.append("plugin"))
    preemption.keep_callbacks()
    on_preempt(lambda: heard.append("call"))
    preemption.drop_callbacks()
    write_notices(make_notice())
    assert preemption.run_callbacks() and heard == ["plugin"]


def test_invalid_notice_file_yields_no_preemption_notices(write_notices: Any, tmp_path: Path) -> None:
    for text in ("", "[", "7", "[7]", '[{"a": 1}]', "[[1, 2]]", "[[0, true, 1, 7, false]]"):
        (tmp_path / "notices.json").write_text(text)
        assert preemption.pending_notices() == []


# The process that measures a machine, as its agent sees to it: it may hang or die, and readers come and go.


class Reader:
    """Client that requests samples from an offset on."""

    def __init__(self, meter: SamplerProcess, at: int = 0, speaker: Speaker | None = None) -> None:
        self.speaker = speaker or Speaker(Connection(lambda *_: None, lambda _: None))
        self.frames = self.speaker.socket.frames
        self.task = asyncio.create_task(meter.stream(self.speaker.connection, at))

    def values(self) -> list[int]:
        return [json.loads(line)["n"] for _, body in self.frames for line in body.splitlines()]

    def whys(self) -> list[str]:
        return [header["why"] for header, _ in self.frames if "why" in header]


class Metered(Node):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.meter = SamplerProcess(self.state.config)
        self.record = SampleFiles(self.state.config.paths.samples, size=200)

    @property
    def processes(self) -> list[int]:
        return list(find_node_processes(self.state.config.folder))


@pytest.fixture
async def meter_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Metered]:
    monkeypatch.setattr(metrics_sampler_supervisor, "PERIOD", 0.01)
    monkeypatch.setattr(metrics_sampler_supervisor, "PROGRESS_POLL", 0.5)
    monkeypatch.setattr(metrics_sampler_supervisor, "RESTART_DELAYS", (0.01, 0.02))
    found = Metered(tmp_path)
    yield found
    found.meter.stop()


@pytest.fixture
def no_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the sampler. The tests write the samples."""
    monkeypatch.setattr(SamplerProcess, "ensure_running", lambda self: None)


async def test_late_metrics_reader_gets_past_samples_and_resumes_at_its_cursor(
    meter_node: Metered, no_sampling: None
) -> None:
    for n in range(3):
        meter_node.record.append({"n": n})
    reader = Reader(meter_node.meter)
    await until(lambda: reader.values() == [0, 1, 2])
    meter_node.record.append({"n": 3})
    await until(lambda: reader.values() == [0, 1, 2, 3])
    header, body = reader.frames[-1]
    again = Reader(meter_node.meter, header["at"] + len(body), reader.speaker)
    meter_node.record.append({"n": 4})
    await until(reader.task.done)  # the same connection asked again, and is sent all once
    await until(lambda: again.values() == [0, 1, 2, 3, 4])


async def test_metrics_reader_skips_dropped_samples_and_foreign_cursors(meter_node: Metered, no_sampling: None) -> None:
    for n in range(100):
        meter_node.record.append({"n": n})
    late = Reader(meter_node.meter)
    await until(lambda: late.values()[-1:] == [99])
    assert 1 < len(late.values()) < 60
    assert late.values() == list(range(late.values()[0], 100))
    assert late.frames[0][0]["at"] > 0
    other = Reader(meter_node.meter, 1 << 40)
    await until(lambda: other.values() == late.values())


async def test_exited_metrics_sampler_is_restarted_and_reported(meter_node: Metered) -> None:
    reader = Reader(meter_node.meter)
    await until(lambda: reader.frames)
    (pid,) = meter_node.processes
    os.kill(pid, signal.SIGKILL)
    await until(lambda: meter_node.processes and pid not in meter_node.processes)
    await until(lambda: reader.whys() == ["the metrics sampler exited"])
    await until(lambda: reader.frames[-1][1])


async def test_frozen_metrics_sampler_is_replaced_and_reported(meter_node: Metered) -> None:
    reader = Reader(meter_node.meter)
    await until(lambda: reader.frames)
    (pid,) = meter_node.processes
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: meter_node.processes and pid not in meter_node.processes)
    await until(lambda: [why for why in reader.whys() if "has not responded for" in why])
    meter_node.meter.stop()
    await until(lambda: not meter_node.processes)


async def test_metrics_sampler_that_cannot_start_is_given_up(
    meter_node: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    reader = Reader(meter_node.meter)
    await until(lambda: [why for why in reader.whys() if why.endswith("; it will not be restarted")])


# Which calls are told of while they run.

ASKED: Any = {}
RETURNED: Any = {"kind": "returned"}


def sent_call(index: int) -> Call:
    return Call("r", index, ASKED, b"", None)


def test_running_calls_among_many_are_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[tuple[int, int]] = []

    async def story() -> None:
        slow = SlowCalls(lambda rank, sent_call: received.append((rank, sent_call.index)))
        calls = [sent_call(index) for index in range(100)]
        for number, each in enumerate(calls):
            slow.add(number % 4, each)
            if number % 10:
                each.outcome = RETURNED
        calls[50].pending_outcome = (RETURNED, b"")
        while len(received) < 9:
            await asyncio.sleep(0.005)
        # Those that come later are told of in their turn.
        later = sent_call(100)
        slow.add(0, later)
        while len(received) < 10:
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 20))
    assert received == [(index % 4, index) for index in range(0, 100, 10) if index != 50] + [(0, 100)]


@pytest.mark.parametrize("seed", range(3))
def test_exactly_the_running_calls_are_announced_at_any_pace(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequent calls share a timer; the end of another call cancels it. Neither loses the announcement of a call."""
    monkeypatch.setattr("skyward_core.node.agent.call_lifecycle.ANNOUNCE_DELAY", 0.02)
    dice, received, running = random.Random(seed), list[int](), list[int]()

    async def story() -> None:
        slow = SlowCalls(lambda rank, each: received.append(each.index))
        for index in range(60):
            slow.add(0, each := sent_call(index))
            if dice.random() < 0.8:
                each.outcome = RETURNED
                slow.on_end()
            else:
                running.append(index)
            await asyncio.sleep(dice.choice((0, 0, 0, 0.001, 0.008)))
        while len(received) < len(running):
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 20))
    assert received == running
