"""Assignment of calls to worker slots, breaks of the gang, and the process of plugin contexts of a node."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent import plugin_context_supervisor, worker_slot_queue_and_process
from skyward_core.node.agent.agent import Agent
from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_lifecycle import ANNOUNCE_DELAY
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.gang_state import Gang
from skyward_core.node.agent.log_tailing_and_size_limits import LogTail
from skyward_core.node.agent.plugin_context_supervisor import PluginContextProcess
from skyward_core.node.agent.worker_processes import Process
from skyward_core.node.agent.worker_slot_queue_and_process import Slot
from skyward_core.protocol.frame_codec import Header, WireError
from tests.support.agent_parts import Node, Peer, Speaker


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_call_for_a_rank_goes_to_its_first_slot(node: Node) -> None:
    for header in ({"rank": 3}, {"rank": 3, "gang": True}):
        slot = node.slots.pick_slot(node.call(0, **header))
        assert (slot.rank, slot.number) == (3, 0)


async def test_only_calls_older_than_the_announce_delay_count_as_slow(node: Node) -> None:
    call = node.call(0)
    slot = node.slots.slots[0]
    assert not node.slots.has_slow_calls()
    slot.running[call.key] = call
    call.started_at = time.monotonic() + 60
    assert not node.slots.has_slow_calls()
    call.started_at = time.monotonic() - ANNOUNCE_DELAY
    assert node.slots.has_slow_calls()


@pytest.mark.parametrize("header", [{"rank": 0}, {"rank": 4}, {"gang": True}])
async def test_call_for_a_rank_of_another_node_is_refused(node: Node, header: Header) -> None:
    with pytest.raises(WireError, match="node 1 has no rank"):
        node.slots.pick_slot(node.call(0, **header))


async def test_tasks_move_to_another_process_when_plugins_join_the_ranks(tmp_path: Path) -> None:
    node = Node(tmp_path, concurrency=1)
    task, run = node.call(0, rank=2), node.call(1, rank=2, gang=True)
    task.order, run.order = 1, 2
    first, lone = node.slots.slots[0], node.slots.slots[1]
    for call in (task, run):
        node.slots.pick_slot(call).enqueue(call)
    assert list(first.queue) == [task, run] and (first.twin, lone.twin) == (lone, first)
    node.state.learn_gang(Gang(epoch=1, hooks=True, joins=True))
    assert node.state.has_separate_tasks
    node.slots.separate_tasks()
    assert (list(first.queue), list(lone.queue)) == ([run], [task])
    assert node.slots.steal_task(first) is None, "the gang's process takes no task"
    assert (lone.has_turn, first.has_turn) == (True, False), "the call that came first"
    late = node.call(2)
    node.slots.pick_slot(late).enqueue(late)
    assert late in node.slots.slots[3].queue, "of the rank with less to do"


@pytest.mark.parametrize(
    ("config", "devices", "accelerators"),
    [
        ({"accelerators": 8, "env": {"CUDA_VISIBLE_DEVICES": "0,1,2,3,8,9,10,11"}}, "8,9", 2),
        ({"accelerators": 2}, "0", 1),
        ({"accelerators": 1}, None, 1),
        ({"accelerators": 4, "devices": ["a", "b", "c", "d"]}, None, 1),
    ],
)  # fmt: skip
async def test_task_gets_the_gpus_of_its_rank(
    tmp_path: Path, config: dict[str, Any], devices: str | None, accelerators: int
) -> None:
    state = Node(tmp_path, ranks_per_node=4, **config).state
    assert state.machine_share(6).get("devices") == devices
    assert state.task_info(6, 0, 1)["accelerators"] == accelerators


async def test_idle_slot_steals_only_unbound_tasks(node: Node) -> None:
    busy, idle = node.places[0], node.places[3]
    for call in (node.call(0, gang=True, rank=2), node.call(1, rank=2), node.call(2)):
        busy.enqueue(call)
    taken = node.slots.steal_task(idle)
    assert taken is not None and taken.index == 2
    assert node.slots.steal_task(idle) is None and [call.index for call in busy.queue] == [0, 1]


async def test_call_waits_for_the_hello_of_its_worker(node: Node) -> None:
    slot, worker = node.places[1], Peer()
    node.state.learn_gang(Gang(epoch=7))
    slot.process = Process(0)  # no process's id: nothing is ever sent a signal here
    slot.process.epoch = 7
    slot.enqueue(node.call(0, t="call", run="r1", idx=0))
    assert [call.index for call in slot.queue] == [0] and not slot.running
    slot.on_connected(worker, {"t": "hello", "pid": 0}, b"")
    assert not slot.queue and [call.index for call in slot.running.values()] == [0]
    assert [(frame["t"], frame.get("idx")) for frame in worker.frames] == [("place", None), ("call", 0)]


async def test_waiting_call_is_stopped_once(node: Node) -> None:
    call = node.call(0)
    node.places[1].enqueue(call)
    node.slots.stop(call, "cancel", 1.0)
    node.slots.stop(call, "fail-fast", 1.0)
    (frame,) = node.peer.frames
    assert frame["kind"] == "collateral" and "cancelled" in frame["error"]["message"]
    assert not node.places[1].queue and not frame["begun"]


async def test_gang_breaks_once_and_only_if_it_exists(node: Node) -> None:
    node.slots.break_gang("a rank died")
    assert node.peer.frames == [], "there is none yet"
    node.state.learn_gang(Gang(epoch=7))
    node.slots.break_gang("a rank died")
    node.slots.break_gang("another one")
    assert node.peer.frames == [{"t": "gang", "epoch": 7, "broken": "a rank died"}]
    node.state.learn_gang(Gang(epoch=8, alone=True))
    node.slots.break_gang("a rank died")
    assert len(node.peer.frames) == 1, "ranks that stand alone are no gang"


def busy_slot(node: Node, **header: Any) -> tuple[Slot, Call]:
    """Slot of a gang whose worker runs a call."""
    slot = node.places[0]
    node.state.learn_gang(Gang(epoch=7))
    slot.logs.open()
    slot.process = Process(0)  # no process's id: nothing is ever sent a signal here
    slot.process.epoch = 7
    call = node.call(0, t="call", run="r1", i=0, epoch=7, **header)
    slot.enqueue(call)
    slot.on_connected(Peer(), {"t": "hello", "pid": 0}, b"")
    assert slot.running
    node.peer.frames.clear()
    return slot, call


@pytest.mark.parametrize(
    ("of_pool", "handles", "notice", "reason", "requested", "seconds"),
    [
        (None, False, 0, "fail-fast", None, 5),
        (None, True, 0, "fail-fast", None, 30),
        (2.0, True, 0, "preemption", None, 2),
        (None, True, 10, "fail-fast", None, 30),
        (None, False, 100, "fail-fast", None, 100),
        (2.0, True, 100, "fail-fast", None, 2),
        (2.0, True, 100, "preemption", None, 100),
        (2.0, True, 100, "preemption", 1.0, 1),
    ],
)  # fmt: skip
async def test_grace_depends_on_pool_handler_preemption_notice_and_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    of_pool: float | None, handles: bool, notice: float, reason: str, requested: float | None, seconds: float,
) -> None:  # fmt: skip
    node, scheduled = Node(tmp_path, grace=of_pool), list[float]()
    slot, call = busy_slot(node)
    assert slot.process is not None
    slot.process.handles_sigterm = handles
    node.state.preemption_ends = time.monotonic() + notice
    monkeypatch.setattr(worker_slot_queue_and_process, "signal_group", lambda pid, number: True)
    monkeypatch.setattr(Slot, "_schedule_kill", lambda self, process, grace: scheduled.append(grace))
    node.slots.stop(call, reason, requested)
    node.slots.stop(call, "timeout")
    assert list(map(round, scheduled)) == [seconds]
    node.slots.stop(call, "cancel", 0.0)
    assert scheduled[1:] == [0.0], "a later request may shorten the grace"
    assert call.stop_reason == reason


async def test_output_of_a_call_is_sent_before_its_outcome(node: Node) -> None:
    slot, call = busy_slot(node)
    spool, redactor = node.state.config.spool, node.state.redactor
    tail = LogTail(spool, node.peer, {}, lambda: True, redactor, node.slots.mark_logs, node.slots.log_send_limit)
    node.audience[node.peer].tail = tail
    os.write(slot.logs.descriptors[0], b"printed\n")
    slot.on_outcome(call, {"t": "outcome", "run": "r1", "i": 0, "kind": "returned"}, b"")
    kinds = [(header["t"], header.get("f")) for header in node.peer.frames]
    assert ("log", "r002.out") in kinds and kinds[-1] == ("outcome", None)
    assert node.peer.frames[-1]["log"]["r002.out"] == [0, 8]


async def test_gang_breaks_before_the_outcome_that_broke_it_is_sent(node: Node) -> None:
    slot, call = busy_slot(node, gang=True, rank=2)
    slot.on_outcome(call, {"t": "outcome", "run": "r1", "i": 0, "kind": "exited"}, b"")
    assert [frame["t"] for frame in node.peer.frames] == ["gang"], "the worker is still on its way out"
    assert "rank 2 ended" in node.peer.frames[0]["broken"]
    slot._finish_pending(call)
    assert [frame["t"] for frame in node.peer.frames] == ["gang", "outcome"]


async def test_gang_breaks_before_a_plugin_failure_is_sent(node: Node) -> None:
    """A notified client may start the next run at once, of which only a part would run."""
    slot, call = busy_slot(node, gang=True, rank=2)
    assert slot.process is not None
    slot.process.is_ready = True  # so it is asked to end, and sent no signal
    slot.on_outcome(call, {"t": "outcome", "run": "r1", "i": 0, "kind": "raised", "unusable": True}, b"")
    assert [frame["t"] for frame in node.peer.frames] == ["gang", "outcome"]
    assert "its plugins could not be entered" in node.peer.frames[0]["broken"]


# When an agent starts the process of ``around_app``, what ranks wait for, and what becomes of its end.

GANG = Gang(epoch=1, apps=True, hooks=True, plugins=b"their pickle")


class Around:
    """``PluginContextProcess`` of a node with fake processes, whose numbers belong to no process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = AgentConfig(
            "p", 1, 2, str(folder), str(folder / "s"), ranks_per_node=2, idle_timeout=600.0, grace=60.0
        )
        config.spool.mkdir()
        self.state = NodeState(config)
        self.state.learn_gang(GANG)
        self.started = 0
        self.signals: list[int] = []
        self.pumped = 0
        self.broken: list[str] = []
        self.fails: OSError | None = None
        self.apps = PluginContextProcess(self.state, self._pump, self.broken.append)
        monkeypatch.setattr(plugin_context_supervisor, "spawn", self._spawn)
        monkeypatch.setattr(plugin_context_supervisor, "signal_group", lambda pid, number: self.signals.append(number))

    def _pump(self) -> None:
        self.pumped += 1

    def _spawn(self, *args: Any) -> int:
        if self.fails is not None:
            raise self.fails
        self.started += 1
        return 0

    def greet(self, state: str = "fresh") -> Speaker:
        process = Speaker(Connection(lambda _, header, body: self.hear(header, body), lambda _: None))
        header: Any = {"t": "hello", "pid": 0, "state": state}
        self.apps.on_connected(process.connection, header)
        return process

    def hear(self, header: Any, body: bytes = b"") -> None:
        self.apps.on_frame(header, body)

    def enter(self) -> Speaker:
        self.apps.ensure_entered()
        process = self.greet()
        process.add_note({"t": "entered"})
        process.take_frames()
        return process


