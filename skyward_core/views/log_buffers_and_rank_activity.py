"""Bounded in-memory buffers of log lines, and detection of silent ranks.

Log bytes arrive in chunks of any size. The files contain the complete logs. The buffers contain only the lines that a
screen can show, reduced to text and colours that are safe for terminals (``util.terminal_safe_text``).
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

TOTAL_BYTES = 64_000_000  # default bytes of the memory that several stores of lines share
MIN_STORE_BYTES = 16 << 10  # minimum bytes of each store of lines, even if many stores share the memory
LINE_OVERHEAD = 64  # bytes that a separately stored line takes in addition to its characters
LAZY_LINES = 64  # minimum lines of a chunk that is stored undecoded; smaller chunks are merged


class MemoryBudget:
    """Memory budget that several stores share in equal parts.

    Attributes:
        total_bytes: Bytes of each budget in this process.
        stores: Number of stores that share this budget.
    """

    __slots__ = ("stores",)
    total_bytes: ClassVar[int] = TOTAL_BYTES

    def __init__(self) -> None:
        self.stores = 0

    @property
    def store_bytes(self) -> int:
        """Maximum bytes of one store: its share of the budget."""
        return max(MIN_STORE_BYTES, self.total_bytes // max(1, self.stores))


class LineStore:
    """Store of lines, which are addressed by absolute number. Line 0 is the first line ever added.

    Args:
        capacity: Greatest number of lines.
        room: Shared memory budget. A store that exceeds its part of the budget drops its oldest pieces. None: no limit.

    Attributes:
        first: Number of the oldest stored line.
        end: Number of the next line.
    """

    __slots__ = ("_capacity", "_gathered", "_pieces", "_room", "_size", "_sizes", "_starts", "end", "first")

    def __init__(self, capacity: int, room: MemoryBudget | None = None) -> None:
        self.first = 0
        self.end = 0
        self._capacity = capacity
        self._room = room
        self._sizes: deque[int] = deque()  # bytes of each stored chunk of lines
        self._size = 0
        if room is not None:
            room.stores += 1
        self._starts: deque[int] = deque()
        self._pieces: deque[tuple[str, Sequence[str]]] = deque()  # stored chunks: prefix of each line, and the lines
        self._gathered: list[str] | None = None  # lines of the last chunk, if lines can be added to it

    def add(self, lines: Sequence[str], prefix: str = "") -> None:
        """Append lines. The caller must not change them later.

        Args:
            lines: The lines.
            prefix: Text before each line.
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
        """Return the stored lines from ``start`` up to, but not including, ``stop``."""
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


MIN_SILENCE = 30.0  # seconds without output that are normal for every rank
# seconds without output after which every rank counts as silent, also a rank that has printed little so far
MAX_SILENCE = 300.0
SILENCE_FACTOR = 3  # a rank's silence is unusual if it is longer than this multiple of the rank's usual pause
MIN_SIGNS = 3  # number of pauses after which a rank's usual pause is known
# factor by which the weight of older pauses shrinks with each pause, because the beginning of a run is not typical
USUAL_DECAY = 0.9
CPU_SAMPLE_SECONDS = 1.5  # minimum seconds between two samples of a rank's CPU time
# Share of a CPU from which a rank counts as working. Helper threads of a waiting rank use less.
WORKING_SHARE = 0.1
MAX_RUNS = 64  # number of runs per pool whose activity is stored
# seconds by which a log's times may decrease although no clock was changed
MAX_REORDER_SECONDS = 2.0


class Clocks(NamedTuple):
    """Clocks of the client and of the nodes, as known from the client's connections.

    Attributes:
        now: Returns the client's Unix time.
        ahead: Returns the seconds by which the client's clock is ahead of the clock of a rank's node.
    """

    now: Callable[[], float]
    ahead: Callable[[int], float]


class _FileClock(NamedTuple):
    """Newest time in one log file, and changes of the node's clock. The lines of a file are in order of time.

    Attributes:
        newest: Newest time in the file, on the node's clock.
        ahead: Seconds by which the client's clock was ahead of the node's clock when ``newest`` arrived.
        step: Seconds by which the node's clock was set back, but which ``ahead`` does not include yet.
    """

    newest: float
    ahead: float
    step: float


