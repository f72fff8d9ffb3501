"""Sends the bytes that ranks printed to one client, from the client's cursors on, exactly once and in order.

The files are the truth; nothing is buffered here. A client that reads slowly only falls behind: ranks write to
the files directly and never wait for anybody.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from ..wire import CHUNK
from .connection import Connection
from .redact import Redactor

POLL = 0.03  # seconds between looks at the files' sizes while ranks are busy
IDLE_POLL = 0.3


class Tail:
    """Follows every log file, and every file of metrics, of a spool for one connection."""

    def __init__(
        self,
        spool: Path,
        connection: Connection,
        cursors: dict[str, int],
        busy: Callable[[], bool],
        redactor: Redactor,
    ) -> None:
        self._spool = spool
        self._connection = connection
        self._cursors = dict(cursors)
        self._files: dict[str, int] = {}
        self._busy = busy
        self._redactor = redactor
        self._held: dict[str, int] = {}  # bytes at the end of a file that may be a secret's beginning
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            while self._connection.open:
                self._discover()
                moved = False
                for name in list(self._files):
                    moved |= self._send(name, CHUNK // 4) > 0
                    await self._connection.drain()
                if not moved:
                    await self._pause()
                else:
                    await asyncio.sleep(0)
        finally:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()

    def wake(self) -> None:
        self._wake.set()

    def flush(self, sizes: dict[str, int], limit: int = CHUNK) -> None:
        """Send what these files hold up to the given sizes, if it is little, so that it arrives before what is
        sent next."""
        if self._connection.busy:
            return
        for name, size in sizes.items():
            if name not in self._files:
                self._open(name)
            while name in self._files and limit > 0 and self._cursors[name] < size:
                sent = self._send(name, limit, whole=True)
                if not sent:
                    break
                limit -= sent

    async def finish(self) -> dict[str, int]:
        """Send everything that is left; returns the final size of every file."""
        self._discover()
        for name in self._files:
            while self._connection.open and self._send(name, CHUNK // 4, whole=True):
                await self._connection.drain()
        return dict(self._cursors)

    def _discover(self) -> None:
        for entry in os.scandir(self._spool):
            if entry.name not in self._files and entry.name.endswith((".out", ".err", ".metrics")):
                self._open(entry.name)

    def _open(self, name: str) -> None:
        try:
            self._files[name] = os.open(self._spool / name, os.O_RDONLY)
        except FileNotFoundError:
            return
        self._cursors.setdefault(name, 0)

    def _send(self, name: str, limit: int, *, whole: bool = False) -> int:
        at = self._cursors[name]
        data = self._redacted(name, limit, at, whole)
        if not data:
            return 0
        self._connection.send({"t": "log", "f": name, "at": at}, data)
        self._cursors[name] = at + len(data)
        return len(data)

    def _redacted(self, name: str, limit: int, at: int, whole: bool) -> bytes:
        """What may be shown of the next bytes. Unless it is the ``whole``, what may be a secret's beginning waits."""
        if not self._redactor:
            return os.pread(self._files[name], limit, at)
        fresh = os.pread(self._files[name], limit + self._redactor.reach, at)
        if len(fresh) == (0 if whole else self._held.get(name, 0)):
            return b""  # nothing but what waits already
        lead = min(at, self._redactor.reach)
        data = os.pread(self._files[name], lead, at - lead) + fresh
        end = min(len(data), lead + limit)
        waits = self._redactor.begun(data) if end == len(data) and not whole else 0
        self._held[name] = min(waits, len(fresh))
        end -= self._held[name]
        return self._redactor.data(data)[lead:end]

    async def _pause(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(POLL if self._busy() else IDLE_POLL):
                await self._wake.wait()
        except TimeoutError:
            return
