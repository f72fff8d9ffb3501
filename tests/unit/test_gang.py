"""Agents of a gang: its lock, ports, leases and fail-fast."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent import fail_fast_without_client, peer_heartbeats, restart_without_client
from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import Lease
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.fail_fast_without_client import FailFast
from skyward_core.node.agent.file_transfer_supervisor import PeerTransfers
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.gang_and_queue_requests import GangLock, GangRequests
from skyward_core.node.agent.gang_state import EpochFile, Gang, ReservedPorts, sign_body
from skyward_core.node.agent.peer_heartbeats import Witness, sign_heartbeat
from skyward_core.node.agent.restart_without_client import UnattendedRestarts
from skyward_core.protocol.frame_codec import Decoder, encode_frame
from tests.support.agent_parts import Node
from tests.support.waiting import until


class Client:
    """Connection of a client that records its frames in a log shared by all clients."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.peer_name, self._log = name, log

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        if header["t"] == "held":
            self._log.append(f"{self.peer_name} waits for {header['by']}")
        else:
            self._log.append(f"{self.peer_name} {header['t']}{' unclean' if header.get('unclean') else ''}")


@pytest.mark.parametrize(
    ("steps", "sent"),
    [
        ("request a, request b, release a", "a granted, a wanted, b waits for a, b granted"),
        (
            "request a, request b, request c, release a, release b",
            "a granted, a wanted, b waits for a, a wanted, c waits for a, b granted, c waits for b, b wanted, "
            "c granted",
        ),
        # Only the holder can release.
        ("release a, request a, request b, release b", "a granted, a wanted, b waits for a"),
        ("request a, request b, release a, release a", "a granted, a wanted, b waits for a, b granted"),
        ("request a, release b unclean, release a, request b", "a granted, b granted"),
        # A holder that vanishes leaves the lock unclean, until a later holder has cleaned up.
        ("request a, gone a, request b", "a granted, b granted unclean"),
        ("request a, gone a, request b, gone b, request b", "a granted, b granted unclean, b granted unclean"),
        (
            "request a, request b, request c, gone a, release b",
            "a granted, a wanted, b waits for a, a wanted, c waits for a, b granted unclean, c waits for b, b wanted, "
            "c granted",
        ),
        ("request a, release a unclean, request b, release b, request c", "a granted, b granted unclean, c granted"),
        # A client that waits and vanishes leaves nothing behind.
        (
            "request a, request b, request c, gone b, gone b, release a",
            "a granted, a wanted, b waits for a, a wanted, c waits for a, c granted",
        ),
    ],
)
def test_gang_lock_is_granted_in_order_of_requests(steps: str, sent: str) -> None:
    log: list[str] = []
    lock, clients = GangLock(), {name: Client(name, log) for name in "abc"}
    for step in steps.split(", "):
        verb, name, *unclean = step.split()
        client: Any = clients[name]
        if verb == "request":
            lock.request(client)
        elif verb == "release":
            lock.release(client, {"t": "unlock", "unclean": bool(unclean)})
        else:
            lock.on_client_gone(client)
    assert ", ".join(log) == sent


def test_gang_status_frame_has_epoch_and_broken_reason() -> None:
    assert Gang().status_frame() == {"t": "gang", "epoch": 0, "broken": ""}
    broken = {"t": "gang", "epoch": 3, "broken": "rank 1 ended"}
    assert Gang(3, broken="rank 1 ended").status_frame() == broken
    assert Gang(3, broken="rank 1 ended", spent="a script has run").status_frame() == broken
    spent = {"t": "gang", "epoch": 3, "broken": "a script has run", "spent": True}
    assert Gang(3, spent="a script has run").status_frame() == spent


def listens_at(number: int) -> bool:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", number))
        server.listen()
        return True


def free(number: int) -> bool:
    with socket.socket() as stranger:
        try:
            stranger.bind(("127.0.0.1", number))
        except OSError:
            return False
        return True


