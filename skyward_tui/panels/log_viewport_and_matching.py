"""Search and filter of log lines: typed patterns, numbers of matching lines, and the lines in memory and files.

Searches run in slices and are dropped if a line takes too long, so that no pattern blocks the app.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any

from skyward_core.client.run_history import StoredLines
from skyward_core.util.terminal_safe_text import is_plain_ascii
from skyward_core.views.log_buffers_and_rank_activity import Line, Ring, rank_prefix
from skyward_core.views.log_collapsing import CollapsedRing
from skyward_tui.text.ansi_colours import plain

PATIENCE = 0.5  # seconds of CPU time for the search of one line or one block of lines; a slower pattern is dropped

Span = tuple[int, int, Callable[[int, int], list[Line]]]
NEARBY = 128  # number of lines before and after requested lines that are also read from the files
NEAR = 64  # if a line has no timestamp, number of following lines in which to look for a timestamp


# Parts of a regular expression (negations, anchors, newlines) with which a search in a block of lines may differ from a
# search in each line.
_OF_ONE_LINE = re.compile(r"\(\?(?:[!>(]|<[!=]|[a-zA-Z]*[-s])|\\[AZsWDBnxuUN0-9]|\[\^|[*+?}]\+|\n")


# a brace that the package ``regex`` treats as the start of a fuzzy match; ``re`` treats this brace as text
_FUZZY = re.compile(r"(?<!\\)\{(?!\d*,?\d*\})")


class Pattern:
    """Regular expression. A search raises TimeoutError if it takes too long because of backtracking."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self._limit: dict[str, Any] = {}
        self._compiled: Any
        # a pattern without quantifiers cannot backtrack excessively, so ``re`` is safe without a time limit
        if not re.search(r"[*+?{]", text):
            self._compiled = re.compile(text, flags)
            return
        import regex  # imported late, because the import takes 20 ms and most searches are for a plain word

        try:
            self._compiled = regex.compile(_FUZZY.sub(r"\\{", text), flags)
        except regex.error as error:
            raise re.error(str(error)) from None
        self._limit = {"timeout": PATIENCE, "concurrent": True}

    def matches(self, text: str) -> bool:
        return self._compiled.search(text, **self._limit) is not None

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of all matches that are not empty."""
        return [match.span() for match in self._compiled.finditer(text, **self._limit) if match.end() > match.start()]


@dataclass(frozen=True, slots=True)
class Matcher:
    """Search or filter: a regular expression, or literal text if the text is not a valid expression.

    A pattern in lower case ignores case.

    Attributes:
        among: Pattern that the line's start must match, to select ranks.
        scan: Pattern for a block of lines, which matches if any line of the block may match. None if searching blocks
            would be unreliable or slow.
        lower_scan: Like ``scan``, for a block of ASCII text that is converted to lower case before the search, because
            ``re`` takes seven times as long to ignore case.
    """

    text: str
    pattern: Pattern
    invert: bool = False
    among: re.Pattern[str] | None = None
    scan: Pattern | None = None
    lower_scan: Pattern | None = None

    @classmethod
    def parse(cls, text: str, *, invertible: bool = False) -> Matcher | None:
        """Parse a typed pattern; return None if it is empty.

        Args:
            invertible: Whether a leading ``!`` inverts the pattern.
        """
        invert = invertible and text.startswith("!")
        body = text[1:] if invert else text
        if not body:
            return None
        flags = re.IGNORECASE if body == body.lower() else re.NOFLAG
        try:
            pattern = Pattern(body, flags)
        except (re.error, OverflowError):
            body = re.escape(body)
            pattern = Pattern(body, flags)
        if _OF_ONE_LINE.search(body):
            return cls(text, pattern, invert)
        # A pattern with a character range is not searched in lower-case text, because a range such as ``[A-z]`` may
        # include upper-case letters.
        lower = Pattern(body, re.MULTILINE) if flags and body.isascii() and "[" not in body else None
        return cls(text, pattern, invert, scan=Pattern(body, flags | re.MULTILINE), lower_scan=lower)

    @classmethod
    def for_ranks(cls, ranks: Iterable[int], within: Matcher | None) -> Matcher:
        """Return a matcher for the merged log of all ranks. It accepts lines of the given ranks that also match
        ``within``.
        """
        among = re.compile("|".join(re.escape(rank_prefix(rank)) for rank in ranks) or "(?!)")
        return replace(within or cls("", Pattern("")), among=among)

    def may_match(self, text: str) -> bool:
        """Check with a single search whether any line of a block may match; if not, the lines need not be searched."""
        if self.invert or self.scan is None:
            return True
        if text.isascii():
            if "\t" in text or not is_plain_ascii(text.encode()):
                return True
            if self.lower_scan is not None:
                return self.lower_scan.matches(text.lower())
        elif not text.replace("\n", "").isprintable():
            return True
        return self.scan.matches(text)

    def matches(self, text: str) -> bool:
        if self.among is not None and self.among.match(text) is None:
            return False
        return self.pattern.matches(plain(text)) is not self.invert

    def spans(self, shown: str) -> list[tuple[int, int]]:
        """Return the spans of matches in a displayed line."""
        if self.invert:
            return []
        try:
            return self.pattern.spans(shown)
        except TimeoutError:
            return []


class MatchIndex:
    """Line numbers of matches, updated incrementally.

    Attributes:
        begin: Number of the first line that was searched; :func:`search_files` searches earlier lines.
    """

    def __init__(self, matcher: Matcher, begin: int) -> None:
        self.matcher = matcher
        self.numbers: list[int] = []
        self.begin = begin
        self._seen = begin
        self._version = 0

    def update(self, window: LogViewport) -> None:
        # The label of a collapsed line may still gain ranks, so search all changed lines again.
        if isinstance(window.ring, CollapsedRing):
            changed = max(self.begin, window.ring.changed_since(self._version))
            self._version = window.ring.version
            if changed < self._seen:
                del self.numbers[bisect_left(self.numbers, changed) :]
                self._seen = changed
        for line in window.unfiltered(max(self._seen, window.oldest), window.end):
            if line.number > self._seen:  # the ring has dropped lines since the last call; they are only in the files
                self.begin = line.number
            if self.matcher.matches(line.text):
                self.numbers.append(line.number)
            self._seen = line.number + 1
        evicted = bisect_left(self.numbers, window.first)
        if evicted > 4096 or evicted > len(self.numbers) // 2:
            del self.numbers[:evicted]

    def shift(self, offset: int) -> None:
        """Add an offset to all line numbers."""
        self.numbers = [number + offset for number in self.numbers]
        self.begin += offset
        self._seen += offset

    def add_earlier(self, numbers: list[int], begin: int = 0) -> None:
        """Add the numbers of matches in earlier lines. ``begin`` is the first line that was searched."""
        self.numbers = [*numbers, *self.numbers[bisect_left(self.numbers, self.begin) :]]
        self.begin = begin


class LogViewport:
    """Readable lines of a ring buffer, and of the files with earlier lines.

    While frozen, the lines at the time of :meth:`freeze` stay readable although the ring drops them.

    Attributes:
        timed_out_text: Text of a filter or search that was dropped because it was too slow.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.stored: StoredLines | None = None
        self.base = 0  # line number of the first line in the ring buffer
        self.filter: MatchIndex | None = None
        self.search: MatchIndex | None = None
        self.timed_out_text = ""
        self._frozen_lines: list[Line] = []
        self._nearby: list[Line] = []  # lines of the files around those that were last read from there

    @property
    def oldest(self) -> int:
        """Number of the oldest line that is readable from memory."""
        return self._frozen_lines[0].number if self._frozen_lines else self.base + self.ring.first

    @property
    def first(self) -> int:
        """Number of the oldest line that is readable from memory or files."""
        return 0 if self.stored is not None and self.stored.count else self.oldest

    @property
    def end(self) -> int:
        return self.base + self.ring.end

    def open_files(self, stored: StoredLines, base: int) -> int:
        """Add the files with the lines before those in the ring.

        Args:
            base: Line number in the files that corresponds to the ring's first line.

        Returns:
            Offset that was added to all line numbers.
        """
        shift, self.stored, self.base = base - self.base, stored, base
        self._nearby = []
        frozen = [line._replace(number=line.number + shift) for line in self._frozen_lines]
        self._frozen_lines = [line for line in frozen if line.number >= stored.count]
        for hits in filter(None, (self.filter, self.search)):
            hits.shift(shift)
            # Merged files have the lines in order of time, and the ring had them in order of arrival.
            hits.begin = max(hits.begin, min(stored.count, base + self.ring.first))
        return shift

    def freeze(self) -> None:
        """Keep the current lines readable, even if the ring drops them."""
        self._frozen_lines = self._from_ring(0, self.end)

    def unfreeze(self) -> None:
        self._frozen_lines = []

    def update(self) -> None:
        """Apply filter and search to the lines that were added since the last call."""
        for hits in filter(None, (self.filter, self.search)):
            try:
                hits.update(self)
            except TimeoutError:
                self.abort_search(hits)

    def abort_search(self, hits: MatchIndex) -> None:
        """Drop the filter or the search whose pattern is too slow, and store its text for a message."""
        self.filter = None if hits is self.filter else self.filter
        self.search = None if hits is self.search else self.search
        self.timed_out_text = self.timed_out_text or hits.matcher.text

    def set_filter(self, matcher: Matcher | None) -> None:
        self.filter = None if matcher is None else MatchIndex(matcher, self.oldest)
        self.update()

    def set_search(self, matcher: Matcher | None) -> None:
        self.search = None if matcher is None else MatchIndex(matcher, self.oldest)
        self.update()

    def unfiltered(self, start: int, stop: int) -> list[Line]:
        """Return lines by number, regardless of the filter; unavailable lines are omitted."""
        lines: list[Line] = []
        for low, high, read in self._spans():
            if (begin := max(start, low)) < (end := min(stop, high)):
                lines += read(begin, end)
        return lines

    def lines_after(self, number: int, count: int) -> list[Line]:
        """Return the first ``count`` visible lines whose number is at least ``number``."""
        if self.filter is not None:
            place = bisect_left(self.filter.numbers, max(number, self.first))
            return self._read_lines(self.filter.numbers[place : place + count])
        lines: list[Line] = []
        for low, high, read in self._spans():
            if (begin := max(number, low)) < high and len(lines) < count:
                lines += read(begin, min(high, begin + count - len(lines)))
        return lines

    def lines_before(self, number: int, count: int) -> list[Line]:
        """Return the last ``count`` visible lines whose number is less than ``number``, in order."""
        if count <= 0:
            return []
        if self.filter is not None:
            place = bisect_left(self.filter.numbers, number)
            return self._read_lines(self.filter.numbers[max(0, place - count) : place])
        lines: list[Line] = []
        for low, high, read in reversed(self._spans()):
            if (end := min(number, high)) > low and len(lines) < count:
                lines = [*read(max(low, end - count + len(lines)), end), *lines]
        return lines

    def _spans(self) -> list[Span]:
        """Return the readable ranges of lines, in files and in memory, each with a function that reads it. Ranges are
        in order and do not overlap.
        """
        newest = self.base + self.ring.first
        spans: list[Span] = [(newest, self.end, self._from_ring)]
        if self._frozen_lines:
            held = self._frozen_lines[0].number
            frozen: Span = (
                held,
                min(newest, self._frozen_lines[-1].number + 1),
                lambda start, stop: self._frozen_lines[start - held : stop - held],
            )
            spans = [frozen, *spans]
            newest = held
        if self.stored is not None:
            spans = [(0, min(newest, self.stored.count), partial(self._read_stored, self.stored)), *spans]
        return [span for span in spans if span[0] < span[1]]

    def _read_stored(self, stored: StoredLines, start: int, stop: int) -> list[Line]:
        """Read lines from the files. Few lines are read together with those around them, which are often read next."""
        if stop - start > NEARBY:
            return stored.read(start, stop)
        if not self._nearby or start < self._nearby[0].number or stop > self._nearby[-1].number + 1:
            self._nearby = stored.read(max(0, start - NEARBY), stop + NEARBY)
        first = self._nearby[0].number if self._nearby else start
        return self._nearby[start - first : stop - first]

    def _from_ring(self, start: int, stop: int) -> list[Line]:
        lines = self.ring.read(start - self.base, stop - self.base)
        return [line._replace(number=line.number + self.base) for line in lines] if self.base else lines

    def count_newer(self, number: int) -> int:
        """Return the number of lines after a given line that the filter does not hide."""
        if self.filter is not None:
            return len(self.filter.numbers) - bisect_right(self.filter.numbers, number)
        return max(0, self.end - number - 1)

    def find_match(self, start: int, *, backwards: bool = False) -> int | None:
        """Return the number of the next match at or after ``start``. The search continues at the other end of the
        log."""
        if self.search is None:
            return None
        numbers = self.search.numbers
        if self.filter is not None:
            shown = set(self.filter.numbers)
            numbers = [number for number in numbers if number in shown]
        numbers = numbers[bisect_left(numbers, self.first) :]
        if not numbers:
            return None
        if backwards:
            return numbers[bisect_right(numbers, start) - 1]
        return numbers[bisect_left(numbers, start) % len(numbers)]

    def time_of(self, number: int) -> float | None:
        """Return the time when a line was printed. If it has no timestamp, use the next line that has one; None if none
        is near."""
        for low, high, read in self._spans():
            if (begin := max(number, low)) < high:
                for line in read(begin, min(high, begin + NEAR)):
                    if line.about.at is not None:
                        return line.about.at
        return None

    def first_since(self, at: float) -> int:
        """Return the number of the first line printed at or after a time; if there is none, the number after the last
        line.

        The result is approximate if the clocks of ranks differ, because lines are only roughly sorted by time.
        """
        low, high = self.first, self.end
        while low < high:
            middle = (low + high) // 2
            printed = self.time_of(middle)
            if printed is not None and printed < at:
                low = middle + 1
            else:
                high = middle
        return low

    def _read_lines(self, numbers: list[int]) -> list[Line]:
        if not numbers:
            return []
        if numbers[-1] - numbers[0] < 4 * len(numbers):
            requested = set(numbers)
            return [line for line in self.unfiltered(numbers[0], numbers[-1] + 1) if line.number in requested]
        return [line for number in numbers for line in self.unfiltered(number, number + 1)]


