"""Log lines of runs, streamed from the stored log files, so that only a small part of a log is in memory at a time."""

from __future__ import annotations

import copy
import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from skyward_core.protocol.node_paths import ERR, MARKS, OUT
from skyward_core.protocol.stdout_stderr_order_marks import AFTER, BEFORE, decode_marks
from skyward_core.protocol.validators import is_log_name
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import RunRow
from skyward_core.store.pool_folder import log_files, parse_rank
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views import group_pairs
from skyward_core.views.log_buffers_and_rank_activity import Line, LineInfo, LineSplitter, Ring, join_lines, rank_prefix
from skyward_core.views.stdout_stderr_order import (
    PIECE_BYTES,
    STREAMS,
    Piece,
    Place,
    end_place,
    first_marks,
    merge_streams,
)


class LogRange(NamedTuple):
    """Output of one worker in a run, as offsets in its stdout and stderr files.

    Attributes:
        stem: Name of the files without the ending.
        start: First offsets.
        end: Offsets after the last byte.
    """

    stem: str
    start: Place
    end: Place


class LineBatch(NamedTuple):
    """Lines that were read together.

    Attributes:
        number: Number of the first line, from 0.
        texts: Texts of the lines. Many lines are only split when they are read.
        about: Stream, time and run of the lines.
        size: Number of bytes.
    """

    number: int
    texts: Sequence[str]
    about: LineInfo
    size: int


class RunLogs:
    """Logs of one run, as ledger and log files contain them now.

    Args:
        ledger: The ledger.
        run: Id of the run.
        check: Called repeatedly while many outcomes are read from the ledger. An exception cancels the reading.

    Raises:
        UsageError: If the run does not exist.

    Attributes:
        folder: Folder of the log files.
        ranges: Rank -> output of its workers.
    """

    def __init__(self, ledger: Ledger, run: str, check: Callable[[], None] = lambda: None) -> None:
        self._check_cancelled = check
        row = ledger.require_run(run)
        self.folder = ensure_pool_folder(ledger.pool(row.token).key) / "logs"
        calls = self._ended_ranges(ledger, row)
        if row.state == "running":
            calls += self._running_ranges(ledger, row, calls)
        else:
            calls += self._lost_ranges(ledger, row)
        self.ranges = group_pairs((parse_rank(part.stem), part) for part in merge_ranges(calls))

    def pieces(self, rank: int) -> Iterator[Piece]:
        """Yield the output of a rank as pieces, in the order in which the rank wrote them."""
        for part in self.ranges.get(rank, ()):
            yield from merge_streams(self.folder, *part)

    def lines(self, rank: int) -> Iterator[Line]:
        """Yield the lines of a rank, numbered from 0. Unfinished last lines come at the end."""
        for batch in self.batches(rank):
            yield from (Line(number, text, batch.about) for number, text in enumerate(batch.texts, batch.number))

    def batches(self, rank: int) -> Iterator[LineBatch]:
        """Yield the lines of a rank in batches, for callers that need few of the lines. Batches may be empty."""
        number = 0
        for part in self.ranges.get(rank, ()):
            split = {stream: LineSplitter() for stream in STREAMS}
            about = {stream: LineInfo(stream) for stream in STREAMS}
            for piece in merge_streams(self.folder, *part):
                about[piece.stream] = LineInfo(piece.stream, piece.at, piece.run)
                texts = split[piece.stream].split_lazily(piece.data)
                yield LineBatch(number, texts, about[piece.stream], len(piece.data))
                number += len(texts)
            for stream in STREAMS:
                if texts := split[stream].end():
                    yield LineBatch(number, texts, about[stream], 0)
                    number += len(texts)

    def _ended_ranges(self, ledger: Ledger, row: RunRow) -> list[LogRange]:
        """Return the output of each ended call of a run."""
        found = []
        for _, log in ledger.iter_outcomes(row.run):
            self._check_cancelled()
            # Validate names again, because an older release may have stored names of nodes without validation.
            for stem in sorted({name.rpartition(".")[0] for name in log if is_log_name(name)}):
                (out, err), (out_end, err_end) = zip(
                    *(log.get(f"{stem}.{name}", (0, 0)) for name in STREAMS), strict=True
                )
                if out_end > out or err_end > err:
                    found.append(LogRange(stem, (out, err), (out_end, err_end)))
        return found

    def _running_ranges(self, ledger: Ledger, row: RunRow, ended: list[LogRange]) -> list[LogRange]:
        """Return the output of the active calls of a run: the bytes after all ended calls and exited workers."""
        starts: dict[str, Place] = {}
        for other in ledger.runs(row.token):
            for part in ended if other.run == row.run else self._ended_ranges(ledger, other):
                at = starts.get(part.stem, (0, 0))
                starts[part.stem] = (max(at[0], part.end[0]), max(at[1], part.end[1]))
        found = []
        for stem in sorted({path.stem for path in log_files(self.folder) if path.suffix in (OUT, ERR)}):
            start = starts.get(stem, (0, 0))
            out, err = end_place(self.folder, stem)
            end = max(start[0], out), max(start[1], err)
            for mark in first_marks(self.folder, stem, start) if end != start else ():
                if mark.run == row.run:
                    break
                if mark.kind == AFTER and mark.run:  # The worker of an earlier run printed this output while it exited.
                    start = min(max(start[0], mark.out), end[0]), min(max(start[1], mark.err), end[1])
            if end != start:
                found.append(LogRange(stem, start, end))
        return found

    def _lost_ranges(self, ledger: Ledger, row: RunRow) -> list[LogRange]:
        """Return the output of calls on lost nodes. Order marks show its ranges, because lost nodes reported none."""
        lost: set[int] = set()
        for outcome, _ in ledger.iter_outcomes(row.run):
            self._check_cancelled()
            if outcome.kind == "lost":
                lost.add(outcome.rank)
        stems = {path.stem for path in log_files(self.folder)} if lost else set()
        found = ((stem, self._marked_range(stem, row.run)) for stem in sorted(stems) if parse_rank(stem) in lost)
        return [LogRange(stem, *ends) for stem, ends in found if ends is not None]

    def _marked_range(self, stem: str, run: str) -> tuple[Place, Place] | None:
        """Return the range of a run in a worker's output, according to its order marks; None if they lack the run."""
        try:
            marks = decode_marks((self.folder / f"{stem}{MARKS}").read_bytes())
        except FileNotFoundError:
            return None
        start: Place | None = None
        end = last = (0, 0)
        follows = False  # whether output after the last order mark belongs to this run
        for mark in marks:
            at = (mark.out, mark.err)
            if mark.run == run:
                start, end = start or (at if mark.kind == BEFORE else last), at
            elif follows:
                end = at
            follows, last = mark.run == run and mark.kind == BEFORE, at
        if marks and marks[-1].run == run:
            # The last mark belongs to this run, so all later output belongs to it, too.
            end = end_place(self.folder, stem)
        return None if start is None else (start, end)


