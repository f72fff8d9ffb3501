"""Connection of a script to its pool's Dask cluster."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.function import PendingFunction
from skyward_core.tasks.function_pickling import make_task
from skyward_core.transport.background_loop import submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skyward_core.plugins.built_in.dask import Dask
    from skyward_core.pool.pool import Pool
    from skyward_core.tasks.task_and_blob_values import Task

CONNECT_TIMEOUT = 60.0  # seconds for the client to connect
CLOSE_TIMEOUT = 2.0  # seconds for the client to close


class DaskConnection:
    """One client's connection to the Dask cluster of a pool, made when it is first asked for.

    Args:
        run_tasks: runs tasks on the pool, and waits for them.
    """

    def __init__(self, pool: Pool, plugin: Dask, run_tasks: Callable[[Sequence[Task]], object]) -> None:
        self._pool, self._plugin, self._run_tasks = pool, plugin, run_tasks
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
        from skyward_core.plugins.built_in.dask import make_security

        self._start_workers()
        pool = self._pool
        host, port = self._reachable_address(pool.context.links[0].welcome["address"], self._port)
        made: Any = distributed.Client  # which is not typed
        at = f"tls://[{host}]:{port}" if ":" in host else f"tls://{host}:{port}"
        try:
            return made(at, security=make_security(self._plugin), timeout=CONNECT_TIMEOUT)
        except OSError as error:
            raise PoolError(f"Dask's scheduler of pool {pool.name} does not answer: {error}") from error

    def _start_workers(self) -> None:
        """Start a worker in each rank.

        Raises:
            RunError: If a rank cannot have one.
        """
        from skyward_core.plugins.built_in.dask import ensure_joined

        task, context = make_task(PendingFunction(ensure_joined)), self._pool.context
        ranks = range(len(context.links) * context.ranks_per_node)
        self._run_tasks([replace(task, rank=rank) for rank in ranks])

    def dashboard(self) -> str:
        """Its dashboard's address here.

        Raises:
            UsageError: it was made without one.
            PoolError: there is no way to it.
        """
        if not self._plugin.dashboard:
            raise UsageError("this pool's Dask has no dashboard: make it with sky.plugins.dask(dashboard=True)")
        with self._lock:
            if self._dashboard_address is None:
                self._dashboard_address = self._reachable_address("127.0.0.1", self._port + 1)
        host, port = self._dashboard_address
        return f"http://{host}:{port}/{self._plugin.token}/status"

    @property
    def _port(self) -> int:
        return self._plugin.port_of(self._pool.name)

    def _reachable_address(self, address: str, port: int) -> tuple[str, int]:
        head = self._pool.context.links[0]
        try:
            return submit(head.transport.forward_port(address, port)).result()
        except OSError as error:
            words = f"there is no way to Dask's scheduler of pool {self._pool.name}: {error}"
            raise PoolError(words) from error

    def close(self) -> None:
        """Leave the cluster as it is."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # whatever it says on its way out: a teardown waits behind it
                client.close(timeout=CLOSE_TIMEOUT)
