"""Merging of a worker's standard output and standard error in the order in which they were written.

Used for live output, after a reconnection, and for stored files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from skyward_core.protocol.node_paths import MARKS
from skyward_core.protocol.stdout_stderr_order_marks import BEFORE, MARK_BYTES, Mark, decode_marks

STREAMS = ("out", "err")
PIECE_BYTES = 256 << 10  # maximum bytes read from a log file at once
MARK_READS, MARK_READ_BYTES = 64, 1 << 10  # reads and bytes per read of the marks at the start of a run
ORDER_TIMEOUT = 0.3  # seconds that output waits for the marks that determine its order

Place = tuple[int, int]  # offsets in the log files of standard output and standard error


class Piece(NamedTuple):
    """Successive bytes of one stream, with the time and the run that wrote them.

    Attributes:
        stream: "out" or "err".
        offset: Offset of the first byte in the stream's file.
        data: The bytes.
        at: Unix time on the node's clock in seconds. None if unknown.
        run: Run that wrote the bytes; "" if unknown.
    """

    stream: str
    offset: int
    data: bytes
    at: float | None
    run: str


class StreamMerger:
    """Merger of a worker's two streams by the marks that record their order.

    Marks, and the bytes of each stream, must be added in order.

    Args:
        place: First offsets of both streams.
    """

    def __init__(self, place: Place = (0, 0)) -> None:
        self._last: Mark | None = None
        self._marks: deque[Mark] = deque()
        self._held = {stream: _HeldBytes(at) for stream, at in zip(STREAMS, place, strict=True)}

    @property
    def place(self) -> Place:
        """Offset in each stream of the first byte that was not released yet."""
        return self._held["out"].at, self._held["err"].at

    @property
    def has_held_bytes(self) -> bool:
        """Whether bytes are held until marks or bytes of the other stream arrive."""
        return any(held.size for held in self._held.values())

    @property
    def missing_input(self) -> str:
        """Input that is needed next: "out", "err" or "marks"."""
        if not self._marks:
            return "marks"
        return "out" if self._held["out"].at < self._marks[0].out else "err"

    def add_marks(self, marks: bytes) -> None:
        """Add whole lines of the file with the order marks."""
        for mark in decode_marks(marks):
            while self._marks and (last := self._marks[-1]).at < mark.at and _is_beyond(last, mark):
                self._marks.pop()  # Drop the last mark, which is invalid because the log files were truncated after it.
            self._marks.append(mark)

    def add_bytes(self, stream: str, offset: int, data: bytes) -> None:
        """Add bytes of a stream. If they do not follow the previous bytes, treat the bytes in between as lost."""
        self._held[stream].put(offset, data)

    def pop_ready(self) -> Iterator[Piece]:
        """Yield all bytes whose order is known."""
        out, err = self._held["out"], self._held["err"]
        while self._marks:
            mark = self._marks[0]
            if mark.out >= out.at and mark.err >= err.at:
                about = self._time_and_run(mark)
                yield from out.pop_until("out", mark.out, about)
                if out.at < mark.out:
                    return
                yield from err.pop_until("err", mark.err, about)
                if err.at < mark.err:
                    return
            if self._last is None or mark.at >= self._last.at:
                self._last = mark
            self._marks.popleft()

    def pop_all(self) -> Iterator[Piece]:
        """Yield all bytes, even if their order is unknown."""
        yield from self.pop_ready()
        about = self._time_and_run(self._marks[0] if self._marks else None)
        for stream, held in self._held.items():
            yield from held.pop_until(stream, held.at + held.size, about)

    def _time_and_run(self, mark: Mark | None) -> tuple[float | None, str]:
        """Return the time and the run of bytes that were written between the last mark and the next one."""
        relevant = self._last if self._last is not None and self._last.kind == BEFORE else mark or self._last
        return (None, "") if relevant is None else (relevant.at, relevant.run)


def _is_beyond(one: Mark, other: Mark) -> bool:
    return one.out > other.out or one.err > other.err


class _HeldBytes:
    """Bytes of one stream that were added but not released yet. The first byte has offset ``at``."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.size = 0
        self._chunks: deque[bytes] = deque()
        self._given = 0  # number of bytes of the first chunk that were already released

    def put(self, offset: int, data: bytes) -> None:
        if not self.size:
            self.at = max(self.at, offset)
        if (double := self.at + self.size - offset) > 0:
            data = data[double:]
        if data:
            self._chunks.append(data)
            self.size += len(data)

    def pop_until(self, stream: str, end: int, about: tuple[float | None, str]) -> Iterator[Piece]:
        """Yield the available bytes up to an offset."""
        while self.size and self.at < end:
            chunk = self._chunks[0]
            data = chunk[self._given : self._given + end - self.at]
            piece = Piece(stream, self.at, data, *about)
            self.at += len(data)
            self.size -= len(data)
            self._given += len(data)
            if self._given == len(chunk):
                self._chunks.popleft()
                self._given = 0
            yield piece


