"""Requests of clients about the gang: the lock, the queue of runs, epochs, ports and status."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import TYPE_CHECKING, Any

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.fail_fast_without_client import FailFast
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.gang_state import Gang, ReservedPorts
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.protocol.frame_codec import AnyHeader, Header

if TYPE_CHECKING:
    from skyward_core.protocol import frame_types as frames


EXTRA_PORTS = 8  # number of ports reserved after the gang's rendezvous port, for plugins that need further ports


# Handler of a request: either a plain function or a coroutine.
Handler = Callable[[Connection, AnyHeader, bytes], Coroutine[Any, Any, None] | None]


class GangRequests:
    """Handlers of clients' requests about one agent's gang."""

    def __init__(self, state: NodeState, slots: SlotDispatcher, clients: ClientRegistry, fail_fast: FailFast) -> None:
        self._state = state
        self._slots = slots
        self._fail_fast = fail_fast
        self._clients = clients
        self.queue = RunQueue(clients)
        self.lock = GangLock()
        self._port: ReservedPorts | None = None
        self._rank_ports: list[ReservedPorts] = []

    @property
    def handlers(self) -> dict[str, Handler]:
        """Handlers by frame type."""
        return {
            "lock": lambda connection, header, _: self.lock.request(connection),
            "unlock": lambda connection, header, _: self.lock.release(connection, header),
            "form": self._reserve_rendezvous,
            "number": lambda connection, header, _: connection.send(
                {"t": "known", "id": header["id"], "epoch": self.next_epoch(header["least"])}
            ),
            "ports": self._reserve_rank_ports,
            "setup": self._send_setup,
            "gang": self._on_new_gang,
            "where": self._send_run_counts,
            "holds": self._send_gang_status,
            "heartbeats": self._send_silences,
            "enqueue": lambda connection, header, _: self.queue.add(connection, header),
            "dequeue": lambda connection, header, _: self.queue.remove(connection, header),
        }

    def on_client_gone(self, connection: Connection) -> None:
        """Release the lock and the queue entries of a disconnected client."""
        self.lock.on_client_gone(connection)
        self.queue.on_client_gone(connection)

    def _reserve_rendezvous(self, connection: Connection, header: frames.ClientForm, body: bytes) -> None:
        """Answer a client's request to reserve rendezvous ports on this node, which is the gang's first one."""
        port, address = self.reserve_rendezvous(), self._state.config.address
        connection.send({"t": "formed", "id": header.get("id"), "head_addr": address, "head_port": port})

    def reserve_rendezvous(self) -> int:
        """Reserve consecutive ports for a rendezvous on this node. Return the first port."""
        if self._port is not None:
            self._port.close()
        self._port = ReservedPorts(self._state.config.address, 1 + EXTRA_PORTS)
        return self._port.number

    def next_epoch(self, least: int = 0) -> int:
        """Assign an epoch number on the head node.

        Saves the number immediately. If the agent that manages the gang lock has crashed, two clients may be forming
        epochs at the same time, and both need different numbers.
        """
        epochs = self._state.epochs
        epoch = max(self._state.gang.epoch + 1, epochs.latest + 1, least)
        epochs.save(epoch)
        return epoch

    def _reserve_rank_ports(self, connection: Connection, header: frames.ClientPorts, body: bytes) -> None:
        """Answer a client's request to reserve a port for each rank of this node. Also send the number of GPUs."""
        if self._defer_until_gpus_known(self._reserve_rank_ports, connection, header, body):
            return
        config = self._state.config
        fields = {"ports": self.reserve_rank_ports(), "accelerators": config.accelerators}
        fields["line"] = self._fail_fast.get_port() if config.nodes > 1 else 0
        connection.send({"t": "known", "id": header["id"]} | fields)

    def reserve_rank_ports(self) -> list[int]:
        """Reserve a port for each rank of this node until the next epoch."""
        for port in self._rank_ports:
            port.close()
        config = self._state.config
        self._rank_ports = [ReservedPorts(config.address) for _ in range(config.ranks_per_node)]
        return [port.number for port in self._rank_ports]

    def _defer_until_gpus_known(self, handler: Callable[..., None], *request: Any) -> bool:
        """Postpone a request until the GPUs are known. Return whether it was postponed."""
        known = self._state.gpus_known
        if known.is_set():
            return False

        async def handle() -> None:
            await known.wait()
            handler(*request)

        self._state.spawn(handle())
        return True

    async def _send_setup(self, connection: Connection, header: frames.ClientSetup, body: bytes) -> None:
        """Send the pool's settings to a client that adds a node to a pool it did not create."""
        await self._state.env_known.wait()
        config, gang = self._state.config, self._state.gang
        fields = {
            "env": config.env if config.knows_env else None,
            "known": bool(gang.epoch) and (bool(gang.plugins) or not gang.has_hooks),
            "secrets": [*config.secrets, *gang.secrets],
            "apps": gang.has_app_hooks,
            "joins": gang.is_joined,
        }
        connection.send({"t": "known", "id": header["id"]} | fields, gang.plugins)

    def _on_new_gang(self, connection: Connection, header: frames.ClientGang, body: bytes) -> None:
        """Store a gang that a client has formed, and set up this node's ranks for it."""
        if self._defer_until_gpus_known(self._on_new_gang, connection, header, body):
            return
        state = self._state
        fresh = header.get("fresh", False)
        if header["epoch"] > state.gang.epoch or fresh:
            if header.get("alone"):
                header["epoch"] = max(header["epoch"], state.epochs.latest + 1)
            self.set_up(Gang.from_header(header, body), header.get("line"), fresh=fresh)

    def set_up(self, gang: Gang, peers: frames.GangPeers | None, *, fresh: bool = False) -> None:
        """Set up the ranks of this node for a new gang. ``fresh``: whether all ranks get new processes."""
        state = self._state
        gang.renewed_epoch = gang.epoch if fresh else state.gang.renewed_epoch
        state.learn_gang(gang)
        self._fail_fast.set_peers(peers)
        if state.has_separate_tasks:
            self._slots.separate_tasks()
        if fresh:
            self._slots.forget_modules()
        if gang.has_app_hooks:
            self._slots.plugin_contexts.ensure_entered()
        self._slots.pump()

    def _send_run_counts(self, connection: Connection, header: frames.ClientWhere, body: bytes) -> None:
        """Send the number of calls of each gang run on this node, with which a client can repair incomplete runs."""
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

    def _send_silences(self, connection: Connection, header: frames.ClientHeartbeats, body: bytes) -> None:
        """Send for each watched node the seconds since its last sign of life."""
        heartbeats = self._fail_fast.heartbeats
        silences = {} if heartbeats is None else {str(node): each for node, each in heartbeats.silences().items()}
        answer = {"t": "known", "id": header["id"], "epoch": self._state.gang.epoch, "silences": silences}
        connection.send(answer)

    def _send_gang_status(self, connection: Connection, header: frames.ClientHolds, body: bytes) -> None:
        """Send the gang and the state of its runs, so that a client can find free nodes."""
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
        fields: Header = {"epoch": gang.epoch, "members": gang.members, "runs": runs, "spent": False}
        connection.send({"t": "known", "id": header["id"]} | fields | gang.health())


