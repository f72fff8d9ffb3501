"""What a call becomes that nobody waits for: its value to come, and the run that it comes of."""

from __future__ import annotations

import os
from collections.abc import Generator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from skyward_core.model.alert import Alert
    from skyward_core.model.metric_series import Curves
    from skyward_core.model.output_files import WrittenFile

T = TypeVar("T")


class _Pool(Protocol):
    def files(self, *patterns: str, run: str | None = None) -> list[WrittenFile]: ...

    def fetch(self, *patterns: str, to: str | os.PathLike[str] | None = None, run: str | None = None) -> list[Path]: ...

    def metrics(self, run: str | None = None) -> Curves: ...

    def alerts(self, run: str) -> list[Alert]: ...

    def _run_html(self, run: str, state: str) -> str: ...


class RunFuture(Future[T]):
    """A ``concurrent.futures.Future`` of a call's value, as ``call > compute`` gives it. To cancel it cancels the run.
    In asynchronous code it can be awaited.

    Attributes:
        run: id of the run.
    """

    def __init__(self, run: str, pool: _Pool) -> None:
        super().__init__()
        self.run = run
        self._pool = pool

    def _repr_html_(self) -> str:
        """How the run is now, as a notebook shows it."""
        state = "cancelled" if self.cancelled() else "ended" if self.done() else "goes on"
        return self._pool._run_html(self.run, state)

    def __await__(self) -> Generator[Any, None, T]:
        """Its value, in asynchronous code. Cancelling what awaits it cancels the run."""
        from asyncio import wrap_future  # scripts that are not asynchronous do without

        return wrap_future(self).__await__()

    def files(self, *patterns: str) -> list[WrittenFile]:
        """The files that ranks wrote in their working folder while the run went on, or have by now.

        Args:
            *patterns: which, such as ``"out/**"`` or ``"*.pt"``; all where none is given.

        Raises:
            UsageError: a pattern leads out of the working folder.
            PoolError: the pool is not up, or a node could not be asked.
        """
        return self._pool.files(*patterns, run=self.run)

    def fetch(self, *patterns: str, to: str | os.PathLike[str] | None = None) -> list[Path]:
        """Bring these files here, as ``compute.fetch`` does.

        Args:
            *patterns: which, as ``files`` takes them.
            to: the folder that they come to; None for ``outputs/RUN``.

        Returns:
            Where they are, also those that had been fetched before.

        Raises:
            UsageError: a pattern leads out of the working folder.
            PoolError: some could not be had; it names them, and the others are here.
        """
        return self._pool.fetch(*patterns, to=to, run=self.run)

    def metrics(self) -> Curves:
        """What its ranks logged, and what the pool's machines were measured at while the run went on; see
        ``compute.metrics``.

        Raises:
            PoolError: the pool is not up.
        """
        return self._pool.metrics(self.run)

    def alerts(self) -> list[Alert]:
        """What is amiss with it, the worst first: numbers that are none, ranks that stall or lag, a loss at rest,
        memory that is nearly full, GPUs that are slowed down; see ``compute.alerts``.

        Raises:
            PoolError: the pool is not up.
        """
        return self._pool.alerts(self.run)
