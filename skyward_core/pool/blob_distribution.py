"""Large files to and from nodes.

What is used again is not sent again; but a node's disk must not fill with what nobody asks for any more. So the latest
one stays, however large, and older ones within ``KEPT``; a node keeps those that anybody else may be about to use.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.pool.agent_link import Link
from skyward_core.protocol.frame_codec import Header
from skyward_core.protocol.tls_stream import CLIENT, TlsConnectionError, make_ssl_context
from skyward_core.transport.background_loop import run_all
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.plugins.certificates import Authority
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import AgentKnown, AgentWelcome, FetchStatus, PeersAnswer
    from skyward_core.transport.direct_transfer import IdleStreams, Transfer
    from skyward_core.transport.file_and_result_downloads import IncomingOutput


MIN_DIRECT_SIZE = 1 << 20  # bytes below which the existing connection is as good
# Bytes of results that a node sends through SSH before it is to listen: that takes a process there, which costs
# as much time as these do.
SSH_BYTES = 8 << 20
THREADS = 8
MOST_IDLE_STREAMS = 16  # lines for files that wait for more, to all nodes together

Address = tuple[str, int]


class _Node:
    """What is known of a node for as long as its connection lives: it listens no longer than that."""

    def __init__(self, welcome: AgentWelcome) -> None:
        self.welcome = welcome
        self.place: asyncio.Task[Address | None] | None = None
        self.usable = True
        self.fetched = 0


def _has_room_for(lines: int) -> bool:
    """Whether that many more connections leave a script most of the files that it may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or lines * 4 <= limit


