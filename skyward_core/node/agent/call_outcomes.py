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
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.generator_values import GeneratorBuffer
from skyward_core.node.agent.log_tailing import RankLogs
from skyward_core.node.agent.worker_processes import (
    ON_SIGTERM,
    Process,
    describe_exit,
    ended_by_sigterm,
    external_sigterm_details,
    worker_stopped_details,
)
from skyward_core.protocol.frame_codec import (
    NONE_SUMMARY,
    PICKLED_NONE,
    RESULT_KINDS,
    WINDOW,
    AnyHeader,
    encode_frame,
    encode_json,
)
from skyward_core.protocol.frame_schema import PREEMPTED

if TYPE_CHECKING:
    from typing import TypedDict

    class ErrorFileContent(TypedDict):
        """What stands in one. (To make such a type takes each agent's start a millisecond.)"""

        message: str
        traceback: str

    from skyward_core.protocol.frame_types import (
        AgentBegan,
        AgentOutcome,
        ClientCall,
        ClientClaim,
        EndDetails,
        ErrorKeys,
        WorkerItem,
        WorkerOutcome,
        WorkerWant,
    )


MAX_ERROR_FILE_BYTES = 1 << 16  # bytes that are read of one
MAX_MESSAGE_LENGTH = 8192  # characters


def read_error_file(path: str) -> ErrorFileContent | None:
    """Read such a file, once; None where there is none, or nothing that makes sense.

    It is a person's own code that writes it, and may write anything.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_ERROR_FILE_BYTES + 1)
        os.unlink(path)  # noqa: PTH108  an agent has no need of pathlib here
        told = json.loads(data)["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(told, str):
        return {"message": told[:MAX_MESSAGE_LENGTH], "traceback": ""}
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return None
    more = told.get("extraInfo")
    trace = more.get("py_callstack") if isinstance(more, dict) else ""
    return {
        "message": told["message"][:MAX_MESSAGE_LENGTH],
        "traceback": trace if isinstance(trace, str) else "",
    }


ANNOUNCE_DELAY = 0.05  # seconds after which a call that still runs is announced as running


class SlowCalls:
    """Calls that were given to workers just now, in that order, with one timer for them all.

    Args:
        announce: told of each that still runs a moment later, and its rank.
    """

    def __init__(self, announce: Callable[[int, Call], None]) -> None:
        self._announce = announce
        self._started: deque[tuple[float, int, Call]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, rank: int, call: Call) -> None:
        """A worker was given a call."""
        loop = asyncio.get_running_loop()
        self._drop_ended()
        self._started.append((loop.time() + ANNOUNCE_DELAY, rank, call))
        if self._timer is None:
            self._timer = loop.call_later(ANNOUNCE_DELAY, self._announce_due)

    def _drop_ended(self) -> None:
        """Let go of those that have ended meanwhile: they are an agent's memory."""
        given = self._started
        while given and (given[0][2].outcome is not None or given[0][2].pending_outcome is not None):
            given.popleft()

    def _announce_due(self) -> None:
        loop = asyncio.get_running_loop()
        now, given = loop.time(), self._started
        self._timer = None
        self._drop_ended()
        while given:
            due, rank, call = given[0]
            if due > now:
                self._timer = loop.call_at(due, self._announce_due)
                return
            given.popleft()
            self._announce(rank, call)
            self._drop_ended()


LOW_DISK_BYTES = 1 << 20  # bytes below which a full disk is named as the likely cause of a failure


