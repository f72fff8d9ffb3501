"""Collapsing of equal lines of several ranks into one row.

A line joins a row with the same text and stream that began at about the same time, if that row is below all rows with
earlier lines of the same rank. A rank that prints the same line twice therefore has two rows, and the rows of a rank
show its lines in order. On request, texts that differ only in times and numbers are the same, and a row shows the span
of their values.

Rows never move. A line that a rank prints after a unique line therefore cannot join a row above that line. Lines are
first held for a moment and aligned, so that common lines collapse even if ranks print different lines in between.
"""

from __future__ import annotations

import heapq
import os
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple
from unicodedata import east_asian_width

from skyward_core.util.terminal_safe_text import sanitize_paragraph
from skyward_core.views.log_buffers_and_rank_activity import Line, LineInfo, LineSplitter, LogRing, rank_prefix

MAX_HELD_LINES = 100_000  # maximum number of lines that wait for equal lines; beyond it, lines are released at once
MAX_HELD_CHARS = 8 << 20  # maximum total characters of the lines that wait for equal lines

Key = tuple[str, str]  # identity of a line: its stream and its text


_STAMP = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?|\d?\d:\d\d:\d\d(?:[.,]\d+)?"
# The digits of escape sequences for colors are not numbers.
_NUMBER = r"0[xX][0-9a-fA-F]+|(?:(?<![\w.)\]])[-+])?(?<!\x1b\[)(?<![;\d])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_VALUE = re.compile(f"{_STAMP}|{_NUMBER}")
Span = tuple[str, str]  # smallest and largest value at one place of similar lines, as printed


def line_template(text: str) -> str:
    """Return a text with its times and numbers replaced, so that similar texts become equal."""
    # Newlines cannot occur in a line, so texts become equal only if they differ in nothing but times and numbers.
    return _VALUE.sub("\n", text)


def _value_order(value: str) -> tuple[float, str]:
    try:
        return float(int(value, 16)) if value[:2] in ("0x", "0X") else float(value), ""
    except (ValueError, OverflowError):
        return 0.0, value


class HeldLine(NamedTuple):
    """Line of a rank that waits for equal lines of others. ``at``: arrival time on the client's monotonic clock."""

    rank: int
    text: str
    about: LineInfo
    at: float
    key: Key


