"""Session that replays a recording instead of live pools."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from skyward_core.client.leftover_cleanup import LeftoverScan
from skyward_core.client.session_interface import RejectingSession
from skyward_core.model.errors import NoTrials, UsageError
from skyward_core.store.recording_file import Entry, RecordingReader
from skyward_core.util.terminal_safe_text import sanitize_line, sanitize_paragraph
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.recording_entries import apply_entry, entry_time

if TYPE_CHECKING:
    from skyward_core.client.run_history import PastRun, RunSearch
    from skyward_core.client.session import Session
    from skyward_core.client.session_interface import FileListing
    from skyward_core.views.sweep_trials import TrialTableSource

T = TypeVar("T")

# Type checkers compare a replay with ``Session``, whose modules a replay does not load at run time.
if TYPE_CHECKING:
    SessionBase = Session
else:
    SessionBase = RejectingSession

MIN_SPEED, MAX_SPEED = 0.25, 64.0
MIN_WAIT, MAX_WAIT = 0.02, 3600.0  # minimum and maximum seconds that the playback waits for the next due entry


@dataclass(frozen=True, slots=True)
class PlaybackState:
    """State of a playback.

    Attributes:
        now, start, end: Unix times in the recording.
        speed: Seconds of the recording per real second.
        playing: Whether time advances.
        failure: Time of the next failure, or else of the first one; None if no run failed.
        behind: Whether the view has not reached ``now`` yet.
    """

    now: float
    start: float
    end: float
    speed: float
    playing: bool
    failure: float | None
    behind: bool


class Playback:
    """Playback of one recording. All methods may be called from any thread.

    Args:
        record: The recording.
        wall: Monotonic clock in seconds.
        captions: Explanations, each with the second of the recording from which it is shown.

    Raises:
        UsageError: If the recording is empty.

    Attributes:
        about: Metadata of the recording, safe to show.
        skipped_count: Entries that could not be parsed.
    """

    def __init__(
        self,
        record: RecordingReader,
        wall: Callable[[], float] = time.monotonic,
        captions: Sequence[tuple[float, str]] = (),
    ) -> None:
        self._record, self._wall, self._captions = record, wall, captions
        about = record.about
        self.name = sanitize_line(str(about.get("pool", "")))[:200] or "pool"
        self.note = sanitize_paragraph(about["note"])[:400] if isinstance(about.get("note"), str) else ""
        # Only entries near the start and the end are parsed for the times: parsing a whole large recording would take
        # seconds.
        start = next(filter(None, map(entry_time, record.entries())), None)
        end = next(filter(None, map(entry_time, record.last_entries())), None)
        if start is None or end is None:
            reason = ": it was truncated before its first complete part" if record.is_truncated else ""
            raise UsageError(f"the recording is empty{reason}")
        self._start, self._end = start, max(start, end)
        first: dict[str, float] = {}  # run -> time of its first failed outcome
        for entry in record.entries(b"Ended"):
            if _is_failure(entry) and (at := entry_time(entry)):
                first.setdefault(str(entry["event"].get("run")), at)
        self._failures = sorted(first.values())
        self.cut = record.is_truncated
        self._changed = threading.Condition()
        self._speed, self._playing = 1.0, True
        # Start of the clock: a time in the recording, and the monotonic time at which the playback was there.
        self._from, self._since = self._start, wall()
        # Number of requested jumps, and number of the last jump that the view shows.
        self._jumps = self._reached_jumps = 0
        self._jump_origin = self._start
        # Lock of the view's state, held by the thread that reads entries into the view.
        self._feed_lock = threading.Lock()
        self._rewind()
        self._view = self._next_view
        self._closed = False
        self._thread: threading.Thread | None = None

    # -- clock -----------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the present position of the playback, as Unix time in the recording."""
        with self._changed:
            return self._now()

    def displayed_time(self) -> float:
        """Return the time that the view shows. During a jump, that is the time before the jump, so that widgets redraw
        only after it.
        """
        with self._changed:
            return self._now() if self._reached_jumps == self._jumps else self._jump_origin

    def _now(self) -> float:
        gone = (self._wall() - self._since) * self._speed if self._playing else 0.0
        return min(self._end, self._from + gone)

    def _jump(self, at: float) -> None:
        """Jump to another time of the recording, and continue from there."""
        if self._reached_jumps == self._jumps:
            self._jump_origin = self._now()
        self._jumps += 1
        self._restart_clock(at)

    def _restart_clock(self, at: float) -> None:
        """Restart the clock at a time of the recording."""
        self._from, self._since = min(max(at, self._start), self._end), self._wall()
        self._changed.notify_all()

    def state(self) -> PlaybackState:
        """Return the state of the playback."""
        with self._changed:
            now = self._now()
            playing = self._playing and now < self._end
            behind = self._reached_jumps != self._jumps
            return PlaybackState(now, self._start, self._end, self._speed, playing, self._next_failure(now), behind)

    @property
    def caption(self) -> str:
        """Explanation of the current time, with its number; "" without captions."""
        started = [text for second, text in self._captions if second <= self.displayed_time() - self._start]
        return f"{len(started)}/{len(self._captions)} {started[-1]}" if started else ""

    def _next_failure(self, now: float) -> float | None:
        return next((at for at in self._failures if at > now), self._failures[0] if self._failures else None)

    def toggle(self) -> None:
        """Pause or resume; at the end, restart from the beginning."""
        with self._changed:
            now = self._now()
            self._playing = now >= self._end or not self._playing
            return self._jump(self._start) if now >= self._end else self._restart_clock(now)

    def multiply_speed(self, factor: float) -> float:
        """Multiply the speed, within its limits, and return the new speed."""
        with self._changed:
            now = self._now()
            self._speed = min(MAX_SPEED, max(MIN_SPEED, self._speed * factor))
            self._restart_clock(now)
            return self._speed

    def skip(self, seconds: float) -> None:
        """Move the position by seconds of the recording, backward if negative."""
        with self._changed:
            self._jump(self._now() + seconds)

    def seek(self, at: float) -> None:
        """Jump to a time of the recording."""
        with self._changed:
            self._jump(at)

    def seek_failure(self) -> bool:
        """Jump to the next failure, or else to the first one, and pause there. Return whether there is one."""
        with self._changed:
            if (at := self._next_failure(self._now())) is None:
                return False
            self._playing = False
            self._jump(at)
            return True

    # -- view ------------------------------------------------------------------------------------------------

    @property
    def view(self) -> PoolView:
        """View of the pool at the present position of the playback."""
        return self._view

    def _rewind(self) -> None:
        self._next_view = PoolView(self.name, key=f"{self.name}.replay")
        self._entries: Iterator[Entry] = self._record.entries()
        self._next: Entry | None = next(self._entries, None)
        self._fed_to = self._start
        self._next_due = self._start  # time in the recording at which the next entry is due
        self.skipped_count = 0

    def advance(self) -> None:
        """Update the view to the current time of the recording."""
        with self._feed_lock:
            with self._changed:
                target, jumps = self._now(), self._jumps
            if target < self._fed_to:
                self._rewind()
            while self._next is not None:
                self._next_due = max(self._next_due, entry_time(self._next) or 0.0)
                if self._next_due > target:
                    break
                if self._next.get("k") != "about":
                    self.skipped_count += not apply_entry(self._next_view, self._next)
                self._next = next(self._entries, None)
            else:
                self._next_due = inf
            self._fed_to = target
            # A rewound view is rebuilt from the start, and becomes visible only when complete.
            self._view = self._next_view
            with self._changed:
                self._reached_jumps = jumps

    # -- thread ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that updates the view."""
        with self._changed:
            self._restart_clock(self._from)
        self._thread = threading.Thread(target=self._follow, name="replay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the playback."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)

    def _follow(self) -> None:
        while not self._closed:
            self.advance()
            with self._changed:
                if self._closed:
                    return
                now = self._now()
                if self._reached_jumps != self._jumps:
                    continue  # start over, because a jump was requested while the view was updated
                if not self._playing or now >= self._end:
                    if self._fed_to >= now:
                        self._changed.wait()
                    continue
                due = (min(self._next_due, self._end) - now) / self._speed
                self._changed.wait(min(max(MIN_WAIT, due), MAX_WAIT))


