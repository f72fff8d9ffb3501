"""Registry of calls and runs: unacknowledged calls, and records of recent runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.generator_values import GeneratorBuffer
from skyward_core.protocol.frame_codec import (
    MAX_SHORT_TEXT,
    AnyHeader,
    encode_frame,
    encode_frame_text,
    encode_json,
)
from skyward_core.protocol.frame_schemas_and_size_limits import GROWTH_STOP

if TYPE_CHECKING:
    from skyward_core.protocol import frame_types as frames


# maximum number of metric names in an outcome of a sweep; records omit the metrics of outcomes with more names
MAX_METRIC_NAMES = 16
NEXT_STEP_GRACE = 10.0  # seconds that a node is reserved for the next step of a job
MAX_RECORDS = 64  # number of ended runs that are recorded for clients that connect later

Key = tuple[str, int]


def attempt_number(header: frames.ClientCall) -> int:
    """Return the number of a call's attempt, from 1. The header omits the number if the run never restarts."""
    attempt = header.get("attempt")
    return 1 if attempt is None else attempt["number"]


class Call:
    """One rank's part of a run, or one task. (A dataclass would delay the start of each agent by 2 ms.)

    Args:
        owner: Connection of the client that gets the result.

    Attributes:
        attempt: Number of the run's attempt, from 1.
        may_restart_unattended: Whether agents may start the run again while no client decides about it.
    """

    def __init__(
        self, run: str, index: int, header: frames.ClientCall, body: bytes, owner: Connection | None,
        rank: int = -1, slot: int = 0,
    ) -> None:  # fmt: skip
        self.run = run
        self.index = index
        self.header: frames.ClientCall = header
        self.body = body
        self.owner = owner
        self.rank = rank
        self.slot = slot
        self.started_at: float | None = None
        self.started_unix = 0.0  # Unix time at which a worker received the call
        self.worker: Connection | None = None  # connection to the worker that runs the call
        self.log_start: dict[str, int] = {}
        self.stop_reason = ""
        self.timers: list[asyncio.TimerHandle] = []
        self.value_buffer: GeneratorBuffer | None = None
        # number of a streamed argument -> the worker's latest request for its values
        self.wanted_values: dict[int, frames.WorkerWant] = {}
        self.owner_lost_at = 0.0  # time at which the owning client disconnected, by the event loop's clock
        self.outcome: frames.AgentOutcome | None = None
        self.result = b""
        # Whether the owning client dispatched the run. Only such an owner decides about restarts. Other owners only
        # read results.
        self.is_owner_deciding = owner is not None
        # Outcome of a call of this node, which the head withholds until all ranks have ended and it decides about a
        # restart. A client decides only if it has the outcome, so client and head never decide about the same attempt.
        self.undecided: frames.AgentOutcome | None = None
        self.is_final = False  # whether the head has decided that the run is not restarted
        # whether the head has decided that the run is restarted, so that another attempt replaces this call
        self.is_superseded = False
        # Outcome of a call after which its worker exits. The agent sends the outcome once the worker has exited.
        self.pending_outcome: tuple[frames.WorkerOutcome, bytes] | None = None
        # position in the order in which calls arrived; all calls of a broadcast have the position of the first one
        self.order = 0
        # Attributes, because properties took a tenth of the time of a short call on its agent.
        self.key: Key = (run, index)
        self.attempt = attempt_number(header)
        self.timeout: float | None = header.get("timeout")
        self.is_gang_call = bool(header.get("gang"))
        may_restart = self.is_gang_call and "ends" in (header.get("attempt") or ())
        self.may_restart_unattended = may_restart and not header.get("alone")

    @property
    def has_client(self) -> bool:
        """Whether a client is connected that decides what happens after the end of this call."""
        return self.owner is not None and (self.is_owner_deciding or not self.may_restart_unattended)

    @property
    def end(self) -> frames.AgentOutcome | None:
        """The call's outcome, even if the head withholds it; None while the call is active."""
        return self.outcome or self.undecided

    def cancel_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def given_frame(self, text: str = "") -> bytes:
        """Return the journal entry for a call that a worker has received. ``text`` is the encoded header, or ""."""
        fields = {"t": "given", "slot": self.slot, "rank": self.rank, "log": self.log_start}
        body = self.body if self.may_restart_unattended else b""
        return encode_frame_text(f'{encode_json(fields)[:-1]},"call":{text or encode_json(self.header)}}}', body)

    def make_outcome(self, ended: frames.EndDetails) -> frames.WorkerOutcome:
        """Return an outcome for a call whose worker sent none."""
        header: AnyHeader = {
            "t": "outcome", "run": self.run, "i": self.index, "seconds": 0.0, "summary": None, "size": 0,
        } | ended  # fmt: skip
        outcome: frames.WorkerOutcome = header
        return outcome

    def stopped_details(self) -> frames.EndDetails:
        """Return error and kind for the outcome of a call that the agent stopped."""
        if self.stop_reason == "timeout":
            message = f"ran longer than its timeout of {self.timeout:g} s and was stopped"
            return {"kind": "exited", "error": {"type": "TimeoutError", "message": message}}
        reasons = {
            "fail-fast": "stopped because another rank failed",
            "preemption": "stopped because another rank failed",
            "cancel": "stopped because the run was cancelled",
            "growth": GROWTH_STOP,
        }
        message = reasons.get(self.stop_reason, self.stop_reason)
        return {"kind": "collateral", "error": {"type": "Stopped", "message": message}}


