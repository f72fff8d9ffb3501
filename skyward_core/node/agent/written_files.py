"""Files that ranks wrote in their working folder: listed and sent to clients."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.node.bootstrap.receive_working_folder import PARTIAL_SUFFIX, FolderItem, read_sent_items
from skyward_core.protocol.node_paths import STATE_FILE
from skyward_core.protocol.output_file_patterns import BY_PRODUCTS, CHANGED_MESSAGE, matches, may_contain
from skyward_core.protocol.validators import is_relative_subpath

if TYPE_CHECKING:
    from skyward_core.node.agent.agent_state import NodeState
    from skyward_core.node.agent.call_registry import RunRecord
    from skyward_core.node.agent.connection import Connection
    from skyward_core.protocol.frame_types import ClientOutput, ClientWritten, WrittenKeys


PIECE = 1 << 19  # bytes at a time


def file_version(found: os.stat_result) -> str:
    """What tells a file from what it was before and after."""
    return f"{found.st_size:x}.{found.st_mtime_ns:x}.{found.st_ino:x}"


class OutputFile:
    """See the module. Nobody is led out of the working folder: no link is followed, be it the file or a folder on the
    way to it.

    Args:
        folder: the ranks' working folder.
        path: of the file, below it.
        version: that it is to be of.

    Raises:
        OSError: it is not there, or no file, or has changed.
    """

    def __init__(self, folder: str, path: str, version: str) -> None:
        if not folder or not is_relative_subpath(path):
            raise OSError(f"{path!r:.80} names no file of the working folder")
        self._file = _open_below(folder, path)
        try:
            self._found = os.fstat(self._file)
            if not stat.S_ISREG(self._found.st_mode):
                raise OSError("it is no file")
            if file_version(self._found) != version:
                raise OSError(CHANGED_MESSAGE)
        except BaseException:
            self.close()
            raise
        self.size = self._found.st_size

    def read_chunks(self, at: int) -> Iterator[bytes]:
        """Its bytes from an offset on: as many as it had when it was opened, whatever becomes of it meanwhile. Reading
        and not mapping it, as whoever shortens a mapped file ends who reads it.

        When all are had, ``sha256`` is that of the whole file.

        Raises:
            OSError: it cannot be read.
        """
        digest, place = hashlib.sha256(), 0
        while place < self.size:
            data = os.pread(self._file, min(PIECE, self.size - place), place)
            data = data or bytes(min(PIECE, self.size - place))  # it was shortened, which check() tells
            digest.update(data)
            if place + len(data) > at:
                yield data[max(0, at - place) :]
            place += len(data)
        self.sha256 = digest.hexdigest()

    def check_unchanged(self) -> None:
        """See that nobody wrote to it while it was read.

        Raises:
            OSError: somebody did.
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
        # A pipe in its place would have us wait for somebody who writes.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


MAX_SCANNED_FILES = 1_000_000  # files and folders: more take too many seconds
MAX_LISTED_FILES = 10_000  # files in one answer
MAX_LISTED_CHARS = 4 << 20  # of their paths
MTIME_TOLERANCE = 0.01  # seconds by which a file's time may lag behind the clock's


class UnknownRun(OSError):
    """This node had no call of it, or has forgotten it."""


class OutputFileHandler:
    """What clients ask of them. Disks are read in threads: a rank's may be slow, or far away."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    async def list_files(self, connection: Connection, header: ClientWritten) -> None:
        """Answer which there are."""
        answer: dict[str, Any]
        try:
            since, until = self._time_range(header)
            folder = self._state.config.cwd
            files, more = await asyncio.to_thread(
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
        return record.opened_at - MTIME_TOLERANCE, _run_end(record)

    async def send_file(self, connection: Connection, header: ClientOutput) -> None:
        """Send one."""
        told = {"t": "data", "id": header["id"], "last": True}
        try:
            file = await asyncio.to_thread(OutputFile, self._state.config.cwd, header["path"], header["version"])
            try:
                pieces = file.read_chunks(header.get("at", 0))
                while connection.is_open and (data := await asyncio.to_thread(next, pieces, b"")):
                    connection.send({"t": "data", "id": header["id"], "last": False}, data)
                    await connection.drain()
                await asyncio.to_thread(file.check_unchanged)
            finally:
                file.close()
            if connection.is_open:
                connection.send(told | {"sha256": file.sha256})
        except OSError as error:
            connection.send(told | {"error": error.strerror or str(error)})


def _run_end(record: RunRecord) -> float:
    """When a run's last call ended; what is written later, by whatever a rank has left behind, is none of its."""
    ends = [outcome.get("at", 0.0) for outcome in record.outcomes.values()]
    return float("inf") if record.active or not ends else max(ends) + MTIME_TOLERANCE


