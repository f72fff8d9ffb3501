"""The node's half of the working folder's way; the client's is
:mod:`skyward_core.transport.working_folder_upload`. Standard library only, and little of it: it is loaded on every
start of a pool."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

PIECE = struct.Struct("!I")
VANISHED = (1 << 32) - 1
PARTIAL_SUFFIX = ".skyward-part"  # ends the name of a file that is on its way
RANK_COPY_SUFFIX = ".of-ranks"  # of one that ranks wrote, and that had to make way for what the client has
MTIME_RESOLUTIONS = (
    1,
    100,
    10**3,
    10**6,
    10**9,
    2 * 10**9,
)  # nanoseconds that file systems' times are counted in


class ByteSource(Protocol):
    """What bytes can be read from."""

    def read(self, size: int, /) -> bytes: ...


class FolderItem(NamedTuple):
    """One file of the folder: path below it, size in bytes, time of change in ns, mode, target of a link."""

    path: str
    size: int
    mtime: int
    mode: int
    link: str = ""


def file_hash(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _is_as_sent(path: str, found: os.stat_result, item: FolderItem | None) -> bool:
    """Whether what lies at a path is what was sent: by the time that it was given then, as far as file systems keep
    one. A release before this one wrote none down."""
    if item is None or item.link:
        return item is not None and stat.S_ISLNK(found.st_mode) and os.readlink(path) == item.link  # noqa: PTH115
    if not stat.S_ISREG(found.st_mode):
        return False
    return item.size < 0 or any(item.mtime - item.mtime % tick == found.st_mtime_ns for tick in MTIME_RESOLUTIONS)


def to_json(items: Iterable[FolderItem]) -> bytes:
    rows: list[list[Any]] = [[i.path, i.size, i.mtime, i.mode, i.link] for i in items]
    return json.dumps(rows).encode()


def from_json(data: bytes) -> list[FolderItem]:
    return [FolderItem(*row) for row in json.loads(data)]


def read_sent_items(listing: Path) -> dict[str, FolderItem]:
    """The files that were sent to a copy last, by path, as its list beside it tells; none where nothing was sent.

    A release before this one wrote paths alone: their sizes are none that a file has.
    """
    if not listing.exists():
        return {}
    rows = json.loads(listing.read_bytes())
    items = [FolderItem(row, -1, 0, 0) if isinstance(row, str) else FolderItem(*row) for row in rows]
    return {item.path: item for item in items}


class DecompressedSource:
    """The plain bytes of a compressed source."""

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
    """The next file's pieces; a single None for one that has vanished."""
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
            raise ValueError("the files' contents end too early")
        data += more
    return data