class HeldLines:
    """Queue of each rank's lines that wait for equal lines of other ranks.

    The cost of a line is about that of a heap operation, for any number of ranks.

    Args:
        similar: Whether texts that differ only in times and numbers are equal.
    """

    def __init__(self, *, similar: bool = False) -> None:
        self._similar = similar
        self._queues: dict[int, deque[HeldLine]] = {}
        self._size = self._length = 0
        self._places: dict[Key, dict[int, int]] = {}  # key -> number of queued lines with this key, for each rank
        self._first: dict[Key, set[int]] = {}  # key -> ranks whose next queued line has this key
        # heap of keys whose line is the next one of every rank that has the line in its queue
        self._ready: list[tuple[float, int, Key]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._size

    def put(self, rank: int, text: str, about: LineInfo, at: float) -> None:
        """Add a rank's next line to its queue."""
        key = about.stream, line_template(text) if self._similar else text
        line = HeldLine(rank, text, about, at, key)
        queue = self._queues.setdefault(rank, deque())
        queue.append(line)
        self._size += 1
        self._length += len(text)
        ranks = self._places.setdefault(line.key, {})
        ranks[rank] = ranks.get(rank, 0) + 1
        if len(queue) == 1:
            self._mark_first(line)

    def release_until(self, until: float) -> Iterator[HeldLine]:
        """Yield all waiting lines that arrived until a time. Also yield lines that must precede or accompany them."""
        while self._size and (line := self._next_line(until)) is not None:
            yield from [self._pop_line(rank) for rank in sorted(self._first[line.key])]

    def release_all(self) -> Iterator[HeldLine]:
        """Yield all waiting lines."""
        return self.release_until(float("inf"))

    def _next_line(self, until: float) -> HeldLine | None:
        """Return the line to release next; None if all lines can still wait.

        The caller then releases the equal lines at the front of all queues.
        """
        best = self._peek()
        if best is not None and best.at <= until:
            return best
        oldest = min((queue[0] for queue in self._queues.values() if queue), key=lambda line: line.at)
        if oldest.at > until and self._size <= MAX_HELD_LINES and self._length <= MAX_HELD_CHARS:
            return None
        # If every line waits for ranks that must print other lines first, release a line that most ranks print next.
        return best or max(
            (queue[0] for queue in self._queues.values() if queue),
            key=lambda line: (line.at <= until, len(self._first[line.key]), -line.at),
        )

    def _peek(self) -> HeldLine | None:
        """Return the oldest line that is at the front of all queues with an equal line; None if there is none."""
        while self._ready:
            _, _, key = self._ready[0]
            first = self._first.get(key)
            if first and len(first) == len(self._places[key]):
                return min((self._queues[rank][0] for rank in first), key=lambda line: line.at)
            heapq.heappop(self._ready)
        return None

    def _mark_first(self, line: HeldLine) -> None:
        first = self._first.setdefault(line.key, set())
        first.add(line.rank)
        if len(first) == len(self._places[line.key]):
            self._count += 1
            heapq.heappush(self._ready, (min(self._queues[rank][0].at for rank in first), self._count, line.key))

    def _pop_line(self, rank: int) -> HeldLine:
        queue = self._queues[rank]
        line = queue.popleft()
        self._size -= 1
        self._length -= len(line.text)
        first, places = self._first[line.key], self._places[line.key]
        first.discard(rank)
        places[rank] -= 1
        if not places[rank]:
            del places[rank]
        if not places:
            del self._places[line.key]
        if not first:
            del self._first[line.key]
        if queue:
            self._mark_first(queue[0])
        return line


JOIN_SECONDS = 10.0  # maximum seconds between a row's first line and a line that joins the row, by the nodes' clocks
HOLD_SECONDS = 1.0  # seconds that a line waits for equal lines of other ranks
MAX_CHANGES = 64  # number of latest updates for which the first changed row is stored
MAX_TRIED_ROWS = 32  # maximum number of rows with equal text that a line tries to join
MAX_NAMED_RANGES = 4  # maximum number of ranks and ranges in a row's label


@dataclass(slots=True)
class FoldedLine:
    """One row of collapsed output: one text, and the ranks that printed it.

    Attributes:
        number: Absolute number of the row.
        text: The text.
        about: Stream, time and run of the first line.
        ranks: Bit set of the ranks; 0 for a remark about missing lines.
        shown: Cached text with the label.
        spans: Spans of the times and numbers in the texts; () if all texts are equal.
    """

    number: int
    text: str
    about: LineInfo
    ranks: int
    shown: str = ""
    spans: Sequence[Span] = ()

    @property
    def span_text(self) -> str:
        """The row's text, with the smallest and largest value in place of each time and number that differs."""
        spans = iter(self.spans)
        return _VALUE.sub(lambda _: _format_span(next(spans)), self.text) if self.spans else self.text

    def widen(self, text: str) -> None:
        """Extend the spans of the row by the times and numbers of a similar text."""
        if text == self.text and not self.spans:
            return
        values = _VALUE.findall(text)
        spans = self.spans or [(value, value) for value in _VALUE.findall(self.text)]
        self.spans = [
            (min(low, value, key=_value_order), max(high, value, key=_value_order))
            for (low, high), value in zip(spans, values, strict=True)
        ]


def _format_span(span: Span) -> str:
    low, high = span
    return low if _value_order(low) == _value_order(high) else f"{low}…{high}"


class LineFolder:
    """Folder of equal lines into rows, of which the last ``capacity`` are in memory.

    The cost of a line is independent of the number of ranks and nearly independent of the number of rows.

    Args:
        capacity: Number of rows in memory.
        similar: Whether texts that differ only in times and numbers are equal.
    """

    def __init__(self, capacity: int = 10_000, *, similar: bool = False) -> None:
        self._similar = similar
        self.first = 0  # number of the oldest row in memory
        self.end = 0
        self._capacity = capacity
        self._rows: dict[int, FoldedLine] = {}
        self._equal: dict[tuple[str, str], list[int]] = {}  # (stream, text) -> numbers of the rows with this text
        self._last: dict[int, int] = {}  # rank -> number of the row that contains its last line

    def add(self, rank: int, text: str, about: LineInfo) -> FoldedLine:
        """Add a rank's next line to a row with an equal text, or to a new row. Return the row."""
        key = self._key(about, text)
        numbers = self._equal.setdefault(key, [])
        row = self._find_joinable(numbers, self._last.get(rank, -1), about)
        if row is None:
            row = self.append(FoldedLine(self.end, text, about, 0))
            self._equal.setdefault(key, numbers).append(row.number)
        elif self._similar:
            row.widen(text)
        row.ranks |= 1 << rank
        row.shown = ""
        self._last[rank] = row.number
        return row

    def _key(self, about: LineInfo, text: str) -> Key:
        return about.stream, line_template(text) if self._similar else text

    def read(self, start: int, stop: int) -> Iterator[FoldedLine]:
        """Yield the rows in memory that are in a range of numbers."""
        return (self._rows[number] for number in range(max(start, self.first), min(stop, self.end)))

    def release_settled(self, now: float) -> Iterator[FoldedLine]:
        """Drop and yield the oldest rows that no line printed at ``now`` or later can join."""
        while self.first < self.end:
            at = self._rows[self.first].about.at
            if at is None or now - at <= JOIN_SECONDS:
                return
            yield self._drop_oldest()

    def release_all(self) -> Iterator[FoldedLine]:
        """Drop and yield all rows in memory."""
        while self.first < self.end:
            yield self._drop_oldest()

    def _find_joinable(self, numbers: list[int], last: int, about: LineInfo) -> FoldedLine | None:
        place = bisect_right(numbers, last)
        for number in numbers[place : place + MAX_TRIED_ROWS]:
            row = self._rows[number]
            if about.at is None or row.about.at is None or abs(about.at - row.about.at) <= JOIN_SECONDS:
                return row
        return None

    def append(self, row: FoldedLine) -> FoldedLine:
        """Append a row, and return it."""
        self._rows[row.number] = row
        self.end += 1
        while self.end - self.first > self._capacity:
            self._drop_oldest()
        return row

    def _drop_oldest(self) -> FoldedLine:
        row = self._rows.pop(self.first)
        self.first += 1
        if row.ranks:
            key = self._key(row.about, row.text)
            numbers = self._equal[key]
            del numbers[0]
            if not numbers:
                del self._equal[key]
        return row


class CollapsedRing:
    """Buffer of collapsed rows of all ranks' lines, with the interface of :class:`Ring`.

    Labels of recent rows may still change. Row numbers and texts never change.

    Args:
        source: Buffer of all ranks' merged lines. Each line begins with its rank.
    """

    def __init__(self, source: LogRing) -> None:
        self.source = source
        self.version = 0
        self._folder = LineFolder(source.capacity)
        self._seen = 0
        self._state: tuple[int, int] | None = None
        self._world = 0
        self._held = HeldLines()
        # latest updates: their version, and the number of the first row that they changed
        self._changes: deque[tuple[int, int]] = deque(maxlen=MAX_CHANGES)

    @property
    def first(self) -> int:
        """Number of the oldest row in memory."""
        return self._folder.first

    @property
    def end(self) -> int:
        """Number of the next row."""
        return self._folder.end

    def update(self, world: int, now: float | None = None) -> None:
        """Process the new lines of the source. The newest lines are held, and shown by a later call.

        Args:
            world: Number of ranks.
            now: Seconds of a monotonic clock. None: the present time.
        """
        now, state = monotonic() if now is None else now, (self.source.version, world)
        if state == self._state and not self._held:
            return
        first, version = self._state is None, self._state and self._state[0]
        self._state = state
        changed = before = self.end
        if world != self._world:
            self._world, changed = world, self.first
            for row in self._folder.read(0, self.end):
                row.shown = ""
        lines = self.source.read(self._seen, self.source.end)
        if lines and (missing := lines[0].number - self._seen):
            changed = min(changed, self._fold_lines(self._held.release_all()))
            remark = f"⋯ {missing:,} earlier lines are not in memory"
            self._folder.append(FoldedLine(self.end, remark, LineInfo("out"), 0))
        for line in lines:
            # In the merged log, each line begins with its rank, as in "r003| text".
            prefix, _, text = line.text.partition("| ")
            self._held.put(int(prefix[1:]), text, line.about, now)
            self._seen = line.number + 1
        changed = min(
            changed,
            self._fold_lines(self._held.release_all() if first else self._held.release_until(now - HOLD_SECONDS)),
        )
        if changed < before or self.end > before or version != state[0]:
            # A new version of the source without new lines may mean that unfinished lines have changed.
            self.version += 1
            self._changes.append((self.version, changed))

    def changed_since(self, version: int) -> int:
        """Return the number of the first row whose label may have changed since the given version."""
        if not self._changes or self._changes[-1][0] <= version:
            return self.end
        if self._changes[0][0] > version + 1:
            return self.first
        return min(row for number, row in self._changes if number > version)

    def _fold_lines(self, lines: Iterator[HeldLine]) -> int:
        """Fold lines into rows. Return the number of the first changed row."""
        changed = self.end
        for line in lines:
            changed = min(changed, self._folder.add(line.rank, line.text, line.about).number)
        return changed

    def lines(self, start: int, stop: int) -> list[str]:
        """Return the rows of a range of numbers as text."""
        return [line.text for line in self.read(start, stop)]

    def read(self, start: int, stop: int) -> list[Line]:
        """Return the rows of a range of numbers as lines with properties."""
        return [Line(row.number, self._row_text(row), row.about) for row in self._folder.read(start, stop)]

    def pending(self) -> list[str]:
        """Return the unfinished last line of each rank."""
        return self.source.pending()

    def _row_text(self, row: FoldedLine) -> str:
        row.shown = row.shown or format_row(row, self._world)
        return row.shown


def format_row(row: FoldedLine, world: int) -> str:
    """Return a row as a line of text: the label with its ranks, then its text."""
    return f"{format_ranks(row.ranks, world):{len(str(world)) + 1}}| {row.span_text}" if row.ranks else row.text


def format_ranks(ranks: int, world: int) -> str:
    """Format a set of ranks: ``x32``, ``r5 r17``, ``r0-r7``, ``x30, not r5 r17``; only the first few of many.

    Args:
        ranks: Bit set of the ranks.
        world: Number of ranks.
    """
    count = ranks.bit_count()
    missing = ((1 << world) - 1) & ~ranks
    if not missing and count > 1:
        return f"x{count}"
    did, did_not = _ranges(ranks), _ranges(missing)
    if missing and 2 * count > world and len(did_not) <= len(did):
        return f"x{count}, not {_join_ranges(did_not)}"
    return _join_ranges(did) if len(did) <= MAX_NAMED_RANGES else f"x{count}: {_join_ranges(did)}"


def list_ranks(ranks: int) -> list[int]:
    """Return the ranks of a bit set."""
    return [rank for rank in range(ranks.bit_length()) if ranks >> rank & 1]


def _ranges(ranks: int) -> list[str]:
    """Return the numbers in a bit set as ranges. The time is proportional to the number of ranges."""
    found = []
    at = 0
    while ranks:
        gap = (ranks & -ranks).bit_length() - 1
        ranks >>= gap
        length = (~ranks & (ranks + 1)).bit_length() - 1
        begin, end = at + gap, at + gap + length - 1
        found += [f"r{begin}-r{end}"] if length > 2 else [f"r{rank}" for rank in range(begin, end + 1)]
        ranks >>= length
        at = end + 1
    return found


def _join_ranges(ranges: list[str]) -> str:
    return " ".join(ranges[:MAX_NAMED_RANGES]) + (" …" if len(ranges) > MAX_NAMED_RANGES else "")


ERASE = "\r\x1b[J"


def partial_lines(ranks: Iterable[tuple[int, LineSplitter]], *, prefixed: bool = True) -> list[str]:
    """Return the unfinished lines of the ranks as text without colors, ordered by rank.

    Args:
        ranks: Each rank, with the splitter of the stream on which it printed last.
        prefixed: Whether each line begins with its rank.
    """
    found = []
    for rank, lines in sorted(ranks, key=lambda each: each[0]):
        if text := sanitize_paragraph(lines.preview()).rstrip():
            found.append(f"{rank_prefix(rank)}{text}" if prefixed else text)
    return found


class LiveLines:
    """Renderer of unfinished lines that are redrawn below the log. The caller writes its output to the terminal.

    Args:
        size: Returns the size of the terminal. The lines take at most half of its height.
    """

    def __init__(self, size: Callable[[], os.terminal_size]) -> None:
        self._size = size
        self._drawn_lines: list[str] = []

    def render(self, lines: list[str]) -> str:
        """Return the terminal output that replaces the unfinished lines shown now; "" if nothing changes."""
        columns, rows = self._size()
        room = max(1, rows // 2)
        if len(lines) > room:
            shown = lines[: room - 1]
            lines = [*shown, f"… and {len(lines) - len(shown)} more ranks"]
        lines = [clip_cells(line, columns - 1) for line in lines]
        if lines == self._drawn_lines:
            return ""
        output = self.render_erase()
        self._drawn_lines = lines
        back = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        return f"{output}{chr(10).join(lines)}\r{back}" if lines else output

    def render_erase(self) -> str:
        """Return the terminal output that erases the unfinished lines; "" if none are shown."""
        if not self._drawn_lines:
            return ""
        self._drawn_lines = []
        return ERASE


def clip_cells(text: str, cells: int) -> str:
    """Cut a text to a number of terminal cells, with an ellipsis if it was too long."""
    taken = 0
    for at, character in enumerate(text):
        taken += 2 if character > "\u10ff" and east_asian_width(character) in "WF" else 1
        if taken >= cells and (taken > cells or at < len(text) - 1):
            return text[:at].rstrip() + "…"
    return text
