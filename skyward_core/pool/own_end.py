"""The end of a pool that this client brings about: once, whoever asks for it; see :mod:`.endings` for all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..store import loggers
from ..store.ledger_rows import Receipt
from .background import Background
from .context import PoolContext
from .news import News
from .nodes.locks import Locks
from .nodes.replace import Replacements
from .runs.book import RunBook
from .teardown import tear_down

if TYPE_CHECKING:
    from .outputs.outputs import Outputs, Rest


class OwnEnd:
    """One pool's.

    Args:
        stop_starting: breaks off its start.
        outputs: gives what its ranks wrote.
        leave: closes what this client has open of the pool.
    """

    def __init__(
        self, context: PoolContext, news: News, background: Background, book: RunBook, replacements: Replacements,
        locks: Locks, stop_starting: Callable[[], Awaitable[object]], outputs: Callable[[], Outputs],
        leave: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._context = context
        self._news = news
        self._background = background
        self._book = book
        self._replacements = replacements
        self._locks = locks
        self._stop_starting = stop_starting
        self._outputs = outputs
        self._leave = leave
        self._task: asyncio.Task[Receipt] | None = None

    @property
    def begun(self) -> bool:
        """Whether it has been asked for."""
        return self._task is not None

    def begin(self, give_up: bool, keep_outputs: int | None, *, now: bool = False) -> asyncio.Task[Receipt]:
        """Tear the pool down, or go on with that; one that came to nothing is begun anew."""
        if self._task is None or (self._task.done() and not self._is_done(self._task)):
            self._context.leaving = True
            self._task = asyncio.create_task(self._end(give_up, keep_outputs, now))
        return self._task

    def begin_for(self, why: str) -> None:
        """The same where nobody has asked for it, for a reason in words, which its runs and its receipt tell."""
        self._context.why_ended = why
        for run in list(self._book.runs.values()):
            run.cancel(f"pool {self._context.name} ends: {why}")
        self.begin(False, None)

    async def written_down(self) -> None:
        """Wait for the end of a teardown that has told of its receipt: it is not in the ledger yet."""
        if self._task is not None:
            await asyncio.wait([self._task])

    @staticmethod
    def _is_done(task: asyncio.Task[Receipt]) -> bool:
        return task.exception() is None and task.result().ok

    async def _end(self, give_up: bool, keep_outputs: int | None, now: bool) -> Receipt:
        context = self._context
        loggers.pool.set(context.name)
        # Nothing may come up behind the back of a teardown that has verified that nothing is there.
        await self._stop_starting()
        locks = asyncio.create_task(self._locks.keep_the_rest())  # while nodes end: nobody waits for it

        async def save() -> Rest:
            return await self._outputs().save(give_up=give_up, most=keep_outputs)

        receipt = await tear_down(
            context, self._news, self._background, self._book, self._replacements.stop, save, self._leave,
            give_up=give_up, now=now,
        )  # fmt: skip
        await locks
        if not receipt.kept:
            return receipt
        from .unfetched import bring_home

        return await bring_home(context.row, context.ledger, receipt, give_up=give_up)
