"""Assignment of calls to the worker slots of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from time import monotonic
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_lifecycle import ANNOUNCE_DELAY, CallLifecycle
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.log_tailing_and_size_limits import NO_LIMIT
from skyward_core.node.agent.plugin_context_supervisor import PluginContextProcess
from skyward_core.node.agent.worker_processes import processor_seconds, reap
from skyward_core.node.agent.worker_slot_queue_and_process import RankPhases, Slot
from skyward_core.protocol.frame_codec import AnyHeader, WireError
from skyward_core.protocol.frame_schemas_and_size_limits import validate_worker_frame

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import FromWorker, WorkerHello


EXIT_POLL = 0.01  # seconds between checks whether stopped workers have exited


class SlotDispatcher:
    """All worker slots of an agent, and the process that holds plugins' node contexts.

    Attributes:
        pause_clock: Clock of the seconds that ranks were paused at breakpoints.
        worker_event: Set when a worker connects or ends.
    """

    def __init__(self, state: NodeState, clients: ClientRegistry, lifecycle: CallLifecycle, phases: RankPhases) -> None:
        self._state, self._clients, self._lifecycle = state, clients, lifecycle
        self._workers: dict[Connection, Slot] = {}
        self.worker_event = asyncio.Event()
        self.pause_clock = PauseClock()
        self.plugin_contexts = PluginContextProcess(state, self.pump, self.break_gang)
        config = state.config
        first = config.node * config.ranks_per_node
        self.slots = [
            Slot(state, lifecycle, self.plugin_contexts, phases, self, (first + local, number))
            for local in range(config.ranks_per_node)
            for number in range(config.slots + (config.nodes * config.ranks_per_node > 1))
        ]
        for slot in self.slots:
            if slot.is_task_slot:
                first_of_rank = self.slots[self.slots.index(slot) - config.slots]
                slot.twin, first_of_rank.twin = first_of_rank, slot

    @property
    def has_live_processes(self) -> bool:
        return any(slot.process for slot in self.slots)

    def has_slow_calls(self) -> bool:
        """Check whether any call has run longer than ``ANNOUNCE_DELAY``. Outcomes carry the output of quicker calls."""
        latest = monotonic() - ANNOUNCE_DELAY
        return any((call.started_at or 0) <= latest for slot in self.slots for call in slot.running.values())

    # -- calls -------------------------------------------------------------------------------------------

    def pick_slot(self, call: Call) -> Slot:
        """Return the worker slot that will run a call.

        Raises:
            WireError: If the call is for a rank of another node.
        """
        rank = call.header.get("rank")
        if call.is_gang_call or rank is not None:
            found = [slot for slot in self.slots if slot.rank == rank and slot.number == 0]
            if found:
                twin = found[0].twin
                return (
                    twin if twin is not None and self._state.has_separate_tasks and not call.is_gang_call else found[0]
                )
            raise WireError(f"node {self._state.config.node} has no rank {rank}")
        return min(filter(self._accepts_tasks, self.slots), key=lambda slot: slot.load)

    def _accepts_tasks(self, slot: Slot) -> bool:
        return slot.number > 0 if self._state.has_separate_tasks else not slot.is_task_slot

    def separate_tasks(self) -> None:
        """Run all later tasks in separate processes instead of the gang's processes."""
        self._state.has_separate_tasks = True
        for slot in self.slots:
            for call in [each for each in slot.queue if slot.number == 0 and not each.is_gang_call]:
                slot.queue.remove(call)
                self.pick_slot(call).enqueue(call)

    def steal_task(self, idle: Slot) -> Call | None:
        """Remove a task that any slot can run from the queue of a busy or starting slot, and return the task."""
        for slot in self.slots if self._accepts_tasks(idle) else ():
            for call in slot.queue if slot is not idle else ():
                if not call.is_gang_call and call.header.get("rank") is None:
                    slot.queue.remove(call)
                    return call
        return None

    def stop(self, call: Call, reason: str, grace: float | None = None) -> None:
        """Stop one call. Remove a waiting call from its queue; stop a running call by SIGTERM, then SIGKILL.

        See ``Slot.stop_process`` for ``grace``.
        """
        # Collect exited workers first, because a worker that died by itself must not be reported as stopped.
        self.reap()
        if call.end is not None or call.pending_outcome:
            return
        call.stop_reason = call.stop_reason or reason
        for slot in self.slots:
            if slot.running.get(call.key) is call:
                # The process may also run calls of other runs, which were not cancelled, so name the run.
                slot.stop_process(f"{reason} of run {call.run}", grace)
                return
            if call in slot.queue:
                slot.queue.remove(call)
                self._lifecycle.finish_stopped(call)
                return

    def stop_run(
        self, run: str, reason: str, grace: float | None = None, *, breaks: bool, only: int | None = None
    ) -> None:
        """Stop the calls of a run on this node.

        Args:
            run: The run.
            reason: Reason for the outcome.
            grace: Seconds between SIGTERM and SIGKILL; see ``Slot.stop_process``.
            breaks: Whether the gang ends with the run.
            only: Index of the only call to stop; None for all.
        """
        if breaks:
            self.break_gang(f"run {run} failed")
        for call in self._state.registry.calls_of_run(run):
            if call.end is None and only in (None, call.index):
                self.stop(call, reason, grace)
        self.pump()

    # -- the gang ----------------------------------------------------------------------------------------

    def set_paused(self, slot: Slot, is_paused: bool) -> None:
        """Set whether a slot's rank is paused at a breakpoint."""
        self.pause_clock.set_paused(slot, is_paused)

    def paused_seconds(self, slot: Slot, call: Call) -> float:
        """Return the seconds for which a call was paused so far."""
        # Ranks of a gang wait for each other, so a pause of any rank counts for a gang call.
        return self.pause_clock.paused_seconds(ALL_PAUSES if call.is_gang_call else slot)

    def pump(self) -> None:
        """Let each slot perform the steps that are due, such as starting a process or sending it a call."""
        for slot in self.slots:
            slot.pump()

    def break_gang(self, reason: str) -> None:
        """Mark the gang as broken. A client forms the next gang."""
        gang = self._state.gang
        if gang.epoch and not gang.broken_reason and not gang.is_standalone:
            gang.broken_reason = reason
            self._clients.send_to_all(gang.status_frame())
            self.pump()

    def mark_gang_spent(self, reason: str) -> None:
        """Mark the gang as spent: running calls continue, but a client must form a new gang for further calls."""
        gang = self._state.gang
        if not gang.spent_reason and not gang.broken_reason:
            gang.spent_reason = reason
            self._clients.send_to_all(gang.status_frame())

    def processor_seconds(self) -> dict[str, float]:
        """Return for each rank with running calls the processor seconds that it has used."""
        spent: dict[str, float] = {}
        for slot in self.slots:
            if slot.running and slot.process is not None:
                rank = str(slot.rank)
                spent[rank] = spent.get(rank, 0.0) + processor_seconds(slot.process.pid)
        return spent

    # -- logs --------------------------------------------------------------------------------------------

    def log_send_limit(self, name: str) -> int:
        """Return the size up to which a log file may be sent to clients."""
        return next((slot.logs.limits[name].max_size for slot in self.slots if name in slot.logs.limits), NO_LIMIT)

    def mark_logs(self) -> None:
        """Mark new output of native code and child processes with its run. Output of Python code is already marked."""
        for slot in self.slots:
            slot.logs.write_mark()

    # -- frames of workers -------------------------------------------------------------------------------

    async def listen(self) -> Callable[[], None]:
        """Start to accept connections of workers. Return a function that stops it."""
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self._on_frame, self._on_lost, validate_worker_frame),
            self._state.config.worker_socket,
        )
        return server.close

    def reject_unconnected(self, failure: str) -> None:
        """Kill workers that cannot connect to the agent, and report the failure as the outcome of their calls."""
        for slot in self.slots:
            slot.reject_unconnected(failure)

    def _on_frame(self, connection: Connection, header: FromWorker, body: bytes) -> None:
        slot, redactor = self._workers.get(connection), self._state.redactor
        if slot is None or header["t"] == "hello":
            self._on_unassigned_frame(connection, header, body)
            return
        if header["t"] == "outcome" or header["t"] == "item":
            if redactor.has_secrets:
                fields: AnyHeader = header
                parts = ("summary", "error", "last", "numbers")
                fields |= {key: redactor.redact_json(fields[key]) for key in parts if key in fields}
                if fields.get("kind") == "raised":
                    body = redactor.redact_bytes(body)
            call = slot.running.get((header["run"], header["i"]))
            if call is not None and header["t"] == "outcome":
                slot.on_outcome(call, header, body)
            elif call is not None and header["t"] == "item":
                self._lifecycle.on_item(call, header, body)
        elif header["t"] == "want":
            if (waits := slot.running.get((header["run"], header["i"]))) is not None:
                self._lifecycle.on_want(waits, header)
        elif header["t"] == "ready":
            slot.on_setup_done()
        elif header["t"] == "phase":
            slot.set_phase(header["phase"])
        elif header["t"] == "sigterm":
            if slot.process is not None:
                slot.process.handles_sigterm = header["handles"]
        elif header["t"] == "secrets":
            redactor.add(header["values"])
        elif header["t"] == "modules":
            self._learn_modules(slot, header["files"])

    def _on_unassigned_frame(self, connection: Connection, header: FromWorker, body: bytes) -> None:
        """Handle a frame of a worker whose connection is not assigned to a slot yet."""
        around = self.plugin_contexts.process
        if header["t"] == "hello":
            self._on_hello(connection, header, body)
        elif around is not None and around.connection is connection:
            self.plugin_contexts.on_frame(header, body)
        else:
            # The agent has already rejected this worker, or the worker did not begin with a hello frame.
            connection.close()

    def _on_hello(self, connection: Connection, header: WorkerHello, body: bytes) -> None:
        pid = connection.peer_pid(header["pid"])
        for slot in self.slots:
            if slot.process is not None and slot.process.pid == pid:
                self._workers[connection] = slot
                slot.on_connected(connection, header, body)
                if not self._state.env_known.is_set() and "env" in header:
                    # A worker that an earlier agent started already has the pool's environment variables.
                    self._state.learn_env(header["env"])
                    self.start_workers()
                self._learn_modules(slot, header.get("modules", {}))
                self.worker_event.set()
                return
        if self.plugin_contexts.process is not None and self.plugin_contexts.process.pid == pid:
            self.plugin_contexts.on_connected(connection, header)
            return
        # The worker may have been started by an agent that crashed before it recorded the worker's pid.
        connection.send({"t": "exit"})
        connection.close()

    def _on_lost(self, connection: Connection) -> None:
        # A worker ends only when its process exits (SIGCHLD); a lost connection does not end the worker.
        self._workers.pop(connection, None)

    # -- modules of the user -----------------------------------------------------------------------------

    def _learn_modules(self, slot: Slot, files: dict[str, str]) -> None:
        """Record the hashes of modules that a worker has loaded, unless the worker is about to be replaced."""
        process, known = slot.process, self._state.module_hashes
        if process is None or (process.epoch is not None and process.epoch < self._state.gang.renewed_epoch):
            return
        # The hash is "" if workers have loaded different versions of a module, because the node then has no single
        # version.
        news = {name: digest if known.get(name, digest) == digest else "" for name, digest in files.items()}
        if any(known.get(name) != digest for name, digest in news.items()):
            known.update(news)
            self._clients.send_to_all({"t": "modules", "files": known})

    def forget_modules(self) -> None:
        """Clear the recorded hashes of modules, because new processes replace the workers that loaded the modules."""
        if self._state.module_hashes:
            # imported late, because few pools need it
            from skyward_core.node.agent.output_checkpoint_and_source_files import remove_compiled

            remove_compiled(self._state.config.cwd, self._state.module_hashes)
            self._state.module_hashes.clear()
        self._clients.send_to_all({"t": "modules", "files": {}})

    # -- start and end of workers ------------------------------------------------------------------------

    def start_workers(self) -> None:
        """Start a worker in each rank's first slot, once the agent knows the pool's environment variables."""
        if self._state.env_known.is_set():
            return
        self._state.env_known.set()
        for slot in self.slots:
            if slot.number == 0 and slot.process is None and not self._state.is_closing:
                slot.start()
        self.pump()

    def on_worker_exit(self) -> None:
        """Start new workers after the last worker of an earlier agent has ended, even if none sent the environment."""
        self.worker_event.set()
        if not self.has_live_processes:
            self.start_workers()

    def reap(self) -> None:
        """Reap ended processes and update their slots."""
        ended = reap()
        for slot in self.slots:
            if slot.process is not None and slot.process.pid in ended:
                slot.on_exit(ended[slot.process.pid])
        if self.plugin_contexts.process is not None and self.plugin_contexts.process.pid in ended:
            self.plugin_contexts.on_exit(ended[self.plugin_contexts.process.pid])

    async def close(self) -> None:
        """Stop all workers, then the plugins' node contexts."""
        for slot in self.slots:
            slot.exit_process("the pool is torn down")
        while self.has_live_processes:
            await asyncio.sleep(EXIT_POLL)
            self.reap()
        self.plugin_contexts.exit_process(self._state.config.base_grace)
        while self.plugin_contexts.process:
            await asyncio.sleep(EXIT_POLL)
            self.reap()


