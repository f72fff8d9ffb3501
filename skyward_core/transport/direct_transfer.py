"""Direct TLS connections to agents, past SSH."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from skyward_core.protocol.tls_stream import CompleteFile, TlsConnection, TlsConnectionError
from skyward_core.transport.file_and_result_downloads import IncomingOutput, ResultDownload
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import FileComes, FileWhole


CONNECT_TIMEOUT = 2.0  # seconds; there is another way


@value
class Endpoint(Value):
    """Where a node listens, and what it is called in its certificate."""

    place: tuple[str, int]
    name: str


# Seconds that a line is used: RFC 8446 (5.5) wants other keys after some 400 GB, and Python cannot ask for them.
MAX_AGE = 120.0
IDLE_TIMEOUT = 30.0  # seconds that a line may wait; it takes a thread of its node's, and a megabyte at each end


class IdleStreams:
    """See the module; used by many threads at once.

    Args:
        most: lines that may wait at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._lines: list[tuple[float, Endpoint, TlsConnection]] = []  # since when, to where; the latest at the end

    def acquire(self, node: Endpoint) -> TlsConnection | None:
        """A line to a node, if one waits. Nobody has looked whether the node is still there."""
        with self._lock:
            for at in reversed(range(len(self._lines))):
                if self._lines[at][1] == node:
                    return self._lines.pop(at)[2]
        return None

    def release(self, node: Endpoint, line: TlsConnection) -> None:
        """Have a line wait, all of whose requests have been answered in full; or close it, if it is old or there are
        enough."""
        self.expire(IDLE_TIMEOUT)
        now = monotonic()
        with self._lock:
            if len(self._lines) < self._most and now - line.connected_at < MAX_AGE:
                self._lines.append((now, node, line))
                return
        line.close()

    def expire(self, idle: float) -> None:
        """Close what has waited that long, in seconds."""
        since = monotonic() - idle
        with self._lock:
            old = [line for at, _, line in self._lines if at <= since]
            self._lines = [kept for kept in self._lines if kept[0] > since]
        for line in old:
            line.close()

    def close(self) -> None:
        """Close them all; none waits from now on."""
        with self._lock:
            self._most = 0
        self.expire(0)


class Transfer:
    """One file on its way.

    Args:
        papers: the client's (see :func:`skyward_core.protocol.tls_stream.make_ssl_context`).
        kept: whose lines it may take, and gets its own.
    """

    def __init__(self, node: Endpoint, papers: ssl.SSLContext, kept: IdleStreams) -> None:
        self._node = node
        self._tls_context = papers
        self._idle_streams = kept
        self._line: TlsConnection | None = None
        self._stopped = False

    def upload(self, source: Path, name: str) -> None:
        """Bring a file to the node, as ``blobs/<name>``: whole, or not at all.

        Raises:
            LineError: the way there is no good.
            OSError: the node did not take it, and says why; or it cannot be read here.
        """

        def bring(line: TlsConnection) -> None:
            with open(source, "rb", buffering=0) as file:
                whole = CompleteFile(file.fileno())
                line.request({"t": "put", "name": name, "size": whole.size})
                line.send_file(file.fileno(), 0, whole)
                line.receive_frame()

        self._run(bring)

    def download_result(self, name: str, landing: ResultDownload) -> None:
        """Bring a result here; goes on where an earlier attempt, of whatever kind, stopped.

        Raises:
            LineError: the way there is no good; what has come is kept.
            OSError: the node has not got it, or it cannot be written here.
        """

        def take(line: TlsConnection) -> None:
            comes: FileComes = line.request({"t": "result", "name": name, "at": landing.at})
            size = comes["size"]
            if size != landing.size:
                raise TlsConnectionError(f"it has {size:,} bytes of {landing.size:,}")
            while room := landing.next_buffer():
                line.read_into(room)
                landing.advance(len(room))

        with closing(landing):
            self._run(take)

    def download_output(self, path: str, incoming: IncomingOutput) -> None:
        """Bring a file that ranks wrote here; goes on where an earlier attempt, of whatever kind, stopped.

        Raises:
            LineError: the way there is no good; what has come is kept.
            OSError: it is no more as it was, or it cannot be written here.
        """

        def take(line: TlsConnection) -> None:
            asked = {"t": "output", "path": path, "version": incoming.version, "at": incoming.at}
            comes: FileComes = line.request(asked)
            if comes["size"] != incoming.size:
                raise TlsConnectionError(f"it has {comes['size']:,} bytes of {incoming.size:,}")
            for piece in line.read_chunks(incoming.size - incoming.at):
                incoming.write(piece)
            whole: FileWhole = line.receive_frame()
            incoming.sha256 = whole["sha256"]

        self._run(take)

    def _run(self, work: Callable[[TlsConnection], None]) -> None:
        """Take a line that waits, and a new one if that turns out to be no good any more; or a new one at once."""
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
                raise TlsConnectionError(f"{line.peer or 'somebody'} answers in place of {self._node.name}")
            if self._stopped:
                raise TlsConnectionError("it was stopped")
            work(line)
        except BaseException:
            line.close()  # who knows what is still to come over it
            raise
        self._line = None
        self._idle_streams.release(self._node, line)

    def stop(self) -> None:
        """End it; its thread gets a :class:`TlsConnectionError` soon."""
        self._stopped = True
        if self._line is not None:
            self._line.close()
