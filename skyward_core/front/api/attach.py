"""Coming back to a pool from a script."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from ...model.errors import PoolError
from ...model.hint import Hint
from ...model.misuse_words import meant
from ...plugins.base import Plugin
from ...pool.pool import Pool
from ...runtime.phase import refuse_pool_while_loading
from ...store import debug_log
from ...store.ledger import Ledger
from ...store.ledger_rows import Receipt
from ...tasks import loader
from ...tasks.value_code import tried, words_of
from ...transport.background_loop import submit
from ...views.views import PoolView, RunView
from .active_pool import closed, opened
from .console import ScriptConsole
from .ending import down, tell
from .in_thread import in_thread
from .over_items import OverItems


class Attached(OverItems):
    """A pool that somebody else brought up, as ``sky.attach`` gives it; works with the same operators as ``Compute``.

    Leaving the block, or ``detach``, leaves the pool as it is.

    Attributes:
        name: the pool's name.
        plugins: frameworks that its maker has set up, in order of entry.
    """

    def __init__(self, pool: Pool, plugins: Sequence[Plugin]) -> None:
        super().__init__()
        self._pool = pool
        self.name = pool.name
        self.plugins = plugins
        self._stack = ExitStack()
        if pool.options.console and sys.stdout is not None:
            self._console = ScriptConsole(pool.news)
            self._stack.callback(self._console.close)

    def _repr_html_(self) -> str:
        """How the pool is now, as a notebook shows it."""
        from .html import of_pool, of_unseen

        return of_unseen("pool", self.name, "left") if self._pool is None else of_pool(self._view_now())

    @property
    def view(self) -> PoolView:
        """What the pool looks like now."""
        return self._view_now()

    @property
    def runs(self) -> list[RunView]:
        """The runs that the pool remembers, oldest first, whoever dispatched them."""
        return sorted(self.view.runs.values(), key=lambda run: run.opened_at)

    def wait(self, run: str | None = None) -> list[Any]:
        """Wait for a run that another client dispatched.

        Args:
            run: its id; None for the latest one.

        Returns:
            What it would have given its own client: values by rank, or by task.

        Raises:
            RunError: the run failed, as it would have told its own client.
            Cancelled: the run was cancelled.
            PoolError: there is no such run, or its results have been fetched before.
        """
        if run is None:
            if not self.runs:
                raise PoolError(f"pool {self.name} remembers no run")
            run = self.runs[-1].id
        if run not in self.pool.runs:
            from ...pool.unfetched import is_here

            if is_here(self.pool.context.ledger, run):  # somebody has fetched it, and was not there to use it
                from .fetched_results import results

                return results(run)
        return submit(self.pool.book.claim(run)).result().future.result().results()

    def down(self) -> Receipt:
        """Tear the pool down.

        Returns:
            The proof: what is gone, and what may still run.
        """
        self._leave_engine()
        receipt = submit(down(self.pool)).result()
        self._stack.close()
        return receipt

    def detach(self) -> None:
        """Leave the pool as it is."""
        self._leave_engine()
        if self._pool is not None and not self._pool.context.leaving:
            submit(self._pool.detach()).result()
        self._stack.close()
        self._pool = None

    def __enter__(self) -> Attached:
        opened(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._forked:
            closed(self)
            self.detach()

    async def __aenter__(self) -> Attached:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._forked:
            await in_thread(self.detach)


def attach(name: str) -> Attached:
    """Come back to a pool that is up, by its name.

        with sky.attach("training") as compute:
            results = compute.wait()

    Args:
        name: the pool's name.

    Raises:
        PoolGone: The pool has ended itself.
        Unreachable: None of its nodes answers.
        PoolError: There is no such pool, or it is of another release.
        UsageError: ``SKYWARD_LOG`` names no level.
    """
    if loader.loading:
        raise loader.PoolInScript
    refuse_pool_while_loading()
    if said := debug_log.begin():
        tell(said)

    async def work() -> tuple[Pool, bytes]:
        ledger = Ledger()
        row = ledger.find(name)
        if row is None or row.ended_at is not None:
            up = [each.name for each in ledger.live()]
            raise PoolError(f"no pool named {name!r} is up{meant(name, up) if up else ''}", hint=Hint("list"))
        pool = await Pool.attached(row, ledger)
        return pool, pool.upkeep.keeper.plugins if pool.upkeep.keeper is not None else b""

    pool, plugins = submit(work()).result()
    if pool.options.console and (news := pool.view.detail):
        tell(f"pool {name}: {news}")
    found, failure = tried(lambda: pickle.loads(plugins)) if plugins else ((), None)
    if failure is not None:
        submit(pool.detach()).result()
        said = f"the plugins of pool {name} cannot be loaded here: {': '.join(words_of(failure))}"
        raise PoolError(said) from failure
    return Attached(pool, found or ())
