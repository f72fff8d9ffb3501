"""Log files of ranks: tailed by cursor, redacted, and limited in size.

The agent buffers nothing. Ranks write directly to the files and never wait for a client. A client that reads slowly
only falls behind.
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
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.worker_processes import describe_shortage
from skyward_core.protocol.frame_codec import CHUNK_BYTES
from skyward_core.protocol.node_paths import ERR, MARKS, METRICS, OUT, log_stem
from skyward_core.protocol.stdout_stderr_order_marks import AFTER, MARK_BYTES, MarkWriter, decode_marks
from skyward_core.protocol.validators import is_log_name
from skyward_core.util.redaction import Redactor

POLL = 0.03  # seconds between two reads of the log files while ranks print
# Seconds without output after which polls become less frequent, because each poll takes processor time from the ranks.
QUIET_AFTER = 1.0
QUIET_POLL = 0.15
IDLE_POLL = 0.5
PIECE_BYTES = CHUNK_BYTES // 4


class LogTail:
    """Sender of all files that ranks write into a spool to one client: output, marks of its order, and metrics.

    Args:
        spool: Folder of the files.
        connection: Connection of the client.
        cursors: Number of bytes of each file that the client already has.
        busy: Returns whether any calls run that may print before they end.
        redactor: Redacts secrets.
        mark: Writes a mark, which records the order of standard output and standard error, for all output so far.
        most: Returns the size up to which a file may be sent.
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
        self.cursors = dict(cursors)
        self._files: dict[str, int] = {}
        self._groups: dict[str, _LogGroup] = {}
        self._has_active_calls = busy
        self._redactor = redactor
        # file name -> number of its last bytes that are not sent yet, because they may be the beginning of a secret
        self._withheld: dict[str, int] = {}
        self._mark = mark
        self._send_limit = most
        self._wake = asyncio.Event()
        self._warnings: set[str] = set()
        self._state: list[int] = []  # modification time of the folder and sizes of the files at the last poll
        self._unchanged_polls = 0  # number of consecutive polls that found no change and sent nothing

    async def run(self) -> None:
        """Send new output to the client until this coroutine is cancelled."""
        loop, scanned_at = asyncio.get_running_loop(), 0.0
        last_output_at = loop.time()
        try:
            while self._connection.is_open:
                largest = 0
                # Scan the folder at most once per POLL, even while ranks print a lot.
                is_due = loop.time() >= scanned_at + POLL
                if not (is_due and self._is_unchanged()):
                    if is_due:
                        self._open_new_files()
                        self._mark()
                        scanned_at = loop.time()
                    for group in list(self._groups.values()):
                        largest = max(largest, self._send_group(group))
                        await self._connection.drain()
                if largest:
                    last_output_at, self._unchanged_polls = loop.time(), 0
                if largest < PIECE_BYTES // 2:
                    # All output is sent. Pause, because collecting output is cheaper than one frame per line.
                    await self._pause(POLL if loop.time() < last_output_at + QUIET_AFTER else QUIET_POLL)
                    scanned_at = 0.0
                else:
                    await asyncio.sleep(0)
        finally:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()
            self._groups.clear()

    def _is_unchanged(self) -> bool:
        """Check whether the files are unchanged, without reading them, in a tenth of the time of a complete poll.

        The file system's clock has coarse ticks that hide a second change in the same tick. So the files count as
        unchanged only after two equal polls in a row.
        """
        state = [os.stat(self._spool).st_mtime_ns, *(os.fstat(opened).st_size for opened in self._files.values())]
        self._unchanged_polls = self._unchanged_polls + 1 if state == self._state else 0
        self._state = state
        return self._unchanged_polls > 1

    def wake(self) -> None:
        self._wake.set()

    def flush(self, sizes: dict[str, int], limit: int = CHUNK_BYTES) -> None:
        """Send the files up to the given sizes before any later frame, but at most ``limit`` bytes in total."""
        if self._connection.is_write_paused:
            return
        for name, size in sizes.items():
            if name not in self._files:
                self._open(name)
            while name in self._files and limit > 0 and self.cursors[name] < size:
                sent = self._send(name, limit, whole=True)
                if not sent:
                    break
                limit -= sent
        if limit <= 0:
            self._wake.set()

    async def finish(self) -> dict[str, int]:
        """Send all remaining output to the client. Return the final size of each file in bytes."""
        self._open_new_files()
        self._mark()
        for group in self._groups.values():
            while self._connection.is_open and self._send_group(group, whole=True):
                await self._connection.drain()
        return dict(self.cursors)

    def _open_new_files(self) -> None:
        try:
            names = os.listdir(self._spool)  # noqa: PTH208  called often
        except OSError as error:  # The process has no free descriptor to open the folder.
            self._warn_once(f"output of ranks is not sent yet: {describe_shortage(error)}")
            return
        for name in names:
            if name not in self._files and is_log_name(name):
                self._open(name)

    def _warn_once(self, message: str) -> None:
        self._state = []  # Forget the state, so that the next poll scans the files again.
        if message not in self._warnings:
            self._warnings.add(message)
            self._connection.send({"t": "error", "message": message})

    def _open(self, name: str) -> None:
        try:
            self._files[name] = os.open(self._spool / name, os.O_RDONLY)
        except FileNotFoundError:
            return
        except OSError as error:
            # Without free descriptors, the next scan retries. The error is only reported, because outcomes must not
            # wait for it.
            self._warn_once(f"output of ranks is not sent yet: {describe_shortage(error)}")
            return
        self.cursors.setdefault(name, 0)
        stem = name.rpartition(".")[0]
        self._groups.setdefault(stem, _LogGroup(stem))

    def _send_group(self, group: _LogGroup, *, whole: bool = False) -> int:
        """Send a part of a worker's output and return its size in bytes.

        Sends marks first and advances both streams together, so that the client can merge them with a small buffer.
        """
        moved = self._send(group.metrics, PIECE_BYTES) + self._send(group.marks, PIECE_BYTES)
        streams = (group.out, group.err)
        ends = group.send_limits(*(self.cursors.get(name, 0) for name in streams))
        for limited in (True, False):
            # The first pass sends output up to the limits that the marks set. If there is none, the second pass ignores
            # the limits, because a mark may refer to missing output.
            for name, end in zip(streams, ends, strict=True):
                room = end - self.cursors.get(name, 0) if limited else PIECE_BYTES
                if room > 0:
                    moved += self._send(name, min(room, PIECE_BYTES), whole=whole)
            if moved:
                break
        return moved

    def _send(self, name: str, limit: int, *, whole: bool = False) -> int:
        if name not in self._files:
            return 0
        at = self.cursors[name]
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
        self.cursors[name] = at + len(data)
        return len(data)

    def _read_redacted(self, name: str, limit: int, at: int, whole: bool) -> bytes:
        """Read and redact the next bytes of a file. Unless ``whole``, omit an end that may be the start of a secret."""
        if not self._redactor.has_secrets:
            return os.pread(self._files[name], limit, at)
        fresh = os.pread(self._files[name], limit + self._redactor.reach, at)
        if len(fresh) == (0 if whole else self._withheld.get(name, 0)):
            return b""  # The file has no new bytes, only withheld ones.
        lead = min(at, self._redactor.reach)
        data = os.pread(self._files[name], lead, at - lead) + fresh
        end = min(len(data), lead + limit)
        held_back = self._redactor.partial_secret_length(data) if end == len(data) and not whole else 0
        self._withheld[name] = min(held_back, len(fresh))
        end -= self._withheld[name]
        return self._redactor.redact_bytes(data)[lead:end]

    async def _pause(self, busy: float) -> None:
        self._wake.clear()
        # Use a timer, because asyncio.timeout() takes more processor time.
        timer = asyncio.get_running_loop().call_later(busy if self._has_active_calls() else IDLE_POLL, self._wake.set)
        await self._wake.wait()
        timer.cancel()


