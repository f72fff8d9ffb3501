"""Lifecycle of calls on a node: start, generator values, outcome and acknowledgement."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.generator_values import GeneratorBuffer
from skyward_core.node.agent.log_tailing_and_size_limits import RankLogs
from skyward_core.node.agent.worker_processes import (
    NO_THREAD,
    ON_SIGTERM,
    Process,
    describe_exit,
    describe_shortage,
    ended_by_sigterm,
    external_sigterm_details,
)
from skyward_core.protocol.frame_codec import (
    CANCELLED_NODE,
    NONE_SUMMARY,
    PICKLED_NONE,
    RESULT_KINDS,
    WINDOW,
    AnyHeader,
    encode_frame,
    encode_json,
)
from skyward_core.protocol.frame_schemas_and_size_limits import PREEMPTED, PREEMPTION_MESSAGE

if TYPE_CHECKING:
    from typing import TypedDict

    class ErrorFileContent(TypedDict):
        """Content of a worker's error file. (Defined only for type checkers, because creating it takes 1 ms.)"""

        message: str
        traceback: str

    from skyward_core.model.outcomes_states_and_alerts import OutcomeKind
    from skyward_core.protocol import frame_types as frames


MAX_ERROR_FILE_BYTES = 1 << 16  # maximum bytes read from a worker's error file
MAX_MESSAGE_LENGTH = 8192  # maximum characters of an error message in an outcome
GANG_BROKE = "the gang broke before the call began"


