"""A gang ends as a whole where no client is there to see to that.

When a rank fails, the run's client stops the others. Where it is away (it has detached, or its machine sleeps), they
would wait for the failed one for ever, and cost money meanwhile. So a node whose rank has failed, and that has had no
client since, tells the gang's other nodes, and they stop theirs.

Each node listens for the others on its private address. The client has made a key for this epoch, and has given it to
the agents alone; what they say is signed with it, and nobody else is heard. A message that somebody sends again does
what it did the first time: nothing more.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from ...wire.admission import from_peer
from .calls import Call
from .connection import Connection
from .node_state import NodeState
from .slots import Slots

if TYPE_CHECKING:
    from ...wire.client_frame_types import GangLine
    from ...wire.node_frame_types import FromPeer, PeerFailed

AWAY = 2.0  # seconds that a client has to come back in; it sees to it itself, then
AGAIN = 5.0  # seconds until a node that could not be told is told once more
PATIENCE = 5.0  # seconds for a node to answer, and for one that connects to say what it has to say
AT_ONCE = 16  # connections that others may have open here; the next takes the oldest one's place
FAILED = ("raised", "exited", "lost")


def signature(key: str, run: str, epoch: int, node: int) -> str:
    """What only who has the epoch's key can say."""
    from hashlib import blake2b  # few agents need it

    return blake2b(f"{epoch} {node} {run}".encode(), key=bytes.fromhex(key), digest_size=32).hexdigest()


class FailFast:
    """One agent's part."""

    def __init__(self, state: NodeState, slots: Slots) -> None:
        self._state, self._slots = state, slots
        self._listener: socket.socket | None = None
        self._server: asyncio.AbstractServer | None = None
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}
        self._line: GangLine | None = None
        self._told: set[tuple[str, int]] = set()  # runs, and nodes that need not be told of them any more
        self._telling: dict[str, asyncio.Task[None]] = {}
        self._opening: asyncio.Task[None] | None = None

    def port(self) -> int:
        """Where others of the gang reach this node; 0 where there is no place to listen."""
        if self._listener is None:
            address = self._state.config.address
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                self._listener = socket.create_server((address, 0), family=family, backlog=AT_ONCE)
            except OSError:  # the address is not this machine's: then only a client ends the gang
                return 0
            self._listener.setblocking(False)
            self._opening = asyncio.create_task(self._open(self._listener))
        return int(self._listener.getsockname()[1])

    async def _open(self, listener: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, sock=listener, backlog=AT_ONCE
        )

    def learn(self, line: GangLine | None) -> None:
        """How the nodes of the new epoch reach one another; None where a failure is to stop nobody."""
        self._line = line
        self._told.clear()

    # -- a rank has failed here --------------------------------------------------------------------------

    def look(self) -> None:
        """See whether a rank has failed and nobody was there to stop the others."""
        gang, line, here = self._state.gang, self._line, self._state.config.node
        if line is None:
            return
        for record in self._state.register.records.values():
            if record.kind == "broadcast" and record.epoch == gang.epoch and record.run not in self._telling:
                untold = [
                    at for at in line["nodes"] if at[0] != here and (record.run, at[0]) not in self._told
                ]
                if untold and self._is_left(record.run, record.ended_at):
                    task = asyncio.create_task(self._tell(record.run, gang.epoch, line["key"], untold))
                    self._telling[record.run] = task

    def _is_left(self, run: str, ended_at: float) -> bool:
        """Whether a rank of it has failed here, and its client has been away for a while."""
        now = asyncio.get_running_loop().time()
        return any(
            call.gang
            and call.owner is None
            and call.outcome is not None
            and call.outcome["kind"] in FAILED
            and now - max(call.away_since, ended_at) >= AWAY
            for call in self._state.register.of_run(run)
        )

    async def _tell(self, run: str, epoch: int, key: str, nodes: list[tuple[int, str, int]]) -> None:
        here = self._state.config.node
        try:
            self._end(run)
            said: PeerFailed = {"t": "failed", "run": run, "epoch": epoch, "node": here, "signature": ""}
            said["signature"] = signature(key, run, epoch, here)
            heard = await asyncio.gather(*(_tell_one(said, (address, port)) for _, address, port in nodes))
            self._told.update((run, at[0]) for at, done in zip(nodes, heard, strict=True) if done)
            if not all(heard):
                await asyncio.sleep(AGAIN)
        finally:
            del self._telling[run]

    # -- a rank has failed elsewhere ---------------------------------------------------------------------

    def _accept(self) -> Connection:
        if len(self._strangers) >= AT_ONCE:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.drop()  # where it is only about to be made, its timer does that
        connection = Connection(self._heard, self._left, from_peer, of_strangers=True)
        timer = asyncio.get_running_loop().call_later(PATIENCE, connection.drop)
        self._strangers[connection] = timer
        return connection

    def _left(self, connection: Connection) -> None:
        if (timer := self._strangers.pop(connection, None)) is not None:
            timer.cancel()

    def _heard(self, connection: Connection, header: FromPeer, body: bytes) -> None:
        from hmac import compare_digest

        line = self._line
        if header["t"] == "failed" and line is not None:
            run, epoch = header["run"], header["epoch"]
            expected = signature(line["key"], run, epoch, header["node"])
            if compare_digest(header["signature"], expected) and epoch == self._state.gang.epoch:
                # Where its client is, it knows, and decides.
                kept = any(call.owner is not None for call in self._going_on(run))
                if not kept:
                    self._end(run)
                connection.send({"t": "heard", "kept": kept})
        connection.close()

    def _going_on(self, run: str) -> list[Call]:
        return [call for call in self._state.register.of_run(run) if call.outcome is None]

    def _end(self, run: str) -> None:
        if self._going_on(run):
            self._slots.stop_run(run, "fail-fast", self._state.config.grace, breaks=True)

    # -- the end -----------------------------------------------------------------------------------------

    def end(self) -> None:
        """Listen no more."""
        for task in (self._opening, *self._telling.values()):
            if task is not None:
                task.cancel()
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()


async def _tell_one(said: PeerFailed, place: tuple[str, int]) -> bool:
    """Tell a node; says whether it has seen to it."""
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def heard(connection: Connection, header: FromPeer, body: bytes) -> None:
        if header["t"] == "heard" and not answer.done():
            answer.set_result(not header["kept"])

    def lost(connection: Connection) -> None:
        if not answer.done():
            answer.set_result(False)

    connection = Connection(heard, lost, from_peer, of_strangers=True)
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.get_running_loop().create_connection(lambda: connection, *place)
            connection.send(said)
            return await answer
    except (OSError, TimeoutError):
        return False  # it is told once more a little later
    finally:
        connection.drop()  # one that stands still, and is asked again and again, would hold one each time
