"""Requests of clients about the gang: the lock, the queue of runs, epochs, ports and status."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import TYPE_CHECKING, Any

from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.fail_fast import FailFast
from skyward_core.node.agent.gang_state import Gang, ReservedPorts
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.protocol.frame_codec import AnyHeader, Header

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import (
        ClientDequeue,
        ClientEnqueue,
        ClientForm,
        ClientGang,
        ClientHolds,
        ClientLock,
        ClientNumber,
        ClientPorts,
        ClientSetup,
        ClientUnlock,
        ClientWhere,
        QueuedRunKeys,
    )


EXTRA_PORTS = 8  # kept behind the gang's own, for plugins after the first


Handler = Callable[[Connection, AnyHeader, bytes], Coroutine[Any, Any, None] | None]
"""What a request asks for is done at once, or by a coroutine."""


class GangRequests:
    """One agent's."""

    def __init__(self, state: NodeState, slots: SlotDispatcher, audience: ClientRegistry, fail_fast: FailFast) -> None:
        self._state = state
        self._slots = slots
        self._fail_fast = fail_fast
        self._clients = audience
        self._queue = RunQueue(audience)
        self._lock = GangLock()
        self._port: ReservedPorts | None = None
        self._rank_ports: list[ReservedPorts] = []

    @property
    def handlers(self) -> dict[str, Handler]:
        """By the kind of frame."""
        return {
            "lock": self._request_lock,
            "unlock": self._unlock,
            "form": self._reserve_rendezvous,
            "number": self._assign_epoch,
            "ports": self._reserve_rank_ports,
            "setup": self._send_setup,
            "gang": self._on_new_gang,
            "where": self._send_run_counts,
            "holds": self._send_gang_status,
            "enqueue": self._enqueue,
            "dequeue": self._dequeue,
        }

    def on_client_gone(self, connection: Connection) -> None:
        """A client is gone."""
        self._lock.on_client_gone(connection)
        self._queue.on_client_gone(connection)

    @property
    def waiting_runs(self) -> list[QueuedRunKeys]:
        """The runs that wait for nodes."""
        return self._queue.waiting

    def drop_run(self, run: str, who: str) -> None:
        """A client stops a run, which may wait here for nodes."""
        self._queue.notify_dropped(run, who)

    def _enqueue(self, connection: Connection, header: ClientEnqueue, body: bytes) -> None:
        self._queue.add(connection, header)

    def _dequeue(self, connection: Connection, header: ClientDequeue, body: bytes) -> None:
        self._queue.remove(header["run"], connection)

    def reenter_contexts(self) -> None:
        """Where ranks stand alone, have what plugins had around the node entered once more, if it is gone or failed: no
        other node needs to know of that."""
        gang = self._state.gang
        if gang.is_standalone and gang.has_app_hooks and self._slots.plugin_contexts.process is None:
            gang.epoch += 1
            self._state.epochs.save(gang.epoch)
            self._slots.plugin_contexts.ensure_entered()

    def _request_lock(self, connection: Connection, header: ClientLock, body: bytes) -> None:
        self._lock.request(connection)

    def _unlock(self, connection: Connection, header: ClientUnlock, body: bytes) -> None:
        self._lock.release(connection, unclean=header.get("unclean", False))

    def _reserve_rendezvous(self, connection: Connection, header: ClientForm, body: bytes) -> None:
        """On a gang's first node: name ports that are free for its rendezvous."""
        state = self._state
        if self._port is not None:
            self._port.close()
        self._port = ReservedPorts(state.config.address, 1 + EXTRA_PORTS)
        connection.send(
            {
                "t": "formed",
                "id": header.get("id"),
                "head_addr": state.config.address,
                "head_port": self._port.number,
            }
        )

    def _assign_epoch(self, connection: Connection, header: ClientNumber, body: bytes) -> None:
        """On the head: give an epoch a number. It is written down at once, as two clients may be forming epochs where
        the lock went with an agent."""
        epochs = self._state.epochs
        epoch = max(self._state.gang.epoch + 1, epochs.latest + 1, header["least"])
        epochs.save(epoch)
        connection.send({"t": "known", "id": header["id"], "epoch": epoch})

    def _reserve_rank_ports(self, connection: Connection, header: ClientPorts, body: bytes) -> None:
        """Name a port for each rank of this node that is free here, and stays so until the next epoch; and say how many
        GPUs it has."""
        if self._defer_until_gpus_known(self._reserve_rank_ports, connection, header, body):
            return
        for port in self._rank_ports:
            port.close()
        config = self._state.config
        self._rank_ports = [ReservedPorts(config.address) for _ in range(config.ranks_per_node)]
        numbers = [port.number for port in self._rank_ports]
        told = {"ports": numbers, "accelerators": config.accelerators}
        told["line"] = self._fail_fast.get_port() if config.nodes > 1 else 0
        connection.send({"t": "known", "id": header["id"]} | told)

    def _defer_until_gpus_known(self, handler: Callable[..., None], *request: Any) -> bool:
        """Whether a request is put off until it is known which GPUs are here."""
        known = self._state.gpus_known
        if known.is_set():
            return False

        async def handle() -> None:
            await known.wait()
            handler(*request)

        self._state.spawn(handle())
        return True

    async def _send_setup(self, connection: Connection, header: ClientSetup, body: bytes) -> None:
        """Send what a client that did not make the pool needs to bring up another node of it."""
        await self._state.env_known.wait()
        config, gang = self._state.config, self._state.gang
        told = {
            "env": config.env if config.knows_env else None,
            "known": bool(gang.epoch) and (bool(gang.plugins) or not gang.has_hooks),
            "secrets": [*config.secrets, *gang.secrets],
            "apps": gang.has_app_hooks,
            "joins": gang.is_joined,
        }
        connection.send({"t": "known", "id": header["id"]} | told, gang.plugins)

    def _on_new_gang(self, connection: Connection, header: ClientGang, body: bytes) -> None:
        """A client has formed an epoch."""
        if self._defer_until_gpus_known(self._on_new_gang, connection, header, body):
            return
        state = self._state
        fresh = header.get("fresh", False)
        if header["epoch"] > state.gang.epoch or fresh:
            if header.get("alone"):
                header["epoch"] = max(header["epoch"], state.epochs.latest + 1)
            renewed = header["epoch"] if fresh else state.gang.renewed_epoch
            state.learn_gang(Gang.from_header(header, body))
            state.gang.renewed_epoch = renewed
            self._fail_fast.set_peers(header.get("line"))
            self._slots.on_new_gang()
            if fresh:
                self._slots.forget_modules()
            if state.gang.has_app_hooks:
                self._slots.plugin_contexts.ensure_entered()
            self._slots.pump()

    def _send_run_counts(self, connection: Connection, header: ClientWhere, body: bytes) -> None:
        """How many calls of each gang run came here, and how many are active: lets a client repair a start that
        another left half done."""
        runs = {
            record.run: {
                "calls": record.active + len(record.outcomes),
                "active": record.active,
                "total": record.total,
            }
            for record in self._state.registry.records.values()
            if record.kind == "broadcast"
        }
        connection.send({"t": "known", "id": header["id"], "runs": runs})

    def _send_gang_status(self, connection: Connection, header: ClientHolds, body: bytes) -> None:
        """Which gang is here, and what became of its calls: lets a client find nodes that are free."""
        gang = self._state.gang
        runs = {
            record.run: {
                "active": record.active,
                "ended": len(record.outcomes),
                "total": record.total,
                "kept": record.retained_for_job,
            }
            for record in self._state.registry.records.values()
            if record.kind == "broadcast" and record.epoch == gang.epoch
        }
        told: Header = {"epoch": gang.epoch, "members": gang.members, "runs": runs, "spent": False}
        connection.send({"t": "known", "id": header["id"]} | told | gang.health())