class RunRecord:
    """Summary of a run for clients that connect later. Contains the headers of outcomes, but no results."""

    def __init__(self, run: str, function: str, kind: str, total: int) -> None:
        self.run = run
        self.function = function
        self.kind = kind
        self.total = total
        self.opened_at = time.time()
        self.outcomes: dict[int, frames.AgentOutcome] = {}
        self.began: dict[int, frames.AgentBegan] = {}
        self.items: dict[int, frames.AgentItem] = {}  # call index -> latest value of the call's generator
        self.active = 0
        # Number of tasks of a gather that returned; the outcomes of these tasks are not stored. A sweep's outcomes are
        # all stored, because later clients must know which trials are missing.
        self.returned = 0
        self.fetched: dict[int, int] = {}  # returned task whose result another client has fetched -> rank of the task
        self.over = False  # whether the client has sent the last call of a map
        self.epoch = 0  # epoch of the gang in which the run ran last
        self.nodes: list[int] = []  # nodes that run the run; empty for all nodes of the pool
        self.job = ""  # id of the job of which the run is a step, or ""
        self.more = False  # whether the job continues with another step after this run
        self.has_next_step = False  # whether the node has received the job's next step
        self.ended_at = 0.0  # time of the run's latest outcome, by the monotonic clock
        self.order = 0  # position of the run's first call in the order in which calls arrived
        self.attempt = 1  # number of the run's latest attempt
        # frame keys of the latest attempt; None for a run that never restarts
        self.attempt_keys: frames.AttemptKeys | None = None
        # rank -> offsets in its log files at which the output of the first attempt begins
        self.log_starts: dict[int, dict[str, int]] = {}
        # Lost nodes of the latest attempt, and the evidence for their loss. Only the head sets this, while no client is
        # connected.
        self.lost: dict[int, str] = {}
        # How the last attempt ended, if the head decided without a client that the run does not restart.
        self.last_end: frames.AttemptEndKeys | None = None
        # clients that wait for the outcomes of this run, which another connected client dispatched
        self.readers: dict[Connection, None] = {}

    def begin_attempt(self, number: int, total: int) -> None:
        """Clear the record of earlier attempts. ``total``: number of calls of the new attempt."""
        self.attempt, self.total = number, total
        self.outcomes, self.began, self.items = {}, {}, {}
        self.lost, self.last_end = {}, None

    def outcome_of(self, index: int, node: int) -> frames.AgentOutcome | None:
        """Return the outcome of a call that this node has ended. None if it may still run the call."""
        if (rank := self.fetched.get(index)) is None:
            return self.outcomes.get(index)
        return {"t": "outcome", "run": self.run, "i": index, "rank": rank, "node": node, "kind": "returned"}

    @property
    def is_unattended(self) -> bool:
        """Whether an agent, not a client, started the latest attempt."""
        return self.attempt_keys is not None and self.attempt_keys.get("unattended", False)

    @property
    def retained_for_job(self) -> str:
        """Id of the job for whose next step this node is reserved; "" if there is none."""
        went_well = all(each["kind"] == "returned" for each in self.outcomes.values())
        late = self.active or not self.outcomes or time.monotonic() - self.ended_at > NEXT_STEP_GRACE
        return self.job if self.more and not self.has_next_step and went_well and not late else ""

    def to_json(self) -> dict[str, Any]:
        names = ("run", "function", "kind", "total", "opened_at", "active", "returned", "over")
        fields = {name: getattr(self, name) for name in names}
        fields |= {name: list(getattr(self, name).values()) for name in ("outcomes", "began", "items")}
        attempt = self.attempt if self.attempt > 1 else 0
        keys: AnyHeader = self.attempt_keys or {}
        optional = (
            ("nodes", self.nodes), ("job", self.job), ("more", self.more), ("attempt", attempt),
            ("ends", keys.get("ends")), ("unattended", keys.get("unattended")),
            ("last_end", self.last_end),
        )  # fmt: skip
        return fields | {key: value for key, value in optional if value}

    def count_items(self, call: Call, outcome: frames.AgentOutcome) -> None:
        """Count the finished items of a map per rank.

        Only the count is stored, like the progress of a generator, because a map may be endless.
        """
        previous = self.items.get(call.rank)
        done = (0 if previous is None else previous["seq"] + 1) + outcome.get("items", 0)
        self.items[call.rank] = {
            "t": "item", "run": self.run, "i": call.rank, "rank": call.rank, "node": outcome["node"],
            "seq": max(0, done - 1), "summary": outcome.get("summary"),
        }  # fmt: skip


