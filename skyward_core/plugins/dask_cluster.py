"""Scheduler and workers as threads of ranks."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hmac import compare_digest
from typing import Any, Protocol

from skyward_core.plugins.server_ports_and_certificates import check_port_free
from skyward_core.runtime.instance_info import InstanceInfo, instance_info, using

CHECK_INTERVAL = 2.0  # seconds between looks at whether the client that gives the work is there
ANSWER_TIMEOUT = 20.0  # seconds that the scheduler has to say so
RANK = "skyward_rank"  # of an exception: where it was raised

_current_worker: tuple[Any, Any, int] | None = None  # the worker in this process, its loop, and the rank
_gates: dict[str, PlaceholderGate] = {}
_lock = threading.Lock()


class PlaceholderGate:
    """One run's in this process.

    Attributes:
        begun: its call stands.
        over: its work is done.
    """

    def __init__(self) -> None:
        self.started, self.finished = threading.Event(), threading.Event()


def set_worker(worker: Any, loop: Any, rank: int) -> None:
    """A worker is in this process from now on, or (None) is no more."""
    global _current_worker
    _current_worker = (worker, loop, rank) if worker is not None else None


def hold_placeholder(run: str, client: str) -> None:
    """Last as long as a run's work does.

    Args:
        run: its id.
        client: Dask's name of who gives the work.

    Raises:
        RuntimeError: Dask's scheduler, this rank's worker, or that client is gone.
    """
    gate = _get_gate(run)
    gate.started.set()
    try:
        while not gate.finished.wait(CHECK_INTERVAL):
            _check_client(client)
    finally:
        with _lock:
            _gates.pop(run, None)


def is_placeholder_running(run: str) -> bool:
    """Whether a run's call stands in this process; asked through Dask."""
    return _get_gate(run).started.is_set()


def release_placeholder(run: str) -> None:
    """A run's work is done; told through Dask, and perhaps before its call stands here."""
    _get_gate(run).finished.set()


def ensure_joined() -> None:
    """Does nothing: a rank that runs it has entered its plugins, and so has its worker."""


def list_executing() -> list[str]:
    """Keys of what the worker in this process is at; asked through Dask."""
    if _current_worker is None:
        return []
    return [str(task.key) for task in _current_worker[0].state.executing]


def _get_gate(run: str) -> PlaceholderGate:
    with _lock:
        return _gates.setdefault(run, PlaceholderGate())


def _check_client(client: str) -> None:
    if _current_worker is None:
        raise RuntimeError("this rank has no Dask worker any more")
    worker, loop, _ = _current_worker
    if worker.status.name in ("closing", "closed", "failed"):
        raise RuntimeError("this rank's Dask worker has ended: its scheduler, on the head, is gone")

    async def ask() -> bool:
        return bool(await worker.scheduler.skyward_knows(client=client))

    try:
        knows = asyncio.run_coroutine_threadsafe(ask(), loop).result(ANSWER_TIMEOUT)
    except (OSError, TimeoutError):
        return  # if it does not come back, the worker ends
    if not knows:
        raise RuntimeError("the client that gave Dask this work is gone")


def _call_item(fn: Callable[..., Any], item: Any) -> Any:
    """What a function makes of an item. What would end the thread that Dask works in, and with it all others' work, is
    an error like others; to leave by ``sys.exit(0)`` is to return None, as in any call."""
    try:
        return fn(item)
    except SystemExit as error:
        if not error.code:
            return None
        raise RuntimeError(f"called sys.exit({error.code!r:.200}) before it returned") from error
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"raised {type(error).__name__}: {error!s:.200}") from error


class DaskMapChunk:
    """A function that takes one item, as Dask's workers call it with a few.

    Args:
        fn: the function.
        run: id of the run that it is of.
    """

    def __init__(self, fn: Callable[..., Any], run: str) -> None:
        self.fn = fn
        self.run = run

    def __call__(self, first: int, items: Sequence[Any]) -> tuple[int, list[Any], float]:
        """Rank, values, and seconds that they took.

        Args:
            first: the number of the first item, among all of the map.
        """
        rank = _current_worker[2] if _current_worker is not None else 0
        began = time.perf_counter()
        values: list[Any] = []
        with using(instance_info(), self.run, rank):
            for item in items:
                try:
                    values.append(_call_item(self.fn, item))
                except Exception as error:
                    error.add_note(f"while it worked on item {first + len(values):,} of the map")
                    setattr(error, RANK, rank)
                    raise
        return rank, values, time.perf_counter() - began


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
        made.handlers["skyward_knows"] = lambda client: client in made.clients
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
        with _settings() as had, _run_server(start) as (server, loop):
            had.set({"scheduler-address": at, **_client_settings(plugin)})
            set_worker(server, loop, info.rank)
            try:
                yield
            finally:
                set_worker(None, None, info.rank)
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
def _run_server(start: Callable[[], Awaitable[Any]]) -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """A server, on a loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="dask", daemon=True)
    thread.start()

    async def begin() -> Any:
        return await start()

    try:
        server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        try:
            yield server, loop
        finally:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_close_server(server), loop).result(GRACE)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(GRACE)


async def _close_server(server: Any) -> None:
    await asyncio.wait_for(server.close(), GRACE)
