"""Handlers of clients' requests: calls, outcomes, files, leases, stops."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_lifecycle import CallLifecycle
from skyward_core.node.agent.call_registry import Call, attempt_number
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.fail_fast_without_client import FailFast
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.gang_and_queue_requests import GangRequests, Handler
from skyward_core.node.agent.log_tailing_and_size_limits import LogTail
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_slot_queue_and_process import RankPhases
from skyward_core.protocol.frame_codec import CHUNK_BYTES, VERSION, Header, encode_json
from skyward_core.protocol.frame_schemas_and_size_limits import AGENT_FEATURES, RESULTS_FETCHED, validate_client_frame
from skyward_core.protocol.node_paths import NodePaths

if TYPE_CHECKING:
    from skyward_core.node.agent.metrics_sampler_supervisor import SamplerProcess
    from skyward_core.node.agent.output_checkpoint_and_source_files import OutputFileHandler
    from skyward_core.node.agent.rank_inspection_and_debugger import DebuggerRelay, DiagnosticsHandler
    from skyward_core.protocol import frame_types as frames
from skyward_core.node.agent.file_transfer_supervisor import PeerTransfers

STOP_POLL = 0.1  # seconds between checks whether the ranks of a run's earlier attempt have ended
# seconds that a call waits for its disconnected client to send further values of a streamed argument
FEEDER_TIMEOUT = 300
MAX_SOURCE_BYTES = 1 << 20
FETCHED = "another client fetched the result while this client was disconnected"


class AgentLifecycle(Protocol):
    """Methods of ``agent.Agent`` that request handlers use."""

    def is_in_use(self) -> bool: ...

    def discard_results(self, runs: list[str], keep: float) -> None: ...

    def shut_down(self, who: str, reason: str) -> None: ...

    async def halt(self, who: str) -> None: ...

    def notice_frames(self) -> list[Header]: ...

    def on_remote_notice(self, node: int, left: float) -> None: ...

    def save_run(self, run: str, grace: float | None) -> float: ...

    def machine_sampler(self) -> SamplerProcess: ...


class ClientRequests:
    """Handlers of the requests of all clients of one agent.

    Attributes:
        gang_requests: Handlers of requests about the gang.
        transfers: Processes that exchange files with other nodes.
    """

    def __init__(
        self,
        state: NodeState,
        clients: ClientRegistry,
        lifecycle: CallLifecycle,
        slots: SlotDispatcher,
        phases: RankPhases,
        fail_fast: FailFast,
        agent: AgentLifecycle,
    ) -> None:
        self._state, self._clients, self._lifecycle = state, clients, lifecycle
        self._slots, self._phases, self._agent = slots, phases, agent
        self._registry = state.registry
        self.gang_requests = GangRequests(state, slots, clients, fail_fast)
        self.transfers = PeerTransfers(state.config)
        self._handlers: dict[str, Handler] = {
            "hello": self._hello,
            "tail": self._tail,
            "metrics": lambda client, header, _: self._agent.machine_sampler().stream(client, header.get("at", 0)),
            "call": self._call,
            "source": self._save_source,
            "claim": self._claim_run,
            "ack": self._ack,
            "credit": self._credit,
            "fed": self._feed,
            "stop": self._stop,
            "fetch": self._send_file,
            "restore": lambda connection, header, _: self._outputs.restore_file(connection, header),
            "clear": lambda connection, header, _: self._outputs.clear(connection, header),
            "written": lambda connection, header, _: self._outputs.list_files(connection, header),
            "output": lambda connection, header, _: self._outputs.send_file(connection, header),
            "peers": lambda connection, header, _: self.transfers.answer(connection, header),
            "pull": lambda connection, header, _: self.transfers.answer(connection, header),
            "drop": self._drop_blobs,
            "stacks": lambda connection, header, _: self._diagnostics.send_stacks(connection, header),
            "profile": lambda connection, header, _: self._diagnostics.send_profile(connection, header),
            "debug": lambda connection, header, _: self._debugger.answer(connection, header),
            "still": lambda _, header, __: self._slots.pause_clock.set_remote_pause(header["seconds"]),
            "use": self._use,
            "warn": self._warn,
            "ping": self._ping,
            "halt": self._halt,
            "shutdown": self._shutdown,
            **self.gang_requests.handlers,
        }

    def accept(self) -> Connection:
        """Create the connection of a new client."""
        connection = Connection(self._on_frame, self._on_lost, validate_client_frame)
        self._clients.add(connection)
        return connection

    def _on_lost(self, connection: Connection) -> None:
        self._clients.remove(connection)
        restarts = any(call.may_restart_unattended for call in self._registry.calls.values())
        self.transfers.on_client_gone(connection, retains=restarts)
        if (debugger := vars(self).get("_debugger")) is not None:
            debugger.on_client_gone(connection)
        self.gang_requests.on_client_gone(connection)
        self._lifecycle.on_client_gone(connection)
        for call in self._lifecycle.calls_awaiting_input():
            asyncio.get_running_loop().call_later(FEEDER_TIMEOUT, self._stop_unfed_call, call)

    def _stop_unfed_call(self, call: Call) -> None:
        """Stop a call whose disconnected client does not return to send values of a streamed argument.

        The waiting machines would cost money.
        """
        disconnected = asyncio.get_running_loop().time() - call.owner_lost_at
        if self._lifecycle.is_orphaned(call) and disconnected >= FEEDER_TIMEOUT:
            reason = f"the client that feeds its argument has been disconnected for {FEEDER_TIMEOUT} s"
            self._slots.stop(call, reason)

    def _on_frame(self, connection: Connection, header: frames.FromClient, body: bytes) -> None:
        handler = self._handlers.get(header["t"])
        if handler is None:
            connection.send({"t": "error", "message": f"unknown request {header['t']!r}"})
            return
        if (work := handler(connection, header, body)) is not None:
            self._state.spawn(work)

    # -- clients -----------------------------------------------------------------------------------------

    def _hello(self, connection: Connection, header: frames.ClientHello, body: bytes) -> None:
        state, client = self._state, self._clients[connection]
        client.watches = bool(header.get("watch"))
        client.renews = not header.get("observer")
        connection.peer_name = str(header.get("who", ""))[:200]
        if client.renews:
            state.lease.renew()
        connection.send(
            {
                "t": "welcome",
                "version": VERSION,
                "pool": state.config.pool,
                "node": state.config.node,
                "pid": os.getpid(),
                "now": time.time(),
                "address": state.config.address,
                "ranks_per_node": state.config.ranks_per_node,
                "epoch": state.gang.epoch,
                "phases": self._phases.frames(),
                "runs": [record.to_json() for record in self._registry.records.values()],
                "lease": state.lease.remaining(in_use=self._agent.is_in_use()),
                "idle_timeout": state.config.idle_timeout,
                "unfetched": self._lifecycle.unfetched_sizes(),
                "modules": state.module_hashes,
                "cwd": state.config.cwd,
                "notices": self._agent.notice_frames(),
                "knows": list(AGENT_FEATURES),
                "queue": self.gang_requests.queue.waiting,
            }
            | state.gang.health()
        )

    def _use(self, connection: Connection, header: frames.ClientUse, body: bytes) -> None:
        self._clients[connection].renews = True

    def _warn(self, connection: Connection, header: frames.ClientWarn, body: bytes) -> None:
        self._agent.on_remote_notice(header["node"], header["left"])

    def _ping(self, connection: Connection, header: frames.ClientPing, body: bytes) -> None:
        remaining = self._state.lease.remaining(in_use=self._agent.is_in_use())
        pong: frames.AgentPong = {"t": "pong", "lease": remaining, "unfetched": self._lifecycle.unfetched_sizes()}
        if self._registry.active:
            pong["processor"] = self._slots.processor_seconds()
        connection.send({"id": header.get("id")} | pong)

    async def _halt(self, connection: Connection, header: frames.ClientHalt, body: bytes) -> None:
        await self._agent.halt(connection.peer_name or "another client")
        connection.send({"t": "known", "id": header["id"]})

    def _shutdown(self, connection: Connection, header: frames.ClientShutdown, body: bytes) -> None:
        self._agent.discard_results(header.get("drop", []), header.get("keep", 0.0))
        self._agent.shut_down(connection.peer_name or "another client", "")

    # -- calls and outcomes ------------------------------------------------------------------------------

    def _call(self, connection: Connection, header: frames.ClientCall, body: bytes) -> None:
        number = attempt_number(header)
        if number > 1 and self._stop_earlier_attempts(header, number):
            asyncio.get_running_loop().call_later(STOP_POLL, self._call, connection, header, body)
            return
        record = self._registry.records.get(header["run"])
        if record is not None and record.attempt == number and record.epoch < header.get("epoch", 0):
            # The client sends the run again to the next gang, because no rank had begun it before the last gang broke.
            self._lifecycle.acknowledge({record.run: None})  # The client's own acknowledgement may not have arrived.
            record.outcomes = {}
        known = self._registry.calls.get((header["run"], header["i"]))
        if known is not None:
            return self._lifecycle.claim(connection, known, header)
        if record is not None and record.is_unattended and record.attempt > number:
            # Agents have restarted the run on other nodes, so the calls of this node have other indices.
            return self._claim_run(connection, {"t": "claim", "run": header["run"], "decides": True}, b"")
        node = self._state.config.node
        if record is not None and record.attempt == number and (fetched := record.outcome_of(header["i"], node)):
            # Another client has fetched the outcome while this client was disconnected. A call never runs twice.
            error: frames.ErrorKeys = {"type": RESULTS_FETCHED, "message": FETCHED}
            # "file" is omitted, because the result file was deleted after the other client fetched it.
            known_keys = {name: value for name, value in fetched.items() if name != "file"}
            connection.send(known_keys | {"kind": "collateral", "error": error, "summary": None, "size": 0})
            return
        gang = self._state.gang
        if gang.is_standalone and gang.has_app_hooks and self._slots.plugin_contexts.process is None:
            # The plugins' node contexts have ended or failed. Standalone ranks enter them again with a new epoch, which
            # concerns only this node, so no client has to coordinate it.
            gang.epoch += 1
            self._state.epochs.save(gang.epoch)
            self._slots.plugin_contexts.ensure_entered()
        call = Call(header["run"], header["i"], header, body, connection)
        slot = self._slots.pick_slot(call)  # Picking a slot may raise, so the call is registered afterwards.
        if self._registry.add(call) and len(self._clients) > 1:
            record = self._registry.records[call.run]
            self._clients.send_to_watchers({"t": "run"} | record.to_json(), skip=connection)
        slot.enqueue(call)

    def _stop_earlier_attempts(self, header: frames.ClientCall, number: int) -> bool:
        """Acknowledge the ended calls of earlier attempts, and stop the others. Return whether some still run."""
        run = header["run"]
        # For gangs, check the calls of all indices, because this node may have had another index in an earlier attempt.
        calls = self._registry.calls_of_run(run)
        earlier = [
            call for call in calls if call.attempt < number and (header.get("gang") or call.index == header["i"])
        ]
        for call in earlier:
            if call.end is not None and not call.is_superseded:
                if call.undecided is not None:
                    # The head withheld the outcome while the client was briefly disconnected.
                    self._registry.record_outcome(call, call.undecided)
                self._lifecycle.acknowledge({call.run: [call.index]})
        is_running = any(call.end is None for call in earlier)
        if is_running:  # because this node was cut off when the run restarted
            self._slots.stop_run(run, "fail-fast", breaks=False)
        return is_running

    def _claim_run(self, connection: Connection, header: frames.ClientClaim, body: bytes) -> None:
        """Deliver the outcomes of a run to a client that did not dispatch it.

        A client that decides about restarts also gets one of the calls, because it needs the run's function and
        arguments.
        """
        calls = self._registry.calls_of_run(header["run"])
        if "id" in header:
            answer: Header = {"t": "known", "id": header["id"], "calls": [call.index for call in calls]}
            if header.get("decides") and calls and calls[0].may_restart_unattended:
                connection.send(answer | {"call": calls[0].header}, calls[0].body)
            else:
                connection.send(answer)
        for call in calls:
            self._lifecycle.claim(connection, call, header)

    def _ack(self, connection: Connection, header: frames.ClientAck, body: bytes) -> None:
        """Delete the results that a client acknowledges. ``calls`` maps runs to call indices, or to null for all."""
        calls = header["calls"]
        if len(self._clients) > 1:
            calls = {run: only for run, only in calls.items() if not self._lifecycle.has_copies(connection, run)}
        self._lifecycle.acknowledge(calls)

    def _credit(self, connection: Connection, header: frames.ClientCredit, body: bytes) -> None:
        call = self._registry.calls.get((header["run"], header["i"]))
        if call is not None:
            self._lifecycle.on_values_acked(call, header["next"])

    def _feed(self, connection: Connection, header: frames.ClientFed, body: bytes) -> None:
        call = self._registry.calls.get((header["run"], header["i"]))
        if call is not None and call.owner is connection and call.worker is not None:
            call.worker.send_acknowledging(encode_json(header), body)

    def _stop(self, connection: Connection, header: frames.ClientStop, body: bytes) -> None:
        state, run = self._state, header["run"]
        reason, grace = header.get("why", "cancel"), header.get("grace")
        record = self._registry.records.get(run)
        is_late = record is not None and record.is_unattended and header.get("break", record.epoch) < record.epoch
        if is_late and reason not in ("cancel", "save"):
            return  # The client does not know yet that agents have started the run's next attempt.
        self.gang_requests.queue.notify_dropped(run, connection.peer_name)
        if reason in ("save", "growth"):
            grace = self._agent.save_run(run, grace)
            reason = reason.replace("save", "cancel")
        if reason == "cancel" and "i" not in header:
            self._registry.cancel(run)
            self._lifecycle.release_all(run)
        # A client that does not know the nodes of a run asks all nodes to stop the run.
        is_here = not state.gang.members or run in self._registry.records
        breaks = bool(header.get("break")) and header["break"] == state.gang.epoch and is_here
        self._slots.stop_run(run, reason, grace, breaks=breaks, only=header.get("i"))

    # -- files -------------------------------------------------------------------------------------------

    def _tail(self, connection: Connection, header: frames.ClientTail, body: bytes) -> None:
        client = self._clients[connection]
        if client.follower is not None:
            client.follower.cancel()  # The client requests its logs again after it failed to store some of their bytes.
        client.tail = LogTail(
            self._state.config.spool,
            connection,
            header.get("cursors", {}),
            self._slots.has_slow_calls,
            self._state.redactor,
            self._slots.mark_logs,
            self._slots.log_send_limit,
        )
        client.follower = asyncio.create_task(self._follow_logs(client.tail))

    async def _follow_logs(self, tail: LogTail) -> None:
        # Logs are sent only once the environment is known, because its secrets must be redacted.
        await self._state.env_known.wait()
        await tail.run()

    async def _send_file(self, connection: Connection, header: frames.ClientFetch, body: bytes) -> None:
        path = self._state.config.spool / Path(header["f"]).name
        at = int(header.get("at", 0))
        try:
            with open(path, "rb") as source:
                source.seek(at)
                while connection.is_open:
                    data = source.read(CHUNK_BYTES // 4)  # Larger chunks would permanently enlarge the agent's heap.
                    connection.send({"t": "data", "id": header["id"], "at": at, "last": not data}, data)
                    at += len(data)
                    if not data:
                        return
                    await connection.drain()
        except OSError as error:
            connection.send({"t": "data", "id": header["id"], "at": at, "last": True, "error": str(error)})

    @cached_property
    def _outputs(self) -> OutputFileHandler:
        from skyward_core.node.agent.output_checkpoint_and_source_files import OutputFileHandler

        return OutputFileHandler(self._state)

    def _save_source(self, connection: Connection, header: frames.ClientSource, body: bytes) -> None:
        try:
            save_source(self._state.config.paths, header["hash"], header["name"], body)
        except (OSError, ValueError) as error:
            connection.send({"t": "error", "message": f"cannot save the source of {header['name']}: {error}"})

    def _drop_blobs(self, connection: Connection, header: frames.ClientDrop, body: bytes) -> None:
        """Delete blobs to free disk space. Keep blobs that waiting calls or other clients may need."""
        alone = not any(other.renews for other in self._clients.others(connection))
        waiting = [call.header for call in self._registry.calls.values() if call.outcome is None]
        used = {call[part][0] for call in waiting for part in ("fn", "args")}
        for name in set(header["blobs"]) - used if alone else ():
            (self._state.config.blobs / Path(name).name).unlink(missing_ok=True)
        connection.send({"t": "known", "id": header["id"]})

    # -- inspection of ranks -----------------------------------------------------------------------------

    @cached_property
    def _diagnostics(self) -> DiagnosticsHandler:
        from skyward_core.node.agent.rank_inspection_and_debugger import DiagnosticsHandler

        return DiagnosticsHandler(self._state, self._slots)

    @cached_property
    def _debugger(self) -> DebuggerRelay:
        from skyward_core.node.agent.rank_inspection_and_debugger import DebuggerRelay

        return DebuggerRelay(self._state, self._slots)


def save_source(paths: NodePaths, content: str, name: str, data: bytes) -> None:
    """Save a source file unless it exists.

    Args:
        paths: Paths of the node.
        content: Content hash; also the name of the file's folder.
        name: File name.
        data: The zlib-compressed text.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If the data is damaged.
    """
    path = Path(paths.source(content, name))
    if path.exists():
        return
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, MAX_SOURCE_BYTES)
    except zlib.error as error:
        raise ValueError(f"received source {name} is damaged: {error}") from error
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = Path(f"{path}.part")
    partial.write_bytes(text)
    partial.replace(path)
