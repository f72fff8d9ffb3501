"""Fail-fast without a client: agents of a gang notify each other if a rank fails while the client is disconnected."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.gang_state import sign_body
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.protocol.frame_codec import Header, encode_json
from skyward_core.protocol.frame_schemas_and_size_limits import (
    PEER_REPORT_KEYS,
    PEER_REQUEST_KEYS,
    PEER_STEPS,
    validate_peer_frame,
)

if TYPE_CHECKING:
    from skyward_core.node.agent.peer_heartbeats import PeerHeartbeats
    from skyward_core.protocol.frame_types import FromPeer, GangPeers, PeerAttempt, PeerReportKeys, PeerRequestKeys


# seconds for a disconnected client to reconnect before agents stop the gang; a connected client stops it itself
CLIENT_GRACE = 2.0
RETRY_DELAY = 5.0  # seconds until the agent retries to notify an unreachable node of a failure
PEER_TIMEOUT = 5.0  # seconds for another node to answer, or to send its first frame after connecting
# number of connections that have not authenticated themselves; a further one replaces the oldest
MAX_PEER_CONNECTIONS = 16


class FailFast:
    """Fail-fast of one agent: notifies the gang's other agents of failed ranks, and listens for their notifications.

    Attributes:
        peers: Addresses of the gang's nodes, and the key that signs their messages. None disables fail-fast.
        answer: Answers all requests of the gang's agents that this class does not handle itself.
        heartbeats: Heartbeats between the agents, which use the same listener. None if no run of the gang may restart.
        on_notice: Called with the index of a node that will be preempted, and the seconds until the preemption.
    """

    def __init__(self, state: NodeState, slots: SlotDispatcher) -> None:
        self._state, self._slots = state, slots
        self.heartbeats: PeerHeartbeats | None = None
        self._listener: socket.socket | None = None
        self._server: asyncio.AbstractServer | None = None
        self._unauthenticated: dict[Connection, asyncio.TimerHandle] = {}
        self._authenticated: set[Connection] = set()  # connections that have sent a valid heartbeat
        self.peers: GangPeers | None = None
        self.answer: Callable[[PeerRequestKeys], Awaitable[PeerReportKeys | None]] | None = None
        self.on_notice: Callable[[int, float], None] = lambda node, left: None
        # pairs of a failed run and a node that already knows of the failure
        self._notified: set[tuple[str, int]] = set()
        self._notifications: dict[str, asyncio.Task[None]] = {}
        self._opening: asyncio.Task[None] | None = None

    def get_port(self) -> int:
        """Return the port at which this agent listens for the gang's other agents; 0 if it cannot listen."""
        if self._listener is None:
            address = self._state.config.address
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                self._listener = socket.create_server((address, 0), family=family, backlog=MAX_PEER_CONNECTIONS)
            except OSError:
                # The node's address does not belong to this machine, so only a client can stop the gang.
                return 0
            self._listener.setblocking(False)
            self._opening = asyncio.create_task(self._start_server(self._listener))
        return int(self._listener.getsockname()[1])

    async def _start_server(self, listener: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, sock=listener, backlog=MAX_PEER_CONNECTIONS
        )

    def set_peers(self, peers: GangPeers | None) -> None:
        """Set the addresses of the nodes of a new epoch. None disables fail-fast and heartbeats."""
        self.peers = peers
        self._notified.clear()
        self._end_heartbeats()
        if peers is not None and peers.get("heartbeats") and hasattr(socket, "TCP_INFO"):
            # imported late, because few agents send heartbeats
            from skyward_core.node.agent.peer_heartbeats import PeerHeartbeats

            self.heartbeats = PeerHeartbeats(self._state, peers)

    def _end_heartbeats(self, *, ends: bool = False) -> None:
        for connection in list(self._authenticated):
            connection.abort()
        if self.heartbeats is not None:
            self.heartbeats.close(ends=ends)
        self.heartbeats = None

    # -- failures on this node ---------------------------------------------------------------------------

    def check(self) -> None:
        """Notify the gang's other agents of failed runs whose client is disconnected. Start or stop heartbeats."""
        if self.heartbeats is not None:
            self.heartbeats.check()
        gang, peers, here = self._state.gang, self.peers, self._state.config.node
        if peers is None or not peers.get("fail_fast", True):
            return
        for record in self._state.registry.records.values():
            if record.kind == "broadcast" and record.epoch == gang.epoch and record.run not in self._notifications:
                remaining = [
                    at[0] for at in peers["nodes"] if at[0] != here and (record.run, at[0]) not in self._notified
                ]
                if remaining and self._is_abandoned(record.run, record.ended_at):
                    self._notifications[record.run] = asyncio.create_task(self._notify_peers(record.run, remaining))

    def _is_abandoned(self, run: str, ended_at: float) -> bool:
        """Check whether a rank of the run failed on this node, and the run's client is disconnected for a while."""
        now = asyncio.get_running_loop().time()
        return any(
            call.is_gang_call
            and not call.has_client
            and (end := call.end) is not None
            and end["kind"] in ("raised", "exited", "lost")
            and now - (call.owner_lost_at if call.may_restart_unattended else max(call.owner_lost_at, ended_at))
            >= CLIENT_GRACE
            for call in self._state.registry.calls_of_run(run)
        )

    def stop_everywhere(self, run: str) -> None:
        """Stop a run on all nodes of the gang."""
        if self.peers is not None and run not in self._notifications:
            others = [at[0] for at in self.peers["nodes"] if at[0] != self._state.config.node]
            self._notifications[run] = asyncio.create_task(self._notify_peers(run, others))

    async def _notify_peers(self, run: str, nodes: list[int]) -> None:
        try:
            self._stop_run(run)
            answers = await asyncio.gather(*(self.ask(node, {"step": "stop", "run": run}) for node in nodes))
            stopped = [answer is not None and not answer.get("client", True) for answer in answers]
            self._notified.update((run, node) for node, done in zip(nodes, stopped, strict=True) if done)
            if not all(stopped):
                await asyncio.sleep(RETRY_DELAY)
        finally:
            del self._notifications[run]

    # -- failures on other nodes -------------------------------------------------------------------------

    def _accept(self) -> Connection:
        if len(self._unauthenticated) >= MAX_PEER_CONNECTIONS:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.abort()  # A connection that is still being established has no transport. Its timer aborts it.
        connection = Connection(self._on_frame, self._on_lost, validate_peer_frame, of_strangers=True)
        self._unauthenticated[connection] = asyncio.get_running_loop().call_later(PEER_TIMEOUT, connection.abort)
        return connection

    def _on_lost(self, connection: Connection) -> None:
        self._authenticated.discard(connection)
        if (timer := self._unauthenticated.pop(connection, None)) is not None:
            timer.cancel()

    def _on_frame(self, connection: Connection, header: FromPeer, body: bytes) -> None:
        heartbeats = self.heartbeats
        if header["t"] == "heartbeat" and heartbeats is not None and heartbeats.receive(header, connection):
            # The heartbeat authenticated the peer, so remove the connection from the unauthenticated ones.
            self._on_lost(connection)
            self._authenticated.add(connection)
        else:
            self._on_request(connection, header, body)

    def _on_request(self, connection: Connection, header: FromPeer, body: bytes) -> None:
        from hmac import compare_digest

        peers, epoch = self.peers, self._state.gang.epoch
        if header["t"] == "attempt" and peers is not None and header["epoch"] == epoch:
            key = peers["key"]
            if compare_digest(header["signature"], sign_body(key, "attempt", epoch, body)):
                request: PeerRequestKeys = _load(body)
                is_valid = PEER_REQUEST_KEYS(request) and request["to"] == self._state.config.node
                if is_valid and PEER_STEPS.get(request["step"], {"unknown"}) <= request.keys():
                    self._state.spawn(self._send_report(connection, request, key, epoch))
                    return
        connection.close()

    async def _send_report(self, connection: Connection, request: PeerRequestKeys, key: str, epoch: int) -> None:
        report: PeerReportKeys | None = None
        try:
            report = await self._answer(request)
        finally:
            if report is not None:
                answer = encode_json({**report, "nonce": request["nonce"]}).encode()
                connection.send({"t": "report", "signature": sign_body(key, "report", epoch, answer)}, answer)
            connection.close()

    async def _answer(self, request: PeerRequestKeys) -> PeerReportKeys | None:
        run, answer = request.get("run", ""), self.answer
        if request["step"] == "notice":
            self.on_notice(request["node"], request["left"])
        elif request["step"] == "stop":
            # A connected client gets the failure itself and decides whether to stop the run.
            has_client = any(call.has_client for call in self._running_calls(run))
            if not has_client:
                self._stop_run(run)
            return {"client": has_client}
        elif answer is not None:
            return await answer(request)
        return {}

    async def ask(self, node: int, request: Header) -> PeerReportKeys | None:
        """Send a request to a node of the gang.

        Returns:
            The answer; None if the node cannot be reached, or rejects the request.
        """
        peers, epoch = self.peers, self._state.gang.epoch
        place = self._place_of(node)
        if peers is None or place is None:
            return None
        nonce = os.urandom(16).hex()
        data = encode_json({**request, "to": node, "nonce": nonce}).encode()
        frame: PeerAttempt = {"t": "attempt", "epoch": epoch, "signature": ""}
        frame["signature"] = sign_body(peers["key"], "attempt", epoch, data)
        answer = await _exchange(frame, data, place)
        if answer is None or answer[0]["t"] != "report":
            return None
        if answer[0]["signature"] != sign_body(peers["key"], "report", epoch, answer[1]):
            return None
        report: PeerReportKeys = _load(answer[1])
        return report if PEER_REPORT_KEYS(report) and report.get("nonce") == nonce else None

    def _place_of(self, node: int) -> tuple[str, int] | None:
        nodes = () if self.peers is None else self.peers["nodes"]
        return next(((address, port) for other, address, port in nodes if other == node), None)

    async def has_no_agent(self, node: int) -> bool:
        """Check whether the machine of a node runs without its agent: its kernel refuses the connection."""
        if (place := self._place_of(node)) is None:
            return False
        try:
            async with asyncio.timeout(PEER_TIMEOUT):
                _, writer = await asyncio.open_connection(*place)
            writer.close()
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            pass
        return False

    async def notify_preemption(self, left: float) -> None:
        """Notify the gang's other nodes that this node's machine is preempted in ``left`` seconds."""
        here, nodes = self._state.config.node, () if self.peers is None else self.peers["nodes"]
        notice: Header = {"step": "notice", "node": here, "left": left}
        await asyncio.gather(*(self.ask(place[0], notice) for place in nodes if place[0] != here))

    def _running_calls(self, run: str) -> list[Call]:
        return [call for call in self._state.registry.calls_of_run(run) if call.end is None]

    def _stop_run(self, run: str) -> None:
        if self._running_calls(run):
            # Ranks that are stopped because of a preemption may save until the machine ends, as if a client had stopped
            # them.
            is_preempted = self._state.preemption_ends > time.monotonic()
            self._slots.stop_run(run, "preemption" if is_preempted else "fail-fast", breaks=True)

    # -- shutdown ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening and sending heartbeats, and cancel pending notifications."""
        self._end_heartbeats(ends=True)
        for task in (self._opening, *self._notifications.values()):
            if task is not None:
                task.cancel()
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()


def _load(body: bytes) -> Any:
    """Return the JSON value of a frame's body; None if the JSON is invalid."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


async def _exchange(frame: PeerAttempt, data: bytes, address: tuple[str, int]) -> tuple[FromPeer, bytes] | None:
    """Send a frame to a node. Return its answer, or None if it does not answer."""
    answer: asyncio.Future[tuple[FromPeer, bytes] | None] = asyncio.get_running_loop().create_future()

    def on_frame(connection: Connection, header: FromPeer, body: bytes) -> None:
        if not answer.done():
            answer.set_result((header, body))

    def on_lost(connection: Connection) -> None:
        if not answer.done():
            answer.set_result(None)

    connection = Connection(on_frame, on_lost, validate_peer_frame, of_strangers=True)
    try:
        async with asyncio.timeout(PEER_TIMEOUT):
            await asyncio.get_running_loop().create_connection(lambda: connection, *address)
            connection.send(frame, data)
            return await answer
    except (OSError, TimeoutError):
        return None  # The caller decides whether to retry.
    finally:
        connection.abort()  # Never leave the connection open, because connections to hung peers would accumulate.
