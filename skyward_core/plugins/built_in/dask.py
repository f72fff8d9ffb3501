"""Plugin ``dask``: one Dask cluster that spans the pool's ranks, with ``compute.dask`` as its client.

The cluster's servers use TLS with certificates of the pool (https://distributed.dask.org/en/stable/tls.html), so that
other users of the network cannot connect.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import UsageError
from skyward_core.plugins.plugin import requirement, with_pip
from skyward_core.plugins.plugin_server_start_and_stop import (
    ServerPlugin,
    check_port_free,
    generated_field,
    make_certificates,
    port_field,
)
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, place_in_pool

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec


@dataclass(frozen=True)
class Dask(ServerPlugin):
    """One Dask cluster: the scheduler on node 0, a worker in each rank's process.

    ``compute.dask`` is a connected ``distributed.Client``. In a rank ``distributed.Client()`` connects to the cluster,
    too.

    Args:
        version: Version of distributed: "latest", an exact version, or constraints such as ">=2026.1".
        dashboard: Whether the scheduler serves Dask's dashboard, on the head's loopback address, under a secret URL.
        port: Port of the scheduler; the dashboard uses the next one. None for a port derived from the pool's name.
        threads: Number of tasks that a rank runs at the same time.
        memory_limit: Bytes of memory at which a rank spills to disk, as a number or text such as "4 GiB". "auto" for
            the rank's share of the machine's memory.

    Attributes:
        papers: Certificate of the authority, and certificate and key of the cluster's servers and clients.
        token: Secret part of the dashboard's URL; redacted in logs, like the key.

    Raises:
        UsageError: If ``port`` is invalid, or if ``threads`` is less than 1.
    """

    name: ClassVar[str] = "dask"
    help: ClassVar[str] = "one Dask cluster of the pool's ranks"
    place: ClassVar[int] = 11
    needs_peers = "one cluster of all ranks"
    pool_ports = (30_000, 2_000)
    ports_per_pool = 2  # the second port is for the dashboard
    version: str = field(default="latest", metadata={"help": "version of distributed"})
    dashboard: bool = field(default=True, metadata={"help": "serve Dask's dashboard on the head's loopback"})
    port: int | None = port_field("the scheduler")
    threads: int = field(default=1, metadata={"help": "number of tasks that a rank runs at the same time"})
    memory_limit: str | int = field(default="auto", metadata={"help": "memory of a rank before it spills to disk"})
    papers: tuple[str, str, str] = generated_field(lambda: make_certificates("a pool's Dask"))
    token: str = generated_field(lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads < 1:
            raise UsageError(f"threads must be 1 or more, got {self.threads}")

    def secrets(self) -> Sequence[str]:
        return (self.papers[2], self.token)

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return with_pip(image, [requirement("distributed", self.version), *(["bokeh"] if self.dashboard else [])])

    def around_app(self, info: InstanceInfo) -> AbstractContextManager[object]:
        return nullcontext() if info.node else run_scheduler(self, info.address, self.port_of(info.pool))

    def around_process(self, info: InstanceInfo) -> AbstractContextManager[object]:
        pool = place_in_pool()
        at = f"tls://{pool.head_addr}:{self.port_of(pool.pool)}"
        # Each rank has one Dask worker. If the rank has a separate process for tasks, the worker runs in that process.
        works = pool.world_size == 1 or (info.world_size == 1 and not info.worker)
        return run_worker(self, pool, at) if works else client_settings(self, at)

    def dashboard_at(self, pool: str) -> tuple[int, str] | None:
        """Return the port and path of the dashboard on the head's loopback address. None without a dashboard.

        Args:
            pool: Name of the pool.
        """
        return (self.port_of(pool) + 1, f"{self.token}/status") if self.dashboard else None


def ensure_joined() -> None:
    """Do nothing. To run this function, a rank must first enter its plugins, and this starts its Dask worker."""


START_TIMEOUT = 120.0  # seconds for Dask's scheduler to start
GRACE = 5.0  # seconds for a Dask server to close, or for a connection to it


def make_security(plugin: Dask) -> Any:
    """Return the TLS configuration of servers and clients."""
    import distributed

    made: Any = distributed.Security  # ``Any``, because the package distributed has no type annotations
    authority, certificate, key = plugin.papers
    parts = {f"tls_{role}_{part}": text for role in ("client", "scheduler", "worker")
             for part, text in (("cert", certificate), ("key", key))}  # fmt: skip
    return made(tls_ca_file=authority, require_encryption=True, **parts)


@contextmanager
def run_scheduler(plugin: Dask, address: str, port: int) -> Iterator[None]:
    """Run the scheduler, on the head.

    Raises:
        PoolError: If a port is not available.
    """
    for place in ((address, port), ("127.0.0.1", port + 1)):
        check_port_free("dask", *place)

    async def start() -> Any:
        from distributed import Scheduler

        made = Scheduler(
            host=address,
            port=port,
            protocol="tls",
            security=make_security(plugin),
            dashboard=plugin.dashboard,
            dashboard_address=f"127.0.0.1:{port + 1}",
            http_prefix=f"/{plugin.token}/",
        )
        _protect_pages(made, plugin.token)
        return await made

    config = _load_config()
    with (
        _run_server(start),
        config.set({"distributed.comm.timeouts.connect": f"{GRACE:g}s"}),
    ):  # shorter than Dask's default, because the worker at an address may have ended
        yield


@contextmanager
def run_worker(plugin: Dask, info: InstanceInfo, at: str) -> Iterator[None]:
    """Run the worker of a rank.

    Args:
        at: Address of the scheduler.
    """
    folder = tempfile.mkdtemp(prefix="sky-dask-")  # private folder for data that the worker moves from memory to disk

    async def start() -> Any:
        from distributed import Worker

        # secret part of the URL of the worker's web pages; no client gets it, so the pages are hidden
        own = os.urandom(16).hex()
        made = Worker(
            at,
            # Each worker gets a unique name, because the scheduler may still list an earlier worker of this rank that
            # has died.
            name=f"rank-{info.rank}.{os.getpid()}.{os.urandom(2).hex()}",
            nthreads=plugin.threads,
            host=info.address,
            protocol="tls",
            security=make_security(plugin),
            dashboard=False,
            dashboard_address="127.0.0.1:0",
            http_prefix=f"/{own}/",
            local_directory=folder,
            memory_limit=plugin.memory_limit,
            death_timeout=START_TIMEOUT,
        )
        await made  # waiting for the worker starts it, so that it listens
        _protect_pages(made, own)
        return made

    try:
        with client_settings(plugin, at), _run_server(start):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def client_settings(plugin: Dask, at: str) -> Iterator[None]:
    """Let ``distributed.Client()`` in this process connect to the cluster."""
    authority, certificate, key = plugin.papers
    tls = "distributed.comm.tls"
    settings = {
        "scheduler-address": at,
        f"{tls}.ca-file": authority,
        f"{tls}.client.cert": certificate,
        f"{tls}.client.key": key,
        "distributed.comm.require-encryption": True,
    }
    with _load_config().set(settings):
        yield


def _load_config() -> Any:
    import dask
    import distributed  # noqa: F401  adds its defaults

    return dask.config


def _protect_pages(server: Any, token: str) -> None:
    """Hide a server's web pages from requests that do not contain its secret.

    Dask's own URL prefix is not sufficient, because the root page redirects to the prefix, and the site map contains
    it.
    """
    from tornado.web import ErrorHandler

    web = server.http_application
    find, secret = web.find_handler, f"/{token}/"

    def find_handler(request: Any, **kwargs: Any) -> Any:
        if compare_digest(request.path[: len(secret)].encode(), secret.encode()):
            return find(request, **kwargs)
        return web.get_handler_delegate(request, ErrorHandler, {"status_code": 404})

    web.find_handler = find_handler


@contextmanager
def _run_server(start: Callable[[], Coroutine[Any, Any, Any]]) -> Iterator[None]:
    """Run a server on a loop in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="dask", daemon=True)
    thread.start()

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result()
        try:
            yield
        finally:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(server.close(), loop).result(GRACE)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(GRACE)


PLUGIN = Dask
