"""Connection of a worker to its agents, and requests of clients to an agent."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent.client_requests import ClientRequests
from skyward_core.node.agent.fail_fast_without_client import FailFast
from skyward_core.node.agent.gang_state import EpochFile
from skyward_core.node.agent.metrics_sampler_supervisor import SamplerProcess
from skyward_core.node.worker.agent_channel import AgentChannel
from skyward_core.protocol.frame_codec import VERSION, Decoder, Header, encode_frame
from tests.support.agent_parts import Node, Speaker
from tests.support.waiting import until

CALL: Header = {"t": "call", "run": "r", "i": 0, "fn": ["ab", 1], "args": ["cd", 1]}


class Agent:
    """Server at the worker's socket that records frames."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._server.settimeout(30)

    def accept(self) -> None:
        self._connection, _ = self._server.accept()
        self._connection.settimeout(30)
        self._decoder = Decoder()

    def read(self, count: int) -> list[Header]:
        got: list[Header] = []
        while len(got) < count:
            got += [header for header, _ in self._decoder.feed(self._connection.recv(1 << 16))]
        return got

    def say(self, header: Header) -> None:
        self._connection.sendall(encode_frame(header))

    def die(self) -> None:
        self._server.close()
        self._connection.close()


def test_worker_resends_frames_that_a_dead_agent_had_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    agent = Agent(path)
    channel = AgentChannel(str(path), lambda: ({"t": "hello"}, b""), 30)
    agent.accept()
    for number in range(4):
        channel.send({"t": "outcome", "i": number})
    assert [header.get("i") for header in agent.read(5)] == [None, 0, 1, 2, 3]
    agent.say(CALL | {"seen": 3})  # the greeting, and two of them
    agent.say({"t": "credit", "run": "r", "i": 0, "next": 1})
    assert [channel.receive()[0]["t"] for _ in range(2)] == ["call", "credit"]
    agent.die()
    following = Agent(path)
    following.accept()
    assert [header.get("i") for header in following.read(3)] == [None, 2, 3]
    channel.send({"t": "outcome", "i": 4})
    assert following.read(1)[0]["i"] == 4
    following.say(CALL | {"seen": 2})
    channel.receive()
    following.die()
    last = Agent(path)
    last.accept()
    assert [header.get("i") for header in last.read(3)] == [None, 3, 4]
    last.die()


def test_frames_of_a_dead_agent_are_received_before_reconnection(tmp_path: Path) -> None:
    """The next agent assumes that the worker has received these frames, even if the worker was busy."""
    path = tmp_path / "socket"
    agent = Agent(path)
    channel = AgentChannel(str(path), lambda: ({"t": "hello"}, b""), 30)
    agent.accept()
    channel.send({"t": "phase", "phase": "joining"})
    agent.read(2)
    for number in range(3):
        agent.say(CALL | {"i": number, "seen": 2})
    agent.die()
    following = Agent(path)
    following.accept()
    assert len(following.read(1)) == 1, "and sends nothing again that was seen"
    following.say({"t": "exit"})
    assert [channel.receive()[0].get("i") for _ in range(4)] == [0, 1, 2, None]
    following.die()


# What clients ask of an agent, over connections of their own, and what each of them is told.

BLOB = "ab" * 16
REQUESTS_CALL: Header = {
    "t": "call", "run": "aa11", "i": 0, "fn": [BLOB, 0], "args": [BLOB, 0], "name": "train", "total": 1,
}  # fmt: skip