def find_written_files(
    folder: str, patterns: Sequence[str], since: float, until: float, after: str = ""
) -> tuple[list[WrittenKeys], int]:
    """The files of a working folder that are not as they were sent, and were changed in a time.

    That is told by the time of change that nobody can set: a copy that keeps the times of what it was made of is as
    new as it is. What lies there of other pools is so left out.

    Args:
        patterns: as ``output_file_patterns.pattern`` gives them.
        since, until: Unix times.
        after: the last path that has been told already, in the order of all.

    Returns:
        The files, by path, and at least how many more there are.

    Raises:
        OSError: the folder is no copy of a client's, or cannot be read.
    """
    listing = Path(f"{folder}.json")
    if not folder or not listing.exists():
        raise OSError("the ranks' working folder is no copy that a client has sent")
    walk = _FolderWalk(folder, read_sent_items(listing), patterns)
    meant = (each for each in walk.files() if since <= each[1].st_ctime <= until)
    number = 0

    def counted() -> Iterator[tuple[str, os.stat_result]]:
        nonlocal number
        for path, there in meant:
            if path > after:
                number += 1
                yield path, there

    found: list[WrittenKeys] = []
    letters = 0
    for path, there in heapq.nsmallest(MAX_LISTED_FILES, counted(), key=lambda each: each[0]):
        letters += len(path)
        if letters > MAX_LISTED_CHARS:
            break
        found.append(
            {
                "path": path,
                "size": there.st_size,
                "at": there.st_mtime,
                "version": file_version(there),
            }
        )
    return found, number - len(found) + len(walk.left)


class _FolderWalk:
    """Through a working folder, the folders at its top first.

    Attributes:
        left: folders that were not looked into, as there is too much.
    """

    def __init__(self, folder: str, known: dict[str, FolderItem], patterns: Sequence[str]) -> None:
        self._folder = folder
        self._known = known
        self._patterns = patterns
        self.left = deque([""])

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Files that are meant and not as they were sent; no link is followed, and none is told of."""
        looked = 0
        while self.left and looked < MAX_SCANNED_FILES:
            below = self.left[0]
            try:
                with os.scandir(f"{self._folder}/{below}") as entries:
                    for looked, entry in enumerate(entries, looked + 1):  # noqa: B020
                        if looked > MAX_SCANNED_FILES:
                            return  # this one is looked at in part
                        yield from self._visit(below + entry.name, entry)
            except OSError:
                if not below:
                    raise
                # removed meanwhile, or a rank has closed it to everybody
            self.left.popleft()

    def _visit(self, path: str, entry: os.DirEntry[str]) -> Iterator[tuple[str, os.stat_result]]:
        if entry.name.endswith(PARTIAL_SUFFIX) or not is_relative_subpath(path) or matches(entry.name, BY_PRODUCTS):
            return
        if entry.is_dir(follow_symlinks=False):
            if may_contain(path, self._patterns) and not os.path.exists(f"{entry.path}/{STATE_FILE}"):  # noqa: PTH110
                self.left.append(f"{path}/")
        elif entry.is_file(follow_symlinks=False) and matches(path, self._patterns):
            try:
                there = entry.stat(follow_symlinks=False)
            except OSError:
                return  # removed meanwhile
            item = self._known.get(path)
            if item is None or (item.size, item.mtime) != (there.st_size, there.st_mtime_ns):
                yield path, there
