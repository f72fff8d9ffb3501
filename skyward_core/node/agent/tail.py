"""Sends the bytes that ranks printed to one client, from the client's cursors on, exactly once and in order.

The files are the truth; nothing is buffered here. A client that reads slowly only falls behind: ranks write to
the files directly and never wait for anybody.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ...wire.frames import CHUNK
from ...wire.marks import WIDTH, decode
from ...wire.node_paths import ERR, MARKS, METRICS, OUT
from ...wire.redact import Redactor
from ...wire.value_checks import is_log
from .connection import Connection

POLL = 0.03  # seconds between looks at the files while ranks print
# And while they work and have printed nothing for a while: each look takes a processor from them.
SILENCE = 1.0
SILENT_POLL = 0.15
IDLE_POLL = 0.3
PIECE = CHUNK // 4
FOLLOWED = (OUT, ERR, MARKS, METRICS)


class Tail:
    """Follows the files of a spool that ranks write, for one connection: what they print, with marks of its order, and
    numbers.

    Args:
        mark: marks what has been printed by now.
        most: how much of a file may be sent; see :mod:`.log_limit`.
    """

    def __init__(
        self,
        spool: Path,
        connection: Connection,
        cursors: dict[str, int],
        busy: Callable[[], bool],
        redactor: Redactor,
        mark: Callable[[], None],
        most: Callable[[str], int],
    ) -> None:
        self._spool = spool
        self._connection = connection
        self._cursors = dict(cursors)
        self._files: dict[str, int] = {}
        self._groups: dict[str, _Group] = {}
        self._busy = busy
        self._redactor = redactor
        self._held: dict[str, int] = {}  # bytes at the end of a file that may be a secret's beginning
        self._mark = mark
        self._most = most
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        loop, looked = asyncio.get_running_loop(), 0.0
        printed = loop.time()
        try:
            while self._connection.open:
                if loop.time() >= looked + POLL:  # not for every piece of a flood
                    self._discover()
                    self._mark()
                    looked = loop.time()
                most = 0
                for group in list(self._groups.values()):
                    most = max(most, self._send_group(group))
                    await self._connection.drain()
                if most:
                    printed = loop.time()
                if most < PIECE // 2:  # it was all there was; a frame for each line costs more than a wait
                    await self._pause(POLL if loop.time() < printed + SILENCE else SILENT_POLL)
                    looked = 0.0
                else:
                    await asyncio.sleep(0)
        finally:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()
            self._groups.clear()

    @property
    def cursors(self) -> dict[str, int]:
        """File -> bytes of it that have been sent."""
        return self._cursors

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
        self._mark()
        for group in self._groups.values():
            while self._connection.open and self._send_group(group, whole=True):
                await self._connection.drain()
        return dict(self._cursors)

    def _discover(self) -> None:
        for entry in os.scandir(self._spool):
            if entry.name not in self._files and is_log(entry.name):
                self._open(entry.name)

    def _open(self, name: str) -> None:
        try:
            self._files[name] = os.open(self._spool / name, os.O_RDONLY)
        except FileNotFoundError:
            return
        self._cursors.setdefault(name, 0)
        stem = name.rpartition(".")[0]
        self._groups.setdefault(stem, _Group(stem))

    def _send_group(self, group: _Group, *, whole: bool = False) -> int:
        """Send some of what a worker wrote, marks first, and no stream far ahead of the other: who puts them together
        there has to hold little. Says how many bytes it sent."""
        moved = self._send(group.metrics, PIECE) + self._send(group.marks, PIECE)
        streams = (group.out, group.err)
        ends = group.ends(*(self._cursors.get(name, 0) for name in streams))
        for limited in (True, False):  # without, where marks promise what is not there
            for name, end in zip(streams, ends, strict=True):
                room = end - self._cursors.get(name, 0) if limited else PIECE
                if room > 0:
                    moved += self._send(name, min(room, PIECE), whole=whole)
            if moved:
                break
        return moved

    def _send(self, name: str, limit: int, *, whole: bool = False) -> int:
        if name not in self._files:
            return 0
        at = self._cursors[name]
        limit = min(limit, self._most(name) - at)
        if limit <= 0:
            return 0
        if name.endswith(MARKS):
            data = os.pread(self._files[name], limit // WIDTH * WIDTH, at)
            data = data[: data.rfind(b"\n") + 1]
            self._groups[name.rpartition(".")[0]].learn(data)
        else:
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

    async def _pause(self, busy: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(busy if self._busy() else IDLE_POLL):
                await self._wake.wait()
        except TimeoutError:
            return


class _Group:
    """The files of one worker's place, and the marks that were sent ahead of what they are about."""

    def __init__(self, stem: str) -> None:
        self.out, self.err, self.marks, self.metrics = (stem + ending for ending in FOLLOWED)
        self._ahead: deque[tuple[int, int]] = deque()

    def learn(self, marks: bytes) -> None:
        """Take marks that are sent."""
        self._ahead.extend((mark.out, mark.err) for mark in decode(marks))

    def ends(self, out: int, err: int) -> tuple[int, int]:
        """How far both streams may be sent from here before it is each other's turn."""
        while self._ahead and self._ahead[0][0] <= out and self._ahead[0][1] <= err:
            self._ahead.popleft()
        for mark in self._ahead:
            if max(mark[0] - out, 0) + max(mark[1] - err, 0) >= PIECE:
                return mark
        return out + PIECE, err + PIECE
