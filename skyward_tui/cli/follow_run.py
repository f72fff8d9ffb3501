"""A run followed in a terminal until it ends."""

from __future__ import annotations

import math
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Literal, TypeVar

from rich.cells import cell_len

from skyward_core.model.errors import error_message
from skyward_core.model.outcomes import Outcome
from skyward_core.util.terminal_safe_text import RESET, sanitize_line
from skyward_core.views.events import (
    Event,
    NodeLink,
    NodePhase,
    OutputFetched,
    PoolState,
    QueueNews,
    RankBegan,
    RankEnded,
    RankPhase,
    RunEnded,
    RunOpened,
)
from skyward_core.views.log_buffer import rank_prefix
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.rank_metrics import format_metrics
from skyward_tui.cli.console import Console, is_color_enabled
from skyward_tui.cli.output_stream import StandardStream
from skyward_tui.cli.run_report import COLORS, GLYPHS
from skyward_tui.text.ansi_colours import plain
from skyward_tui.text.error_hints import format_detail
from skyward_tui.text.number_and_time_format import clip, count, duration, hourly, money

MAX_BUFFERED_BYTES = 1 << 20  # bytes of a rank that are held until it is known whose they are; of more, the latest

Piece = tuple[str, bytes]  # a stream, and what came of it


class RankBuffer:
    """The latest pieces of one rank, of which older ones make room for new ones."""

    def __init__(self) -> None:
        self.pieces: deque[tuple[Any, int]] = deque()  # with their bytes
        self.size = 0
        self.is_truncated = False

    def add(self, piece: Any, size: int) -> list[Any]:
        """Keep a piece; return the older ones for which there is no room beside it."""
        self.pieces.append((piece, size))
        self.size += size
        dropped = []
        while self.size > MAX_BUFFERED_BYTES:
            oldest, size = self.pieces.popleft()
            self.size -= size
            self.is_truncated = True
            dropped.append(oldest)
        return dropped


class UnattributedLines:
    """The lines of all ranks of which it is not known yet whose they are."""

    def __init__(self) -> None:
        self._ranks: defaultdict[int, RankBuffer] = defaultdict(RankBuffer)

    def buffer(self, rank: int, stream: str, data: bytes) -> None:
        """Keep a piece."""
        self._ranks[rank].add((stream, data), len(data))

    def is_truncated(self, rank: int) -> bool:
        """Whether older pieces of a rank were left out of what is held of it."""
        return rank in self._ranks and self._ranks[rank].is_truncated

    def pop(self, rank: int) -> list[Piece]:
        """Return what is held of a rank, in order, and hold it no more."""
        return [piece for piece, _ in self._ranks.pop(rank, RankBuffer()).pieces]


class PendingLaunchEvents:
    """What comes while a launch is not answered, in order: all that ranks do, and of each rank's lines the latest."""

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}  # by their number: the order in which they came
        self._next_number = 0
        self._ranks: defaultdict[int, RankBuffer] = defaultdict(RankBuffer)  # numbers of a rank's lines
        self.truncated: set[tuple[int, str]] = set()  # ranks, and runs as far as known, of which pieces were left out

    def buffer(self, item: object) -> int:
        """Keep what a rank did; return its number."""
        self._items[self._next_number] = item
        self._next_number += 1
        return self._next_number - 1

    def buffer_lines(self, rank: int, run: str, stream: str, data: bytes) -> None:
        """Keep a piece of a rank's lines, and of its older ones what there is room for beside it."""
        for number in self._ranks[rank].add(self.buffer((rank, run, stream, data)), len(data)):
            _, of, *_ = self._items.pop(number)
            self.truncated.add((rank, of))

    def __iter__(self) -> Iterator[object]:
        return iter(self._items.values())


T = TypeVar("T")
Choice = Literal["detach", "cancel", "down"]

