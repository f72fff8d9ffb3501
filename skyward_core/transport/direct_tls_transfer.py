"""Direct TLS connections to agents, which bypass SSH for large files."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from skyward_core.protocol.blocking_tls_connection import CompleteFile, TlsConnection, TlsConnectionError
from skyward_core.transport.file_and_result_downloads import IncomingOutput, ResultDownload
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import FileComes, FileWhole


CONNECT_TIMEOUT = 2.0  # seconds; on failure the transfer uses SSH


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
        self._lines: list[tuple[float, Endpoint, TlsConnection]] = []  # idle since, node, connection; latest last

    def acquire(self, node: Endpoint) -> TlsConnection | None:
        """Return an idle connection to a node, or None. The connection may be broken."""
        with self._lock:
            for at in reversed(range(len(self._lines))):
                if self._lines[at][1] == node:
                    return self._lines.pop(at)[2]
        return None

    def release(self, node: Endpoint, line: TlsConnection) -> None:
        """Take back a connection whose requests were all answered. Close it if it is too old or enough are idle."""
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
    """Transfer of one file.

    Args:
        papers: TLS context of the client (see :func:`skyward_core.protocol.blocking_tls_connection.make_ssl_context`).
        kept: Pool of idle connections.
    """

    def __init__(self, node: Endpoint, papers: ssl.SSLContext, idle_streams: IdleStreams) -> None:
        self._node = node
        self._tls_context = papers
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
            request = {"t": "output", "path": path, "version": incoming.version, "at": incoming.at}
            comes: FileComes = line.request(request)
            if comes["size"] != incoming.size:
                raise TlsConnectionError(
                    f"unexpected size of the file: {comes['size']:,} bytes instead of {incoming.size:,}"
                )
            for piece in line.read_chunks(incoming.size - incoming.at):
                incoming.write(piece)
            whole: FileWhole = line.receive_frame()
            incoming.sha256 = whole["sha256"]

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
            line.close()  # the rest of an answer may still arrive on this connection
            raise
        self._line = None
        self._idle_streams.release(self._node, line)

    def stop(self) -> None:
        """Stop the transfer; its thread soon raises :class:`TlsConnectionError`."""
        self._stopped = True
        if self._line is not None:
            self._line.close()
