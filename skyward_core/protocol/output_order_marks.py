"""Marks: when a rank's two streams were written, by which run, and in which order. A small file beside theirs.

A mark is a line of fixed width: its kind, a Unix time in milliseconds, how long the file of standard output and that
of standard error were then, and a run. One that the worker makes (``BEFORE``) tells of the bytes that follow it, one
that the agent makes (``AFTER``), as native code or children may have written, of the bytes before it. Between two marks
of a worker's only one of the streams has grown: so what Python prints has an exact order. Marks that go back were
overtaken by others on their way into the file, and say nothing; unless they are younger: then a file was cut back.
"""

from __future__ import annotations

import os
from time import time  # user code may replace the functions of `time`

BEFORE, AFTER = "+", "-"
MARK_BYTES = 58  # bytes of a mark, its line's end included
MARK_INTERVAL = 0.05  # seconds between marks while one stream is written to


class Mark:
    """``at``: Unix time, in seconds; ``run`` is empty where no single run can be named.

    A plain class: every worker and agent would have to compile a named tuple before it begins.
    """

    __slots__ = ("at", "err", "kind", "out", "run")

    def __init__(self, kind: str, at: float, out: int, err: int, run: str) -> None:
        self.kind = kind
        self.at = at
        self.out = out
        self.err = err
        self.run = run


def encode_mark(kind: str, at: float, out: int, err: int, run: str) -> bytes:
    """One mark as a line."""
    return b"%b%013d %015d %015d %-10.10b\n" % (
        kind.encode(),
        at * 1000,
        out,
        err,
        run.encode("ascii", "replace"),
    )


def decode_marks(data: bytes) -> list[Mark]:
    """The marks in a piece of a file; lines that are none (cut short by a full disk, say) are left out."""
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
    """The same lines with the streams' lengths counted from further back."""
    if not out and not err:
        return data
    lines = data.split(b"\n")
    for place, line in enumerate(lines):
        if found := decode_marks(line):
            (mark,) = found
            lines[place] = encode_mark(mark.kind, mark.at, mark.out + out, mark.err + err, mark.run)[:-1]
    return b"\n".join(lines)


class MarkWriter:
    """Makes marks of two files that grow.

    Args:
        path: of the file of marks.
        out, err: descriptors of the streams' files, that stay ours: user code closes and moves the ones it knows.
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
        """Mark that what is written now is written by this run, in the process that writes it."""
        at = time()  # first: what was overtaken by another mark must not look younger than that
        out, err = self._out.size(), self._err.size()
        self._write(encode_mark(self._kind, at, out, err, run))
        self.out, self.err, self._at = out, err, at

    def has_stdout_grown(self) -> bool:
        """Whether standard output has grown since the last mark."""
        return self._out.size() != self.out

    def mark_after(self, run: str, *, soon: bool = False) -> None:
        """Mark what was written, where there is anything new; with ``soon`` a moment later will do."""
        if soon and time() < self._at + MARK_INTERVAL:
            return
        at = time()
        out = self._out.size()
        err = self._err.size()
        if (out, err) == (self.out, self.err) or self._out.size() != out:
            return  # nothing new; or it grew just now, and these two lengths may never have been together
        self.out, self.err, self._at = out, err, at
        self._write(encode_mark(self._kind, at, out, err, run))

    def _write(self, data: bytes) -> None:
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._place = file_identity(self._file)
            elif file_identity(self._file) != self._place:
                return  # user code closed it, and its number is another file's now
            os.write(self._file, data)
        except OSError:
            return  # a full disk is said by what is printed


class _FileSize:
    """A file's length, as long as the descriptor is that file's."""

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
    """Which file a descriptor stands for; (-1, -1) for none."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino
