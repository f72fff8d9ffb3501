"""Looking again at nodes that are not there: what was seen of them may have been seen too early, or is long over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...model.errors import PoolError
from ...views import events as ev

if TYPE_CHECKING:
    from ..links.link import Link
    from ..pool import Pool

PAUSES = (1.0, 30.0)  # seconds before the second look, and at most between later ones
SAID = 3  # nodes that the pool's state names; the others are counted


class Healing:
    """One pool's. Nothing is started, and no call that ended comes back: the client only goes where the nodes are."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._pause = PAUSES[0]
        self._next = 0.0
        self._looking = False

    async def look_again(self) -> None:
        """Come to nodes that are there after all, and have the pool's state say what is true."""
        pool = self._pool
        if self._looking or pool.leaving or pool.view.state not in ("up", "degraded"):
            return
        self._looking = True
        try:
            away = [link for link in self.away() if not pool.replacements.hope_for(link.node)]
            if away and self._is_due():
                for link in away:
                    await self._join(link)
            if not pool.leaving and (state := self.state()[0]) != pool.view.state:
                pool.emit_state()
                if state == "up":
                    self._pause = PAUSES[0]
        finally:
            self._looking = False

    def away(self) -> list[Link]:
        """Links that are down and do not try to come up again."""
        return [link for link in self._pool.links if link.gone or not (link.up or link.returning)]

    def state(self) -> tuple[str, str]:
        """The pool's state as its links have it, and what is amiss."""
        away = self.away()
        if not away:
            return "up", ""
        nodes = [self._pool.view.nodes[link.node] for link in away]
        said = [
            f"node {node.index} {why}" if (why := node.link_detail or node.detail) else f"node {node.index}"
            for node in nodes[:SAID]
        ]
        more = f" and {len(away) - SAID} more" if len(away) > SAID else ""
        return "degraded", f"not there: {'; '.join(said)}{more}"

    def _is_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return False
        self._next = now + self._pause
        self._pause = min(PAUSES[1], self._pause * 2)
        return True

    async def _join(self, link: Link) -> None:
        pool = self._pool
        machine = pool.ledger.machines(pool.row.token)[link.node]
        try:
            (seen,) = await pool.provider.describe(pool.name, [machine])
            if seen.state != "running" or pool.leaving or pool.links[link.node] is not link:
                return
            await pool.startup.join(machine)
            await pool.renewed(form=False)
        except (PoolError, OSError) as error:
            pool.emit(ev.NodeLink(pool=pool.name, node=link.node, up=False, detail=str(error)))
