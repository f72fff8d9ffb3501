"""Calls and runs remembered, with their journal on disk."""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skyward_core.node.agent.connection import Connection
from skyward_core.protocol.frame_codec import (
    MAX_SHORT_TEXT,
    WINDOW,
    AnyHeader,
    Decoder,
    WireError,
    decode_header,
    decode_lengths,
    encode_frame,
    encode_frame_text,
    encode_json,
)

if TYPE_CHECKING:
    from typing import TypedDict

    from skyward_core.protocol.frame_types import (
        AgentBegan,
        AgentItem,
        AgentOutcome,
        ClientAck,
        ClientCall,
        EndDetails,
        LogSizes,
        WorkerOutcome,
        WorkerWant,
    )

    class JournalGiven(TypedDict):
        """A call that a worker has been given."""

        t: Literal["given"]
        slot: int
        rank: int
        log: LogSizes
        call: ClientCall

    JournalFrame = JournalGiven | AgentOutcome | ClientAck


COMPACT_THRESHOLD = 4 << 20  # bytes of values that were taken, before those that were not are written anew
MAX_COMPACT_BYTES = 1 << 20  # bytes that are read at once for that
HEADER_BYTES = 8


class GeneratorBuffer:
    """See the module. A value's number is its place among all that the generator yields.

    Attributes:
        first: number of the first value that is still to be taken.
        sent: number of the first one that its reader was not sent.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or make it; what an agent before this one put there is found again."""
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            self._file = -1  # as where there is no room for a value
        self.first = 0
        self.next_unsent = 0
        self._base = 0  # where the first of them begins
        self._ends = array("Q")  # where each of them ends, from ``_gone`` on
        self._dropped = 0
        self._files: dict[int, str] = {}  # number of a large value -> its file in the spool
        if self._file >= 0:
            self._load()

    @property
    def next_number(self) -> int:
        """The number of the value that is still to be made."""
        return self.first + len(self._ends) - self._dropped

    def add(self, number: int, file: str | None, data: bytes) -> bool:
        """Take a value in; says whether it is new: a worker sends again what an agent that died may not have got."""
        if number < self.next_number:
            return False
        if number > self.next_number:  # those before have been taken, from the agent before this one
            self.acknowledge(self.next_number)
            self.first = number
            self.next_unsent = max(self.next_unsent, number)
        at = self._end
        try:
            end = at + len(data) if os.pwrite(self._file, data, at) == len(data) else at
        except OSError:
            end = at  # no room: if it is needed again, its reader will be told that it is lost
        self._ends.append(end)
        if file is not None:
            self._files[number] = file
        return True

    def read(self, number: int) -> bytes:
        """A value's frame; empty where the disk had no room for it."""
        place = self._dropped + number - self.first
        at = self._ends[place - 1] if place > self._dropped else self._base
        size = self._ends[place] - at
        return os.pread(self._file, size, at) if size else b""

    def pop_sendable(self) -> list[bytes]:
        """Frames of what the reader was not sent and may be sent now, as far as its window goes."""
        self.next_unsent = max(self.next_unsent, self.first)
        until = min(self.next_number, self.first + WINDOW)
        frames = [self.read(number) for number in range(self.next_unsent, until)]
        self.next_unsent = max(self.next_unsent, until)
        return frames

    def acknowledge(self, until: int) -> None:
        """The reader has all values below a number, and needs them no more."""
        until = min(until, self.next_number)
        while self.first < until:
            if (name := self._files.pop(self.first, None)) is not None:
                self._path.with_name(name).unlink(missing_ok=True)
            self._base = self._ends[self._dropped]
            self._dropped += 1
            self.first += 1
        if self._dropped > 1024 and self._dropped > len(self._ends) // 2:
            del self._ends[: self._dropped]
            self._dropped = 0
        if self._base > COMPACT_THRESHOLD and self._end - self._base <= MAX_COMPACT_BYTES:
            self._compact()

    def remove(self) -> None:
        """Nobody needs any of it any more."""
        self.acknowledge(self.next_number)
        if self._file >= 0:
            os.close(self._file)
        self._path.unlink(missing_ok=True)

    @property
    def _end(self) -> int:
        return self._ends[-1] if len(self._ends) > self._dropped else self._base

    def _compact(self) -> None:
        """Write what is still needed to a file that takes the place of this one; whichever is there is whole."""
        rest = os.pread(self._file, self._end - self._base, self._base)
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(rest)
            file = os.open(new, os.O_RDWR)
        except OSError:
            return
        new.replace(self._path)
        os.close(self._file)
        self._file = file
        self._ends = array("Q", (end - self._base for end in self._ends[self._dropped :]))
        self._base = self._dropped = 0

    def _load(self) -> None:
        size, at = os.fstat(self._file).st_size, 0
        header: AgentItem
        while at + HEADER_BYTES <= size:
            head, body = decode_lengths(os.pread(self._file, HEADER_BYTES, at))
            end = at + HEADER_BYTES + head + body
            try:
                if end > size:
                    raise WireError("it was cut short")
                header = decode_header(os.pread(self._file, head, at + HEADER_BYTES))
            except WireError:
                break
            if not self._ends:
                self.first = header["seq"]
            while self.next_number < header["seq"]:
                self._ends.append(at)  # there was no room for it
            self._ends.append(end)
            if (name := header.get("file")) is not None:
                self._files[header["seq"]] = Path(name).name
            at = end
        os.ftruncate(self._file, at)


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