@pytest.fixture
def plugin_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Around]:
    yield Around(tmp_path, monkeypatch)


async def test_entered_plugin_process_of_an_earlier_agent_gets_nothing(plugin_process: Around) -> None:
    plugin_process.apps.process = Process(0)
    process = plugin_process.greet("entered")
    plugin_process.apps.ensure_entered()
    assert plugin_process.apps.is_resolved and process.take_frames() == [] and plugin_process.started == 0


async def test_plugin_process_requested_while_ending_is_restarted(plugin_process: Around) -> None:
    plugin_process.apps.ensure_entered()
    plugin_process.greet().add_note({"t": "failed", "error": {"type": "E", "message": "", "plugin": "dask"}})
    plugin_process.apps.ensure_entered()
    assert not plugin_process.apps.is_resolved and plugin_process.started == 1
    plugin_process.apps.on_exit(0)
    assert plugin_process.started == 2


async def test_plugin_process_that_dies_reports_the_plugin_and_last_output(plugin_process: Around) -> None:
    plugin_process.apps.ensure_entered()
    (plugin_process.state.config.spool / "app.log").write_text("no such scheduler\n")
    plugin_process.greet().add_note({"t": "entering", "plugin": "dask"})
    plugin_process.apps.on_exit(signal.SIGKILL)
    assert plugin_process.apps.entry_failure is not None
    error, _ = plugin_process.apps.entry_failure
    assert error["message"].startswith("plugin dask failed in around_app: ")
    assert "SIGKILL" in error["message"] and error["message"].endswith("last output: no such scheduler")
    assert plugin_process.apps.is_resolved and not plugin_process.broken


