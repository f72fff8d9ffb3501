"""Receiver of the client's working folder on a node.

The sender is :mod:`skyward_core.transport.working_folder_upload`. Every start of a pool loads this module, so it
imports little.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import stat
import struct
import zlib
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

PIECE = struct.Struct("!I")
VANISHED = (1 << 32) - 1
PARTIAL_SUFFIX = ".skyward-part"  # suffix of files whose upload is incomplete
RANK_COPY_SUFFIX = ".of-ranks"  # suffix of the ranks' version of a file that the client's version replaces
MAX_NAME = 255  # maximum bytes of a file name
# possible resolutions of file systems' timestamps in nanoseconds
MTIME_RESOLUTIONS = (1, 100, 10**3, 10**6, 10**9, 2 * 10**9)


class ByteSource(Protocol):
    """Source of bytes, such as an open file."""

    def read(self, size: int, /) -> bytes: ...


class FolderItem(namedtuple("FolderItem", "path size mtime mode link", defaults=("",))):
    """One file of the folder: relative path, size in bytes, modification time in ns, mode, target of a link."""

    # Not a NamedTuple, because only it would make hosts import `typing`, which takes 3 ms of each start.
    __slots__ = ()

    path: str
    size: int
    mtime: int
    mode: int
    link: str


def file_hash(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _is_as_sent(path: str, status: os.stat_result, item: FolderItem | None) -> bool:
    """Check whether a file of the copy is the one that the client uploaded.

    Compares modification times at the file system's resolution. If an older release recorded the upload, the list has
    no modification times and ``size`` is negative.
    """
    if item is None or item.link:
        return item is not None and stat.S_ISLNK(status.st_mode) and os.readlink(path) == item.link  # noqa: PTH115
    if not stat.S_ISREG(status.st_mode):
        return False
    return item.size < 0 or any(item.mtime - item.mtime % tick == status.st_mtime_ns for tick in MTIME_RESOLUTIONS)


def to_json(items: Iterable[FolderItem]) -> bytes:
    rows: list[list[Any]] = [[i.path, i.size, i.mtime, i.mode, i.link] for i in items]
    return json.dumps(rows).encode()


def from_json(data: bytes) -> list[FolderItem]:
    return [FolderItem(*row) for row in json.loads(data)]


def read_sent_items(listing: Path) -> dict[str, FolderItem]:
    """Return the files of the latest upload, by path, from the list beside the copy.

    Entries of older releases contain only a path. They get the size -1.
    """
    if not listing.exists():
        return {}
    rows = json.loads(listing.read_bytes())
    items = [FolderItem(row, -1, 0, 0) if isinstance(row, str) else FolderItem(*row) for row in rows]
    return {item.path: item for item in items}


class DecompressedSource:
    """Source of bytes that decompresses another source."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._inflate = zlib.decompressobj()
        self._ready = bytearray()

    def read(self, size: int, /) -> bytes:
        while len(self._ready) < size and (data := self._source.read(1 << 18)):
            self._ready += self._inflate.decompress(data)
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data


def _read_pieces(contents: ByteSource) -> Iterator[bytes | None]:
    """Yield the content of the next file in chunks, or a single None if the client could not read the file."""
    while size := PIECE.unpack(_read_exactly(contents, PIECE.size))[0]:
        if size == VANISHED:
            yield None
            return
        yield _read_exactly(contents, size)


def _read_exactly(contents: ByteSource, size: int) -> bytes:
    data = contents.read(size)
    while len(data) < size:
        more = contents.read(size - len(data))
        if not more:
            raise ValueError("the file contents are incomplete")
        data += more
    return data


def _beside(path: Path, suffix: str) -> Path:
    """Return a path in the same folder with a suffix. Shorten the name if file systems would reject it."""
    return path.with_name(os.fsdecode(os.fsencode(path.name)[: MAX_NAME - len(suffix)]) + suffix)


class FolderCopy:
    """A node's copy of the client's folder, locked by one client at a time.

    Files that ranks wrote since the upload are never lost. If the client has changed the same file, the ranks' version
    is renamed. Otherwise it stays in place.

    Args:
        root: Folder of skyward on the node.
        name: Name of the copy.
        report: Called with messages for the user.
    """

    def __init__(self, root: Path, name: str, report: Callable[[str], None]) -> None:
        self.folder = root / "work" / name
        self.list_path = root / "work" / f"{name}.json"
        self._report = report
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = (root / "work" / f"{name}.lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another client that is uploading the same folder")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        # Items of an interrupted upload also count as sent by the client, not as written by ranks.
        self._sent = [read_sent_items(self.list_path), read_sent_items(self._partial_list)]

    @property
    def _partial_list(self) -> Path:
        """Path of the list of files that the upload in progress has sent."""
        return self.list_path.with_suffix(".part")

    def compare(self, items: Iterable[FolderItem]) -> tuple[list[int], dict[int, str]]:
        """Return the indices of items to upload, and the hashes of files that differ only in modification time."""
        requested: list[int] = []
        doubtful: dict[int, str] = {}
        base, (before, _) = str(self.folder), self._sent
        for index, item in enumerate(items):
            path = f"{base}/{item.path}"
            try:
                status = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                requested.append(index)
                continue
            if before.get(item.path) == item and self._is_written_by_ranks(item.path, status):
                continue  # Keep the rank's version of a file that the client has not changed.
            if item.link:
                if not (stat.S_ISLNK(status.st_mode) and os.readlink(path) == item.link):  # noqa: PTH115
                    requested.append(index)
            elif not stat.S_ISREG(status.st_mode) or status.st_size != item.size:
                requested.append(index)
            elif status.st_mtime_ns != item.mtime:
                doubtful[index] = file_hash(Path(path))
        return requested, doubtful

    def is_same_listing(self, items: Iterable[FolderItem]) -> bool:
        """Check whether the client's files equal those of the latest upload."""
        return self.list_path.exists() and self._sent[0] == {item.path: item for item in items}

    def apply(
        self, items: Sequence[FolderItem], same: Iterable[int], requested: Iterable[int], contents: ByteSource
    ) -> None:
        """Update the copy: write uploaded files, set times, delete files that the client no longer has.

        Args:
            items: All items of the client's folder.
            same: Indices of items that differ only in their modification time.
            requested: Indices of items to write, in the order of ``contents``.
            contents: File contents in the format of :func:`skyward_core.transport.working_folder_upload.pack`.

        Raises:
            ValueError: If a path leaves the folder or the contents are incomplete.
        """
        self._partial_list.write_bytes(to_json(sorted(items)))
        for path in self._sent[0].keys() - {item.path for item in items}:
            self._remove(path)
        for index in requested:
            self._write(items[index], contents)
        for index in same:
            os.utime(self.folder / items[index].path, ns=(items[index].mtime, items[index].mtime))
        self._partial_list.replace(self.list_path)

    def _remove(self, path: str) -> None:
        """Delete a file that the client no longer has, unless ranks have changed it."""
        target = self.folder / path
        if any((self.folder / above).is_symlink() for above in list(PurePosixPath(path).parents)[:-1]):
            # Ranks replaced a parent folder by a link. The file behind the link was never uploaded, so it must not be
            # deleted.
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = target.lstat()
            if not stat.S_ISDIR(status.st_mode) and not self._is_written_by_ranks(path, status):
                target.unlink()

    def _is_written_by_ranks(self, path: str, status: os.stat_result) -> bool:
        """Check whether ranks wrote a file since the upload. Empty files do not count."""
        if not self.list_path.exists() or (stat.S_ISREG(status.st_mode) and not status.st_size):
            return False
        return not any(_is_as_sent(f"{self.folder}/{path}", status, each.get(path)) for each in self._sent)

    def _write(self, item: FolderItem, contents: ByteSource) -> None:
        path = self.folder / item.path
        if ".." in PurePosixPath(item.path).parts or item.path.startswith("/"):
            raise ValueError(f"{item.path!r} is outside the working folder")
        self._make_parents(path)
        partial = _beside(path, PARTIAL_SUFFIX)
        if item.link:
            partial.unlink(missing_ok=True)
            partial.symlink_to(item.link)
            self._replace_file(partial, path)
            return
        with partial.open("wb") as file:
            exists = True
            for piece in _read_pieces(contents):
                exists = piece is not None
                file.write(piece or b"")
        if not exists:
            partial.unlink()
            # The client can no longer read the file, so delete the version that was uploaded before.
            self._remove(item.path)
            return
        partial.chmod(item.mode | 0o600)
        os.utime(partial, ns=(item.mtime, item.mtime))
        self._replace_file(partial, path)

    def _replace_file(self, partial: Path, path: Path) -> None:
        """Move an uploaded file to its path. Rename a file that ranks wrote there."""
        self._set_aside(path)
        partial.replace(path)

    def _make_parents(self, path: Path) -> None:
        """Create the parent folders of a path. Rename or delete files that have a folder's name."""
        for parent in reversed(path.relative_to(self.folder).parents):
            at = self.folder / parent
            if at.is_symlink() or (at.exists() and not at.is_dir()):
                self._set_aside(at)
                at.unlink(missing_ok=True)
            at.mkdir(exist_ok=True)

    def _set_aside(self, path: Path) -> None:
        """Free a path for an uploaded file: rename a file written by ranks, and delete an empty folder."""
        name = path.relative_to(self.folder).as_posix()
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISDIR(status.st_mode):
            if not any(files for _, _, files in os.walk(path)):
                import shutil

                shutil.rmtree(path)
                return
        elif not self._is_written_by_ranks(name, status):
            return
        suffixes = (f"{RANK_COPY_SUFFIX}{f'-{number}' if number > 1 else ''}" for number in itertools.count(1))
        aside = next(candidate for each in suffixes if not os.path.lexists(candidate := _beside(path, each)))
        path.rename(aside)
        self._report(f"{name} was changed by you and by ranks: the ranks' version was renamed to {aside.name}")

    def close(self) -> None:
        self.lock.close()
