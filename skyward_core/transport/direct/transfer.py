"""Large files straight between the client and a node, at the listener that the node has for its peers.

Encrypting costs asyncssh and the host's SSH server three times what it costs here, and keeps the loop busy. These
calls block, each in a thread of its own; :meth:`Transfer.stop` ends one from another thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ...wire.tls_stream import LineError, TlsLine, Whole
from ..incoming_output import IncomingOutput
from ..incoming_result import Landing
from .endpoint import CONNECT_TIMEOUT, Endpoint
from .idle_streams import IdleStreams

if TYPE_CHECKING:
    from ...wire.file_frame_types import FileComes, FileWhole


class Transfer:
    """One file on its way.

    Args:
        papers: the client's (see :func:`skyward_core.wire.tls_stream.context`).
        kept: whose lines it may take, and gets its own.
    """

    def __init__(self, node: Endpoint, papers: ssl.SSLContext, kept: IdleStreams) -> None:
        self._node = node
        self._papers = papers
        self._kept = kept
        self._line: TlsLine | None = None
        self._stopped = False

    def put(self, source: Path, name: str) -> None:
        """Bring a file to the node, as ``blobs/<name>``: whole, or not at all.

        Raises:
            LineError: the way there is no good.
            OSError: the node did not take it, and says why; or it cannot be read here.
        """

        def bring(line: TlsLine) -> None:
            with open(source, "rb", buffering=0) as file:
                whole = Whole(file.fileno())
                line.ask({"t": "put", "name": name, "size": whole.size})
                line.send(file.fileno(), 0, whole)
                line.hear()

        self._do(bring)

    def get(self, name: str, landing: Landing) -> None:
        """Bring a result here; goes on where an earlier attempt, of whatever kind, stopped.

        Raises:
            LineError: the way there is no good; what has come is kept.
            OSError: the node has not got it, or it cannot be written here.
        """

        def take(line: TlsLine) -> None:
            comes: FileComes = line.ask({"t": "result", "name": name, "at": landing.at})
            size = comes["size"]
            if size != landing.size:
                raise LineError(f"it has {size:,} bytes of {landing.size:,}")
            while room := landing.room():
                line.fill(room)
                landing.filled(len(room))

        with closing(landing):
            self._do(take)

    def take(self, path: str, incoming: IncomingOutput) -> None:
        """Bring a file that ranks wrote here; goes on where an earlier attempt, of whatever kind, stopped.

        Raises:
            LineError: the way there is no good; what has come is kept.
            OSError: it is no more as it was, or it cannot be written here.
        """

        def take(line: TlsLine) -> None:
            asked = {"t": "output", "path": path, "version": incoming.version, "at": incoming.at}
            comes: FileComes = line.ask(asked)
            if comes["size"] != incoming.size:
                raise LineError(f"it has {comes['size']:,} bytes of {incoming.size:,}")
            for piece in line.pieces(incoming.size - incoming.at):
                incoming.write(piece)
            whole: FileWhole = line.hear()
            incoming.sha256 = whole["sha256"]

        self._do(take)

    def _do(self, work: Callable[[TlsLine], None]) -> None:
        """Take a line that waits, and a new one if that turns out to be no good any more; or a new one at once."""
        if (line := self._kept.take(self._node)) is not None:
            try:
                return self._over(line, work)
            except LineError:
                if self._stopped:
                    raise
        self._over(TlsLine.to(self._node.place, self._papers, CONNECT_TIMEOUT), work)

    def _over(self, line: TlsLine, work: Callable[[TlsLine], None]) -> None:
        try:
            self._line = line
            if line.peer != self._node.name:
                raise LineError(f"{line.peer or 'somebody'} answers in place of {self._node.name}")
            if self._stopped:
                raise LineError("it was stopped")
            work(line)
        except BaseException:
            line.close()  # who knows what is still to come over it
            raise
        self._line = None
        self._kept.keep(self._node, line)

    def stop(self) -> None:
        """End it; its thread gets a :class:`LineError` soon."""
        self._stopped = True
        if self._line is not None:
            self._line.close()
