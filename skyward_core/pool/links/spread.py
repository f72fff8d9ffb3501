"""How blobs of the client get to all nodes: to the head by the client once, then from node to node.

Nodes stand in a binary tree with the head at its root; each fetches from the one above, which hands on what it has
got while it still gets the rest. Where nodes may not reach each other, or turn out not to, the client brings it to
each; where they share the client's files, there is nothing to bring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.value import Value, value
from ...wire.frames import Header
from .direct import LARGE, Direct, OnTrouble
from .link import Link

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentKnown, AgentWelcome, Fetched


@value
class Parcel(Value):
    """A file of the client on its way; ``name`` is the hash of its content."""

    name: str
    path: Path
    size: int


class Spread:
    """The ways to and between the nodes of one pool, as one client set them up.

    Args:
        cluster: whether nodes may reach each other; where they may not, they listen for the client neither.
        direct: the client's own lines to them.
        trouble: told when a node gets blobs from the client although it should get them from a peer, and why.
    """

    def __init__(self, cluster: bool, direct: Direct, trouble: OnTrouble) -> None:
        self._cluster = cluster
        self._direct = direct
        self._trouble = trouble
        self._alone: dict[int, AgentWelcome] = {}  # as long as the connection lives that welcome came over

    async def send(self, links: Sequence[Link], parcels: Sequence[Parcel]) -> None:
        """Have files on all nodes, as ``blobs/<name>``.

        Raises:
            OSError: a node got one neither from a peer nor from here.
        """
        small = sum(parcel.size for parcel in parcels) < LARGE
        if small or any(link.transport.shares_files for link in links):
            await _all(link.transport.put(p.path, p.name) for p in parcels for link in links)
        else:
            await _all(self._send(links, parcel) for parcel in parcels)

    async def _send(self, links: Sequence[Link], parcel: Parcel) -> None:
        whole = [asyncio.Event() for _ in links]

        async def give(at: int) -> None:
            above = (at - 1) // 2
            if not (
                at and self._cluster and await self._fetch(links[at], links[above], parcel, whole[above])
            ):
                await self._bring(links[at], parcel)
            whole[at].set()

        await _all(give(at) for at in range(len(links)))

    async def _bring(self, link: Link, parcel: Parcel) -> None:
        """Have a file on a node that the client reaches, unless it is there already."""
        if "error" not in await _ask(link, _pull(parcel, None)):
            return
        if not (self._cluster and await self._direct.put(link, parcel.path, parcel.name)):
            await link.transport.put(parcel.path, parcel.name)

    async def _fetch(self, link: Link, above: Link, parcel: Parcel, whole: asyncio.Event) -> bool:
        """Have a node fetch a file from the one above, which may be getting it just now; says whether it has it."""
        while self._alone.get(link.node) is not link.welcome:
            here, place = await asyncio.gather(self._direct.place(link), self._direct.place(above))
            if here is None or place is None:
                break
            last = whole.is_set()
            answer = await _ask(link, _pull(parcel, place))
            if "error" not in answer:
                return True
            if last or answer.get("unreachable"):
                self._alone[link.node] = link.welcome  # one time-out is enough
                self._trouble(link, f"gets files from the client: {answer['error']}")
            else:
                await whole.wait()  # it broke off up there, or has not begun
        return False


def _pull(parcel: Parcel, place: tuple[str, int] | None) -> Header:
    return {"t": "pull", "hash": parcel.name, "size": parcel.size, "from": place}


async def _ask(link: Link, request: Header) -> Fetched:
    """A node's answer; a link that is down gives one with an error, as the transport may still find a way."""
    answer: AgentKnown
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
