"""Registry of calls and runs: unacknowledged calls, and records of recent runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.generator_values import GeneratorBuffer
from skyward_core.protocol.frame_codec import (
    MAX_SHORT_TEXT,
    AnyHeader,
    encode_frame,
    encode_frame_text,
    encode_json,
)

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import (
        AgentBegan,
        AgentItem,
        AgentOutcome,
        ClientCall,
        EndDetails,
        WorkerOutcome,
        WorkerWant,
    )


MAX_METRIC_NAMES = 16  # names of numbers of an outcome of a sweep, more of which later clients are not told
NEXT_STEP_GRACE = 10.0  # seconds that a node is kept for the next step of a job
MAX_RECORDS = 64  # runs remembered after they ended, for clients that come later

Key = tuple[str, int]


class Call:
    """One rank's part of a run, or one task. (Agents start while somebody waits, and dataclasses take each one of them
    two milliseconds.)

    Args:
        owner: the connection that gets the result.
    """

    def __init__(
        self, run: str, index: int, header: ClientCall, body: bytes, owner: Connection | None,
        rank: int = -1, slot: int = 0,
    ) -> None:  # fmt: skip
        self.run = run
        self.index = index
        self.header: ClientCall = header
        self.body = body
        self.owner = owner
        self.rank = rank
        self.slot = slot
        self.started_at: float | None = None
        self.started_unix = 0.0  # the same as Unix time
        self.worker: Connection | None = None  # that runs it
        self.log_start: dict[str, int] = {}
        self.stop_reason = ""
        self.timers: list[asyncio.TimerHandle] = []
        self.value_buffer: GeneratorBuffer | None = None
        self.wanted_values: dict[int, WorkerWant] = {}  # of arguments that are fed, by number
        self.owner_lost_at = 0.0  # when its client was lost, by the loop's clock
        self.outcome: AgentOutcome | None = None
        self.result = b""
        # Its outcome, told when its worker, that it has ended, is gone.
        self.pending_outcome: tuple[WorkerOutcome, bytes] | None = None
        self.order = 0  # in which it came here; all calls of a broadcast have that of the first one

    @property
    def key(self) -> Key:
        return (self.run, self.index)

    @property
    def is_gang_call(self) -> bool:
        return bool(self.header.get("gang"))

    @property
    def timeout(self) -> float | None:
        return self.header.get("timeout")

    def cancel_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def given_frame(self, text: str = "") -> bytes:
        """What the journal says when it is handed to its worker; ``text`` is its header, where that is encoded."""
        told = {"t": "given", "slot": self.slot, "rank": self.rank, "log": self.log_start}
        return encode_frame_text(f'{encode_json(told)[:-1]},"call":{text or encode_json(self.header)}}}')

    def make_outcome(self, ended: EndDetails) -> WorkerOutcome:
        """The outcome of a call that its worker tells nothing of."""
        said: AnyHeader = {
            "t": "outcome", "run": self.run, "i": self.index, "seconds": 0.0, "summary": None, "size": 0,
        } | ended  # fmt: skip
        told: WorkerOutcome = said
        return told

    def stopped_details(self) -> EndDetails:
        """The part of an outcome that says why we stopped the call."""
        if self.stop_reason == "timeout":
            words = f"ran longer than its timeout of {self.timeout:g} s and was stopped"
            return {"kind": "exited", "error": {"type": "TimeoutError", "message": words}}
        reasons = {
            "fail-fast": "stopped because another rank failed",
            "cancel": "stopped because the run was cancelled",
        }
        message = reasons.get(self.stop_reason, self.stop_reason)
        return {"kind": "collateral", "error": {"type": "Stopped", "message": message}}


class RunRecord:
    """What a client that comes later is told of a run: headers only, no values."""

    def __init__(self, run: str, function: str, kind: str, total: int) -> None:
        self.run = run
        self.function = function
        self.kind = kind
        self.total = total
        self.opened_at = time.time()
        self.outcomes: dict[int, AgentOutcome] = {}
        self.began: dict[int, AgentBegan] = {}
        self.items: dict[int, AgentItem] = {}  # what its generators yielded last
        self.active = 0
        # Tasks of a gather; there may be many, so that only failures are remembered one by one. Of a sweep all are:
        # which combinations are still missing matters to whoever comes later.
        self.returned = 0
        self.over = False  # of a map: its client has said that there is no more of it
        self.epoch = 0  # of the gang that it was meant for last
        self.nodes: list[int] = []  # that have it, where these are not all
        self.job = ""  # the job that it is a step of
        self.more = False  # whether another one follows
        self.has_next_step = False  # that one has come
        self.ended_at = 0.0  # of its latest outcome, by the monotonic clock
        self.order = 0  # in which its first call came here

    @property
    def retained_for_job(self) -> str:
        """The job for whose next step the node is kept; "" for none."""
        went_well = all(each["kind"] == "returned" for each in self.outcomes.values())
        late = self.active or not self.outcomes or time.monotonic() - self.ended_at > NEXT_STEP_GRACE
        return self.job if self.more and not self.has_next_step and went_well and not late else ""

    def to_json(self) -> dict[str, Any]:
        told = {
            "run": self.run,
            "function": self.function,
            "kind": self.kind,
            "total": self.total,
            "opened_at": self.opened_at,
            "outcomes": list(self.outcomes.values()),
            "began": list(self.began.values()),
            "items": list(self.items.values()),
            "active": self.active,
            "returned": self.returned,
            "over": self.over,
        }
        more = (("nodes", self.nodes), ("job", self.job), ("more", self.more))
        return told | {key: value for key, value in more if value}

    def count_items(self, call: Call, outcome: AgentOutcome) -> None:
        """Of a map, which may have endlessly many calls: what a rank has done is told as of a generator."""
        had = self.items.get(call.rank)
        done = (0 if had is None else had["seq"] + 1) + outcome.get("items", 0)
        self.items[call.rank] = {
            "t": "item", "run": self.run, "i": call.rank, "rank": call.rank, "node": outcome["node"],
            "seq": max(0, done - 1), "summary": outcome.get("summary"),
        }  # fmt: skip


class CallRegistry:
    """All calls that nobody has acknowledged yet, and a record of the latest runs."""

    def __init__(self) -> None:
        self.calls: dict[Key, Call] = {}
        self._by_run: dict[str, dict[int, Call]] = {}
        self.records: dict[str, RunRecord] = {}
        self._cancelled: dict[str, None] = {}  # the latest runs that were, in order
        self.active = 0  # calls without an outcome
        self._last_order = 0

    def add(self, call: Call) -> bool:
        """Take a call in; says whether it is the first of its run."""
        self.calls[call.key] = call
        self._by_run.setdefault(call.run, {})[call.index] = call
        record = self.records.get(call.run)
        first = record is None
        if record is None:
            head = call.header
            record = RunRecord(call.run, head.get("name", ""), head.get("kind", ""), head.get("total", 1))
            self.records[call.run] = record
            self._evict_record()
        self._last_order += 1
        came = self._last_order
        if first:
            record.order = came
        call.order = record.order if call.is_gang_call else came
        record.active += 1
        record.epoch, record.nodes = call.header.get("epoch", 0), call.header.get("nodes", [])
        record.job, record.more = call.header.get("job", ""), call.header.get("more", False)
        record.has_next_step = False
        self._mark_next_step(record.job, record)
        self.active += 1
        return first

    def _mark_next_step(self, job: str, record: RunRecord) -> None:
        """What was kept here for a job's next step is that one's now."""
        for other in self.records.values() if job else ():
            if other.job == job and other is not record:
                other.has_next_step = True

    def cancel(self, run: str) -> None:
        """Remember that a run is cancelled: its client may hear of that only from its later calls."""
        self._cancelled[run] = None
        if len(self._cancelled) > MAX_RECORDS:
            del self._cancelled[next(iter(self._cancelled))]

    def is_cancelled(self, run: str) -> bool:
        return run in self._cancelled

    def record_outcome(self, call: Call, outcome: AgentOutcome) -> None:
        call.outcome = outcome
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

    def calls_of_run(self, run: str) -> list[Call]:
        return list(self._by_run.get(run, {}).values())

    def unacknowledged(self) -> Iterator[bytes]:
        """The journal's frames of all calls that workers were given, or that have ended."""
        for call in self.calls.values():
            if call.started_at is not None:
                yield call.given_frame()
            if call.outcome is not None:
                yield encode_frame(call.outcome, call.result)

    def select_calls(self, run: str, indices: list[int]) -> list[Call]:
        calls = self._by_run.get(run, {})
        return [calls[index] for index in indices if index in calls]

    def acknowledge(self, calls: Mapping[str, list[int] | None]) -> list[Call]:
        """A client has what came of these (run -> indices, or None for all of the run): forget, and give, them."""
        known = [
            call
            for run, only in calls.items()
            for call in (self.calls_of_run(run) if only is None else self.select_calls(run, only))
            if call.outcome is not None
        ]
        for call in known:
            self.drop(call)
        return known

    def drop(self, call: Call) -> None:
        """Forget a call that nobody needs any more; its run's record stays."""
        if call.value_buffer is not None:
            call.value_buffer.remove()
        del self.calls[call.key]
        calls = self._by_run[call.run]
        del calls[call.index]
        if not calls:
            del self._by_run[call.run]

    def _evict_record(self) -> None:
        if len(self.records) > MAX_RECORDS:
            over = next((run for run, record in self.records.items() if not record.active), None)
            if over is not None:
                del self.records[over]


def _shorten_outcome(outcome: AgentOutcome) -> AgentOutcome:
    """An outcome without what is long of it: of a sweep there may be thousands in one greeting."""
    short = outcome.copy()
    summary = short.get("summary")
    if summary and summary.get("size", 0) > MAX_SHORT_TEXT:
        short["summary"] = {**summary, "json": None, "is_json": False}
    if len(short.get("numbers", ())) > MAX_METRIC_NAMES:
        del short["numbers"]
    return short