def merge_streams(folder: Path, stem: str, start: Place, end: Place, piece: int = PIECE_BYTES) -> Iterator[Piece]:
    """Yield a worker's output in order, merged from stored files between two places. Needs little memory.

    Args:
        folder: Folder of the files.
        stem: Name of the files without ending: "r003", or "r003.1" for another worker of the rank.
        start, end: Offsets in the files of both streams. Files may be shorter or missing.
        piece: Bytes of each file in memory at once.
    """
    weaver = StreamMerger(start)
    streams = {
        name: _PieceFile(folder / f"{stem}.{name}", at, to) for name, at, to in zip(STREAMS, start, end, strict=True)
    }
    path = folder / f"{stem}{MARKS}"
    marks = _PieceFile(path, _mark_offset_before(path, start))
    while True:
        yield from weaver.pop_ready()
        name = weaver.missing_input
        if name == "marks":
            if lines := marks.read(piece):
                weaver.add_marks(lines + marks.line())
                continue
        elif _feed_merger(weaver, name, streams[name], piece):
            continue
        break
    for name in STREAMS:
        while _feed_merger(weaver, name, streams[name], piece):
            yield from weaver.pop_all()
    yield from weaver.pop_all()


class _PieceFile:
    """File that is read in pieces. It is open only during each read, because merging 256 ranks involves 768 files.

    Args:
        path: The file.
        at: First offset.
        end: Offset after the last byte. None: the file's end.
    """

    def __init__(self, path: Path, at: int, end: int | None = None) -> None:
        self._path = path
        self.at = at
        self._end = end

    def read(self, size: int) -> bytes:
        """Return the next bytes; empty at the end or if the file does not exist."""
        if self._end is not None:
            size = min(size, self._end - self.at)
        if size <= 0 or (file := _open_existing(self._path)) is None:
            return b""
        with file:
            file.seek(self.at)
            data = file.read(size)
        self.at += len(data)
        return data

    def line(self) -> bytes:
        """Return the rest of the line that contains the current offset of a file of marks."""
        before = self.at
        rest, newline, _ = self.read(MARK_BYTES).partition(b"\n")
        self.at = before + len(rest + newline)
        return rest + newline


def _feed_merger(weaver: StreamMerger, name: str, source: _PieceFile, size: int) -> bool:
    """Add the next bytes of a stream's file to the merger. Return whether there were any."""
    if data := source.read(size):
        weaver.add_bytes(name, source.at - len(data), data)
    return bool(data)


def find_tail_start(folder: Path, stem: str, end: Place, size: int) -> Place:
    """Return offsets in both streams about ``size`` bytes before ``end``, if possible at an order mark."""
    marks = _open_existing(folder / f"{stem}{MARKS}")
    if marks is not None:
        with marks:
            found = _find_mark(marks, lambda mark: end[0] - mark.out + end[1] - mark.err > size)
            if (mark := _read_mark(marks, found)) is not None and mark.out <= end[0] and mark.err <= end[1]:
                return max(mark.out, end[0] - size), max(mark.err, end[1] - size)
    return max(0, end[0] - size), max(0, end[1] - size)


def first_marks(folder: Path, stem: str, start: Place) -> Iterator[Mark]:
    """Yield the first order marks of a worker that describe output after ``start``, from at most 64 KiB of marks."""
    path = folder / f"{stem}{MARKS}"
    marks = _PieceFile(path, _mark_offset_before(path, start))
    for _ in range(MARK_READS):
        for mark in decode_marks(marks.read(MARK_READ_BYTES) + marks.line()):
            if mark.out > start[0] or mark.err > start[1]:
                yield mark


def end_place(folder: Path, stem: str) -> Place:
    """Return the sizes in bytes of a worker's log files; 0 for missing ones."""
    out, err = (_size(folder / f"{stem}.{name}") for name in STREAMS)
    return out, err


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _mark_offset_before(path: Path, start: Place) -> int:
    """Return the offset, in the file of marks, of the last mark that was written before ``start``.

    This mark describes the bytes after ``start``.
    """
    if (marks := _open_existing(path)) is None:
        return 0
    with marks:
        behind = _find_mark(marks, lambda mark: mark.out <= start[0] and mark.err <= start[1])
    return max(0, behind - 2) * MARK_BYTES


def _find_mark(marks: BinaryIO, is_before: Callable[[Mark], bool]) -> int:
    """Return the index of the first order mark that is unreadable, or for which ``is_before`` returns False."""

    def is_beyond(number: int) -> bool:
        mark = _read_mark(marks, number)
        return mark is None or not is_before(mark)

    return bisect_left(range(marks.seek(0, 2) // MARK_BYTES), True, key=is_beyond)


def _read_mark(marks: BinaryIO, number: int) -> Mark | None:
    marks.seek(number * MARK_BYTES)
    found = decode_marks(marks.read(2 * MARK_BYTES))  # Read two lines, because a truncated mark shifts all later ones.
    return found[0] if found else None


def _open_existing(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
