"""Looking again at nodes that are not there: what was seen of them may have been seen too early, or is long over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ...model.errors import PoolError, what_of
from ...providers.told import answered
from ...views import events as ev
from ..context import PoolContext
from ..links.link import Link
from ..news import News
from .roster import Roster
from .startup import Startup

PAUSES = (1.0, 30.0)  # seconds before the second look, and at most between later ones


class Healing:
    """One pool's. Nothing is started, and no call that ended comes back: the client only goes where the nodes are.

    Args:
        renewed: as :class:`.replace.Replacements` has it.
    """

    def __init__(
        self,
        context: PoolContext,
        news: News,
        roster: Roster,
        startup: Startup,
        renewed: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._context = context
        self._news = news
        self._roster = roster
        self._startup = startup
        self._renewed = renewed
        self._pause = PAUSES[0]
        self._next = 0.0
        self._looking = False

    async def look_again(self) -> None:
        """Come to nodes that are there after all, and have the pool's state say what is true."""
        pool = self._context
        if self._looking or pool.leaving or pool.view.state not in ("up", "degraded"):
            return
        self._looking = True
        try:
            away = [link for link in self._roster.away() if not self._roster.hope_for(link.node)]
            if away and self._is_due():
                for link in away:
                    await self._join(link)
            if not pool.leaving and (state := self._roster.state()[0]) != pool.view.state:
                self._roster.tell()
                if state == "up":
                    self._pause = PAUSES[0]
        finally:
            self._looking = False

    def _is_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return False
        self._next = now + self._pause
        self._pause = min(PAUSES[1], self._pause * 2)
        return True

    async def _join(self, link: Link) -> None:
        pool = self._context
        machine = pool.ledger.machines(pool.token)[link.node]
        try:
            (seen,) = await answered("describe", pool.name, pool.provider.describe(pool.name, [machine]))
            if seen.state != "running" or pool.leaving or pool.links[link.node] is not link:
                return
            await self._startup.join(machine)
            await self._renewed(False)
        except (PoolError, OSError) as error:
            self._news.emit(ev.NodeLink(pool=pool.name, node=link.node, up=False, detail=what_of(error)))