class _LogGroup:
    """Log files of one worker slot, and those sent marks whose output is still unsent."""

    def __init__(self, stem: str) -> None:
        self.out, self.err, self.marks, self.metrics = (stem + ending for ending in (OUT, ERR, MARKS, METRICS))
        self._ahead: deque[tuple[int, int]] = deque()

    def add_marks(self, marks: bytes) -> None:
        """Store marks that were sent to the client."""
        self._ahead.extend((mark.out, mark.err) for mark in decode_marks(marks))

    def send_limits(self, out: int, err: int) -> tuple[int, int]:
        """Return the offset up to which each stream may be sent before the other stream must advance."""
        while self._ahead and self._ahead[0][0] <= out and self._ahead[0][1] <= err:
            self._ahead.popleft()
        for mark in self._ahead:
            if max(mark[0] - out, 0) + max(mark[1] - err, 0) >= PIECE_BYTES:
                return mark
        return out + PIECE_BYTES, err + PIECE_BYTES


NO_LIMIT = 1 << 62  # bytes; size limit of a log that may grow without limit


class LogLimit:
    """Size limit of one log file.

    Args:
        path: The file.
        limit: Bytes that one run may print; 0 for no limit.

    Attributes:
        max_size: Size up to which the file may be sent.
    """

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self.start_run(0)

    def start_run(self, start: int) -> None:
        """Start counting a new run's output at the file offset where the run begins."""
        self.max_size = start + self._limit if self._limit else NO_LIMIT
        self._is_cut = False  # whether the file has been truncated and ends with the message about the limit

    def enforce(self, size: int) -> bool:
        """Truncate the file if it is too long. Return whether the limit has just been reached."""
        if size <= self.max_size:
            return False
        if self._is_cut:
            os.truncate(self._path, self.max_size)
            return False
        at = self.max_size
        message = (
            f"\nskyward: this run reached its limit of {self._limit:,} bytes for this stream "
            "(Options(log_limit=...)); further output is dropped\n"
        ).encode()
        # Open the file again without O_APPEND, because pwrite() to the rank's descriptor would ignore the offset.
        with open(self._path, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), message, at)
            os.ftruncate(file.fileno(), at + len(message))
        self.max_size, self._is_cut = at + len(message), True
        return True


