"""Files that ranks wrote in their working folder: listed and sent to clients."""

from __future__ import annotations

import hashlib
import heapq
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.node.agent.worker_processes import run_in_thread
from skyward_core.node.bootstrap.receive_working_folder import PARTIAL_SUFFIX, FolderItem, read_sent_items
from skyward_core.protocol.node_paths import STATE_FILE
from skyward_core.protocol.output_file_patterns import BY_PRODUCTS, CHANGED_MESSAGE, matches, may_contain
from skyward_core.protocol.validators import is_relative_subpath

if TYPE_CHECKING:
    from skyward_core.node.agent.agent_state_and_lease import NodeState
    from skyward_core.node.agent.connection import Connection
    from skyward_core.protocol.frame_types import ClientOutput, ClientWritten, WrittenKeys


PIECE = 1 << 19  # bytes per read


def file_version(found: os.stat_result) -> str:
    """Return a string that changes when the file does."""
    return f"{found.st_size:x}.{found.st_mtime_ns:x}.{found.st_ino:x}"


class OutputFile:
    """A file in the ranks' working folder. Does not follow links, neither for the file nor for its folders.

    Args:
        folder: The ranks' working folder.
        path: Path relative to the folder.
        version: Expected version of the file.

    Raises:
        OSError: If the path is missing, is not a regular file, or has another version.
    """

    def __init__(self, folder: str, path: str, version: str) -> None:
        if not folder or not is_relative_subpath(path):
            raise OSError(f"{path!r:.80} is not a path in the working folder")
        self._file = _open_below(folder, path)
        try:
            self._found = os.fstat(self._file)
            if not stat.S_ISREG(self._found.st_mode):
                raise OSError("not a regular file")
            if file_version(self._found) != version:
                raise OSError(CHANGED_MESSAGE)
        except BaseException:
            self.close()
            raise
        self.size = self._found.st_size

    def read_chunks(self, at: int) -> Iterator[bytes]:
        """Yield the file's content from an offset on, always up to the size at opening.

        Reads instead of mapping the file, because truncating a mapped file would crash the reader. Afterwards
        ``sha256`` is the hash of the whole file.

        Raises:
            OSError: If the file cannot be read.
        """
        digest, place = hashlib.sha256(), 0
        while place < self.size:
            data = os.pread(self._file, min(PIECE, self.size - place), place)
            data = data or bytes(min(PIECE, self.size - place))  # file was truncated: check_unchanged() reports this
            digest.update(data)
            if place + len(data) > at:
                yield data[max(0, at - place) :]
            place += len(data)
        self.sha256 = digest.hexdigest()

    def check_unchanged(self) -> None:
        """Check that the file did not change while it was read.

        Raises:
            OSError: If the file changed.
        """
        now = os.fstat(self._file)
        if (file_version(now), now.st_ctime_ns) != (file_version(self._found), self._found.st_ctime_ns):
            raise OSError(CHANGED_MESSAGE)

    def close(self) -> None:
        os.close(self._file)


def _open_below(folder: str, path: str) -> int:
    *way, name = path.split("/")
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in way:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
        # O_NONBLOCK: opening a named pipe would wait for a writer
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


MAX_SCANNED_FILES = 1_000_000  # files and folders; scanning more takes too long
MAX_LISTED_FILES = 10_000  # files in one answer
MAX_LISTED_CHARS = 4 << 20  # total length of the paths in one answer
MTIME_TOLERANCE = 0.01  # seconds by which file times may lag behind the clock


class UnknownRun(OSError):
    """The node had no call of this run, or has forgotten it."""