def test_consecutive_ports_are_reserved_for_further_plugins() -> None:
    port = ReservedPorts("127.0.0.1", 12)
    row = range(port.number, port.number + 12)
    others = [ReservedPorts("127.0.0.1", 12) for _ in range(20)]
    assert not {number for other in others for number in range(other.number, other.number + 12)} & set(row)
    assert all(listens_at(number) for number in row)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", row[5]))
    port.close()
    assert any(free(number) for number in row)  # the others may be somebody's already


def test_port_is_reserved_on_an_ipv6_address() -> None:
    try:
        port = ReservedPorts("::1")
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    assert port.number > 0


def test_latest_epoch_number_survives_the_agent(tmp_path: Path) -> None:
    epochs = EpochFile(tmp_path / "epoch")
    assert epochs.latest == 0
    for number in (1, 12, 7):
        epochs.save(number)
    assert epochs.latest == 12
    assert EpochFile(tmp_path / "epoch").latest == 12


# How long a node lives without us, by a clock in the test's hand.


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_lease_counts_idle_time_from_the_start(clock: Clock) -> None:
    lease = Lease(600, None)
    assert lease.remaining(in_use=False) == 600
    clock.now += 599
    assert lease.remaining(in_use=False) == 1
    clock.now += 2
    assert lease.remaining(in_use=False) == -1
    assert lease.reason() == "idle for 600 s"


def test_lease_stops_while_in_use_and_restarts_afterwards(clock: Clock) -> None:
    lease = Lease(600, None)
    clock.now += 10_000
    assert lease.remaining(in_use=True) is None
    lease.renew()
    assert lease.remaining(in_use=False) == 600
    clock.now += 100
    assert lease.remaining(in_use=False) == 500


def test_time_to_live_counts_while_in_use(clock: Clock) -> None:
    lease = Lease(600, 3600)
    assert lease.remaining(in_use=False) == 600
    assert lease.remaining(in_use=True) == 3600
    clock.now += 3500
    lease.renew()
    assert lease.remaining(in_use=True) == lease.remaining(in_use=False) == 100
    assert lease.reason() == "idle for 600 s"
    clock.now += 100
    lease.renew()
    assert lease.remaining(in_use=True) == 0
    assert lease.reason() == "its time to live of 3600 s expired"


# Agents of a gang stop one another's ranks where no client is there; strangers who reach their port do not.

KEY, EPOCH = "5e" * 32, 3


class Member:
    """Node of a gang of three nodes, whose rank has received a call of run r1."""

    def __init__(self, folder: Path, number: int) -> None:
        folder.mkdir()
        self.node = node = Node(folder, ranks_per_node=1)
        node.state.config = node.state.config.replace(node=number, address="127.0.0.1")
        node.state.learn_gang(Gang(EPOCH))
        header: Any = {"gang": True, "i": number, "rank": 1, "kind": "broadcast", "epoch": EPOCH, "total": 3}
        self.call = Call("r1", number, header, b"", None)
        node.state.registry.add(self.call)
        node.slots.slots[0].enqueue(self.call)
        self.fail_fast = FailFast(node.state, node.slots)
        self.place = (number, "127.0.0.1", self.fail_fast.get_port())

    @property
    def stopped(self) -> bool:
        return self.call.stop_reason == "fail-fast" and bool(self.node.state.gang.broken_reason)

    @property
    def heartbeats(self) -> peer_heartbeats.PeerHeartbeats:
        assert self.fail_fast.heartbeats is not None
        return self.fail_fast.heartbeats

    def set_attempt(self, attempt: Any) -> None:
        """Make the call one of a run that agents may restart."""
        self.call.header["attempt"] = self.node.state.registry.records["r1"].attempt_keys = attempt
        self.call.may_restart_unattended = "ends" in attempt

    def fail(self) -> None:
        """End the rank."""
        outcome: Any = self.call.make_outcome({"kind": "exited", "error": {"type": "RankExit", "message": "9"}})
        self.node.slots.slots[0].queue.clear()
        self.node.desk.finish(self.call, outcome)


