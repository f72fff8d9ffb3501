"""Calls and runs remembered, with their journal on disk."""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from skyward_core.node.agent.connection import Connection
from skyward_core.protocol.frame_codec import (
    SHORT,
    WINDOW,
    Decoder,
    Heard,
    WireError,
    decode,
    encoded,
    frame,
    framed,
    lengths,
)

if TYPE_CHECKING:
    from skyward_core.node.agent.worker_processes import Process
    from skyward_core.protocol.frame_types import (
        AgentBegan,
        AgentItem,
        AgentOutcome,
        ClientCall,
        Ended,
        WorkerOutcome,
        WorkerWant,
        Written,
    )


ROOM = 4 << 20  # bytes of values that were taken, before those that were not are written anew
FEW = 1 << 20  # bytes that are read at once for that
HEAD = 8


class Yields:
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
        self.sent = 0
        self._base = 0  # where the first of them begins
        self._ends = array("Q")  # where each of them ends, from ``_gone`` on
        self._gone = 0
        self._files: dict[int, str] = {}  # number of a large value -> its file in the spool
        if self._file >= 0:
            self._find()

    @property
    def next(self) -> int:
        """The number of the value that is still to be made."""
        return self.first + len(self._ends) - self._gone

    def add(self, number: int, file: str | None, data: bytes) -> bool:
        """Take a value in; says whether it is new: a worker sends again what an agent that died may not have got."""
        if number < self.next:
            return False
        if number > self.next:  # those before have been taken, from the agent before this one
            self.taken(self.next)
            self.first = number
            self.sent = max(self.sent, number)
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
        place = self._gone + number - self.first
        at = self._ends[place - 1] if place > self._gone else self._base
        size = self._ends[place] - at
        return os.pread(self._file, size, at) if size else b""

    def due(self) -> list[bytes]:
        """Frames of what the reader was not sent and may be sent now, as far as its window goes."""
        self.sent = max(self.sent, self.first)
        until = min(self.next, self.first + WINDOW)
        frames = [self.read(number) for number in range(self.sent, until)]
        self.sent = max(self.sent, until)
        return frames

    def taken(self, until: int) -> None:
        """The reader has all values below a number, and needs them no more."""
        until = min(until, self.next)
        while self.first < until:
            if (name := self._files.pop(self.first, None)) is not None:
                self._path.with_name(name).unlink(missing_ok=True)
            self._base = self._ends[self._gone]
            self._gone += 1
            self.first += 1
        if self._gone > 1024 and self._gone > len(self._ends) // 2:
            del self._ends[: self._gone]
            self._gone = 0
        if self._base > ROOM and self._end - self._base <= FEW:
            self._shorten()

    def remove(self) -> None:
        """Nobody needs any of it any more."""
        self.taken(self.next)
        if self._file >= 0:
            os.close(self._file)
        self._path.unlink(missing_ok=True)

    @property
    def _end(self) -> int:
        return self._ends[-1] if len(self._ends) > self._gone else self._base

    def _shorten(self) -> None:
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
        self._ends = array("Q", (end - self._base for end in self._ends[self._gone :]))
        self._base = self._gone = 0

    def _find(self) -> None:
        size, at = os.fstat(self._file).st_size, 0
        header: AgentItem
        while at + HEAD <= size:
            head, body = lengths(os.pread(self._file, HEAD, at))
            end = at + HEAD + head + body
            try:
                if end > size:
                    raise WireError("it was cut short")
                header = decode(os.pread(self._file, head, at + HEAD))
            except WireError:
                break
            if not self._ends:
                self.first = header["seq"]
            while self.next < header["seq"]:
                self._ends.append(at)  # there was no room for it
            self._ends.append(end)
            if (name := header.get("file")) is not None:
                self._files[header["seq"]] = Path(name).name
            at = end
        os.ftruncate(self._file, at)


