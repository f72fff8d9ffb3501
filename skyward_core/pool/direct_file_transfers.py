"""Direct TLS connections of a client to the nodes of a pool, for large files: uploads, results and output files."""

from __future__ import annotations

import asyncio
import resource
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from skyward_core.pool.agent_link import Link
from skyward_core.protocol.blocking_tls_connection import (
    CLIENT,
    CompleteFile,
    TlsConnection,
    TlsConnectionError,
    make_ssl_context,
)
from skyward_core.transport.file_and_result_downloads import IncomingOutput, ResultDownload
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.plugins.pool_certificate_authority import Authority
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import AgentWelcome, FileComes, FileWhole, PeersAnswer
    from skyward_core.transport.file_and_result_downloads import IncomingOutput


MIN_DIRECT_SIZE = 1 << 20  # bytes; for smaller files a direct connection is no faster than the existing connection
# Bytes of results that a node sends through SSH before the client opens a direct connection. Starting the listening
# process on the node takes as long as sending these bytes.
SSH_BYTES = 8 << 20
THREADS = 8
MOST_IDLE_STREAMS = 16  # maximum number of idle connections, to all nodes together

Address = tuple[str, int]


class _Node:
    """State of a node's direct connections.

    Valid until the link's connection ends, because the node then stops listening for direct connections.
    """

    def __init__(self, welcome: AgentWelcome) -> None:
        self.welcome = welcome
        self.place: asyncio.Task[Address | None] | None = None
        self.usable = True
        self.fetched = 0


def _has_room_for(lines: int) -> bool:
    """Check whether ``lines`` connections would leave most of the process's limit of open files to the script."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or lines * 4 <= limit


class DirectConnections:
    """Direct TLS connections from one client to the nodes of one pool."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._nodes: dict[int, _Node] = {}
        self._authority: Authority | None = None
        # TLS context with the certificate of this client; created at the first direct transfer.
        self._tls_context: ssl.SSLContext | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._idle_streams: IdleStreams | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def address_of(self, link: Link) -> Address | None:
        """Return the address on which a node listens for direct connections, or None.

        The node is asked to listen once per connection of the link.
        """
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
        # If the transport uses a tunnel instead of the node's own address, this client may not reach that address.
        if not (node.usable and link.up and link.transport.direct == link.welcome.get("address")):
            return False
        place = await self.address_of(link)
        if place is None:
            node.usable = False
            return False
        from skyward_core.plugins.pool_certificate_authority import node_name

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
        # If the whole node is unreachable, the link reports the failure, so warn only about the direct connection.
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


CONNECT_TIMEOUT = 2.0  # seconds to connect directly; after a failure the file is sent through SSH


@value
class Endpoint(Value):
    """Address of a node, and its name in the TLS certificate."""

    place: tuple[str, int]
    name: str


# Seconds for which a connection is reused. RFC 8446 (5.5) requires new keys after about 400 GB, which Python does not
# support.
MAX_AGE = 120.0
# Seconds until an idle connection is closed. Each connection occupies a thread on its node, and 1 MB at both ends.
IDLE_TIMEOUT = 30.0


