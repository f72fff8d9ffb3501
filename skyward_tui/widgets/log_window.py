"""What one reader sees of a ring of lines: all of it or the lines that match, at a place that never moves.

No terminal here: lines have absolute numbers, and the widget asks for the ones around its place.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from skyward_core.logs import LogRing

from .sgr import plain

Line = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Matcher:
    """A search: a regular expression, or plain text where it is not one; small letters match capitals too."""

    text: str
    pattern: re.Pattern[str]
    invert: bool = False

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
        return cls(text, pattern, invert)

    def hits(self, text: str) -> bool:
        return (self.pattern.search(plain(text)) is not None) is not self.invert

    def spans(self, shown: str) -> list[tuple[int, int]]:
        """Where it matches in a line as shown."""
        if self.invert:
            return []
        return [m.span() for m in self.pattern.finditer(shown) if m.end() > m.start()]


class Hits:
    """The numbers of the lines that match, kept up to date by looking at new lines only."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.numbers: list[int] = []
        self._seen = 0

    def update(self, window: LogWindow) -> None:
        self._seen = max(self._seen, window.first)
        for number, text in window.raw(self._seen, window.end):
            if self.matcher.hits(text):
                self.numbers.append(number)
            self._seen = number + 1
        gone = bisect_left(self.numbers, window.first)
        if gone > 4096 or gone > len(self.numbers) // 2:
            del self.numbers[:gone]


class LogWindow:
    """A reader's window onto a ring.

    While :meth:`hold` is in force, the lines that were there when it began stay readable although the ring
    evicts them.
    """

    def __init__(self, ring: LogRing) -> None:
        self.ring = ring
        self.filter: Hits | None = None
        self.search: Hits | None = None
        self._held: list[str] = []
        self._held_end = 0

    @property
    def first(self) -> int:
        """Number of the oldest line that can be read."""
        return self._held_end - len(self._held) if self._held else self.ring.first

    @property
    def end(self) -> int:
        return self.ring.end

    @property
    def is_held(self) -> bool:
        return bool(self._held)

    def hold(self) -> None:
        """Keep what is there now, whatever comes."""
        end = self.ring.end
        self._held = self.ring.lines(0, end)
        self._held_end = end

    def release(self) -> None:
        self._held = []

    def update(self) -> None:
        """Look at the lines that came since the last call."""
        for hits in (self.filter, self.search):
            if hits is not None:
                hits.update(self)

    def set_filter(self, matcher: Matcher | None) -> None:
        self.filter = None if matcher is None else Hits(matcher)
        self.update()

    def set_search(self, matcher: Matcher | None) -> None:
        self.search = None if matcher is None else Hits(matcher)
        self.update()

    def raw(self, start: int, stop: int) -> list[Line]:
        """Lines by number, filter aside; those evicted and not held are left out."""
        stop = min(stop, self.ring.end)
        lines: list[Line] = []
        if self._held and start < self._held_end:
            low = self._held_end - len(self._held)
            begin = max(start, low)
            held = self._held[begin - low : max(begin, min(stop, self._held_end)) - low]
            lines += zip(range(begin, begin + len(held)), held, strict=True)
            start = self._held_end
        if stop > start:
            texts = self.ring.lines(start, stop)
            # The ring may evict between two looks; it never shrinks at its end, so numbers count from there.
            lines += zip(range(stop - len(texts), stop), texts, strict=True)
        return lines

    def after(self, number: int, count: int) -> list[Line]:
        """The first ``count`` visible lines from ``number`` on."""
        if self.filter is not None:
            place = bisect_left(self.filter.numbers, max(number, self.first))
            return self._pick(self.filter.numbers[place : place + count])
        lines = self.raw(number, number + count)
        if len(lines) < count and (last := lines[-1][0] + 1 if lines else self.ring.first) < self.end:
            rest = max(last, self.ring.first)
            lines += self.raw(rest, rest + count - len(lines))
        return lines

    def before(self, number: int, count: int) -> list[Line]:
        """The last ``count`` visible lines below ``number``, in order."""
        if count <= 0:
            return []
        if self.filter is not None:
            place = bisect_left(self.filter.numbers, number)
            return self._pick(self.filter.numbers[max(0, place - count) : place])
        number = min(number, self.end)
        lines = self.raw(max(number - count, 0), number)
        if len(lines) < count and self._held and number > self._held_end:
            # Part of what lay before was evicted unseen: go on with what is held.
            missing = count - len(lines)
            lines = [
                *self.raw(max(0, self._held_end - missing), self._held_end),
                *(line for line in lines if line[0] >= self._held_end),
            ]
        return lines

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

    def _pick(self, numbers: list[int]) -> list[Line]:
        if not numbers:
            return []
        if numbers[-1] - numbers[0] < 4 * len(numbers):
            wanted = set(numbers)
            return [line for line in self.raw(numbers[0], numbers[-1] + 1) if line[0] in wanted]
        return [line for number in numbers for line in self.raw(number, number + 1)]
