"""Files and results received from agents; an interrupted download of a file resumes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import stat
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from skyward_core.protocol.tls_stream import CHUNK_BYTES

PARTS = ".skyward-parts"  # the folder for them, beside what has come: to rename is no copy there
PIECE = 1 << 20


class DownloadInProgress(OSError):
    """Another process is just fetching the same file.

    Attributes:
        at: how many bytes that one has.
    """

    def __init__(self, at: int) -> None:
        super().__init__("another process is fetching it now")
        self.at = at


class IncomingOutput:
    """See the module. What an earlier attempt has left of the same file is gone on with.

    Args:
        folder: what is fetched goes below it.
        name: tells the file from all others that go there.
        size: of it all, in bytes.
        version: of it, as its node tells.

    Attributes:
        at: how many bytes have come.
        sha256: of the whole file, as its node tells once all has come; "" before.

    Raises:
        OnItsWay: another process fetches it now.
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, name: str, size: int, version: str) -> None:
        self.size = size
        self.version = version
        self.sha256 = ""
        self._parts = folder / PARTS
        self._path = self._parts / f"{_hash(name)}.{_hash(version)}"
        self._file = self._open()
        try:
            self._lock()
            self._resume()
        except BaseException:
            self._close_file()
            raise

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            # Whoever is done takes the folder away where it is empty, and may do so just now.
            with suppress(FileNotFoundError):
                try:
                    self._parts.mkdir(parents=True, mode=0o700)
                except FileExistsError:
                    check_folder_owner(self._parts)
                    if not stat.S_ISDIR(self._parts.lstat().st_mode):
                        raise
                return os.open(self._path, flags, 0o666)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it locked when we opened it may have put it in its place since.
            if os.path.samestat(os.fstat(self._file), self._path.stat()):
                return
        except (BlockingIOError, FileNotFoundError):
            pass
        raise DownloadInProgress(os.fstat(self._file).st_size)

    def _resume(self) -> None:
        """Take up what is there, which was written in order; what is there of an earlier state nobody goes on with."""
        for other in self._parts.glob(f"{self._path.stem}.*"):
            if other != self._path:
                other.unlink(missing_ok=True)
        self._digest = hashlib.sha256()
        self.at = os.fstat(self._file).st_size
        if self.at > self.size:
            self._restart()
        for place in range(0, self.at, PIECE):
            self._digest.update(os.pread(self._file, min(PIECE, self.at - place), place))

    def _restart(self) -> None:
        os.ftruncate(self._file, 0)
        self._digest, self.at = hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises:
            OSError: the disk does not, or more came than it should have.
        """
        if len(data) > self.size - self.at:
            raise OSError(f"more came than the {self.size:,} bytes that it was said to have")
        self._digest.update(data)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, self.at)
            rest, self.at = rest[written:], self.at + written

    def check(self) -> None:
        """See that it is what its node has read.

        Raises:
            OSError: it is not; it begins anew.
        """
        if self.at == self.size and self._digest.hexdigest() == self.sha256:
            return
        self._restart()
        raise OSError("what came is not what was sent: its SHA-256 is another")

    def move_to(self, target: Path, changed_at: float, *, instead: bool) -> None:
        """Give the file, now whole, its name.

        Args:
            changed_at: when ranks last changed it, Unix time.
            instead: whether it takes the place of what is there.

        Raises:
            FileExistsError: there is something, and it does not.
            OSError: it cannot be put there.
        """
        os.utime(self._file, (changed_at, changed_at))
        if instead:
            self._path.replace(target)
            return
        try:
            target.hardlink_to(self._path)
        except FileExistsError:
            raise
        except OSError:  # a file system without such links
            if os.path.lexists(target):
                raise FileExistsError(f"{target} is there") from None
            self._path.replace(target)
        else:
            self._path.unlink()

    def has_same_content(self, target: Path) -> bool:
        """Whether a file holds the same."""
        if not target.is_file() or target.stat().st_size != self.size:
            return False
        with target.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256

    def close(self) -> None:
        """No more comes by this way; another may go on, so it stays open."""

    def drop(self) -> None:
        """Leave nothing of it."""
        self._path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Let others go on with it."""
        self._close_file()
        with suppress(OSError):  # others are on their way
            self._parts.rmdir()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def check_folder_owner(folder: Path) -> None:
    """See that a folder, or a link in its place, is no stranger's where everybody may make one of that name: they could
    change what comes there.

    Raises:
        FileNotFoundError: it is gone.
        OSError: it is theirs.
    """
    found = folder.lstat()
    if found.st_uid not in (0, os.getuid()) and folder.parent.stat().st_mode & stat.S_IWOTH:
        raise OSError(f"{folder} belongs to somebody else, who could change what comes there: choose another folder")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


MIN_BUFFER_SIZE = 1 << 20  # bytes from which a run of them is worth a place of its own

