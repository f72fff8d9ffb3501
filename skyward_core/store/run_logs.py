"""Log lines read from stored files.

It reads as a stream: of a log of gigabytes, little is in memory.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from skyward_core.model.errors import Hint, UsageError
from skyward_core.protocol.node_paths import ERR, MARKS, OUT
from skyward_core.protocol.output_order_marks import BEFORE, decode_marks
from skyward_core.protocol.validators import is_log_name
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import RunRow
from skyward_core.store.pool_folder import log_files, parse_rank
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views.log_buffer import Line, LineInfo, LineSplitter, Ring, join_lines
from skyward_core.views.stdout_stderr_order import STREAMS, Piece, Place, end_place, merge_streams


class LogRange(NamedTuple):
    """What one worker printed in a run: offsets in its two files.

    Attributes:
        stem: the files' name without its ending.
    """

    stem: str
    start: Place
    end: Place


class LineBatch(NamedTuple):
    """Lines that came together.

    Attributes:
        number: of the first, from 0.
        texts: they; none of many is made before somebody reads it.
        about: what is known of them.
        size: bytes that were read for them.
    """

    number: int
    texts: Sequence[str]
    about: LineInfo
    size: int


class RunLogs:
    """The logs of one run, as the ledger and the client's files have them now.

    Args:
        run: its id.
        check: called again and again while the ledger is read, of which there may be much; what it raises ends that.

    Raises:
        UsageError: no such run.

    Attributes:
        folder: where the files are.
        ranges: rank -> what its workers printed.
    """

    def __init__(self, ledger: Ledger, run: str, check: Callable[[], None] = lambda: None) -> None:
        self._check_cancelled = check
        row = ledger.run(run)
        if row is None:
            raise UsageError(f"no run {run!r} in the ledger", hint=Hint("list-all"))
        self.folder = ensure_pool_folder(ledger.pool(row.token).key) / "logs"
        calls = self._ended_ranges(ledger, row)
        if row.state == "running":
            calls += self._running_ranges(ledger, row, calls)
        else:
            calls += self._lost_ranges(ledger, row)
        self.ranges: dict[int, list[LogRange]] = {}
        for part in merge_ranges(calls):
            self.ranges.setdefault(parse_rank(part.stem), []).append(part)

    def pieces(self, rank: int) -> Iterator[Piece]:
        """What a rank printed, in the order in which it did."""
        for part in self.ranges.get(rank, ()):
            yield from merge_streams(self.folder, *part)

    def lines(self, rank: int) -> Iterator[Line]:
        """The same by lines, numbered from 0, an unfinished last line of each stream at the end."""
        for batch in self.batches(rank):
            for number, text in enumerate(batch.texts, batch.number):
                yield Line(number, text, batch.about)

    def batches(self, rank: int) -> Iterator[LineBatch]:
        """The same lines as they came together, for who looks at few of them; one may have none."""
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
        """What each call of a run that has ended printed."""
        found = []
        for _, log in ledger.iter_outcomes(row.run):
            self._check_cancelled()
            # Names came from a node, perhaps to a release that believed it.
            for stem in sorted({name.rpartition(".")[0] for name in log if is_log_name(name)}):
                (out, err), (out_end, err_end) = zip(
                    *(log.get(f"{stem}.{name}", (0, 0)) for name in STREAMS), strict=True
                )
                if out_end > out or err_end > err:
                    found.append(LogRange(stem, (out, err), (out_end, err_end)))
        return found

    def _running_ranges(self, ledger: Ledger, row: RunRow, ended: list[LogRange]) -> list[LogRange]:
        """What calls of a running run have printed that have not ended: it follows what ended before."""
        starts: dict[str, Place] = {}
        for other in ledger.runs(row.token):
            for part in ended if other.run == row.run else self._ended_ranges(ledger, other):
                at = starts.get(part.stem, (0, 0))
                starts[part.stem] = (max(at[0], part.end[0]), max(at[1], part.end[1]))
        found = []
        stems = {path.stem for path in log_files(self.folder) if path.suffix in (OUT, ERR)}
        for stem in sorted(stems):
            start = starts.get(stem, (0, 0))
            out, err = end_place(self.folder, stem)
            end = max(start[0], out), max(start[1], err)
            if end != start:
                found.append(LogRange(stem, start, end))
        return found

    def _lost_ranges(self, ledger: Ledger, row: RunRow) -> list[LogRange]:
        """What calls printed whose nodes were lost, and so told nobody how far their logs go: as the marks have it."""
        lost: set[int] = set()
        for outcome, _ in ledger.iter_outcomes(row.run):
            self._check_cancelled()
            if outcome.kind == "lost":
                lost.add(outcome.rank)
        stems = {path.stem for path in log_files(self.folder)} if lost else set()
        found = ((stem, self._marked_range(stem, row.run)) for stem in sorted(stems) if parse_rank(stem) in lost)
        return [LogRange(stem, *ends) for stem, ends in found if ends is not None]

    def _marked_range(self, stem: str, run: str) -> tuple[Place, Place] | None:
        """From where to where a worker's marks say that a run wrote; None where they say nothing of it."""
        try:
            marks = decode_marks((self.folder / f"{stem}{MARKS}").read_bytes())
        except FileNotFoundError:
            return None
        start: Place | None = None
        end = last = (0, 0)
        follows = False  # whether what comes behind the last mark is the run's
        for mark in marks:
            at = (mark.out, mark.err)
            if mark.run == run:
                start, end = start or (at if mark.kind == BEFORE else last), at
            elif follows:
                end = at
            follows, last = mark.run == run and mark.kind == BEFORE, at
        if marks and marks[-1].run == run:
            end = end_place(self.folder, stem)  # nobody came after it
        return None if start is None else (start, end)


