"""The gang of the current epoch, the number of the latest epoch, and reserved rendezvous ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.agent.config import AgentConfig
from skyward_core.protocol.frame_codec import Header

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
