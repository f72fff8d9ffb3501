"""What a rank printed, ready to be shown: bounded memory, absolute line numbers, nothing lost silently.

Bytes come in by chunks of any size; full fidelity lives in files, a ring holds only the lines a screen can reach, and
of those what may go to a terminal: text and colours (:mod:`.safe_text`).
"""

from __future__ import annotations

import threading
from codecs import utf_8_decode
from collections import deque
from itertools import islice

from .safe_text import colored, is_clean

LINE_LIMIT = 64 * 1024  # bytes of one line kept for showing; the file keeps it whole


class LogRing:
    """The last ``capacity`` lines of a stream of text.

    Lines are addressed by absolute number: line 0 is the first ever seen, so a reader's place never moves
    when old lines are evicted. Safe to feed from one thread and read from another.
    """

    __slots__ = ("_lines", "_lock", "_partials", "bytes_total", "capacity", "end", "first", "version")

    def __init__(self, capacity: int = 10_000) -> None:
        self.capacity = capacity
        self.first = 0  # absolute number of the oldest line still held
        self.end = 0  # of the one that comes next
        self.version = 0
        self.bytes_total = 0
        self._lines: deque[str] = deque(maxlen=capacity)
        self._partials: dict[str, Lines] = {}
        self._lock = threading.Lock()

    def feed(self, data: bytes, stream: str = "out") -> list[str]:
        """Take bytes of one stream; return the lines they completed."""
        partial = self._partials.get(stream)
        if partial is None:
            partial = self._partials[stream] = Lines()
        lines = partial.split(data)
        self.bytes_total += len(data)
        self.extend(lines)
        return lines

    def extend(self, lines: list[str]) -> None:
        """Append whole lines."""
        with self._lock:
            self._lines.extend(lines)
            self.end += len(lines)
            self.first = self.end - len(self._lines)
            self.version += 1

    def lines(self, start: int, stop: int) -> list[str]:
        """Lines ``start`` (inclusive) to ``stop`` (exclusive) by absolute number; evicted ones are left out."""
        with self._lock:
            first = self.first
            low, high = max(start, first) - first, max(min(stop, self.end), first) - first
            return list(islice(self._lines, low, high)) if high > low else []

    def pending(self) -> list[str]:
        """The unfinished last line of each stream (a progress bar, a prompt), as it would show now."""
        return [text for partial in list(self._partials.values()) if (text := partial.preview())]


class Lines:
    """Cuts bytes into lines, whatever pieces they come in; holds the unfinished one, bounded."""

    __slots__ = ("_cut", "_head", "_returned")

    def __init__(self) -> None:
        self._head = b""
        self._cut = 0  # bytes of the unfinished line that were left out
        self._returned = False  # a carriage return came last: what comes next overwrites the line

    def split(self, data: bytes) -> list[str]:
        """Take bytes; return the lines they completed, as a terminal would show them."""
        body, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep(data)
            return []
        if self._cut or self._returned:
            first, newline, body = body.partition(b"\n")
            self._keep(first)
            lines = [_clipped(self._head, self._cut)]
            if newline:
                lines += _texts(body)
            self._cut, self._returned = 0, False
        else:
            lines = _texts(self._head + body)
        self._head = b""
        if rest:
            self._keep(rest)
        return lines

    def preview(self) -> str:
        """The unfinished line as it shows now; a character that is not all there yet is left out."""
        return colored(utf_8_decode(self._head, "replace", False)[0])

    def _keep(self, data: bytes) -> None:
        # A bar that redraws itself with carriage returns never ends its line: keep only what shows.
        drawn = data.rstrip(b"\r")
        if drawn:
            back = drawn.rfind(b"\r")
            if back >= 0 or self._returned:
                self._head, self._cut = b"", 0
                drawn = drawn[back + 1 :]
            room = LINE_LIMIT - len(self._head)
            self._head += drawn[:room]
            self._cut += max(0, len(drawn) - room)
        self._returned = data.endswith(b"\r") or (self._returned and not data)


def _texts(body: bytes) -> list[str]:
    lines = body.decode("utf-8", "replace").split("\n")
    if b"\r" in body or (len(body) > LINE_LIMIT and 4 * max(map(len, lines)) > LINE_LIMIT):
        return [_text(line) for line in body.split(b"\n")]
    return lines if is_clean(body) else [colored(line) for line in lines]


def _text(line: bytes) -> str:
    if b"\r" in line:
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
    return _clipped(line[:LINE_LIMIT], max(0, len(line) - LINE_LIMIT))


def _clipped(line: bytes, cut: int) -> str:
    text = colored(utf_8_decode(line, "replace", not cut)[0])
    return f"{text} … [{cut:,} more bytes in the log file]" if cut else text


class LogBook:
    """The logs of one pool: a ring per rank, and all ranks merged in order of arrival."""

    def __init__(self, capacity: int = 10_000) -> None:
        self.capacity = capacity
        self.merged = LogRing(capacity)
        self.ranks: dict[int, LogRing] = {}

    def rank(self, rank: int) -> LogRing:
        """The ring of a rank, made when first asked for."""
        ring = self.ranks.get(rank)
        if ring is None:  # a screen may ask for it at this very moment too: both must get the same
            ring = self.ranks.setdefault(rank, LogRing(self.capacity))
        return ring

    def feed(self, rank: int, stream: str, data: bytes) -> list[str]:
        """Take bytes of a rank's stream ("out" or "err"); return the lines they completed."""
        lines = self.rank(rank).feed(data, stream)
        if lines:
            prefix = prefix_of(rank)
            self.merged.extend([prefix + line for line in lines])
        return lines


def prefix_of(rank: int) -> str:
    """``3`` -> ``r003| ``."""
    return f"r{rank:03d}| "