class RankActivity:
    """Times of one rank's output in one run, from which unusual silence is detected.

    Attributes:
        last: Unix time of the last output.
        usual: Longest recent pause in seconds.
        resumptions: Number of outputs that followed a pause.
    """

    __slots__ = ("_sign", "last", "resumptions", "usual")

    def __init__(self) -> None:
        self.last = self._sign = 0.0
        self.usual = 0.0
        self.resumptions = 0

    def on_resumed(self, at: float) -> None:
        """Do not count the silence before ``at``, because the rank was paused, or waited for a paused rank."""
        self.last = max(self.last, at)
        if self._sign:
            self._sign = max(self._sign, at)

    def shift_clock(self, seconds: float) -> None:
        """Shift all recorded times by a number of seconds after a change of the clock."""
        self.last += seconds
        self._sign += seconds if self._sign else 0.0

    def record_activity(self, at: float) -> None:
        """Record that the rank printed a line or logged a metric at a Unix time."""
        pause, self.last = at - self.last, max(self.last, at)
        if at - self._sign < 1:  # All output within a second counts as one activity.
            return
        if self._sign:
            self.usual = max(pause, self.usual * USUAL_DECAY)
            self.resumptions += 1
        self._sign = at

    @property
    def silence_threshold(self) -> float:
        """Seconds of silence that are normal for this rank."""
        is_known = self.resumptions >= MIN_SIGNS
        return min(MAX_SILENCE, max(MIN_SILENCE, SILENCE_FACTOR * self.usual)) if is_known else MAX_SILENCE


class PoolActivity:
    """Times of the ranks' output in a pool's latest runs. One thread writes; other threads may read.

    Attributes:
        is_paused: Whether a rank is stopped at a breakpoint. Other ranks will wait for it.
        clocks: Clock information of a connected client. None: times are used unchanged, as in a replay.
    """

    def __init__(self) -> None:
        self.is_paused = False
        self.clocks: Clocks | None = None
        self._sources: dict[str, _FileClock] = {}
        self._resumed_at = 0.0
        self._runs: dict[str, dict[int, RankActivity]] = {}
        # rank -> time of the latest sample, and the rank's CPU time in seconds
        self._cpu_times: dict[int, tuple[float, float]] = {}
        self._worked_at: dict[int, float] = {}

    def record_activity(self, run: str, rank: int, at: float, source: str = "") -> None:
        """Record output of a rank in a run.

        Args:
            run: Id of the run.
            rank: The rank.
            at: Unix time: on the node's clock if there is a source, else on the client's.
            source: The log file, if known.
        """
        if source and self.clocks is not None:
            at = self._to_client_time(self.clocks, rank, at, source)
        if run not in self._runs and len(self._runs) >= MAX_RUNS:
            self._runs = dict(list(self._runs.items())[1 - MAX_RUNS :])
        ranks = self._runs.setdefault(run, {})
        if rank not in ranks:
            ranks[rank] = RankActivity()
        ranks[rank].record_activity(at)

    def _to_client_time(self, clocks: Clocks, rank: int, at: float, source: str) -> float:
        """Convert the time of a log line from the node's clock to the client's clock.

        Lines of a file are in order. A line that is older than the previous line, or in the future, shows that the
        node's clock was changed.
        """
        ahead, known = clocks.ahead(rank), self._sources.get(source)
        step = known.step if known is not None and known.ahead == ahead else 0.0
        set_back = known is not None and at < known.newest - MAX_REORDER_SECONDS
        late = clocks.now() - ahead - at
        if set_back or late < step:
            # No line arrives before it is printed, so the node's clock was changed if the line seems to.
            step = late
        self._sources[source] = _FileClock(at, ahead, step)
        return at + ahead + step

    def shift_clock(self, seconds: float) -> None:
        """Shift all recorded times after the client's clock was set forward.

        Otherwise all silences would seem longer.
        """
        self._resumed_at += seconds
        self._worked_at = {rank: at + seconds for rank, at in self._worked_at.items()}
        self._cpu_times = {rank: (at + seconds, spent) for rank, (at, spent) in self._cpu_times.items()}
        for ranks in list(self._runs.values()):
            for rhythm in list(ranks.values()):
                rhythm.shift_clock(seconds)

    def record_cpu_time(self, rank: int, seconds: float, at: float) -> None:
        """Record the CPU time of a rank, because a rank that uses the CPU does not count as silent."""
        before, spent = self._cpu_times.get(rank, (at, seconds))
        if at - before < CPU_SAMPLE_SECONDS and rank in self._cpu_times:
            return  # The samples are too close to each other to compute a reliable share.
        self._cpu_times[rank] = (at, seconds)
        if seconds - spent > WORKING_SHARE * (at - before):
            self._worked_at[rank] = at

    def set_paused(self, still: bool, at: float) -> None:
        """Set whether any rank is paused at a breakpoint. Called at each change of a rank's phase.

        Args:
            still: Whether a rank is paused.
            at: Unix time on the client's clock.
        """
        if self.is_paused and not still:
            self._resumed_at = at
            for ranks in list(self._runs.values()):
                for rhythm in list(ranks.values()):
                    rhythm.on_resumed(at)
        self.is_paused = still

    def unusual_silence(self, run: str, rank: int, began: float, now: float) -> float | None:
        """Return for how many seconds a rank has been silent if this is longer than usual; otherwise None.

        Args:
            run: Id of the run.
            rank: The rank.
            began: Unix time of the function's start.
            now: Unix time.
        """
        if self.is_paused:
            return None
        silent = self.silence(run, rank, began, now)
        return silent if silent > (self._runs.get(run, {}).get(rank) or _NEVER).silence_threshold else None

    def silence(self, run: str, rank: int, began: float, now: float) -> float:
        """Return the seconds since a rank's last sign of activity in a run. The arguments are those of
        :meth:`unusual_silence`."""
        last = (self._runs.get(run, {}).get(rank) or _NEVER).last
        return now - max(last, began, self._worked_at.get(rank, 0.0), self._resumed_at)