MUST_FINISH = "this must finish, so that nothing is left running; wait"
PATIENCE = 1.0  # seconds of silence after which we say what we wait for

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ANSWERS: dict[str, Choice] = {"": "detach", "d": "detach", "c": "cancel", "t": "down"}


class Interrupted(Exception):
    """A signal came while something was awaited, or nobody reads our output any more."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Follower:
    """One inbox for what may come while a command waits: log chunks, events, results, signals.

    The session's thread only puts things in; all printing happens on the thread that waits, so that a slow
    terminal never holds up the session.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.live: LiveStatus | None = None  # told of in place of all that ranks print
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._printer = console.log_printer()
        self._asking = False
        self._leaving = False
        self._has_lost_terminal = False  # our reader has left, or the terminal is gone, and that was told
        self.on_trial: Callable[[str, Outcome], None] | None = None  # told of each task that ends, after its run
        self.on_run: Callable[[RunOpened | RunEnded], None] | None = None
        self.on_queue: Callable[[], None] | None = None  # told that runs wait for nodes, or do not any more
        # Whether a rank's lines of a run are shown; None where that is not known yet.
        self.is_output_ours: Callable[[int, str], bool | None] | None = None
        self._runs_by_rank: dict[int, set[str]] = {}  # by rank: runs that are at it
        # What is still there when a command ends is another run's: the end of a rank of ours would have had it shown.
        self._unattributed = UnattributedLines()
        self.queued: frozenset[str] = frozenset()  # runs that waited for nodes when what is shown now came
        self._waiting: dict[int, str] = {}  # by node: what it is at, not told yet
        self._noted_waiting: dict[int, str] = {}  # by node: what was told last
        self._paused_ranks: set[int] = set()  # ranks whose first breakpoint was told
        self._pending_launch: PendingLaunchEvents | None = None  # what ranks did while it is not known whose it is
        self._held_state: PoolState | None = (
            None  # said of a start that may fail with just that, which is told as the error
        )

    def on_event(self, event: Event) -> None:
        """Take an event of a pool; called on the session's thread."""
        self._inbox.put(event)

    def on_log(self, rank: int, stream: str, at: int, data: bytes, run: str) -> None:
        """Take a piece of log; called on the session's thread."""
        self._inbox.put((rank, run, stream, data))

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Turn SIGINT, SIGTERM and SIGHUP into :class:`Interrupted`; those ignored from outside stay so."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self, future: Future[T], *, heed: bool = True) -> T:
        """Print what comes until the future is done, and give its result or raise its exception.

        Args:
            heed: whether a signal ends the waiting. If not, it is only answered that this has to finish.

        Raises:
            Interrupted: a signal came; the future goes on.
        """
        future.add_done_callback(self._inbox.put)
        while (item := self._next_item(0.0)) is not future:
            if isinstance(item, signal.Signals):
                if heed:
                    raise Interrupted(item)
                self._console.note(MUST_FINISH)
            else:
                self._show(item)
                if self._console.has_no_reader and heed and not self._has_lost_terminal:
                    self._has_lost_terminal = True
                    raise Interrupted(signal.SIGPIPE)
        error = None if future.cancelled() else future.exception()
        if self._held_state and error and self._held_state.detail == error_message(error):
            self._held_state = None
        self._flush_held()
        return future.result()

    def wait_until(self, come: Callable[[], bool], most: float = math.inf) -> bool:
        """Print what comes until it has made something true; says whether it has.

        Args:
            most: seconds that are waited.

        Raises:
            Interrupted: a signal came.
        """
        until = time.monotonic() + most
        while not come():
            if (item := self._next_item(until)) is None:
                return come()
            if isinstance(item, signal.Signals):
                raise Interrupted(item)
            self._show(item)
        return True

    def _next_item(self, until: float = math.inf) -> object:
        """What comes next; None where nothing has at that time of the monotonic clock."""
        while True:
            if self._inbox.empty():  # whatever came last: nothing printed waits for what comes next
                self._printer.flush()
                if self.live is not None:
                    self.live.draw()
            try:
                item: object = self._inbox.get(timeout=PATIENCE)
            except Empty:
                self._flush_held()
                self._note_waiting()
                if time.monotonic() >= until:
                    return None
            else:
                return item

    def finish(self) -> None:
        """Print what is still in the inbox, and last lines that never ended."""
        while not self._inbox.empty():
            self._show(self._inbox.get())
        self._flush_held()
        self._printer.finish()
        if self.live is not None:
            self.live.close()

    def ask(self, run: str, *, outlives_us: bool, leaving: str = "") -> Choice:
        """Ask the person at the terminal what becomes of a run; a second ctrl-c answers "down".

        Args:
            outlives_us: whether it goes on when we leave.
            leaving: what it is to leave it, where more is to be said of that.

        Raises:
            Interrupted: another signal came, or the terminal is gone.
        """
        self._printer.flush()
        self._printer.erase()
        if self.live is not None:
            self.live.erase()
        state, detaching = "goes on meanwhile", "and leave it running"
        detaching = leaving or detaching
        if not outlives_us:
            state, detaching = "is on no node yet, and waits meanwhile", "though that cancels it"
        question = (
            f"\n{run} {state}. [d]etach {detaching} (default), [c]ancel it and keep the pool, [t]ear the pool down? "
        )
        self._asking = True
        try:
            while (answer := _read_answer(question)) not in _ANSWERS:
                question = "d, c or t? "
            if self._console.has_no_reader:
                raise Interrupted(signal.SIGHUP)
        except OSError:
            raise Interrupted(signal.SIGHUP) from None
        except KeyboardInterrupt:
            self._console.note("")
            return "down"
        finally:
            self._asking = False
        return _ANSWERS[answer]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            # Of one terminal that vanishes the system tells, and the shell, and whatever is written: it is no second
            # wish of anybody.
            if self._has_lost_terminal:
                return
            self._has_lost_terminal = True
        if self._asking:
            raise KeyboardInterrupt if number == signal.SIGINT else Interrupted(number)
        self._inbox.put(signal.Signals(number))
        if any([each.discard() for each in (sys.stdout, sys.stderr) if isinstance(each, StandardStream)]):
            raise TimeoutError

    def _show(self, item: object) -> None:
        match item:
            case (int(rank), str(run), str(stream), bytes(data)) if self._pending_launch is not None:
                self._pending_launch.buffer_lines(rank, run, stream, data)
            case RankBegan() | RankEnded() if self._pending_launch is not None:
                self._pending_launch.buffer(item)
            case (int(rank), str(run), str(stream), bytes(data)) if self.is_output_ours and not (
                is_ours := self.is_output_ours(rank, run)
            ):
                if is_ours is None:
                    self._unattributed.buffer(rank, stream, data)
            case (int(rank), str(), str(stream), bytes(data)):
                self._print(rank, stream, data)
            case NodePhase(phase="ready" | "gone"):
                self._waiting.pop(item.node, None)
            case NodePhase():
                again = "; it is tried again" if item.retry_at is not None else ""
                self._waiting[item.node] = f"n{item.node} {item.phase}: {item.detail}".rstrip(": ") + again
                if again:
                    self._note_waiting()
            case NodeLink(up=False) if not self._leaving:
                self._flush_held()
                self._console.note(f"n{item.node} link down: {item.detail}".rstrip(": "))
            case RankPhase(phase="paused") if item.rank not in self._paused_ranks:
                self._paused_ranks.add(item.rank)
                self._flush_held()
                self._console.note(f"rank {item.rank} is at a breakpoint: skyward-tui debug {item.pool}:{item.rank}")
            case OutputFetched():
                self._flush_held()
                what = f"{sanitize_line(item.path)} of node {item.node}"
                failed = f"{what} was not fetched: {sanitize_line(item.error)}"
                self._console.note(failed if item.error else f"fetched {what} to {sanitize_line(item.target)}")
            case RankBegan(rank=rank, run=run):
                self._runs_by_rank.setdefault(rank, set()).add(run)
                if self.is_output_ours and self.is_output_ours(rank, run):
                    self._show_buffered(rank)
            case RankEnded(outcome=outcome, run=run):
                self._runs_by_rank.get(outcome.rank, set()).discard(run)
                if self.is_output_ours and self.is_output_ours(outcome.rank, run):
                    self._show_buffered(outcome.rank)
                else:  # they are that run's: its lines come before its end
                    self._unattributed.pop(outcome.rank)
                if self.on_trial is not None:
                    self._flush_held()
                    self.on_trial(run, outcome)
            case RunOpened() | RunEnded() if self.on_run is not None:
                self._flush_held()
                self.on_run(item)
            case QueueNews():
                self.queued = frozenset(each.run for each in item.waiting)
                if self.on_queue is not None:
                    self._flush_held()
                    self.on_queue()
            case PoolState(state=state):
                self._leaving |= state == "stopping"
                if item.detail:
                    self._flush_held()
                    self._held_state = item
                    if state != "starting":
                        self._flush_held()

    @contextmanager
    def buffer_until_known(self) -> Iterator[None]:
        """Keep what ranks print and do until it is over: until then a run that was just begun is not known as ours, and
        on a busy machine its lines, and its end, come first. On a pool of our own all is ours, and nothing is kept."""
        if self.is_output_ours is None:
            yield
            return
        later = self._pending_launch = PendingLaunchEvents()
        try:
            yield
        finally:
            self._pending_launch = None
            if cut := {rank for rank, run in later.truncated if self.is_output_ours(rank, run) is not False}:
                self._note_truncated(cut)
            for item in later:
                self._show(item)

    def is_running(self, rank: int, run: str) -> bool:
        """Whether a rank has begun its part of a run, and not ended it, when what is shown now came."""
        return run in self._runs_by_rank.get(rank, ())

    def _show_buffered(self, rank: int) -> None:
        if self._unattributed.is_truncated(rank):
            self._note_truncated([rank])
        for stream, data in self._unattributed.pop(rank):
            self._print(rank, stream, data)

    def _note_truncated(self, ranks: Collection[int]) -> None:
        """Say that not all lines of some ranks are shown."""
        if self.live is not None:  # no lines are shown
            return
        self._flush_held()
        whose = f"rank {min(ranks)}" + (f" (and {count(len(ranks) - 1, 'rank')} more)" if len(ranks) > 1 else "")
        self._console.note(
            f"{whose} printed more than is held until it is known whose it is: older lines are left out here "
            "(skyward-tui logs has them)"
        )

    def _print(self, rank: int, stream: str, data: bytes) -> None:
        if self.live is not None:
            self.live.on_output(rank, data)
        else:
            self._flush_held()
            self._printer.feed(rank, stream, data)

    def _flush_held(self) -> None:
        """Say what was held back."""
        if (item := self._held_state) is not None:
            self._held_state = None
            self._console.note(f"pool {item.pool} {item.state}: {format_detail(item)}")

    def _note_waiting(self) -> None:
        """Say what is waited for, once for each piece of news: an attempt that failed as the one before is none."""
        for node, line in self._waiting.items():
            self._flush_held()
            if self._noted_waiting.get(node) != line:
                self._console.note(line)
        self._noted_waiting |= self._waiting
        self._waiting.clear()


