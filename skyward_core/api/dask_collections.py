"""A pool's Dask cluster, as scripts use it: its client, and maps and groups that its scheduler runs."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.function import PendingFunction
from skyward_core.model.outcomes import ErrorInfo, Outcome, Summary
from skyward_core.node.worker.returned_exceptions import error_words
from skyward_core.plugins import dask_cluster
from skyward_core.plugins.dask_cluster import DaskMapChunk
from skyward_core.plugins.plugin import decorate_function
from skyward_core.pool.runs.scheduler import new_run_id
from skyward_core.tasks.function_pickling import dumps, make_task
from skyward_core.tasks.pickled_call import Task
from skyward_core.transport.background_loop import background_loop, submit

if TYPE_CHECKING:
    from skyward_core.plugins.built_in.dask import Dask
    from skyward_core.pool.pool import Pool
    from skyward_core.pool.runs.map_run import EngineRun

CONNECT_TIMEOUT = 60.0  # seconds for the client to connect, and for ranks to begin a run
POLL_INTERVAL = 0.01  # seconds between looks at whether they have
CANCEL_GRACE = 2.0  # seconds in which what cannot be interrupted may end by itself


class DaskPoolProtocol(Protocol):
    """What it asks of a pool."""

    plugins: Sequence[Any]

    @property
    def pool(self) -> Pool: ...

    @property
    def concurrency(self) -> int: ...

    def run_all(self, pending: PendingFunction[Any]) -> list[Any]: ...

    def _start_carried_run(self, task: Task, run_id: str) -> EngineRun: ...

    def _cancel(self, *runs: Any) -> None: ...


class DaskConnection:
    """One client's connection to the Dask cluster of a pool, made when it is first asked for.

    Attributes:
        reading: threads that are within a map.
    """

    def __init__(self, pool: DaskPoolProtocol, plugin: Dask) -> None:
        self.pool, self.plugin = pool, plugin
        self.reading_threads: set[int] = set()
        self._dashboard_address: tuple[str, int] | None = None  # where the dashboard is here
        self._client: Any = None
        self._lock = threading.Lock()

    def client(self) -> Any:
        """A connected ``distributed.Client``.

        Raises:
            RunError: the cluster could not be brought up; its cause says why.
            PoolError: distributed is not installed here, or the scheduler does not answer.
        """
        with self._lock:
            if self._client is None or self._client.status in ("closed", "closing"):
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        try:
            import distributed
        except ModuleNotFoundError as error:
            raise PoolError(
                "distributed is not installed here: pip install distributed, in the version that the pool has"
            ) from error
        from skyward_core.plugins.dask_cluster import make_security

        self._start_workers()
        pool = self.pool.pool
        host, port = self._reachable_address(pool.context.links[0].welcome["address"], self._port)
        made: Any = distributed.Client  # which is not typed
        at = f"tls://[{host}]:{port}" if ":" in host else f"tls://{host}:{port}"
        try:
            return made(at, security=make_security(self.plugin), timeout=CONNECT_TIMEOUT)
        except OSError as error:
            raise PoolError(f"Dask's scheduler of pool {pool.name} does not answer: {error}") from error

    def _start_workers(self) -> None:
        """Start a worker in each rank.

        Raises:
            RunError: If a rank cannot have one.
        """
        run = self.pool._start_carried_run(make_task(PendingFunction(dask_cluster.ensure_joined)), new_run_id())
        while run.state == "running" and run.pending_count():
            time.sleep(POLL_INTERVAL)
        background_loop().call_soon_threadsafe(run.finish)
        while run.arrivals.get() != ("end",):
            pass
        if run.state != "done":
            raise run.error()

    def dashboard(self) -> str:
        """Its dashboard's address here.

        Raises:
            UsageError: it was made without one.
            PoolError: there is no way to it.
        """
        if not self.plugin.dashboard:
            raise UsageError("this pool's Dask has no dashboard: make it with sky.plugins.dask(dashboard=True)")
        with self._lock:
            if self._dashboard_address is None:
                self._dashboard_address = self._reachable_address("127.0.0.1", self._port + 1)
        host, port = self._dashboard_address
        return f"http://{host}:{port}/{self.plugin.token}/status"

    @property
    def _port(self) -> int:
        return self.plugin.port_of(self.pool.pool.name)

    def _reachable_address(self, address: str, port: int) -> tuple[str, int]:
        head = self.pool.pool.context.links[0]
        try:
            return submit(head.transport.forward_port(address, port)).result()
        except OSError as error:
            words = f"there is no way to Dask's scheduler of pool {self.pool.pool.name}: {error}"
            raise PoolError(words) from error

    def close(self) -> None:
        """Leave the cluster as it is."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # whatever it says on its way out: a teardown waits behind it
                client.close(timeout=CANCEL_GRACE)