_BUFFER_OPCODES = (pickle.BINBYTES, pickle.BINBYTES8, pickle.BYTEARRAY8)
_LENGTHS = dict.fromkeys((pickle.BINBYTES, pickle.BINUNICODE), 4) | dict.fromkeys(
    (pickle.FRAME, pickle.BINBYTES8, pickle.BYTEARRAY8, pickle.BINUNICODE8), 8
)
# What else stands outside of frames, as the pickler makes none of less than four bytes; and its argument's length.
_SHORT = dict.fromkeys(
    (
        pickle.MEMOIZE, pickle.STOP, pickle.MARK, pickle.POP, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
        pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS,
        pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_SET,
        pickle.ADDITEMS, pickle.FROZENSET, pickle.REDUCE, pickle.BUILD, pickle.NEWOBJ, pickle.STACK_GLOBAL,
    ),
    0,
) | {pickle.PROTO: 1, pickle.BINGET: 1, pickle.BININT1: 1, pickle.BININT2: 2}  # fmt: skip


def _open_private(path: str, flags: int) -> int:
    """Values may be secret: what is made is for nobody else to read."""
    return os.open(path, flags, 0o600)


class ResultDownload:
    """A pickle on its way here: its bytes go, in order, where :meth:`room` says.

    Args:
        path: of the file; what is there already is its beginning, and gone on with.
        size: of it all, in bytes.
        in_place: whether its long runs of bytes are to be in memory from the beginning. For who will load it in any
            case, as soon as it is here; nothing that an earlier client left is gone on with then.

    Attributes:
        at: how many bytes have come.
    """

    def __init__(self, path: Path, size: int, *, in_place: bool = False) -> None:
        self.size = size
        self._long: list[BytesIO | bytearray] = []
        self._file: Any = None
        if in_place:
            self.path = path.with_suffix(".frames")
            self.path.unlink(missing_ok=True)
            self.at = 0
        else:
            self.path = path
            self.at = path.stat().st_size if path.exists() else 0
        self._buffers = filter(
            len, self._pickle_buffers() if in_place else self._file_buffers(b"", max(0, size - self.at))
        )
        self._buffer = next(self._buffers, memoryview(b""))

    def next_buffer(self) -> memoryview:
        """Where the next bytes belong: some of them, and at least one while any are missing."""
        return self._buffer[: min(CHUNK_BYTES, self.size - self.at)]

    def advance(self, count: int) -> None:
        """So many bytes are in that room.

        Raises:
            OSError: the file cannot be written.
        """
        self.at += count
        self._buffer = self._buffer[count:]
        if not self._buffer:
            self._buffer = next(self._buffers, self._buffer)

    def write(self, data: bytes | memoryview) -> None:
        """Take bytes that are elsewhere.

        Raises:
            OSError: the file cannot be written.
        """
        rest = memoryview(data)
        while rest:
            room = self.next_buffer()[: len(rest)]
            if not room:
                raise OSError(f"more came than the {self.size:,} bytes that it was said to have")
            room[:] = rest[: len(room)]
            self.advance(len(room))
            rest = rest[len(room) :]

    def close(self) -> None:
        """No more comes, or not by this way."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def load(self) -> Any:
        """Unpickle it, once, when it is here, and remove the file; user code may run in here."""
        long, self._long = self._long, []
        with open(self.path, "rb") as source:
            kept = (run.getvalue() if isinstance(run, BytesIO) else run for run in long)
            loaded = pickle.load(source, buffers=kept)
        self.path.unlink(missing_ok=True)
        return loaded

    def _pickle_buffers(self) -> Iterator[memoryview]:
        """Rooms for a pickle, part by part."""
        head = memoryview(bytearray(9))
        while self.at < self.size:
            yield head[:1]
            code = bytes(head[:1])
            if code not in _LENGTHS and code not in _SHORT:  # none of our pickler's: the file takes the rest as it is
                yield from self._file_buffers(code, self.size - self.at)
                return
            end = 1 + (_LENGTHS.get(code) or _SHORT[code])
            yield head[1:end]
            length = int.from_bytes(head[1:end], "little") if code in _LENGTHS else 0
            kept = code in _BUFFER_OPCODES and MIN_BUFFER_SIZE <= length <= self.size - self.at
            if kept and (place := self._allocate(code, length)):
                self._write_file(pickle.NEXT_BUFFER)
                yield place
            else:
                yield from self._file_buffers(bytes(head[:end]), length)

    def _allocate(self, code: bytes, length: int) -> memoryview | None:
        """Where a run stays; none where memory is short, as it may not be when it is loaded."""
        made: BytesIO | bytearray
        try:
            # What a BytesIO holds is bytes already: it gives them out without a copy.
            made = bytearray(length) if code == pickle.BYTEARRAY8 else BytesIO(bytes(length))
        except MemoryError:
            return None
        self._long.append(made)
        return memoryview(made) if isinstance(made, bytearray) else made.getbuffer()

    def _file_buffers(self, head: bytes, length: int) -> Iterator[memoryview]:
        """Rooms for what goes to the file, behind what is here already."""
        rest = len(head) + length
        buffer = memoryview(bytearray(min(CHUNK_BYTES, rest)))
        buffer[: len(head)] = head
        begin = len(head)
        while rest:
            piece = buffer[: min(CHUNK_BYTES, rest)]
            yield piece[begin:]
            self._write_file(piece)
            rest -= len(piece)
            begin = 0

    def _write_file(self, data: bytes | memoryview) -> None:
        if self._file is None:
            self._file = open(self.path, "ab", buffering=0, opener=_open_private)  # noqa: SIM115  closed in close()
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