class DirectConnections:
    """The direct lines of one pool, as one client set them up."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._nodes: dict[int, _Node] = {}
        self._authority: Authority | None = None
        self._tls_context: ssl.SSLContext | None = None  # our own
        self._threads: ThreadPoolExecutor | None = None
        self._idle_streams: IdleStreams | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def address_of(self, link: Link) -> Address | None:
        """Where a node listens; asked once per connection."""
        node = self._node(link)
        if node.place is None:
            node.place = asyncio.ensure_future(self._request_listener(link))
        return await asyncio.shield(node.place)

    async def upload(self, link: Link, path: Path, name: str) -> bool:
        """Bring a file to a node as ``blobs/<name>``; says whether it is there now.

        Raises:
            OSError: it cannot be read.
        """
        return await self._transfer(link, lambda transfer: transfer.upload(path, name))

    async def download_result(self, link: Link, name: str, landing: ResultDownload) -> bool:
        """Bring a result here, or what has not landed of it; says whether it is all here now.

        Raises:
            OSError: it cannot be written.
        """
        if not self._is_worthwhile(link, landing.size):
            return False
        return await self._transfer(link, lambda transfer: transfer.download_result(name, landing))

    async def download_output(self, link: Link, path: str, incoming: IncomingOutput) -> bool:
        """Bring a file that ranks wrote here, or what is missing of it; says whether it is all here now.

        Raises:
            OSError: it is no more as it was, or it cannot be written.
        """
        if not self._is_worthwhile(link, incoming.size):
            return False
        return await self._transfer(link, lambda transfer: transfer.download_output(path, incoming))

    def _is_worthwhile(self, link: Link, size: int) -> bool:
        node = self._node(link)
        node.fetched += size
        return size >= MIN_DIRECT_SIZE and (node.place is not None or node.fetched >= SSH_BYTES)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._expiry is not None:
            self._expiry.cancel()
        if self._idle_streams is not None:
            self._idle_streams.close()

    def _node(self, link: Link) -> _Node:
        node = self._nodes.get(link.node)
        if node is None or node.welcome is not link.welcome:
            node = self._nodes[link.node] = _Node(link.welcome)
        return node

    async def _transfer(self, link: Link, work: Callable[[Transfer], None]) -> bool:
        node = self._node(link)
        if not (node.usable and self._is_direct(link)):
            return False
        place = await self.address_of(link)
        if place is None:
            node.usable = False
            return False
        from skyward_core.plugins.certificates import node_name
        from skyward_core.transport import direct_transfer
        from skyward_core.transport.direct_transfer import Endpoint, Transfer

        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "bulk")
        if self._idle_streams is None:
            # Beside SSH they are to take a small part only of what may be open.
            self._idle_streams = direct_transfer.IdleStreams(
                MOST_IDLE_STREAMS if _has_room_for(4 * MOST_IDLE_STREAMS) else 0
            )
        transfer = Transfer(Endpoint(place, node_name(link.node)), self._client_context(), self._idle_streams)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, work, transfer)
        except TlsConnectionError as error:
            self._mark_unusable(link, node, error)
            return False
        finally:
            transfer.stop()
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = loop.call_later(
                direct_transfer.IDLE_TIMEOUT, self._idle_streams.expire, direct_transfer.IDLE_TIMEOUT
            )
        return True

    def _mark_unusable(self, link: Link, node: _Node, error: OSError) -> None:
        told, node.usable = not node.usable, False
        # Else what is amiss is the link, or was, and is known.
        if link.up and link.welcome is node.welcome and not told:
            reason = f"no direct line to {link.welcome['address']} ({error})"
            self._context.news.emit_node_note(link, f"large files go through SSH: {reason}")

    async def _request_listener(self, link: Link) -> Address | None:
        from skyward_core.plugins.certificates import node_name

        papers = self._get_authority().issue(node_name(link.node))
        answer: PeersAnswer
        try:
            answer, _ = await link.ask({"t": "peers"} | papers.to_json())
            error = answer.get("error")
        except ConnectionError as failure:
            error = str(failure)
        if error:
            self._context.news.emit_node_note(link, f"nobody can bring it large files directly ({error})")
            return None
        return (link.welcome["address"], answer["port"])

    @staticmethod
    def _is_direct(link: Link) -> bool:
        """Whether the link is up and its connection ends at the node's own address."""
        return link.up and link.transport.direct == link.welcome.get("address")

    def _client_context(self) -> ssl.SSLContext:
        if self._tls_context is None:
            self._tls_context = make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, self._get_authority().issue(CLIENT).to_json())
        return self._tls_context

    def _get_authority(self) -> Authority:
        if self._authority is None:
            from skyward_core.plugins.certificates import Authority

            self._authority = Authority(f"pool {self._context.name}")
        return self._authority


@value
class BlobFile(Value):
    """A file of the client on its way; ``name`` is the hash of its content."""

    name: str
    path: Path
    size: int


