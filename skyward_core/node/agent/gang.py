"""The gang as one agent knows it, and, on the head, the order in which clients may start gang runs.

An *epoch* is one life of the gang: all ranks with their plugins' contexts (a process group, say) entered
together. When one rank's worker dies or a run fails half way, the epoch is broken as a whole, and the next run
forms a new one. Starting a gang run means sending a call to every agent; two clients doing so at once could be
queued in different orders on different nodes and wait for each other for ever. So a client starts gang runs only
while it holds the head's lock. It keeps the lock until somebody else wants it: one client alone never waits.

A gang may be of some of the pool's nodes only, its *members*: several of them live side by side then, each with an
epoch of its own, and its ranks know no others.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ...wire.frames import Header
from .config import AgentConfig
from .connection import Connection

if TYPE_CHECKING:
    from ...wire.client_frame_types import ClientGang
    from ...wire.node_frame_types import WorkerHello

PORT_TRIES = 64


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
        self.hooks = hooks
        self.apps = apps
        self.joins = joins
        self.secrets = list(secrets)
        self.alone = alone
        self.broken = broken
        self.spent = spent
        self.renewed = renewed

    @classmethod
    def told(cls, header: ClientGang | WorkerHello, plugins: bytes) -> Gang:
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

    def state(self) -> Header:
        return {"t": "gang", "epoch": self.epoch} | self.health()

    def health(self) -> Header:
        """Whether it takes another broadcast, as clients are told."""
        said: Header = {"broken": self.broken or self.spent}
        said |= {"members": self.members} if self.members else {}
        return said | {"spent": True} if self.spent and not self.broken else said

    def place(self, config: AgentConfig, rank: int) -> Header:
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


class Epochs:
    """The number of the latest epoch, kept on the node's disk for the agent that comes after this one: workers of that
    epoch may live on, unheard, and must not be taken for members of a new one.

    Attributes:
        latest: the number; 0 before the first.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.latest = int(os.pread(self._file, 20, 0) or b"0")

    def note(self, epoch: int) -> None:
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

    def want(self, connection: Connection) -> None:
        if connection in self._queue:
            return
        self._queue.append(connection)
        if len(self._queue) == 1:
            self._grant()
        else:
            self._queue[0].send({"t": "wanted"})
            self._tell_who(connection)

    def _tell_who(self, waiting: Connection) -> None:
        waiting.send({"t": "held", "by": self._queue[0].who})

    def release(self, connection: Connection, *, unclean: bool = False) -> None:
        """Give the lock back. ``unclean``: what the one before left half done could not be seen to."""
        if self._queue and self._queue[0] is connection:
            self._queue.popleft()
            self._unclean |= unclean
            self._grant()

    def lost(self, connection: Connection) -> None:
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
                self._tell_who(waiting)
            if len(self._queue) > 1:
                self._queue[0].send({"t": "wanted"})


class Port:
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
        for _ in range(PORT_TRIES):
            self.close()
            self._sockets = [self._bound(0)]
            self.number = int(self._sockets[0].getsockname()[1])
            if self._hold_behind(count - 1):
                return

    def _hold_behind(self, count: int) -> bool:
        for number in range(self.number + 1, self.number + 1 + count):
            if number > 65535:
                return False
            try:
                self._sockets.append(self._bound(number))
            except OSError:  # somebody has it: another row may be free
                return False
        return True

    def _bound(self, number: int) -> socket.socket:
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
