"""Relay between a client and the debugger of a rank at a breakpoint."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyward_core.node.agent.agent_state import NodeState
    from skyward_core.node.agent.connection import Connection
    from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
    from skyward_core.protocol.frame_types import ClientDebug
    from skyward_core.util.redaction import Redactor


SESSION_TIMEOUT = 15.0  # seconds without a question after which a person has left: their client may have died
RECONNECT_TIMEOUT = 3.0  # the same once their connection is lost: they may come back by another one
READ_TIMEOUT = 1.0  # seconds that an answer waits for something to be printed
READ_BYTES = 1 << 16


class DebuggerRelay:
    """One agent's. A rank has one visitor at a time."""

    def __init__(self, state: NodeState, slots: SlotDispatcher) -> None:
        self._state, self._slots = state, slots
        self._sessions: dict[int, _DebuggerSession] = {}

    def on_client_gone(self, connection: Connection) -> None:
        """A client's connection is lost."""
        for visit in self._sessions.values():
            if visit.connection is connection:
                visit.extend_timeout(RECONNECT_TIMEOUT)

    async def answer(self, connection: Connection, header: ClientDebug) -> None:
        """Do what a client at a breakpoint asks for, and answer it."""
        told: dict[str, Any] = {}
        data, rank = b"", header["rank"]
        visit = self._sessions.get(rank)
        if visit is not None and visit.is_closed:
            del self._sessions[rank]
            visit = visit if visit.who == header["who"] else None
        if visit is None:
            visit = self._sessions[rank] = _DebuggerSession(header["who"])
            await visit.connect(self._socket_paths(rank))
            if visit.is_closed:
                self._sessions.pop(rank, None)
                told = {"error": f"rank {rank} waits at no breakpoint"}
        elif visit.who != header["who"]:
            told = {"error": f"somebody else debugs rank {rank} already"}
        if not told:
            visit.connection = connection
            if "text" in header or header.get("eof"):
                visit.write(header.get("text", ""), end=header.get("eof", False))
            else:
                data = visit.redact(await visit.read(), self._state.redactor)
            told = {"over": visit.is_closed}
        connection.send({"t": "known", "id": header["id"]} | told, data)

    def _socket_paths(self, rank: int) -> list[str]:
        paths = self._state.config.paths
        return [paths.debugger(rank, slot.number) for slot in self._slots.slots if slot.rank == rank]


class _DebuggerSession:
    """A person at a rank's breakpoint.

    Attributes:
        connection: by which they spoke last.
        is_closed: whether the session has ended.
    """

    def __init__(self, who: str) -> None:
        self.who = who
        self.connection: Connection | None = None
        self.is_closed = False
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()
        self._sent_tail = self._held = b""  # the last of what was given out, and what may be the beginning of a secret
        self._timer = asyncio.get_running_loop().call_later(SESSION_TIMEOUT, self.close)

    async def connect(self, places: list[str]) -> None:
        """Connect to the first of these places where a rank waits; it is over where none does."""
        async with self._lock:
            for place in places:
                folder, _, name = place.rpartition("/")
                at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # a socket's path may hold about 100 bytes
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
        """What has been printed, as soon as there is something."""
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
        """What may be given out of what has been printed, with secrets blanked, those over two pieces too.

        The beginning of one is held back as long as more comes; then it goes out, and its rest is blanked all the same.
        """
        whole, before = self._sent_tail + self._held + data, len(self._sent_tail)
        held = redactor.partial_secret_length(whole) if data and not self.is_closed else 0
        end = max(before, len(whole) - held)
        self._held, self._sent_tail = whole[end:], whole[max(0, end - redactor.reach) : end]
        return redactor.redact_bytes(whole)[before:end]

    def extend_timeout(self, seconds: float) -> None:
        """Take it as over unless they are heard of within that time."""
        self._timer.cancel()
        if not self.is_closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def close(self) -> None:
        self.is_closed = True
        self._timer.cancel()
        if self._streams is not None:
            self._streams[1].close()