class DaskMapBackend:
    """A map whose calls Dask's scheduler hands out; see ``maps.MapBackend``."""

    def __init__(self, work: DaskConnection, call: PendingFunction[Any]) -> None:
        self._connection, self._call = work, call
        self.places = work.pool.concurrency * work.plugin.threads
        self.arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client: Any = None
        self._run: EngineRun | None = None
        self._share: DaskMapChunk | None = None
        self._futures: dict[int, Any] = {}  # that have not ended
        self._lock = threading.Lock()
        self._submitted_count = 0
        self._last_call = self._failed = self._released = False

    @property
    def run(self) -> EngineRun:
        if self._run is None:
            raise RuntimeError("the map has not begun")
        return self._run

    def start(self) -> None:
        self._client = self._connection.client()
        pool, run_id = self._connection.pool, new_run_id()
        carry = make_task(PendingFunction(dask_cluster.hold_placeholder, (run_id, self._client.id)))
        self._run = pool._start_carried_run(Task(self._call.name, carry.fn, carry.args), run_id)
        self._run.on_lost = self._on_rank_lost
        self._connection.reading_threads.add(threading.get_ident())
        self.arrivals = self._run.arrivals
        self._share = DaskMapChunk(decorate_function(pool.plugins, self._call.fn), run_id)
        until = time.monotonic() + CONNECT_TIMEOUT
        while self._run.state == "running" and time.monotonic() < until:
            begun = self._run_on_workers(dask_cluster.is_placeholder_running, run_id)
            if sum(begun.values()) >= self._run.pending_count():
                return  # what ranks print from now on is the run's
            time.sleep(POLL_INTERVAL)

    def submit_chunk(self, first: int, items: Sequence[Any]) -> int:
        with self._lock:
            number, self._submitted_count = self._submitted_count, self._submitted_count + 1
            if self._failed:
                return 0
            future = self._client.submit(
                self._share, first, list(items), key=f"{self._call.name}-{self.run.id}-{number}",
                pure=False, retries=self._connection.plugin.retries,
            )  # fmt: skip
            self._futures[number] = future
        future.add_done_callback(lambda done: self._on_future_done(number, len(items), done))
        return 0

    def finish(self) -> None:
        with self._lock:
            self._last_call = True
        self._release_if_done()

    def failure(self) -> Exception | None:
        return None if self.run.state == "done" else self.run.error()

    def close(self) -> None:
        self._connection.reading_threads.discard(threading.get_ident())
        if self._run is None:
            return
        with self._lock:
            self._failed = True
            futures, self._futures = list(self._futures.values()), {}
        if self._run.state != "running":
            # A rank has ended, maybe by a call that Dask would hand to the next one, which would end, too.
            if futures:
                with suppress(OSError, RuntimeError):  # the cluster is gone, too
                    self._client.cancel(futures, force=True)
            return
        self._cancel_futures(futures)
        background_loop().call_soon_threadsafe(self._run.abandon, "its caller went away")
        self._release()

    # -- what becomes of it, in a thread of Dask's client -------------------------------------------------

    def _on_future_done(self, number: int, items: int, future: Any) -> None:
        with self._lock:
            if self._futures.pop(number, None) is None or self._failed:
                return
        try:
            rank, values, seconds = future.result()
        except BaseException as error:  # noqa: BLE001  whatever it was: it is the run's end
            self._fail(error)
            return
        summary = Summary("list", f"{items:,} values" if items > 1 else "a value")
        background_loop().call_soon_threadsafe(self.run.add_progress, rank, items, seconds, summary)
        size = sum(map(sys.getsizeof, values))
        self.arrivals.put(("values", number, lambda: values, items, seconds, size))
        self._release_if_done()

    def _on_rank_lost(self, rank: int) -> None:
        """A rank's node is lost: Dask, which would find out by silence alone, does its tasks anew now."""
        name = f"dask-without-rank-{rank}"
        threading.Thread(target=self._unregister_worker, args=(rank, name), name=name, daemon=True).start()

    def _unregister_worker(self, rank: int, why: str) -> None:
        client = self._client
        with suppress(OSError, RuntimeError):  # it is gone itself, or closed: nobody waits for its tasks
            for address, worker in client.scheduler_info(n_workers=-1)["workers"].items():
                if _parse_rank(worker["name"]) == rank:
                    client.sync(client.scheduler.unregister, address=address, stimulus_id=why)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            first, self._failed = not self._failed, True
            futures, self._futures = list(self._futures.values()), {}
        if not first:
            return
        self._cancel_futures(futures)
        words = error_words(error)
        rank = _failing_rank(error)
        node = rank // self._connection.pool.pool.context.ranks_per_node if rank >= 0 else -1
        info = ErrorInfo(words["type"], words["message"], words["traceback"])
        failure = Outcome(max(rank, 0), rank, node, "raised", error=info)
        background_loop().call_soon_threadsafe(self.run.fail, failure, _pickle_error(error))
        self._release()

    def _cancel_futures(self, futures: Sequence[Any]) -> None:
        """Take back what has not begun. Dask cannot interrupt what has: that gets a moment, and then its rank ends."""
        if not futures:
            return
        self._client.cancel(futures, force=True)
        keys = {future.key for future in futures}
        until = time.monotonic() + CANCEL_GRACE
        while keys & self._executing_keys():
            if time.monotonic() > until:
                self._connection.pool._cancel(self.run)
                return
            time.sleep(POLL_INTERVAL)

    def _executing_keys(self) -> set[str]:
        """Keys of calls that workers are at."""
        found = self._run_on_workers(dask_cluster.list_executing)
        return {key for keys in found.values() for key in keys}

    def _release_if_done(self) -> None:
        with self._lock:
            done = self._last_call and not self._futures and not self._failed
        if done:
            self._release()

    def _release(self) -> None:
        with self._lock:
            released, self._released = self._released, True
        if not released:
            background_loop().call_soon_threadsafe(self.run.finish)
            with suppress(OSError):  # the cluster is gone: what stands there finds that out
                self._run_on_workers(dask_cluster.release_placeholder, self.run.id)

    def _run_on_workers(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Call a function in all workers but those of nodes that are lost, whom Dask may not have missed yet."""
        context = self._connection.pool.pool.context
        gone = {link.node for link in context.links if link.gone}
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        there = [
            address
            for address, worker in workers.items()
            if (rank := _parse_rank(worker["name"])) >= 0 and rank // context.ranks_per_node not in gone
        ]
        found: dict[str, Any] = self._client.run(function, *args, workers=there, on_error="ignore")
        return found


def make_call_runner(name: str) -> Callable[[PendingFunction[Any]], Any]:
    """What makes a call of a group on a rank, by the name of its first call."""

    def call(pending: PendingFunction[Any]) -> Any:
        return pending.local()

    call.__name__ = name
    return call


def _failing_rank(error: BaseException) -> int:
    """The rank that raised it; -1 where nobody knows."""
    rank = getattr(error, dask_cluster.RANK, None)
    if isinstance(rank, int):
        return rank
    return _parse_rank(getattr(getattr(error, "last_worker", None), "name", ""))  # it took its worker with it


def _parse_rank(worker: object) -> int:
    """The rank of a worker, by its name; -1 for one that is none of ours."""
    number = str(worker).removeprefix("rank-").partition(".")[0]
    return int(number) if number.isdecimal() else -1


def _pickle_error(error: BaseException) -> bytes:
    try:
        return dumps(error)
    except BaseException:  # noqa: BLE001  a reducer may raise anything; the error's text is still sent
        return b""
