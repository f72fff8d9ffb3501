"""What a pool's machines say in their account of when they end, brought up to date now and then: by it whoever looks
through the account tells what nobody needs any more."""

from __future__ import annotations

import asyncio
import time

from ..model.capabilities import Dates
from ..model.errors import SkywardError, what_of
from ..providers.told import answered
from ..store.loggers import logger
from .context import PoolContext
from .news import News

_log = logger("pool")

FIRST = 300.0  # seconds until the first time: what machines are made with holds for longer
PERIOD = 1800.0  # seconds between two times
LEFT = 86_400.0  # seconds that runs are given of which no client is there to see the end
MARGIN = 900.0  # seconds that a machine may outlive its pool's lease
FAREWELL = 2.0  # seconds that it may take where this client leaves


class Expiry:
    """One pool's, as one client keeps it that uses the pool."""

    def __init__(self, context: PoolContext, news: News) -> None:
        self._context = context
        self._news = news

    async def keep(self) -> None:
        """Do so as long as this client is there."""
        if not isinstance(self._context.provider, Dates):
            return
        await asyncio.sleep(FIRST)
        while True:
            await self._move(PERIOD)
            await asyncio.sleep(PERIOD)

    async def leave(self) -> None:
        """This client leaves the pool: runs that go on may do so for a while."""
        runs = self._context.view.runs.values()
        if self._context.view.is_live and any(run.state == "running" for run in runs):
            moving = asyncio.create_task(self._move(LEFT))
            done, _ = await asyncio.wait([moving], timeout=FAREWELL)  # a call under way cannot be broken off
            if not done:
                _log.warning(
                    "when its machines end is not told: no answer", extra={"pool": self._context.name}
                )

    async def _move(self, seconds: float) -> None:
        context, provider = self._context, self._context.provider
        if not isinstance(provider, Dates):
            return
        options = context.options
        at = end_of(time.time(), context.row.created_at, options.idle_timeout, options.ttl, seconds)
        try:
            work = provider.date(context.name, context.machines, at)
            await answered("date", context.name, work)
        except (SkywardError, OSError) as error:
            self._news.complain(
                f"what tells in the account when its machines end is not up to date: {what_of(error)}"
            )


def end_of(now: float, born: float, lease: float, ttl: float | None, seconds: float) -> float:
    """When a pool's machines have ended that is used for so long yet; all in Unix time or seconds."""
    end = now + seconds + lease
    if ttl is not None:
        end = min(end, max(born + ttl, now + lease))
    return end + MARGIN