# initial and maximum number of lines that are searched before the pane shows the matches so far
SLICE_LINES = 8_192, 524_288
READ_LINES = 32_768  # number of lines per read of the files; a larger read would delay the cancellation of a search


async def search_earlier(window: LogViewport, hits: MatchIndex) -> AsyncIterator[list[int]]:
    """Search the files for a search or filter, the newest lines first, and yield matches. Stops if the search or filter
    is replaced.

    A search that is too slow is dropped.
    """
    stored = window.stored
    size, most = SLICE_LINES
    while stored is not None and hits.begin and hits in (window.filter, window.search):
        begin = max(0, hits.begin - size)
        try:
            numbers = await search_files(stored, hits.matcher, begin, hits.begin)
        except TimeoutError:
            window.abort_search(hits)
            return
        if hits in (window.filter, window.search):
            hits.add_earlier(numbers, begin)
            yield numbers
        size = min(2 * size, most)


async def search_files(stored: StoredLines, matcher: Matcher, start: int, stop: int) -> list[int]:
    """Return the line numbers of matches in ``[start, stop)``. Cancelling the caller ends the search.

    Raises:
        TimeoutError: If the search of a line takes too long.
    """
    cancelled = Event()
    try:
        return await asyncio.to_thread(
            _matching_numbers, stored, matcher, range(start, min(stop, stored.count)), cancelled
        )
    finally:
        cancelled.set()


def _matching_numbers(stored: StoredLines, matcher: Matcher, numbers: range, cancelled: Event) -> list[int]:
    found: list[int] = []
    for at in range(numbers.start, numbers.stop, READ_LINES):
        for line in stored.read(at, min(at + READ_LINES, numbers.stop), matcher.may_match):
            if cancelled.is_set():
                return []
            if matcher.matches(line.text):
                found.append(line.number)
    return found
