"""Scheduler and workers as threads of ranks."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from hmac import compare_digest
from typing import Any, Protocol

from skyward_core.plugins.server_ports_and_certificates import check_port_free
from skyward_core.runtime.instance_info import InstanceInfo


def ensure_joined() -> None:
    """Does nothing: a rank that runs it has entered its plugins, and so has its worker."""


START_TIMEOUT = 120.0  # seconds for the scheduler to be there
GRACE = 5.0  # seconds that a server has to close


class DaskOptions(Protocol):
    """What the servers are made by: the plugin's parameters."""

    @property
    def papers(self) -> tuple[str, str, str]: ...

    @property
    def token(self) -> str: ...

    @property
    def dashboard(self) -> bool: ...

    @property
    def threads(self) -> int: ...

    @property
    def memory_limit(self) -> str | int: ...


def make_security(plugin: DaskOptions) -> Any:
    """What its servers and clients know each other by."""
    import distributed

    made: Any = distributed.Security  # which is not typed
    authority, certificate, key = plugin.papers
    parts = {f"tls_{role}_{part}": text for role in ("client", "scheduler", "worker")
             for part, text in (("cert", certificate), ("key", key))}  # fmt: skip
    return made(tls_ca_file=authority, require_encryption=True, **parts)


@contextmanager
def run_scheduler(plugin: DaskOptions, address: str, port: int) -> Iterator[None]:
    """The scheduler, on the head.

    Raises:
        PoolError: a port cannot be had.
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

    with _settings() as settings, _run_server(start):
        settings.set({"distributed.comm.timeouts.connect": f"{GRACE:g}s"})  # of workers that are no more
        yield


@contextmanager
def run_worker(plugin: DaskOptions, info: InstanceInfo, at: str) -> Iterator[None]:
    """The worker of a rank.

    Args:
        at: the scheduler.
    """
    folder = tempfile.mkdtemp(prefix="sky-dask-")  # nobody else's: what it spills lies here

    async def start() -> Any:
        from distributed import Worker

        own = os.urandom(16).hex()  # told to nobody: nobody needs its pages
        made = Worker(
            at,
            # Of a name that nothing had before: a rank that died may not have been missed yet.
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
        await made  # which begins to listen there
        _protect_pages(made, own)
        return made

    try:
        with _settings() as had, _run_server(start):
            had.set({"scheduler-address": at, **_client_settings(plugin)})
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def client_settings(plugin: DaskOptions, at: str) -> Iterator[None]:
    """Let ``distributed.Client()`` in this process find the cluster, whose scheduler is there."""
    with _settings() as had:
        had.set({"scheduler-address": at, **_client_settings(plugin)})
        yield


def _client_settings(plugin: DaskOptions) -> dict[str, Any]:
    """What has ``distributed.Client()`` in a rank find the cluster, and be let in."""
    authority, certificate, key = plugin.papers
    tls = "distributed.comm.tls"
    return {
        f"{tls}.ca-file": authority,
        f"{tls}.client.cert": certificate,
        f"{tls}.client.key": key,
        "distributed.comm.require-encryption": True,
    }


class _Settings:
    """Dask's configuration of this process, as it was before."""

    def __init__(self) -> None:
        import dask
        import distributed  # noqa: F401  its defaults

        self._config = dask.config
        self._set: list[Any] = []

    def set(self, values: dict[str, Any]) -> None:
        self._set.append(self._config.set(values))

    def restore(self) -> None:
        while self._set:
            self._set.pop().__exit__(None, None, None)


@contextmanager
def _settings() -> Iterator[_Settings]:
    settings = _Settings()
    try:
        yield settings
    finally:
        settings.restore()


def _protect_pages(server: Any, token: str) -> None:
    """Have a server's web pages be found by who knows its secret. Dask's prefix alone hides nothing: the root leads to
    it, and the map of the site names it."""
    from tornado.web import ErrorHandler

    web = server.http_application
    find, secret = web.find_handler, f"/{token}/"

    def find_handler(request: Any, **kwargs: Any) -> Any:
        if compare_digest(request.path[: len(secret)].encode(), secret.encode()):
            return find(request, **kwargs)
        return web.get_handler_delegate(request, ErrorHandler, {"status_code": 404})

    web.find_handler = find_handler


@contextmanager
def _run_server(start: Callable[[], Awaitable[Any]]) -> Iterator[None]:
    """A server, on a loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="dask", daemon=True)
    thread.start()

    async def begin() -> Any:
        return await start()

    try:
        server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        try:
            yield
        finally:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_close_server(server), loop).result(GRACE)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(GRACE)


async def _close_server(server: Any) -> None:
    await asyncio.wait_for(server.close(), GRACE)
