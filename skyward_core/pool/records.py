"""What a pool writes down while it runs: runs, outcomes and events, on their way to disk in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..model.errors import LedgerError
from ..model.outcome import Outcome, RootCause
from ..model.states import RunStatus
from ..store.archive import Archive
from ..store.ledger import Ledger
from ..views.events import Event
from .runs.root_cause import is_failure

FLUSH = 0.2  # seconds that outcomes and events may wait for their way to disk
FLUSH_OPENED = 0.02  # the same for a run that was dispatched: until then only the agents know of it
GLANCE = 0.05  # seconds that a flush waits for another process
AGAIN = 0.5  # seconds before it is tried again
PATIENCE = 5.0  # seconds in which a ledger may be locked before that is said
RUNS_REMEMBERED = 256


class Records:
    """One pool's part of the ledger, and its journal.

    Args:
        complain: told once, in words, when something cannot be written; the pool goes on.
    """

    def __init__(self, token: str, ledger: Ledger, archive: Archive, complain: Callable[[str], None]) -> None:
        self._token = token
        self._ledger = ledger
        self._archive = archive
        self._complain = complain
        self._complained = False
        self._closed = False
        self._refused_at: float | None = None  # time of the loop, since which nothing can be written
        self._opened: list[tuple[str, str, str, str, int, float]] = []
        self._outcomes: list[tuple[str, Outcome, dict[str, list[int]]]] = []
        self._ends: list[tuple[str, str, float, RootCause | None]] = []
        self._ours: set[str] = set()  # of those that were opened
        self._places: dict[str, tuple[int, ...]] = {}  # nodes of runs that are not on all
        self._log_ends: dict[str, dict[str, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for = 0.0  # seconds that it was set for

    def opened(
        self, run: str, function: str, kind: str, total: int, at: float, *, ours: bool = False
    ) -> None:
        """A run was dispatched; ``ours``: by this process."""
        if ours:
            self._ours.add(run)
        self._opened.append((self._token, run, function, kind, total, at))
        self._flush_within(FLUSH_OPENED)

    def placed(self, run: str, nodes: tuple[int, ...]) -> None:
        """A run is on these nodes only; () for one that waits for some."""
        self._places[run] = nodes
        self._flush_within(FLUSH_OPENED)

    def outcome(self, run: str, outcome: Outcome, log: dict[str, list[int]]) -> None:
        """A call ended; ``log``: where in which files stands what it printed."""
        self._outcomes.append((run, outcome, log))
        ends = self._log_ends.setdefault(run, {})
        for name, (_, end) in log.items():
            ends[name] = max(end, ends.get(name, 0))
        if len(self._log_ends) > RUNS_REMEMBERED:
            del self._log_ends[next(iter(self._log_ends))]
        if is_failure(outcome):
            self._flush_within(0.0)  # soon, but thousands that fail together in one go

    def ended(self, run: str, state: RunStatus, when: float, cause: RootCause | None) -> None:
        """A run ended."""
        self._ends.append((run, state, when, cause))
        self._ours.discard(run)
        self._flush_within(FLUSH)

    def event(self, event: Event) -> None:
        """Something for the journal."""
        self._archive.note(event)
        self._flush_within(FLUSH)

    def log_ends(self, run: str) -> dict[str, int]:
        """Log file -> size that it must have here before a run's logs are complete."""
        return self._log_ends.get(run, {})

    def flush(self, patience: float = GLANCE) -> None:
        """Bring what waits to disk; what cannot be written waits on, and is tried again.

        Args:
            patience: seconds to wait for other processes that have the ledger; all pools wait with us.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        opened, outcomes, ends = self._opened, self._outcomes, self._ends
        ours, self._ours = self._ours, set()
        places, self._places = self._places, {}
        self._opened, self._outcomes, self._ends = [], [], []
        try:
            if opened or outcomes or ends or places:
                self._ledger.record(
                    opened=opened, outcomes=outcomes, ends=ends, ours=ours, places=places, patience=patience
                )
            self._archive.flush()
            self._refused_at = None
        except (LedgerError, OSError) as error:
            self._opened = opened + self._opened
            self._outcomes, self._ends = outcomes + self._outcomes, ends + self._ends
            self._ours |= ours
            self._places = places | self._places
            now = asyncio.get_running_loop().time()
            self._refused_at = now if self._refused_at is None else self._refused_at
            if now - self._refused_at >= PATIENCE or not isinstance(error, LedgerError):
                self.cannot("records", error)
            if not self._closed:
                self._flush_within(AGAIN)

    def close(self) -> None:
        """Bring what waits to disk, for the last time."""
        self._closed = True
        self.flush(PATIENCE)
        if self._refused_at is not None:
            self.cannot("records", LedgerError("the ledger takes none"))
        try:
            self._archive.close()
        except OSError as error:
            self.cannot("records", error)

    def cannot(self, what: str, error: Exception) -> None:
        """Complain, the first time, that something cannot be written."""
        if not self._complained:
            self._complained = True
            self._complain(f"{what} cannot be written: {error}")

    def _flush_within(self, seconds: float) -> None:
        if self._timer is not None and self._timer_for <= seconds:
            return  # it was set before now, and fires before: nearly always
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer, self._timer_for = loop.call_at(at, self.flush), seconds
