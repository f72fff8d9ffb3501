"""Direct TLS connections of a client to the nodes of a pool, for large files: uploads, results and output files."""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.pool.agent_link import Link
from skyward_core.protocol.blocking_tls_connection import CLIENT, TlsConnectionError, make_ssl_context
from skyward_core.transport.file_and_result_downloads import ResultDownload

if TYPE_CHECKING:
    from skyward_core.plugins.pool_certificate_authority import Authority
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import AgentWelcome, PeersAnswer
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
        return self._is_worthwhile(link, landing.size) and await self._transfer(
            link, lambda transfer: transfer.download_result(name, landing)
        )

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
        return self._is_worthwhile(link, incoming.size) and await self._transfer(
            link, lambda transfer: transfer.download_output(path, incoming)
        )

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
        # Not through a tunnel: the connection of the link leads to the node's own address.
        if not (node.usable and link.up and link.transport.direct == link.welcome.get("address")):
            return False
        place = await self.address_of(link)
        if place is None:
            node.usable = False
            return False
        from skyward_core.plugins.pool_certificate_authority import node_name
        from skyward_core.transport.direct_tls_transfer import IDLE_TIMEOUT, Endpoint, IdleStreams, Transfer

        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "bulk")
        if self._idle_streams is None:
            # SSH connections also need open files, so direct connections must use only a small part of the limit.
            self._idle_streams = IdleStreams(MOST_IDLE_STREAMS if _has_room_for(4 * MOST_IDLE_STREAMS) else 0)
        if self._tls_context is None:
            self._tls_context = make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, self._get_authority().issue(CLIENT).to_json())
        transfer = Transfer(Endpoint(place, node_name(link.node)), self._tls_context, self._idle_streams)
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
            self._expiry = loop.call_later(IDLE_TIMEOUT, self._idle_streams.expire, IDLE_TIMEOUT)
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

    def _get_authority(self) -> Authority:
        if self._authority is None:
            from skyward_core.plugins.pool_certificate_authority import Authority

            self._authority = Authority(f"pool {self._context.name}")
        return self._authority