class QueueEntry:
    """A run that waits for nodes."""

    __slots__ = ("info", "owner")

    def __init__(self, owner: Connection, info: frames.QueuedRunKeys) -> None:
        self.owner = owner
        self.info = info


class RunQueue:
    """Queue of runs that wait for nodes, on the head node."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients
        self._entries: list[QueueEntry] = []
        self._first: QueueEntry | None = None  # queued run whose client has been notified that its run is next

    @property
    def waiting(self) -> list[frames.QueuedRunKeys]:
        """Queued runs, in the order in which they get nodes."""
        return [each.info for each in self._entries]

    def add(self, owner: Connection, header: frames.ClientEnqueue) -> None:
        """Add a run that needs nodes. A run that was queued through another connection or agent keeps its place."""
        now = time.time()
        info: frames.QueuedRunKeys = {
            "run": header["run"],
            "name": header["name"],
            "nodes": header["nodes"],
            "only": header["only"],
            "since": min(header.get("since", now), now),
            "who": owner.peer_name,
        }
        self._entries = [each for each in self._entries if each.info["run"] != header["run"]]
        self._entries.append(QueueEntry(owner, info))
        self._entries.sort(key=lambda each: each.info["since"])
        self._publish()

    def remove(self, owner: Connection, header: frames.ClientDequeue) -> None:
        """Remove a run that got its nodes or no longer needs them."""
        run = header["run"]
        self._replace_entries([each for each in self._entries if each.info["run"] != run or each.owner is not owner])

    def on_client_gone(self, owner: Connection) -> None:
        """Remove the runs of a disconnected client."""
        self._replace_entries([each for each in self._entries if each.owner is not owner])

    def notify_dropped(self, run: str, who: str) -> None:
        """Notify the owner of a queued run that another client stops the run."""
        for each in self._entries:
            if each.info["run"] == run:
                each.owner.send({"t": "dropped", "run": run, "by": who})

    def _replace_entries(self, entries: list[QueueEntry]) -> None:
        if len(entries) != len(self._entries):
            self._entries = entries
            self._publish()

    def _publish(self) -> None:
        first = self._entries[0] if self._entries else None
        if first is not None and first is not self._first:
            first.owner.send({"t": "turn", "run": first.info["run"]})
        self._first = first
        self._clients.send_to_all({"t": "queue", "waiting": self.waiting})


class GangLock:
    """Lock for forming gangs: a queue of clients. The first client in the queue holds the lock."""

    def __init__(self) -> None:
        self._queue: deque[Connection] = deque()
        self._unclean = False
        self._is_held_by_agent = False

    def try_hold(self) -> bool:
        """Acquire the lock for the agent itself. If a client holds it, ask the client to release it; return False."""
        if self._queue:
            self._queue[0].send({"t": "wanted"})
            return False
        self._is_held_by_agent = True
        return True

    def end_hold(self) -> None:
        """Release the lock that the agent holds."""
        self._is_held_by_agent = False
        self._grant()

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

    def release(self, connection: Connection, header: frames.ClientUnlock) -> None:
        """Release a client's lock.

        The request states whether a run that an earlier holder dispatched incompletely could not be repaired.
        """
        if self._queue and self._queue[0] is connection:
            self._queue.popleft()
            self._unclean |= header.get("unclean", False)
            self._grant()

    def on_client_gone(self, connection: Connection) -> None:
        """Remove a disconnected client. If it held the lock, notify the next holder that a run may be incomplete."""
        if connection not in self._queue:
            return
        is_holder = self._queue[0] is connection
        self._queue.remove(connection)
        if is_holder:
            self._unclean = True
            self._grant()

    def _grant(self) -> None:
        if self._queue and not self._is_held_by_agent:
            self._queue[0].send({"t": "granted", "unclean": self._unclean})
            self._unclean = False
            for waiting in islice(self._queue, 1, None):
                self._send_holder(waiting)
            if len(self._queue) > 1:
                self._queue[0].send({"t": "wanted"})
