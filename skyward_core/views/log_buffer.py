"""Ring buffers of log lines; ranks that are silent.

Bytes come in by chunks of any size; full fidelity lives in files, a ring holds only the lines a screen can reach, and
of those what may go to a terminal: text and colours (``util.terminal_safe_text``).
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from codecs import utf_8_decode
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple, Protocol, overload

from skyward_core.util.terminal_safe_text import is_plain_ascii, sanitize_colored

TOTAL_BYTES = 64_000_000  # bytes that all stores of one room may take together, where nobody says otherwise
MIN_STORE_BYTES = 16 << 10  # bytes that each of them may have, however many there are
LINE_OVERHEAD = 64  # bytes that a line takes beside its characters, where it is a text of its own
LAZY_LINES = 64  # lines of a piece that is held as it came; smaller ones are put together


class MemoryBudget:
    """What several stores may take together, in equal parts.

    Attributes:
        total_bytes: bytes of each room, in this process.
        stores: how many share it.
    """

    __slots__ = ("stores",)
    total_bytes: ClassVar[int] = TOTAL_BYTES

    def __init__(self) -> None:
        self.stores = 0

    @property
    def store_bytes(self) -> int:
        """Bytes of one store."""
        return max(MIN_STORE_BYTES, self.total_bytes // max(1, self.stores))


class LineStore:
    """Lines by absolute number: line 0 is the first ever added.

    Args:
        capacity: lines that are held at most.
        room: that it shares with others; of a store that takes more than its part the oldest pieces go. None for no
            such bound.

    Attributes:
        first: number of the oldest line still held.
        end: number of the line that comes next.
    """

    __slots__ = ("_capacity", "_gathered", "_pieces", "_room", "_size", "_sizes", "_starts", "end", "first")

    def __init__(self, capacity: int, room: MemoryBudget | None = None) -> None:
        self.first = 0
        self.end = 0
        self._capacity = capacity
        self._room = room
        self._sizes: deque[int] = deque()  # of the pieces, in bytes
        self._size = 0
        if room is not None:
            room.stores += 1
        self._starts: deque[int] = deque()
        self._pieces: deque[tuple[str, Sequence[str]]] = deque()  # what stands before each line, and the lines
        self._gathered: list[str] | None = None  # the last piece, where it is ours to add to

    def add(self, lines: Sequence[str], prefix: str = "") -> None:
        """Append lines, which nobody may change from now on.

        Args:
            prefix: what stands before each of them.
        """
        if len(lines) >= LAZY_LINES:
            self._start_piece(prefix, lines)
            self._gathered = None
        elif lines:
            if self._gathered is None or len(self._gathered) >= LAZY_LINES:
                self._gathered = []
                self._start_piece("", self._gathered)
            self._gathered.extend([prefix + line for line in lines] if prefix else lines)
            self._grow(sum(map(len, lines)) + (LINE_OVERHEAD + len(prefix)) * len(lines))
        self.end += len(lines)
        self.first = max(self.first, self.end - self._capacity)
        most = self._room.store_bytes if self._room is not None else self._size
        while len(self._starts) > 1 and (self._starts[1] <= self.first or self._size > most):
            self._starts.popleft()
            self._pieces.popleft()
            self._size -= self._sizes.popleft()
            self.first = max(self.first, self._starts[0])

    def _start_piece(self, prefix: str, lines: Sequence[str]) -> None:
        self._starts.append(self.end)
        self._pieces.append((prefix, lines))
        self._sizes.append(0)
        if lines:
            self._grow(getattr(lines, "size", 0) or sum(map(len, lines)) + LINE_OVERHEAD * len(lines))

    def _grow(self, size: int) -> None:
        self._sizes[-1] += size
        self._size += size

    def read(self, start: int, stop: int) -> list[str]:
        """Lines ``start`` (inclusive) to ``stop`` (exclusive); those that are not held are left out."""
        return list(self._between(max(start, self.first), min(stop, self.end)))

    def _between(self, start: int, stop: int) -> Iterator[str]:
        place = bisect_right(self._starts, start) - 1
        for begin, (prefix, lines) in zip(
            islice(self._starts, max(place, 0), None), islice(self._pieces, max(place, 0), None), strict=True
        ):
            if begin >= stop:
                return
            some = lines[max(start - begin, 0) : stop - begin]
            yield from [prefix + line for line in some] if prefix else some


MIN_SILENCE = 60.0  # seconds of silence that mean nothing
SILENCE_OF_NEW_RANKS = 300.0  # the same of a rank of which next to nothing has been heard
SILENCE_FACTOR = 5  # as long as it usually is quiet
MIN_SIGNS = 3  # signs after which "usually" means something
USUAL_DECAY = 0.9  # of what was usual is left with each sign: how a run begins is not how it goes on
CPU_SAMPLE_SECONDS = 1.5  # seconds between two words on what it took of the processor
# Of a processor that code takes which does more than wait: threads that look after things take a bit, too.
WORKING_SHARE = 0.1
MAX_RUNS = 64  # of one pool
MAX_REORDER_SECONDS = (
    2.0  # seconds by which lines that came later may be older, though nobody has set their node's clock
)


class Clocks(NamedTuple):
    """Who is connected to ranks knows of clocks.

    Attributes:
        now: ours, Unix time.
        ahead: seconds by which ours is ahead of the clock of a rank's node, as far as that is known.
    """

    now: Callable[[], float]
    ahead: Callable[[int], float]


class _FileClock(NamedTuple):
    """What ranks print into one file, in the order in which they do.

    Attributes:
        newest: of its times, by the node's clock.
        ahead: what was known of that clock then.
        step: seconds by which it has been set back since.
    """

    newest: float
    ahead: float
    step: float


class RankActivity:
    """Of one rank in one run.

    Attributes:
        last: when it was heard last, Unix time.
        usual: the longest pause of late, in seconds.
        signs: how often it was heard after a pause.
    """

    __slots__ = ("_sign", "last", "signs", "usual")

    def __init__(self) -> None:
        self.last = self._sign = 0.0
        self.usual = 0.0
        self.signs = 0

    def on_resumed(self, at: float) -> None:
        """It stood still until then, or waited for one that did: no silence of its own, and nothing that is usual."""
        self.last = max(self.last, at)
        if self._sign:
            self._sign = max(self._sign, at)

    def shift_clock(self, seconds: float) -> None:
        """What it was heard at is so much later."""
        self.last += seconds
        self._sign += seconds if self._sign else 0.0

    def record_activity(self, at: float) -> None:
        """There was a line, or a number."""
        pause, self.last = at - self.last, max(self.last, at)
        if at - self._sign < 1:  # all that comes within a second is one sign
            return
        if self._sign:
            self.usual = max(pause, self.usual * USUAL_DECAY)
            self.signs += 1
        self._sign = at

    @property
    def silence_threshold(self) -> float:
        """Seconds of silence that are nothing to speak of."""
        return max(MIN_SILENCE if self.signs >= MIN_SIGNS else SILENCE_OF_NEW_RANKS, SILENCE_FACTOR * self.usual)


class PoolActivity:
    """Of all ranks of a pool, in its latest runs. One thread writes, others may read.

    Attributes:
        is_paused: whether a rank is stopped at a breakpoint; the others wait for it sooner or later.
        clocks: of who is connected to the ranks; None where times are taken as they are, as of a record.
    """

    def __init__(self) -> None:
        self.is_paused = False
        self.clocks: Clocks | None = None
        self._sources: dict[str, _FileClock] = {}
        self._resumed_at = 0.0
        self._runs: dict[str, dict[int, RankActivity]] = {}
        self._cpu_times: dict[int, tuple[float, float]] = {}  # when, and what of the processor by then
        self._worked_at: dict[int, float] = {}

    def record_activity(self, run: str, rank: int, at: float, source: str = "") -> None:
        """A rank has said something in a run.

        Args:
            at: Unix time by our clock; by its node's where there is a source.
            source: the file that it stands in.
        """
        if source and self.clocks is not None:
            at = self._to_client_time(self.clocks, rank, at, source)
        ranks = self._runs.get(run)
        if ranks is None:
            if len(self._runs) >= MAX_RUNS:
                self._runs = dict(list(self._runs.items())[1 - MAX_RUNS :])
            ranks = self._runs.setdefault(run, {})
        rhythm = ranks.get(rank)
        if rhythm is None:
            rhythm = ranks.setdefault(rank, RankActivity())
        rhythm.record_activity(at)

    @staticmethod
    def _clock_step(known: _FileClock | None, clocks: Clocks, at: float, ahead: float) -> float:
        """By how much more our clock is ahead of a node's than is known."""
        step = known.step if known is not None and known.ahead == ahead else 0.0
        set_back = known is not None and at < known.newest - MAX_REORDER_SECONDS
        late = clocks.now() - ahead - at
        return late if set_back or late < step else step  # nothing comes before it is printed

    def _to_client_time(self, clocks: Clocks, rank: int, at: float, source: str) -> float:
        """When something was printed that comes now, or has waited for us. Lines of a file are in order: where one is
        older than the one before it, or not printed yet, somebody has set the node's clock."""
        ahead = clocks.ahead(rank)
        step = self._clock_step(self._sources.get(source), clocks, at, ahead)
        self._sources[source] = _FileClock(at, ahead, step)
        return at + ahead + step

    def shift_clock(self, seconds: float) -> None:
        """Somebody has set our clock forward by so much: what was heard is no longer ago for that."""
        self._resumed_at += seconds
        self._worked_at = {rank: at + seconds for rank, at in self._worked_at.items()}
        self._cpu_times = {rank: (at + seconds, spent) for rank, (at, spent) in self._cpu_times.items()}
        for ranks in list(self._runs.values()):
            for rhythm in list(ranks.values()):
                rhythm.shift_clock(seconds)

    def record_cpu_time(self, rank: int, seconds: float, at: float) -> None:
        """What a rank has taken of the processor by now: whoever works is not quiet."""
        before, spent = self._cpu_times.get(rank, (at, seconds))
        if at - before < CPU_SAMPLE_SECONDS and rank in self._cpu_times:
            return  # too near to say how much that is
        self._cpu_times[rank] = (at, seconds)
        if seconds - spent > WORKING_SHARE * (at - before):
            self._worked_at[rank] = at

    def set_paused(self, still: bool, at: float) -> None:
        """Some rank stands still, or none does any more; told with each phase of any.

        Args:
            at: Unix time by our clock.
        """
        if self.is_paused and not still:
            self._resumed_at = at
            for ranks in list(self._runs.values()):
                for rhythm in list(ranks.values()):
                    rhythm.on_resumed(at)
        self.is_paused = still

    def unusual_silence(self, run: str, rank: int, began: float, now: float) -> float | None:
        """For how many seconds a rank has been quiet, if that is longer than it usually is.

        Args:
            began: when its function did.
        """
        if self.is_paused:
            return None
        rhythm = self._runs.get(run, {}).get(rank) or _NEVER
        silent = now - max(rhythm.last, began, self._worked_at.get(rank, 0.0), self._resumed_at)
        return silent if silent > rhythm.silence_threshold else None