def _read_answer(question: str) -> str:
    """What the person at the terminal answers.

    Raises:
        OSError: there is no terminal any more.
    """
    sys.stderr.write(question)
    sys.stderr.flush()
    was_there = sys.stdin.isatty()
    line = sys.stdin.readline()
    if not line and was_there and not sys.stdin.isatty():
        raise OSError("the terminal is gone")
    return line.strip().lower()


PERIOD = 0.25  # seconds between two drawings, however much comes
_ORDER = ("raised", "exited", "lost", "collateral", "running", "waiting", "returned")
Row = tuple[str, int | None]  # a line, and the SGR code it may be coloured with


def status_rows(pool: PoolView, run: RunView | None, said: str, now: float) -> list[Row]:
    """How a pool and a run of it are, in lines.

    Args:
        said: what a rank printed last, with the rank.
        now: Unix time in seconds.
    """
    where = f"pool {pool.name} {pool.state}  {pool.nodes_ready}/{count(len(pool.nodes), 'node')}"
    if pool.price_hourly or pool.has_unknown_price:
        where += f"  {hourly(pool)} spent {money(pool.spent(now))}"
    if run is None:
        phases = Counter(node.phase for node in pool.nodes)
        at = "  ".join(f"{many} {phase}" for phase, many in phases.items())
        return [(f"◌ {where}  {duration(now - pool.created_at)}", 1), *([(f"  {at}", None)] if at else [])]
    states: Counter[str] = Counter(task.state for task in list(run.tasks.values()))
    states["waiting"] += max(0, run.total - len(run.tasks))
    tally = "  ".join(f"{GLYPHS.get(s, '◌')} {states[s]:,} {s}" for s in _ORDER if states[s])
    bad = next((COLORS[state] for state in _ORDER[:3] if states[state]), None)
    ended = f"{run.ended:,}/{run.total:,} ended  {duration(now - run.opened_at)}"
    found: list[Row] = [(f"● {run.function} ({run.id})  {ended}  {where}", 1), (f"  {tally}", bad)]
    if ranks := pool.metrics.ranks(run.id):
        found.append((f"  {rank_prefix(ranks[0])}{format_metrics(pool.metrics.latest(run.id, ranks[0]))}", None))
    if said:
        found.append((f"  {said}", 2))
    return found


