"""Transfer of large files between the client and the nodes, and the cache of blobs on the nodes.

Nodes keep blobs for later runs, but unused blobs must not fill their disks. The client therefore deletes its older
unused blobs beyond ``MAX_UNUSED_BYTES``; the latest blob stays, whatever its size. Nodes do not delete blobs that other
clients may need.
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
from skyward_core.protocol.blocking_tls_connection import CLIENT, TlsConnectionError, make_ssl_context
from skyward_core.protocol.frame_codec import Header
from skyward_core.transport.background_loop import run_all
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.plugins.pool_certificate_authority import Authority
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import AgentKnown, AgentWelcome, FetchStatus, PeersAnswer
    from skyward_core.transport.direct_tls_transfer import IdleStreams, Transfer
    from skyward_core.transport.file_and_result_downloads import IncomingOutput


MIN_DIRECT_SIZE = 1 << 20  # bytes; for smaller files a direct connection is no faster than the existing connection
# Bytes of results that a node sends through SSH before the client opens a direct connection. Starting the listening
# process on the node takes as long as sending these bytes.
SSH_BYTES = 8 << 20
THREADS = 8
MOST_IDLE_STREAMS = 16  # connections to all nodes together that wait for the next file

Address = tuple[str, int]


class _Node:
    """State of a node's direct connections. Valid until the link's connection ends, because the listener then ends."""

    def __init__(self, welcome: AgentWelcome) -> None:
        self.welcome = welcome
        self.place: asyncio.Task[Address | None] | None = None
        self.usable = True
        self.fetched = 0


def _has_room_for(lines: int) -> bool:
    """Check whether further connections would leave most of the process's limit of open files to the user's script."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or lines * 4 <= limit


class DirectConnections:
    """Direct TLS connections from one client to the nodes of one pool."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._nodes: dict[int, _Node] = {}
        self._authority: Authority | None = None
        self._tls_context: ssl.SSLContext | None = None  # contains this client's certificate
        self._threads: ThreadPoolExecutor | None = None
        self._idle_streams: IdleStreams | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def address_of(self, link: Link) -> Address | None:
        """Return the address of a node's listener. The listener is started once per connection of the link."""
        node = self._node(link)
        if node.place is None:
            node.place = asyncio.ensure_future(self._request_listener(link))
        return await asyncio.shield(node.place)

    async def upload(self, link: Link, path: Path, name: str) -> bool:
        """Upload a file to a node as ``blobs/<name>``.

        Args:
            link: Link to the node.
            path: Local file.
            name: Name of the blob.

        Returns:
            Whether the node has the file now. False: no direct connection is possible.

        Raises:
            OSError: If the file cannot be read.
        """
        return await self._transfer(link, lambda transfer: transfer.upload(path, name))

    async def download_result(self, link: Link, name: str, landing: ResultDownload) -> bool:
        """Download the missing part of a result.

        Args:
            link: Link to the node.
            name: Name of the result.
            landing: Download to complete.

        Returns:
            Whether the download is complete. False: a direct connection is impossible or not worth its cost.

        Raises:
            OSError: If the result cannot be written.
        """
        if not self._is_worthwhile(link, landing.size):
            return False
        return await self._transfer(link, lambda transfer: transfer.download_result(name, landing))

    async def download_output(self, link: Link, path: str, incoming: IncomingOutput) -> bool:
        """Download the missing part of an output file.

        Args:
            link: Link to the node.
            path: Path of the file on the node.
            incoming: Download to complete.

        Returns:
            Whether the download is complete. False: a direct connection is impossible or not worth its cost.

        Raises:
            OSError: If the file has changed or cannot be written.
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
        from skyward_core.plugins.pool_certificate_authority import node_name
        from skyward_core.transport import direct_tls_transfer
        from skyward_core.transport.direct_tls_transfer import Endpoint, Transfer

        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "bulk")
        if self._idle_streams is None:
            # SSH connections also need open files, so direct connections must use only a small part of the limit.
            self._idle_streams = direct_tls_transfer.IdleStreams(
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
                direct_tls_transfer.IDLE_TIMEOUT, self._idle_streams.expire, direct_tls_transfer.IDLE_TIMEOUT
            )
        return True

    def _mark_unusable(self, link: Link, node: _Node, error: OSError) -> None:
        was_reported, node.usable = not node.usable, False
        # If the link itself is the problem, other code reports it.
        if link.up and link.welcome is node.welcome and not was_reported:
            reason = f"no direct connection to {link.welcome['address']} ({error})"
            self._context.news.emit_node_note(link, f"large files go through SSH: {reason}")

    async def _request_listener(self, link: Link) -> Address | None:
        from skyward_core.plugins.pool_certificate_authority import node_name

        papers = self._get_authority().issue(node_name(link.node))
        answer: PeersAnswer
        try:
            answer, _ = await link.ask({"t": "peers"} | papers.to_json())
            error = answer.get("error")
        except ConnectionError as failure:
            error = str(failure)
        if error:
            self._context.news.emit_node_note(link, f"large files cannot be sent directly ({error})")
            return None
        return (link.welcome["address"], answer["port"])

    @staticmethod
    def _is_direct(link: Link) -> bool:
        """Check whether the link is up and its connection leads to the node's own address."""
        return link.up and link.transport.direct == link.welcome.get("address")

    def _client_context(self) -> ssl.SSLContext:
        if self._tls_context is None:
            self._tls_context = make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, self._get_authority().issue(CLIENT).to_json())
        return self._tls_context

    def _get_authority(self) -> Authority:
        if self._authority is None:
            from skyward_core.plugins.pool_certificate_authority import Authority

            self._authority = Authority(f"pool {self._context.name}")
        return self._authority


