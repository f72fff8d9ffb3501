"""State that the agent's parts share; the lease."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.agent.call_registry import CallRegistry, Journal
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connection import Connection
from skyward_core.protocol.frame_codec import Header
from skyward_core.util.redaction import Redactor, secret_values

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import ClientGang, WorkerHello


MAX_PORT_TRIES = 64


class Gang:
    """The current epoch.

    Args:
        hooks: whether plugins enter contexts in its workers.
        apps: whether one of them has an ``around_app``, too.
        secrets: those of the plugins.
        joins: whether a plugin makes one world of the gang's ranks; tasks run in other processes then.
        alone: whether its ranks are no gang but stand alone: none of them breaks it, and its epoch is this node's own.
        spent: why some of its processes take no other call; it is whole for calls that it has been given.
        renewed: the last epoch for which all processes had to be fresh, whatever they are in it.
    """

    def __init__(
        self, epoch: int = 0, info: Header | None = None, plugins: bytes = b"", *, hooks: bool = False,
        apps: bool = False, joins: bool = False, secrets: Sequence[str] = (), alone: bool = False,
        broken: str = "", spent: str = "", renewed: int = 0,
    ) -> None:  # fmt: skip
        self.epoch = epoch
        self.info: Header = info or {}
        self.plugins = plugins
        self.has_hooks = hooks
        self.has_app_hooks = apps
        self.is_joined = joins
        self.secrets = list(secrets)
        self.is_standalone = alone
        self.broken_reason = broken
        self.spent_reason = spent
        self.renewed_epoch = renewed

    @classmethod
    def from_header(cls, header: ClientGang | WorkerHello, plugins: bytes) -> Gang:
        """As a client sets it up, or a worker that belongs to it remembers."""
        return cls(
            header["epoch"],
            header["info"],
            plugins,
            hooks=bool(header.get("hooks")),
            apps=bool(header.get("apps")),
            joins=bool(header.get("joins")),
            secrets=header.get("secrets", []),
            alone=bool(header.get("alone")),
        )

    @property
    def members(self) -> list[int]:
        """The nodes whose ranks it has, where these are not all of the pool."""
        return list(self.info.get("members", ()))

    def status_frame(self) -> Header:
        return {"t": "gang", "epoch": self.epoch} | self.health()

    def health(self) -> Header:
        """Whether it takes another broadcast, as clients are told."""
        said: Header = {"broken": self.broken_reason or self.spent_reason}
        said |= {"members": self.members} if self.members else {}
        return said | {"spent": True} if self.spent_reason and not self.broken_reason else said

    def rank_info(self, config: AgentConfig, rank: int) -> Header:
        """The :class:`InstanceInfo` of a rank of this node, as JSON; it knows no peers before the first epoch."""
        world = {"total_nodes": config.nodes, "world_size": config.nodes * config.ranks_per_node}
        unknown: Header = {"head_addr": "", "head_port": 0, "peers": []}
        gpus = config.accelerators or 0
        local = rank - config.node * config.ranks_per_node
        members = self.members
        node = members.index(config.node) if config.node in members else config.node
        return (
            {"total_accelerators": gpus}
            | (self.info or world | unknown)
            | {
                "node": node,
                "rank": node * config.ranks_per_node + local,
                "local_rank": local,
                "ranks_per_node": config.ranks_per_node,
                "workers_per_rank": config.slots,
                "accelerators": gpus,
                "accelerator": config.accelerator,
                "pool": config.pool,
            }
        )


class EpochFile:
    """The number of the latest epoch, kept on the node's disk for the agent that comes after this one: workers of that
    epoch may live on, unheard, and must not be taken for members of a new one.

    Attributes:
        latest: the number; 0 before the first.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.latest = int(os.pread(self._file, 20, 0) or b"0")

    def save(self, epoch: int) -> None:
        """A full disk is nobody's failure here, the spool will say it."""
        if epoch <= self.latest:
            return
        self.latest = epoch
        with suppress(OSError):
            os.pwrite(self._file, b"%020d" % epoch, 0)


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


