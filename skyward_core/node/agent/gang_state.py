"""State of the gang on one node: the gang, the file with its epoch number, and reserved rendezvous ports.

An epoch is the lifetime of one gang. Each new gang of the pool gets a higher number.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.agent.config import AgentConfig
from skyward_core.protocol.frame_codec import Header

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import ClientGang, GangPeers, WorkerHello


MAX_PORT_TRIES = 64


class Gang:
    """The gang of the current epoch.

    Args:
        epoch: Number of the epoch; 0 if there is none yet.
        info: Common fields of the ranks' :class:`InstanceInfo`.
        plugins: The pickled plugins.
        hooks: Whether plugins enter contexts in the workers.
        apps: Whether a plugin has an ``around_app`` context.
        secrets: Secrets of the plugins.
        joins: Whether a plugin joins the ranks into one world. If so, tasks run in separate processes.
        alone: Whether the ranks run standalone: no failure breaks the gang, and the epoch belongs to this node only.
        broken: Reason why the gang is broken; "" if it is intact.
        spent: Reason why some workers accept no further call; "" if all workers accept calls. Running calls continue.
        renewed: Latest epoch that required fresh workers.
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
        """Create a gang from the frame of a client, or of a worker that belongs to the gang."""
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
        """Nodes whose ranks belong to the gang; empty for all nodes of the pool."""
        return list(self.info.get("members", ()))

    def status_frame(self) -> Header:
        return {"t": "gang", "epoch": self.epoch} | self.health()

    def health(self) -> Header:
        """Return the fields that tell clients whether the gang accepts another broadcast."""
        fields: Header = {"broken": self.broken_reason or self.spent_reason}
        fields |= {"members": self.members} if self.members else {}
        return fields | {"spent": True} if self.spent_reason and not self.broken_reason else fields

    def rank_info(self, config: AgentConfig, rank: int) -> Header:
        """Return the :class:`InstanceInfo` of a rank of this node as JSON. Before the first epoch, it has no peers."""
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


def sign_body(key: str, kind: str, epoch: int, body: bytes) -> str:
    """Return a signature of a frame's kind, epoch and body, made with the secret key of the gang."""
    return _hash(key, f"{kind} {epoch} ".encode() + body)


def next_peers(peers: GangPeers, epoch: int, members: Collection[int]) -> GangPeers:
    """Return the addresses of the next gang's nodes, with a key that only the nodes of this gang can derive.

    Args:
        peers: Addresses of this gang's nodes.
        epoch: Number of the next epoch.
        members: Nodes of the next gang; empty for all nodes of the pool.
    """
    nodes = [place for place in peers["nodes"] if not members or place[0] in members]
    return {**peers, "nodes": nodes, "key": _hash(peers["key"], f"key of epoch {epoch}".encode())}


def _hash(key: str, data: bytes) -> str:
    from hashlib import blake2b  # imported late, because few agents hash peer frames

    return blake2b(data, key=bytes.fromhex(key), digest_size=32).hexdigest()


class EpochFile:
    """Number of the latest epoch, saved on disk for later agents of this node.

    If the agent dies, workers of the latest epoch may still run. They would count as members of a new epoch with the
    same number.

    Attributes:
        latest: The number; 0 before the first epoch.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.latest = int(os.pread(self._file, 20, 0) or b"0")

    def save(self, epoch: int) -> None:
        """Save the number of an epoch. Ignore a full disk, because the writers of log and result files report it."""
        if epoch <= self.latest:
            return
        self.latest = epoch
        with suppress(OSError):
            os.pwrite(self._file, b"%020d" % epoch, 0)


class ReservedPorts:
    """Consecutive TCP ports reserved for the gang's rendezvous. Additional plugins use the ports after the first.

    Reserves only one port if there are no consecutive free ports.

    Ranks import their framework for several seconds before one of them listens on the port. A bound socket that never
    listens prevents other programs from taking the port during this time. A rendezvous server can still listen, because
    both sockets set ``SO_REUSEADDR``. The reserving socket sets the option after bind(), because otherwise two agents
    could reserve the same port.
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
            except OSError:  # Another process uses this port, so the caller tries a different range.
                return False
        return True

    def _bind(self, number: int) -> socket.socket:
        sock = socket.socket(socket.AF_INET6 if ":" in self._address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.bind((self._address, number))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        while self._sockets:
            self._sockets.pop().close()
