"""What ``Compute`` and an attached pool are beside their operators: a pool, and what is known of it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ...model.errors import PoolError, UsageError
from ...transport.background_loop import submit, this_process
from .older_verbs import OlderVerbs

if TYPE_CHECKING:
    from ...model.alert import Alert
    from ...model.curves import Curves
    from ...model.stacks import Stacks
    from ...model.written_file import WrittenFile
    from ...plugins.base import Plugin
    from ...plugins.support.shared_state import SharedState
    from ...pool.pool import Pool
    from ...views.views import PoolView
    from .console import ScriptConsole
    from .dask_work import DaskWork


class PoolFace(OlderVerbs):
    """See the module. Safe to use from any thread.

    Attributes:
        plugins: frameworks that are set up, in order of entry.
    """

    plugins: Sequence[Plugin] = ()

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._process = this_process()
        self._console: ScriptConsole | None = None
        self._dask: DaskWork | None = None
        self._shared: SharedState | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a pool stays with the process that made it: functions that run on ranks do without it"
        )

    @property
    def pool(self) -> Pool:
        """The pool behind it; belongs to the background loop.

        Raises:
            PoolError: the pool is not up, or this process was forked from the one that it belongs to.
        """
        if self._pool is None:
            raise PoolError("the pool is not up: use it inside its with block")
        if self._forked:
            raise PoolError(
                f"pool {self._pool.name} belongs to process {self._process}, which this one was forked from, and "
                f"cannot be used here; sky.attach({self._pool.name!r}) gives this process a connection of its own"
            )
        return self._pool

    @property
    def working_folder(self) -> str:
        """The folder of the machine that made the pool which its ranks work in, or in copies of; "" where that is not
        known.

        Raises:
            PoolError: as ``pool``.
        """
        return str(self.pool.row.spec.get("cwd", ""))

    @property
    def _forked(self) -> bool:
        """Whether this is a forked child: it has the pool's connections, but the pool is its parent's."""
        return self._process != this_process()

    def current_nodes(self) -> int:
        """How many of its nodes are there now.

        Raises:
            PoolError: the pool is not up.
        """
        return sum(not link.gone for link in self.pool.context.links)

    @property
    def is_active(self) -> bool:
        """Whether calls can be sent to it: it is up, and this process has not left it."""
        pool = self._pool
        return (
            pool is not None and not self._forked and pool.context.ending is None and not pool.context.leaving
        )

    @property
    def concurrency(self) -> int:
        """How many calls all of its nodes run at the same time.

        Raises:
            PoolError: the pool is not up.
        """
        context = self.pool.context
        return len(context.links) * context.slots_per_node

    @property
    def shared(self) -> SharedState:
        """What ranks and client share by name, with the plugin ``shared``: ``compute.shared.counter("seen").value``.

        Raises:
            UsageError: the pool has no such plugin.
            PoolError: the pool is not up.
        """
        pool = self.pool
        if self._shared is None:
            from ...plugins.built_in.shared import Shared

            plugin = next((each for each in self.plugins if isinstance(each, Shared)), None)
            if plugin is None:
                from .shared_names import NOT_SHARED

                raise UsageError(NOT_SHARED)
            from .shared_access import shared_of

            self._shared = shared_of(pool, plugin)
        return self._shared

    def _leave_engine(self) -> None:
        if self._dask is not None:
            self._dask.close()
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    # -- what ranks wrote --------------------------------------------------------------------------------

    def files(self, *patterns: str, run: str | None = None) -> list[WrittenFile]:
        """The files that ranks wrote in their working folder. On this machine there are none to tell of: they work in
        your own.

        Args:
            *patterns: which, such as ``"out/**"`` or ``"*.pt"``; all where none is given.
            run: id of the run during which they were written; None for all of the pool's time.

        Raises:
            UsageError: a pattern leads out of the working folder.
            PoolError: the pool is not up, a node could not be asked, or there are more files than nodes name.
        """
        pool = self.pool
        found = submit(pool.outputs.files(patterns, run)).result()
        if found.failures:
            node, why = next(iter(found.failures.items()))
            raise PoolError(_safe(f"node {node} of pool {pool.name} cannot be asked for files: {why}"))
        if found.untold:
            raise PoolError(
                f"ranks of pool {pool.name} wrote {found.untold:,} files more than are named at once: say which"
            )
        return found.files

    def fetch(
        self, *patterns: str, to: str | os.PathLike[str] | None = None, run: str | None = None
    ) -> list[Path]:
        """Bring files that ranks wrote here: each once, whole, and over nothing that did not come from there. What was
        cut off is gone on with. On this machine there is nothing to bring.

        Args:
            *patterns: which, as ``files`` takes them.
            to: the folder that they come to; None for ``outputs/RUN``, or ``outputs/POOL`` where no run is named. With
                several nodes, what more than one of them has goes to a folder for each: ``r0``, ``r1``, by rank, or
                ``n0``, ``n1``, by node, where ranks share a node's folder.
            run: id of the run during which they were written; None for all of the pool's time.

        Returns:
            Where they are, also those that had been fetched before.

        Raises:
            UsageError: a pattern leads out of the working folder.
            PoolError: some could not be had; it names them, and the others are here.
        """
        from ...model.written_file import not_fetched  # a pool may be used without ever asking for files

        pool = self.pool
        haul = submit(pool.outputs.fetch(patterns, None if to is None else Path(to), run)).result()
        failed = [f"{names} of node {node}: {why}" for names, node, why in not_fetched(haul.files)]
        if said := [*haul.notes, *failed]:
            raise PoolError(_safe(f"not all that ranks of pool {pool.name} wrote is here: {'; '.join(said)}"))
        return [each.target for each in haul.files]

    # -- the inside of ranks -----------------------------------------------------------------------------

    def stacks(self, *, run: str | None = None, signal: bool = False) -> Stacks:
        """Where every rank is just now: its Python stack, by py-spy where a node has that and the kernel allows it.
        ``skyward_core.views.stacks`` says which are equal, and who has not joined a collective.

        Args:
            run: id of the run that is asked about; None for the newest one.
            signal: send ranks that cannot be read a signal, at which they write their stacks down; a call that blocks
                in native code may end early with it (EINTR).

        Raises:
            PoolError: the pool is not up.
        """
        from ...pool.stacks import stacks  # few ask

        context = self.pool.context
        asked = next(reversed(context.view.runs), "") if run is None else run
        return submit(stacks(context, asked, signal=signal)).result()

    # -- numbers -----------------------------------------------------------------------------------------

    def metrics(self, run: str | None = None) -> Curves:
        """What the pool's machines were measured at, and of a run what its ranks logged.

        Nodes measure from the first time that anybody asks, or that calls run for ten seconds; then the past is there,
        too. Waits for the next sample of each node, about a second.

        Args:
            run: id of a run, of which ranks' numbers come, and machines' of its time; None for the machines alone, of
                all the time that is kept.

        Returns:
            A curve for each name and each rank, GPU or node; its ``to_csv``, ``to_json`` and ``to_parquet`` write them
            down. What a node cannot tell is absent, and its ``notes`` say why.

        Raises:
            UsageError: the pool has had no such run.
            PoolError: the pool is not up.
        """
        pool = self.pool

        async def work() -> Curves:
            return await pool.measures.curves(run)

        return submit(work()).result()

    def alerts(self, run: str) -> list[Alert]:
        """What is amiss with a run, as the app shows it: of one that goes on, all there is; of one that has ended,
        numbers that are none. Measures machines as ``metrics`` does, and waits as long.

        Args:
            run: its id.

        Returns:
            The worst first. Each has a ``kind`` ("gpu", "nan", "stall", "memory", "throttled", "straggler" or
            "plateau"), says ``who`` it is (``rank``; or ``node``, and ``gpu``), ``since`` when (Unix
            time by this machine's clock) and what, in ``words``.

        Raises:
            UsageError: the pool has had no such run.
            PoolError: the pool is not up.
        """
        pool = self.pool

        async def work() -> list[Alert]:
            from ...views.alerts import alerts_of

            await pool.measures.wait()
            if (found := pool.view.runs.get(run)) is None:
                raise UsageError(f"pool {pool.name} has had no run {run}, as far as is known here")
            return alerts_of(pool.view, found, time.time())

        return submit(work()).result()

    # -- for those that build on it ----------------------------------------------------------------------

    def _folder(self) -> Path:
        return self.pool.archive.folder

    def _html_of(self, run: str, state: str) -> str:
        """How a run is, as a notebook shows it.

        Args:
            state: of its future, where nothing more is known.
        """
        from .html import of_run, of_unseen

        found = None if self._pool is None else self._view_now().runs.get(run)
        return of_unseen("run", run, state) if found is None else of_run(found)

    def _view_now(self) -> PoolView:
        submit(self._caught_up()).result()
        return self.pool.view

    async def _caught_up(self) -> None:
        self.pool.background.catch_up()


def _safe(text: str) -> str:
    """A rank's names may hold anything, and most who see an error see it on a terminal."""
    from ...wire.safe_text import field  # few scripts see such an error

    return field(text)