def merge_ranges(parts: list[LogRange]) -> list[LogRange]:
    """Return ranges in order, with adjacent and overlapping ones merged."""
    out: list[LogRange] = []
    for stem, start, end in sorted(parts):
        if out and out[-1].stem == stem and start[0] <= out[-1].end[0] and start[1] <= out[-1].end[1]:
            last = out.pop()
            end = max(end[0], last.end[0]), max(end[1], last.end[1])
            start = min(start[0], last.start[0]), min(start[1], last.start[1])
        out.append(LogRange(stem, start, end))
    return out


SEEK_STRIDE_LINES = 512  # minimum number of lines between two seek points
SMALL_PIECE_BYTES = 16 << 10  # bytes read from a log file at once if few lines are requested
# Number of last lines of a ring buffer that are searched for in the files, to find the buffer's place there.
RING_TAIL_LINES = 64
# Number of lines at the end of the files in which the last lines of a ring buffer are searched for: first, and at most.
FIRST_SEARCH_LINES, MAX_SEARCH_LINES = 1_000, 20_000


@dataclass(frozen=True, slots=True)
class _SeekPoint:
    """Position at which reading can resume, with the unfinished lines at that position."""

    number: int
    part: int
    place: Place
    splitters: dict[str, LineSplitter] = field(default_factory=lambda: {stream: LineSplitter() for stream in STREAMS})
    about: dict[str, LineInfo] = field(default_factory=lambda: {stream: LineInfo(stream) for stream in STREAMS})

    def copy(self) -> _SeekPoint:
        begun = {stream: copy.copy(lines) for stream, lines in self.splitters.items()}
        return _SeekPoint(self.number, self.part, self.place, begun, dict(self.about))


