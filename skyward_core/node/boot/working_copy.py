"""The node's half of the working folder's way; the client's is
:mod:`skyward_core.transport.upload.working_folder`. Standard library only, and little of it: it is loaded on every
start of a pool."""

from __future__ import annotations

import fcntl
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
PART = ".skyward-part"  # ends the name of a file that is on its way


class Source(Protocol):
    """What bytes can be read from."""

    def read(self, size: int, /) -> bytes: ...


class Item(NamedTuple):
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


def to_json(items: Iterable[Item]) -> bytes:
    rows: list[list[Any]] = [[i.path, i.size, i.mtime, i.mode, i.link] for i in items]
    return json.dumps(rows).encode()


def from_json(data: bytes) -> list[Item]:
    return [Item(*row) for row in json.loads(data)]


def sent(listing: Path) -> dict[str, Item]:
    """The files that were sent to a copy last, by path, as its list beside it tells; none where nothing was sent.

    A release before this one wrote paths alone: their sizes are none that a file has.
    """
    if not listing.exists():
        return {}
    rows = json.loads(listing.read_bytes())
    items = [Item(row, -1, 0, 0) if isinstance(row, str) else Item(*row) for row in rows]
    return {item.path: item for item in items}


class Unzipped:
    """The plain bytes of a compressed source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._inflate = zlib.decompressobj()
        self._ready = bytearray()

    def read(self, size: int, /) -> bytes:
        while len(self._ready) < size and (data := self._source.read(1 << 18)):
            self._ready += self._inflate.decompress(data)
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data


def _pieces(contents: Source) -> Iterator[bytes | None]:
    """The next file's pieces; a single None for one that has vanished."""
    while size := PIECE.unpack(_exactly(contents, PIECE.size))[0]:
        if size == VANISHED:
            yield None
            return
        yield _exactly(contents, size)


def _exactly(contents: Source, size: int) -> bytes:
    data = contents.read(size)
    while len(data) < size:
        more = contents.read(size - len(data))
        if not more:
            raise ValueError("the files' contents end too early")
        data += more
    return data


class Copy:
    """The folder's copy on a node, held by one client at a time."""

    def __init__(self, root: Path, name: str, waiting: Callable[[str], None]) -> None:
        self.folder = root / "work" / name
        self.list = root / "work" / f"{name}.json"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = (root / "work" / f"{name}.lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting("another client is sending the same folder; waiting for it")
            fcntl.flock(self.lock, fcntl.LOCK_EX)

    def compare(self, items: Iterable[Item]) -> tuple[list[int], dict[int, str]]:
        """Indexes of the items that are wanted, and the hashes of those that differ in time only."""
        wanted: list[int] = []
        doubtful: dict[int, str] = {}
        base = str(self.folder)
        for index, item in enumerate(items):
            path = f"{base}/{item.path}"
            try:
                found = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                wanted.append(index)
                continue
            if item.link:
                if not (stat.S_ISLNK(found.st_mode) and os.readlink(path) == item.link):  # noqa: PTH115
                    wanted.append(index)
            elif not stat.S_ISREG(found.st_mode) or found.st_size != item.size:
                wanted.append(index)
            elif found.st_mtime_ns != item.mtime:
                doubtful[index] = file_hash(Path(path))
        return wanted, doubtful

    def lists(self, items: Iterable[Item]) -> bool:
        """Whether these are the very files that were sent last."""
        return self.list.exists() and sent(self.list) == {item.path: item for item in items}

    def apply(
        self, items: Sequence[Item], same: Iterable[int], wanted: Iterable[int], contents: Source
    ) -> None:
        """Make the copy like the items: write what was wanted, take over times, remove what is no longer there, and
        what the contents say has vanished.

        Args:
            same: indexes of items whose time alone differs.
            wanted: indexes of items to write; their ``contents`` come in this order, as
                :func:`skyward_core.transport.upload.working_folder.pack` has it.

        Raises:
            ValueError: a path would leave the folder, or the contents end too early.
        """
        now = {item.path for item in items}
        for path in sent(self.list):
            gone = self.folder / path
            if path not in now and (gone.is_symlink() or gone.is_file()):
                gone.unlink()
        for index in wanted:
            self._write(items[index], contents)
        for index in same:
            os.utime(self.folder / items[index].path, ns=(items[index].mtime, items[index].mtime))
        partial = self.list.with_suffix(".part")
        partial.write_bytes(to_json(sorted(items)))
        partial.replace(self.list)

    def _write(self, item: Item, contents: Source) -> None:
        path = self.folder / item.path
        if ".." in PurePosixPath(item.path).parts or item.path.startswith("/"):
            raise ValueError(f"{item.path!r} would leave the working folder")
        self._make_room(path)
        partial = path.with_name(path.name + PART)
        if item.link:
            partial.unlink(missing_ok=True)
            partial.symlink_to(item.link)
            partial.replace(path)
            return
        with partial.open("wb") as file:
            there = True
            for piece in _pieces(contents):
                there = piece is not None
                file.write(piece or b"")
        if not there:
            partial.unlink()
            path.unlink(missing_ok=True)  # what was sent before is no more what the client has
            return
        partial.chmod(item.mode | 0o600)
        os.utime(partial, ns=(item.mtime, item.mtime))
        partial.replace(path)

    def _make_room(self, path: Path) -> None:
        """Folders that the path needs; a file where a folder shall be, and the reverse, give way."""
        for parent in reversed(path.relative_to(self.folder).parents):
            at = self.folder / parent
            if at.is_symlink() or (at.exists() and not at.is_dir()):
                at.unlink()
            at.mkdir(exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            import shutil

            shutil.rmtree(path)

    def close(self) -> None:
        self.lock.close()