# maximum bytes of output written after a rank truncated its log that are saved when the log is restored
MAX_RESTORED_BYTES = 1 << 20


class RankLogs:
    """Log files of one slot.

    Args:
        config: Configuration of the agent.
        rank: The rank.
        number: Number of the slot within the rank.
        running: Calls that currently print into the files.
        complain: Sends a warning to clients.

    Attributes:
        names: File names of standard output and standard error.
        ends: File sizes at the end of the last call, where the next call begins.
        limits: Size limit of each file.
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
        self._last_run = ""  # run of the last call that ended in the current process
        self._spool = str(config.spool)
        self._metrics = name + METRICS
        self._marks = name + MARKS
        self._marker: MarkWriter | None = None
        self._files: dict[str, int] = {}
        # file name -> its largest known size in bytes; a smaller file was truncated
        self._max_sizes: dict[str, int] = {}
        self.limits = {each: LogLimit(f"{self._spool}/{each}", config.log_limit) for each in self.names}

    def open(self) -> None:
        """Open the files. Later calls begin after the existing output, which belongs to an earlier agent."""
        if not self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._files = {name: os.open(f"{self._spool}/{name}", flags, 0o600) for name in self.names}
            self.ends = self._sizes()
            for name, end in self.ends.items():
                self.limits[name].start_run(end)
            self._marker = MarkWriter(f"{self._spool}/{self._marks}", *self.descriptors, AFTER)

    @property
    def metrics_path(self) -> str:
        """Path of the file with the metrics that the rank logged."""
        return f"{self._spool}/{self._metrics}"

    @property
    def descriptors(self) -> tuple[int, int]:
        """Descriptors of standard output and standard error."""
        out, err = self._files.values()
        return out, err

    def range_of(self, call: Call) -> dict[str, list[int]]:
        """Return start and end of a call's output in each file.

        A call begins at the end of the previous call, or after the last output of an exited worker. If threads of one
        worker run calls at the same time, they print into the same files and their ranges overlap.
        """
        sizes, marker = self._sizes(), self._marker
        # Usually nothing was printed since the last call ended, and all earlier output is marked.
        if marker is None or sizes != self.ends or (*sizes.values(),) != (marker.out, marker.err):
            self.truncate()
            self.write_mark(call.run)
            before, self.ends = self.ends, self._sizes()
            for name, end in self.ends.items() if len(self._running) <= 1 else ():
                if end != before.get(name):
                    self.limits[name].start_run(end)
        self._last_run = call.run
        return {name: [call.log_start.get(name, 0), end] for name, end in self.ends.items()}

    def truncate(self) -> None:
        """Truncate log files that exceed their size limit, and warn the clients."""
        for name, size in self._sizes().items():
            with suppress(OSError):  # If the process has no free descriptors, the next size check retries.
                if self.limits[name].enforce(size):
                    runs = ", ".join({call.run for call in self._running.values()}) or "background work"
                    self._warn_clients(
                        f"rank {self._rank} reached its log limit during {runs}: further output in {name} is dropped"
                    )

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
        """Restore the size of a log that a rank truncated, append its new output, and record the lost bytes."""
        with suppress(OSError):
            # Code that writes logs reports a full disk. If the process has no free descriptors, the next size check
            # retries.
            with open(f"{self._spool}/{name}", "rb") as emptied:
                since = emptied.read(min(size, MAX_RESTORED_BYTES))
            os.ftruncate(opened, self._max_sizes[name])
            note = f"rank {self._rank} reopened this stream and truncated it; unsent output is lost"
            os.write(opened, f"\nskyward: {note}\n".encode() + since)
        return os.fstat(opened).st_size

    def end_worker(self) -> None:
        """Mark the last output of an exited worker with its last run. The next call's output begins after it."""
        self.write_mark(self._last_run)
        self.ends, self._last_run = self._sizes(), ""

    def write_mark(self, ended: str = "") -> None:
        """Mark new output with its run if calls of only one run are active in this slot, or ``ended`` just now.

        If no call is active, the output belongs to the run of the worker's last call.
        """
        if self._marker is not None:
            self._sizes()  # called to restore truncated files before the mark is written
            runs = {*filter(None, (ended,)), *(call.run for call in self._running.values())} or {self._last_run}
            self._marker.mark_after(runs.pop() if len(runs) == 1 else "", soon=not ended)

    def side_file_sizes(self) -> dict[str, int]:
        """Return the sizes of the existing mark and metrics files."""
        sizes = {}
        for name in (self._marks, self._metrics):
            path = f"{self._spool}/{name}"
            # Usually the files are missing, and access() is faster than an exception.
            if os.access(path, os.F_OK):
                with suppress(FileNotFoundError):  # User code may have deleted the file since the check.
                    sizes[name] = os.stat(path).st_size
        return sizes

    def write_message(self, message: str) -> None:
        """Append a message of skyward to standard error."""
        with suppress(OSError):  # A full disk is ignored here, because other code reports it.
            os.write(self._files[self.names[1]], f"skyward: {message}\n".encode())