@pytest.fixture
async def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Member]]:
    monkeypatch.setattr(fail_fast_without_client, "CLIENT_GRACE", 0.05)
    monkeypatch.setattr(fail_fast_without_client, "RETRY_DELAY", 0.05)
    members = [Member(tmp_path / str(number), number) for number in range(3)]
    for each in members:
        each.fail_fast.set_peers({"key": KEY, "nodes": [other.place for other in members]})
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context.get("protocol")))
    yield members
    for each in members:
        each.fail_fast.close()
    assert not any(failed), "a frame of a stranger has raised an error in the agent"


async def look_until(member: Member, what: Any) -> None:
    """Let the node check repeatedly, as its agent does, until a condition holds."""

    def looked() -> bool:
        member.fail_fast.check()
        return bool(what())

    await until(looked)


async def send_as_stranger(member: Member, data: bytes) -> list[dict[str, Any]]:
    """Connect to the node's port as a stranger, and return the answer."""
    reader, writer = await asyncio.open_connection(*member.place[1:])
    writer.write(data)
    try:
        return [dict(header) for header, _ in Decoder().feed(await reader.read())]
    except ConnectionResetError:  # it hung up before it had read everything
        return []
    finally:
        writer.close()


def signed_request(key: str = KEY, signature: str | None = None, epoch: int = EPOCH, **changed: Any) -> bytes:
    body = json.dumps({"step": "stop", "run": "r1", "nonce": "n", "to": 0} | changed).encode()
    signature = sign_body(key, "attempt", epoch, body) if signature is None else signature
    return encode_frame({"t": "attempt", "epoch": epoch, "signature": signature}, body)


async def is_kept_running(member: Member) -> bool:
    """Request the stop of a run as another agent. Return whether the client of the run prevents it."""
    answer = await member.fail_fast.ask(member.place[0], {"step": "stop", "run": "r1"})
    assert answer is not None
    return answer["client"]


async def test_returned_or_cancelled_calls_notify_no_peer_agent(gang: list[Member]) -> None:
    gang[1].node.slots.slots[0].queue.clear()
    gang[1].node.desk.finish(gang[1].call, gang[1].call.make_outcome({"kind": "returned"}))
    gang[2].fail_fast._slots.stop_run("r1", "cancel", 1.0, breaks=False)
    await asyncio.sleep(0.1)
    for each in gang:
        each.fail_fast.check()
    assert [each.fail_fast._notifications for each in gang] == [{}, {}, {}]


async def test_fail_fast_stops_peers_only_after_their_client_left(gang: list[Member]) -> None:
    gang[0].call.owner = gang[0].node.peer
    gang[1].fail()
    await look_until(gang[1], lambda: gang[2].stopped)
    assert await is_kept_running(gang[0])
    assert not gang[0].call.stop_reason
    gang[0].node.desk.on_client_gone(gang[0].node.peer)
    await look_until(gang[1], lambda: gang[0].stopped)


async def test_fail_fast_after_a_preemption_notice_lasts_until_the_machine_ends(gang: list[Member]) -> None:
    gang[2].node.state.preemption_ends = time.monotonic() + 60.0
    gang[1].fail()
    await look_until(gang[1], lambda: gang[2].call.stop_reason)
    assert gang[2].call.stop_reason == "preemption", "which extends an explicit grace period, too"


async def test_fail_fast_waits_for_a_client_that_may_return(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fail_fast_without_client, "CLIENT_GRACE", 60.0)
    gang[1].call.owner = gang[1].node.peer
    gang[1].fail()
    gang[1].node.desk.on_client_gone(gang[1].node.peer)
    gang[1].fail_fast.check()
    assert gang[1].fail_fast._notifications == {}


async def test_unreachable_peer_agent_is_notified_again(gang: list[Member]) -> None:
    number, address, port = gang[0].place
    line: Any = {"key": KEY, "nodes": [(number, address, 1), gang[2].place]}
    gang[1].fail_fast.set_peers(line)
    gang[1].fail()
    await look_until(gang[1], lambda: gang[2].stopped)
    line["nodes"][0] = (number, address, port)
    await look_until(gang[1], lambda: gang[0].stopped)


async def test_fail_fast_without_peers_stops_no_other_rank(gang: list[Member]) -> None:
    for each in gang:
        each.fail_fast.set_peers(None)
    gang[1].fail()
    gang[1].fail_fast.check()
    assert gang[1].fail_fast._notifications == {}
    assert await send_as_stranger(gang[0], signed_request()) == []
    assert not gang[0].call.stop_reason