class Life:
    """State of the agent as its clients change it."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, str]] = []
        self.given_up: list[str] = []
        self.warned: list[tuple[int, float]] = []
        self.keep = 0.0

    def is_in_use(self) -> bool:
        return True

    def discard_results(self, runs: list[str], keep: float) -> None:
        self.given_up, self.keep = runs, keep

    def shut_down(self, who: str, why: str) -> None:
        self.ends.append((who, why))

    async def halt(self, who: str) -> None:
        self.ends.append((who, "halted"))

    def notice_frames(self) -> list[Header]:
        return []

    def on_remote_notice(self, node: int, left: float) -> None:
        self.warned.append((node, left))

    def save_run(self, run: str, grace: float | None) -> float:
        raise AssertionError("nobody asked for that")

    def machine_sampler(self) -> SamplerProcess:
        raise AssertionError("nobody asked for that")


class Served(Node):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.audience.remove(self.peer)
        self.life = Life()
        fail_fast = FailFast(self.state, self.slots)
        self.requests = ClientRequests(
            self.state, self.audience, self.desk, self.slots, self.phases, fail_fast, self.life
        )

    def client(self, **hello: Any) -> Speaker:
        client = Speaker(self.requests.accept())
        (welcome,) = client.add_note({"t": "hello", "version": VERSION, **hello})
        assert welcome["t"] == "welcome"
        return client


@pytest.fixture
def node(tmp_path: Path) -> Served:
    return Served(tmp_path)


async def test_welcome_describes_the_node_and_its_known_runs(node: Served) -> None:
    first = node.client(watch=True)
    first.add_note(REQUESTS_CALL)
    (welcome,) = Speaker(node.requests.accept()).add_note({"t": "hello", "version": VERSION})
    assert (welcome["version"], welcome["pool"], welcome["node"]) == (VERSION, "p", 1)
    assert (welcome["ranks_per_node"], welcome["epoch"], welcome["idle_timeout"]) == (2, 0, 600.0)
    assert [(run["run"], run["function"], run["total"]) for run in welcome["runs"]] == [("aa11", "train", 1)]


@pytest.mark.parametrize("short", ["joining", "running", ""])
async def test_short_rank_phase_is_not_in_the_welcome(node: Served, short: str) -> None:
    client = node.client(watch=True)
    node.phases.set_phase(3, "importing")
    await until(client.take_frames)
    node.phases.set_phase(3, short)
    late = Speaker(node.requests.accept())
    (welcome,) = late.add_note({"t": "hello", "version": VERSION, "watch": True})
    node.phases.set_phase(3, "importing")
    node.phases.set_phase(2, "joining")
    heard: list[Header] = []

    def rank_2_is_told() -> bool:
        heard.extend(late.take_frames())
        return any(header["rank"] == 2 for header in heard)

    await until(rank_2_is_told)
    assert {each["rank"]: each["phase"] for each in (*welcome["phases"], *heard)} == {3: "importing", 2: "joining"}
    assert [header["phase"] for header in client.take_frames()] == ["joining"]


async def test_observer_holds_the_lease_only_after_using_the_pool(node: Served) -> None:
    watcher = node.client(observer=True)
    assert not node.audience.is_in_use
    assert watcher.add_note({"t": "use"}) == []
    assert node.audience.is_in_use


async def test_repeated_call_frame_starts_one_call_for_the_last_sender(node: Served) -> None:
    client, other = node.client(), node.client()
    for speaker in (client, client, other):
        speaker.add_note(REQUESTS_CALL)
    assert sum(slot.load for slot in node.slots.slots) == 1
    (call,) = node.state.registry.calls.values()
    assert call.owner is other.connection, "who asked last gets the result"


@pytest.mark.parametrize("kind", ["broadcast", "gather", "sweep"])
async def test_call_whose_result_another_client_fetched_does_not_run_again(node: Served, kind: str) -> None:
    client, other = node.client(), node.client()
    asked = REQUESTS_CALL | {"kind": kind, "epoch": 3}
    client.add_note(asked)
    other.add_note({"t": "claim", "run": "aa11"})
    (call,) = node.state.registry.calls.values()
    node.desk.on_client_gone(client.connection)
    node.desk.finish(call, {**call.make_outcome({"kind": "returned"}), "file": "aa11.0.1.result", "size": 9}, b"")
    other.add_note({"t": "ack", "calls": {"aa11": None}})
    assert not node.state.registry.calls
    (answer,) = node.client().add_note(asked)
    assert not node.state.registry.calls and node.state.registry.active == 0
    assert (answer["t"], answer["i"], answer["kind"]) == ("outcome", 0, "collateral")
    assert (answer["rank"], answer["node"]) == (call.rank, call.rank // 2)
    assert "another client fetched the result" in answer["error"]["message"]
    assert "file" not in answer, "the node has deleted the result"


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_calls_that_no_rank_began_run_in_the_next_gang(node: Served, acknowledged: bool) -> None:
    client = node.client()
    calls = [REQUESTS_CALL | {"kind": "broadcast", "gang": True, "i": rank, "rank": rank} for rank in (2, 3)]
    for call in calls:
        client.add_note(call | {"epoch": 1})
    ended = client.add_note({"t": "stop", "run": "aa11", "why": "the gang broke before all ranks began"})
    assert [(each["kind"], each["begun"]) for each in ended] == [("collateral", False)] * 2
    if acknowledged:  # Otherwise the connection was lost first.
        client.add_note({"t": "ack", "calls": {"aa11": None}})
    for call in calls:
        assert client.add_note(call | {"epoch": 2}) == []
    waiting = [call for slot in node.slots.slots for call in slot.queue]
    assert [(call.index, call.header["epoch"]) for call in waiting] == [(2, 2), (3, 2)]
    assert node.state.registry.active == 2 and not node.state.registry.records["aa11"].outcomes


async def test_next_attempt_of_the_client_replaces_a_withheld_outcome(node: Served) -> None:
    client = node.client()
    client.add_note(REQUESTS_CALL)
    (first,) = node.state.registry.calls.values()
    undecided: Any = first.make_outcome({"kind": "exited"})
    first.undecided = undecided  # the client was away for a moment after it had decided
    attempt = {"number": 2, "restarts": 3, "cause": "loss", "message": "", "lost": [], "ends": []}
    client.add_note(REQUESTS_CALL | {"attempt": attempt})
    assert [each.attempt for each in node.state.registry.calls.values()] == [2]
    assert node.state.registry.active == 1


async def test_watching_clients_are_notified_of_a_new_run(node: Served) -> None:
    client, watcher, deaf = node.client(watch=True), node.client(watch=True), node.client()
    assert client.add_note(REQUESTS_CALL) == []
    (run,) = watcher.take_frames()
    assert (run["t"], run["run"], run["total"]) == ("run", "aa11", 1)
    assert deaf.take_frames() == []


async def test_call_for_a_rank_of_another_node_ends_the_connection(node: Served) -> None:
    client = node.client()
    (error,) = client.add_note(REQUESTS_CALL | {"rank": 0, "gang": True})
    assert (error["t"], "node 1 has no rank 0" in error["message"]) == ("error", True)
    assert client.socket.closed
    assert not node.state.registry.calls


async def test_waiting_calls_of_a_run_are_stopped_by_index_or_all(node: Served) -> None:
    client = node.client()
    for index in range(3):
        client.add_note(REQUESTS_CALL | {"i": index, "total": 3})
    answer = client.add_note({"t": "stop", "run": "aa11", "i": 1, "why": "cancel"})
    assert [(header["t"], header["i"], header["kind"]) for header in answer] == [("outcome", 1, "collateral")]
    answer = client.add_note({"t": "stop", "run": "aa11", "why": "cancel"})
    assert sorted(header["i"] for header in answer) == [0, 2]
    assert client.add_note({"t": "stop", "run": "bb22"}) == []


@pytest.mark.parametrize("header", [{"kind": "map", "items": 1}, {"kind": "gather"}, {"kind": "sweep"}])
async def test_call_arriving_after_its_run_was_cancelled_is_not_started(node: Served, header: Header) -> None:
    client, other = node.client(), node.client()
    other.add_note({"t": "stop", "run": "aa11", "why": "cancel"})  # before a call has come, or between two
    (outcome,) = client.add_note(REQUESTS_CALL | header)
    assert (outcome["t"], outcome["kind"], outcome["begun"]) == ("outcome", "collateral", False)
    assert outcome["error"]["message"] == "stopped because the run was cancelled"
    assert not any(slot.load for slot in node.slots.slots)
    client.add_note(REQUESTS_CALL | header | {"run": "bb22"})
    assert sum(slot.load for slot in node.slots.slots) == 1


async def test_run_with_some_stopped_calls_continues(node: Served) -> None:
    client = node.client()
    client.add_note({"t": "stop", "run": "aa11", "why": "fail-fast"})
    client.add_note({"t": "stop", "run": "aa11", "i": 7, "why": "cancel"})
    assert client.add_note(REQUESTS_CALL) == []


async def test_claim_of_an_orphaned_run_returns_its_outcomes(node: Served) -> None:
    first = node.client()
    first.add_note(REQUESTS_CALL)
    first.add_note({"t": "stop", "run": "aa11"})
    first.leave()
    answer = node.client().add_note({"t": "claim", "id": 7, "run": "aa11"})
    assert answer[0] == {"t": "known", "id": 7, "calls": [0]}
    assert [(header["t"], header["i"]) for header in answer[1:]] == [("outcome", 0)]


async def test_shutdown_request_names_client_and_dropped_results(node: Served) -> None:
    node.client(who="process 7 on here").add_note({"t": "shutdown", "drop": ["aa11"], "keep": 60.0})
    assert node.life.ends == [("process 7 on here", "")]
    assert (node.life.given_up, node.life.keep) == (["aa11"], 60.0)


async def test_new_epoch_numbers_are_unique_and_increasing(node: Served) -> None:
    node.state.epochs.save(4)
    one, other = node.client(), node.client()
    asked = [(one, 1), (other, 1), (one, 9), (other, 9)]
    epochs = [client.add_note({"t": "number", "id": 3, "least": least})[0]["epoch"] for client, least in asked]
    assert epochs == [5, 6, 9, 10]
    assert EpochFile(Path(node.state.config.paths.epoch)).latest == 10, "the next agent knows them, too"


async def test_where_request_lists_only_gang_runs(node: Served) -> None:
    client = node.client()
    client.add_note(
        REQUESTS_CALL | {"run": "bb22", "rank": 2, "gang": True, "kind": "broadcast", "total": 4, "epoch": 1}
    )
    client.add_note(REQUESTS_CALL)
    (known,) = [header for header in client.add_note({"t": "where", "id": 1}) if header["t"] == "known"]
    assert known["runs"] == {"bb22": {"calls": 1, "active": 1, "total": 4}}


@pytest.mark.parametrize("nodes", [1, 2])
async def test_only_gangs_of_several_nodes_get_a_port_for_failures(node: Served, nodes: int) -> None:
    node.state.config = node.state.config.replace(nodes=nodes)
    node.state.gpus_known.set()
    (known,) = node.client().add_note({"t": "ports", "id": 1})
    assert (len(known["ports"]), known["line"] > 0) == (2, nodes > 1)
