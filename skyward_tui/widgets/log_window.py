"""What one reader sees of a log: all of it or the lines that match, at a place that never moves.

The newest lines are in a ring; those before it in files, once somebody wants them. No terminal here: lines have
absolute numbers, and the widget asks for the ones around its place. Numbers that nothing holds are a gap, which the
widget shows.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from skyward_core.front.history import StoredLines
from skyward_core.views.collapsed import CollapsedRing
from skyward_core.views.logs import Line, Ring, prefix_of
from skyward_core.wire.safe_text import is_clean

from ..sgr import plain
from .endless import EndlessSearch, ended

Span = tuple[int, int, Callable[[int, int], list[Line]]]
NEAR = (
    64  # lines after one of which nothing tells when it was printed, in which one with a time is looked for
)


# What asks what a line does not have, where it begins or ends, or may go on from one into the next.
_OF_ONE_LINE = re.compile(r"\(\?(?:[!>(]|<[!=]|[a-zA-Z]*[-s])|\\[AZsWDBnxuUN0-9]|\[\^|[*+?}]\+|\n")


@dataclass(frozen=True, slots=True)
class Matcher:
    """A search: a regular expression, or plain text where it is not one; small letters match capitals too.

    Attributes:
        among: how a line has to begin, too, where only some ranks' lines are wanted.
        scan: the same for a text of many lines: it matches wherever a line of it does. None where that is not sure, or
            would take much longer.
        small: the same for ASCII in small letters, where capitals match, too: six times as quick.
    """

    text: str
    pattern: re.Pattern[str]
    invert: bool = False
    among: re.Pattern[str] | None = None
    scan: re.Pattern[str] | None = None
    small: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, text: str, *, invertible: bool = False) -> Matcher | None:
        """``text`` as typed; with ``invertible`` a leading ``!`` turns it round. Empty gives None."""
        invert = invertible and text.startswith("!")
        body = text[1:] if invert else text
        if not body:
            return None
        flags = re.IGNORECASE if body == body.lower() else re.NOFLAG
        try:
            pattern = re.compile(body, flags)
        except re.error:
            pattern = re.compile(re.escape(body), flags)
        if _OF_ONE_LINE.search(pattern.pattern):
            return cls(text, pattern, invert)
        scan = re.compile(pattern.pattern, flags | re.MULTILINE)
        small = None
        if flags == re.IGNORECASE and "[" not in pattern.pattern:
            small = re.compile(pattern.pattern, re.MULTILINE)
        return cls(text, pattern, invert, scan=scan, small=small)

    @classmethod
    def of_ranks(cls, ranks: Iterable[int], within: Matcher | None) -> Matcher:
        """Of merged lines those of some ranks, and of these what ``within`` matches, where there is one."""
        among = re.compile("|".join(re.escape(prefix_of(rank)) for rank in ranks) or "(?!)")
        return replace(within or cls("", re.compile("")), among=among)

    def may(self, text: str) -> bool:
        """Whether any of many lines may match: one look at all of them, where the pattern allows that."""
        if self.invert or self.scan is None:
            return True
        if text.isascii():
            if "\t" in text or not is_clean(text.encode()):
                return True
            if self.small is not None:
                return self.small.search(text.lower()) is not None
        elif not text.replace("\n", "").isprintable():
            return True
        return self.scan.search(text) is not None

    def hits(self, text: str) -> bool:
        if self.among is not None and self.among.match(text) is None:
            return False
        return (self.pattern.search(plain(text)) is not None) is not self.invert

    def spans(self, shown: str) -> list[tuple[int, int]]:
        """Where it matches in a line as shown."""
        if self.invert:
            return []
        with suppress(EndlessSearch), ended(lambda: shown):
            return [m.span() for m in self.pattern.finditer(shown) if m.end() > m.start()]
        return []


class Hits:
    """The numbers of the lines that match, kept up to date by looking at new lines only.

    Attributes:
        begin: the number from which on lines were looked at; :func:`.file_search.search_files` sees to those before it.
    """

    def __init__(self, matcher: Matcher, begin: int) -> None:
        self.matcher = matcher
        self.numbers: list[int] = []
        self.begin = begin
        self._seen = begin
        self._version = 0

    def update(self, window: LogWindow) -> None:
        if isinstance(window.ring, CollapsedRing):  # who said a row is searched, too, and may grow
            again = max(self.begin, window.ring.changed_since(self._version))
            self._version = window.ring.version
            if again < self._seen:
                del self.numbers[bisect_left(self.numbers, again) :]
                self._seen = again
        lines = window.raw(max(self._seen, window.oldest), window.end)
        with ended(lambda: self._seen):
            for line in lines:
                if self.matcher.hits(line.text):
                    self.numbers.append(line.number)
                self._seen = line.number + 1
        gone = bisect_left(self.numbers, window.first)
        if gone > 4096 or gone > len(self.numbers) // 2:
            del self.numbers[:gone]

    def shift(self, by: int) -> None:
        """Lines got other numbers."""
        self.numbers = [number + by for number in self.numbers]
        self.begin += by
        self._seen += by

    def add_earlier(self, numbers: list[int], begin: int = 0) -> None:
        """Take what was found before the place where looking began, from ``begin`` on."""
        self.numbers = [*numbers, *self.numbers[bisect_left(self.numbers, self.begin) :]]
        self.begin = begin


class LogWindow:
    """A reader's window onto a ring, and onto the files before it.

    While :meth:`hold` is in force, the lines that were there when it began stay readable although the ring
    evicts them.

    Attributes:
        endless: a filter or a search that was given up, as it would take for ever on a line.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.stored: StoredLines | None = None
        self.base = 0  # the number of the ring's line 0
        self.filter: Hits | None = None
        self.search: Hits | None = None
        self.endless = ""
        self._held: list[Line] = []

    @property
    def oldest(self) -> int:
        """Number of the oldest line of the ring, or held."""
        return self._held[0].number if self._held else self.base + self.ring.first

    @property
    def first(self) -> int:
        """Number of the oldest line that can be read."""
        return 0 if self.stored is not None and self.stored.count else self.oldest

    @property
    def end(self) -> int:
        return self.base + self.ring.end

    def open_files(self, stored: StoredLines, base: int) -> int:
        """Have the files before the ring, too; ``base`` is the number there of the ring's line 0.

        Returns:
            by how much the numbers of lines have grown.
        """
        shift, self.stored, self.base = base - self.base, stored, base
        self._held = [line._replace(number=line.number + shift) for line in self._held]
        for hits in (self.filter, self.search):
            if hits is not None:
                hits.shift(shift)
        return shift

    def hold(self) -> None:
        """Keep what is there now, whatever comes."""
        self._held = self._from_ring(0, self.end)

    def release(self) -> None:
        self._held = []

    def update(self) -> None:
        """Look at the lines that came since the last call."""
        for name in ("filter", "search"):
            hits: Hits | None = getattr(self, name)
            try:
                if hits is not None:
                    hits.update(self)
            except EndlessSearch:
                self.give_up(hits)

    def give_up(self, hits: Hits | None) -> None:
        """Look no more for what would take for ever."""
        if hits is not None:
            self.filter = None if hits is self.filter else self.filter
            self.search = None if hits is self.search else self.search
            self.endless = self.endless or hits.matcher.text

    def set_filter(self, matcher: Matcher | None) -> None:
        self.filter = None if matcher is None else Hits(matcher, self.oldest)
        self.update()

    def set_search(self, matcher: Matcher | None) -> None:
        self.search = None if matcher is None else Hits(matcher, self.oldest)
        self.update()

    def raw(self, start: int, stop: int) -> list[Line]:
        """Lines by number, filter aside; those that nothing holds are left out."""
        lines: list[Line] = []
        for low, high, read in self._spans():
            if (begin := max(start, low)) < (end := min(stop, high)):
                lines += read(begin, end)
        return lines

    def after(self, number: int, count: int) -> list[Line]:
        """The first ``count`` visible lines from ``number`` on."""
        if self.filter is not None:
            place = bisect_left(self.filter.numbers, max(number, self.first))
            return self._pick(self.filter.numbers[place : place + count])
        lines: list[Line] = []
        for low, high, read in self._spans():
            if (begin := max(number, low)) < high and len(lines) < count:
                lines += read(begin, min(high, begin + count - len(lines)))
        return lines

    def before(self, number: int, count: int) -> list[Line]:
        """The last ``count`` visible lines below ``number``, in order."""
        if count <= 0:
            return []
        if self.filter is not None:
            place = bisect_left(self.filter.numbers, number)
            return self._pick(self.filter.numbers[max(0, place - count) : place])
        lines: list[Line] = []
        for low, high, read in reversed(self._spans()):
            if (end := min(number, high)) > low and len(lines) < count:
                lines = [*read(max(low, end - count + len(lines)), end), *lines]
        return lines

    def _spans(self) -> list[Span]:
        """What can be read, in order and without overlap."""
        newest = self.base + self.ring.first
        spans: list[Span] = [(newest, self.end, self._from_ring)]
        if self._held:
            held = self._held[0].number
            spans = [(held, min(newest, self._held[-1].number + 1), self._from_held), *spans]
            newest = held
        if self.stored is not None:
            spans = [(0, min(newest, self.stored.count), self.stored.read), *spans]
            if self._held and self.stored.count > spans[1][1]:  # what the ring has let go of since
                between = (spans[1][1], min(spans[2][0], self.stored.count), self.stored.read)
                spans.insert(2, between)
        return [span for span in spans if span[0] < span[1]]

    def _from_ring(self, start: int, stop: int) -> list[Line]:
        lines = self.ring.read(start - self.base, stop - self.base)
        return [line._replace(number=line.number + self.base) for line in lines] if self.base else lines

    def _from_held(self, start: int, stop: int) -> list[Line]:
        low = self._held[0].number
        return self._held[start - low : stop - low]

    def newer(self, number: int) -> int:
        """How many visible lines came after ``number``."""
        if self.filter is not None:
            return len(self.filter.numbers) - bisect_right(self.filter.numbers, number)
        return max(0, self.end - number - 1)

    def find(self, start: int, *, backwards: bool = False) -> int | None:
        """The number of the next hit of the search from ``start`` on (inclusive), around the ends."""
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
        """When a line was printed, or the next one of which that is known; None where none near it has a time."""
        for low, high, read in self._spans():
            if (begin := max(number, low)) < high:
                for line in read(begin, min(high, begin + NEAR)):
                    if line.about.at is not None:
                        return line.about.at
        return None

    def since(self, at: float) -> int:
        """The number of the first line that was printed at a time or later; the end's where there is none.

        Lines stand in about the order of their times: where two ranks' clocks differ, it is near.
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

    def _pick(self, numbers: list[int]) -> list[Line]:
        if not numbers:
            return []
        if numbers[-1] - numbers[0] < 4 * len(numbers):
            wanted = set(numbers)
            return [line for line in self.raw(numbers[0], numbers[-1] + 1) if line.number in wanted]
        return [line for number in numbers for line in self.raw(number, number + 1)]
