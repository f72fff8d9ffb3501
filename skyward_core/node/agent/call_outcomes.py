"""Outcomes of calls, recorded and sent to clients."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.call_journal import Call, Yields
from skyward_core.node.agent.connected_clients import Audience
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.log_tailing import RankLogs
from skyward_core.node.agent.worker_processes import (
    ON_SIGTERM,
    Process,
    ended_as_told,
    ended_from_outside,
    ended_with_worker,
    exit_words,
)
from skyward_core.protocol.frame_codec import NONE, NONE_SUMMARY, WINDOW, WORK, Heard, encoded, frame
from skyward_core.protocol.frame_schema import PREEMPTED

if TYPE_CHECKING:
    from typing import TypedDict

    class Said(TypedDict):
        """What stands in one. (To make such a type takes each agent's start a millisecond.)"""

        message: str
        traceback: str

    from skyward_core.protocol.frame_types import (
        AgentBegan,
        AgentOutcome,
        ClientCall,
        ClientClaim,
        Ended,
        ErrorWords,
        WorkerItem,
        WorkerOutcome,
        WorkerWant,
    )


LONGEST = 1 << 16  # bytes that are read of one
MESSAGE = 8192  # characters


def error_of(path: str) -> Said | None:
    """Read such a file, once; None where there is none, or nothing that makes sense.

    It is a person's own code that writes it, and may write anything.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LONGEST + 1)
        os.unlink(path)  # noqa: PTH108  an agent has no need of pathlib here
        told = json.loads(data)["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(told, str):
        return {"message": told[:MESSAGE], "traceback": ""}
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return None
    more = told.get("extraInfo")
    trace = more.get("py_callstack") if isinstance(more, dict) else ""
    return {"message": told["message"][:MESSAGE], "traceback": trace if isinstance(trace, str) else ""}


SLOW = 0.05  # seconds after which a call that still runs is announced as running


class SlowCalls:
    """Calls that were given to workers just now, in that order, with one timer for them all.

    Args:
        announce: told of each that still runs a moment later, and its rank.
    """

    def __init__(self, announce: Callable[[int, Call], None]) -> None:
        self._announce = announce
        self._given: deque[tuple[float, int, Call]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, rank: int, call: Call) -> None:
        """A worker was given a call."""
        loop = asyncio.get_running_loop()
        self._forget()
        self._given.append((loop.time() + SLOW, rank, call))
        if self._timer is None:
            self._timer = loop.call_later(SLOW, self._look)

    def _forget(self) -> None:
        """Let go of those that have ended meanwhile: they are an agent's memory."""
        given = self._given
        while given and (given[0][2].outcome is not None or given[0][2].parting is not None):
            given.popleft()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now, given = loop.time(), self._given
        self._timer = None
        self._forget()
        while given:
            due, rank, call = given[0]
            if due > now:
                self._timer = loop.call_at(due, self._look)
                return
            given.popleft()
            self._announce(rank, call)
            self._forget()


FREE_SPACE = 1 << 20  # bytes below which a full disk is named as the likely cause of a failure


class CallDesk:
    """One agent's."""

    def __init__(self, state: NodeState, audience: Audience) -> None:
        self._state = state
        self._audience = audience
        self._register = state.register
        self._slow = SlowCalls(self._announce)

    def complain(self, words: str) -> None:
        """Tell all clients of something that hurts no call."""
        self._audience.tell({"t": "error", "message": words})

    # -- how they begin ----------------------------------------------------------------------------------

    def given(self, call: Call, text: str) -> None:
        """A worker has been given a call, whose header is ``text``; it begins while that is written down."""
        self._state.journal.write(call.given(text))
        if call.team is None:
            self._slow.add(call.rank, call)
        elif call is call.team.parts[0]:
            self._slow.add(call.rank, call.team.whole)

    def _announce(self, rank: int, call: Call) -> None:
        self._audience.wake()
        header: AgentBegan = {
            "t": "began",
            "run": call.run,
            "i": call.index,
            "rank": rank,
            "node": self._state.config.node,
            "log": call.log_start,
            "at": call.begun_at,
        }
        if record := self._register.records.get(call.run):
            record.began[call.index] = header
        if call.owner is not None:
            call.owner.send(header)
        self._audience.broadcast(header | {"name": call.header.get("name")}, skip=call.owner)

    # -- what generators yield ---------------------------------------------------------------------------

    def item(self, call: Call, header: WorkerItem, body: bytes) -> None:
        """A generator has yielded a value."""
        told: Heard = header | {"rank": call.rank, "node": self._state.config.node}
        self.open_yields(call)
        data = frame(told, body)
        if call.yields is not None and call.yields.add(header["seq"], header.get("file"), data):
            self._hand_on(call, call.yields, data)
            told.pop("file", None)  # whoever only watches gets no values
            if record := self._register.records.get(call.run):
                record.items[call.index] = told
            self._audience.broadcast(told, skip=call.owner)
        if call.owner is None:
            self.credit(call)

    def open_yields(self, call: Call) -> None:
        """Have a place for what a generator yields, with what an agent before this one kept there."""
        if call.yields is None and call.header.get("stream"):
            call.yields = Yields(self._state.config.spool / f"{call.run}.{call.index}.yields")

    def _hand_on(self, call: Call, yields: Yields, data: bytes) -> None:
        """A generator's new value, to who reads them; behind those that it has not been sent yet."""
        if call.owner is None:
            return
        if yields.sent == yields.next - 1 < yields.first + WINDOW:
            yields.sent += 1
            call.owner.write(data)
        else:
            self._deliver(call.owner, call, yields)

    @staticmethod
    def _deliver(owner: Connection, call: Call, yields: Yields) -> None:
        """Send a reader what its window has room for, and the outcome behind the last of it."""
        for data in yields.due():
            owner.write(data)
        if call.outcome is not None and yields.sent >= yields.next:
            owner.send(call.outcome, call.result)

    def taken(self, call: Call, until: int) -> None:
        """Its reader has all values below a number."""
        if call.yields is None:
            return
        call.yields.taken(until)
        if call.owner is not None and call.yields.sent < call.yields.next:
            self._deliver(call.owner, call, call.yields)
        self.credit(call)

    def credit(self, call: Call) -> None:
        """Tell a generator how far its reader is; where nobody reads, its values wait here, and it goes on."""
        if call.yields is not None and call.outcome is None and call.worker is not None:
            until = call.yields.next if call.owner is None else call.yields.first
            call.worker.reply(encoded({"t": "credit", "run": call.run, "i": call.index, "next": until}))

    def want(self, call: Call, header: WorkerWant) -> None:
        """A call waits for values that its client feeds: the client of now, or the next one, is told."""
        call.wants[header["arg"]] = header
        if call.owner is not None:
            call.owner.send(header)

    # -- how they end ------------------------------------------------------------------------------------

    def judged(self, call: Call, header: WorkerOutcome, killed: str, process: Process | None = None) -> WorkerOutcome:
        """An outcome as its worker tells it, with what only the agent knows.

        Args:
            process: the worker.
            killed: why the agent had ended the worker, where it had.
        """
        told: Heard = header
        taken_back = self._state.is_taken_back
        if call.stop_reason and header["kind"] != "returned":
            told |= call.stopped()
        elif header["kind"] == "collateral":
            nobody = self._preempted() if taken_back else ended_from_outside()
            told |= self._ended_with(killed) if killed else nobody
        elif taken_back and header["kind"] == "exited" and header.get("exit_code") == ON_SIGTERM:
            told |= self._preempted()
        elif header["kind"] == "raised":
            self._note_full_disk(header)
            if process is not None:
                error_of(self._state.config.paths.error_file(process.pid))  # says the same, and is no later call's
        elif header["kind"] == "exited" and process is not None:
            told |= self._in_own_words(header, process)
        return header

    def _in_own_words(self, ended: Ended | WorkerOutcome, process: Process) -> Ended:
        """How a worker ended, with the cause that user code has written down for it."""
        said = error_of(self._state.config.paths.error_file(process.pid))
        kind, error = ended["kind"], ended.get("error")
        if said is None or error is None:
            return {"kind": kind}
        words: ErrorWords = {"type": error["type"], "message": f"{said['message']} ({error['message']})"}
        words["traceback"] = said["traceback"]
        return {"kind": kind, "error": self._state.redactor.json(words)}

    def _note_full_disk(self, header: WorkerOutcome) -> None:
        error, config = header.get("error"), self._state.config
        space = os.statvfs(config.folder)
        free = space.f_bavail * space.f_frsize
        if error and error.get("type", "").endswith("OSError") and free < FREE_SPACE:
            error["message"] += f" [the disk under node {config.node}'s spool is full: {config.folder}]"

    def finish(
        self,
        call: Call,
        told: WorkerOutcome,
        body: bytes = b"",
        logs: RankLogs | None = None,
        *,
        more: bool = False,
    ) -> None:
        """A call has ended.

        Args:
            more: whether the slot has others to run, so that clients may hear of several at once.
            logs: of the slot that ran it.
        """
        call.disarm()
        heard: Heard = told
        header: AgentOutcome = heard  # it has what it lacks of one in a moment
        header["rank"] = call.rank
        header["node"] = self._state.config.node
        header["begun"] = call.given_at is not None
        if "items" in call.header and header["kind"] == "returned":
            header["items"] = call.header["items"]
        header["at"] = time.time()
        if logs is not None and call.given_at is not None:
            header["log"] = log = logs.range_of(call)
            ends = {name: end for name, (_, end) in log.items()}
            self._audience.flush(logs.other_ends() | ends)
        call.result = body
        if call.team is None:
            self.tell(call, header, body, more=more)
        else:
            call.outcome = header
            self._state.journal.write(call.ended())
            call.team.ended(call)

    def tell(self, call: Call, header: AgentOutcome, body: bytes, *, more: bool = False) -> None:
        """Have clients, and the journal, know what came of a call.

        Args:
            more: as of :meth:`finish`.
        """
        call.result = body
        data = frame(header, body)
        if call.owner is not None and (call.yields is None or call.yields.sent >= call.yields.next):
            # Else it follows the last of the values.
            (call.owner.write_soon if more else call.owner.write)(data)
        self._register.end(call, header)
        self._state.journal.write(data)
        self._audience.broadcast(header, skip=call.owner, soon=more)

    def died(self, call: Call, process: Process, status: int | None, logs: RankLogs) -> None:
        """The worker of a call ended before the call did."""
        body = b""
        more: Heard = {}
        taken_back = self._state.is_taken_back
        if process.ended_well(status) and not call.stop_reason and not taken_back:
            ended: Ended = {"kind": "returned"}
            more, body = {"summary": NONE_SUMMARY, "size": len(NONE)}, NONE
        elif call.stop_reason:
            ended = call.stopped()
        elif process.killed:
            ended = self._ended_with(process.killed)
        elif taken_back and ended_as_told(status):
            ended = self._preempted()
        else:
            fields, words = exit_words(status)
            if process.connection is None:
                said = self._state.last_words(logs.names[1], process.says_from)
                words = f"its worker could not start: {words}; {said}"
            ended = {**fields, "kind": "exited", "error": {"type": "RankExit", "message": words}}
            ended = ended | self._in_own_words(ended, process)
        header: WorkerOutcome = call.no_result(ended) | more
        if call.given_at is not None:
            header["seconds"] = asyncio.get_running_loop().time() - call.given_at
        self.finish(call, header, body, logs)

    def not_started(self, call: Call, words: str) -> None:
        """There is no worker for a call, and none to be had."""
        failed: Ended = {"kind": "exited", "error": {"type": "RankExit", "message": words}}
        self.finish(call, call.no_result(call.stopped() if call.stop_reason else failed))

    def not_run(self, call: Call) -> None:
        """A call was stopped before a worker had it."""
        self.finish(call, call.no_result(call.stopped()))

    def stale(self, call: Call) -> None:
        """A gang call whose gang is no more was not begun: hand it back for the client to start anew."""
        gang = self._state.gang
        stale: Heard = {"t": "stale", "run": call.run, "i": call.index, "kind": "stale"}
        self._register.end(call, stale)  # in the place of an outcome, until it is dropped
        self._register.drop(call)
        self._register.records[call.run].outcomes.pop(call.index, None)
        if call.owner is not None:
            health = gang.health()
            why = {"epoch": gang.epoch, "why": health.pop("broken")} | health
            call.owner.send({"t": "stale", "run": call.run, "i": call.index} | why)

    def _ended_with(self, why: str) -> Ended:
        """The part of an outcome that says why we ended its worker."""
        if self._state.closing and not self._state.ending:  # nobody ends the pool: only this node leaves it
            if self._state.is_taken_back:
                return self._preempted()
            words = f"the agent of node {self._state.config.node} was ended on its machine"
            return {"kind": "lost", "error": {"type": "NodeLost", "message": words}}
        return ended_with_worker(why)

    def _preempted(self) -> Ended:
        """The part of an outcome that says that the machine's provider wants it back."""
        words = f"preempted: the machine of node {self._state.config.node} was taken back by its provider"
        error: ErrorWords = {"type": PREEMPTED, "message": words}
        return {"kind": "lost", "error": error, "exit_code": None, "signal": None}

    # -- who has what came of them -----------------------------------------------------------------------

    def claim(self, connection: Connection, call: Call, header: ClientCall | ClientClaim) -> None:
        """A client asks again for what it asked before, over a new connection."""
        call.owner = connection
        for want in call.wants.values():
            connection.send(want | {"again": True})
        self.open_yields(call)
        if call.yields is not None:
            call.yields.taken(header.get("taken", 0))
            call.yields.sent = header.get("next", 0)
            self._deliver(connection, call, call.yields)
            self.credit(call)
        elif call.outcome is not None:
            connection.send(call.outcome, call.result)

    def disown(self, connection: Connection) -> None:
        """A client is gone: what its calls come to waits here for another."""
        for call in self._register.calls.values():
            if call.owner is connection:
                call.owner = None
                call.away_since = asyncio.get_running_loop().time()
                self.credit(call)

    def starving(self) -> list[Call]:
        """Calls that wait for values of a client that is not there."""
        return [call for call in self._register.calls.values() if call.wants and self.starves(call)]

    @staticmethod
    def starves(call: Call) -> bool:
        return call.owner is None and call.outcome is None

    def unfetched(self) -> dict[str, int]:
        """Runs with results that wait for a client to come for them, and bytes of those; None needs no fetching."""
        return _sizes(call for call in self._register.calls.values() if call.owner is None)

    def unconfirmed(self, given_up: Container[str]) -> dict[str, int]:
        """Runs with results that no client has confirmed, and bytes of those; but for runs that were given up."""
        return _sizes(call for call in self._register.calls.values() if call.run not in given_up)

    def acknowledge(self, calls: dict[str, list[int] | None]) -> None:
        """A client has what came of these calls."""
        for run in [run for run, only in calls.items() if only is None]:
            record = self._register.records.get(run)
            if record is not None and record.kind == "map" and not record.over:
                record.over = True
                self._audience.broadcast({"t": "run"} | record.to_json())
        for call in self._register.acknowledge(calls):
            if call.outcome is not None and (name := call.outcome.get("file")):
                (self._state.config.spool / Path(name).name).unlink(missing_ok=True)
        if self._register.calls:
            self._state.journal.write(frame({"t": "ack", "calls": calls}))
        else:
            self._state.journal.clear()


def _sizes(calls: Iterable[Call]) -> dict[str, int]:
    """Bytes of what came of calls, by run."""
    sizes: dict[str, int] = {}
    for call in calls:
        if call.outcome is not None and call.outcome.get("kind") in WORK:
            is_none = call.outcome.get("summary") == NONE_SUMMARY and call.yields is None
            size = max(call.outcome.get("size", 0), len(call.result))  # an exception's is told by no header
            sizes[call.run] = sizes.get(call.run, 0) + (0 if is_none else size)
    return sizes