_NEVER = RankActivity()


LINE_LIMIT = 64 * 1024  # bytes of one line kept for showing; the file keeps it whole
RUNS_KEPT = 8  # runs of which a book has lines apart; older ones are in their files


class LineInfo(NamedTuple):
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
    about: LineInfo


UNKNOWN = LineInfo("out")


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

    def __init__(self, capacity: int = 10_000, room: MemoryBudget | None = None) -> None:
        self.capacity = capacity
        self.version = 0
        self._lines = LineStore(capacity, room)
        self._partials: dict[str, LineSplitter] = {}
        # Neighbours often have the same: numbers of the lines from which on a line is so, and how it is.
        self._starts: list[int] = []
        self._abouts: list[LineInfo] = []
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
        self.extend(lines, LineInfo(stream))
        return lines

    def split(self, data: bytes, source: str) -> Sequence[str]:
        """Take bytes of one source of lines; return those that they completed, which are not appended yet."""
        partial = self._partials.get(source)
        if partial is None:
            partial = self._partials[source] = LineSplitter()
        lines = partial.split_lazily(data)
        self.version += 1
        return lines

    def extend(self, lines: Sequence[str], about: LineInfo = UNKNOWN, prefix: str = "") -> None:
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

    def _share_partial(self, other: LogRing, source: str) -> None:
        """Show what another ring holds unfinished of a source as our own."""
        if (partial := other._partials.get(source)) is not None:
            self._partials[source] = partial
        self.version += 1

    def end_partial_line(self, source: str) -> Sequence[str]:
        """End the unfinished line of a source; return it, if there is one."""
        partial = self._partials.pop(source, None)
        return partial.end() if partial is not None else []