class QueueEntry:
    """A run that waits."""

    __slots__ = ("owner", "told")

    def __init__(self, owner: Connection, told: QueuedRunKeys) -> None:
        self.owner = owner
        self.told = told


class RunQueue:
    """One head's."""

    def __init__(self, audience: ClientRegistry) -> None:
        self._clients = audience
        self._entries: list[QueueEntry] = []
        self._first: QueueEntry | None = None  # that has been told that it is its turn

    @property
    def waiting(self) -> list[QueuedRunKeys]:
        """They, in their order."""
        return [each.told for each in self._entries]

    def add(self, owner: Connection, header: ClientEnqueue) -> None:
        """A run wants nodes. One that has waited before, over another connection or on another agent, has its place by
        the time that it has waited since."""
        now = time.time()
        told: QueuedRunKeys = {
            "run": header["run"],
            "name": header["name"],
            "nodes": header["nodes"],
            "only": header["only"],
            "since": min(header.get("since", now), now),
            "who": owner.peer_name,
        }
        self._entries = [each for each in self._entries if each.told["run"] != header["run"]]
        self._entries.append(QueueEntry(owner, told))
        self._entries.sort(key=lambda each: each.told["since"])
        self._publish()

    def remove(self, run: str, owner: Connection) -> None:
        """A run has its nodes, or does not want them any more."""
        self._replace_entries([each for each in self._entries if each.told["run"] != run or each.owner is not owner])

    def on_client_gone(self, owner: Connection) -> None:
        """A client is gone."""
        self._replace_entries([each for each in self._entries if each.owner is not owner])

    def notify_dropped(self, run: str, who: str) -> None:
        """Somebody stops a run: where it waits here, its client hears of that, and takes it out."""
        for each in self._entries:
            if each.told["run"] == run:
                each.owner.send({"t": "dropped", "run": run, "by": who})

    def _replace_entries(self, entries: list[QueueEntry]) -> None:
        if len(entries) != len(self._entries):
            self._entries = entries
            self._publish()

    def _publish(self) -> None:
        first = self._entries[0] if self._entries else None
        if first is not None and first is not self._first:
            first.owner.send({"t": "turn", "run": first.told["run"]})
        self._first = first
        self._clients.send_to_all({"t": "queue", "waiting": self.waiting})


