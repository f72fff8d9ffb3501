"""What a rank printed, ready to be shown: bounded memory, absolute line numbers, nothing lost silently.

Bytes come in by chunks of any size; full fidelity lives in files, a ring holds only the lines a screen can reach, and
of those what may go to a terminal: text and colours (:mod:`..wire.safe_text`).
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from codecs import utf_8_decode
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, overload

from ..wire.safe_text import colored, is_clean
from .line_store import LARGE, LineStore, Room
from .silence import Rhythms

LINE_LIMIT = 64 * 1024  # bytes of one line kept for showing; the file keeps it whole
RUNS_KEPT = 8  # runs of which a book has lines apart; older ones are in their files


class About(NamedTuple):
    """What is known of a line beside its text.

    Attributes:
        stream: "out" or "err".
        at: Unix time by the node's clock, in seconds: when its bytes were written, to about a hundredth of a second
            where Python printed them, to less where native code or a child did. None where nothing tells.
        run: whose line it is; empty where no single run can be named.
    """

    stream: str
    at: float | None = None
    run: str = ""


class Line(NamedTuple):
    """A line of a ring. ``number`` is its absolute one."""

    number: int
    text: str
    about: About


UNKNOWN = About("out")


class Ring(Protocol):
    """Lines by absolute number, for who shows them. ``version`` changes with all that would be shown."""

    @property
    def version(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    def lines(self, start: int, stop: int) -> list[str]: ...
    def read(self, start: int, stop: int) -> list[Line]: ...
    def pending(self) -> list[str]: ...


class LogRing:
    """The last ``capacity`` lines of a stream of text.

    Lines are addressed by absolute number: line 0 is the first ever seen, so a reader's place never moves
    when old lines are evicted. Safe to feed from one thread and read from another.
    """

    __slots__ = (
        "_abouts", "_lines", "_lock", "_partials", "_starts", "capacity", "version",
    )  # fmt: skip

    def __init__(self, capacity: int = 10_000, room: Room | None = None) -> None:
        self.capacity = capacity
        self.version = 0
        self._lines = LineStore(capacity, room)
        self._partials: dict[str, Lines] = {}
        # Neighbours often have the same: numbers of the lines from which on a line is so, and how it is.
        self._starts: list[int] = []
        self._abouts: list[About] = []
        self._lock = threading.Lock()

    @property
    def first(self) -> int:
        """Absolute number of the oldest line still held."""
        return self._lines.first

    @property
    def end(self) -> int:
        """Absolute number of the line that comes next."""
        return self._lines.end

    def feed(self, data: bytes, stream: str = "out") -> Sequence[str]:
        """Take bytes of one stream; return the lines they completed."""
        lines = self.split(data, stream)
        self.extend(lines, About(stream))
        return lines

    def split(self, data: bytes, source: str) -> Sequence[str]:
        """Take bytes of one source of lines; return those that they completed, which are not appended yet."""
        partial = self._partials.get(source)
        if partial is None:
            partial = self._partials[source] = Lines()
        lines = partial.take(data)
        self.version += 1
        return lines

    def extend(self, lines: Sequence[str], about: About = UNKNOWN, prefix: str = "") -> None:
        """Append whole lines, which nobody changes any more; ``prefix`` stands before each of them."""
        with self._lock:
            if lines and (not self._abouts or self._abouts[-1] != about):
                self._starts.append(self.end)
                self._abouts.append(about)
            self._lines.add(lines, prefix)
            self.version += 1
            if len(self._starts) > 64 and self._starts[len(self._starts) // 2] <= self.first:
                over = bisect_right(self._starts, self.first) - 1
                del self._starts[:over], self._abouts[:over]

    def lines(self, start: int, stop: int) -> list[str]:
        """Lines ``start`` (inclusive) to ``stop`` (exclusive) by absolute number; evicted ones are left out."""
        with self._lock:
            return self._lines.read(start, stop)

    def last(self, most: int) -> list[str]:
        """The last lines, those among them that are not finished."""
        lines = [*self.lines(max(self.first, self.end - most), self.end), *self.pending()]
        return lines[-most:] if most > 0 else []

    def read(self, start: int, stop: int) -> list[Line]:
        """The same lines with what is known of each."""
        with self._lock:
            start, stop = max(start, self.first), min(stop, self.end)
            texts = self._lines.read(start, stop)
            place = bisect_right(self._starts, start) - 1
            lines = []
            for number, text in enumerate(texts, start):
                while place + 1 < len(self._starts) and self._starts[place + 1] <= number:
                    place += 1
                lines.append(Line(number, text, self._abouts[place]))
            return lines

    def pending(self) -> list[str]:
        """The unfinished last line of each stream (a progress bar, a prompt), as it would show now."""
        return [text for partial in list(self._partials.values()) if (text := partial.preview())]

    def _follow(self, other: LogRing, source: str) -> None:
        """Show what another ring holds unfinished of a source as our own."""
        if (partial := other._partials.get(source)) is not None:
            self._partials[source] = partial
        self.version += 1

    def cut(self, source: str) -> Sequence[str]:
        """End the unfinished line of a source; return it, if there is one."""
        partial = self._partials.pop(source, None)
        return partial.end() if partial is not None else []


# A bar below another one is drawn by going down, and up again (tqdm's inner bars): no line has ended by that.
_UP = b"\x1b[A"
_BELOW = re.compile(rb"(?<!\n)(\n++)\r([^\n]*?)((?:\x1b\[A)+)")
DEEPEST = 8  # bars below one another


class Lines:
    """Cuts bytes into lines, whatever pieces they come in; holds the unfinished one, bounded, and what is drawn below
    it."""

    __slots__ = ("_below", "_cut", "_head", "_returned")

    def __init__(self) -> None:
        self._below: dict[int, bytes] = {}  # by how far below
        self._head = b""
        self._cut = 0  # bytes of the unfinished line that were left out
        self._returned = False  # a carriage return came last: what comes next overwrites the line

    def split(self, data: bytes) -> list[str]:
        """Take bytes; return the lines they completed, as a terminal would show them."""
        return list(self.take(data))

    def take(self, data: bytes) -> Sequence[str]:
        """The same, for who may never read them."""
        if _UP in data:
            data = _BELOW.sub(self._draw_below, data)
        body, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep(data)
            return []
        if self._below:
            self._below = {}
        if self._cut or self._returned:
            first, newline, body = body.partition(b"\n")
            self._keep(first)
            lines: Sequence[str] = [_clipped(self._head, self._cut), *(_texts(body) if newline else ())]
            self._cut, self._returned = 0, False
        else:
            lines = _late(self._head + body)
        self._head = b""
        if rest:
            self._keep(rest)
        return lines

    def preview(self) -> str:
        """The unfinished line as it shows now; a character that is not all there yet is left out."""
        return colored(utf_8_decode(self._drawn(), "replace", False)[0])

    def end(self) -> list[str]:
        """The unfinished line, if there is one, which ends here; whoever else holds this object sees it end, too."""
        text = _clipped(self._head if self._cut else self._drawn(), self._cut)
        self._head, self._cut, self._returned, self._below = b"", 0, False, {}
        return [text] if text else []

    def _drawn(self) -> bytes:
        if not self._below:
            return self._head
        return b"  ".join([self._head, *(text for _, text in sorted(self._below.items()))])

    def _draw_below(self, drawn: re.Match[bytes]) -> bytes:
        """Take what was drawn below the line; give the newlines that did end one."""
        newlines, text, back = drawn.groups()
        depth = len(back) // len(_UP)
        text = text.rstrip().rpartition(b"\r")[2].rstrip()
        kept = {
            each: bar for each, bar in self._below.items() if each != depth
        }  # others may have a copy of us
        if text and depth <= DEEPEST:  # else it was taken away
            kept[depth] = text[:LINE_LIMIT]
        self._below = kept
        return newlines[depth:]

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


class _Unread(Sequence[str]):
    """Many lines of which perhaps none is ever looked at: a flood leaves the ring faster than anybody reads."""

    __slots__ = ("_body", "_count", "_lines")

    def __init__(self, body: bytes, count: int) -> None:
        self._body = body
        self._count = count
        self._lines: list[str] | None = None

    @property
    def size(self) -> int:
        """Bytes that it takes until it is read."""
        return len(self._body)

    def text(self) -> str | None:
        """All of them, where they are as they came: a terminal acts on nothing in them, and none is long."""
        body = self._body
        if not body or b"\r" in body or not is_clean(body) or _may_be_long(body):
            return None
        return body.decode("ascii")

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._read()[at]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def _read(self) -> list[str]:
        body = self._body  # before we look whether it is still needed: another thread may be reading, too
        if self._lines is None:
            self._lines = _texts(body)
            self._body = b""
        return self._lines


def text_of(lines: Sequence[str]) -> str:
    """Whole lines as one text; of many that nobody has read, without reading each."""
    if isinstance(lines, _Unread) and (text := lines.text()) is not None:
        return text
    return "\n".join(lines)


def _late(body: bytes) -> Sequence[str]:
    count = body.count(b"\n") + 1
    return _texts(body) if count < LARGE else _Unread(body, count)


def _texts(body: bytes) -> list[str]:
    if b"\r" in body or _may_be_long(body):
        return [_text(line) for line in body.split(b"\n")]
    lines = body.decode("utf-8", "replace").split("\n")
    return lines if is_clean(body) else [colored(line) for line in lines]


def _may_be_long(body: bytes) -> bool:
    """Whether a line may be longer than the limit: it would fill one of these windows, which is quicker to see than
    how long each is."""
    step = LINE_LIMIT // 2
    return any(body.find(b"\n", at, at + step) < 0 for at in range(0, len(body) - step, step))


def _text(line: bytes) -> str:
    if b"\r" in line:
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
    return _clipped(line[:LINE_LIMIT], max(0, len(line) - LINE_LIMIT))


def _clipped(line: bytes, cut: int) -> str:
    text = colored(utf_8_decode(line, "replace", not cut)[0])
    return f"{text} … [{cut:,} more bytes in the log file]" if cut else text


class LogBook:
    """The logs of one pool: a ring per rank, and all ranks merged in order of arrival; the same for each of the latest
    runs.

    Attributes:
        version: raised by all that is taken.
    """

    def __init__(self, capacity: int = 10_000, room: Room | None = None) -> None:
        self.capacity = capacity
        self.version = 0
        self._room = room or Room()
        self.merged = LogRing(capacity)
        self.ranks: dict[int, LogRing] = {}
        self._runs: dict[str, LogBook] = {}
        self.rhythms = Rhythms()  # what is heard goes there, too
        self._latest: dict[str, str] = {}  # source and stream -> the run whose lines came last

    def rank(self, rank: int) -> LogRing:
        """The ring of a rank, made when first asked for."""
        ring = self.ranks.get(rank)
        if ring is None:  # a screen may ask for it at this very moment too: both must get the same
            ring = self.ranks.setdefault(rank, LogRing(self.capacity, self._room))
        return ring

    def of(self, run: str) -> LogBook:
        """What has come of one run, made when first asked for; numbers of lines count from 0 in each."""
        book = self._runs.get(run)
        if book is None:
            book = self._runs.setdefault(run, LogBook(self.capacity, self._room))
        return book

    def has(self, run: str) -> bool:
        """Whether lines of a run are held, perhaps not all."""
        return run in self._runs

    def feed(
        self, rank: int, stream: str, data: bytes, at: float | None = None, run: str = "", source: str = ""
    ) -> Sequence[str]:
        """Take bytes of a rank's stream ("out" or "err"); return the lines they completed.

        Args:
            at, run: see :class:`About`.
            source: which of a rank's workers wrote them: each has lines of its own.
        """
        self.version += 1
        ring = self.rank(rank)
        key = f"{source or rank}.{stream}"
        if run and run != (before := self._latest.get(key, run)):
            # What a run left unfinished is its own last line, and no beginning of the next run's first.
            self._append(rank, ring.cut(key), About(stream, at, before))
        if run and run not in self._runs:
            self._forget()
        lines = ring.split(data, key)
        self._append(rank, lines, About(stream, at, run))
        if run:
            self._latest[key] = run
            if at is not None and data:
                self.rhythms.heard(run, rank, at, source)
            self.of(run).rank(rank)._follow(ring, key)
        return lines

    def _append(self, rank: int, lines: Sequence[str], about: About) -> None:
        if not lines:
            return
        for book in (self, self.of(about.run)) if about.run else (self,):
            book.rank(rank).extend(lines, about)
            book.merged.extend(lines, about, prefix_of(rank))

    def _forget(self) -> None:
        """Make room for one more run; those that may still print stay."""
        over = [run for run in self._runs if run not in self._latest.values()]
        for run in over[: max(0, len(self._runs) - RUNS_KEPT + 1)]:
            self._room.leave(len(self._runs.pop(run).ranks))


def prefix_of(rank: int) -> str:
    """``3`` -> ``r003| ``."""
    return f"r{rank:03d}| "
