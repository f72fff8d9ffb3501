"""Future of a run that was started without waiting: its value, its files and its metrics."""

from __future__ import annotations

import os
from collections.abc import Generator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from skyward_core.model.metric_definitions_series_and_export import Curves
    from skyward_core.model.outcomes_states_and_alerts import Alert
    from skyward_core.model.output_files import WrittenFile

T = TypeVar("T")


class _Pool(Protocol):
    def files(self, *patterns: str, run: str | None = None) -> list[WrittenFile]: ...

    def fetch(self, *patterns: str, to: str | os.PathLike[str] | None = None, run: str | None = None) -> list[Path]: ...

    def metrics(self, run: str | None = None) -> Curves: ...

    def alerts(self, run: str) -> list[Alert]: ...

    def _run_html(self, run: str, state: str) -> str: ...


class RunFuture(Future[T]):
    """``concurrent.futures.Future`` of a call's value, as ``call > compute`` returns it. ``cancel`` cancels the run.

    Asynchronous code can await the future.

    Attributes:
        run: Id of the run.
    """

    def __init__(self, run: str, pool: _Pool) -> None:
        super().__init__()
        self.run = run
        self._pool = pool

    def _repr_html_(self) -> str:
        """Return the current state of the run as HTML for notebooks."""
        state = "cancelled" if self.cancelled() else "ended" if self.done() else "running"
        return self._pool._run_html(self.run, state)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the value in asynchronous code. Cancelling the awaiting task cancels the run."""
        from asyncio import wrap_future  # imported late, because only asynchronous scripts await a run

        return wrap_future(self).__await__()

    def files(self, *patterns: str) -> list[WrittenFile]:
        """Return the files that ranks have written in their working folder during the run.

        Args:
            *patterns: Patterns of files, such as ``"out/**"`` or ``"*.pt"``. All files if none is given.

        Raises:
            UsageError: If a pattern leads out of the working folder.
            PoolError: If the pool is not up, or if a node does not answer.
        """
        return self._pool.files(*patterns, run=self.run)

    def fetch(self, *patterns: str, to: str | os.PathLike[str] | None = None) -> list[Path]:
        """Download the run's files, as ``compute.fetch`` does.

        Args:
            *patterns: Patterns of files, as for ``files``.
            to: Target folder. None for ``outputs/RUN``.

        Returns:
            Paths of the files, including files that were fetched before.

        Raises:
            UsageError: If a pattern leads out of the working folder.
            PoolError: If some files could not be fetched. The message names them, and all other files are downloaded.
        """
        return self._pool.fetch(*patterns, to=to, run=self.run)

    def metrics(self) -> Curves:
        """Return the metrics that the run's ranks logged, and machine metrics of the same time; see
        ``compute.metrics``.

        Raises:
            PoolError: If the pool is not up.
        """
        return self._pool.metrics(self.run)

    def alerts(self) -> list[Alert]:
        """Return the alerts of the run, the most severe first; see ``compute.alerts``.

        Raises:
            PoolError: If the pool is not up.
        """
        return self._pool.alerts(self.run)