class GangLock:
    """A queue of clients; the first holds the lock."""

    def __init__(self) -> None:
        self._queue: deque[Connection] = deque()
        self._unclean = False

    def request(self, connection: Connection) -> None:
        if connection in self._queue:
            return
        self._queue.append(connection)
        if len(self._queue) == 1:
            self._grant()
        else:
            self._queue[0].send({"t": "wanted"})
            self._send_holder(connection)

    def _send_holder(self, waiting: Connection) -> None:
        waiting.send({"t": "held", "by": self._queue[0].peer_name})

    def release(self, connection: Connection, *, unclean: bool = False) -> None:
        """Give the lock back. ``unclean``: what the one before left half done could not be seen to."""
        if self._queue and self._queue[0] is connection:
            self._queue.popleft()
            self._unclean |= unclean
            self._grant()

    def on_client_gone(self, connection: Connection) -> None:
        """A client went away; if it held the lock it may have started a run on some agents only."""
        if connection not in self._queue:
            return
        held = self._queue[0] is connection
        self._queue.remove(connection)
        if held:
            self._unclean = True
            self._grant()

    def _grant(self) -> None:
        if self._queue:
            self._queue[0].send({"t": "granted", "unclean": self._unclean})
            self._unclean = False
            for waiting in islice(self._queue, 1, None):
                self._send_holder(waiting)
            if len(self._queue) > 1:
                self._queue[0].send({"t": "wanted"})
