"""Shared state: one small server on the head, which all ranks and the client reach."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ...model.errors import UsageError
from ..base import Plugin
from ..support.requirements import requirement, with_pip
from ..support.tls_papers import papers

if TYPE_CHECKING:
    from ...model.spec import Image, PoolSpec
    from ...runtime.info import InstanceInfo

FIRST_PORT, PORTS = 19_000, 1_000  # of these a pool has one, by its name; Linux gives them to nobody


@dataclass(frozen=True)
class Shared(Plugin):
    """What ranks and client share by name: ``sky.dict``, ``sky.set``, ``sky.counter``, ``sky.queue``, ``sky.lock``,
    ``sky.barrier``.

    Node 0 has a Valkey or Redis server that is installed there, in memory only, from before the first rank is set up
    until the pool ends.

    Args:
        version: of the Python package redis: "latest", a bare version to pin, or constraints such as ">=6".
        port: of the server on the head's own address, by TLS; None for one made of the pool's name. Where all nodes are
            this machine there is none.

    Attributes:
        papers: the certificates and the key by which the server is known.
        token: what lets ranks and client in; blanked in logs, as the key is.

    Raises:
        UsageError: ``port`` is no port.
    """

    name: ClassVar[str] = "shared"
    help: ClassVar[str] = "dicts, counters, queues, locks that all ranks share"
    place: ClassVar[int] = 12
    gang: ClassVar[bool] = False
    needs_peers = "one store of all ranks"
    version: str = field(default="latest", metadata={"help": "of the Python package redis"})
    port: int | None = field(default=None, metadata={"help": "of the server; one made of the pool's name"})
    papers: tuple[str, str, str] = field(
        default_factory=lambda: papers("a pool's shared state"), init=False, repr=False, compare=False
    )
    token: str = field(default_factory=lambda: secrets.token_hex(32), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.port is not None and not 1024 <= self.port <= 65535:
            raise UsageError(
                f"port must be from 1024 to 65535, not {self.port}; None takes one by the pool's name"
            )

    def secrets(self) -> Sequence[str]:
        return (self.papers[2], self.token)

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return with_pip(image, [requirement("redis", self.version)])

    @contextmanager
    def around_app(self, info: InstanceInfo) -> Iterator[None]:
        from ..support.shared_server import server

        if info.node:
            yield
            return
        with server(self.token, self.papers, info.address, self.port_of(info.pool)):
            yield

    @contextmanager
    def around_process(self, info: InstanceInfo) -> Iterator[None]:
        from ..support import shared_state
        from ..support.shared_way import SharedWay

        at = (info.head_addr, self.port_of(info.pool))
        shared_state.stand(
            shared_state.SharedState(SharedWay(info.pool, self.token, self.papers[0], lambda: at))
        )
        try:
            yield
        finally:
            shared_state.stand(None)

    def port_of(self, pool: str) -> int:
        """The server's port: the same for all nodes of a pool, and in each epoch of the gang.

        Args:
            pool: its name.
        """
        return self.port or FIRST_PORT + zlib.crc32(pool.encode()) % PORTS


PLUGIN = Shared
