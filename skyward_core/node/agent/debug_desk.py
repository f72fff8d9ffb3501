"""Passes on what people type to the debuggers of ranks that wait at a breakpoint, and what those print. Loaded when
somebody first debugs."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...wire.inside_frame_types import ClientDebug
    from ...wire.redact import Redactor
    from .connection import Connection
    from .node_state import NodeState
    from .slots import Slots

PATIENCE = 15.0  # seconds without a question after which a person has left: their client may have died
GONE = 3.0  # the same once their connection is lost: they may come back by another one
LOOK = 1.0  # seconds that an answer waits for something to be printed
PIECE = 1 << 16


class DebugDesk:
    """One agent's. A rank has one visitor at a time."""

    def __init__(self, state: NodeState, slots: Slots) -> None:
        self._state, self._slots = state, slots
        self._visits: dict[int, _Visit] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def debug(self, connection: Connection, header: ClientDebug) -> None:
        task = asyncio.get_running_loop().create_task(self._debug(connection, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def leave(self, connection: Connection) -> None:
        """A client's connection is lost."""
        for visit in self._visits.values():
            if visit.connection is connection:
                visit.wait(GONE)

    async def _debug(self, connection: Connection, header: ClientDebug) -> None:
        told: dict[str, Any] = {}
        data, rank = b"", header["rank"]
        visit = self._visits.get(rank)
        if visit is not None and visit.over:
            del self._visits[rank]
            visit = visit if visit.who == header["who"] else None
        if visit is None:
            visit = self._visits[rank] = _Visit(header["who"])
            await visit.begin(self._places(rank))
            if visit.over:
                self._visits.pop(rank, None)
                told = {"error": f"rank {rank} waits at no breakpoint"}
        elif visit.who != header["who"]:
            told = {"error": f"somebody else debugs rank {rank} already"}
        if not told:
            visit.connection = connection
            if "text" in header or header.get("eof"):
                visit.type(header.get("text", ""), end=header.get("eof", False))
            else:
                data = visit.blanked(await visit.read(), self._state.redactor)
            told = {"over": visit.over}
        connection.send({"t": "known", "id": header["id"]} | told, data)

    def _places(self, rank: int) -> list[str]:
        paths = self._state.config.paths
        return [paths.debugger(rank, slot.number) for slot in self._slots.all if slot.rank == rank]


class _Visit:
    """A person at a rank's breakpoint.

    Attributes:
        connection: by which they spoke last.
        over: whether the rank goes on without them.
    """

    def __init__(self, who: str) -> None:
        self.who = who
        self.connection: Connection | None = None
        self.over = False
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._said = self._held = (
            b""  # the last of what was given out, and what may be the beginning of a secret
        )
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self.end)

    async def begin(self, places: list[str]) -> None:
        """Connect to the first of these places where a rank waits; it is over where none does."""
        async with self._turn:
            for place in places:
                folder, _, name = place.rpartition("/")
                at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # a socket's path may hold about 100 bytes
                try:
                    self._line = await asyncio.open_unix_connection(f"/proc/self/fd/{at}/{name}", limit=PIECE)
                    return
                except OSError:
                    continue
                finally:
                    os.close(at)
            self.end()

    def type(self, text: str, *, end: bool) -> None:
        self.wait(PATIENCE)
        if self._line is not None and not self.over:
            _, writer = self._line
            writer.write(text.encode())
            if end and not writer.is_closing():
                writer.write_eof()

    async def read(self) -> bytes:
        """What has been printed, as soon as there is something."""
        async with self._turn:
            self.wait(PATIENCE)
            if self._line is None or self.over:
                return b""
            try:
                async with asyncio.timeout(LOOK):
                    data = await self._line[0].read(PIECE)
            except TimeoutError:
                return b""
            except OSError:
                data = b""
            if not data:
                self.end()
            return data

    def blanked(self, data: bytes, redactor: Redactor) -> bytes:
        """What may be given out of what has been printed, with secrets blanked, those over two pieces too.

        The beginning of one is held back as long as more comes; then it goes out, and its rest is blanked all the same.
        """
        whole, before = self._said + self._held + data, len(self._said)
        held = redactor.begun(whole) if data and not self.over else 0
        end = max(before, len(whole) - held)
        self._held, self._said = whole[end:], whole[max(0, end - redactor.reach) : end]
        return redactor.data(whole)[before:end]

    def wait(self, seconds: float) -> None:
        """Take it as over unless they are heard of within that time."""
        self._timer.cancel()
        if not self.over:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        self.over = True
        self._timer.cancel()
        if self._line is not None:
            self._line[1].close()
