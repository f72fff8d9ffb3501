"""Values that a generator yielded, buffered until the client acknowledges them."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.protocol.frame_codec import WINDOW, WireError, decode_header, decode_lengths

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentItem


COMPACT_THRESHOLD = 4 << 20  # bytes of acknowledged values from which the file is compacted
MAX_COMPACT_BYTES = 1 << 20  # bytes of unacknowledged values above which the file is not compacted
HEADER_BYTES = 8


class GeneratorBuffer:
    """Buffer of one generator call. Values are numbered from 0 in the order they are yielded.

    Attributes:
        first: Number of the first unacknowledged value.
        next_unsent: Number of the first value not yet sent to the client.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file. Values that an earlier agent wrote are loaded."""
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            self._file = -1  # The file cannot be opened. Proceed as with a full disk: values are sent, but not stored.
        self.first = 0
        self.next_unsent = 0
        self._base = 0  # file offset of the first value that the client has not acknowledged
        self._ends = array("Q")  # end offset of each value in the file; the first ``_dropped`` values are acknowledged
        self._dropped = 0
        self._files: dict[int, str] = {}  # number of a large value -> file in the spool that contains it
        if self._file >= 0:
            self._load()

    @property
    def next_number(self) -> int:
        """Number of the next value that the generator will yield."""
        return self.first + len(self._ends) - self._dropped

    def add(self, number: int, file: str | None, data: bytes) -> bool:
        """Add a value. Return False for a duplicate: workers resend values that a crashed agent may not have stored."""
        if number < self.next_number:
            return False
        if number > self.next_number:
            # The generator skipped values that an earlier agent of this node has already delivered.
            self.acknowledge(self.next_number)
            self.first = number
            self.next_unsent = max(self.next_unsent, number)
        at = self._end
        try:
            end = at + len(data) if os.pwrite(self._file, data, at) == len(data) else at
        except OSError:
            end = at  # The disk is full. The client gets an error if it requests this value again.
        self._ends.append(end)
        if file is not None:
            self._files[number] = file
        return True

    def read(self, number: int) -> bytes:
        """Return the encoded frame of a value; empty if the disk was too full to store it."""
        place = self._dropped + number - self.first
        at = self._ends[place - 1] if place > self._dropped else self._base
        size = self._ends[place] - at
        return os.pread(self._file, size, at) if size else b""

    def pop_sendable(self) -> list[bytes]:
        """Return the frames of unsent values that fit into the client's window, and mark them as sent."""
        self.next_unsent = max(self.next_unsent, self.first)
        until = min(self.next_number, self.first + WINDOW)
        frames = [self.read(number) for number in range(self.next_unsent, until)]
        self.next_unsent = max(self.next_unsent, until)
        return frames

    def acknowledge(self, until: int) -> None:
        """Delete all values below ``until``, which the client has received."""
        until = min(until, self.next_number)
        while self.first < until:
            if (name := self._files.pop(self.first, None)) is not None:
                self._path.with_name(name).unlink(missing_ok=True)
            self._base = self._ends[self._dropped]
            self._dropped += 1
            self.first += 1
        if self._dropped > 1024 and self._dropped > len(self._ends) // 2:
            del self._ends[: self._dropped]
            self._dropped = 0
        if self._base > COMPACT_THRESHOLD and self._end - self._base <= MAX_COMPACT_BYTES:
            self._compact()

    def remove(self) -> None:
        """Delete the buffer and its files."""
        self.acknowledge(self.next_number)
        if self._file >= 0:
            os.close(self._file)
        self._path.unlink(missing_ok=True)

    @property
    def _end(self) -> int:
        return self._ends[-1] if len(self._ends) > self._dropped else self._base

    def _compact(self) -> None:
        """Atomically replace the buffer's file by one with only the unacknowledged values."""
        rest = os.pread(self._file, self._end - self._base, self._base)
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(rest)
            file = os.open(new, os.O_RDWR)
        except OSError:
            return
        new.replace(self._path)
        os.close(self._file)
        self._file = file
        self._ends = array("Q", (end - self._base for end in self._ends[self._dropped :]))
        self._base = self._dropped = 0

    def _load(self) -> None:
        size, at = os.fstat(self._file).st_size, 0
        header: AgentItem
        while at + HEADER_BYTES <= size:
            head, body = decode_lengths(os.pread(self._file, HEADER_BYTES, at))
            end = at + HEADER_BYTES + head + body
            try:
                if end > size:
                    raise WireError("incomplete value")
                header = decode_header(os.pread(self._file, head, at + HEADER_BYTES))
            except WireError:
                break
            if not self._ends:
                self.first = header["seq"]
            while self.next_number < header["seq"]:
                self._ends.append(at)  # a value that was not stored, because the disk was full
            self._ends.append(end)
            if (name := header.get("file")) is not None:
                self._files[header["seq"]] = Path(name).name
            at = end
        os.ftruncate(self._file, at)
