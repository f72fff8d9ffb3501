"""Files of a node that clients fetch or replace: ranks' output files, restored checkpoints, and source files.

Also removes bytecode that was compiled from older source files.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import shutil
import stat
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.model.output_files import BY_PRODUCTS, CHANGED_MESSAGE, matches, may_contain
from skyward_core.node.agent.worker_processes import run_in_thread
from skyward_core.node.bootstrap.receive_working_folder import PARTIAL_SUFFIX, FolderItem, read_sent_items
from skyward_core.protocol.node_paths import STATE_FILE
from skyward_core.protocol.validators import is_relative_subpath
from skyward_core.runtime.instance_info_and_attempt import CHECKPOINTS

if TYPE_CHECKING:
    from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
    from skyward_core.node.agent.frame_connection import Connection
    from skyward_core.protocol import frame_types as frames


PIECE = 1 << 19  # bytes that are read from a file at once


def file_version(found: os.stat_result) -> str:
    """Return a string that changes whenever the file changes."""
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

    def read_chunks(self, at: int, *, hashes: bool = True) -> Iterator[bytes]:
        """Yield the file's content from an offset on, always up to the size at opening.

        Reads instead of mapping the file, because truncating a mapped file would crash the reader. Afterwards
        ``sha256`` is the hash of the whole file, unless ``hashes`` is false.

        Raises:
            OSError: If the file cannot be read.
        """
        digest, place = hashlib.sha256(), 0
        while place < self.size:
            data = os.pread(self._file, min(PIECE, self.size - place), place)
            # Send zeros for bytes missing from a truncated file. check_unchanged() then reports the change to the
            # receiver.
            data = data or bytes(min(PIECE, self.size - place))
            if hashes:
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
    parent, name = _open_parent(folder, path)
    try:
        # O_NONBLOCK, because opening a named pipe would otherwise wait for a writer
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)


def _open_parent(folder: str, path: str, *, creates: bool = False) -> tuple[int, str]:
    """Return a descriptor of a path's folder, and the path's name. Follow no links.

    ``creates``: whether to create missing folders.
    """
    *way, name = path.split("/")
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in way:
            if creates:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
    except BaseException:
        os.close(at)
        raise
    return at, name


MAX_SCANNED_FILES = 1_000_000  # maximum number of scanned files and folders, because scanning more takes too long
MAX_LISTED_FILES = 10_000  # maximum number of files in one answer to a client
MAX_LISTED_CHARS = 4 << 20  # maximum total characters of the paths in one answer to a client
MTIME_TOLERANCE = 0.01  # seconds by which a file's modification time may lag behind the system clock


class UnknownRun(OSError):
    """The node had no call of this run, or has forgotten it."""


class OutputFileHandler:
    """Handlers of clients' requests for files that ranks wrote. Disks may be slow or remote, so threads access them."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    async def list_files(self, connection: Connection, header: frames.ClientWritten) -> None:
        """Answer a client with the list of files that ranks wrote and that match its patterns."""
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

    def _time_range(self, header: frames.ClientWritten) -> tuple[float, float]:
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

    async def restore_file(self, connection: Connection, header: frames.ClientRestore) -> None:
        """Restore a file in the working folder from a blob. Ranks continue from files of an earlier attempt."""
        config = self._state.config
        answer: dict[str, Any]
        try:
            blob = config.blobs / Path(header["blob"]).name
            given = config.cwd, blob, header["size"], header["path"], header["at"]
            more = {"instead": header.get("instead", ""), "outdated": header.get("outdated", ())}
            answer = {"written": await run_in_thread(restore_file, *given, **more)}
        except OSError as error:
            answer = {"error": error.strerror or str(error)}
        connection.send({"t": "known", "id": header["id"]} | answer)

    async def clear(self, connection: Connection, header: frames.ClientClear) -> None:
        """Delete this node's checkpoints of ended runs, because the client has downloaded these checkpoints."""
        await run_in_thread(clear_checkpoints, self._state.config.cwd, header["folders"], header["files"])
        connection.send({"t": "known", "id": header["id"]})

    async def send_file(self, connection: Connection, header: frames.ClientOutput) -> None:
        """Send the content of one file to a client."""
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


# name of the list of restored files beside the working folder, which maps paths to versions
RESTORED_SUFFIX = ".restored.json"
_restoring = threading.Lock()  # lock for reading and changing this list


def restore_file(
    folder: str, blob: Path, size: int, path: str, at: float, instead: str = "", outdated: Sequence[str] = ()
) -> bool:
    """Move a blob to a path in the working folder. Readers see either the old or the new content.

    Replaces a file that an earlier call of this function wrote, but not a file that ranks have written or changed.

    Args:
        folder: The ranks' working folder.
        blob: The blob.
        size: Size of the blob in bytes.
        path: Path relative to the folder.
        at: Unix time to set as the modification time of the file.
        instead: Version of a file that is replaced although ranks wrote it.
        outdated: Files that earlier calls of this function wrote. They are deleted unless ranks have changed them.

    Returns:
        Whether the file was written.

    Raises:
        OSError: If the blob is incomplete, the path leads through a link or out of the folder, or the disk is full.
    """
    if not Path(f"{folder}.json").exists() or not is_relative_subpath(path):
        raise OSError(f"{path!r:.80} is not a path in a copied working folder")
    with _restoring:
        return _restore_file(folder, blob, size, path, at, instead, outdated)


def _restore_file(
    folder: str, blob: Path, size: int, path: str, at: float, instead: str, outdated: Sequence[str]
) -> bool:
    listing = Path(f"{folder}{RESTORED_SUFFIX}")
    restored = _read_restored(folder)
    if not blob.exists() and os.path.lexists(f"{folder}/{path}"):
        stored = os.lstat(f"{folder}/{path}")
        if file_version(stored) == restored.get(path) and abs(stored.st_mtime - at) < MTIME_TOLERANCE:
            return True  # Another client has already restored the file.
    if blob.stat().st_size != size:
        raise OSError(f"the blob has {blob.stat().st_size:,} of {size:,} bytes")
    parent, name = _open_parent(folder, path, creates=True)
    draft = f"{name}{PARTIAL_SUFFIX}"
    try:
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if file_version(found) not in (restored.get(path), instead):
                return False
        except FileNotFoundError:
            pass
        with suppress(FileNotFoundError):
            # Remove a file that a killed agent left, or a link or pipe that a rank created under this name.
            os.unlink(draft, dir_fd=parent)
        try:
            os.rename(blob, draft, dst_dir_fd=parent)
        except OSError:  # The blob is on another file system, so it is copied instead of renamed.
            target = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=parent)
            with open(blob, "rb") as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy, PIECE)
        # O_NONBLOCK and O_NOFOLLOW, because a rank may have replaced the file by a named pipe or a link.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(draft, flags, dir_fd=parent), "rb") as copy:
            os.fchmod(copy.fileno(), 0o644)
            os.utime(copy.fileno(), (at, at))
            os.fsync(copy.fileno())
            version = file_version(os.fstat(copy.fileno()))
        # Save the list before the file is moved: a listed file that does not exist is restored again at the next try.
        for each in outdated:
            _remove_restored(folder, each, restored.pop(each, ""))
        partial = Path(f"{listing}.part")
        partial.write_text(json.dumps(restored | {path: version}), encoding="utf-8")
        partial.replace(listing)
        os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        with suppress(OSError):  # The draft no longer exists if it was renamed to the final name.
            os.unlink(draft, dir_fd=parent)
        os.close(parent)
    return True


def clear_checkpoints(folder: str, parents: Sequence[str], files: Sequence[frames.ClearedKeys] = ()) -> None:
    """Delete files in the checkpoint folders of ended runs, and then empty folders. Keep files that have changed.

    Args:
        folder: The ranks' working folder.
        parents: The checkpoint folders, relative to the working folder.
        files: Files to delete. A file of the ranks has a version; a file that ``restore_file`` wrote has none.
    """
    restored = _read_restored(folder)
    for file in files:
        if "/".join(file["path"].split("/", 2)[:2]) in parents:
            _remove_restored(folder, file["path"], file.get("version") or restored.get(file["path"], ""))
    for parent in parents:
        for place, _, _ in os.walk(f"{folder}/{parent}", topdown=False):
            with suppress(OSError):  # rmdir() fails for folders that contain files, which remain.
                Path(place).rmdir()
        with suppress(OSError):
            Path(folder, parent).parent.rmdir()


def _remove_restored(folder: str, path: str, version: str) -> None:
    """Delete a file if it still has the given version, and then its empty folders. Does not follow links."""
    remove = os.unlink
    with suppress(OSError):
        while path:
            parent, name = _open_parent(folder, path)
            try:
                if remove is os.rmdir or file_version(os.stat(name, dir_fd=parent, follow_symlinks=False)) == version:
                    remove(name, dir_fd=parent)
            finally:
                os.close(parent)
            path, remove = path.rpartition("/")[0], os.rmdir


def _read_restored(folder: str) -> dict[str, str]:
    """Return the versions of the files that ``restore_file`` wrote, by path.

    If the saved list is damaged, for example after a power cut, all files count as written by ranks: no file is
    deleted.
    """
    restored: object = None
    with suppress(FileNotFoundError, ValueError, RecursionError):
        restored = json.loads(Path(f"{folder}{RESTORED_SUFFIX}").read_bytes())
    return restored if isinstance(restored, dict) else {}


