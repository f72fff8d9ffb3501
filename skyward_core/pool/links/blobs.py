"""Large functions and arguments on the nodes, as far as this client brought them.

What is used again is not sent again; but a node's disk must not fill with what nobody asks for any more. So the latest
one stays, however large, and older ones within ``KEPT``; a node keeps those that anybody else may be about to use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .link import Link
from .spread import Parcel, Spread

KEPT = 128 << 20  # bytes of blobs that no run of ours needs now


class Blobs:
    """See the module.

    Args:
        links: gives the nodes that are there.
    """

    def __init__(self, spread: Spread, links: Callable[[], Sequence[Link]]) -> None:
        self._spread = spread
        self._links = links
        self._sizes: dict[str, int] = {}  # by name; the latest use is last
        self._users: dict[str, set[str]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def bring(self, run: str, parcels: Sequence[Parcel]) -> frozenset[Link]:
        """Have what a run needs on all nodes that are there, which it gives, until it is released.

        Raises:
            OSError: a node could not get it.
        """
        for parcel in parcels:
            self._sizes.pop(parcel.name, None)
            self._sizes[parcel.name] = parcel.size
            self._users.setdefault(parcel.name, set()).add(run)
        if self._leaving:
            await asyncio.wait(self._leaving)  # what is on its way out must not be taken for there
        links = self._links()
        await self._spread.send(links, parcels)
        return frozenset(links)

    def release(self, run: str) -> None:
        """A run is over: make room."""
        for users in self._users.values():
            users.discard(run)
        idle = [name for name in self._sizes if not self._users[name]]
        over = sum(self._sizes[name] for name in idle) - KEPT
        latest = next(reversed(self._sizes), None)
        gone = []
        for name in idle:
            if over <= 0 or name == latest:
                break
            over -= self._sizes.pop(name)
            del self._users[name]
            gone.append(name)
        if gone:
            for link in self._links():
                task = asyncio.ensure_future(_drop(link, gone))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)


async def _drop(link: Link, names: Sequence[str]) -> None:
    try:
        await link.ask({"t": "drop", "blobs": names})
    except ConnectionError:
        return  # they stay until the pool's end
