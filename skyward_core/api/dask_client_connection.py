"""Client connection to a pool's Dask cluster."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import PoolError, UsageError, convert_errors
from skyward_core.model.function import PendingFunction
from skyward_core.tasks.function_pickling import make_task
from skyward_core.transport.background_loop import submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skyward_core.plugins.built_in.dask import Dask
    from skyward_core.pool.pool import Pool
    from skyward_core.tasks.pickled_calls_and_blobs import Task

CONNECT_TIMEOUT = 60.0  # seconds for the Dask client to connect
CLOSE_TIMEOUT = 2.0  # seconds for the Dask client to close


class DaskConnection:
    """One client's connection to the Dask cluster of a pool, opened at first use.

    Args:
        run_tasks: Runs tasks on the pool and waits for them.
    """

    def __init__(self, pool: Pool, plugin: Dask, run_tasks: Callable[[Sequence[Task]], object]) -> None:
        self._pool, self._plugin, self._run_tasks = pool, plugin, run_tasks
        # Host and port of the forwarded Dask dashboard on this machine; None if it is not forwarded yet.
        self._dashboard_address: tuple[str, int] | None = None
        self._client: Any = None
        self._lock = threading.Lock()

    def client(self) -> Any:
        """Return a connected ``distributed.Client``.

        Raises:
            RunError: If the cluster cannot be started. The cause has the reason.
            PoolError: If distributed is not installed here, or if the scheduler does not answer.
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
                "distributed is not installed on this machine. Install the pool's version: pip install distributed"
            ) from error
        from skyward_core.plugins.built_in.dask import make_security

        self._start_workers()
        pool = self._pool
        host, port = self._reachable_address(pool.context.links[0].welcome["address"], self._port)
        made: Any = distributed.Client  # ignore missing types, because distributed has no type annotations
        at = f"tls://[{host}]:{port}" if ":" in host else f"tls://{host}:{port}"
        with convert_errors(f"the Dask scheduler of pool {pool.name} does not answer"):
            return made(at, security=make_security(self._plugin), timeout=CONNECT_TIMEOUT)

    def _start_workers(self) -> None:
        """Start a Dask worker in each rank.

        Raises:
            RunError: If a worker cannot be started.
        """
        from skyward_core.plugins.built_in.dask import ensure_joined

        task, context = make_task(PendingFunction(ensure_joined)), self._pool.context
        ranks = range(len(context.links) * context.ranks_per_node)
        self._run_tasks([replace(task, rank=rank) for rank in ranks])

    def dashboard(self) -> str:
        """Return the dashboard's URL on this machine.

        Raises:
            UsageError: If the plugin was created without a dashboard.
            PoolError: If the dashboard is not reachable.
        """
        if not self._plugin.dashboard:
            raise UsageError(
                "the Dask cluster of this pool has no dashboard. Create the pool with sky.plugins.dask(dashboard=True)."
            )
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
        with convert_errors(f"cannot reach the Dask scheduler of pool {self._pool.name}"):
            return submit(head.transport.forward_port(address, port)).result()

    def close(self) -> None:
        """Close the connection. The cluster continues."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # ignore errors, because a client that fails to close must not block the teardown
                client.close(timeout=CLOSE_TIMEOUT)
