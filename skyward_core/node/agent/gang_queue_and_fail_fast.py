"""Gang epochs, the head's lock and run queue, fail-fast."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skyward_core.node.agent.agent_state import Gang, GangLock, NodeState, Port
from skyward_core.node.agent.call_journal import Call
from skyward_core.node.agent.connected_clients import Audience
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.slot_dispatcher import Slots
from skyward_core.protocol.frame_codec import Header, Heard
from skyward_core.protocol.frame_schema import from_peer

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import (
        ClientDequeue,
        ClientEnqueue,
        ClientForm,
        ClientGang,
        ClientHeard,
        ClientHolds,
        ClientLock,
        ClientNumber,
        ClientPorts,
        ClientSetup,
        ClientUnlock,
        ClientWhere,
        FromPeer,
        GangLine,
        PeerFailed,
        QueuedKeys,
    )


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
        self._server = await asyncio.get_running_loop().create_server(self._accept, sock=listener, backlog=AT_ONCE)

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
                untold = [at for at in line["nodes"] if at[0] != here and (record.run, at[0]) not in self._told]
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


MORE_PORTS = 8  # kept behind the gang's own, for plugins after the first


class GangRequests:
    """One agent's."""

    def __init__(self, state: NodeState, slots: Slots, audience: Audience, fail_fast: FailFast) -> None:
        self._state = state
        self._slots = slots
        self._fail_fast = fail_fast
        self._audience = audience
        self._queue: RunQueue | None = None  # while no run was for some nodes only
        self._lock = GangLock()
        self._port: Port | None = None
        self._rank_ports: list[Port] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def handlers(self) -> dict[str, Callable[[Connection, Heard, bytes], None]]:
        """By the kind of frame."""
        return {
            "lock": self._want_lock,
            "unlock": self._unlock,
            "form": self._form,
            "number": self._number,
            "ports": self._keep_ports,
            "setup": self._tell_setup,
            "gang": self._gang,
            "where": self._where,
            "holds": self._holds,
            "enqueue": self._enqueue,
            "dequeue": self._dequeue,
            "heard": self._heard,
        }

    def leave(self, connection: Connection) -> None:
        """A client is gone."""
        self._lock.lost(connection)
        self._slots.knows(connection)
        if self._queue is not None:
            self._queue.lost(connection)

    @property
    def waiting(self) -> list[QueuedKeys]:
        """The runs that wait for nodes."""
        return self._queue.waiting if self._queue is not None else []

    def drop(self, run: str, who: str) -> None:
        """A client stops a run, which may wait here for nodes."""
        if self._queue is not None:
            self._queue.drop(run, who)

    def _enqueue(self, connection: Connection, header: ClientEnqueue, body: bytes) -> None:
        if self._queue is None:
            pass  # few pools need it

            self._queue = RunQueue(self._audience)
        self._queue.enter(connection, header)

    def _dequeue(self, connection: Connection, header: ClientDequeue, body: bytes) -> None:
        if self._queue is not None:
            self._queue.leave(header["run"], connection)

    def _heard(self, connection: Connection, header: ClientHeard, body: bytes) -> None:
        """A client sends this gang no other broadcast."""
        self._slots.knows(connection, header["epoch"])

    def begin_anew(self) -> None:
        """Where ranks stand alone, have what plugins had around the node entered once more, if it is gone or failed: no
        other node needs to know of that."""
        gang = self._state.gang
        if gang.alone and gang.apps and self._slots.apps.process is None:
            gang.epoch += 1
            self._state.epochs.note(gang.epoch)
            self._slots.apps.need()

    def _want_lock(self, connection: Connection, header: ClientLock, body: bytes) -> None:
        self._lock.want(connection)

    def _unlock(self, connection: Connection, header: ClientUnlock, body: bytes) -> None:
        self._lock.release(connection, unclean=header.get("unclean", False))

    def _form(self, connection: Connection, header: ClientForm, body: bytes) -> None:
        """On a gang's first node: name ports that are free for its rendezvous."""
        state = self._state
        if self._port is not None:
            self._port.close()
        self._port = Port(state.config.address, 1 + MORE_PORTS)
        connection.send(
            {
                "t": "formed",
                "id": header.get("id"),
                "head_addr": state.config.address,
                "head_port": self._port.number,
            }
        )

    def _number(self, connection: Connection, header: ClientNumber, body: bytes) -> None:
        """On the head: give an epoch a number. It is written down at once, as two clients may be forming epochs where
        the lock went with an agent."""
        epochs = self._state.epochs
        epoch = max(self._state.gang.epoch + 1, epochs.latest + 1, header["least"])
        epochs.note(epoch)
        connection.send({"t": "known", "id": header["id"], "epoch": epoch})

    def _keep_ports(self, connection: Connection, header: ClientPorts, body: bytes) -> None:
        """Name a port for each rank of this node that is free here, and stays so until the next epoch; and say how many
        GPUs it has."""
        if self._await_gpus(self._keep_ports, connection, header, body):
            return
        for port in self._rank_ports:
            port.close()
        config = self._state.config
        self._rank_ports = [Port(config.address) for _ in range(config.ranks_per_node)]
        numbers = [port.number for port in self._rank_ports]
        told = {"ports": numbers, "accelerators": config.accelerators}
        told["line"] = self._fail_fast.port() if config.nodes > 1 else 0
        connection.send({"t": "known", "id": header["id"]} | told)

    def _await_gpus(self, handler: Callable[..., None], *request: Any) -> bool:
        """Whether a request is put off until it is known which GPUs are here."""
        known = self._state.gpus_known
        if known.is_set():
            return False

        async def handle() -> None:
            await known.wait()
            handler(*request)

        self._keep(asyncio.create_task(handle()))
        return True

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell_setup(self, connection: Connection, header: ClientSetup, body: bytes) -> None:
        """What a client that did not make the pool needs to know to bring up another node of it."""
        self._keep(asyncio.create_task(self._answer_setup(connection, header)))

    async def _answer_setup(self, connection: Connection, header: ClientSetup) -> None:
        await self._state.informed.wait()
        config, gang = self._state.config, self._state.gang
        told = {
            "env": config.env if config.knows_env else None,
            "known": bool(gang.epoch) and (bool(gang.plugins) or not gang.hooks),
            "secrets": [*config.secrets, *gang.secrets],
            "apps": gang.apps,
            "joins": gang.joins,
        }
        connection.send({"t": "known", "id": header["id"]} | told, gang.plugins)

    def _gang(self, connection: Connection, header: ClientGang, body: bytes) -> None:
        """A client has formed an epoch."""
        if self._await_gpus(self._gang, connection, header, body):
            return
        state = self._state
        fresh = header.get("fresh", False)
        if header["epoch"] > state.gang.epoch or fresh:
            if header.get("alone"):
                header["epoch"] = max(header["epoch"], state.epochs.latest + 1)
            renewed = header["epoch"] if fresh else state.gang.renewed
            state.learn_gang(Gang.told(header, body))
            state.gang.renewed = renewed
            self._fail_fast.learn(header.get("line"))
            self._slots.another_gang()
            if fresh:
                self._slots.forget_modules()
            if state.gang.apps:
                self._slots.apps.need()
            self._slots.pump()

    def _where(self, connection: Connection, header: ClientWhere, body: bytes) -> None:
        """How many calls of each gang run came here, and how many are active: lets a client repair a start that
        another left half done."""
        runs = {
            record.run: {
                "calls": record.active + len(record.outcomes),
                "active": record.active,
                "total": record.total,
            }
            for record in self._state.register.records.values()
            if record.kind == "broadcast"
        }
        connection.send({"t": "known", "id": header["id"], "runs": runs})

    def _holds(self, connection: Connection, header: ClientHolds, body: bytes) -> None:
        """Which gang is here, and what became of its calls: lets a client find nodes that are free."""
        gang = self._state.gang
        runs = {
            record.run: {
                "active": record.active,
                "ended": len(record.outcomes),
                "total": record.total,
                "kept": record.kept_for,
            }
            for record in self._state.register.records.values()
            if record.kind == "broadcast" and record.epoch == gang.epoch
        }
        told: Header = {"epoch": gang.epoch, "members": gang.members, "runs": runs, "spent": False}
        connection.send({"t": "known", "id": header["id"]} | told | gang.health())


