"""How blobs of the client get to all nodes: over the client's own line once, then from node to node.

Nodes stand in a binary tree with the head at its root; each fetches from the one above as soon as that one has the
blob. Where nodes share the client's files, may not reach each other, or turn out not to, the client uploads itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..wire import Header
from .link import Link

if TYPE_CHECKING:
    from ..transport.pki import Authority

LARGE = 1 << 20  # bytes below which the client is done before nodes could have found each other

Place = tuple[str, int]
OnTrouble = Callable[[Link, str], None]


@dataclass(frozen=True)
class Parcel:
    """A file of the client on its way; ``name`` is the hash of its content."""

    name: str
    path: Path
    size: int


class Spread:
    """The ways between the nodes of one pool, as one client set them up.

    Args:
        pool: its name.
        cluster: whether nodes may reach each other.
        trouble: told when a node gets blobs from the client although it should get them from a peer, and why.
    """

    def __init__(self, pool: str, cluster: bool, trouble: OnTrouble) -> None:
        self._pool = pool
        self._cluster = cluster
        self._trouble = trouble
        self._authority: Authority | None = None
        self._places: dict[int, tuple[Header, Place | None]] = {}
        self._preparing = asyncio.Lock()
        self._alone: set[int] = set()

    async def send(self, links: Sequence[Link], parcels: Sequence[Parcel]) -> None:
        """Have files on all nodes, as ``blobs/<name>``.

        Raises:
            OSError: a node got one neither from a peer nor from here.
        """
        direct = not self._cluster or len(links) < 2 or any(link.transport.shares_files for link in links)
        if direct or sum(parcel.size for parcel in parcels) < LARGE:
            await _all(link.transport.put(p.path, p.name) for p in parcels for link in links)
            return
        async with self._preparing:
            places = await asyncio.gather(*(self._place(link) for link in links))
        await _all(self._send(links, places, parcel) for parcel in parcels)

    async def _place(self, link: Link) -> Place | None:
        """Where a node listens for its peers; asked once per connection, as it listens no longer than that."""
        welcome, place = self._places.get(link.node, ({}, None))
        if welcome is link.welcome:
            return place
        if self._authority is None:
            from ..transport.pki import Authority  # heavy, and small payloads never need it

            self._authority = Authority(self._pool)
        welcome, place = link.welcome, None
        answer = await _ask(link, {"t": "peers"} | self._authority.issue(link.node).to_json())
        if error := answer.get("error"):
            self._trouble(link, f"peers cannot reach it ({error}); it gets files from the client")
        else:
            place = (welcome["address"], answer["port"])
        self._places[link.node] = (welcome, place)
        return place

    async def _send(self, links: Sequence[Link], places: Sequence[Place | None], parcel: Parcel) -> None:
        there = [asyncio.Event() for _ in links]

        async def give(at: int) -> None:
            link, above = links[at], (at - 1) // 2
            if at:
                await there[above].wait()
            if not await self._pull(link, parcel, places[above] if at and places[at] else None):
                await link.transport.put(parcel.path, parcel.name)
            there[at].set()

        await _all(give(at) for at in range(len(links)))

    async def _pull(self, link: Link, parcel: Parcel, place: Place | None) -> bool:
        """Have a node fetch from a peer, if it lacks the file; says whether it has it now."""
        if link.node in self._alone:
            place = None
        answer = await _ask(link, {"t": "pull", "hash": parcel.name, "size": parcel.size, "from": place})
        error = answer.get("error")
        if error and place is not None:
            self._alone.add(link.node)  # one time-out is enough
            self._trouble(link, f"gets files from the client: {error}")
        return not error


async def _ask(link: Link, request: Header) -> Header:
    """A node's answer; a link that is down gives one with an error, as the transport may still find a way."""
    try:
        answer, _ = await link.ask(request)
    except ConnectionError as error:
        return {"error": str(error)}
    return answer


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all; the first failure stops the others and is raised itself."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