class CallLifecycle:
    """One agent's."""

    def __init__(self, state: NodeState, audience: ClientRegistry) -> None:
        self._state = state
        self._clients = audience
        self._registry = state.registry
        self._slow = SlowCalls(self._announce_start)

    def warn_clients(self, words: str) -> None:
        """Tell all clients of something that hurts no call."""
        self._clients.send_to_all({"t": "error", "message": words})

    # -- how they begin ----------------------------------------------------------------------------------

    def on_call_started(self, call: Call, text: str) -> None:
        """A worker has been given a call, whose header is ``text``; it begins while that is written down."""
        self._state.journal.write(call.given_frame(text))
        self._slow.add(call.rank, call)

    def _announce_start(self, rank: int, call: Call) -> None:
        self._clients.wake_tails()
        header: AgentBegan = {
            "t": "began",
            "run": call.run,
            "i": call.index,
            "rank": rank,
            "node": self._state.config.node,
            "log": call.log_start,
            "at": call.started_unix,
        }
        if record := self._registry.records.get(call.run):
            record.began[call.index] = header
        if call.owner is not None:
            call.owner.send(header)
        self._clients.send_to_watchers(header | {"name": call.header.get("name")}, skip=call.owner)

    # -- what generators yield ---------------------------------------------------------------------------

    def on_item(self, call: Call, header: WorkerItem, body: bytes) -> None:
        """A generator has yielded a value."""
        told: AnyHeader = header | {"rank": call.rank, "node": self._state.config.node}
        self.open_value_buffer(call)
        data = encode_frame(told, body)
        if call.value_buffer is not None and call.value_buffer.add(header["seq"], header.get("file"), data):
            self._forward_value(call, call.value_buffer, data)
            told.pop("file", None)  # whoever only watches gets no values
            if record := self._registry.records.get(call.run):
                record.items[call.index] = told
            self._clients.send_to_watchers(told, skip=call.owner)
        if call.owner is None:
            self.send_credit(call)

    def open_value_buffer(self, call: Call) -> None:
        """Have a place for what a generator yields, with what an agent before this one kept there."""
        if call.value_buffer is None and call.header.get("stream"):
            call.value_buffer = GeneratorBuffer(self._state.config.spool / f"{call.run}.{call.index}.yields")

    def _forward_value(self, call: Call, yields: GeneratorBuffer, data: bytes) -> None:
        """A generator's new value, to who reads them; behind those that it has not been sent yet."""
        if call.owner is None:
            return
        if yields.next_unsent == yields.next_number - 1 < yields.first + WINDOW:
            yields.next_unsent += 1
            call.owner.write(data)
        else:
            self._send_due_values(call.owner, call, yields)

    @staticmethod
    def _send_due_values(owner: Connection, call: Call, yields: GeneratorBuffer) -> None:
        """Send a reader what its window has room for, and the outcome behind the last of it."""
        for data in yields.pop_sendable():
            owner.write(data)
        if call.outcome is not None and yields.next_unsent >= yields.next_number:
            owner.send(call.outcome, call.result)

    def on_values_acked(self, call: Call, until: int) -> None:
        """Its reader has all values below a number."""
        if call.value_buffer is None:
            return
        call.value_buffer.acknowledge(until)
        if call.owner is not None and call.value_buffer.next_unsent < call.value_buffer.next_number:
            self._send_due_values(call.owner, call, call.value_buffer)
        self.send_credit(call)

    def send_credit(self, call: Call) -> None:
        """Tell a generator how far its reader is; where nobody reads, its values wait here, and it goes on."""
        if call.value_buffer is not None and call.outcome is None and call.worker is not None:
            until = call.value_buffer.next_number if call.owner is None else call.value_buffer.first
            call.worker.send_acknowledging(
                encode_json({"t": "credit", "run": call.run, "i": call.index, "next": until})
            )

    def on_want(self, call: Call, header: WorkerWant) -> None:
        """A call waits for values that its client feeds: the client of now, or the next one, is told."""
        call.wanted_values[header["arg"]] = header
        if call.owner is not None:
            call.owner.send(header)

    # -- how they end ------------------------------------------------------------------------------------

    def finalize_outcome(
        self, call: Call, header: WorkerOutcome, killed: str, process: Process | None = None
    ) -> WorkerOutcome:
        """An outcome as its worker tells it, with what only the agent knows.

        Args:
            process: the worker.
            killed: why the agent had ended the worker, where it had.
        """
        told: AnyHeader = header
        taken_back = self._state.is_preempted
        if call.stop_reason and header["kind"] != "returned":
            told |= call.stopped_details()
        elif header["kind"] == "collateral":
            nobody = self._preempted_details() if taken_back else external_sigterm_details()
            told |= self._worker_stopped_details(killed) if killed else nobody
        elif taken_back and header["kind"] == "exited" and header.get("exit_code") == ON_SIGTERM:
            told |= self._preempted_details()
        elif header["kind"] == "raised":
            self._add_disk_full_hint(header)
            if process is not None:
                read_error_file(
                    self._state.config.paths.error_file(process.pid)
                )  # says the same, and is no later call's
        elif header["kind"] == "exited" and process is not None:
            told |= self._read_error_details(header, process)
        return header

    def _read_error_details(self, ended: EndDetails | WorkerOutcome, process: Process) -> EndDetails:
        """How a worker ended, with the cause that user code has written down for it."""
        said = read_error_file(self._state.config.paths.error_file(process.pid))
        kind, error = ended["kind"], ended.get("error")
        if said is None or error is None:
            return {"kind": kind}
        words: ErrorKeys = {"type": error["type"], "message": f"{said['message']} ({error['message']})"}
        words["traceback"] = said["traceback"]
        return {"kind": kind, "error": self._state.redactor.redact_json(words)}

    def _add_disk_full_hint(self, header: WorkerOutcome) -> None:
        error, config = header.get("error"), self._state.config
        space = os.statvfs(config.folder)
        free = space.f_bavail * space.f_frsize
        if error and error.get("type", "").endswith("OSError") and free < LOW_DISK_BYTES:
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
        call.cancel_timers()
        heard: AnyHeader = told
        header: AgentOutcome = heard  # it has what it lacks of one in a moment
        header["rank"] = call.rank
        header["node"] = self._state.config.node
        header["begun"] = call.started_at is not None
        if "items" in call.header and header["kind"] == "returned":
            header["items"] = call.header["items"]
        header["at"] = time.time()
        if logs is not None and call.started_at is not None:
            header["log"] = log = logs.range_of(call)
            ends = {name: end for name, (_, end) in log.items()}
            self._clients.flush_logs(logs.side_file_sizes() | ends)
        call.result = body
        data = encode_frame(header, body)
        if call.owner is not None and (
            call.value_buffer is None or call.value_buffer.next_unsent >= call.value_buffer.next_number
        ):
            # Else it follows the last of the values.
            (call.owner.write_batched if more else call.owner.write)(data)
        self._registry.record_outcome(call, header)
        self._state.journal.write(data)
        self._clients.send_to_watchers(header, skip=call.owner, soon=more)

    def on_worker_death(self, call: Call, process: Process, status: int | None, logs: RankLogs) -> None:
        """The worker of a call ended before the call did."""
        body = b""
        more: AnyHeader = {}
        taken_back = self._state.is_preempted
        if process.exited_successfully(status) and not call.stop_reason and not taken_back:
            ended: EndDetails = {"kind": "returned"}
            more, body = {"summary": NONE_SUMMARY, "size": len(PICKLED_NONE)}, PICKLED_NONE
        elif call.stop_reason:
            ended = call.stopped_details()
        elif process.kill_reason:
            ended = self._worker_stopped_details(process.kill_reason)
        elif taken_back and ended_by_sigterm(status):
            ended = self._preempted_details()
        else:
            fields, words = describe_exit(status)
            if process.connection is None:
                said = self._state.last_output(logs.names[1], process.stderr_start)
                words = f"its worker could not start: {words}; {said}"
            ended = {**fields, "kind": "exited", "error": {"type": "RankExit", "message": words}}
            ended = ended | self._read_error_details(ended, process)
        header: WorkerOutcome = call.make_outcome(ended) | more
        if call.started_at is not None:
            header["seconds"] = asyncio.get_running_loop().time() - call.started_at
        self.finish(call, header, body, logs)

    def report_start_failure(self, call: Call, words: str) -> None:
        """There is no worker for a call, and none to be had."""
        failed: EndDetails = {"kind": "exited", "error": {"type": "RankExit", "message": words}}
        self.finish(call, call.make_outcome(call.stopped_details() if call.stop_reason else failed))

    def finish_stopped(self, call: Call) -> None:
        """A call was stopped before a worker had it."""
        self.finish(call, call.make_outcome(call.stopped_details()))

    def reject_stale(self, call: Call) -> None:
        """A gang call whose gang is no more was not begun: hand it back for the client to start anew."""
        gang = self._state.gang
        stale: AnyHeader = {"t": "stale", "run": call.run, "i": call.index, "kind": "stale"}
        self._registry.record_outcome(call, stale)  # in the place of an outcome, until it is dropped
        self._registry.drop(call)
        self._registry.records[call.run].outcomes.pop(call.index, None)
        if call.owner is not None:
            health = gang.health()
            reason = {"epoch": gang.epoch, "why": health.pop("broken")} | health
            call.owner.send({"t": "stale", "run": call.run, "i": call.index} | reason)

    def _worker_stopped_details(self, reason: str) -> EndDetails:
        """The part of an outcome that says why we ended its worker."""
        if self._state.is_closing and not self._state.end_frame:  # nobody ends the pool: only this node leaves it
            if self._state.is_preempted:
                return self._preempted_details()
            words = f"the agent of node {self._state.config.node} was ended on its machine"
            return {"kind": "lost", "error": {"type": "NodeLost", "message": words}}
        return worker_stopped_details(reason)

    def _preempted_details(self) -> EndDetails:
        """The part of an outcome that says that the machine's provider wants it back."""
        words = f"preempted: the machine of node {self._state.config.node} was taken back by its provider"
        error: ErrorKeys = {"type": PREEMPTED, "message": words}
        return {"kind": "lost", "error": error, "exit_code": None, "signal": None}

    # -- who has what came of them -----------------------------------------------------------------------

    def claim(self, connection: Connection, call: Call, header: ClientCall | ClientClaim) -> None:
        """A client asks again for what it asked before, over a new connection."""
        call.owner = connection
        for want in call.wanted_values.values():
            connection.send(want | {"again": True})
        self.open_value_buffer(call)
        if call.value_buffer is not None:
            call.value_buffer.acknowledge(header.get("taken", 0))
            call.value_buffer.next_unsent = header.get("next", 0)
            self._send_due_values(connection, call, call.value_buffer)
            self.send_credit(call)
        elif call.outcome is not None:
            connection.send(call.outcome, call.result)

    def on_client_gone(self, connection: Connection) -> None:
        """A client is gone: what its calls come to waits here for another."""
        for call in self._registry.calls.values():
            if call.owner is connection:
                call.owner = None
                call.owner_lost_at = asyncio.get_running_loop().time()
                self.send_credit(call)

    def calls_awaiting_input(self) -> list[Call]:
        """Calls that wait for values of a client that is not there."""
        return [call for call in self._registry.calls.values() if call.wanted_values and self.is_orphaned(call)]

    @staticmethod
    def is_orphaned(call: Call) -> bool:
        return call.owner is None and call.outcome is None

    def unfetched_sizes(self) -> dict[str, int]:
        """Runs with results that wait for a client to come for them, and bytes of those; None needs no fetching."""
        return _result_sizes(call for call in self._registry.calls.values() if call.owner is None)

    def unconfirmed_sizes(self, given_up: Container[str]) -> dict[str, int]:
        """Runs with results that no client has confirmed, and bytes of those; but for runs that were given up."""
        return _result_sizes(call for call in self._registry.calls.values() if call.run not in given_up)

    def acknowledge(self, calls: dict[str, list[int] | None]) -> None:
        """A client has what came of these calls."""
        for run in [run for run, only in calls.items() if only is None]:
            record = self._registry.records.get(run)
            if record is not None and record.kind == "map" and not record.over:
                record.over = True
                self._clients.send_to_watchers({"t": "run"} | record.to_json())
        for call in self._registry.acknowledge(calls):
            if call.outcome is not None and (name := call.outcome.get("file")):
                (self._state.config.spool / Path(name).name).unlink(missing_ok=True)
        if self._registry.calls:
            self._state.journal.write(encode_frame({"t": "ack", "calls": calls}))
        else:
            self._state.journal.clear()


def _result_sizes(calls: Iterable[Call]) -> dict[str, int]:
    """Bytes of what came of calls, by run."""
    sizes: dict[str, int] = {}
    for call in calls:
        if call.outcome is not None and call.outcome.get("kind") in RESULT_KINDS:
            is_none = call.outcome.get("summary") == NONE_SUMMARY and call.value_buffer is None
            size = max(call.outcome.get("size", 0), len(call.result))  # an exception's is told by no header
            sizes[call.run] = sizes.get(call.run, 0) + (0 if is_none else size)
    return sizes
