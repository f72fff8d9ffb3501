"""What clients ask of an agent about the gang: the head's lock, the next epoch, ports, what new nodes must know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...wire.frames import Header, Heard
from .audience import Audience
from .connection import Connection
from .fail_fast import FailFast
from .gang import Gang, GangLock, Port
from .node_state import NodeState
from .slots import Slots

if TYPE_CHECKING:
    from ...wire.agent_frame_types import QueuedKeys
    from ...wire.client_frame_types import (
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
    )
    from .run_queue import RunQueue

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
            from .run_queue import RunQueue  # few pools need it

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
