"""A recording in place of a live session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from skyward_core.client.leftover_cleanup import LeftoverScan
from skyward_core.client.session_interface import SessionInterface
from skyward_core.model.errors import NoTrials, UsageError
from skyward_core.store.recording_file import Entry, RecordingReader
from skyward_core.util.terminal_safe_text import sanitize_line, sanitize_paragraph
from skyward_core.views.pool_view import PoolView
from skyward_core.views.recorded_events import apply_entry, entry_time

if TYPE_CHECKING:
    from skyward_core.client.run_history import PastRun, RunSearch
    from skyward_core.client.session_interface import FileListing
    from skyward_core.views.pool_view import RunView
    from skyward_core.views.sweep_trials import TrialTableSource

T = TypeVar("T")

MIN_SPEED, MAX_SPEED = 0.25, 64.0
FAILURE_LEAD = 2.0  # seconds by which one comes before the failure: it is to be seen happening
MIN_WAIT, MAX_WAIT = 0.02, 3600.0  # seconds, at least and at most, between two looks for what is due


@dataclass(frozen=True, slots=True)
class PlaybackState:
    """How it stands with a record that is played.

    Attributes:
        now, start, end: Unix times of the record.
        speed: seconds of the record in one of ours.
        playing: whether its time goes on.
        failure: when the first run failed; None where none did.
        behind: whether the view is not yet what it was then.
    """

    now: float
    start: float
    end: float
    speed: float
    playing: bool
    failure: float | None
    behind: bool


class Playback:
    """One record that is played. All methods may be called from any thread.

    Args:
        record: what is played.
        wall: a clock in seconds that never goes back.

    Raises:
        UsageError: there is nothing in it.

    Attributes:
        about: what the record says of itself, safe to show.
        skipped_count: entries that could not be understood.
    """

    def __init__(self, record: RecordingReader, wall: Callable[[], float] = time.monotonic) -> None:
        self._record, self._wall = record, wall
        about = record.about
        self.name = sanitize_line(str(about.get("pool", "")))[:200] or "pool"
        self.note = sanitize_paragraph(about["note"])[:400] if isinstance(about.get("note"), str) else ""
        # Entries are in the order of their times; to parse them all would take seconds where there are many.
        start = next(filter(None, map(entry_time, record.entries())), None)
        end = next(filter(None, map(entry_time, record.last_entries())), None)
        if start is None or end is None:
            reason = ": it was cut off before its first whole part" if record.is_truncated else ""
            raise UsageError(f"the record holds nothing that could be played{reason}")
        self._start, self._end = start, max(start, end)
        failures = (entry_time(entry) for entry in record.entries(b"Ended") if _is_failure(entry))
        self._failure = next(filter(None, failures), None)
        self.cut = record.is_truncated
        self._changed = threading.Condition()
        self._speed, self._playing = 1.0, True
        self._from, self._since = self._start, wall()  # a time of the record, and when that was ours
        self._jumps = self._reached_jumps = (
            0  # how often somebody went elsewhere, and how often the view has come there
        )
        self._jump_origin = self._start
        self._feed_lock = threading.Lock()  # who feeds
        self._rewind()
        self._view = self._next_view
        self._closed = False
        self._thread: threading.Thread | None = None

    # -- its clock ---------------------------------------------------------------------------------------

    def now(self) -> float:
        """The time of the record."""
        with self._changed:
            return self._now()

    def displayed_time(self) -> float:
        """The same for who shows the view: where somebody has gone elsewhere, of before until the view has come there,
        too. So what is shown anew when the time is another one is shown whole."""
        with self._changed:
            return self._now() if self._reached_jumps == self._jumps else self._jump_origin

    def _now(self) -> float:
        gone = (self._wall() - self._since) * self._speed if self._playing else 0.0
        return min(self._end, self._from + gone)

    def _jump(self, at: float) -> None:
        """Go on from another time of the record."""
        if self._reached_jumps == self._jumps:
            self._jump_origin = self._now()
        self._jumps += 1
        self._restart_clock(at)

    def _restart_clock(self, at: float) -> None:
        """Go on from a time of the record."""
        self._from, self._since = min(max(at, self._start), self._end), self._wall()
        self._changed.notify_all()

    def state(self) -> PlaybackState:
        """How it stands."""
        with self._changed:
            now = self._now()
            playing = self._playing and now < self._end
            behind = self._reached_jumps != self._jumps
            return PlaybackState(now, self._start, self._end, self._speed, playing, self._failure, behind)

    def toggle(self) -> None:
        """Pause, or go on; from the beginning where it is at its end."""
        with self._changed:
            now = self._now()
            self._playing = now >= self._end or not self._playing
            if now >= self._end:
                return self._jump(self._start)
            return self._restart_clock(now)

    def multiply_speed(self, factor: float) -> float:
        """Have it go so many times as fast, within its limits; gives how fast it goes then."""
        with self._changed:
            now = self._now()
            self._speed = min(MAX_SPEED, max(MIN_SPEED, self._speed * factor))
            self._restart_clock(now)
            return self._speed

    def skip(self, seconds: float) -> None:
        """Go forward or back by so much of the record."""
        with self._changed:
            self._jump(self._now() + seconds)

    def seek(self, at: float) -> None:
        """Go to a time of the record."""
        with self._changed:
            self._jump(at)

    def seek_failure(self) -> bool:
        """Go to shortly before the first failure, and stop there; whether there is one."""
        with self._changed:
            if self._failure is None:
                return False
            self._playing = False
            self._jump(self._failure - FAILURE_LEAD)
            return True

    # -- its view ----------------------------------------------------------------------------------------

    @property
    def view(self) -> PoolView:
        """What the pool looked like."""
        return self._view

    def _rewind(self) -> None:
        self._next_view = PoolView(self.name, key=f"{self.name}.replay")
        self._entries: Iterator[Entry] = self._record.entries()
        self._next: Entry | None = next(self._entries, None)
        self._fed_to = self._start
        self._next_due = self._start  # when the next entry is
        self.skipped_count = 0

    def advance(self) -> None:
        """Bring the view to the time of the record's clock."""
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
            # Made anew it is shown whole, and not as it grows.
            self._view = self._next_view
            with self._changed:
                self._reached_jumps = jumps

    # -- its thread --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Have the view follow the clock from now on."""
        with self._changed:
            self._restart_clock(self._from)
        self._thread = threading.Thread(target=self._follow, name="replay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Play no more."""
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
                    continue  # somebody has gone elsewhere meanwhile
                if not self._playing or now >= self._end:
                    if self._fed_to >= now:
                        self._changed.wait()
                    continue
                due = (min(self._next_due, self._end) - now) / self._speed
                self._changed.wait(min(max(MIN_WAIT, due), MAX_WAIT))


def _is_failure(entry: Entry) -> bool:
    told: Any = entry.get("event")
    if not isinstance(told, dict):
        return False
    outcome = told.get("outcome")
    kind = outcome.get("kind") if told.get("event") == "RankEnded" and isinstance(outcome, dict) else ""
    return kind in ("raised", "exited", "lost") or (told.get("event") == "RunEnded" and told.get("state") == "failed")


def open_recording(path: Path) -> RecordingReader:
    """The record in a file.

    Raises:
        UsageError: it is none, was made by a newer release, or is larger than any that we make.
        OSError: it cannot be read.
    """
    return RecordingReader.read(path)


class Replay(SessionInterface):
    """A session that answers from a recording.

    Args:
        playback: The recording, which begins to play now.
    """

    REFUSAL = "this is a replay of a record: there is no pool behind it, and nothing is changed"

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        playback.start()

    @property
    def notice(self) -> str:
        cut = "the record was cut off: what came after is not in it" if self._playback.cut else ""
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

    def files(self, pool: str, run: str | None = None) -> Future[FileListing]:
        from skyward_core.pool.output_files import FileListing  # late: the first picture needs no pool

        return _done_future(FileListing([], 0, {}, {}))

    def trials(self, pool: str, run: RunView) -> Future[TrialTableSource]:
        """Return the recording's own sheet; each of its runs is in the view."""
        from skyward_core.views.sweep_trials import TrialTableSource  # late: few records have one

        sheets = self._playback.view.sheets
        found = next((each for name, each in sheets.items() if run.id in (name, *each.runs.values())), None)
        if found is not None:
            return _done_future(TrialTableSource(found))
        future: Future[TrialTableSource] = Future()
        future.set_exception(NoTrials(f"the record says of no sweep that run {run.id} is one, or of one"))
        return future

    def detach(self) -> None:
        self._playback.close()


def _done_future(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