class StoredLines:
    """Lines of a rank's log files at one moment.

    Args:
        folder: Folder of the files.
        parts: Output of the rank's workers in the run.
        whole: Whether the run has ended, so that a last line without newline counts.

    Attributes:
        count: Number of lines.
    """

    def __init__(self, folder: Path, parts: Sequence[LogRange], *, whole: bool) -> None:
        self._folder = folder
        self._ranges = list(parts)
        self._is_finished = whole
        self._seek_points = [_SeekPoint(0, 0, parts[0].start if parts else (0, 0))]
        self.count = 0
        # times in the log, which never decrease, and for each of them the number of its first line
        self._times, self._numbers = array("d"), array("q")
        for _, spot in self._read_from(self._seek_points[0].copy(), lambda text: False):
            latest = max(about.at or 0.0 for about in spot.about.values())
            if spot.number > self.count and (not self._times or latest > self._times[-1]):
                self._times.append(latest)
                self._numbers.append(self.count)
            self.count = spot.number
            if spot.number >= self._seek_points[-1].number + SEEK_STRIDE_LINES:
                self._seek_points.append(spot.copy())

    @classmethod
    def for_rank(cls, logs: RunLogs, rank: int, *, whole: bool) -> StoredLines:
        """Return the lines of a rank in a run. Takes as long as reading all of them.

        Raises:
            OSError: If a file cannot be read.
        """
        return cls(logs.folder, logs.ranges.get(rank, ()), whole=whole)

    def read(self, start: int, stop: int, may: Callable[[str], bool] | None = None) -> list[Line]:
        """Return the lines from ``start`` up to, but not including, ``stop``.

        Args:
            start: First line.
            stop: Line after the last one.
            may: Called with the text of many lines. If it returns False, all of these lines are skipped.
        """
        found: list[Line] = []
        if start >= min(stop, self.count):
            return found
        place = bisect_right(self._seek_points, start, key=lambda spot: spot.number) - 1
        piece = PIECE_BYTES if stop - start > SEEK_STRIDE_LINES else SMALL_PIECE_BYTES
        for lines, spot in self._read_from(self._seek_points[place].copy(), may, piece):
            if spot.number > start:
                found += [line for line in lines if start <= line.number < stop]
            if spot.number >= stop:
                break
        return found

    def find_ring_offset(self, end: int, tail: Sequence[str]) -> int:
        """Return the number that line 0 of a ring buffer has in the files.

        Args:
            end: Number of the line after the buffer's last line.
            tail: Last lines of the buffer, which are searched for in the files.
        """
        for most in (FIRST_SEARCH_LINES, MAX_SEARCH_LINES) if tail else ():
            first = max(0, self.count - most)
            texts = [line.text for line in self.read(first, self.count)]
            for stop in range(len(texts), len(tail) - 1, -1):
                if texts[stop - 1] == tail[-1] and texts[stop - len(tail) : stop] == list(tail):
                    return first + stop - end
        # An empty buffer of an active run begins with line 0 of the run.
        return max(0, self.count - end) if tail or self._is_finished else 0

    def timed_ranges(self, place: int, stop: int) -> Iterator[tuple[float, int, int, int]]:
        """Yield the lines before ``stop`` as ranges of numbers: time, which never decreases, ``place``, start, end."""
        for at, (start, end) in zip(self._times, pairwise(chain(self._numbers, [self.count])), strict=True):
            if start < stop:
                yield at, place, start, min(end, stop)

    def _read_from(
        self, spot: _SeekPoint, may: Callable[[str], bool] | None = None, size: int = PIECE_BYTES
    ) -> Iterator[tuple[list[Line], _SeekPoint]]:
        """Read from a position on. Yield the finished lines of each piece that ``may`` does not exclude, and the
        position after the piece.
        """
        while spot.part < len(self._ranges):
            part = self._ranges[spot.part]
            for piece in merge_streams(self._folder, part.stem, spot.place, part.end, size):
                spot.about[piece.stream] = about = LineInfo(piece.stream, piece.at, piece.run)
                after = piece.offset + len(piece.data)
                place = (after, spot.place[1]) if piece.stream == "out" else (spot.place[0], after)
                texts = spot.splitters[piece.stream].split_lazily(piece.data)
                lines: list[Line] = []
                if may is None or (texts and may(join_lines(texts))):
                    lines = [Line(number, text, about) for number, text in enumerate(texts, spot.number)]
                spot = _SeekPoint(spot.number + len(texts), spot.part, place, spot.splitters, spot.about)
                yield lines, spot
            lines = self._unfinished_lines(spot)
            following = spot.part + 1
            start = self._ranges[following].start if following < len(self._ranges) else (0, 0)
            spot = _SeekPoint(spot.number + len(lines), following, start)
            yield lines, spot

    def _unfinished_lines(self, spot: _SeekPoint) -> list[Line]:
        """Return the last lines of a part that have no newline, unless more output of the worker may follow."""
        lines: list[Line] = []
        if self._is_finished or spot.part < len(self._ranges) - 1:
            for stream in STREAMS:
                for text in spot.splitters[stream].end():
                    lines.append(Line(spot.number + len(lines), text, spot.about[stream]))
        return lines