_NEVER = RankActivity()


LINE_LIMIT = 64 * 1024  # maximum bytes of a line on screen; the log file has the whole line
RUNS_KEPT = 8  # number of runs with their own buffers; lines of older runs are only in the log files


class LineInfo(NamedTuple):
    """Properties of a log line.

    Attributes:
        stream: "out" or "err".
        at: Unix time on the node's clock in seconds. Precise to about 0.01 s for output of Python, less for native code
            and child processes. None if unknown.
        run: Run that printed the line; "" if several runs may have printed it.
    """

    stream: str
    at: float | None = None
    run: str = ""


class Line(NamedTuple):
    """A stored log line. ``number`` is its absolute number in its buffer."""

    number: int
    text: str
    about: LineInfo


UNKNOWN = LineInfo("out")


class Ring(Protocol):
    """Interface of buffers of lines with absolute numbers. ``version`` changes whenever the shown text changes."""

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
    """Buffer of the last ``capacity`` lines of a text stream.

    Lines are addressed by absolute number, so that a reader's position stays valid when old lines are dropped. One
    thread may write while another reads.
    """

    __slots__ = (
        "_abouts", "_lines", "_lock", "_partials", "_starts", "capacity", "version",
    )  # fmt: skip

    def __init__(self, capacity: int = 10_000, room: MemoryBudget | None = None) -> None:
        self.capacity = capacity
        self.version = 0
        self._lines = LineStore(capacity, room)
        self._partials: dict[str, LineSplitter] = {}
        # Consecutive lines often share their properties. Each stretch of these lines therefore has only one entry: its
        # first line in ``_starts``, and the shared properties in ``_abouts``.
        self._starts: list[int] = []
        self._abouts: list[LineInfo] = []
        self._lock = threading.Lock()

    @property
    def first(self) -> int:
        """Absolute number of the oldest stored line."""
        return self._lines.first

    @property
    def end(self) -> int:
        """Absolute number of the next line."""
        return self._lines.end

    def feed(self, data: bytes, stream: str = "out") -> Sequence[str]:
        """Split bytes of a stream into lines and append the lines. Return the completed lines."""
        lines = self.split(data, stream)
        self.extend(lines, LineInfo(stream))
        return lines

    def split(self, data: bytes, source: str) -> Sequence[str]:
        """Split bytes of a source into lines. Return the completed lines without appending them."""
        lines = self._partials.setdefault(source, LineSplitter()).split_lazily(data)
        self.version += 1
        return lines

    def extend(self, lines: Sequence[str], about: LineInfo = UNKNOWN, prefix: str = "") -> None:
        """Append whole lines with a prefix. The caller must not change them later."""
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
        """Return the stored lines from ``start`` up to, but not including, ``stop``."""
        with self._lock:
            return self._lines.read(start, stop)

    def last(self, most: int) -> list[str]:
        """Return the last lines, including unfinished ones."""
        lines = [*self.lines(max(self.first, self.end - most), self.end), *self.pending()]
        return lines[-most:] if most > 0 else []

    def read(self, start: int, stop: int) -> list[Line]:
        """Return the stored lines of a range of numbers, with their properties."""
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
        """Return each stream's unfinished last line (a progress bar, a prompt) as a terminal would show it now."""
        return [text for partial in list(self._partials.values()) if (text := partial.preview())]

    def _share_partial(self, other: LogRing, source: str) -> None:
        """Use the same object as another buffer for the unfinished line of a source, so that both show its changes."""
        if (partial := other._partials.get(source)) is not None:
            self._partials[source] = partial
        self.version += 1

    def end_partial_line(self, source: str) -> Sequence[str]:
        """End the unfinished line of a source. Return the line; empty if there is none."""
        partial = self._partials.pop(source, None)
        return partial.end() if partial is not None else []


