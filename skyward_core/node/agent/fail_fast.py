"""Fail-fast: nodes of a gang tell each other that a rank has failed."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.protocol.frame_schema import validate_peer_frame

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import (
        FromPeer,
        GangPeers,
        PeerFailed,
    )

CLIENT_GRACE = 2.0  # seconds that a client has to come back in; it sees to it itself, then
RETRY_DELAY = 5.0  # seconds until a node that could not be told is told once more
PEER_TIMEOUT = 5.0  # seconds for a node to answer, and for one that connects to say what it has to say
MAX_PEER_CONNECTIONS = 16  # connections that others may have open here; the next takes the oldest one's place
FAILURE_KINDS = ("raised", "exited", "lost")


def sign_failure(key: str, run: str, epoch: int, node: int) -> str:
    """What only who has the epoch's key can say."""
    from hashlib import blake2b  # few agents need it

    return blake2b(f"{epoch} {node} {run}".encode(), key=bytes.fromhex(key), digest_size=32).hexdigest()


class FailFast:
    """One agent's part."""

    def __init__(self, state: NodeState, slots: SlotDispatcher) -> None:
        self._state, self._slots = state, slots
        self._listener: socket.socket | None = None
        self._server: asyncio.AbstractServer | None = None
        self._unauthenticated: dict[Connection, asyncio.TimerHandle] = {}
        self._peers: GangPeers | None = None
        self._notified: set[tuple[str, int]] = set()  # runs, and nodes that need not be told of them any more
        self._notifications: dict[str, asyncio.Task[None]] = {}
        self._opening: asyncio.Task[None] | None = None

    def get_port(self) -> int:
        """Where others of the gang reach this node; 0 where there is no place to listen."""
        if self._listener is None:
            address = self._state.config.address
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                self._listener = socket.create_server((address, 0), family=family, backlog=MAX_PEER_CONNECTIONS)
            except OSError:  # the address is not this machine's: then only a client ends the gang
                return 0
            self._listener.setblocking(False)
            self._opening = asyncio.create_task(self._start_server(self._listener))
        return int(self._listener.getsockname()[1])

    async def _start_server(self, listener: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, sock=listener, backlog=MAX_PEER_CONNECTIONS
        )

    def set_peers(self, line: GangPeers | None) -> None:
        """How the nodes of the new epoch reach one another; None where a failure is to stop nobody."""
        self._peers = line
        self._notified.clear()

    # -- a rank has failed here --------------------------------------------------------------------------

    def check(self) -> None:
        """See whether a rank has failed and nobody was there to stop the others."""
        gang, line, here = self._state.gang, self._peers, self._state.config.node
        if line is None:
            return
        for record in self._state.registry.records.values():
            if record.kind == "broadcast" and record.epoch == gang.epoch and record.run not in self._notifications:
                untold = [at for at in line["nodes"] if at[0] != here and (record.run, at[0]) not in self._notified]
                if untold and self._is_abandoned(record.run, record.ended_at):
                    task = asyncio.create_task(self._notify_peers(record.run, gang.epoch, line["key"], untold))
                    self._notifications[record.run] = task

    def _is_abandoned(self, run: str, ended_at: float) -> bool:
        """Whether a rank of it has failed here, and its client has been away for a while."""
        now = asyncio.get_running_loop().time()
        return any(
            call.is_gang_call
            and call.owner is None
            and call.outcome is not None
            and call.outcome["kind"] in FAILURE_KINDS
            and now - max(call.owner_lost_at, ended_at) >= CLIENT_GRACE
            for call in self._state.registry.calls_of_run(run)
        )

    async def _notify_peers(self, run: str, epoch: int, key: str, nodes: list[tuple[int, str, int]]) -> None:
        here = self._state.config.node
        try:
            self._stop_run(run)
            said: PeerFailed = {"t": "failed", "run": run, "epoch": epoch, "node": here, "signature": ""}
            said["signature"] = sign_failure(key, run, epoch, here)
            heard = await asyncio.gather(*(_notify_peer(said, (address, port)) for _, address, port in nodes))
            self._notified.update((run, at[0]) for at, done in zip(nodes, heard, strict=True) if done)
            if not all(heard):
                await asyncio.sleep(RETRY_DELAY)
        finally:
            del self._notifications[run]

    # -- a rank has failed elsewhere ---------------------------------------------------------------------

    def _accept(self) -> Connection:
        if len(self._unauthenticated) >= MAX_PEER_CONNECTIONS:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.abort()  # where it is only about to be made, its timer does that
        connection = Connection(self._on_peer_failure, self._on_lost, validate_peer_frame, of_strangers=True)
        timer = asyncio.get_running_loop().call_later(PEER_TIMEOUT, connection.abort)
        self._unauthenticated[connection] = timer
        return connection

    def _on_lost(self, connection: Connection) -> None:
        if (timer := self._unauthenticated.pop(connection, None)) is not None:
            timer.cancel()

    def _on_peer_failure(self, connection: Connection, header: FromPeer, body: bytes) -> None:
        from hmac import compare_digest

        line = self._peers
        if header["t"] == "failed" and line is not None:
            run, epoch = header["run"], header["epoch"]
            expected = sign_failure(line["key"], run, epoch, header["node"])
            if compare_digest(header["signature"], expected) and epoch == self._state.gang.epoch:
                # Where its client is, it knows, and decides.
                kept = any(call.owner is not None for call in self._running_calls(run))
                if not kept:
                    self._stop_run(run)
                connection.send({"t": "heard", "kept": kept})
        connection.close()

    def _running_calls(self, run: str) -> list[Call]:
        return [call for call in self._state.registry.calls_of_run(run) if call.outcome is None]

    def _stop_run(self, run: str) -> None:
        if self._running_calls(run):
            self._slots.stop_run(run, "fail-fast", self._state.config.grace, breaks=True)

    # -- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Listen no more."""
        for task in (self._opening, *self._notifications.values()):
            if task is not None:
                task.cancel()
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()


async def _notify_peer(said: PeerFailed, place: tuple[str, int]) -> bool:
    """Tell a node; says whether it has seen to it."""
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def heard(connection: Connection, header: FromPeer, body: bytes) -> None:
        if header["t"] == "heard" and not answer.done():
            answer.set_result(not header["kept"])

    def lost(connection: Connection) -> None:
        if not answer.done():
            answer.set_result(False)

    connection = Connection(heard, lost, validate_peer_frame, of_strangers=True)
    try:
        async with asyncio.timeout(PEER_TIMEOUT):
            await asyncio.get_running_loop().create_connection(lambda: connection, *place)
            connection.send(said)
            return await answer
    except (OSError, TimeoutError):
        return False  # it is told once more a little later
    finally:
        connection.abort()  # one that stands still, and is asked again and again, would hold one each time