class CallRegistry:
    """All unacknowledged calls, and records of recent runs."""

    def __init__(self) -> None:
        self.calls: dict[Key, Call] = {}
        self._by_run: dict[str, dict[int, Call]] = {}
        self.records: dict[str, RunRecord] = {}
        self._cancelled: dict[str, None] = {}  # ids of recently cancelled runs, oldest first
        self.active = 0  # number of calls without an outcome
        self._last_order = 0

    def add(self, call: Call) -> bool:
        """Add a call. Return whether it is the first of its run, or of a new attempt."""
        self.calls[call.key] = call
        self._by_run.setdefault(call.run, {})[call.index] = call
        record = self.records.get(call.run)
        first = record is None
        if record is None:
            head = call.header
            record = RunRecord(call.run, head.get("name", ""), head.get("kind", ""), head.get("total", 1))
            self.records[call.run] = record
            if len(self.records) > MAX_RECORDS:
                over = next((run for run, record in self.records.items() if not record.active), None)
                if over is not None:
                    del self.records[over]
        if call.attempt > 1 and record.kind in ("gather", "sweep", "map"):
            # only this task of the run is retried, so the outcomes of its other tasks remain
            record.outcomes.pop(call.index, None)
        elif call.attempt > record.attempt:
            first = True
            record.begin_attempt(call.attempt, call.header.get("total", record.total))
        record.attempt_keys = call.header.get("attempt")
        self._last_order += 1
        if first:
            record.order = self._last_order
        call.order = record.order if call.is_gang_call else self._last_order
        record.active += 1
        record.epoch, record.nodes = call.header.get("epoch", 0), call.header.get("nodes", [])
        record.job, record.more = call.header.get("job", ""), call.header.get("more", False)
        record.has_next_step = False
        for other in self.records.values() if record.job else ():
            if other.job == record.job and other is not record:
                other.has_next_step = True  # this run is the job's next step, for which the node was reserved
        self.active += 1
        return first

    def log_start(self, call: Call, ends: dict[str, int]) -> dict[str, int]:
        """Return the file offsets at which the logs of a call of a run that may restart begin.

        These are the offsets at which the run's first attempt began, or ``ends`` if this is the first attempt.
        """
        if (record := self.records.get(call.run)) is not None:
            return record.log_starts.setdefault(call.rank, ends)
        return ends

    def cancel(self, run: str) -> None:
        """Record that a run is cancelled, because further calls of the run may arrive later."""
        self._cancelled[run] = None
        if len(self._cancelled) > MAX_RECORDS:
            del self._cancelled[next(iter(self._cancelled))]

    def is_cancelled(self, run: str) -> bool:
        return run in self._cancelled

    def record_outcome(self, call: Call, outcome: frames.AgentOutcome) -> None:
        call.outcome, call.undecided = outcome, None
        if not call.may_restart_unattended:
            call.body = b""
        self.active -= 1
        record = self.records.get(call.run)
        if record is not None:
            record.active -= 1
            record.ended_at = time.monotonic()
            record.began.pop(call.index, None)
            if record.kind != "map":
                record.items.pop(call.index, None)
            elif outcome["kind"] == "returned":
                record.count_items(call, outcome)
                return
            if record.kind == "gather" and outcome["kind"] == "returned":
                record.returned += 1
            else:
                record.outcomes[call.index] = outcome if record.kind != "sweep" else _shorten_outcome(outcome)

    def withdraw_outcome(self, call: Call) -> None:
        """Mark a recorded outcome as withheld, although a client may have received it."""
        call.undecided, call.outcome = call.outcome, None
        self.active += 1
        if (record := self.records.get(call.run)) is not None:
            record.active += 1
            record.outcomes.pop(call.index, None)

    def calls_of_run(self, run: str, only: list[int] | None = None) -> list[Call]:
        """Return the calls of a run, or those with the given indices."""
        calls = self._by_run.get(run, {})
        return list(calls.values()) if only is None else [calls[index] for index in only if index in calls]

    def unacknowledged(self) -> Iterator[bytes]:
        """Return the frames for a new journal: the start and the outcome of each unacknowledged call."""
        for call in self.calls.values():
            if call.started_at is not None:
                yield call.given_frame()
            if (end := call.end) is not None:
                yield encode_frame(end, call.result)

    def acknowledge(self, calls: Mapping[str, list[int] | None]) -> list[Call]:
        """Drop acknowledged calls and return them.

        Args:
            calls: Run -> call indices, or None for all calls of the run.
        """
        ended = (call for run, only in calls.items() for call in self.calls_of_run(run, only))
        known = [call for call in ended if call.outcome is not None]
        for call in known:
            record = self.records.get(call.run)
            if record is not None and call.index not in record.outcomes and not call.is_owner_deciding:
                record.fetched[call.index] = call.rank
            self.drop(call)
        return known

    def drop(self, call: Call) -> None:
        """Remove a call and its buffered values. The record of its run remains."""
        if call.value_buffer is not None:
            call.value_buffer.remove()
        del self.calls[call.key]
        calls = self._by_run[call.run]
        del calls[call.index]
        if not calls:
            del self._by_run[call.run]


def _shorten_outcome(outcome: frames.AgentOutcome) -> frames.AgentOutcome:
    """Return an outcome without its long fields, because a welcome frame may contain thousands of outcomes."""
    short = outcome.copy()
    summary = short.get("summary")
    if summary and summary.get("size", 0) > MAX_SHORT_TEXT:
        short["summary"] = {**summary, "json": None, "is_json": False}
    if len(short.get("numbers", ())) > MAX_METRIC_NAMES:
        del short["numbers"]
    return short
