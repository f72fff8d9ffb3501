"""Follower of a run in a terminal: output of ranks, progress notes, signals and the live summary."""

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
from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.util.terminal_safe_text import RESET, sanitize_line
from skyward_core.views.events import (
    AttemptEnded,
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
from skyward_core.views.log_buffers_and_rank_activity import rank_prefix
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.rank_metrics_and_progress import format_metrics
from skyward_tui.cli.console_and_log_printer import Console, is_color_enabled
from skyward_tui.cli.fault_tolerant_stdio import StandardStream
from skyward_tui.cli.result_tables_failures_and_receipts import COLORS, state_text
from skyward_tui.text.ansi_colours import plain
from skyward_tui.text.error_hint_text import format_detail
from skyward_tui.text.number_time_and_run_state_format import count, duration, hourly, money, run_progress, saving_text
from skyward_tui.text.text_width_tables_and_ascii import clip

MAX_BUFFERED_BYTES = 1 << 20  # bytes per rank; limits the memory for output that waits until its run is known
# bytes per rank of printed standard error that are remembered; longer than usual tracebacks
ERROR_TAIL_BYTES = 16 << 10


class RankBuffer:
    """Buffer of the latest output of one rank, limited by its size."""

    def __init__(self) -> None:
        self.pieces: deque[tuple[Any, int]] = deque()  # each piece of output with its size in bytes
        self.size = 0
        self.is_truncated = False

    def add(self, piece: Any, size: int) -> list[Any]:
        """Store a piece of output, and return the oldest pieces, which are dropped to stay below the size limit."""
        self.pieces.append((piece, size))
        self.size += size
        dropped = []
        while self.size > MAX_BUFFERED_BYTES:
            oldest, size = self.pieces.popleft()
            self.size -= size
            self.is_truncated = True
            dropped.append(oldest)
        return dropped


class PendingLaunchEvents:
    """Buffer, in order, of the events and the output that arrive before the answer to a launch. The output is limited
    per rank.
    """

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}  # items in the order of their arrival, by consecutive number
        self._next_number = 0
        # by rank: numbers in ``_items`` of the rank's pieces of output
        self._ranks: defaultdict[int, RankBuffer] = defaultdict(RankBuffer)
        # (rank, run ID) of dropped output; the ID is "" if the run is unknown
        self.truncated: set[tuple[int, str]] = set()

    def buffer(self, item: object) -> int:
        """Store an event or a piece of output, and return its number."""
        self._items[self._next_number] = item
        self._next_number += 1
        return self._next_number - 1

    def buffer_lines(self, rank: int, run: str, stream: str, data: bytes) -> None:
        """Store a piece of output, and drop the oldest pieces of its rank beyond the limit."""
        for number in self._ranks[rank].add(self.buffer((rank, run, stream, data)), len(data)):
            _, of, *_ = self._items.pop(number)
            self.truncated.add((rank, of))

    def __iter__(self) -> Iterator[object]:
        return iter(self._items.values())


T = TypeVar("T")
Choice = Literal["detach", "cancel", "down"]

MUST_FINISH = "please wait: an interruption now could leave machines running"
COUNTDOWN_SECONDS = 5.0  # seconds between two notes about ranks that still save their work after SIGTERM
PATIENCE = 1.0  # seconds without events after which the state of waiting nodes is printed

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ANSWERS: dict[str, Choice] = {"": "detach", "d": "detach", "c": "cancel", "t": "down"}


