"""Records on disk: what happened to a pool, entry by entry, in one file that only grows.

The first line says that it is one, and of which version. Blocks follow: a length, a checksum, and lines of JSON that
zlib has compressed. A file that was cut off anywhere (its writer died, a download ended) is read up to its last whole
block.
Records come from strangers, too: sizes are bounded before anything is unpacked, and nothing in them is run.
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
BLOCK_BYTES = 256 << 10  # bytes of lines that make a block full
COMPRESSION_LEVEL = 6  # of compression: more takes several times as long for a few percent
MAX_LINE_BYTES = 4 << 20  # bytes of a line at most
MAX_RAW_BLOCK_BYTES = BLOCK_BYTES + MAX_LINE_BYTES  # bytes of a block's lines at most
MAX_FILE_BYTES = 128 << 20  # bytes of a file that is read at most
MAX_TOTAL_BYTES = 512 << 20  # bytes of all lines of a file at most

Entry = dict[str, Any]
_BLOCK_HEADER = Struct("!4sIII")  # mark, bytes compressed, bytes of lines, checksum of the former
_BLOCK_MAGIC = b"blk1"


class _Block(NamedTuple):
    start: int
    size: int
    raw: int
    checksum: int


class RecordingWriter:
    """Writes a record. What is put is on disk after :meth:`flush`.

    Args:
        path: of a file that is not there yet.
        about: what the record is of, which stands first.

    Raises (all methods):
        FileExistsError: something is there already.
        OSError: the disk does not take it; what was written before stays readable.

    Attributes:
        size: bytes of the file so far.
        pending_bytes: bytes of lines that are not on disk yet.
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
        """Add an entry; says whether it was. One that is longer than lines may be is left out, and all once there is as
        much as is read of a file."""
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
        """Write what waits; what the disk does not take is lost."""
        if not self._lines:
            return
        lines, self._lines, self.pending_bytes = b"".join(self._lines), [], 0
        packed = zlib.compress(lines, COMPRESSION_LEVEL)
        before = self.size
        try:
            self._write(_BLOCK_HEADER.pack(_BLOCK_MAGIC, len(packed), len(lines), zlib.crc32(packed)) + packed)
        except OSError:
            os.ftruncate(self._file, before)  # a block that is half there would hide what comes after it
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
    """A record that is read.

    Args:
        data: the whole file.
        name: what it is called, for errors.

    Raises:
        UsageError: it is none, it was made by a newer release, or it is larger than any that we make.

    Attributes:
        about: what it is of.
        is_truncated: whether the file is cut off or damaged at its end.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name = data, name
        self._blocks: list[_Block] = []
        self.is_truncated = False
        self._find_blocks(self._read_header())
        first = next(self.entries(), None)
        if first is None or first.get("k") != "about":
            raise UsageError(f"{name} is a record that was cut off at its very beginning: nothing of it can be read")
        self.about = first

    @classmethod
    def read(cls, path: Path) -> RecordingReader:
        """The record in a file.

        Raises:
            UsageError: as above.
            OSError: it cannot be read.
        """
        # A pipe that nobody writes to would be waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode) or not source.peek(len(MAGIC)).startswith(MAGIC):
                raise _not_a_recording(str(path))
            data = source.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MB, as no record is")
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
                f"{self._name} is a record of version {int(word)}, and this release reads up to version {VERSION}",
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
                raise UsageError(
                    f"{self._name} would unpack to more than {MAX_TOTAL_BYTES >> 20} MB, as no record does"
                )
            self._blocks.append(_Block(start, size, raw, checksum))
            at = start + size
        self.is_truncated = at < len(self._data)

    def entries(self, holding: bytes = b"") -> Iterator[Entry]:
        """All entries, in their order, up to where it is damaged, if it is.

        Args:
            holding: of those only whose line has this in it, which is quicker than to look at each.
        """
        for lines in self._iter_blocks():
            if holding in lines:
                for line in lines.split(b"\n"):
                    if holding in line and (entry := _parse_entry(line)) is not None:
                        yield entry

    def last_entries(self) -> Iterator[Entry]:
        """The entries of its last block that is whole, the last one first."""
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
    return UsageError(f"{name} is no record of a pool")
