"""The direct lines between the client and the nodes of a pool, for what is large; where there is none, SSH it is.

A node listens, for its peers and for us, once a client has brought certificates. The client goes there only if the
address is the one that its SSH connection goes to: then it is the same machine, with nothing between.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..tls import CLIENT, LineError, context
from ..wire import Header
from .link import Link

if TYPE_CHECKING:
    from ..transport.bulk import Transfer
    from ..transport.pki import Authority

LARGE = 1 << 20  # bytes below which the existing connection is as good
# Bytes of results that a node sends through SSH before it is to listen: that takes a process there, which costs
# as much time as these do.
FIRST = 8 << 20
THREADS = 8

Place = tuple[str, int]
OnTrouble = Callable[[Link, str], None]


@dataclass
class _Node:
    """What is known of a node for as long as its connection lives: it listens no longer than that."""

    welcome: Header
    place: asyncio.Task[Place | None] | None = None
    usable: bool = True
    fetched: int = 0


class Direct:
    """The direct lines of one pool, as one client set them up.

    Args:
        pool: its name.
        trouble: told when a line cannot be used, and why.
    """

    def __init__(self, pool: str, trouble: OnTrouble) -> None:
        self._pool = pool
        self._trouble = trouble
        self._nodes: dict[int, _Node] = {}
        self._authority: Authority | None = None
        self._papers: ssl.SSLContext | None = None  # our own
        self._threads: ThreadPoolExecutor | None = None

    async def place(self, link: Link) -> Place | None:
        """Where a node listens; asked once per connection."""
        node = self._node(link)
        if node.place is None:
            node.place = asyncio.ensure_future(self._listen(link))
        return await asyncio.shield(node.place)

    async def put(self, link: Link, path: Path, name: str) -> bool:
        """Bring a file to a node as ``blobs/<name>``; says whether it is there now.

        Raises:
            OSError: it cannot be read.
        """
        return await self._transfer(link, lambda transfer: transfer.put(path, name))

    async def get(self, link: Link, name: str, target: Path, size: int) -> bool:
        """Bring a result here, or what ``target`` has not got of it; says whether it is all here now.

        Raises:
            OSError: it cannot be written.
        """
        node = self._node(link)
        node.fetched += size
        if size < LARGE or (node.place is None and node.fetched < FIRST):
            return False
        return await self._transfer(link, lambda transfer: transfer.get(name, target))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _node(self, link: Link) -> _Node:
        node = self._nodes.get(link.node)
        if node is None or node.welcome is not link.welcome:
            node = self._nodes[link.node] = _Node(link.welcome)
        return node

    async def _transfer(self, link: Link, work: Callable[[Transfer], None]) -> bool:
        node = self._node(link)
        if not (link.up and node.usable and link.transport.direct == link.welcome.get("address")):
            return False
        place = await self.place(link)
        if place is None:
            node.usable = False
            return False
        from ..transport import bulk
        from ..transport.pki import node_name

        if self._papers is None:
            self._papers = context(ssl.PROTOCOL_TLS_CLIENT, self._signer().issue(CLIENT).to_json())
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "bulk")
        transfer = bulk.Transfer(bulk.Node(place, node_name(link.node)), self._papers)
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, work, transfer)
        except LineError as error:
            told, node.usable = not node.usable, False
            if link.up and not told:  # else what is amiss is the link, and is known
                where = f"{place[0]} port {place[1]}"
                self._trouble(link, f"large files go through SSH: no direct line to {where} ({error})")
            return False
        finally:
            transfer.stop()
        return True

    async def _listen(self, link: Link) -> Place | None:
        from ..transport.pki import node_name

        papers = self._signer().issue(node_name(link.node))
        try:
            answer, _ = await link.ask({"t": "peers"} | papers.to_json())
        except ConnectionError as failure:
            answer = {"error": str(failure)}
        if error := answer.get("error"):
            self._trouble(link, f"nobody can bring it large files directly ({error})")
            return None
        return (link.welcome["address"], answer["port"])

    def _signer(self) -> Authority:
        if self._authority is None:
            from ..transport.pki import Authority  # heavy, and who moves nothing large never needs it

            self._authority = Authority(self._pool)
        return self._authority
