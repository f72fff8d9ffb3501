"""Ranks that stand alone, as ``Options(cluster=False)`` makes them: each node is set up by itself, once.

There is no rendezvous and no epoch that they share, so a broadcast waits for nothing but its own calls' turns, and
two clients' broadcasts need no order. A worker that dies is followed by another one, on its node's own account.
"""

from __future__ import annotations

from collections.abc import Callable

from .keeper import Keeper, NodesWanted

FIRST = 1  # the epoch that a node begins with; it counts on by itself


class Standalone(Keeper):
    """See the module, and :class:`Keeper` for what it is made with."""

    @property
    def whole(self) -> bool:
        return all(link.epoch or link.gone for link in self._links)

    def start_now(self, send: Callable[[int], None]) -> bool:
        if self.whole:
            send(FIRST)
            return True
        return False

    async def start(self, send: Callable[[int], None]) -> bool:
        await self.ensure()
        send(FIRST)
        return True

    async def start_on(
        self, wanted: NodesWanted, send: Callable[[int, tuple[int, ...]], None], job: str = ""
    ) -> bool:
        """The nodes with the least to do for this client; where all have some, its calls wait there."""
        await self.ensure()
        if isinstance(wanted, int):
            there = sorted((link.gone, link.load, link.node) for link in self._links)
            wanted = tuple(sorted(node for *_, node in there[:wanted]))
        send(FIRST, wanted)
        return True

    async def renew_processes(self) -> None:
        async with self._busy:
            await self._know_plugins()
            header, plugins = self._setup(FIRST, self._facts, fresh=True)
            for link in self._links:
                # One that is down tells what it has loaded when it is there again.
                link.send(header | {"alone": True}, plugins)

    async def ensure(self) -> None:
        async with self._busy:
            if self.whole:
                return
            await self._know_plugins()
            header, plugins = self._setup(FIRST, self._facts)
            for link in self._links:
                # One that is down is set up when it is there again: its calls wait for that.
                if not link.epoch and link.send(header | {"alone": True}, plugins):
                    link.epoch = FIRST