class IdleStreams:
    """Pool of idle TLS connections, safe to use from several threads.

    Args:
        most: Largest number of idle connections.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        # Idle connections, the longest idle one first: time since which it is idle, node, connection.
        self._lines: list[tuple[float, Endpoint, TlsConnection]] = []

    def acquire(self, node: Endpoint) -> TlsConnection | None:
        """Return an idle connection to a node, or None. The connection may be broken."""
        with self._lock:
            for at in reversed(range(len(self._lines))):
                if self._lines[at][1] == node:
                    return self._lines.pop(at)[2]
        return None

    def release(self, node: Endpoint, line: TlsConnection) -> None:
        """Keep a connection, whose requests were all answered, for later use.

        Close it if it is too old or enough are idle.
        """
        self.expire(IDLE_TIMEOUT)
        now = monotonic()
        with self._lock:
            if len(self._lines) < self._most and now - line.connected_at < MAX_AGE:
                self._lines.append((now, node, line))
                return
        line.close()

    def expire(self, idle: float) -> None:
        """Close connections that have been idle for the given seconds."""
        since = monotonic() - idle
        with self._lock:
            old = [line for at, _, line in self._lines if at <= since]
            self._lines = [each for each in self._lines if each[0] > since]
        for line in old:
            line.close()

    def close(self) -> None:
        """Close all connections, and every connection that is released later."""
        with self._lock:
            self._most = 0
        self.expire(0)


class Transfer:
    """Transfer of one file over a direct connection.

    Args:
        node: Node of the file.
        tls_context: TLS context of the client; see :func:`..protocol.blocking_tls_connection.make_ssl_context`.
        idle_streams: Pool of idle connections.
    """

    def __init__(self, node: Endpoint, tls_context: ssl.SSLContext, idle_streams: IdleStreams) -> None:
        self._node = node
        self._tls_context = tls_context
        self._idle_streams = idle_streams
        self._line: TlsConnection | None = None
        self._stopped = False

    def upload(self, source: Path, name: str) -> None:
        """Upload a file to the node as ``blobs/<name>``, atomically.

        Raises:
            TlsConnectionError: If the connection fails.
            OSError: If the node rejects the file, or the file cannot be read.
        """

        def send(line: TlsConnection) -> None:
            with open(source, "rb", buffering=0) as file:
                whole = CompleteFile(file.fileno())
                line.request({"t": "put", "name": name, "size": whole.size})
                line.send_file(file.fileno(), 0, whole)
                line.receive_frame()

        self._run(send)

    def download_result(self, name: str, landing: ResultDownload) -> None:
        """Download a result; resumes an interrupted download.

        Raises:
            TlsConnectionError: If the connection fails; the received part is kept.
            OSError: If the node does not have the result, or the file cannot be written.
        """

        def receive(line: TlsConnection) -> None:
            comes: FileComes = line.request({"t": "result", "name": name, "at": landing.at})
            size = comes["size"]
            if size != landing.size:
                raise TlsConnectionError(f"unexpected size of the result: {size:,} bytes instead of {landing.size:,}")
            while room := landing.next_buffer():
                line.read_into(room)
                landing.advance(len(room))

        with closing(landing):
            self._run(receive)

    def download_output(self, path: str, incoming: IncomingOutput) -> None:
        """Download a file that ranks wrote; resumes an interrupted download.

        Raises:
            TlsConnectionError: If the connection fails; the received part is kept.
            OSError: If the file has changed on the node, or cannot be written here.
        """

        def receive(line: TlsConnection) -> None:
            # TLS protects the bytes of one connection. Only bytes of an earlier connection need hashes, because hashing
            # takes as long as all other steps of a side together.
            resumes = incoming.at > 0
            request = {"t": "output", "path": path, "version": incoming.version, "at": incoming.at}
            comes: FileComes = line.request(request | {"hashes": resumes})
            if comes["size"] != incoming.size:
                raise TlsConnectionError(
                    f"unexpected size of the file: {comes['size']:,} bytes instead of {incoming.size:,}"
                )
            for piece in line.read_chunks(incoming.size - incoming.at):
                incoming.write(piece)
            whole: FileWhole = line.receive_frame()
            incoming.sha256, incoming.is_verified = whole["sha256"], not resumes

        self._run(receive)

    def _run(self, work: Callable[[TlsConnection], None]) -> None:
        """Run a transfer on an idle connection. If none is idle, or the transfer fails, use a new connection."""
        if (line := self._idle_streams.acquire(self._node)) is not None:
            try:
                return self._run_on(line, work)
            except TlsConnectionError:
                if self._stopped:
                    raise
        self._run_on(TlsConnection.connect(self._node.place, self._tls_context, CONNECT_TIMEOUT), work)

    def _run_on(self, line: TlsConnection, work: Callable[[TlsConnection], None]) -> None:
        try:
            self._line = line
            if line.peer != self._node.name:
                raise TlsConnectionError(f"{line.peer or 'an unknown server'} answers instead of {self._node.name}")
            if self._stopped:
                raise TlsConnectionError("the transfer was stopped")
            work(line)
        except BaseException:
            line.close()  # do not reuse the connection, because the rest of an answer may still arrive on it
            raise
        self._line = None
        self._idle_streams.release(self._node, line)

    def stop(self) -> None:
        """Stop the transfer; its thread soon raises :class:`TlsConnectionError`."""
        self._stopped = True
        if self._line is not None:
            self._line.close()