def read_error_file(path: str) -> ErrorFileContent | None:
    """Read and delete a worker's error file (``TORCHELASTIC_ERROR_FILE``).

    User code writes this file, for example by ``@record`` of torch, so the content may be invalid.

    Returns:
        The content; None if the file is missing or invalid.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_ERROR_FILE_BYTES + 1)
        os.unlink(path)  # noqa: PTH108  # the agent does not otherwise import pathlib here
        message = json.loads(data)["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, str):
        return {"message": message[:MAX_MESSAGE_LENGTH], "traceback": ""}
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None
    extra = message.get("extraInfo")
    trace = extra.get("py_callstack") if isinstance(extra, dict) else ""
    return {
        "message": message["message"][:MAX_MESSAGE_LENGTH],
        "traceback": trace if isinstance(trace, str) else "",
    }


ANNOUNCE_DELAY = 0.05  # seconds that a call runs before the agent announces its start to clients
FREQUENT_CALLS = 0.005  # seconds between the starts of two calls; closer calls are frequent


class SlowCalls:
    """Calls that workers received recently, oldest first, with one timer for all of them.

    Args:
        announce: Called with the rank and the call if a call still runs after ``ANNOUNCE_DELAY`` seconds.
    """

    def __init__(self, announce: Callable[[int, Call], None]) -> None:
        self._announce = announce
        self._started: deque[tuple[float, int, Call]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last_due = 0.0  # loop time at which the latest call is announced
        self._is_frequent = False  # whether the latest call followed its predecessor within ``FREQUENT_CALLS``

    def add(self, rank: int, call: Call) -> None:
        """Add a call that a worker has received."""
        loop = asyncio.get_running_loop()
        due = loop.time() + ANNOUNCE_DELAY
        self._is_frequent, self._last_due = due - self._last_due < FREQUENT_CALLS, due
        self._started.append((due, rank, call))
        if self._timer is None:
            self._timer = loop.call_later(ANNOUNCE_DELAY, self._announce_due)

    def on_end(self) -> None:
        """Cancel the timer if no call runs, because timers of hundreds of agents on a machine delay broadcasts.

        Frequent calls share a timer, because setting and cancelling one for each call takes longer.
        """
        self._drop_ended()
        if self._timer is not None and not self._started and not self._is_frequent:
            self._timer.cancel()
            self._timer = None

    def _drop_ended(self) -> None:
        """Drop calls at the front that have ended, to free their memory."""
        started = self._started
        while started and (started[0][2].outcome is not None or started[0][2].pending_outcome is not None):
            started.popleft()

    def _announce_due(self) -> None:
        loop, started, self._timer = asyncio.get_running_loop(), self._started, None
        self._drop_ended()
        while started:
            due, rank, call = started[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self._announce_due)
                return
            started.popleft()
            self._announce(rank, call)
            self._drop_ended()


# bytes of free disk space below which a failed call's outcome names the full disk as a likely cause
LOW_DISK_BYTES = 1 << 20


class CallLifecycle:
    """Handler of the start, generator values, outcome and acknowledgement of all calls of one agent."""

    def __init__(self, state: NodeState, clients: ClientRegistry) -> None:
        self._state = state
        self._clients = clients
        self._registry = state.registry
        self._slow = SlowCalls(self._announce_start)

    def warn_clients(self, message: str) -> None:
        """Send all clients a warning that concerns no particular call."""
        self._clients.send_to_all({"t": "error", "message": message})

    # -- start of calls ----------------------------------------------------------------------------------

    def on_call_started(self, call: Call, text: str) -> None:
        """Record in the journal that a worker has received a call. ``text`` is the call's encoded header."""
        self._state.journal.write(call.given_frame(text))
        self._slow.add(call.rank, call)

    def _announce_start(self, rank: int, call: Call) -> None:
        self._clients.wake_tails()
        header: frames.AgentBegan = {
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

    # -- values of generators ----------------------------------------------------------------------------

    def on_item(self, call: Call, header: frames.WorkerItem, body: bytes) -> None:
        """Buffer a value that a call's generator yielded, and forward it to the call's client."""
        item: AnyHeader = header | {"rank": call.rank, "node": self._state.config.node}
        self.open_value_buffer(call)
        data = encode_frame(item, body)
        if call.value_buffer is not None and call.value_buffer.add(header["seq"], header.get("file"), data):
            self._forward_value(call, call.value_buffer, data)
            item.pop("file", None)  # Clients that only watch the run get the value's summary, not the value.
            if record := self._registry.records.get(call.run):
                record.items[call.index] = item
            self._clients.send_to_watchers(item, skip=call.owner)
        if call.owner is None:
            self.send_credit(call)

    def open_value_buffer(self, call: Call) -> None:
        """Open the buffer for the values of a generator, including values that an earlier agent stored."""
        if call.value_buffer is None and call.header.get("stream"):
            call.value_buffer = GeneratorBuffer(self._state.config.spool / f"{call.run}.{call.index}.yields")

    def _forward_value(self, call: Call, yields: GeneratorBuffer, data: bytes) -> None:
        """Send a generator's new value to its client, after all earlier values."""
        if call.owner is None:
            return
        if yields.next_unsent == yields.next_number - 1 < yields.first + WINDOW:
            yields.next_unsent += 1
            call.owner.write(data)
        else:
            self._send_due_values(call.owner, call, yields)

    @staticmethod
    def _send_due_values(owner: Connection, call: Call, yields: GeneratorBuffer) -> None:
        """Send the values that fit into the client's window. After the last value send the outcome."""
        for data in yields.pop_sendable():
            owner.write(data)
        if call.outcome is not None and yields.next_unsent >= yields.next_number:
            owner.send(call.outcome, call.result)

    def on_values_acked(self, call: Call, until: int) -> None:
        """Delete all values below ``until``, which the client has acknowledged, and send further values."""
        if call.value_buffer is None:
            return
        call.value_buffer.acknowledge(until)
        if call.owner is not None and call.value_buffer.next_unsent < call.value_buffer.next_number:
            self._send_due_values(call.owner, call, call.value_buffer)
        self.send_credit(call)

    def send_credit(self, call: Call) -> None:
        """Send a generator the number of its acknowledged values, which allows it to yield more.

        While no client is connected, the agent buffers all values, so they count as acknowledged.
        """
        if call.value_buffer is not None and call.outcome is None and call.worker is not None:
            until = call.value_buffer.next_number if call.owner is None else call.value_buffer.first
            call.worker.send_acknowledging(
                encode_json({"t": "credit", "run": call.run, "i": call.index, "next": until})
            )

    def on_want(self, call: Call, header: frames.WorkerWant) -> None:
        """Forward a worker's request for values of a streamed argument to the call's client."""
        call.wanted_values[header["arg"]] = header
        if call.owner is not None:
            call.owner.send(header)

    # -- end of calls ------------------------------------------------------------------------------------

    def finalize_outcome(
        self, call: Call, header: frames.WorkerOutcome, killed: str, process: Process | None = None
    ) -> frames.WorkerOutcome:
        """Complete a worker's outcome with details that only the agent knows.

        Args:
            call: The call that ended.
            header: The outcome that the worker sent.
            killed: The reason if the agent stopped the worker, else "".
            process: The worker.
        """
        if header["kind"] == "returned":
            return header
        fields: AnyHeader = header
        preempted = self._preempted_details(process)
        if call.stop_reason:
            fields |= call.stopped_details()
        elif header["kind"] == "collateral":
            fields |= self._worker_stopped_details(killed) if killed else preempted or external_sigterm_details()
        elif preempted and header["kind"] == "exited" and header.get("exit_code") == ON_SIGTERM:
            fields |= preempted
        elif header["kind"] == "raised":
            self._add_disk_full_hint(header)
            if process is not None:
                # The error file may contain the same error. Delete the file, so that no later call reports this error.
                read_error_file(self._state.config.paths.error_file(process.pid))
        elif header["kind"] == "exited" and process is not None:
            fields |= self._read_error_details(header, process)
        return header

    def _read_error_details(
        self, ended: frames.EndDetails | frames.WorkerOutcome, process: Process
    ) -> frames.EndDetails:
        """Return how a worker ended. If user code wrote an error file, take the cause from it."""
        cause = read_error_file(self._state.config.paths.error_file(process.pid))
        kind, error = ended["kind"], ended.get("error")
        if cause is None or error is None:
            return {"kind": kind}
        described: frames.ErrorKeys = {"type": error["type"], "message": f"{cause['message']} ({error['message']})"}
        described["traceback"] = cause["traceback"]
        return {"kind": kind, "error": self._state.redactor.redact_json(described)}

    def _add_disk_full_hint(self, header: frames.WorkerOutcome) -> None:
        error, config = header.get("error"), self._state.config
        space = os.statvfs(config.folder)
        free = space.f_bavail * space.f_frsize
        if error and error.get("type", "").endswith("OSError") and free < LOW_DISK_BYTES:
            error["message"] += f" [the disk under node {config.node}'s spool is full: {config.folder}]"

    def finish(
        self,
        call: Call,
        outcome: frames.WorkerOutcome,
        body: bytes = b"",
        logs: RankLogs | None = None,
        *,
        more: bool = False,
    ) -> None:
        """Record the outcome of a call, and send it to the clients.

        Args:
            call: The call that ended.
            outcome: The outcome, as completed by ``finalize_outcome``.
            body: The pickled result or exception.
            logs: Logs of the slot that ran the call.
            more: Whether the slot has further calls, so that several outcomes can be sent together.
        """
        if call.timers:
            call.cancel_timers()
        fields: AnyHeader = outcome
        header: frames.AgentOutcome = fields  # the statements below add the keys that AgentOutcome requires
        header["rank"], header["node"] = call.rank, self._state.config.node
        header["begun"] = call.started_at is not None
        if call.attempt > 1:
            header["attempt"] = call.attempt
        if "items" in call.header and header["kind"] == "returned":
            header["items"] = call.header["items"]
        header["at"] = time.time()
        if logs is not None and call.started_at is not None:
            header["log"] = logs.range_of(call)
            self._clients.flush_logs(logs.side_file_sizes() | logs.ends)
        call.result = body
        if call.may_restart_unattended and self.is_withheld(call):
            call.undecided = header
            self._registry.records[call.run].ended_at = time.monotonic()
            self._state.journal.write(encode_frame(header, body))
        else:
            self._publish(call, header, more=more)

    def is_withheld(self, call: Call) -> bool:
        """Check whether the head must withhold an outcome, because no client is connected to decide about a restart."""
        is_undecided = call.may_restart_unattended and not call.has_client and self._state.config.node == 0
        return is_undecided and not (call.is_final or self._state.is_closing or self._registry.is_cancelled(call.run))

    def release(self, call: Call) -> None:
        """Send a withheld outcome to the clients."""
        if call.undecided is not None:
            self._publish(call, call.undecided)

    def release_all(self, run: str = "") -> None:
        """Send the withheld outcomes of a run ("" for all runs) to the clients, because the run does not restart."""
        for call in list(self._registry.calls.values()):
            if run in ("", call.run):
                call.is_final, call.is_superseded = True, False
                self.release(call)

    def restore_outcome(self, call: Call, header: frames.AgentOutcome, body: bytes) -> None:
        """Restore a call's outcome from the journal of an earlier agent."""
        call.result = body
        if self.is_withheld(call):
            call.undecided = header
        else:
            self._registry.record_outcome(call, header)

    def _publish(self, call: Call, header: frames.AgentOutcome, *, more: bool = False) -> None:
        data = encode_frame(header, call.result)
        is_journaled = call.undecided is not None
        if call.owner is not None and (
            call.value_buffer is None or call.value_buffer.next_unsent >= call.value_buffer.next_number
        ):
            # Send the outcome now, because all values of the generator are sent. Otherwise it is sent after the last
            # value.
            (call.owner.write_batched if more else call.owner.write)(data)
        self._registry.record_outcome(call, header)
        if not more:
            self._slow.on_end()
        if not is_journaled:
            self._state.journal.write(data)
        if len(self._clients) > 1 or call.owner is None:
            for reader in self._readers(call):
                reader.write(data)
            self._clients.send_to_watchers(header, skip=call.owner, soon=more)

    def on_worker_death(self, call: Call, process: Process, status: int | None, logs: RankLogs) -> None:
        """Record the outcome of a call whose worker died."""
        body = b""
        more: AnyHeader = {}
        preempted = self._preempted_details(process)
        if process.exited_successfully(status) and not call.stop_reason and not preempted:
            ended: frames.EndDetails = {"kind": "returned"}
            more, body = {"summary": NONE_SUMMARY, "size": len(PICKLED_NONE)}, PICKLED_NONE
        elif call.stop_reason:
            ended = call.stopped_details()
        elif process.kill_reason:
            ended = self._worker_stopped_details(process.kill_reason)
        elif preempted and ended_by_sigterm(status):
            ended = preempted
        else:
            fields, reason = describe_exit(status)
            last_output = self._state.last_output(logs.names[1], process.stderr_start)
            if NO_THREAD in last_output:
                reason += f": {describe_shortage(RuntimeError(NO_THREAD))}"
            if process.connection is None:
                reason = f"its worker could not start: {process.failure or f'{reason}; {last_output}'}"
            ended = {**fields, "kind": "exited", "error": {"type": "RankExit", "message": reason}}
            ended = ended | self._read_error_details(ended, process)
        header: frames.WorkerOutcome = call.make_outcome(ended) | more
        if call.started_at is not None:
            header["seconds"] = asyncio.get_running_loop().time() - call.started_at
        self.finish(call, header, body, logs)

    def report_start_failure(self, call: Call, message: str) -> None:
        """Record that no worker could be started for a call."""
        failed: frames.EndDetails = {"kind": "exited", "error": {"type": "RankExit", "message": message}}
        self.finish(call, call.make_outcome(call.stopped_details() if call.stop_reason else failed))

    def finish_stopped(self, call: Call) -> None:
        """Record the outcome of a call that was stopped before a worker received it."""
        self.finish(call, call.make_outcome(call.stopped_details()))

    def reject_stale(self, call: Call) -> None:
        """Return a call for a gang that no longer exists to the client, which sends the call again to a new gang."""
        gang = self._state.gang
        if call.may_restart_unattended and not call.has_client:
            details: frames.EndDetails = {"kind": "collateral", "error": {"type": "Stopped", "message": GANG_BROKE}}
            return self.finish(call, call.make_outcome(details))
        stale: AnyHeader = {"t": "stale", "run": call.run, "i": call.index, "kind": "stale"}
        # This entry only marks the call as ended for drop(). It is removed below.
        self._registry.record_outcome(call, stale)
        self._registry.drop(call)
        self._registry.records[call.run].outcomes.pop(call.index, None)
        if call.owner is not None:
            health = gang.health()
            reason = {"epoch": gang.epoch, "why": health.pop("broken")} | health
            call.owner.send({"t": "stale", "run": call.run, "i": call.index} | reason)

    def _worker_stopped_details(self, reason: str) -> frames.EndDetails:
        """Return error and kind for the outcome of a call whose worker the agent stopped."""
        if self._state.is_closing and not self._state.end_frame:  # Only this agent ends, while the pool continues.
            if preempted := self._preempted_details(None):
                return preempted
            message = f"the agent of node {self._state.config.node} was ended on its machine"
            return {"kind": "lost", "error": {"type": "NodeLost", "message": message}}
        return {"kind": "collateral", "error": {"type": "Stopped", "message": f"its worker was stopped: {reason}"}}

    def _preempted_details(self, process: Process | None) -> frames.EndDetails | None:
        """Return error and kind for the outcome of a call that a preemption ended; None without a preemption.

        Either this machine is preempted, or the run saves its work because another machine is preempted.
        """
        node: int | None = self._state.config.node
        kind: OutcomeKind = "lost"
        if not self._state.is_preempted:
            node, kind = None if process is None else process.saves_for, "collateral"
        if node is None or node <= CANCELLED_NODE:
            return None
        error: frames.ErrorKeys = {"type": PREEMPTED, "message": PREEMPTION_MESSAGE.format(node=node)}
        return {"kind": kind, "error": error, "exit_code": None, "signal": None}

    # -- delivery ----------------------------------------------------------------------------------------

    def claim(self, connection: Connection, call: Call, header: frames.ClientCall | frames.ClientClaim) -> None:
        """Deliver a call's outcome to a client that requests it over a new connection.

        While the client that dispatched the call is connected, it remains the call's owner. All other clients then
        get copies of the outcomes of this attempt and of later attempts.
        """
        self.open_value_buffer(call)
        record = self._registry.records.get(call.run)
        is_shared = header["t"] == "claim" and not header.get("decides") and call.value_buffer is None
        other = None if call.owner is connection else call.owner
        is_reader = is_shared or (call.value_buffer is None and not call.is_owner_deciding)
        if other is not None and record is not None and is_reader:
            record.readers[connection if is_shared else other] = None
        if is_shared and other is not None:
            if call.outcome is not None and not call.is_superseded:
                connection.send(call.outcome, call.result)
            return
        call.is_owner_deciding = header["t"] == "call" or header.get("decides", False)
        if call.is_owner_deciding and not call.is_superseded:
            # The claiming client gets the withheld outcome below, and decides whether the run restarts.
            self.release(call)
        call.owner = connection
        for want in call.wanted_values.values():
            connection.send(want | {"again": True})
        if call.value_buffer is not None:
            call.value_buffer.acknowledge(header.get("taken", 0))
            call.value_buffer.next_unsent = header.get("next", 0)
            self._send_due_values(connection, call, call.value_buffer)
            self.send_credit(call)
        elif call.outcome is not None and not call.is_superseded:
            connection.send(call.outcome, call.result)

    def on_client_gone(self, connection: Connection) -> None:
        """Buffer the outcomes of a disconnected client's calls until a client claims them."""
        for record in self._registry.records.values():
            record.readers.pop(connection, None)
        for call in self._registry.calls.values():
            if call.owner is connection:
                call.owner = None
                call.owner_lost_at = asyncio.get_running_loop().time()
                self.send_credit(call)
                if call.outcome is not None and self.is_withheld(call):
                    # Withhold the outcome again: without its client, the head may have to decide whether the run
                    # restarts.
                    self._registry.withdraw_outcome(call)
                elif readers := self._readers(call):
                    self.claim(readers[-1], call, {"t": "claim", "run": call.run})

    def _readers(self, call: Call) -> list[Connection]:
        record = self._registry.records.get(call.run)
        if record is None or not record.readers:
            return []
        return [each for each in record.readers if each is not call.owner]

    def calls_awaiting_input(self) -> list[Call]:
        """Return the running calls whose disconnected client must send further values of a streamed argument."""
        return [call for call in self._registry.calls.values() if call.wanted_values and self.is_orphaned(call)]

    @staticmethod
    def is_orphaned(call: Call) -> bool:
        return call.owner is None and call.outcome is None

    def unfetched_sizes(self) -> dict[str, int]:
        """Return for each run the bytes of results that no connected client owns. None as a result counts as 0."""
        return _result_sizes(call for call in self._registry.calls.values() if call.owner is None)

    def unconfirmed_sizes(self, abandoned: Container[str]) -> dict[str, int]:
        """Return for each run the bytes of results that no client has confirmed. Omits runs with discarded results."""
        return _result_sizes(call for call in self._registry.calls.values() if call.run not in abandoned)

    def has_copies(self, connection: Connection, run: str) -> bool:
        """Check whether a client has only copies of a run's results, so that it cannot acknowledge them."""
        return any(
            connection in self._readers(call) or (call.is_owner_deciding and call.owner not in (None, connection))
            for call in self._registry.calls_of_run(run)
        )

    def acknowledge(self, calls: dict[str, list[int] | None]) -> None:
        """Delete the results that a client has confirmed to have received."""
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
    """Return for each run the size of its calls' results in bytes."""
    sizes: dict[str, int] = {}
    for call in calls:
        if call.outcome is not None and call.outcome.get("kind") in RESULT_KINDS:
            is_none = call.outcome.get("summary") == NONE_SUMMARY and call.value_buffer is None
            size = max(call.outcome.get("size", 0), len(call.result))  # An outcome that is an exception has no "size".
            sizes[call.run] = sizes.get(call.run, 0) + (0 if is_none else size)
    return sizes
