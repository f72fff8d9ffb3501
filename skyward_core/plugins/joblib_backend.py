"""Backend of joblib that runs tasks on a pool. Client side; requires joblib."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from joblib._parallel_backends import SequentialBackend
from joblib.parallel import ParallelBackendBase

from skyward_core.model.function import PendingFunction


class PoolBackend(ParallelBackendBase):  # type: ignore[misc]
    """Backend that sends each batch of a ``joblib.Parallel`` to the pool as one task."""

    supports_retrieve_callback = True
    supports_timeout = True

    def __init__(self, pool: Any = None, slots: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self._pool = pool
        self._slots = slots
        self._open: set[Future[Any]] = set()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of concurrent tasks: the given number, or for None and negative numbers the number that the
        pool runs at the same time.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs must not be 0 in Parallel")
        return self._slots if n_jobs is None or n_jobs < 0 else n_jobs

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Future[Any]:
        future: Future[Any] = PendingFunction(func) > self._pool
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        for future in list(self._open):
            future.cancel()

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Return the backend of a ``Parallel`` inside a task: one process, because other tasks use the rest of the
        pool.
        """
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None
