"""How a pool ends without us: another client tears it down, or its limits are over. All that waits for it is told."""

from __future__ import annotations

import asyncio
import time

from ..views import events as ev
from .background import Background
from .context import PoolContext
from .news import News
from .nodes.reconcile import close_if_gone
from .pool_end import PoolEnd
from .runs.book import RunBook
from .teardown import GOODBYE

RECEIPT = 3.0  # seconds that the client which ended a pool may take to write so once its nodes are gone


class Endings:
    """One pool's."""

    def __init__(self, context: PoolContext, news: News, background: Background, book: RunBook) -> None:
        self._context = context
        self._news = news
        self._background = background
        self._book = book

    def by_others(self, ending: PoolEnd) -> None:
        """The pool has ended, or is about to, and not by us: nothing waits on it any longer."""
        context = self._context
        if context.ending is not None or context.leaving:
            return
        context.ending = ending
        self._news.emit(ev.PoolState(pool=context.name, state="stopping", detail=str(ending.error())))
        for run in list(self._book.runs.values()):
            run.pool_ended(ending)
        self._background.spawn(self._see_it_closed())

    async def have_come(self, *, wait: bool) -> bool:
        """Whether another client has ended the pool, as the ledger tells. ``wait``: for one that is just doing so."""
        context = self._context
        until = time.monotonic() + (RECEIPT if wait else 0.0)
        row = context.ledger.pool(context.token)
        while row.state == "stopping" and time.monotonic() < until:
            await asyncio.sleep(0.05)
            row = context.ledger.pool(context.token)
        if row.ended_at is None and not (wait and row.state == "stopping"):
            return False
        self.by_others(PoolEnd.written(row))
        return True

    async def _see_it_closed(self) -> None:
        """Wait for the receipt of who ended it; where nobody writes one, do so."""
        context = self._context
        soon = time.monotonic() + context.options.grace + GOODBYE
        while not context.leaving:
            row = context.ledger.pool(context.token)
            if row.receipt is not None:
                at = time.time() if row.ended_at is None else row.ended_at
                self._news.emit(ev.PoolEnded(pool=context.name, receipt=row.receipt, at=at))
                return
            await close_if_gone(row, context.provider, context.ledger)
            await asyncio.sleep(0.05 if time.monotonic() < soon else 1.0)