class OutputFileHandler:
    """Handlers of requests for written files. Disk access runs in threads, because disks may be slow or remote."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    async def list_files(self, connection: Connection, header: ClientWritten) -> None:
        """Answer with the matching files."""
        answer: dict[str, Any]
        try:
            since, until = self._time_range(header)
            folder = self._state.config.cwd
            files, more = await run_in_thread(
                find_written_files, folder, header["patterns"], since, until, after=header.get("after", "")
            )
            answer = {"files": files, "more": more, "folder": folder}
        except UnknownRun as error:
            answer = {"error": str(error), "forgotten": True}
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        connection.send({"t": "known", "id": header["id"]} | answer)

    def _time_range(self, header: ClientWritten) -> tuple[float, float]:
        run = header.get("run")
        if run is None:
            return header.get("since", 0.0), float("inf")
        record = self._state.registry.records.get(run)
        if record is None:
            raise UnknownRun(f"this node does not remember run {run}")
        # Leftover processes may change files after the run's last call. These changes do not belong to the run.
        ends = [outcome.get("at", 0.0) for outcome in record.outcomes.values()]
        until = float("inf") if record.active or not ends else max(ends) + MTIME_TOLERANCE
        return record.opened_at - MTIME_TOLERANCE, until

    async def send_file(self, connection: Connection, header: ClientOutput) -> None:
        """Send one file."""
        fields = {"t": "data", "id": header["id"], "last": True}
        try:
            file = await run_in_thread(OutputFile, self._state.config.cwd, header["path"], header["version"])
            try:
                chunks = file.read_chunks(header.get("at", 0))
                while connection.is_open and (data := await run_in_thread(next, chunks, b"")):
                    connection.send({"t": "data", "id": header["id"], "last": False}, data)
                    await connection.drain()
                await run_in_thread(file.check_unchanged)
            finally:
                file.close()
            if connection.is_open:
                connection.send(fields | {"sha256": file.sha256})
        except OSError as error:
            connection.send(fields | {"error": error.strerror or str(error)})


def find_written_files(
    folder: str, patterns: Sequence[str], since: float, until: float, after: str = ""
) -> tuple[list[WrittenKeys], int]:
    """Find files of the working folder that changed in a time range and differ from the client's upload.

    Uses the inode change time, which programs cannot set, so that a copy with preserved modification times counts as
    new. Excludes files of other pools.

    Args:
        folder: The ranks' working folder.
        patterns: Patterns from ``output_file_patterns.pattern``.
        since: Unix time of the earliest change.
        until: Unix time of the latest change.
        after: Last path of the previous page, in path order.

    Returns:
        The files in path order, and a lower bound of the number of further files.

    Raises:
        OSError: If the folder is not a copy of a client's folder or cannot be read.
    """
    listing = Path(f"{folder}.json")
    if not folder or not listing.exists():
        raise OSError("the ranks' working folder is not a copy of the client's folder")
    walk = _FolderWalk(folder, read_sent_items(listing), patterns)
    changed = (each for each in walk.files() if since <= each[1].st_ctime <= until)
    number = 0

    def counted() -> Iterator[tuple[str, os.stat_result]]:
        nonlocal number
        for path, status in changed:
            if path > after:
                number += 1
                yield path, status

    found: list[WrittenKeys] = []
    chars = 0
    for path, status in heapq.nsmallest(MAX_LISTED_FILES, counted(), key=lambda each: each[0]):
        chars += len(path)
        if chars > MAX_LISTED_CHARS:
            break
        found.append(
            {
                "path": path,
                "size": status.st_size,
                "at": status.st_mtime,
                "version": file_version(status),
            }
        )
    return found, number - len(found) + len(walk.left)


class _FolderWalk:
    """Breadth-first walk through a working folder.

    Attributes:
        left: Folders that were not scanned because the limit was reached.
    """

    def __init__(self, folder: str, known: dict[str, FolderItem], patterns: Sequence[str]) -> None:
        self._folder = folder
        self._known = known
        self._patterns = patterns
        self.left = deque([""])

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield matching files that differ from the upload. Skip links."""
        scanned = 0
        while self.left and scanned < MAX_SCANNED_FILES:
            folder = self.left[0]
            try:
                with os.scandir(f"{self._folder}/{folder}") as entries:
                    for scanned, entry in enumerate(entries, scanned + 1):  # noqa: B020
                        if scanned > MAX_SCANNED_FILES:
                            return  # the current folder is only partly scanned
                        yield from self._visit(folder + entry.name, entry)
            except OSError:
                if not folder:
                    raise
                # deleted since the listing, or not readable
            self.left.popleft()

    def _visit(self, path: str, entry: os.DirEntry[str]) -> Iterator[tuple[str, os.stat_result]]:
        if entry.name.endswith(PARTIAL_SUFFIX) or not is_relative_subpath(path) or matches(entry.name, BY_PRODUCTS):
            return
        if entry.is_dir(follow_symlinks=False):
            if may_contain(path, self._patterns) and not os.path.exists(f"{entry.path}/{STATE_FILE}"):  # noqa: PTH110
                self.left.append(f"{path}/")
        elif entry.is_file(follow_symlinks=False) and matches(path, self._patterns):
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                return  # deleted since the listing
            item = self._known.get(path)
            if item is None or (item.size, item.mtime) != (status.st_size, status.st_mtime_ns):
                yield path, status