class MergedLines(StoredLines):
    """Lines of all ranks' log files before the lines of a ring buffer, merged by time, with the prefixes of the ranks.

    Args:
        ring: The buffer, of merged lines. Each rank's lines in the files end at its first line in the buffer.
        open_logs: Opens the logs of the run.
        whole: Whether the run has ended.
    """

    def __init__(self, ring: Ring, open_logs: Callable[[], RunLogs], *, whole: bool) -> None:
        buffered = ring.read(0, ring.end)
        self._first = buffered[0].number if buffered else ring.end
        tails: dict[str, list[str]] = {}
        for line in buffered:
            prefix, bar, text = line.text.partition("| ")
            tails.setdefault(prefix + bar, []).append(text)
        logs = open_logs()  # after the lines of the buffer were read, so that the files contain these lines
        self._ranks = [
            (rank_prefix(rank), StoredLines.for_rank(logs, rank, whole=whole)) for rank in sorted(logs.ranges)
        ]
        ranges = []
        for place, (prefix, lines) in enumerate(self._ranks):
            tail = tails.get(prefix, [])
            stop = lines.find_ring_offset(len(tail), tail[-RING_TAIL_LINES:]) if tail else lines.count
            ranges.append(lines.timed_ranges(place, stop))
        self.count = 0
        # for each range of lines in merged order: its first number, its rank's place, its first number in that rank;
        # at the end also the number after the last line
        self._starts, self._places, self._numbers = array("q"), array("l"), array("q")
        for _, place, start, end in heapq.merge(*ranges):
            self._starts.append(self.count)
            self._places.append(place)
            self._numbers.append(start)
            self.count += end - start
        self._starts.append(self.count)

    def read(self, start: int, stop: int, may: Callable[[str], bool] | None = None) -> list[Line]:
        stop = min(stop, self.count)
        parts: list[tuple[int, int, int, int]] = []
        spans: dict[int, tuple[int, int]] = {}
        for at in range(max(0, bisect_right(self._starts, start) - 1), bisect_left(self._starts, stop)):
            place, shift = self._places[at], self._numbers[at] - self._starts[at]
            low, high = max(self._starts[at], start), min(self._starts[at + 1], stop)
            parts.append((place, shift, low, high))
            spans[place] = spans.get(place, (low + shift, 0))[0], high + shift
        lines = {place: self._read_rank(place, *span, may) for place, span in spans.items()}
        return [
            Line(number, self._ranks[place][0] + line.text, line.about)
            for place, shift, low, high in parts
            for number in range(low, high)
            if (line := lines[place].get(number + shift)) is not None
        ]

    def _read_rank(self, place: int, start: int, stop: int, may: Callable[[str], bool] | None) -> dict[int, Line]:
        prefix, stored = self._ranks[place]
        check = None if may is None else lambda text: may(prefix + text.replace("\n", f"\n{prefix}"))
        return {line.number: line for line in stored.read(start, stop, check)}

    def find_ring_offset(self, end: int, tail: Sequence[str]) -> int:
        return self.count - self._first


def ring_tail(ring: Ring) -> tuple[int, list[str]]:
    """Return a ring buffer's next line number and last lines, for :meth:`StoredLines.find_ring_offset`."""
    end = ring.end
    return end, ring.lines(max(ring.first, end - RING_TAIL_LINES), end)
