"""Which nodes of a pool are not there, which of them may come back, and which client decides about that."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...model.states import PoolStatus
from ...store.ledger_rows import Replacement
from ...views import events as ev
from ...views.views import NodeView
from ..context import PoolContext
from ..links.link import Link
from ..news import News

LOOK = 0.02  # seconds between looks at whether another client has decided about a node
OVERDUE = 30.0  # seconds after which a machine that was to be taken back is not expected to be
SAID = 3  # nodes that the pool's state names; the others are counted


class Roster:
    """One pool's.

    Attributes:
        owner: this client's name, where one client sees to a node for all.
        tasks: node -> what brings it another machine, while that goes on.
        given_up: node -> why it got none.
    """

    def __init__(self, context: PoolContext, news: News) -> None:
        self._context = context
        self._news = news
        self.owner = f"{os.getpid()}.{secrets.token_hex(4)}"
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.given_up: dict[int, str] = {}

    # -- who is missing ----------------------------------------------------------------------------------

    def away(self) -> list[Link]:
        """Links that are down and do not try to come up again."""
        return [link for link in self._context.links if link.gone or not (link.up or link.returning)]

    def state(self) -> tuple[PoolStatus, str]:
        """The pool's state as its links have it, and what is amiss."""
        away = self.away()
        if not away:
            return "up", ""
        nodes = [self._context.view.nodes[link.node] for link in away]
        said = [
            f"node {node.index} {why}" if (why := node.link_detail or node.detail) else f"node {node.index}"
            for node in nodes[:SAID]
        ]
        more = f" and {len(away) - SAID} more" if len(away) > SAID else ""
        return "degraded", f"not there: {'; '.join(said)}{more}"

    def tell(self) -> None:
        """Say that the pool is up, or what of it is not there."""
        state, detail = self.state()
        self._news.emit(ev.PoolState(pool=self._context.name, state=state, detail=detail))

    def note(self) -> None:
        """Say so, and write it down."""
        context = self._context
        if not context.observer:  # who only looks changes nothing
            context.ledger.pool_state(context.token, self.state()[0])
        self.tell()

    # -- who may come back -------------------------------------------------------------------------------

    @property
    def under_way(self) -> bool:
        """Whether a node is to get another machine, or just gets it."""
        return bool(self.tasks)

    def hope_for(self, node: int) -> bool:
        """Whether a node that is gone may come back."""
        return node in self.tasks

    def why_not(self, node: int) -> str:
        """Why a node that is gone got no other machine; "" where none was asked for."""
        return self.given_up.get(node, "")

    @property
    def expects_losses(self) -> bool:
        """Whether machines are about to be taken back, and others will be in their places."""
        return self._context.options.on_loss == "replace" and any(map(_is_leaving, self._context.view.nodes))

    async def settled(self) -> None:
        """Wait until nothing is under way any more."""
        while self.tasks or self.expects_losses:
            if self.tasks:
                await asyncio.wait(self.tasks.values())
            else:
                await asyncio.sleep(LOOK)

    # -- who decides -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def deciding(self, node: int) -> AsyncIterator[bool]:
        """Be the one client that decides what becomes of a node without an agent: of two that both did, one would go
        on with the old machine and one with another, and their logs would overwrite each other.

        Yields:
            Whether another client has decided already, that the node gets or has another machine.
        """
        with open(self._context.archive.folder / f"node-{node}.lock", "w") as lock:
            while not (decided := self._decided(node)):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(LOOK)
                    continue
                decided = self._decided(node)
                break
            yield decided

    def _decided(self, node: int) -> bool:
        entry = self.entry(node)
        theirs = entry is not None and entry.owner != self.owner and not entry.made
        return theirs or self.superseded(node)

    def superseded(self, node: int) -> bool:
        """Whether the ledger has another machine for a node than we know."""
        context = self._context
        machine, ours = context.ledger.machines(context.token)[node], context.machines[node]
        return (machine.id, machine.extra) != (ours.id, ours.extra)

    def entry(self, node: int) -> Replacement | None:
        """What the ledger has of a replacement of a node's machine."""
        rows = self._context.ledger.replacements(self._context.token)
        return next((each for each in rows if each.node == node), None)


def _is_leaving(node: NodeView) -> bool:
    return node.is_taken_back and time.time() < (node.notice_ends_at or node.notice_at) + OVERDUE