async def test_failure_without_a_client_and_fail_fast_stops_no_peer(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fail_fast_without_client, "CLIENT_GRACE", 0.0)
    line: Any = {"key": KEY, "nodes": [gang[0].place, gang[2].place], "fail_fast": False}
    gang[1].fail_fast.set_peers(line)
    gang[1].fail()
    gang[1].fail_fast.check()
    assert gang[1].fail_fast._notifications == {}
    line["fail_fast"] = True
    await look_until(gang[1], lambda: gang[0].stopped and gang[2].stopped)


@pytest.mark.parametrize(
    "data",
    [
        signed_request(key="5f" * 32),
        signed_request(signature=""),
        signed_request(signature=sign_body(KEY, "report", EPOCH, b"{}")),
        signed_request(to=2),
        signed_request(epoch=EPOCH + 1),
        signed_request(epoch=EPOCH - 1),
        signed_request(run="../r1"),
        signed_request(signature="ä"),
        signed_request(step="end"),
        signed_request(step="begin"),
        encode_frame({"t": "report", "signature": "00"}),
        encode_frame({"t": "stop", "run": "r1"}),
        struct.pack(">II", 1 << 20, 0) + b" " * 4096,
        struct.pack(">II", 900, 1 << 30) + json.dumps({"t": "attempt"}).encode().ljust(900),
        b"GET / HTTP/1.1\r\n\r\n",
        b"[" * 1000,
    ],
    ids=range(16),
)
async def test_unauthenticated_request_stops_no_rank(gang: list[Member], data: bytes) -> None:
    answers = await send_as_stranger(gang[0], data)
    assert "report" not in {each["t"] for each in answers}
    assert not gang[0].call.stop_reason
    assert not gang[0].node.state.gang.broken_reason
    assert not await is_kept_running(gang[0])
    assert gang[0].stopped


async def test_silent_peer_connections_are_dropped(gang: list[Member], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fail_fast_without_client, "PEER_TIMEOUT", 0.3)
    idle = [
        await asyncio.open_connection(*gang[0].place[1:])
        for _ in range(3 * fail_fast_without_client.MAX_PEER_CONNECTIONS)
    ]
    gang[1].fail()
    await look_until(gang[1], lambda: gang[0].stopped)
    for reader, writer in idle:
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    await until(lambda: not gang[0].fail_fast._unauthenticated)


async def test_connection_to_a_silent_peer_agent_is_closed(gang: list[Member], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fail_fast_without_client, "PEER_TIMEOUT", 0.3)
    closed = asyncio.Event()

    async def stand_still(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError):
            await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_server(stand_still, "127.0.0.1", 0) as server:
        place = server.sockets[0].getsockname()
        gang[1].fail_fast.set_peers({"key": KEY, "nodes": [(0, *place)]})
        assert await gang[1].fail_fast.ask(0, {"step": "stop", "run": "r1"}) is None
        await asyncio.wait_for(closed.wait(), 10)


# While a call that may restart runs, agents of its gang exchange heartbeats.


def watch_each_other(gang: list[Member], *running: Member) -> None:
    """Let the members know that the runs of their gang may restart, and begin such a call on some of them."""
    for each in gang:
        each.fail_fast.set_peers({"key": KEY, "nodes": [other.place for other in gang], "heartbeats": True})
    for each in running:
        each.call.header["attempt"] = {"number": 1, "restarts": 3, "cause": "", "message": "", "lost": []}
        each.fail_fast.check()


HEARTBEAT: Any = {"t": "heartbeat", "epoch": EPOCH, "node": 1, "count": 1, "silences": {"2": 99.0}}


def signed_heartbeat(key: str = KEY, **changed: Any) -> bytes:
    frame = HEARTBEAT | changed
    frame.setdefault("signature", sign_heartbeat(key, frame))
    return encode_frame(frame)


