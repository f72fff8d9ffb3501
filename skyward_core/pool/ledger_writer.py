"""Batched writes of a pool's events, runs and outcomes to the ledger and the journal.

A call must not wait for writes to disk.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import LedgerError
from skyward_core.model.outcomes_states_and_alerts import Outcome, RootCause, RunStatus
from skyward_core.model.root_cause import is_failure
from skyward_core.protocol.frame_codec import encode_record
from skyward_core.store.ledger_rows import process_mark
from skyward_core.views.events import Event

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext


FLUSH_DELAY = 0.2  # maximum seconds until outcomes and events are written
FLUSH_OPENED_DELAY = 0.02  # maximum seconds until a dispatched run is written; until then only the agents know the run
LOCK_TIMEOUT = 0.05  # seconds that a flush waits for another process that locks the ledger
RETRY_PAUSE = 0.5  # seconds between tries to write
LOCK_WARNING_DELAY = 5.0  # seconds without a successful write before a warning
MAX_REMEMBERED_RUNS = 256


class LedgerWriter:
    """Batched writes of one pool to the ledger and the journal. A write failure is reported once and retried."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._archive = context.archive
        self._process_mark = process_mark()  # stored, because process_mark() opens a file at each call
        self._has_warned = False
        self._closed = False
        self._failing_since: float | None = None  # loop time of the first failed write since the last success
        self._runs: dict[str, dict[str, Any]] = {}  # run -> columns that were not written yet
        self._outcomes: list[tuple[str, Outcome, dict[str, list[int]]]] = []
        self._attempts: dict[str, int] = {}  # restarted run -> number of its latest attempt
        self._log_ends: dict[str, dict[str, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for = 0.0  # delay in seconds with which the present timer was started

    def add_run(self, run: str, function: str, kind: str, total: int, at: float, *, ours: bool = False) -> None:
        """Add the ledger row of a dispatched run. ``ours``: this process dispatched the run."""
        opened = {"token": self._context.token, "function": function, "kind": kind, "total": total, "opened_at": at}
        self.set_columns(run, **opened, **({"pid": self._process_mark} if ours else {}))

    def set_columns(self, run: str, **columns: Any) -> None:
        """Set columns of a run's row, to be written to the ledger shortly afterwards."""
        self._runs.setdefault(run, {}).update(columns)
        self._flush_within(FLUSH_OPENED_DELAY)

    def add_outcome(self, run: str, outcome: Outcome, log: dict[str, list[int]]) -> None:
        """Add the outcome of a call to the pending ledger records.

        ``log``: log file -> (start, end) of the bytes that the call printed.
        """
        self._outcomes.append((run, outcome, log))
        ends = self._log_ends.setdefault(run, {})
        for name, (_, end) in log.items():
            ends[name] = max(end, ends.get(name, 0))
        if len(self._log_ends) > MAX_REMEMBERED_RUNS:
            del self._log_ends[next(iter(self._log_ends))]
        if is_failure(outcome):
            # Write in the next iteration of the event loop, so that simultaneous failures share one transaction.
            self._flush_within(0.0)

    def restart_run(self, run: str, attempt: int) -> None:
        """Record the start of a run's next attempt, and remove the outcomes of the earlier ones."""
        self._outcomes = [each for each in self._outcomes if each[0] != run]
        for column in ("state", "ended_at", "root_cause"):
            self._runs.get(run, {}).pop(column, None)
        self._attempts[run] = attempt
        self.set_columns(run, attempts=attempt)

    def add_run_end(self, run: str, state: RunStatus, when: float, cause: RootCause | None) -> None:
        """Record the end of a run in the ledger."""
        columns = self._runs.setdefault(run, {})
        # The row of an ended run needs no process id, because it only identifies the client of an active run.
        columns.pop("pid", None)
        columns.update(state=state, ended_at=when, root_cause=cause)
        self._flush_within(FLUSH_DELAY)

    def add_event(self, event: Event) -> None:
        """Add an event to the journal."""
        self._archive.add_event(event)
        self._flush_within(FLUSH_DELAY)

    def expected_log_sizes(self, run: str) -> dict[str, int]:
        """Return, by log file, the size at which the local copy contains the whole output of a run."""
        return self._log_ends.get(run, {})

    def flush(self, patience: float = LOCK_TIMEOUT) -> None:
        """Write pending records to disk. Records that cannot be written stay pending and are retried.

        Args:
            patience: Seconds to wait while another process locks the ledger. The wait blocks all pools of this process.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        runs, self._runs = self._runs, {}
        outcomes, self._outcomes = self._outcomes, []
        texts = {id(outcome): encode_record(outcome.to_json()) for _, outcome, _ in outcomes}
        try:
            if runs or outcomes:
                self._context.ledger.record_runs(runs, outcomes, patience, self._attempts, texts)
            self._archive.flush(texts)
            self._failing_since = None
        except (LedgerError, OSError) as error:
            self._runs = {run: runs.get(run, {}) | self._runs.get(run, {}) for run in runs | self._runs}
            self._outcomes = outcomes + self._outcomes
            now = asyncio.get_running_loop().time()
            self._failing_since = now if self._failing_since is None else self._failing_since
            if now - self._failing_since >= LOCK_WARNING_DELAY or not isinstance(error, LedgerError):
                self.warn_write_failed("records", error)
            if not self._closed:
                self._flush_within(RETRY_PAUSE)

    def close(self) -> None:
        """Write pending records for the last time."""
        self._closed = True
        self.flush(LOCK_WARNING_DELAY)
        if self._failing_since is not None:
            self.warn_write_failed("records", LedgerError("the ledger is locked"))
        try:
            self._archive.close()
        except OSError as error:
            self.warn_write_failed("records", error)

    def warn_write_failed(self, what: str, error: Exception) -> None:
        """Warn the user about the first write failure."""
        if not self._has_warned:
            self._has_warned = True
            self._context.news.emit_warning(f"{what} cannot be written: {error}")

    def _flush_within(self, seconds: float) -> None:
        if self._timer is not None and self._timer_for <= seconds:
            return  # keep the present timer, because it fires before the requested delay has passed
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer, self._timer_for = loop.call_at(at, self.flush), seconds