class BlobDistributor:
    """The ways to and between the nodes of one pool, as one client set them up.

    Args:
        direct: the client's own lines to them.
    """

    def __init__(self, context: PoolContext, direct: DirectConnections) -> None:
        self._context = context
        self._cluster = context.options.cluster  # else nodes listen neither for each other nor for the client
        self._direct = direct
        self._without_peers: dict[int, AgentWelcome] = {}  # as long as the connection lives that welcome came over

    async def send(self, links: Sequence[Link], parcels: Sequence[BlobFile]) -> None:
        """Have files on all nodes, as ``blobs/<name>``.

        Raises:
            OSError: a node got one neither from a peer nor from here.
        """
        small = sum(parcel.size for parcel in parcels) < MIN_DIRECT_SIZE
        if small or any(link.transport.shares_files for link in links):
            await run_all(link.transport.put(p.path, p.name) for p in parcels for link in links)
        else:
            await run_all(self._send_blob(links, parcel) for parcel in parcels)

    async def _send_blob(self, links: Sequence[Link], parcel: BlobFile) -> None:
        whole = [asyncio.Event() for _ in links]

        async def give(at: int) -> None:
            above = (at - 1) // 2
            if not (
                at and self._cluster and await self._fetch_from_peer(links[at], links[above], parcel, whole[above])
            ):
                await self._upload(links[at], parcel)
            whole[at].set()

        await run_all(give(at) for at in range(len(links)))

    async def _upload(self, link: Link, parcel: BlobFile) -> None:
        """Have a file on a node that the client reaches, unless it is there already."""
        if "error" not in await _request(link, _pull_frame(parcel, None)):
            return
        if not (self._cluster and await self._direct.upload(link, parcel.path, parcel.name)):
            await link.transport.put(parcel.path, parcel.name)

    async def _fetch_from_peer(self, link: Link, above: Link, parcel: BlobFile, whole: asyncio.Event) -> bool:
        """Have a node fetch a file from the one above, which may be getting it just now; says whether it has it."""
        while self._without_peers.get(link.node) is not link.welcome:
            here, place = await asyncio.gather(self._direct.address_of(link), self._direct.address_of(above))
            if here is None or place is None:
                break
            last = whole.is_set()
            answer = await _request(link, _pull_frame(parcel, place))
            if "error" not in answer:
                return True
            if last or answer.get("unreachable"):
                self._without_peers[link.node] = link.welcome  # one time-out is enough
                self._context.news.emit_node_note(link, f"gets files from the client: {answer['error']}")
            else:
                await whole.wait()  # it broke off up there, or has not begun
        return False


def _pull_frame(parcel: BlobFile, place: tuple[str, int] | None) -> Header:
    return {"t": "pull", "hash": parcel.name, "size": parcel.size, "from": place}


async def _request(link: Link, request: Header) -> FetchStatus:
    """A node's answer; a link that is down gives one with an error, as the transport may still find a way."""
    answer: AgentKnown
    try:
        answer, _ = await link.ask(request)
    except ConnectionError as error:
        return {"error": str(error)}
    return answer


MAX_UNUSED_BYTES = 128 << 20  # bytes of blobs that no run of ours needs now


class BlobCache:
    """See the module.

    Attributes:
        users: By blob, the runs that need it.
    """

    def __init__(self, context: PoolContext, direct: DirectConnections) -> None:
        self._context = context
        self._distributor = BlobDistributor(context, direct)
        self._sizes: dict[str, int] = {}  # by name; the latest use is last
        self.users: dict[str, set[str]] = {}
        self._drops: set[asyncio.Task[None]] = set()

    async def ensure_uploaded(self, run: str, parcels: Sequence[BlobFile]) -> frozenset[Link]:
        """Have what a run needs on all nodes that are there, which it gives, until it is released.

        Raises:
            OSError: a node could not get it.
        """
        for parcel in parcels:
            self._sizes.pop(parcel.name, None)
            self._sizes[parcel.name] = parcel.size
            self.users.setdefault(parcel.name, set()).add(run)
        if self._drops:
            await asyncio.wait(self._drops)  # what is on its way out must not be taken for there
        links = self._context.present_links
        await self._distributor.send(links, parcels)
        return frozenset(links)

    def release(self, run: str) -> None:
        """A run is over: make room."""
        for users in self.users.values():
            users.discard(run)
        idle = [name for name in self._sizes if not self.users[name]]
        over = sum(self._sizes[name] for name in idle) - MAX_UNUSED_BYTES
        latest = next(reversed(self._sizes), None)
        gone = []
        for name in idle:
            if over <= 0 or name == latest:
                break
            over -= self._sizes.pop(name)
            del self.users[name]
            gone.append(name)
        if gone:
            for link in self._context.present_links:
                task = asyncio.ensure_future(_drop_blobs(link, gone))
                self._drops.add(task)
                task.add_done_callback(self._drops.discard)


async def _drop_blobs(link: Link, names: Sequence[str]) -> None:
    try:
        await link.ask({"t": "drop", "blobs": names})
    except ConnectionError:
        return  # they stay until the pool's end
