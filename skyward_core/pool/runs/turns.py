"""The order of broadcasts and of scripts that one rank runs.

A script leaves its rank no process. A part of a broadcast that waits behind it there could only be handed back, while
other ranks have begun theirs: so a broadcast waits until scripts that were sent before it are over, and a script that
comes later waits until it has been sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ..context import PoolContext
from .book import RunBook
from .run import Run

PAUSE = 0.02  # seconds between looks
SCRIPTS = "broadcasts wait for scripts that leave no process for them"


class Turns:
    """Those of one client's runs on a pool.

    Args:
        tell: told what broadcasts wait for, and "" when they do not any more.
    """

    def __init__(self, context: PoolContext, book: RunBook, tell: Callable[[str], None]) -> None:
        self._context = context
        self._book = book
        self._tell = tell
        self._on_their_way: list[Run] = []  # broadcasts that are not sent yet

    def must_wait(self, run: Run) -> bool:
        """Whether another one comes first; of ranks that stand alone none does."""
        if self._context.alone:
            return False
        if run.kind == "broadcast":
            return any(
                each.is_script and each.kind != "broadcast" and each.sent and each.state == "running"
                for each in self._book.runs.values()
            )
        return run.is_script and bool(self._on_their_way)

    @asynccontextmanager
    async def taken(self, run: Run) -> AsyncIterator[None]:
        """The run's turn has come, or nobody wants it any more."""
        if run.kind != "broadcast":
            await self._come(run)
            yield
            return
        self._on_their_way.append(run)
        try:
            if self.must_wait(run):
                self._tell(SCRIPTS)
                await self._come(run)
                self._tell("")
            yield
        finally:
            self._on_their_way.remove(run)

    async def _come(self, run: Run) -> None:
        while run.state == "running" and self.must_wait(run):
            await asyncio.sleep(PAUSE)