class ReservedPorts:
    """TCP ports in a row for the gang's rendezvous, kept free for it: plugins after the first use those behind
    the first one. Where no such row is found, the first alone.

    Ranks need seconds to import their framework before one of them listens; meanwhile any other program could be
    given the port. A socket that is bound and never listens keeps the kernel from handing it out, and, as both
    set ``SO_REUSEADDR`` (which rendezvous servers do), does not stand in the way of the one who then listens.
    Ours sets it once it is bound: two that both had it before could bind the same port.
    """

    def __init__(self, address: str, count: int = 1) -> None:
        self._address = address
        self._sockets: list[socket.socket] = []
        for _ in range(MAX_PORT_TRIES):
            self.close()
            self._sockets = [self._bind(0)]
            self.number = int(self._sockets[0].getsockname()[1])
            if self._reserve_following(count - 1):
                return

    def _reserve_following(self, count: int) -> bool:
        for number in range(self.number + 1, self.number + 1 + count):
            if number > 65535:
                return False
            try:
                self._sockets.append(self._bind(number))
            except OSError:  # somebody has it: another row may be free
                return False
        return True

    def _bind(self, number: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.bind((self._address, number))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            made.close()
            raise
        return made

    def close(self) -> None:
        while self._sockets:
            self._sockets.pop().close()


LAST_LINE_BYTES = 2000  # bytes at a log's end in which it is looked for


def last_line(path: Path, start: int = 0) -> str:
    """The last line with something in it from an offset on, cut to what is enough; "" where there is none.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as log:
        log.seek(max(start, os.fstat(log.fileno()).st_size - LAST_LINE_BYTES))
        lines = log.read(LAST_LINE_BYTES).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


class Lease:
    """Counts idle time (no client that owns or uses the pool, no active call) and age.

    Times are of the monotonic clock, so that a clock that jumps neither ends nor saves a node.
    """

    def __init__(self, idle_timeout: float, ttl: float | None) -> None:
        self.idle_timeout = idle_timeout
        self.ttl = ttl
        self._born = self._used = time.monotonic()

    def renew(self) -> None:
        self._used = time.monotonic()

    def remaining(self, *, in_use: bool) -> float | None:
        """Seconds until the node ends itself as things stand; None when nothing counts down."""
        now = time.monotonic()
        left = None if in_use else self._used + self.idle_timeout - now
        if self.ttl is not None:
            end = self._born + self.ttl - now
            left = end if left is None else min(left, end)
        return left

    def reason(self) -> str:
        if self.ttl is not None and time.monotonic() - self._born >= self.ttl:
            return f"its time to live of {self.ttl:g} s was over"
        return f"nobody used it for {self.idle_timeout:g} s"


SIOCGIFADDR = 0x8915  # SIOCGIFADDR


def network_info(address: str) -> Header:
    """The interface that has an address, and how fast that is, as a rank's place has it."""
    with suppress(OSError):
        name = next((name for name, one in _interface_addresses() if one == address), "")
        return {"interface": name, "gbps": _interface_gbps(name)}
    return {"interface": "", "gbps": None}


def _interface_addresses() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none of this kind
                told = fcntl.ioctl(asked, SIOCGIFADDR, name.encode()[:15].ljust(40, b"\0"))
                yield name, socket.inet_ntoa(told[20:24])
    with open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            number, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))


def _interface_gbps(name: str) -> float | None:
    """What its driver says; loopback, Wi-Fi and what is down say nothing."""
    try:
        with open(f"/sys/class/net/{name}/speed", encoding="ascii") as file:
            megabits = int(file.read())
    except (OSError, ValueError):
        return None
    return megabits / 1000 if megabits > 0 else None