class Interrupted(Exception):
    """Interruption of a wait by a signal, or by SIGPIPE if the reader has closed the output."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Follower:
    """Inbox of a waiting command: output of ranks, events, results and signals.

    The session's thread only adds items. The waiting thread prints them, so a slow terminal never blocks the session.

    Attributes:
        live: Live summary, shown instead of the output of ranks; None to show the output.
        on_trial: Called with the run ID and the outcome of each task that ends.
        on_attempt_end: Called when an attempt ends.
        on_run: Called when a run starts or ends.
        on_queue: Called when the queue of the pool changes.
        is_output_ours: Called with a rank and a run ID. Returns whether to show the rank's output; None if this is not
            known yet.
        queued: IDs of the runs that were queued at the time of the item that is being printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.live: LiveStatus | None = None
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._printer = console.log_printer()
        self._errors: dict[int, bytes] = {}  # by rank: the last printed bytes of its standard error
        self._asking = False
        self._leaving = False
        # whether the loss of the terminal or of the output's reader has already interrupted a wait
        self._has_lost_terminal = False
        self.on_trial: Callable[[str, Outcome], None] | None = None
        self.on_attempt_end: Callable[[AttemptEnded], None] | None = None
        self.on_run: Callable[[RunOpened | RunEnded], None] | None = None
        self.on_queue: Callable[[], None] | None = None
        self.is_output_ours: Callable[[int, str], bool | None] | None = None
        self._runs_by_rank: dict[int, set[str]] = {}  # by rank: IDs of the active runs
        # By rank: output whose run is not known yet, each piece with its stream. Output of our run is printed when the
        # rank's call ends, so output that is left at the end of the command belongs to other runs.
        self._unattributed: defaultdict[int, RankBuffer] = defaultdict(RankBuffer)
        self.queued: frozenset[str] = frozenset()
        self._waiting: dict[int, str] = {}  # by node: startup state that is not printed yet
        self._noted_waiting: dict[int, str] = {}  # by node: startup state that was printed last
        self._saving: dict[int, float] = {}  # by rank that handles SIGTERM: Unix time at which the rank is killed
        self._countdown_at = 0.0  # monotonic time at which the next note about saving ranks is printed
        self._paused_ranks: set[int] = set()  # ranks for which a stop at a breakpoint was already printed
        self._pending_launch: PendingLaunchEvents | None = None
        # state of the pool that is printed with a delay: if the start fails, the error has the same text
        self._held_state: PoolState | None = None

    def on_event(self, event: Event) -> None:
        """Add an event of a pool to the inbox; called on the session's thread."""
        self._inbox.put(event)

    def on_log(self, rank: int, stream: str, at: int, data: bytes, run: str) -> None:
        """Add output of a rank to the inbox; called on the session's thread."""
        self._inbox.put((rank, run, stream, data))

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Convert SIGINT, SIGTERM and SIGHUP into :class:`Interrupted`, except signals that were already ignored."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self, future: Future[T], *, interruptible: bool = True) -> T:
        """Print arriving items until the future is done, and return its result or raise its exception.

        Args:
            future: The future.
            interruptible: Whether a signal ends the wait. Otherwise, a note asks the user to wait.

        Raises:
            Interrupted: If a signal arrives. The work behind the future continues.
        """
        future.add_done_callback(self._inbox.put)
        while (item := self._next_item(time.monotonic() + PATIENCE)) is not future:
            if isinstance(item, signal.Signals):
                if interruptible:
                    raise Interrupted(item)
                self._console.note(MUST_FINISH)
            else:
                self._show(item)
                if self._console.has_no_reader and interruptible and not self._has_lost_terminal:
                    self._has_lost_terminal = True
                    raise Interrupted(signal.SIGPIPE)
        error = None if future.cancelled() else future.exception()
        if self._held_state and error and self._held_state.detail == error_message(error):
            self._held_state = None
        self._flush_held()
        return future.result()

    def wait_until(self, condition: Callable[[], bool], timeout: float = math.inf) -> bool:
        """Print arriving items until a condition is true, and return whether it is.

        Args:
            condition: The condition, checked after each item.
            timeout: Maximum wait in seconds.

        Raises:
            Interrupted: If a signal arrives.
        """
        until = time.monotonic() + timeout
        while not condition():
            if (item := self._next_item(until)) is None:
                return condition()
            if isinstance(item, signal.Signals):
                raise Interrupted(item)
            self._show(item)
        return True

    def _next_item(self, until: float = math.inf) -> object:
        """Return the next item of the inbox; None if no item arrives until the given monotonic time."""
        while True:
            if self._inbox.empty():  # the thread is about to block, so flush the output first
                self._printer.flush()
                if self.live is not None:
                    self.live.draw()
            try:
                item: object = self._inbox.get(timeout=min(PATIENCE, max(0.0, until - time.monotonic())))
            except Empty:
                self._flush_held()
                self._note_waiting()
                if time.monotonic() >= until:
                    return None
            else:
                return item

    def finish(self) -> None:
        """Print the remaining items of the inbox, and last lines without a newline."""
        while not self._inbox.empty():
            self._show(self._inbox.get())
        self._flush_held()
        self._printer.finish()
        if self.live is not None:
            self.live.close()

    def ask(self, run: str, *, outlives_us: bool, leaving: str = "") -> Choice:
        """Ask the user at the terminal what to do with a run. A second ctrl-c selects "down".

        Args:
            run: Description of the run, for the question.
            outlives_us: Whether the run continues after a detach.
            leaving: Description of what a detach does; "" for the default text.

        Raises:
            Interrupted: If another signal arrives, or the terminal is gone.
        """
        self._printer.flush()
        self._printer.erase()
        if self.live is not None:
            self.live.erase()
        state, detaching = "is still running", leaving or "it keeps running"
        if not outlives_us:
            state, detaching = "is still queued", "this cancels it"
        question = (
            f"\n{run} {state}. [d]etach: {detaching} (default), [c]ancel it and keep the pool, [t]ear the pool down? "
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
            # A lost terminal is reported by the kernel, by the shell and by every failing write. Only the first report
            # interrupts the command.
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
                    self._unattributed[rank].add((stream, data), len(data))
            case (int(rank), str(), str(stream), bytes(data)):
                self._print(rank, stream, data)
            case NodePhase(phase="ready" | "gone"):
                self._waiting.pop(item.node, None)
            case NodePhase():
                retrying = ", retrying" if item.retry_at is not None else ""
                self._waiting[item.node] = f"n{item.node} {item.phase}: {item.detail}".rstrip(": ") + retrying
                if retrying:
                    self._note_waiting()
            case NodeLink(up=False) if not self._leaving:
                self._flush_held()
                self._console.note(f"n{item.node} link down: {item.detail}".rstrip(": "))
            case RankPhase(phase="paused") if item.rank not in self._paused_ranks:
                self._paused_ranks.add(item.rank)
                self._flush_held()
                self._console.note(f"rank {item.rank} is at a breakpoint: skyward-tui debug {item.pool}:{item.rank}")
            case RankPhase(phase="saving", until=float(until)):
                self._saving[item.rank] = until
            case RankPhase() if item.rank in self._saving:
                del self._saving[item.rank]
            case OutputFetched():
                self._flush_held()
                what = f"{sanitize_line(item.path)} of node {item.node}"
                failed = f"could not fetch {what}: {sanitize_line(item.error)}"
                self._console.note(failed if item.error else f"fetched {what} to {sanitize_line(item.target)}")
            case RankBegan(rank=rank, run=run):
                self._runs_by_rank.setdefault(rank, set()).add(run)
                if self.is_output_ours and self.is_output_ours(rank, run):
                    self._show_buffered(rank)
            case RankEnded(outcome=outcome, run=run):
                self._runs_by_rank.get(outcome.rank, set()).discard(run)
                if self.is_output_ours and self.is_output_ours(outcome.rank, run):
                    self._show_buffered(outcome.rank)
                # the output of a rank arrives before the end of its call, so the buffered output belongs to this other
                # run
                else:
                    self._unattributed.pop(outcome.rank, None)
                if self.on_trial is not None:
                    self._flush_held()
                    self.on_trial(run, outcome)
            case AttemptEnded() if item.restarts or item.reason:
                self._flush_held()
                self._console.note(item.text)
                if self.on_attempt_end is not None:
                    self.on_attempt_end(item)
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
        """During the block, which launches a run, delay output and ends of ranks until the ID of the run is known.

        On a busy machine, output and even the end of a run can arrive before the answer to its launch. On a pool that
        this command created, no delay is needed, because all runs are its own.
        """
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
        """Check whether a rank was executing a run at the time of the item that is being printed."""
        return run in self._runs_by_rank.get(rank, ())

    def _show_buffered(self, rank: int) -> None:
        buffer = self._unattributed.pop(rank, RankBuffer())
        if buffer.is_truncated:
            self._note_truncated([rank])
        for (stream, data), _ in buffer.pieces:
            self._print(rank, stream, data)

    def _note_truncated(self, ranks: Collection[int]) -> None:
        """Report that some output of these ranks was dropped, and so is not shown."""
        if self.live is not None:  # with a live summary, the output of ranks is not shown anyway
            return
        self._flush_held()
        more = f" (+{count(len(ranks) - 1, 'rank')} more)" if len(ranks) > 1 else ""
        self._console.note(
            f"older output of rank {min(ranks)}{more} is not shown here; read all of it with skyward-tui logs"
        )

    def _print(self, rank: int, stream: str, data: bytes) -> None:
        if self.live is not None:
            self.live.on_output(rank, data)
        else:
            self._flush_held()
            if stream == "err":
                self._errors[rank] = (self._errors.get(rank, b"") + data)[-ERROR_TAIL_BYTES:]
            self._printer.feed(rank, stream, data)

    def printed_errors(self, rank: int) -> str:
        """Return the last part of a rank's standard error that this command has printed."""
        return self._errors.get(rank, b"").decode("utf-8", "replace")

    def _flush_held(self) -> None:
        """Print the pool's state if its printing was delayed."""
        if (item := self._held_state) is not None:
            self._held_state = None
            self._console.note(f"pool {item.pool} {item.state}: {format_detail(item)}")

    def _note_waiting(self) -> None:
        """Print the startup states of nodes that have changed, and the countdown of ranks that save their work."""
        for node, line in self._waiting.items():
            self._flush_held()
            if self._noted_waiting.get(node) != line:
                self._console.note(line)
        self._noted_waiting |= self._waiting
        self._waiting.clear()
        if self._saving and time.monotonic() >= self._countdown_at:
            self._countdown_at, now = time.monotonic() + COUNTDOWN_SECONDS, time.time()
            # If a machine is gone, no agent reports the end of its ranks, so drop ranks whose kill time has passed.
            self._saving = {rank: until for rank, until in self._saving.items() if until > now}
            if self._saving:
                self._console.note(saving_text(self._saving, now))


def _read_answer(question: str) -> str:
    """Read the user's answer to a question from the terminal.

    Raises:
        OSError: If the terminal is gone.
    """
    sys.stderr.write(question)
    sys.stderr.flush()
    was_there = sys.stdin.isatty()
    line = sys.stdin.readline()
    if not line and was_there and not sys.stdin.isatty():
        raise OSError("the terminal is gone")
    return line.strip().lower()


PERIOD = 0.25  # seconds; minimum interval between two drawings of the live summary, to limit the cost of fast output
_ORDER = ("raised", "exited", "lost", "collateral", "running", "waiting", "returned")
Row = tuple[str, int | None]  # text of a line of the live summary, and its SGR colour code; None without a colour


def status_rows(pool: PoolView, run: RunView | None, last_line: str, now: float) -> list[Row]:
    """Return the lines of the live summary of a pool and a run.

    Args:
        pool: The pool.
        run: Its run; None while the pool starts.
        last_line: The last line of output of any rank, with the rank.
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
    tally = "  ".join(state_text(each, f"{states[each]:,} ") for each in _ORDER if states[each])
    bad = next((COLORS[state] for state in _ORDER[:3] if states[state]), None)
    ended = f"{run.ended:,}/{run.total:,} ended  {duration(now - run.opened_at)}"
    if progress := run_progress(pool, run, now):
        ended += f"  {progress}"
    rows: list[Row] = [(f"● {run.function} ({run.id})  {ended}  {where}", 1), (f"  {tally}", bad)]
    if values := pool.metrics.run_values(run.id):
        rows.append((f"  {format_metrics(values)}", None))
    if last_line:
        rows.append((f"  {last_line}", 2))
    return rows


class LiveStatus:
    """Live summary of a run, drawn on standard error, which must be a terminal.

    Args:
        console: Console on the same terminal, which erases the summary before it prints.
        render_rows: Returns the lines of the summary, given the last line of output. Called on the drawing thread.
    """

    def __init__(self, console: Console, render_rows: Callable[[str], Sequence[Row]]) -> None:
        self._render_rows = render_rows
        self._shown: list[str] = []
        self._drawn_at = 0.0
        self._last_line = ""
        self._open = True
        console.share_terminal(self.erase)

    def on_output(self, rank: int, data: bytes) -> None:
        """Store the last line that a rank has printed, for the next drawing."""
        lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            self._last_line = f"{rank_prefix(rank)}{sanitize_line(plain(lines[-1]))}"

    def draw(self) -> None:
        """Draw the summary if it has changed, at most once per ``PERIOD`` seconds."""
        now = time.monotonic()
        if not self._open or (self._shown and now - self._drawn_at < PERIOD):
            return
        columns, height = shutil.get_terminal_size()
        rows = [(clip(text, columns - 1), code) for text, code in self._render_rows(self._last_line)][: height - 1]
        texts = [text for text, _ in rows]
        self._drawn_at = now
        if texts == self._shown:
            return
        colored = is_color_enabled(sys.stderr)
        drawn = "".join(
            f"\x1b[{code}m{text}{RESET}\n" if colored and code is not None else f"{text}\n" for text, code in rows
        )
        self._write(self._erase_sequence() + drawn)  # erase and draw in a single write, which avoids flicker
        self._shown = texts

    def erase(self) -> None:
        """Erase the summary."""
        if self._shown:
            self._write(self._erase_sequence())
            self._shown = []

    def _erase_sequence(self) -> str:
        if not self._shown:
            return ""
        # If the terminal has become narrower since the last drawing, each drawn line may now occupy several rows.
        columns = shutil.get_terminal_size().columns
        lines = sum(max(1, -(-cell_len(text) // columns)) for text in self._shown)
        return f"\x1b[{lines}F\x1b[J"

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def open(self) -> None:
        """Start drawing without the last output of an earlier run."""
        self._open, self._last_line = True, ""

    def close(self) -> None:
        """Erase the summary, and stop drawing."""
        self._open = False
        self.erase()