class QueueEntry:
    """A run that waits."""

    __slots__ = ("owner", "told")

    def __init__(self, owner: Connection, told: QueuedKeys) -> None:
        self.owner = owner
        self.told = told


class RunQueue:
    """One head's."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._entries: list[QueueEntry] = []
        self._first: QueueEntry | None = None  # that has been told that it is its turn

    @property
    def waiting(self) -> list[QueuedKeys]:
        """They, in their order."""
        return [each.told for each in self._entries]

    def enter(self, owner: Connection, header: ClientEnqueue) -> None:
        """A run wants nodes. One that has waited before, over another connection or on another agent, has its place by
        the time that it has waited since."""
        now = time.time()
        told: QueuedKeys = {
            "run": header["run"],
            "name": header["name"],
            "nodes": header["nodes"],
            "only": header["only"],
            "since": min(header.get("since", now), now),
            "who": owner.who,
        }
        self._entries = [each for each in self._entries if each.told["run"] != header["run"]]
        self._entries.append(QueueEntry(owner, told))
        self._entries.sort(key=lambda each: each.told["since"])
        self._tell()

    def leave(self, run: str, owner: Connection) -> None:
        """A run has its nodes, or does not want them any more."""
        self._keep([each for each in self._entries if each.told["run"] != run or each.owner is not owner])

    def lost(self, owner: Connection) -> None:
        """A client is gone."""
        self._keep([each for each in self._entries if each.owner is not owner])

    def drop(self, run: str, who: str) -> None:
        """Somebody stops a run: where it waits here, its client hears of that, and takes it out."""
        for each in self._entries:
            if each.told["run"] == run:
                each.owner.send({"t": "dropped", "run": run, "by": who})

    def _keep(self, entries: list[QueueEntry]) -> None:
        if len(entries) != len(self._entries):
            self._entries = entries
            self._tell()

    def _tell(self) -> None:
        first = self._entries[0] if self._entries else None
        if first is not None and first is not self._first:
            first.owner.send({"t": "turn", "run": first.told["run"]})
        self._first = first
        self._audience.tell({"t": "queue", "waiting": self.waiting})
