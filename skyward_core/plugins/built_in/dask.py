"""Dask: one cluster of the pool's ranks, which ``compute.dask`` is a client of.

Its servers speak TLS with certificates that are made for the pool (https://distributed.dask.org/en/stable/tls.html):
who reaches their ports cannot use them.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from skyward_core.model.errors import UsageError
from skyward_core.plugins.plugin import Plugin, requirement, with_pip
from skyward_core.plugins.server_ports_and_certificates import make_certificates
from skyward_core.runtime.instance_info import place_in_pool

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info import InstanceInfo

FIRST_PORT, PORTS = 30_000, 2_000  # a pool has two neighbours of these, by its name; Linux assigns them to nobody


@dataclass(frozen=True)
class Dask(Plugin):
    """One Dask cluster: the scheduler on node 0, a worker in each rank's process.

    ``compute.dask`` is a connected ``distributed.Client``. In a rank ``distributed.Client()`` connects to it, too.

    Args:
        version: of distributed: "latest", a bare version to pin, or constraints such as ">=2026.1".
        dashboard: whether the scheduler has Dask's dashboard, on the head's loopback, behind a secret address.
        port: of the scheduler; the dashboard has the next one. None for one made of the pool's name.
        threads: tasks that a rank runs at the same time.
        memory_limit: bytes of memory from which on a rank spills to its disk, as a number or a text such as "4 GiB";
            "auto" for its share of the machine's.

    Attributes:
        papers: the certificates and the key by which its servers and clients know each other.
        token: part of the dashboard's address; blanked in logs, as the key is.

    Raises:
        UsageError: ``port`` is no port, or ``threads`` are less than 1.
    """

    name: ClassVar[str] = "dask"
    help: ClassVar[str] = "one Dask cluster of the pool's ranks"
    place: ClassVar[int] = 11
    needs_peers = "one cluster of all ranks"
    version: str = field(default="latest", metadata={"help": "of distributed"})
    dashboard: bool = field(
        default=True, metadata={"help": "have the scheduler serve Dask's dashboard on its loopback"}
    )
    port: int | None = field(default=None, metadata={"help": "of the scheduler; one made of the pool's name"})
    threads: int = field(default=1, metadata={"help": "tasks that a rank runs at the same time"})
    memory_limit: str | int = field(default="auto", metadata={"help": "of a rank, before it spills"})
    papers: tuple[str, str, str] = field(
        default_factory=lambda: make_certificates("a pool's Dask"), init=False, repr=False, compare=False
    )
    token: str = field(default_factory=lambda: secrets.token_hex(16), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.port is not None and not 1024 <= self.port < 65535:
            raise UsageError(f"port must be from 1024 to 65534, not {self.port}; None takes one by the pool's name")
        if self.threads < 1:
            raise UsageError(f"threads must be 1 or more, not {self.threads}")

    def secrets(self) -> Sequence[str]:
        return (self.papers[2], self.token)

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        wanted = [requirement("distributed", self.version), *(["bokeh"] if self.dashboard else [])]
        return with_pip(image, wanted)

    @contextmanager
    def around_app(self, info: InstanceInfo) -> Iterator[None]:
        from skyward_core.plugins.dask_cluster import run_scheduler

        if info.node:
            yield
            return
        with run_scheduler(self, info.address, self.port_of(info.pool)):
            yield

    @contextmanager
    def around_process(self, info: InstanceInfo) -> Iterator[None]:
        from skyward_core.plugins.dask_cluster import client_settings, run_worker

        pool = place_in_pool()
        at = f"tls://{pool.head_addr}:{self.port_of(pool.pool)}"
        # Dask's tasks run on one rank each: in the rank's process for tasks, if it has one, and there once.
        works = pool.world_size == 1 or (info.world_size == 1 and not info.worker)
        with run_worker(self, pool, at) if works else client_settings(self, at):
            yield

    def dashboard_at(self, pool: str) -> tuple[int, str] | None:
        """Port and path of the dashboard, on the head's loopback; None without one.

        Args:
            pool: its name.
        """
        return (self.port_of(pool) + 1, f"{self.token}/status") if self.dashboard else None

    def port_of(self, pool: str) -> int:
        """The scheduler's port: the same for all nodes of a pool, and in each epoch of the gang.

        Args:
            pool: its name.
        """
        return self.port or FIRST_PORT + zlib.crc32(pool.encode()) % (PORTS // 2) * 2


PLUGIN = Dask