LEAST_JOURNAL_BYTES = 4 << 20  # bytes that it may always have


class Journal:
    """See the module.

    Args:
        needed: gives the frames of all calls that are not acknowledged, as they would be written now.
    """

    def __init__(self, path: Path, needed: Callable[[], Iterable[bytes]]) -> None:
        self._path = path
        self._needed = needed
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
        self._compact_at = LEAST_JOURNAL_BYTES

    def write(self, data: bytes) -> None:
        """Append a frame; a full disk is nobody's failure here, the spool will say it."""
        try:
            written = os.write(self._file, data)
        except OSError:
            return
        if written < len(data):
            os.ftruncate(self._file, self._size)  # half a frame would hide all that follow
            return
        self._size += written
        if self._size > self._compact_at:
            self.compact()
            self._compact_at = max(LEAST_JOURNAL_BYTES, 2 * self._size)

    def clear(self) -> None:
        if self._size:
            os.ftruncate(self._file, 0)
            self._size = 0
            self._compact_at = LEAST_JOURNAL_BYTES

    def compact(self) -> None:
        """Write what is needed to a file that takes the place of this one; whichever is there is whole."""
        new = self._path.with_suffix(".new")
        file = -1
        try:
            file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            for data in self._needed():
                if os.write(file, data) < len(data):
                    raise OSError("it was cut short")
            new.replace(self._path)
        except OSError:
            # No room for it: the old one goes on, and is still whole.
            if file >= 0:
                os.close(file)
            with suppress(OSError):
                new.unlink()
            return
        os.close(self._file)
        self._file, self._size = file, os.fstat(file).st_size

    def read(self) -> list[tuple[JournalFrame, bytes]]:
        """Everything written by whoever was here before; what was cut short is left out."""
        return _read_frames(self._file)


def read_journal(path: Path) -> list[tuple[JournalFrame, bytes]]:
    """What a journal holds that no agent writes any more; nothing where there is none."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        return _read_frames(file)
    finally:
        os.close(file)


def _read_frames(file: int) -> list[tuple[JournalFrame, bytes]]:
    frames: list[tuple[JournalFrame, bytes]] = []
    try:
        for found in Decoder().feed(os.pread(file, os.fstat(file).st_size, 0)):
            frames.append(found)
    except WireError:
        return frames
    return frames