def _is_failure(entry: Entry) -> bool:
    event: Any = entry.get("event")
    if not isinstance(event, dict):
        return False
    outcome = event.get("outcome")
    kind = outcome.get("kind") if event.get("event") == "RankEnded" and isinstance(outcome, dict) else ""
    return kind in ("raised", "exited", "lost") or (event.get("event") == "RunEnded" and event.get("state") == "failed")


open_recording = RecordingReader.read


class Replay(SessionBase):
    """Session that shows a recording.

    Args:
        playback: The recording, which starts to play now.
    """

    REFUSAL = "this is a replay of a recording, without a live pool: nothing can be changed"

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        playback.start()

    @property
    def notice(self) -> str:
        cut = "the recording is truncated: later events are missing" if self._playback.cut else ""
        return "; ".join(filter(None, (self._playback.note, cut)))

    def pools(self) -> list[PoolView]:
        return [self._playback.view]

    def refresh(self, *, over: bool = False, patient: bool = False) -> Future[list[PoolView]]:
        return _done_future(self.pools())

    def load_ended_pool(self, pool: str) -> Future[PoolView]:
        return _done_future(self._playback.view)

    def start_sampling(self, pool: str) -> Future[PoolView]:
        return _done_future(self._playback.view)

    def past_runs(self, search: RunSearch) -> Future[list[PastRun]]:
        return _done_future([])

    def failures(self) -> Future[list[PastRun]]:
        return _done_future([])

    def scan_leftovers(self, *args: object, **options: object) -> Future[LeftoverScan]:
        return _done_future(LeftoverScan())

    def files(self, pool: str, run: str | None = None, *args: object, **options: object) -> Future[FileListing]:
        # Imported late, because the first screen does not need it.
        from skyward_core.pool.output_files import FileListing

        return _done_future(FileListing([], 0, {}, {}))

    def trials(self, pool: str, run: RunView) -> Future[TrialTableSource]:
        """Return the sweep table of the recording; all of its runs are in the view."""
        # Imported late, because few recordings contain a sweep.
        from skyward_core.views.sweep_trials import TrialTableSource

        sheets = self._playback.view.sheets
        found = next((each for name, each in sheets.items() if run.id in (name, *each.runs.values())), None)
        if found is not None:
            return _done_future(TrialTableSource(found))
        future: Future[TrialTableSource] = Future()
        future.set_exception(NoTrials(f"run {run.id} is not part of a sweep in this recording"))
        return future

    def detach(self) -> None:
        self._playback.close()


def _done_future(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