class NodeState:
    """One node's.

    Attributes:
        config: what the agent was started with, and what workers that outlived another agent have told.
        modules: files of the person's own modules that workers have loaded, and the hash of each as it was then; ""
            where they differ, or nobody knows.
        informed: set once the pool's variables and secrets are known here, as far as anybody knows them.
        gpus_known: set once it is known which GPUs the node has: ranks are told, and so wait for it.
        apart: tasks run in other processes of the ranks than the gang's, which have joined one another.
        closing: the agent ends; nothing is started any more.
        notices: what its provider says of the machine's end: kind, and when (by the monotonic clock), where it says so.
        is_taken_back: ranks here were told that the machine is about to be taken back.
        ending: who ends the pool and why, as a frame, where that is known; empty where only this agent ends.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.gang = Gang()
        self.epochs = EpochFile(Path(config.paths.epoch))
        self.registry = CallRegistry()
        self.lease = Lease(config.idle_timeout, config.ttl)
        self.journal = Journal(Path(config.paths.journal), self.registry.unacknowledged)
        self.redactor = Redactor([*secret_values(os.environ | config.env), *config.secrets])
        self.module_hashes: dict[str, str] = {}
        self.env_known = asyncio.Event()
        self.gpus_known = asyncio.Event()
        if config.accelerators is not None:
            self.gpus_known.set()
        self.has_separate_tasks = False
        self.is_closing = False
        self.notices: dict[str, float | None] = {}
        self.is_preempted = False
        self.end_frame: Header = {}

    def rank_info(self, rank: int, worker: int = 0) -> Header:
        """What a worker of a rank of this node is told of itself; see :meth:`Gang.place`."""
        return self.gang.rank_info(self.config, rank) | self._host_info | {"worker": worker}

    def task_info(self, rank: int, worker: int, port: int) -> Header:
        """Return the :class:`InstanceInfo` of a rank that runs a task: a world of one rank.

        Args:
            port: Port of this node that is free for its rendezvous.
        """
        config = self.config
        each = config.ranks_per_node
        seen = (config.accelerators or 0) // (each if config.devices else 1)
        gpus = len(self._own_devices(rank)) or seen
        place = self.rank_info(rank, worker) | {"node": 0, "total_nodes": 1, "rank": 0, "world_size": 1}
        place |= {"local_rank": 0, "ranks_per_node": 1, "pool_rank": rank}
        place |= {"accelerators": gpus, "total_accelerators": gpus}
        place.pop("members", None)
        if self.gang.is_standalone:
            return place
        peer = {"node": 0, "address": config.address, "ports": [port]}
        return place | {"head_addr": config.address, "head_port": port, "peers": [peer]}

    def _own_devices(self, rank: int) -> list[str]:
        """Return a rank's share of the GPUs, if ranks see all that the node has; else none."""
        config = self.config
        count, ranks = config.accelerators or 0, config.ranks_per_node
        if config.devices or count < 2 or ranks < 2:
            return []
        seen = (os.environ | config.env).get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in seen.split(",") if name] or [str(number) for number in range(count)]
        at = rank % ranks
        if len(names) < ranks:
            return [names[at % len(names)]]
        return names[at * len(names) // ranks : (at + 1) * len(names) // ranks]

    def machine_share(self, rank: int) -> Header:
        """Return a rank's share of the machine, for the set-up of its process for tasks."""
        config, devices = self.config, self._own_devices(rank)
        here = sum(each.get("address") == config.address for each in self.gang.info.get("peers", ())) or 1
        told: Header = {"sharers": here * config.ranks_per_node}
        return told | {"devices": ",".join(devices)} if devices else told

    @cached_property
    def _host_info(self) -> Header:
        return {"hostname": os.uname().nodename, "network": network_info(self.config.address)}

    def learn_gang(self, gang: Gang) -> None:
        """There is a new epoch."""
        self.gang = gang
        several = self.config.nodes * self.config.ranks_per_node > 1
        # A task sees its rank's share of the GPUs; a process that has begun to use CUDA sees what it saw then.
        self.has_separate_tasks = self.has_separate_tasks or (gang.is_joined and several) or bool(self._own_devices(0))
        self.epochs.save(gang.epoch)
        self.redactor.add(gang.secrets)

    def learn_env(self, env: dict[str, str]) -> None:
        """A worker has told the variables that the pool was made with."""
        self.config = self.config.replace(env=self.config.env | env, knows_env=True)
        self.redactor.add(secret_values(self.config.env))

    def learn_gpus(self, models: Sequence[str]) -> None:
        """The node has these."""
        self.config = self.config.with_gpus(models)
        self.gpus_known.set()

    def last_output(self, name: str, start: int = 0) -> str:
        """The last line of a file of the spool, in words; what stands before an offset is somebody else's."""
        line = last_line(self.config.spool / name, start)
        return f"it said: {self.redactor.redact_text(line)}" if line else "it said nothing"