# A bar below another one is drawn by going down, and up again (tqdm's inner bars): no line has ended by that.
_UP = b"\x1b[A"
_BELOW = re.compile(rb"(?<!\n)(\n++)\r([^\n]*?)((?:\x1b\[A)+)")
MAX_BAR_DEPTH = 8  # bars below one another


class LineSplitter:
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
        return list(self.split_lazily(data))

    def split_lazily(self, data: bytes) -> Sequence[str]:
        """The same, for who may never read them."""
        if _UP in data:
            data = _BELOW.sub(self._draw_below, data)
        body, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._extend_partial(data)
            return []
        if self._below:
            self._below = {}
        if self._cut or self._returned:
            first, newline, body = body.partition(b"\n")
            self._extend_partial(first)
            lines: Sequence[str] = [
                _decode_clipped(self._head, self._cut),
                *(_decode_lines(body) if newline else ()),
            ]
            self._cut, self._returned = 0, False
        else:
            body = self._head + body
            count = body.count(b"\n") + 1
            lines = _decode_lines(body) if count < LAZY_LINES else _LazyLines(body, count)
        self._head = b""
        if rest:
            self._extend_partial(rest)
        return lines

    def preview(self) -> str:
        """The unfinished line as it shows now; a character that is not all there yet is left out."""
        return sanitize_colored(utf_8_decode(self._visible_bytes(), "replace", False)[0])

    def end(self) -> list[str]:
        """The unfinished line, if there is one, which ends here; whoever else holds this object sees it end, too."""
        text = _decode_clipped(self._head if self._cut else self._visible_bytes(), self._cut)
        self._head, self._cut, self._returned, self._below = b"", 0, False, {}
        return [text] if text else []

    def _visible_bytes(self) -> bytes:
        if not self._below:
            return self._head
        return b"  ".join([self._head, *(text for _, text in sorted(self._below.items()))])

    def _draw_below(self, drawn: re.Match[bytes]) -> bytes:
        """Take what was drawn below the line; give the newlines that did end one."""
        newlines, text, back = drawn.groups()
        depth = len(back) // len(_UP)
        text = text.rstrip().rpartition(b"\r")[2].rstrip()
        kept = {each: bar for each, bar in self._below.items() if each != depth}  # others may have a copy of us
        if text and depth <= MAX_BAR_DEPTH:  # else it was taken away
            kept[depth] = text[:LINE_LIMIT]
        self._below = kept
        return newlines[depth:]

    def _extend_partial(self, data: bytes) -> None:
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