NUMBERS = 16  # names of numbers of an outcome of a sweep, more of which later clients are not told
KEPT = 10.0  # seconds that a node is kept for the next step of a job
RECORDS = 64  # runs remembered after they ended, for clients that come later

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
        self.given_at: float | None = None
        self.begun_at = 0.0  # the same as Unix time
        self.worker: Connection | None = None  # that runs it
        self.log_start: dict[str, int] = {}
        self.stop_reason = ""
        self.timers: list[asyncio.TimerHandle] = []
        self.yields: Yields | None = None
        self.wants: dict[int, WorkerWant] = {}  # of arguments that are fed, by number
        self.away_since = 0.0  # when its client was lost, by the loop's clock
        self.outcome: AgentOutcome | None = None
        self.result = b""
        # Its outcome, told when its worker, that it has ended, is gone.
        self.parting: tuple[WorkerOutcome, bytes] | None = None
        self.order = 0  # in which it came here; all calls of a broadcast have that of the first one
        self.parts: list[Call] = []  # where it runs on several ranks of a block; see ``agent.partial_gangs``
        self.team: Together | None = None  # that it is a part of

    @property
    def width(self) -> int:
        """On how many ranks of the node it runs, as a small gang; 1 for all other calls."""
        return self.header.get("width", 1)

    @property
    def key(self) -> Key:
        return (self.run, self.index)

    @property
    def gang(self) -> bool:
        return bool(self.header.get("gang"))

    @property
    def timeout(self) -> float | None:
        return self.header.get("timeout")

    def disarm(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def given(self, text: str = "") -> bytes:
        """What the journal says when it is handed to its worker; ``text`` is its header, where that is encoded."""
        told = {"t": "given", "slot": self.slot, "rank": self.rank, "log": self.log_start}
        return framed(f'{encoded(told)[:-1]},"call":{text or encoded(self.header)}}}')

    def ended(self) -> bytes:
        """What the journal says when a part of a call has ended."""
        return frame({"t": "ended", "outcome": self.outcome}, self.result)

    def no_result(self, ended: Ended) -> WorkerOutcome:
        """The outcome of a call that its worker tells nothing of."""
        said: Heard = {
            "t": "outcome", "run": self.run, "i": self.index, "seconds": 0.0, "summary": None, "size": 0,
        } | ended  # fmt: skip
        told: WorkerOutcome = said
        return told

    def stopped(self) -> Ended:
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


class Together(Protocol):
    """The parts of a call that runs on a block of ranks; see ``partial_gangs.Team``."""

    whole: Call
    parts: list[Call]
    begun: bool

    def fits(self, process: Process, renewed: int) -> bool: ...

    def stands(self, renewed: int) -> bool: ...

    def ended(self, part: Call) -> None: ...


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
        self.width = 1  # on how many ranks of a node each of its calls runs
        self.followed = False  # that one has come
        self.ended_at = 0.0  # of its latest outcome, by the monotonic clock
        self.order = 0  # in which its first call came here

    @property
    def kept_for(self) -> str:
        """The job for whose next step the node is kept; "" for none."""
        went_well = all(each["kind"] == "returned" for each in self.outcomes.values())
        late = self.active or not self.outcomes or time.monotonic() - self.ended_at > KEPT
        return self.job if self.more and not self.followed and went_well and not late else ""

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
        if self.width > 1:
            told["width"] = self.width
        return told | {key: value for key, value in more if value}

    def count(self, call: Call, outcome: AgentOutcome) -> None:
        """Of a map, which may have endlessly many calls: what a rank has done is told as of a generator."""
        had = self.items.get(call.rank)
        done = (0 if had is None else had["seq"] + 1) + outcome.get("items", 0)
        self.items[call.rank] = {
            "t": "item", "run": self.run, "i": call.rank, "rank": call.rank, "node": outcome["node"],
            "seq": max(0, done - 1), "summary": outcome.get("summary"),
        }  # fmt: skip


class Register:
    """All calls that nobody has acknowledged yet, and a record of the latest runs."""

    def __init__(self) -> None:
        self.calls: dict[Key, Call] = {}
        self._by_run: dict[str, dict[int, Call]] = {}
        self.records: dict[str, RunRecord] = {}
        self._cancelled: dict[str, None] = {}  # the latest runs that were, in order
        self.active = 0  # calls without an outcome
        self._came = 0

    def turn(self) -> int:
        """The order of what comes now."""
        self._came += 1
        return self._came

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
            self._forget()
        came = self.turn()
        if first:
            record.order = came
        call.order = record.order if call.gang else came
        record.active += 1
        record.epoch, record.nodes = call.header.get("epoch", 0), call.header.get("nodes", [])
        record.job, record.more = call.header.get("job", ""), call.header.get("more", False)
        record.followed, record.width = False, call.width
        self._begun(record.job, record)
        self.active += 1
        return first

    def _begun(self, job: str, record: RunRecord) -> None:
        """What was kept here for a job's next step is that one's now."""
        for other in self.records.values() if job else ():
            if other.job == job and other is not record:
                other.followed = True

    def cancel(self, run: str) -> None:
        """Remember that a run is cancelled: its client may hear of that only from its later calls."""
        self._cancelled[run] = None
        if len(self._cancelled) > RECORDS:
            del self._cancelled[next(iter(self._cancelled))]

    def is_cancelled(self, run: str) -> bool:
        return run in self._cancelled

    def end(self, call: Call, outcome: AgentOutcome) -> None:
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
                record.count(call, outcome)
                return
            if record.kind == "gather" and outcome["kind"] == "returned":
                record.returned += 1
            else:
                record.outcomes[call.index] = outcome if record.kind != "sweep" else _shortened(outcome)

    def of_run(self, run: str) -> list[Call]:
        return list(self._by_run.get(run, {}).values())

    def unacknowledged(self) -> Iterator[bytes]:
        """The journal's frames of all calls that workers were given, or that have ended."""
        for call in self.calls.values():
            if call.given_at is not None:
                yield call.given()
            for part in call.parts:
                if part.given_at is not None:
                    yield part.given()
                if part.outcome is not None:
                    yield part.ended()
            if call.outcome is not None:
                yield frame(call.outcome, call.result)

    def some(self, run: str, indices: list[int]) -> list[Call]:
        calls = self._by_run.get(run, {})
        return [calls[index] for index in indices if index in calls]

    def acknowledge(self, calls: Mapping[str, list[int] | None]) -> list[Call]:
        """A client has what came of these (run -> indices, or None for all of the run): forget, and give, them."""
        known = [
            call
            for run, only in calls.items()
            for call in (self.of_run(run) if only is None else self.some(run, only))
            if call.outcome is not None
        ]
        for call in known:
            self.drop(call)
        return known

    def drop(self, call: Call) -> None:
        """Forget a call that nobody needs any more; its run's record stays."""
        if call.yields is not None:
            call.yields.remove()
        del self.calls[call.key]
        calls = self._by_run[call.run]
        del calls[call.index]
        if not calls:
            del self._by_run[call.run]

    def _forget(self) -> None:
        if len(self.records) > RECORDS:
            over = next((run for run, record in self.records.items() if not record.active), None)
            if over is not None:
                del self.records[over]


def _shortened(outcome: AgentOutcome) -> AgentOutcome:
    """An outcome without what is long of it: of a sweep there may be thousands in one greeting."""
    short = outcome.copy()
    summary = short.get("summary")
    if summary and summary.get("size", 0) > SHORT:
        short["summary"] = {**summary, "json": None, "is_json": False}
    if len(short.get("numbers", ())) > NUMBERS:
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
        self._most = LEAST_JOURNAL_BYTES

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
        if self._size > self._most:
            self.shorten()
            self._most = max(LEAST_JOURNAL_BYTES, 2 * self._size)

    def clear(self) -> None:
        if self._size:
            os.ftruncate(self._file, 0)
            self._size = 0
            self._most = LEAST_JOURNAL_BYTES

    def shorten(self) -> None:
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

    def read(self) -> list[tuple[Written, bytes]]:
        """Everything written by whoever was here before; what was cut short is left out."""
        return _frames(self._file)


def read(path: Path) -> list[tuple[Written, bytes]]:
    """What a journal holds that no agent writes any more; nothing where there is none."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        return _frames(file)
    finally:
        os.close(file)


def _frames(file: int) -> list[tuple[Written, bytes]]:
    frames: list[tuple[Written, bytes]] = []
    try:
        for found in Decoder().feed(os.pread(file, os.fstat(file).st_size, 0)):
            frames.append(found)
    except WireError:
        return frames
    return frames