class LiveStatus:
    """Draws them on standard error, a terminal.

    Args:
        console: takes them away wherever it prints something.
        look: what to tell now; called on the thread that draws.
    """

    def __init__(self, console: Console, look: Callable[[str], Sequence[Row]]) -> None:
        self._render_rows = look
        self._shown: list[str] = []
        self._drawn_at = 0.0
        self._last_line = ""
        self._open = True
        console.share_terminal(self.erase)

    def on_output(self, rank: int, data: bytes) -> None:
        """A rank has printed something, which is told by its last line alone."""
        lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            self._last_line = f"{rank_prefix(rank)}{sanitize_line(plain(lines[-1]))}"

    def draw(self) -> None:
        """Draw them, where they have changed and were not drawn just now."""
        now = time.monotonic()
        if not self._open or (self._shown and now - self._drawn_at < PERIOD):
            return
        columns, height = shutil.get_terminal_size()
        found = [(clip(text, columns - 1), code) for text, code in self._render_rows(self._last_line)][: height - 1]
        texts = [text for text, _ in found]
        self._drawn_at = now
        if texts == self._shown:
            return
        colored = is_color_enabled(sys.stderr)
        drawn = "".join(
            f"\x1b[{code}m{text}{RESET}\n" if colored and code is not None else f"{text}\n" for text, code in found
        )
        self._write(self._erase_sequence() + drawn)  # at once: there is no time at which nothing is there
        self._shown = texts

    def erase(self) -> None:
        """Take them away: something is about to be printed."""
        if self._shown:
            self._write(self._erase_sequence())
            self._shown = []

    def _erase_sequence(self) -> str:
        if not self._shown:
            return ""
        # A terminal that has become narrower since shows a line in several.
        columns = shutil.get_terminal_size().columns
        lines = sum(max(1, -(-cell_len(text) // columns)) for text in self._shown)
        return f"\x1b[{lines}F\x1b[J"

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def open(self) -> None:
        """Draw again from now on, of what comes next."""
        self._open, self._last_line = True, ""

    def close(self) -> None:
        """Take them away until there is something else to tell of."""
        self._open = False
        self.erase()