class _LazyLines(Sequence[str]):
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
        if not body or b"\r" in body or not is_plain_ascii(body) or _may_be_long(body):
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
            self._lines = _decode_lines(body)
            self._body = b""
        return self._lines


def join_lines(lines: Sequence[str]) -> str:
    """Whole lines as one text; of many that nobody has read, without reading each."""
    if isinstance(lines, _LazyLines) and (text := lines.text()) is not None:
        return text
    return "\n".join(lines)


def _decode_lines(body: bytes) -> list[str]:
    if b"\r" in body or _may_be_long(body):
        return [_decode_line(line) for line in body.split(b"\n")]
    lines = body.decode("utf-8", "replace").split("\n")
    return lines if is_plain_ascii(body) else [sanitize_colored(line) for line in lines]


def _may_be_long(body: bytes) -> bool:
    """Whether a line may be longer than the limit: it would fill one of these windows, which is quicker to see than
    how long each is."""
    step = LINE_LIMIT // 2
    return any(body.find(b"\n", at, at + step) < 0 for at in range(0, len(body) - step, step))


def _decode_line(line: bytes) -> str:
    if b"\r" in line:
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
    return _decode_clipped(line[:LINE_LIMIT], max(0, len(line) - LINE_LIMIT))


def _decode_clipped(line: bytes, cut: int) -> str:
    text = sanitize_colored(utf_8_decode(line, "replace", not cut)[0])
    return f"{text} … [{cut:,} more bytes in the log file]" if cut else text


