"""Marks that record the order of a rank's two output streams, with time and run, in a small separate file.

A mark is a line of fixed width: kind, Unix time in milliseconds, sizes of the files of standard output and standard
error at that time, and the run. A mark by the worker (``BEFORE``) describes the bytes that follow. A mark by the agent
(``AFTER``) describes earlier bytes, which native code or child processes may have written. Between two marks of a
worker only one stream grows, so the order of Python's output is exact.

If a mark has smaller sizes than the previous mark, the times decide. A mark with an older time was written late and is
ignored. A mark with a newer time shows that the file was truncated.
"""

from __future__ import annotations

import os
from time import time  # imported by name, because user code may replace the functions of `time`

BEFORE, AFTER = "+", "-"
MARK_BYTES = 58  # bytes of a mark, including the newline
MARK_INTERVAL = 0.05  # minimum seconds between marks while only one stream is written


class Mark:
    """Mark that records the sizes of a rank's two output files at a time.

    ``at`` is the Unix time in seconds; ``run`` is "" if the run is ambiguous. A plain class, because creating a named
    tuple would delay each worker and agent.
    """

    __slots__ = ("at", "err", "kind", "out", "run")

    def __init__(self, kind: str, at: float, out: int, err: int, run: str) -> None:
        self.kind = kind
        self.at = at
        self.out = out
        self.err = err
        self.run = run


def encode_mark(kind: str, at: float, out: int, err: int, run: str) -> bytes:
    """Return a mark as an encoded line."""
    return b"%b%013d %015d %015d %-10.10b\n" % (kind.encode(), at * 1000, out, err, run.encode("ascii", "replace"))


def decode_marks(data: bytes) -> list[Mark]:
    """Decode the marks in a part of a file. Skip lines that are invalid, for example because the disk was full."""
    marks = []
    for line in data.split(b"\n"):
        if len(line) == MARK_BYTES - 1 and line[:1] in (b"+", b"-"):
            try:
                at, out, err = int(line[1:14]), int(line[15:30]), int(line[31:46])
            except ValueError:
                continue
            run = line[47:].decode("ascii", "replace").strip()
            marks.append(Mark(chr(line[0]), at / 1000, out, err, run if run.isalnum() else ""))
    return marks


def shift_marks(data: bytes, out: int, err: int) -> bytes:
    """Return the marks with the sizes of the streams increased by ``out`` and ``err``."""
    if not out and not err:
        return data
    lines = data.split(b"\n")
    for place, line in enumerate(lines):
        if found := decode_marks(line):
            (mark,) = found
            lines[place] = encode_mark(mark.kind, mark.at, mark.out + out, mark.err + err, mark.run)[:-1]
    return b"\n".join(lines)


class MarkWriter:
    """Writer of order marks for the files of a rank's two output streams.

    Args:
        path: Path of the file of marks.
        out, err: Private descriptors of the streams' files, because user code may close descriptors 1 and 2.
        kind: ``BEFORE`` or ``AFTER``.
    """

    def __init__(self, path: str, out: int, err: int, kind: str) -> None:
        self._path = path
        self._out, self._err = _FileSize(out), _FileSize(err)
        self._kind = kind
        self._file = -1
        self._place = (0, 0)
        self._at = 0.0
        self.out, self.err = self._out.size(), self._err.size()

    def mark_before(self, run: str) -> None:
        """Write a mark which states that the output that follows belongs to a run."""
        # Take the time before the sizes, so that a delayed mark does not look newer than a mark that was written before
        # it.
        at = time()
        out, err = self._out.size(), self._err.size()
        self._write(encode_mark(self._kind, at, out, err, run))
        self.out, self.err, self._at = out, err, at

    def has_stdout_grown(self) -> bool:
        """Check whether standard output has grown since the last mark."""
        return self._out.size() != self.out

    def mark_after(self, run: str, *, soon: bool = False) -> None:
        """Write a mark which states that new output belongs to a run.

        With ``soon``, do so only if the last mark is older than ``MARK_INTERVAL``.
        """
        if soon and time() < self._at + MARK_INTERVAL:
            return
        at = time()
        out = self._out.size()
        err = self._err.size()
        if (out, err) == (self.out, self.err) or self._out.size() != out:
            # Write no mark without new output, or while output is growing, because the two sizes may not belong
            # together.
            return
        self.out, self.err, self._at = out, err, at
        self._write(encode_mark(self._kind, at, out, err, run))

    def _write(self, data: bytes) -> None:
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._place = file_identity(self._file)
            elif file_identity(self._file) != self._place:
                return  # User code closed the file, and its descriptor now belongs to another file.
            os.write(self._file, data)
        except OSError:
            return  # Ignore a full disk, because the writers of the output report it.


class _FileSize:
    """Size of an open file in bytes. No longer updated after user code has replaced the descriptor's file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._place = file_identity(descriptor)
        self._size = 0

    def size(self) -> int:
        try:
            found = os.fstat(self._descriptor)
        except OSError:
            return self._size
        if (found.st_dev, found.st_ino) == self._place:
            self._size = found.st_size
        return self._size


def file_identity(descriptor: int) -> tuple[int, int]:
    """Return the device and the inode of a descriptor's file; (-1, -1) if the descriptor is not open."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino
