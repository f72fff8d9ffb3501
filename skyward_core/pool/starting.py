"""A pool on its way up: it comes up within its time, or nothing of it is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..model.errors import Cancelled, PoolError, hint_of, what_of
from ..model.spec import PoolSpec
from ..store.ledger_rows import Receipt
from ..views import events as ev
from .context import PoolContext
from .news import News


class Starting:
    """One pool's.

    Args:
        bring_up: what is to be done, one way or another.
        down: tears down what has come of it.
    """

    def __init__(
        self,
        context: PoolContext,
        news: News,
        bring_up: Callable[[PoolSpec], Coroutine[Any, Any, None]],
        down: Callable[[], Awaitable[Receipt]],
    ) -> None:
        self._context = context
        self._news = news
        self._bring_up = bring_up
        self._down = down
        self._task: asyncio.Task[None] | None = None

    async def start(self, spec: PoolSpec) -> None:
        """Bring the pool up.

        Raises:
            PoolError: says which node failed, at what, and what to do.
            Cancelled: :meth:`stop` came in between.
        """
        context = self._context
        self._task = asyncio.create_task(self._bring_up(spec))
        patience = spec.options.start_timeout + float(spec.options.wait_for_capacity)
        limit = asyncio.timeout(patience)
        try:
            async with limit:
                await self._task
        except BaseException as error:
            if limit.expired() and isinstance(error, TimeoutError):  # and not one of a provider's own
                waiting = [
                    f"node {n.index} {n.phase} ({n.detail or context.view.detail})"
                    for n in context.view.nodes
                    if n.phase != "ready"
                ]
                await self._give_up()
                said = f"pool {context.name} was not up after {patience:g} s: {'; '.join(waiting)}"
                raise PoolError(said) from error
            if context.detached and isinstance(error, asyncio.CancelledError):
                raise Cancelled(f"pool {context.name} was left while it was starting") from error
            if context.leaving and isinstance(error, asyncio.CancelledError):
                await self._give_up()
                raise Cancelled(f"pool {context.name} was torn down while it was starting") from error
            told = ev.PoolState(
                pool=context.name, state="starting", detail=what_of(error), hint=hint_of(error)
            )
            self._news.emit(told)
            await self._give_up()
            raise

    async def _give_up(self) -> None:
        receipt = await asyncio.shield(self._down())
        if not receipt.ok:
            raise PoolError(
                f"the pool {self._context.name} did not start, and its teardown is not complete: {receipt}"
            )

    @property
    def goes_on(self) -> bool:
        """Whether it has begun, and has neither ended nor failed."""
        return self._task is not None and not self._task.done()

    async def stop(self) -> bool:
        """Break it off, and wait until nothing more comes up; says whether there was anything to break off."""
        if self._task is None or self._task.done():
            return False
        self._task.cancel()
        await asyncio.wait([self._task])
        return True