MAX_REMOTE_PAUSE = 60.0  # seconds for which a client's report about paused ranks of other nodes is valid
ALL_PAUSES = "all"


class PauseClock:
    """Clock of pauses at breakpoints: for each rank, and for the time in which at least one rank was paused."""

    def __init__(self) -> None:
        self._paused: dict[Hashable, set[Hashable]] = {}
        self._paused_since: dict[Hashable, float] = {}
        self._accumulated: dict[Hashable, float] = {}
        self._remote_timer: asyncio.TimerHandle | None = None

    def paused_seconds(self, key: Hashable) -> float:
        """Return the seconds for which ``key``, such as a slot, was paused; for ``ALL_PAUSES``, for which any was."""
        return self._accumulated.get(key, 0.0) + (
            monotonic() - self._paused_since[key] if key in self._paused_since else 0.0
        )

    def set_paused(self, key: Hashable, is_paused: bool) -> None:
        """Set whether ``key``, such as a slot, is paused."""
        for clock in (key, ALL_PAUSES):
            still = self._paused.setdefault(clock, set())
            (still.add if is_paused else still.discard)(key)
            if still:
                self._paused_since.setdefault(clock, monotonic())
            elif clock in self._paused_since:
                self._accumulated[clock] = self.paused_seconds(clock)
                del self._paused_since[clock]

    def set_remote_pause(self, seconds: float) -> None:
        """Record that a rank of another node is paused. The record expires after ``seconds`` unless renewed."""
        if self._remote_timer is not None:
            self._remote_timer.cancel()
            self._remote_timer = None
        self.set_paused("elsewhere", seconds > 0)
        if seconds > 0:
            late = min(seconds, MAX_REMOTE_PAUSE)
            self._remote_timer = asyncio.get_running_loop().call_later(late, self.set_remote_pause, 0.0)