# Nested progress bars (tqdm) move the cursor down to draw, and up again. Such newlines do not end a line.
_UP = b"\x1b[A"
_BELOW = re.compile(rb"(?<!\n)(\n++)\r([^\n]*?)((?:\x1b\[A)+)")
MAX_BAR_DEPTH = 8  # maximum number of nested progress bars below the unfinished line


class LineSplitter:
    """Incremental splitter of bytes into lines. The bytes may arrive in chunks of any size.

    Holds the unfinished last line, and the progress bars that were drawn below this line.
    """

    __slots__ = ("_below", "_cut", "_head", "_returned")

    def __init__(self) -> None:
        self._below: dict[int, bytes] = {}  # distance in lines below the unfinished line -> progress bar drawn there
        self._head = b""
        self._cut = 0  # number of bytes of the unfinished line that were dropped because the line is too long
        # whether the last character was a carriage return, so that the next character overwrites the line
        self._returned = False

    def split(self, data: bytes) -> list[str]:
        """Split further bytes. Return the completed lines as a terminal would show them."""
        return list(self.split_lazily(data))

    def split_lazily(self, data: bytes) -> Sequence[str]:
        """Split bytes like :meth:`split`, but decode many lines only when they are read."""
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
            lines: Sequence[str] = [_decode_clipped(self._head, self._cut), *(_decode_lines(body) if newline else ())]
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
        """Return the unfinished line as a terminal shows it now, without an incomplete last character."""
        return sanitize_colored(utf_8_decode(self._visible_bytes(), "replace", False)[0])

    def end(self) -> list[str]:
        """End the unfinished line. Return the line, if there is one. Buffers that share this object see the end."""
        text = _decode_clipped(self._head if self._cut else self._visible_bytes(), self._cut)
        self._head, self._cut, self._returned, self._below = b"", 0, False, {}
        return [text] if text else []

    def _visible_bytes(self) -> bytes:
        if not self._below:
            return self._head
        return b"  ".join([self._head, *(text for _, text in sorted(self._below.items()))])

    def _draw_below(self, drawn: re.Match[bytes]) -> bytes:
        """Store progress bars that were drawn below the unfinished line. Return the newlines that ended whole lines."""
        newlines, text, back = drawn.groups()
        depth = len(back) // len(_UP)
        text = text.rstrip().rpartition(b"\r")[2].rstrip()
        # Create a new dict, because copies of this object use the old one.
        others = {each: bar for each, bar in self._below.items() if each != depth}
        if text and depth <= MAX_BAR_DEPTH:  # A bar drawn with an empty text is erased.
            others[depth] = text[:LINE_LIMIT]
        self._below = others
        return newlines[depth:]

    def _extend_partial(self, data: bytes) -> None:
        # A redrawn bar never ends its line, so only the visible text is stored.
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
    """Lines that are decoded only when they are read. Most lines are dropped from the buffer before that."""

    __slots__ = ("_body", "_count", "_lines")

    def __init__(self, body: bytes, count: int) -> None:
        self._body = body
        self._count = count
        self._lines: list[str] | None = None

    @property
    def size(self) -> int:
        """Size in bytes of the undecoded lines; 0 once they are decoded."""
        return len(self._body)

    def text(self) -> str | None:
        """Return all lines as one text if they are plain ASCII without long lines; None if they need processing."""
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
        # Read the bytes before the check, because another thread may decode and drop them at the same time.
        body = self._body
        if self._lines is None:
            self._lines = _decode_lines(body)
            self._body = b""
        return self._lines