@value
class BlobFile(Value):
    """A file of the client to upload. ``name`` is the hash of its content."""

    name: str
    path: Path
    size: int


class BlobDistributor:
    """Distribution of files to all nodes of one pool: from the client to the first node, and then from node to node.

    Args:
        context: The pool.
        direct: Direct connections of the client.
    """

    def __init__(self, context: PoolContext, direct: DirectConnections) -> None:
        self._context = context
        self._cluster = context.options.cluster  # without this option nodes do not listen for their peers
        self._direct = direct
        # Node -> welcome frame of the connection during which the node could not reach a peer.
        self._without_peers: dict[int, AgentWelcome] = {}

    async def send(self, links: Sequence[Link], parcels: Sequence[BlobFile]) -> None:
        """Upload files to all nodes as ``blobs/<name>``.

        Args:
            links: Links to the nodes.
            parcels: Files to upload.

        Raises:
            OSError: If a node got a file neither from a peer nor from the client.
        """
        small = sum(parcel.size for parcel in parcels) < MIN_DIRECT_SIZE
        if small or any(link.transport.shares_files for link in links):
            await run_all(link.transport.put(p.path, p.name) for p in parcels for link in links)
        else:
            await run_all(self._send_blob(links, parcel) for parcel in parcels)

    async def _send_blob(self, links: Sequence[Link], parcel: BlobFile) -> None:
        complete = [asyncio.Event() for _ in links]

        async def distribute(at: int) -> None:
            above = (at - 1) // 2
            if not (
                at and self._cluster and await self._fetch_from_peer(links[at], links[above], parcel, complete[above])
            ):
                await self._upload(links[at], parcel)
            complete[at].set()

        await run_all(distribute(at) for at in range(len(links)))

    async def _upload(self, link: Link, parcel: BlobFile) -> None:
        """Upload a file to one node, unless the node has it."""
        if "error" not in await _request(link, _pull_frame(parcel, None)):
            return
        if not (self._cluster and await self._direct.upload(link, parcel.path, parcel.name)):
            await link.transport.put(parcel.path, parcel.name)

    async def _fetch_from_peer(self, link: Link, above: Link, parcel: BlobFile, complete: asyncio.Event) -> bool:
        """Let a node fetch a file from the node above, which may still be receiving the file.

        Returns:
            Whether the node has fetched the file.
        """
        while self._without_peers.get(link.node) is not link.welcome:
            here, place = await asyncio.gather(self._direct.address_of(link), self._direct.address_of(above))
            if here is None or place is None:
                break
            last = complete.is_set()
            answer = await _request(link, _pull_frame(parcel, place))
            if "error" not in answer:
                return True
            if last or answer.get("unreachable"):
                self._without_peers[link.node] = link.welcome  # do not wait for a second time-out
                self._context.news.emit_node_note(link, f"gets files from the client: {answer['error']}")
            else:
                await complete.wait()  # the transfer to the node above is incomplete or has not begun
        return False


def _pull_frame(parcel: BlobFile, place: tuple[str, int] | None) -> Header:
    return {"t": "pull", "hash": parcel.name, "size": parcel.size, "from": place}


async def _request(link: Link, request: Header) -> FetchStatus:
    """Return a node's answer. If the link is lost, return an error answer, because the transport may still work."""
    answer: AgentKnown
    try:
        answer, _ = await link.ask(request)
    except ConnectionError as error:
        return {"error": str(error)}
    return answer


MAX_UNUSED_BYTES = 128 << 20  # bytes of blobs that no active run of this client needs


class BlobCache:
    """Blobs of one client on the nodes of one pool; see the module docstring for the rules of deletion.

    Attributes:
        users: Blob -> runs that need it.
    """

    def __init__(self, context: PoolContext, direct: DirectConnections) -> None:
        self._context = context
        self._distributor = BlobDistributor(context, direct)
        self._sizes: dict[str, int] = {}  # name -> size of each blob, least recently used first
        self.users: dict[str, set[str]] = {}
        self._drops: set[asyncio.Task[None]] = set()

    async def ensure_uploaded(self, run: str, parcels: Sequence[BlobFile]) -> frozenset[Link]:
        """Upload the blobs that a run needs to all present nodes, and keep them until the run is released.

        Args:
            run: Id of the run.
            parcels: Blobs to upload.

        Returns:
            The links to the nodes that have the blobs.

        Raises:
            OSError: If a node could not get a blob.
        """
        for parcel in parcels:
            self._sizes.pop(parcel.name, None)
            self._sizes[parcel.name] = parcel.size
            self.users.setdefault(parcel.name, set()).add(run)
        if self._drops:
            await asyncio.wait(self._drops)  # a blob that is being deleted must not count as present
        links = self._context.present_links
        await self._distributor.send(links, parcels)
        return frozenset(links)

    def release(self, run: str) -> None:
        """Release the blobs of an ended run. Delete unused blobs beyond ``MAX_UNUSED_BYTES``."""
        for users in self.users.values():
            users.discard(run)
        idle = [name for name in self._sizes if not self.users[name]]
        over = sum(self._sizes[name] for name in idle) - MAX_UNUSED_BYTES
        latest = next(reversed(self._sizes), None)
        dropped = []
        for name in idle:
            if over <= 0 or name == latest:
                break
            over -= self._sizes.pop(name)
            del self.users[name]
            dropped.append(name)
        if dropped:
            for link in self._context.present_links:
                task = asyncio.ensure_future(_drop_blobs(link, dropped))
                self._drops.add(task)
                task.add_done_callback(self._drops.discard)


async def _drop_blobs(link: Link, names: Sequence[str]) -> None:
    try:
        await link.ask({"t": "drop", "blobs": names})
    except ConnectionError:
        return  # the blobs stay until the teardown