class LogBuffers:
    """The logs of one pool: a ring per rank, and all ranks merged in order of arrival; the same for each of the latest
    runs.

    Attributes:
        version: raised by all that is taken.
    """

    def __init__(self, capacity: int = 10_000, room: MemoryBudget | None = None) -> None:
        self.capacity = capacity
        self.version = 0
        self._room = room or MemoryBudget()
        self.merged = LogRing(capacity)
        self.ranks: dict[int, LogRing] = {}
        self._runs: dict[str, LogBuffers] = {}
        self.activity = PoolActivity()  # what is heard goes there, too
        self._latest: dict[str, str] = {}  # source and stream -> the run whose lines came last

    def rank(self, rank: int) -> LogRing:
        """The ring of a rank, made when first asked for."""
        ring = self.ranks.get(rank)
        if ring is None:  # a screen may ask for it at this very moment too: both must get the same
            ring = self.ranks.setdefault(rank, LogRing(self.capacity, self._room))
        return ring

    def for_run(self, run: str) -> LogBuffers:
        """What has come of one run, made when first asked for; numbers of lines count from 0 in each."""
        book = self._runs.get(run)
        if book is None:
            book = self._runs.setdefault(run, LogBuffers(self.capacity, self._room))
        return book

    def has(self, run: str) -> bool:
        """Whether lines of a run are held, perhaps not all."""
        return run in self._runs

    def feed(
        self, rank: int, stream: str, data: bytes, at: float | None = None, run: str = "", source: str = ""
    ) -> Sequence[str]:
        """Take bytes of a rank's stream ("out" or "err"); return the lines they completed.

        Args:
            at, run: see :class:`LineInfo`.
            source: which of a rank's workers wrote them: each has lines of its own.
        """
        self.version += 1
        ring = self.rank(rank)
        key = f"{source or rank}.{stream}"
        if run and run != (before := self._latest.get(key, run)):
            # What a run left unfinished is its own last line, and no beginning of the next run's first.
            self._append(rank, ring.end_partial_line(key), LineInfo(stream, at, before))
        if run and run not in self._runs:
            self._drop_old_runs()
        lines = ring.split(data, key)
        self._append(rank, lines, LineInfo(stream, at, run))
        if run:
            self._latest[key] = run
            if at is not None and data:
                self.activity.record_activity(run, rank, at, source)
            self.for_run(run).rank(rank)._share_partial(ring, key)
        return lines

    def _append(self, rank: int, lines: Sequence[str], about: LineInfo) -> None:
        if not lines:
            return
        for book in (self, self.for_run(about.run)) if about.run else (self,):
            book.rank(rank).extend(lines, about)
            book.merged.extend(lines, about, rank_prefix(rank))

    def _drop_old_runs(self) -> None:
        """Make room for one more run; those that may still print stay."""
        over = [run for run in self._runs if run not in self._latest.values()]
        for run in over[: max(0, len(self._runs) - RUNS_KEPT + 1)]:
            self._room.stores -= len(self._runs.pop(run).ranks)


def rank_prefix(rank: int) -> str:
    """``3`` -> ``r003| ``."""
    return f"r{rank:03d}| "
