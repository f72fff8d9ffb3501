"""The direct lines between the client and the nodes of a pool; where there is none, SSH it is.

A node listens, in a process of its own, for its peers and for us, once something is large and a client has brought
certificates. The client goes there only if the address is the one that its SSH connection goes to: then it is the same
machine, with nothing between.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ...transport.incoming_result import Landing
from ...wire.tls_stream import CLIENT, LineError, context
from .link import Link

if TYPE_CHECKING:
    from ...transport.direct.certificates import Authority
    from ...transport.direct.idle_streams import IdleStreams
    from ...transport.direct.transfer import Transfer
    from ...transport.incoming_output import IncomingOutput
    from ...wire.agent_frame_types import AgentWelcome, PeersAnswer

LARGE = 1 << 20  # bytes below which the existing connection is as good
# Bytes of results that a node sends through SSH before it is to listen: that takes a process there, which costs
# as much time as these do.
FIRST = 8 << 20
THREADS = 8
KEPT = 16  # lines for files that wait for more, to all nodes together

Place = tuple[str, int]
OnTrouble = Callable[[Link, str], None]


class _Node:
    """What is known of a node for as long as its connection lives: it listens no longer than that."""

    def __init__(self, welcome: AgentWelcome) -> None:
        self.welcome = welcome
        self.place: asyncio.Task[Place | None] | None = None
        self.usable = True
        self.fetched = 0


def _room_for(lines: int) -> bool:
    """Whether that many more connections leave a script most of the files that it may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or lines * 4 <= limit


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
        self._kept: IdleStreams | None = None
        self._expiry: asyncio.TimerHandle | None = None

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

    async def get(self, link: Link, name: str, landing: Landing) -> bool:
        """Bring a result here, or what has not landed of it; says whether it is all here now.

        Raises:
            OSError: it cannot be written.
        """
        if not self._worth_it(link, landing.size):
            return False
        return await self._transfer(link, lambda transfer: transfer.get(name, landing))

    async def take(self, link: Link, path: str, incoming: IncomingOutput) -> bool:
        """Bring a file that ranks wrote here, or what is missing of it; says whether it is all here now.

        Raises:
            OSError: it is no more as it was, or it cannot be written.
        """
        if not self._worth_it(link, incoming.size):
            return False
        return await self._transfer(link, lambda transfer: transfer.take(path, incoming))

    def _worth_it(self, link: Link, size: int) -> bool:
        node = self._node(link)
        node.fetched += size
        return size >= LARGE and (node.place is not None or node.fetched >= FIRST)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._expiry is not None:
            self._expiry.cancel()
        if self._kept is not None:
            self._kept.close()

    def _node(self, link: Link) -> _Node:
        node = self._nodes.get(link.node)
        if node is None or node.welcome is not link.welcome:
            node = self._nodes[link.node] = _Node(link.welcome)
        return node

    async def _transfer(self, link: Link, work: Callable[[Transfer], None]) -> bool:
        node = self._node(link)
        if not (node.usable and self._goes_there(link)):
            return False
        place = await self.place(link)
        if place is None:
            node.usable = False
            return False
        from ...transport.direct import idle_streams
        from ...transport.direct.certificates import node_name
        from ...transport.direct.endpoint import Endpoint
        from ...transport.direct.transfer import Transfer

        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "bulk")
        if self._kept is None:
            # Beside SSH they are to take a small part only of what may be open.
            self._kept = idle_streams.IdleStreams(KEPT if _room_for(4 * KEPT) else 0)
        transfer = Transfer(Endpoint(place, node_name(link.node)), self._own(), self._kept)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, work, transfer)
        except LineError as error:
            self._give_up(link, node, error)
            return False
        finally:
            transfer.stop()
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = loop.call_later(idle_streams.IDLE, self._kept.expire, idle_streams.IDLE)
        return True

    def _give_up(self, link: Link, node: _Node, error: OSError) -> None:
        told, node.usable = not node.usable, False
        # Else what is amiss is the link, or was, and is known.
        if link.up and link.welcome is node.welcome and not told:
            address = link.welcome["address"]
            self._trouble(link, f"large files go through SSH: no direct line to {address} ({error})")

    async def _listen(self, link: Link) -> Place | None:
        from ...transport.direct.certificates import node_name

        papers = self._signer().issue(node_name(link.node))
        answer: PeersAnswer
        try:
            answer, _ = await link.ask({"t": "peers"} | papers.to_json())
            error = answer.get("error")
        except ConnectionError as failure:
            error = str(failure)
        if error:
            self._trouble(link, f"nobody can bring it large files directly ({error})")
            return None
        return (link.welcome["address"], answer["port"])

    @staticmethod
    def _goes_there(link: Link) -> bool:
        """Whether the link is up and its connection ends at the node's own address."""
        return link.up and link.transport.direct == link.welcome.get("address")

    def _own(self) -> ssl.SSLContext:
        if self._papers is None:
            self._papers = context(ssl.PROTOCOL_TLS_CLIENT, self._signer().issue(CLIENT).to_json())
        return self._papers

    def _signer(self) -> Authority:
        if self._authority is None:
            from ...transport.direct.certificates import (
                Authority,  # heavy, and who moves nothing large never needs it
            )

            self._authority = Authority(self._pool)
        return self._authority
