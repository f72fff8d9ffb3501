"""Recordings: append-only files of a pool's events and metrics.

The first line has the format version. Blocks follow: a length, a checksum, and zlib-compressed lines of JSON. A
truncated file is readable up to its last complete block. Recordings may come from strangers: sizes are limited before
anything is decompressed, and nothing in a recording is executed.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from skyward_core.model.errors import Hint, UsageError

VERSION = 1
MAGIC = b"SKYWARD-RECORD "
SUFFIX = ".skyrec"
BLOCK_BYTES = 256 << 10  # bytes of uncompressed lines after which a block is full
COMPRESSION_LEVEL = 6  # zlib level; higher levels take several times as long and save only a few percent
MAX_LINE_BYTES = 4 << 20  # maximum bytes of a line, which contains one entry
MAX_RAW_BLOCK_BYTES = BLOCK_BYTES + MAX_LINE_BYTES  # maximum bytes of a block's lines before compression
MAX_FILE_BYTES = 128 << 20  # maximum bytes of a recording; larger files are rejected
MAX_TOTAL_BYTES = 512 << 20  # maximum bytes of all lines of a recording before compression

Entry = dict[str, Any]
# Header of a block: mark, compressed bytes, bytes of lines, checksum of the compressed bytes.
_BLOCK_HEADER = Struct("!4sIII")
_BLOCK_MAGIC = b"blk1"


class _Block(NamedTuple):
    start: int
    size: int
    raw: int
    checksum: int


class RecordingWriter:
    """Writer of a recording. Entries are on disk after :meth:`flush`.

    Args:
        path: Path of the new file.
        about: Description of the recording, which becomes its first entry.

    Raises (all methods):
        FileExistsError: If the file exists.
        OSError: If the disk is full or fails. Earlier entries stay readable.

    Attributes:
        size: Bytes of the file so far.
        pending_bytes: Bytes of lines that are not on disk yet.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._lines: list[bytes] = []
        self.size = self.pending_bytes = self._raw = 0
        try:
            self._write(MAGIC + str(VERSION).encode() + b"\n")
            self.put({"k": "about"} | dict(about))
            self.flush()
        except OSError:
            os.close(self._file)
            path.unlink(missing_ok=True)
            raise

    def put(self, entry: Entry) -> bool:
        """Add an entry.

        Return whether it was added, which is not the case if the entry or the recording is too large.
        """
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        if (
            len(line) > MAX_LINE_BYTES
            or self._raw + len(line) > MAX_TOTAL_BYTES
            or self.size > MAX_FILE_BYTES - MAX_RAW_BLOCK_BYTES
        ):
            return False
        self._lines.append(line)
        self.pending_bytes += len(line)
        self._raw += len(line)
        if self.pending_bytes >= BLOCK_BYTES:
            self.flush()
        return True

    def flush(self) -> None:
        """Write the pending entries. Entries that cannot be written are lost."""
        if not self._lines:
            return
        lines, self._lines, self.pending_bytes = b"".join(self._lines), [], 0
        packed = zlib.compress(lines, COMPRESSION_LEVEL)
        before = self.size
        try:
            self._write(_BLOCK_HEADER.pack(_BLOCK_MAGIC, len(packed), len(lines), zlib.crc32(packed)) + packed)
        except OSError:
            # Remove the incomplete block, because a reader would stop there and miss later blocks.
            os.ftruncate(self._file, before)
            os.lseek(self._file, before, os.SEEK_SET)
            self.size = before
            raise

    def close(self) -> None:
        try:
            self.flush()
        finally:
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._file, view)
            view, self.size = view[written:], self.size + written


class RecordingReader:
    """Reader of a recording.

    Args:
        data: Content of the file.
        name: Name of the file in errors.

    Raises:
        UsageError: If the data is not a recording, is from a newer release, or is too large.

    Attributes:
        about: Description of the recording.
        is_truncated: Whether the file is truncated or damaged.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name = data, name
        self._blocks: list[_Block] = []
        self.is_truncated = False
        self._find_blocks(self._read_header())
        first = next(self.entries(), None)
        if first is None or first.get("k") != "about":
            raise UsageError(f"Cannot read the recording {name}: it is truncated before its first entry.")
        self.about = first

    @classmethod
    def read(cls, path: Path) -> RecordingReader:
        """Read a recording from a file.

        Raises:
            UsageError: If the file is not a recording, was made by a newer release, or is too large.
            OSError: If the file cannot be read.
        """
        # O_NONBLOCK, because opening a named pipe would otherwise wait for a writer of the pipe.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode) or not source.peek(len(MAGIC)).startswith(MAGIC):
                raise _not_a_recording(str(path))
            data = source.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"Cannot read {path}: recordings have at most {MAX_FILE_BYTES >> 20} MB.")
        return cls(data, str(path))

    def _read_header(self) -> int:
        line, newline, _ = self._data[: len(MAGIC) + 16].partition(b"\n")
        if not line.startswith(MAGIC) or not newline:
            raise _not_a_recording(self._name)
        word = line[len(MAGIC) :]
        if not word.isdigit() or int(word) < 1:
            raise _not_a_recording(self._name)
        if int(word) > VERSION:
            raise UsageError(
                f"Cannot read {self._name}: its format version is {int(word)}; this release supports up to {VERSION}.",
                hint=Hint("upgrade"),
            )
        return len(line) + 1

    def _find_blocks(self, at: int) -> None:
        total = 0
        while at < len(self._data):
            start = at + _BLOCK_HEADER.size
            if start > len(self._data):
                break
            mark, size, raw, checksum = _BLOCK_HEADER.unpack_from(self._data, at)
            if (
                mark != _BLOCK_MAGIC
                or raw > MAX_RAW_BLOCK_BYTES
                or size > MAX_RAW_BLOCK_BYTES
                or start + size > len(self._data)
            ):
                break
            total += raw
            if total > MAX_TOTAL_BYTES:
                raise UsageError(f"Cannot read {self._name}: it decompresses to more than {MAX_TOTAL_BYTES >> 20} MB.")
            self._blocks.append(_Block(start, size, raw, checksum))
            at = start + size
        self.is_truncated = at < len(self._data)

    def entries(self, holding: bytes = b"") -> Iterator[Entry]:
        """Yield all entries in order, up to the first damaged block.

        Args:
            holding: Yield only entries whose lines contain these bytes. Faster than testing each decoded entry.
        """
        for lines in self._iter_blocks():
            if holding in lines:
                for line in lines.split(b"\n"):
                    if holding in line and (entry := _parse_entry(line)) is not None:
                        yield entry

    def last_entries(self) -> Iterator[Entry]:
        """Yield the entries of the last complete block, last one first."""
        last = deque(self._iter_blocks(), maxlen=1)
        for line in reversed(last[0].split(b"\n") if last else []):
            if (entry := _parse_entry(line)) is not None:
                yield entry

    def _iter_blocks(self) -> Iterator[bytes]:
        for block in self._blocks:
            lines = self._decompress(block)
            if lines is None:
                self.is_truncated = True
                return
            yield lines

    def _decompress(self, block: _Block) -> bytes | None:
        packed = self._data[block.start : block.start + block.size]
        if zlib.crc32(packed) != block.checksum:
            return None
        unpacker = zlib.decompressobj()
        try:
            lines = unpacker.decompress(packed, block.raw + 1)
        except zlib.error:
            return None
        return lines if len(lines) == block.raw else None


def _parse_entry(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line) if line else None
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _not_a_recording(name: str) -> UsageError:
    return UsageError(f"{name} is not a recording of a pool.")