def find_written_files(
    folder: str, patterns: Sequence[str], since: float, until: float, after: str = ""
) -> tuple[list[frames.WrittenKeys], int]:
    """Find files of the working folder that changed in a time range and differ from the client's upload.

    Uses the inode change time, which programs cannot set, so that a copy with preserved modification times counts as
    new. Excludes files of other pools.

    Args:
        folder: The ranks' working folder.
        patterns: Patterns from ``model.output_files.pattern``.
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
    walk = FolderWalk(folder, read_sent_items(listing), _read_restored(folder), patterns)
    changed = (each for each in walk.files() if since <= each[1].st_ctime <= until)
    number = 0

    def counted() -> Iterator[tuple[str, os.stat_result]]:
        nonlocal number
        for path, status in changed:
            if path > after:
                number += 1
                yield path, status

    found: list[frames.WrittenKeys] = []
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


class FolderWalk:
    """Breadth-first walk through a working folder, limited in its number of files.

    Attributes:
        left: Folders that were not scanned because the limit was reached.
    """

    def __init__(
        self, folder: str, known: dict[str, FolderItem], restored: dict[str, str], patterns: Sequence[str]
    ) -> None:
        self._folder = folder
        self._known = known
        self._restored = restored
        self._patterns = patterns
        self.left = deque([""])

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield matching files that ranks wrote: they differ from the upload and from restored files. Skip links."""
        scanned = 0
        while self.left and scanned < MAX_SCANNED_FILES:
            folder = self.left[0]
            try:
                with os.scandir(f"{self._folder}/{folder}") as entries:
                    for scanned, entry in enumerate(entries, scanned + 1):  # noqa: B020
                        if scanned > MAX_SCANNED_FILES:
                            return  # Keep the folder in the list, because it was scanned only in part.
                        yield from self._visit(folder + entry.name, entry)
            except OSError:
                if not folder:
                    raise
                # Skip a folder that was deleted after it was listed, or is not readable.
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
                return  # The file was deleted after its folder was listed.
            item = self._known.get(path)
            as_sent = item is not None and (item.size, item.mtime) == (status.st_size, status.st_mtime_ns)
            if not as_sent and self._restored.get(path) != file_version(status):
                yield path, status


def list_checkpoints(folder: str, names: Collection[str]) -> list[frames.SavedKeys]:
    """List the files in folders for checkpoints, including the copies that ``restore_file`` wrote.

    Args:
        folder: The ranks' working folder.
        names: Names of the folders of ``sky.checkpoint_dir()``.
    """
    found: list[frames.SavedKeys] = []
    restored = _read_restored(folder)
    for name in filter(None, names):
        with suppress(OSError):  # ranks of this node need not save checkpoints
            for inner, status in FolderWalk(f"{folder}/{CHECKPOINTS}/{name}", {}, {}, ()).files():
                path, version = f"{CHECKPOINTS}/{name}/{inner}", file_version(status)
                size, at, is_copy = status.st_size, status.st_mtime, restored.get(path) == version
                found.append({"path": path, "version": version, "size": size, "at": at, "copy": is_copy})
    return found


def find_missing_checkpoints(
    listed: Mapping[int, Sequence[frames.SavedKeys]],
) -> dict[int, list[frames.SavedKeys]]:
    """Return the checkpoint files that each node lacks, as listed by a node that has the newest version.

    A node also lacks a file if it has a copy of an older version, but not if its own ranks wrote the older version.

    Args:
        listed: Node -> its files.
    """
    newest: dict[str, frames.SavedKeys] = {}
    for file in chain.from_iterable(listed.values()):
        newest[file["path"]] = max(newest.get(file["path"], file), file, key=lambda each: each["at"])
    missing: dict[int, list[frames.SavedKeys]] = {}
    for node, files in listed.items():
        times = {file["path"]: file["at"] if file["copy"] else float("inf") for file in files}
        lacking = [file for path, file in newest.items() if times.get(path, 0.0) < file["at"] - MTIME_TOLERANCE]
        missing |= {node: lacking} if lacking else {}
    return missing


def remove_compiled(folder: str, modules: Mapping[str, str]) -> None:
    """Remove bytecode that was compiled before its source file changed.

    Compares the inode change times, which this machine's clock sets. Modification times may come from the client.

    Args:
        folder: Folder of relative names.
        modules: Source file -> its hash when it was loaded; "" if unknown, in which case the bytecode is always
            removed.
    """
    for name, loaded in modules.items():
        source = Path(folder, name)
        compiled = Path(cache_from_source(source))
        try:
            if not loaded or compiled.stat().st_mtime_ns <= source.stat().st_ctime_ns:
                compiled.unlink()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            continue  # The folder belongs to another user, so the ranks cannot have written bytecode there.