async def test_agents_exchange_their_observations_during_a_run_that_may_restart(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_heartbeats, "INTERVAL", 0.02)
    watch_each_other(gang, gang[1], gang[2])
    head = gang[0].heartbeats

    def reporters() -> set[int]:
        return {each.node for each in head.witnesses() if len(each.silences) == 2}

    await until(lambda: reporters() == {1, 2})
    assert head.silences() == {}, "its call has not begun, so it watches no node"
    gang[2].fail_fast.close()  # the agent ends, but its machine answers
    gang[2].fail_fast = FailFast(gang[2].node.state, gang[2].node.slots)
    peer = gang[1].heartbeats._peers[2]
    await until(lambda: not peer.connection)
    seen_at = peer.seen_at or 0.0
    await until(lambda: (peer.seen_at or 0.0) > seen_at)
    gang[1].fail()
    gang[1].fail_fast.check()
    assert gang[1].heartbeats.silences(), "another node may still be in doubt"
    monkeypatch.setattr(peer_heartbeats, "LINGER", -1.0)
    gang[1].fail_fast.check()
    assert gang[1].heartbeats.silences() == {}


@pytest.mark.parametrize("reason", ["its calls have ended", "it reconnects", "it ends"])
async def test_only_an_agent_that_ends_counts_as_gone(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """A firewall may refuse later connections to an agent that has closed its connection for another reason."""
    monkeypatch.setattr(peer_heartbeats, "INTERVAL", 0.02)
    watch_each_other(gang, gang[1])
    head, peer = gang[0].heartbeats, gang[1].heartbeats
    await until(lambda: 1 in head._incoming)
    connection = head._incoming[1]
    if reason == "it reconnects":
        monkeypatch.setattr(peer_heartbeats, "PROBE_SILENCE", -1.0)
    elif reason == "it ends":
        gang[1].fail_fast.close()
    else:
        monkeypatch.setattr(peer_heartbeats, "LINGER", -1.0)
        gang[1].fail()
        gang[1].fail_fast.check()
        assert peer.silences() == {}
    await until(lambda: not connection.is_open)
    assert connection.has_eof == (reason == "it ends")


async def test_agent_that_was_paused_reports_no_silence(gang: list[Member], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_heartbeats, "INTERVAL", 0.02)
    monkeypatch.setattr(peer_heartbeats, "MAX_DELAY", 0.1)
    monkeypatch.setattr(peer_heartbeats, "PROBE_SILENCE", 99.0)
    monkeypatch.setattr(Connection, "acknowledgement_age", lambda _: None)  # no sign of life by the kernel
    watch_each_other(gang, gang[1])
    heartbeats = gang[1].heartbeats
    await until(lambda: heartbeats.silences())
    time.sleep(0.3)  # noqa: ASYNC251  the pause
    await asyncio.sleep(0)
    await until(lambda: heartbeats.silences()[0] < 0.2)


@pytest.mark.parametrize(
    "data",
    [
        signed_heartbeat(key="5f" * 32),
        signed_heartbeat(signature=""),
        signed_heartbeat(count=2, signature=sign_heartbeat(KEY, HEARTBEAT)),
        signed_heartbeat(silences={}, signature=sign_heartbeat(KEY, HEARTBEAT)),
        signed_heartbeat(epoch=EPOCH + 1),
        signed_heartbeat(node=0),
        signed_heartbeat(count=0),
        signed_heartbeat(silences={"-2": 99.0}),
        signed_heartbeat(silences={"9" * 4300: 99.0}),
        signed_heartbeat(signature="ä"),
    ],
    ids=range(10),
)
async def test_forged_heartbeat_is_no_testimony(gang: list[Member], data: bytes) -> None:
    watch_each_other(gang)
    heartbeats = gang[0].heartbeats
    await send_as_stranger(gang[0], data)
    assert [each.node for each in heartbeats.witnesses()] == [0]
    assert await send_as_stranger(gang[0], signed_heartbeat() + signed_heartbeat()) == [], "the second is a repetition"
    assert [(each.node, each.silences) for each in heartbeats.witnesses()] == [(0, {}), (1, {2: 99.0})]


# The head decides about a failed run where no client is there.

ATTEMPT: Any = {"number": 1, "restarts": 3, "cause": "", "message": "", "lost": [], "ends": []}


def fail_unattended(member: Member) -> UnattendedRestarts:
    """End the rank of a run that may restart."""
    node, record = member.node, member.node.state.registry.records["r1"]
    member.set_attempt(ATTEMPT)
    member.call.started_at, record.total = 1.0, 2
    member.fail()
    requests = GangRequests(node.state, node.slots, node.audience, member.fail_fast)
    return UnattendedRestarts(
        node.state, node.slots, node.audience, node.desk, member.fail_fast, requests, PeerTransfers(node.state.config)
    )


async def test_outcome_is_published_after_an_error_during_the_restart(gang: list[Member]) -> None:
    head, _ = fail_unattended(gang[0]), fail_unattended(gang[1])
    assert gang[0].call.undecided is not None
    head.check()  # the gang's addresses are unknown, as after the restart of an agent
    await until(lambda: gang[0].call.outcome)


async def test_unattended_restart_ignores_hostile_steps_and_withheld_outcomes_of_other_runs(gang: list[Member]) -> None:
    head = fail_unattended(gang[0])
    huge = json.dumps({"run": "r1", "values": {"step": 10**400}})
    Path(gang[0].node.slots.slots[0].logs.metrics_path).write_text(f"{huge}\n{'[' * 100_000}")
    assert await head._find_progress("r1", 1) == (None, False)
    assert head._is_gang_idle("r2")


def silence(monkeypatch: pytest.MonkeyPatch, gang: list[Member], *lost: int) -> None:
    """Let all other members report that some nodes give no sign of life."""
    for each in gang:
        silences = {other: 9.0 * (other in lost) for other in range(len(gang))}
        witnesses = [Witness(f"node {node}", f"node {node}", silences, node) for node in {0, 1, 2} - {*lost}]
        monkeypatch.setattr(each.heartbeats, "witnesses", lambda found=witnesses: found)


@pytest.mark.parametrize(
    ("least", "preempted", "reason"),
    [
        (2, False, ""),
        (2, True, "only a client can replace lost nodes: a machine is preempted"),
        (
            None,
            False,
            "only a client can replace lost nodes: node 2 is lost: no sign of life: node 0 9.0 s, node 1 9.0 s",
        ),
    ],
)
async def test_head_judges_lost_nodes_and_restarts_only_if_the_pool_allows_fewer(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch, least: int | None, preempted: bool, reason: str
) -> None:
    gang[1].node.state.is_preempted = preempted
    for each in gang:
        each.node.state.config = each.node.state.config.replace(nodes=3)
        peers = [{"node": node, "address": "127.0.0.1", "ports": []} for node in range(3)]
        each.node.state.gang.info = {"peers": peers, "total_nodes": 3, "world_size": 3}
        each.fail_fast.set_peers({"key": KEY, "nodes": [other.place for other in gang], "heartbeats": True})
        each.set_attempt(ATTEMPT | ({} if least is None else {"least_nodes": least}))
        each.call.header["rank"] = each.place[0]
        each.call.started_at = 1.0
        each.node.slots.slots[0].rank = each.place[0]
    silence(monkeypatch, gang, 2)
    gang[2].fail_fast.close()
    requests = [GangRequests(each.node.state, each.node.slots, each.node.audience, each.fail_fast) for each in gang]
    head, _ = (
        UnattendedRestarts(
            node.state,
            node.slots,
            node.audience,
            node.desk,
            each.fail_fast,
            requests[each.place[0]],
            PeerTransfers(node.state.config),
        )
        for each, node in [(each, each.node) for each in gang[:2]]
    )

    def settled() -> bool:
        head.check()
        calls = [call for each in gang[:2] for call in each.node.state.registry.calls_of_run("r1")]
        return all(call.attempt == 2 for call in calls) or bool(gang[0].node.state.registry.records["r1"].last_end)

    await until(settled)
    record = gang[0].node.state.registry.records["r1"]
    if reason:
        assert record.last_end is not None and record.last_end["reason"] == reason
        assert gang[0].call.outcome is not None, "the run's client decides when it returns"
        return
    assert (record.attempt, record.nodes, record.total, record.last_end) == (2, [0, 1], 2, None)
    assert gang[1].node.state.gang.rank_info(gang[1].node.state.config, 1)["world_size"] == 2
    (end,) = record.attempt_keys["ends"] if record.attempt_keys else []
    assert (end["cause"], end["lost"]) == ("loss", [2]) and "on 2 of 3 nodes" in end["reason"]


@pytest.mark.parametrize("fails", [0, 1])
async def test_run_whose_checkpoints_cannot_be_copied_waits_for_a_client(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    for each in gang[:2]:
        each.node.state.config = each.node.state.config.replace(nodes=2)
    watch_each_other(gang)
    restarts = [fail_unattended(each) for each in gang[:2]]

    async def refuse(run: str, missing: Any = ()) -> dict[str, Any]:
        return {"error": "[Errno 28] No space left on device"}

    monkeypatch.setattr(restarts[fails], "_list_saved", refuse)
    record = gang[0].node.state.registry.records["r1"]

    def ended() -> bool:
        restarts[0].check()
        return record.last_end is not None

    await until(ended)
    reason = f"only a client can copy the checkpoints: node {fails}: [Errno 28] No space left on device"
    assert record.last_end is not None and record.last_end["reason"] == reason
    assert (record.attempt, gang[0].call.outcome is not None) == (1, True)


async def test_refused_connection_proves_no_loss_of_an_agent_that_may_run(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(node: int) -> bool:
        return True

    head, record = fail_unattended(gang[0]), gang[0].node.state.registry.records["r1"]
    watch_each_other(gang)
    monkeypatch.setattr(gang[0].fail_fast, "has_no_agent", refuse)
    for age, reason in ((1.0, ""), (3.0, "its agent has ended")):
        witness = Witness("node 1", "node 1", {}, 1, age)
        monkeypatch.setattr(gang[0].heartbeats, "witnesses", lambda found=witness: [found])
        assert await head._explain_silence(record, 1) == "", "a firewall may have refused all connections"
        monkeypatch.setattr(gang[0].heartbeats, "has_left", lambda node: node == 1)
        assert await head._explain_silence(record, 1) == reason
        monkeypatch.undo()
        monkeypatch.setattr(gang[0].fail_fast, "has_no_agent", refuse)


@pytest.mark.parametrize(
    "runs", ["nothing", "the agent", "an agent that only the head hears", "nothing, and one witness"]
)
async def test_agent_that_two_nodes_cannot_reach_for_long_is_lost(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch, runs: str
) -> None:
    """A machine that has rebooted refuses the connections of more than one node, and sends nothing."""

    async def refuse(node: int) -> bool:
        return True

    head, record = fail_unattended(gang[0]), gang[0].node.state.registry.records["r1"]
    fail_unattended(gang[1])
    watch_each_other(gang)
    record.nodes = [0, 1, 2]
    since = asyncio.get_running_loop().time() - restart_without_client.PEER_PATIENCE
    head._unreachable["r1", record.attempt, 2] = since
    if runs == "the agent":
        monkeypatch.setattr(gang[0].fail_fast, "has_no_agent", refuse)
    else:
        gang[2].fail_fast.close()
    if runs == "an agent that only the head hears":
        monkeypatch.setattr(gang[0].heartbeats, "witnesses", lambda: [Witness("node 2", "node 2", {}, 2, 20.0)])
    if runs == "nothing, and one witness":
        gang[1].fail_fast.close()
    reason = restart_without_client.NO_AGENT if runs == "nothing" else restart_without_client.ONE_WITNESS
    assert await head._explain_silence(record, 2) == reason


async def test_run_that_is_cancelled_during_its_restart_starts_no_attempt(gang: list[Member]) -> None:
    head, registry = fail_unattended(gang[0]), gang[0].node.state.registry
    registry.cancel("r1")
    head._start_again(gang[0].call, EPOCH + 1, ATTEMPT | {"number": 2})
    (call,) = registry.calls.values()
    assert (call.attempt, call.outcome and call.outcome["kind"]) == (2, "collateral")
