"""The files that ranks print into, followed by cursor, with size limits.

The files are the truth; nothing is buffered here. A client that reads slowly only falls behind: ranks write to
the files directly and never wait for anybody.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from skyward_core.node.agent.call_registry import Call, Key
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connection import Connection
from skyward_core.protocol.frame_codec import CHUNK_BYTES
from skyward_core.protocol.node_paths import ERR, MARKS, METRICS, OUT, log_stem
from skyward_core.protocol.output_order_marks import AFTER, MARK_BYTES, MarkWriter, decode_marks
from skyward_core.protocol.validators import is_log_name
from skyward_core.util.redaction import Redactor

POLL = 0.03  # seconds between looks at the files while ranks print
# And while they work and have printed nothing for a while: each look takes a processor from them.
QUIET_AFTER = 1.0
QUIET_POLL = 0.15
IDLE_POLL = 0.3
PIECE_BYTES = CHUNK_BYTES // 4
FOLLOWED = (OUT, ERR, MARKS, METRICS)


class LogTail:
    """Follows the files of a spool that ranks write, for one connection: what they print, with marks of its order, and
    numbers.

    Args:
        mark: marks what has been printed by now.
        most: how much of a file may be sent; see ``agent.log_tailing``.
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
        self._groups: dict[str, _LogGroup] = {}
        self._has_active_calls = busy
        self._redactor = redactor
        self._withheld: dict[str, int] = {}  # bytes at the end of a file that may be a secret's beginning
        self._mark = mark
        self._send_limit = most
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        loop, looked = asyncio.get_running_loop(), 0.0
        printed = loop.time()
        try:
            while self._connection.is_open:
                if loop.time() >= looked + POLL:  # not for every piece of a flood
                    self._open_new_files()
                    self._mark()
                    looked = loop.time()
                most = 0
                for group in list(self._groups.values()):
                    most = max(most, self._send_group(group))
                    await self._connection.drain()
                if most:
                    printed = loop.time()
                if most < PIECE_BYTES // 2:  # it was all there was; a frame for each line costs more than a wait
                    await self._pause(POLL if loop.time() < printed + QUIET_AFTER else QUIET_POLL)
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

    def flush(self, sizes: dict[str, int], limit: int = CHUNK_BYTES) -> None:
        """Send what these files hold up to the given sizes, if it is little, so that it arrives before what is
        sent next."""
        if self._connection.is_write_paused:
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
        self._open_new_files()
        self._mark()
        for group in self._groups.values():
            while self._connection.is_open and self._send_group(group, whole=True):
                await self._connection.drain()
        return dict(self._cursors)

    def _open_new_files(self) -> None:
        for entry in os.scandir(self._spool):
            if entry.name not in self._files and is_log_name(entry.name):
                self._open(entry.name)

    def _open(self, name: str) -> None:
        try:
            self._files[name] = os.open(self._spool / name, os.O_RDONLY)
        except FileNotFoundError:
            return
        self._cursors.setdefault(name, 0)
        stem = name.rpartition(".")[0]
        self._groups.setdefault(stem, _LogGroup(stem))

    def _send_group(self, group: _LogGroup, *, whole: bool = False) -> int:
        """Send some of what a worker wrote, marks first, and no stream far ahead of the other: who puts them together
        there has to hold little. Says how many bytes it sent."""
        moved = self._send(group.metrics, PIECE_BYTES) + self._send(group.marks, PIECE_BYTES)
        streams = (group.out, group.err)
        ends = group.send_limits(*(self._cursors.get(name, 0) for name in streams))
        for limited in (True, False):  # without, where marks promise what is not there
            for name, end in zip(streams, ends, strict=True):
                room = end - self._cursors.get(name, 0) if limited else PIECE_BYTES
                if room > 0:
                    moved += self._send(name, min(room, PIECE_BYTES), whole=whole)
            if moved:
                break
        return moved

    def _send(self, name: str, limit: int, *, whole: bool = False) -> int:
        if name not in self._files:
            return 0
        at = self._cursors[name]
        limit = min(limit, self._send_limit(name) - at)
        if limit <= 0:
            return 0
        if name.endswith(MARKS):
            data = os.pread(self._files[name], limit // MARK_BYTES * MARK_BYTES, at)
            data = data[: data.rfind(b"\n") + 1]
            self._groups[name.rpartition(".")[0]].add_marks(data)
        else:
            data = self._read_redacted(name, limit, at, whole)
        if not data:
            return 0
        self._connection.send({"t": "log", "f": name, "at": at}, data)
        self._cursors[name] = at + len(data)
        return len(data)

    def _read_redacted(self, name: str, limit: int, at: int, whole: bool) -> bytes:
        """What may be shown of the next bytes. Unless it is the ``whole``, what may be a secret's beginning waits."""
        if not self._redactor:
            return os.pread(self._files[name], limit, at)
        fresh = os.pread(self._files[name], limit + self._redactor.reach, at)
        if len(fresh) == (0 if whole else self._withheld.get(name, 0)):
            return b""  # nothing but what waits already
        lead = min(at, self._redactor.reach)
        data = os.pread(self._files[name], lead, at - lead) + fresh
        end = min(len(data), lead + limit)
        waits = self._redactor.partial_secret_length(data) if end == len(data) and not whole else 0
        self._withheld[name] = min(waits, len(fresh))
        end -= self._withheld[name]
        return self._redactor.redact_bytes(data)[lead:end]

    async def _pause(self, busy: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(busy if self._has_active_calls() else IDLE_POLL):
                await self._wake.wait()
        except TimeoutError:
            return


class _LogGroup:
    """The files of one worker's place, and the marks that were sent ahead of what they are about."""

    def __init__(self, stem: str) -> None:
        self.out, self.err, self.marks, self.metrics = (stem + ending for ending in FOLLOWED)
        self._ahead: deque[tuple[int, int]] = deque()

    def add_marks(self, marks: bytes) -> None:
        """Take marks that are sent."""
        self._ahead.extend((mark.out, mark.err) for mark in decode_marks(marks))

    def send_limits(self, out: int, err: int) -> tuple[int, int]:
        """How far both streams may be sent from here before it is each other's turn."""
        while self._ahead and self._ahead[0][0] <= out and self._ahead[0][1] <= err:
            self._ahead.popleft()
        for mark in self._ahead:
            if max(mark[0] - out, 0) + max(mark[1] - err, 0) >= PIECE_BYTES:
                return mark
        return out + PIECE_BYTES, err + PIECE_BYTES


NO_LIMIT = 1 << 62  # bytes; where there is no limit


class LogLimit:
    """That of one log file.

    Args:
        path: of the file.
        limit: bytes that one run may print; 0 for no limit.

    Attributes:
        max_size: how far the file may be sent.
    """

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self.start_run(0)

    def start_run(self, start: int) -> None:
        """What is printed from here on is another run's."""
        self.max_size = start + self._limit if self._limit else NO_LIMIT
        self._is_cut = False  # it ends there, with our line, since the limit was reached

    def enforce(self, size: int) -> bool:
        """Cut the file back where it is too long; says whether the limit was reached just now."""
        if size <= self.max_size:
            return False
        if self._is_cut:
            os.truncate(self._path, self.max_size)
            return False
        at = self.max_size
        said = (
            f"\nskyward: this run has printed {self._limit:,} bytes here, which is its limit "
            "(Options(log_limit=...)); what it prints from here on is dropped\n"
        ).encode()
        with open(self._path, "r+b", buffering=0) as file:  # a descriptor that appends would put it at the end
            os.pwrite(file.fileno(), said, at)
            os.ftruncate(file.fileno(), at + len(said))
        self.max_size, self._is_cut = at + len(said), True
        return True


MAX_RESTORED_BYTES = 1 << 20  # bytes since a log was emptied that are taken to its end


class RankLogs:
    """Those of one slot.

    Args:
        running: the calls that print into them now.
        complain: told in words when a run has printed its limit.

    Attributes:
        names: of the files, standard output's first.
        ends: how long they were when the last call ended: there the next one begins.
        limits: how long they may get, by name.
    """

    def __init__(
        self,
        config: AgentConfig,
        rank: int,
        number: int,
        running: Mapping[Key, Call],
        complain: Callable[[str], None],
    ) -> None:
        self._rank = rank
        self._running = running
        self._warn_clients = complain
        name = log_stem(rank, number)
        self.names = [name + OUT, name + ERR]
        self.ends: dict[str, int] = {}
        self._spool = str(config.spool)
        self._metrics = name + METRICS
        self._marks = name + MARKS
        self._marker: MarkWriter | None = None
        self._files: dict[str, int] = {}
        self._max_sizes: dict[str, int] = {}  # how long they have been
        self.limits = {each: LogLimit(f"{self._spool}/{each}", config.log_limit) for each in self.names}

    def open(self) -> None:
        """Have the log files. What an agent before this one did not see the end of belongs to no later call."""
        if not self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._files = {name: os.open(f"{self._spool}/{name}", flags, 0o600) for name in self.names}
            self.ends = self._sizes()
            for name, end in self.ends.items():
                self.limits[name].start_run(end)
            out, err = self._files.values()
            self._marker = MarkWriter(f"{self._spool}/{self._marks}", out, err, AFTER)

    @property
    def descriptors(self) -> tuple[int, int]:
        """Of the open files: standard output, standard error."""
        out, err = self._files.values()
        return out, err

    def range_of(self, call: Call) -> dict[str, list[int]]:
        """Where what a call printed stands in these files: start and end.

        A call begins where the last one ended, so that no byte belongs to no run; threads of one worker, which
        print into the same files at the same time, share what they saw.
        """
        if not self._is_unchanged():
            self.truncate()
            self.write_mark(call)
            before, self.ends = self.ends, self._sizes()
            for name, end in self.ends.items() if len(self._running) <= 1 else ():
                if end != before.get(name):
                    self.limits[name].start_run(end)
        return {name: [call.log_start.get(name, 0), end] for name, end in self.ends.items()}

    def _is_unchanged(self) -> bool:
        """Whether nothing was printed since the last call's end, and all before it is marked: so it is with most."""
        if self._marker is None:
            return False
        ends = self._sizes()
        return ends == self.ends and (*ends.values(),) == (self._marker.out, self._marker.err)

    def truncate(self) -> None:
        """Cut logs back to what one run may print, and tell where that has just begun."""
        for name, size in self._sizes().items():
            if self.limits[name].enforce(size):
                runs = ", ".join({call.run for call in self._running.values()}) or "what runs on"
                said = f"rank {self._rank} has printed its limit during {runs}: the rest of it in {name} is dropped"
                self._warn_clients(said)

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        for name, opened in self._files.items():
            size = os.fstat(opened).st_size
            if size < self._max_sizes.get(name, 0):
                size = self._restore(name, opened, size)
            sizes[name] = size
            self._max_sizes[name] = min(size, self.limits[name].max_size)
        return sizes

    def _restore(self, name: str, opened: int, size: int) -> int:
        """A rank has emptied its own log: go on where it was, so that what comes is sent; say what happened."""
        with open(f"{self._spool}/{name}", "rb") as emptied:
            since = emptied.read(min(size, MAX_RESTORED_BYTES))
        with suppress(OSError):  # a full disk is said by others
            os.ftruncate(opened, self._max_sizes[name])
            said = f"rank {self._rank} opened this stream anew and emptied it; what was not fetched is lost"
            os.write(opened, f"\nskyward: {said}\n".encode() + since)
        return os.fstat(opened).st_size

    def write_mark(self, ended: Call | None = None) -> None:
        """Mark what has been printed since this was last done as a run's, where but one has calls here; a call that
        has just ``ended`` is among them."""
        if self._marker is not None:
            self._sizes()  # one that a rank has emptied is mended there
            runs = {call.run for call in (*self._running.values(), *filter(None, (ended,)))}
            self._marker.mark_after(runs.pop() if len(runs) == 1 else "", soon=ended is None)

    def side_file_sizes(self) -> dict[str, int]:
        """The sizes of the files that come beside the logs, of those that are there."""
        sizes = {}
        for name in (self._marks, self._metrics):
            path = f"{self._spool}/{name}"
            # Mostly no rank has put anything there; an exception takes longer to say so.
            if os.access(path, os.F_OK):
                with suppress(FileNotFoundError):  # a rank's code may remove what it finds
                    sizes[name] = os.stat(path).st_size
        return sizes

    def write_message(self, words: str) -> None:
        """Put a line of ours into the log."""
        with suppress(OSError):  # a full disk is said by others
            os.write(self._files[self.names[1]], f"skyward: {words}\n".encode())
