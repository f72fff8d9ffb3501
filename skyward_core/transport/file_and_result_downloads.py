"""Downloads of output files and results from agents. An interrupted download of a file is resumed."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Iterator
from contextlib import suppress
from hashlib import file_digest, sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from skyward_core.protocol.blocking_tls_connection import CHUNK_BYTES
from skyward_core.util.safe_file_access import lock_file_at

# folder for partial files, on the file system of the download's target so that files can be renamed
PARTS = ".skyward-parts"


class DownloadInProgress(OSError):
    """Error: another process is downloading the same file.

    Attributes:
        at: Number of bytes that the other process has received.
    """

    def __init__(self, at: int) -> None:
        super().__init__("another process is downloading the file")
        self.at = at


class IncomingOutput:
    """Download of one output file, which resumes an earlier attempt.

    Args:
        folder: Folder of the downloads.
        name: Unique name of the file within the folder.
        size: Size of the file in bytes.
        version: Version of the file, from its node.

    Attributes:
        path: Path of the partial file.
        at: Number of received bytes.
        sha256: Hash of the file, which the node reports after the last byte. "" until then, and if no hash is needed,
            because all bytes arrived on one TLS connection.
        is_verified: Whether all bytes arrived on one TLS connection, which protects them.

    Raises:
        DownloadInProgress: If another process downloads the file.
        OSError: If the file cannot be written.
    """

    def __init__(self, folder: Path, name: str, size: int, version: str) -> None:
        self.size = size
        self.version = version
        self.sha256 = ""
        self.is_verified = False
        self._parts = folder / PARTS
        self.path = self._parts / f"{_hash(name)}.{_hash(version)}"
        self._file = self._open()
        try:
            # A lock is useless if its previous owner has renamed the file since this process opened the file.
            if not lock_file_at(self.path, self._file):
                raise DownloadInProgress(os.fstat(self._file).st_size)
            self._resume()
        except BaseException:
            self._close_file()
            raise

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            # Retry if another download removes the empty folder at this moment.
            with suppress(FileNotFoundError):
                try:
                    self._parts.mkdir(parents=True, mode=0o700)
                except FileExistsError:
                    check_folder_owner(self._parts)
                    if not stat.S_ISDIR(self._parts.lstat().st_mode):
                        raise
                return os.open(self.path, flags, 0o666)

    def _resume(self) -> None:
        """Continue after the bytes of the existing partial file. Delete partial files of other versions of the file."""
        for other in self._parts.glob(f"{self.path.stem}.*"):
            if other != self.path:
                other.unlink(missing_ok=True)
        self.at = os.fstat(self._file).st_size
        if self.at > self.size:
            self._restart()

    def _restart(self) -> None:
        os.ftruncate(self._file, 0)
        self.at = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write the next received bytes to the partial file.

        Raises:
            OSError: If the disk is full, or more bytes arrive than expected.
        """
        if len(data) > self.size - self.at:
            raise OSError(f"received more than the announced {self.size:,} bytes")
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, self.at)
            rest, self.at = rest[written:], self.at + written

    def check(self) -> None:
        """Check that the received file has the hash that the node reported, unless its connection protected it.

        Raises:
            OSError: If the hashes differ; the download restarts.
        """
        with open(self._file, "rb", closefd=False) as file:
            file.seek(0)
            if self.at == self.size and (self.is_verified or file_digest(file, "sha256").hexdigest() == self.sha256):
                return
        self._restart()
        raise OSError("the SHA-256 of the received file differs from the node's. Try again")

    def move_to(self, target: Path, changed_at: float, *, instead: bool) -> None:
        """Move the completely downloaded file to its target.

        Args:
            target: Path of the target.
            changed_at: Unix time of the last change by a rank.
            instead: Whether to replace an existing file.

        Raises:
            FileExistsError: If the target exists and ``instead`` is false.
            OSError: If the file cannot be moved.
        """
        os.utime(self._file, (changed_at, changed_at))
        if instead:
            self.path.replace(target)
            return
        try:
            target.hardlink_to(self.path)
        except FileExistsError:
            raise
        except OSError:  # The file system has no hard links, so check for an existing target, then rename.
            if os.path.lexists(target):
                raise FileExistsError(f"{target} exists") from None
            self.path.replace(target)
        else:
            self.path.unlink()

    def close(self) -> None:
        """Do nothing at the end of a connection, because a new connection may continue the download in the file."""

    def drop(self) -> None:
        """Delete the partial file."""
        self.path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Close the partial file, so that another download can resume."""
        self._close_file()
        with suppress(OSError):  # rmdir() fails if the folder contains other downloads.
            self._parts.rmdir()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def check_folder_owner(folder: Path) -> None:
    """Check that no other user owns a download folder (or a link in its place) inside a world-writable folder.

    The owner could change the downloaded files.

    Raises:
        FileNotFoundError: If the folder does not exist.
        OSError: If another user owns the folder.
    """
    if folder.lstat().st_uid not in (0, os.getuid()) and folder.parent.stat().st_mode & stat.S_IWOTH:
        raise OSError(f"{folder} belongs to another user, who could change the downloaded files: choose another folder")


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


MIN_BUFFER_SIZE = 1 << 20  # minimum bytes of a pickle's buffer that is kept in separate memory

_BUFFER_OPCODES = (pickle.BINBYTES, pickle.BINBYTES8, pickle.BYTEARRAY8)
_LENGTHS = dict.fromkeys((pickle.BINBYTES, pickle.BINUNICODE), 4) | dict.fromkeys(
    (pickle.FRAME, pickle.BINBYTES8, pickle.BYTEARRAY8, pickle.BINUNICODE8), 8
)
# Opcodes that the pickler writes outside of frames, with the length of their arguments in bytes. The pickler creates no
# frames of less than four bytes, so short opcodes can be outside of frames.
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
    """Open a file so that only its owner can read it, because downloaded values may be secret."""
    return os.open(path, flags, 0o600)


class ResultDownload:
    """Download of a result, which is a pickle.

    The caller copies the received bytes, in order, into the buffers of :meth:`next_buffer`.

    Args:
        path: Path of the file; existing content is the beginning of the pickle, and is resumed.
        size: Size of the pickle in bytes.
        in_place: Whether large buffers of the pickle stay in memory, for callers that load the result at once. Such a
            download does not resume a file of an earlier client.

    Attributes:
        at: Number of received bytes.
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
        """Return the buffer into which the caller must copy the next received bytes; empty only after the last byte."""
        return self._buffer[: min(CHUNK_BYTES, self.size - self.at)]

    def advance(self, count: int) -> None:
        """Record that the caller has copied the next received bytes into the buffer.

        Args:
            count: Number of bytes.

        Raises:
            OSError: If the file cannot be written.
        """
        self.at += count
        self._buffer = self._buffer[count:]
        if not self._buffer:
            self._buffer = next(self._buffers, self._buffer)

    def write(self, data: bytes | memoryview) -> None:
        """Copy received bytes into the next buffers.

        Raises:
            OSError: If the file cannot be written, or more bytes arrive than expected.
        """
        rest = memoryview(data)
        while rest:
            room = self.next_buffer()[: len(rest)]
            if not room:
                raise OSError(f"received more than the announced {self.size:,} bytes")
            room[:] = rest[: len(room)]
            self.advance(len(room))
            rest = rest[len(room) :]

    def close(self) -> None:
        """Close the result's file, after the last byte or before another connection continues the download."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def load(self) -> Any:
        """Unpickle the complete result, which may run user code, and delete its file. May be called only once."""
        long, self._long = self._long, []
        with open(self.path, "rb") as source:
            buffers = (run.getvalue() if isinstance(run, BytesIO) else run for run in long)
            loaded = pickle.load(source, buffers=buffers)
        self.path.unlink(missing_ok=True)
        return loaded

    def _pickle_buffers(self) -> Iterator[memoryview]:
        """Yield a buffer for each part of a pickle in order. Large parts have their own memory, others go to a file."""
        head = memoryview(bytearray(9))
        while self.at < self.size:
            yield head[:1]
            code = bytes(head[:1])
            if code not in _LENGTHS and code not in _SHORT:
                # From an unknown opcode on, write the rest of the pickle to the file unchanged.
                yield from self._file_buffers(code, self.size - self.at)
                return
            end = 1 + (_LENGTHS.get(code) or _SHORT[code])
            yield head[1:end]
            length = int.from_bytes(head[1:end], "little") if code in _LENGTHS else 0
            is_separate = code in _BUFFER_OPCODES and MIN_BUFFER_SIZE <= length <= self.size - self.at
            if is_separate and (place := self._allocate(code, length)):
                self._write_file(pickle.NEXT_BUFFER)
                yield place
            else:
                yield from self._file_buffers(bytes(head[:end]), length)

    def _allocate(self, code: bytes, length: int) -> memoryview | None:
        """Allocate the memory for a large part of a pickle. Return None if the process has too little memory."""
        made: BytesIO | bytearray
        try:
            # Use BytesIO, because getvalue() returns its content as bytes without a copy.
            made = bytearray(length) if code == pickle.BYTEARRAY8 else BytesIO(bytes(length))
        except MemoryError:
            return None
        self._long.append(made)
        return memoryview(made) if isinstance(made, bytearray) else made.getbuffer()

    def _file_buffers(self, head: bytes, length: int) -> Iterator[memoryview]:
        """Yield buffers for the caller to fill, and append their content to the file."""
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
