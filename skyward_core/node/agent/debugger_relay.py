"""Relay between a client and the debugger of a rank at a breakpoint."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyward_core.node.agent.agent_state_and_lease import NodeState
    from skyward_core.node.agent.connection import Connection
    from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
    from skyward_core.protocol.frame_types import ClientDebug
    from skyward_core.util.redaction import Redactor


SESSION_TIMEOUT = 15.0  # seconds without a request after which the session ends; the client may have died
RECONNECT_TIMEOUT = 3.0  # seconds after a lost connection; the client may reconnect
READ_TIMEOUT = 1.0  # seconds to wait for output
READ_BYTES = 1 << 16


class DebuggerRelay:
    """Debugger sessions of one agent, at most one per rank."""

    def __init__(self, state: NodeState, slots: SlotDispatcher) -> None:
        self._state, self._slots = state, slots
        self._sessions: dict[int, _DebuggerSession] = {}

    def on_client_gone(self, connection: Connection) -> None:
        """Shorten the timeout of a disconnected client's sessions."""
        for session in self._sessions.values():
            if session.connection is connection:
                session.extend_timeout(RECONNECT_TIMEOUT)

    async def answer(self, connection: Connection, header: ClientDebug) -> None:
        """Handle and answer a client's request for a breakpoint."""
        fields: dict[str, Any] = {}
        data, rank = b"", header["rank"]
        session = self._sessions.get(rank)
        if session is not None and session.is_closed:
            del self._sessions[rank]
            session = session if session.who == header["who"] else None
        if session is None:
            session = self._sessions[rank] = _DebuggerSession(header["who"])
            paths = self._state.config.paths
            await session.connect(
                [paths.debugger(rank, each.number) for each in self._slots.slots if each.rank == rank]
            )
            if session.is_closed:
                self._sessions.pop(rank, None)
                fields = {"error": f"rank {rank} is not at a breakpoint"}
        elif session.who != header["who"]:
            fields = {"error": f"another client is already debugging rank {rank}"}
        if not fields:
            session.connection = connection
            if "text" in header or header.get("eof"):
                session.write(header.get("text", ""), end=header.get("eof", False))
            else:
                data = session.redact(await session.read(), self._state.redactor)
            fields = {"over": session.is_closed}
        connection.send({"t": "known", "id": header["id"]} | fields, data)


class _DebuggerSession:
    """A user's debugger session at a rank's breakpoint.

    Attributes:
        connection: Connection of the latest request.
        is_closed: Whether the session has ended.
    """

    def __init__(self, who: str) -> None:
        self.who = who
        self.connection: Connection | None = None
        self.is_closed = False
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()
        # The end of the sent output, and withheld output that may be the beginning of a secret.
        self._sent_tail = self._held = b""
        self._timer = asyncio.get_running_loop().call_later(SESSION_TIMEOUT, self.close)

    async def connect(self, paths: list[str]) -> None:
        """Connect to the first socket at which a rank waits. Close the session if there is none."""
        async with self._lock:
            for path in paths:
                folder, _, name = path.rpartition("/")
                at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # socket paths are limited to about 100 bytes
                try:
                    self._streams = await asyncio.open_unix_connection(f"/proc/self/fd/{at}/{name}", limit=READ_BYTES)
                    return
                except OSError:
                    continue
                finally:
                    os.close(at)
            self.close()

    def write(self, text: str, *, end: bool) -> None:
        self.extend_timeout(SESSION_TIMEOUT)
        if self._streams is not None and not self.is_closed:
            _, writer = self._streams
            writer.write(text.encode())
            if end and not writer.is_closing():
                writer.write_eof()

    async def read(self) -> bytes:
        """Wait for output of the debugger and return it."""
        async with self._lock:
            self.extend_timeout(SESSION_TIMEOUT)
            if self._streams is None or self.is_closed:
                return b""
            try:
                async with asyncio.timeout(READ_TIMEOUT):
                    data = await self._streams[0].read(READ_BYTES)
            except TimeoutError:
                return b""
            except OSError:
                data = b""
            if not data:
                self.close()
            return data

    def redact(self, data: bytes, redactor: Redactor) -> bytes:
        """Return the output that may be sent, with secrets redacted, even if they span two reads.

        Withholds output that may be the beginning of a secret until the following output is known.
        """
        whole, before = self._sent_tail + self._held + data, len(self._sent_tail)
        held = redactor.partial_secret_length(whole) if data and not self.is_closed else 0
        end = max(before, len(whole) - held)
        self._held, self._sent_tail = whole[end:], whole[max(0, end - redactor.reach) : end]
        return redactor.redact_bytes(whole)[before:end]

    def extend_timeout(self, seconds: float) -> None:
        """Close the session unless a request arrives within the given time."""
        self._timer.cancel()
        if not self.is_closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def close(self) -> None:
        self.is_closed = True
        self._timer.cancel()
        if self._streams is not None:
            self._streams[1].close()