def merge_ranges(parts: list[LogRange]) -> list[LogRange]:
    """In order; those of calls that ran one after the other, or side by side, as one."""
    out: list[LogRange] = []
    for stem, start, end in sorted(parts):
        if out and out[-1].stem == stem and start[0] <= out[-1].end[0] and start[1] <= out[-1].end[1]:
            last = out.pop()
            end = max(end[0], last.end[0]), max(end[1], last.end[1])
            start = min(start[0], last.start[0]), min(start[1], last.start[1])
        out.append(LogRange(stem, start, end))
    return out


SEEK_STRIDE_LINES = 512  # lines, at least, between two places that are remembered
RING_TAIL_LINES = 64  # lines of a ring that are looked for in the files
MAX_SEARCH_LINES = 20_000  # lines at the files' end in which they are looked for


@dataclass(frozen=True, slots=True)
class _SeekPoint:
    """Where reading can go on: in which part and at what place of it, with the lines begun there."""

    number: int
    part: int
    place: Place
    splitters: dict[str, LineSplitter] = field(default_factory=lambda: {stream: LineSplitter() for stream in STREAMS})
    about: dict[str, LineInfo] = field(default_factory=lambda: {stream: LineInfo(stream) for stream in STREAMS})

    def copy(self) -> _SeekPoint:
        begun = {stream: copy.copy(lines) for stream, lines in self.splitters.items()}
        return _SeekPoint(self.number, self.part, self.place, begun, dict(self.about))


class StoredLines:
    """What the files hold at one moment.

    Args:
        folder: of the files.
        parts: what the rank's workers printed in the run.
        whole: whether the run has ended, so that a last line without a newline is one.

    Attributes:
        count: how many lines there are.
    """

    def __init__(self, folder: Path, parts: Sequence[LogRange], *, whole: bool) -> None:
        self._folder = folder
        self._ranges = list(parts)
        self._is_finished = whole
        start = parts[0].start if parts else (0, 0)
        self._seek_points = [_SeekPoint(0, 0, start)]
        self.count = 0
        for _, spot in self._read_from(self._seek_points[0].copy(), lambda text: False):
            self.count = spot.number
            if spot.number >= self._seek_points[-1].number + SEEK_STRIDE_LINES:
                self._seek_points.append(spot.copy())

    @classmethod
    def for_rank(cls, logs: RunLogs, rank: int, *, whole: bool) -> StoredLines:
        """A rank's lines in a run; see the class. Takes as long as reading them.

        Raises:
            OSError: the files cannot be read.
        """
        return cls(logs.folder, logs.ranges.get(rank, ()), whole=whole)

    def read(self, start: int, stop: int, may: Callable[[str], bool] | None = None) -> list[Line]:
        """Lines ``start`` (inclusive) to ``stop`` (exclusive).

        Args:
            may: whether any line of a text of many lines may be wanted: where it says no, all of these are left out.
        """
        found: list[Line] = []
        if start >= min(stop, self.count):
            return found
        place = bisect_right(self._seek_points, start, key=lambda spot: spot.number) - 1
        for lines, spot in self._read_from(self._seek_points[place].copy(), may):
            if spot.number > start:
                found += [line for line in lines if start <= line.number < stop]
            if spot.number >= stop:
                break
        return found

    def find_ring_offset(self, end: int, tail: Sequence[str]) -> int:
        """The number that a ring's line 0 has here: found by the last lines that it held, ``tail``, before ``end``."""
        if tail:
            first = max(0, self.count - MAX_SEARCH_LINES)
            texts = [line.text for line in self.read(first, self.count)]
            for stop in range(len(texts), len(tail) - 1, -1):
                if texts[stop - 1] == tail[-1] and texts[stop - len(tail) : stop] == list(tail):
                    return first + stop - end
        # A ring that holds nothing yet of a run under way will hold it from its first line.
        return max(0, self.count - end) if tail or self._is_finished else 0

    def _read_from(
        self, spot: _SeekPoint, may: Callable[[str], bool] | None = None
    ) -> Iterator[tuple[list[Line], _SeekPoint]]:
        """Read on from a place, which changes on the way; with every piece the lines that it ended, but for those of
        which ``may`` says no."""
        while spot.part < len(self._ranges):
            part = self._ranges[spot.part]
            for piece in merge_streams(self._folder, part.stem, spot.place, part.end):
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
        """What a part leaves unfinished at its end; where more may come, that is no line yet."""
        lines: list[Line] = []
        if self._is_finished or spot.part < len(self._ranges) - 1:
            for stream in STREAMS:
                for text in spot.splitters[stream].end():
                    lines.append(Line(spot.number + len(lines), text, spot.about[stream]))
        return lines


def ring_tail(ring: Ring) -> tuple[int, list[str]]:
    """The end of a ring and its last lines, for :meth:`StoredLines.find_ring_offset`."""
    end = ring.end
    return end, ring.lines(max(ring.first, end - RING_TAIL_LINES), end)