async def test_death_of_the_entered_plugin_process_breaks_the_gang(plugin_process: Around) -> None:
    plugin_process.enter()
    plugin_process.apps.on_exit(os.WEXITSTATUS(0))
    assert len(plugin_process.broken) == 1 and "around_app ended" in plugin_process.broken[0]
    assert plugin_process.signals == [signal.SIGKILL], "and so are children that outlived it"


async def test_end_of_the_plugin_process_breaks_nothing_while_the_agent_closes(plugin_process: Around) -> None:
    process = plugin_process.enter()
    plugin_process.state.is_closing = True
    plugin_process.apps.exit_process(60.0)
    assert process.take_frames() == [{"t": "exit"}] and plugin_process.signals == [], "it leaves its contexts by itself"
    plugin_process.apps.on_exit(0)
    assert plugin_process.apps.process is None and plugin_process.started == 1 and not plugin_process.broken


async def test_plugin_process_in_user_code_is_stopped_by_sigterm(plugin_process: Around) -> None:
    plugin_process.apps.ensure_entered()
    plugin_process.greet()
    plugin_process.apps.exit_process(60.0)
    assert plugin_process.signals == [signal.SIGTERM]


async def test_plugin_process_that_cannot_start_is_an_entry_failure(plugin_process: Around) -> None:
    plugin_process.fails = OSError("no descriptors left")
    plugin_process.apps.ensure_entered()
    assert plugin_process.apps.entry_failure is not None and plugin_process.pumped == 1
    assert "could not be started: no descriptors left" in plugin_process.apps.entry_failure[0]["message"]