def join_lines(lines: Sequence[str]) -> str:
    """Join whole lines to one text, without decoding undecoded lines one by one."""
    return text if isinstance(lines, _LazyLines) and (text := lines.text()) is not None else "\n".join(lines)


def _decode_lines(body: bytes) -> list[str]:
    if b"\r" in body or _may_be_long(body):
        return [_decode_line(line) for line in body.split(b"\n")]
    lines = body.decode("utf-8", "replace").split("\n")
    return lines if is_plain_ascii(body) else [sanitize_colored(line) for line in lines]


def _may_be_long(body: bytes) -> bool:
    """Check whether any line may exceed the length limit.

    A longer line fills a window of half the limit, in which there is no newline.
    """
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
    """Log lines of one pool: per rank, and merged in order of arrival. The latest runs also have their own buffers.

    Attributes:
        version: Increased by each change.
    """

    def __init__(self, capacity: int = 10_000, room: MemoryBudget | None = None) -> None:
        self.capacity = capacity
        self.version = 0
        self._room = room or MemoryBudget()
        self.merged = LogRing(capacity)
        self.ranks: dict[int, LogRing] = {}
        self._runs: dict[str, LogBuffers] = {}
        self.activity = PoolActivity()  # receives the time of all output, to detect silent ranks
        self._latest: dict[str, str] = {}  # (source, stream) -> run that printed the last lines

    def rank(self, rank: int) -> LogRing:
        """Return the buffer of a rank's lines, created on first use."""
        ring = self.ranks.get(rank)
        if ring is None:  # Use setdefault(), because a screen's thread may create the buffer at the same time.
            ring = self.ranks.setdefault(rank, LogRing(self.capacity, self._room))
        return ring

    def for_run(self, run: str) -> LogBuffers:
        """Return the buffers of one run's lines, created on first use. Line numbers begin at 0 in each run."""
        book = self._runs.get(run)
        if book is None:
            book = self._runs.setdefault(run, LogBuffers(self.capacity, self._room))
        return book

    def has(self, run: str) -> bool:
        """Check whether some or all lines of a run are stored."""
        return run in self._runs

    def feed(
        self, rank: int, stream: str, data: bytes, at: float | None = None, run: str = "", source: str = ""
    ) -> Sequence[str]:
        """Append bytes of a rank's stream. Return the completed lines.

        Args:
            rank: The rank.
            stream: "out" or "err".
            data: The bytes.
            at, run: See :class:`LineInfo`.
            source: Worker of the rank that wrote the bytes. The unfinished lines of each worker are separate.
        """
        self.version += 1
        ring = self.rank(rank)
        key = f"{source or rank}.{stream}"
        if run and run != (before := self._latest.get(key, run)):
            # End the earlier run's unfinished line, so that the next run does not continue it.
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
        """Drop the buffers of the oldest runs to make room for another run, except for runs that may still print."""
        over = [run for run in self._runs if run not in self._latest.values()]
        for run in over[: max(0, len(self._runs) - RUNS_KEPT + 1)]:
            self._room.stores -= len(self._runs.pop(run).ranks)


def rank_prefix(rank: int) -> str:
    """Return the prefix of a rank's lines in merged output: ``r003| `` for rank 3."""
    return f"r{rank:03d}| "