class FolderCopy:
    """The folder's copy on a node, held by one client at a time.

    What ranks wrote there since it was sent is theirs, and nothing of it is lost: as long as the client has not changed
    its file, theirs stays; where it has, theirs is kept beside it.

    Args:
        say: takes lines that tell of that, and of what is waited for.
    """

    def __init__(self, root: Path, name: str, say: Callable[[str], None]) -> None:
        self.folder = root / "work" / name
        self.list_path = root / "work" / f"{name}.json"
        self._report = say
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = (root / "work" / f"{name}.lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another client is sending the same folder; waiting for it")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        # What a client that was killed had half sent is no rank's either.
        self._sent = [read_sent_items(self.list_path), read_sent_items(self._partial_list)]

    @property
    def _partial_list(self) -> Path:
        """The list while what it says is being written."""
        return self.list_path.with_suffix(".part")

    def compare(self, items: Iterable[FolderItem]) -> tuple[list[int], dict[int, str]]:
        """Indexes of the items that are wanted, and the hashes of those that differ in time only."""
        wanted: list[int] = []
        doubtful: dict[int, str] = {}
        base, (before, _) = str(self.folder), self._sent
        for index, item in enumerate(items):
            path = f"{base}/{item.path}"
            try:
                found = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                wanted.append(index)
                continue
            if before.get(item.path) == item and self._is_written_by_ranks(item.path, found):
                continue  # nobody has changed it but them
            if item.link:
                if not (stat.S_ISLNK(found.st_mode) and os.readlink(path) == item.link):  # noqa: PTH115
                    wanted.append(index)
            elif not stat.S_ISREG(found.st_mode) or found.st_size != item.size:
                wanted.append(index)
            elif found.st_mtime_ns != item.mtime:
                doubtful[index] = file_hash(Path(path))
        return wanted, doubtful

    def is_same_listing(self, items: Iterable[FolderItem]) -> bool:
        """Whether these are the very files that were sent last."""
        return self.list_path.exists() and self._sent[0] == {item.path: item for item in items}

    def apply(
        self, items: Sequence[FolderItem], same: Iterable[int], wanted: Iterable[int], contents: ByteSource
    ) -> None:
        """Make the copy like the items: write what was wanted, take over times, remove what is no longer there, and
        what the contents say has vanished.

        Args:
            same: indexes of items whose time alone differs.
            wanted: indexes of items to write; their ``contents`` come in this order, as
                :func:`skyward_core.transport.working_folder_upload.pack` has it.

        Raises:
            ValueError: a path would leave the folder, or the contents end too early.
        """
        self._partial_list.write_bytes(to_json(sorted(items)))
        now = {item.path for item in items}
        for path in self._sent[0].keys() - now:
            self._remove(path)
        for index in wanted:
            self._write(items[index], contents)
        for index in same:
            os.utime(self.folder / items[index].path, ns=(items[index].mtime, items[index].mtime))
        self._partial_list.replace(self.list_path)

    def _remove(self, path: str) -> None:
        """Remove a file that the client has no more, unless ranks have made something else of it."""
        gone = self.folder / path
        if any((self.folder / above).is_symlink() for above in list(PurePosixPath(path).parents)[:-1]):
            return  # what lies behind a link of theirs was never sent
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = gone.lstat()
            if not stat.S_ISDIR(found.st_mode) and not self._is_written_by_ranks(path, found):
                gone.unlink()

    def _is_written_by_ranks(self, path: str, found: os.stat_result) -> bool:
        """Whether ranks have written there since something was sent; what is empty is nobody's loss."""
        if not self.list_path.exists() or (stat.S_ISREG(found.st_mode) and not found.st_size):
            return False
        return not any(_is_as_sent(f"{self.folder}/{path}", found, each.get(path)) for each in self._sent)

    def _write(self, item: FolderItem, contents: ByteSource) -> None:
        path = self.folder / item.path
        if ".." in PurePosixPath(item.path).parts or item.path.startswith("/"):
            raise ValueError(f"{item.path!r} would leave the working folder")
        self._make_parents(path)
        partial = path.with_name(path.name + PARTIAL_SUFFIX)
        if item.link:
            partial.unlink(missing_ok=True)
            partial.symlink_to(item.link)
            self._replace_file(partial, path)
            return
        with partial.open("wb") as file:
            there = True
            for piece in _read_pieces(contents):
                there = piece is not None
                file.write(piece or b"")
        if not there:
            partial.unlink()
            self._remove(item.path)  # what was sent before is no more what the client has
            return
        partial.chmod(item.mode | 0o600)
        os.utime(partial, ns=(item.mtime, item.mtime))
        self._replace_file(partial, path)

    def _replace_file(self, partial: Path, path: Path) -> None:
        """Give a file its name; what ranks wrote by that name gets another."""
        self._set_aside(path)
        partial.replace(path)

    def _make_parents(self, path: Path) -> None:
        """Folders that the path needs; a file where a folder shall be, and the reverse, give way."""
        for parent in reversed(path.relative_to(self.folder).parents):
            at = self.folder / parent
            if at.is_symlink() or (at.exists() and not at.is_dir()):
                self._set_aside(at)
                at.unlink(missing_ok=True)
            at.mkdir(exist_ok=True)

    def _set_aside(self, path: Path) -> None:
        """Have what ranks wrote at a place, and folders, make way."""
        name = path.relative_to(self.folder).as_posix()
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISDIR(found.st_mode):
            if not any(files for _, _, files in os.walk(path)):
                import shutil

                shutil.rmtree(path)
                return
        elif not self._is_written_by_ranks(name, found):
            return
        names = (f"{path.name}{RANK_COPY_SUFFIX}{f'-{number}' if number > 1 else ''}" for number in itertools.count(1))
        kept = next(aside for each in names if not os.path.lexists(aside := path.with_name(each)))
        path.rename(kept)
        self._report(f"{name} was changed by you and by ranks: what they wrote is kept there as {kept.name}")

    def close(self) -> None:
        self.lock.close()