@pytest.mark.parametrize(("number", "advice"), [(errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u")])
async def test_call_whose_worker_cannot_start_names_the_limit(
    node: Node, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(worker_slot_queue_and_process, "spawn", refuse)
    call = node.call(0, t="call", run="r1", i=0)
    node.places[0].queue.append(call)
    node.places[0].start()
    (frame,) = node.peer.frames
    assert frame["kind"] == "exited" and advice in frame["error"]["message"]


async def test_agent_that_cannot_accept_its_workers_kills_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(worker_slot_queue_and_process, "signal_group", lambda *sent: signals.append(sent))
    agent = Agent(Node(tmp_path).state.config)
    process = agent._slots.slots[0].process = Process(4711)
    process.started_at -= worker_slot_queue_and_process.CONNECT_PATIENCE
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(agent._state.config.worker_socket)
        failed = {"exception": OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "socket": listener}
        agent._on_loop_error(asyncio.get_running_loop(), failed)
    assert signals == [(4711, signal.SIGKILL)] and "open files (ulimit -n" in process.failure


async def test_worker_that_the_agent_cannot_accept_is_killed_and_reported(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(worker_slot_queue_and_process, "signal_group", lambda *sent: signals.append(sent))
    slot = node.places[0]
    slot.process = Process(4711)
    slot.queue.append(node.call(0, t="call", run="r1", i=0))
    node.slots.reject_unconnected("no free descriptors")
    assert signals == [], "it may still connect"
    slot.process.started_at -= worker_slot_queue_and_process.CONNECT_PATIENCE
    node.slots.reject_unconnected("no free descriptors")
    assert signals == [(4711, signal.SIGKILL)]
    slot.on_exit(signal.SIGKILL)
    (frame,) = node.peer.frames
    assert frame["error"]["message"] == "its worker could not start: no free descriptors"
