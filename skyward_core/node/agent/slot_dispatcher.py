"""Assignment of calls to the worker slots of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from time import monotonic
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.call_outcomes import CallLifecycle
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.connected_clients import ClientRegistry, RankPhases
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.log_tailing import NO_LIMIT
from skyward_core.node.agent.worker_processes import processor_seconds, reap
from skyward_core.node.agent.worker_slot import PluginContextProcess, Slot
from skyward_core.protocol.frame_codec import AnyHeader, WireError
from skyward_core.protocol.frame_schema import validate_worker_frame

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import FromWorker, WorkerHello


EXIT_POLL = 0.01  # seconds between looks at whether those that were told to end have


class SlotDispatcher:
    """Those of one agent, and the process that holds plugins' contexts around them.

    Attributes:
        worker_event: set when a worker has greeted or ended.
    """

    def __init__(
        self, state: NodeState, audience: ClientRegistry, lifecycle: CallLifecycle, phases: RankPhases
    ) -> None:
        self._state, self._clients, self._lifecycle = state, audience, lifecycle
        self._workers: dict[Connection, Slot] = {}
        self.worker_event = asyncio.Event()
        self._pause_clock: PauseClock | None = None  # while no rank was at a breakpoint
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

    # -- calls -------------------------------------------------------------------------------------------

    def pick_slot(self, call: Call) -> Slot:
        """Whose queue a call belongs into.

        Raises:
            WireError: it is for a rank that is not of this node.
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
        """Run tasks in other processes of the ranks than the gang's from now on."""
        self._state.has_separate_tasks = True
        for slot in self.slots:
            for call in [each for each in slot.queue if slot.number == 0 and not each.is_gang_call]:
                slot.queue.remove(call)
                self.pick_slot(call).enqueue(call)

    def steal_task(self, idle: Slot) -> Call | None:
        """Take a task that any slot can run out of the queue of one that is busy, or still starting."""
        for slot in self.slots if self._accepts_tasks(idle) else ():
            for call in slot.queue if slot is not idle else ():
                if not call.is_gang_call and call.header.get("rank") is None:
                    slot.queue.remove(call)
                    return call
        return None

    def stop(self, call: Call, reason: str, grace: float) -> None:
        """End one call: SIGTERM, the grace, SIGKILL; or take it out of its queue."""
        self.reap()  # who died by itself just now is no victim of this
        if call.outcome is not None or call.stop_reason or call.pending_outcome:
            return
        call.stop_reason = reason
        for slot in self.slots:
            if slot.running.get(call.key) is call:
                # Calls of other runs may end with it: nobody has cancelled those.
                slot.stop_process(f"{reason} of run {call.run}", grace)
                return
            if call in slot.queue:
                slot.queue.remove(call)
                self._lifecycle.finish_stopped(call)
                return

    def stop_run(self, run: str, reason: str, grace: float, *, breaks: bool, only: int | None = None) -> None:
        """End all calls of a run that are here, or one.

        Args:
            breaks: its gang ends with it.
            only: the index of the one.
        """
        if breaks:
            self.break_gang(f"run {run} failed")
        for call in self._state.registry.calls_of_run(run):
            if call.outcome is None and only in (None, call.index):
                self.stop(call, reason, grace)
        self.pump()

    # -- the gang ----------------------------------------------------------------------------------------

    def on_new_gang(self) -> None:
        """A client has formed one."""
        if self._state.has_separate_tasks:
            self.separate_tasks()

    @property
    def pause_clock(self) -> PauseClock:
        """For how long ranks stood still."""
        if self._pause_clock is None:
            self._pause_clock = PauseClock()
        return self._pause_clock

    def set_paused(self, slot: Slot, stands: bool) -> None:
        """A slot's rank stands still at a breakpoint, or goes on."""
        if stands or self._pause_clock is not None:
            self.pause_clock.set_paused(slot, stands)

    def paused_seconds(self, slot: Slot, call: Call) -> float:
        """For how many seconds what a call needs stood still so far."""
        if self._pause_clock is None:
            return 0.0
        return self._pause_clock.paused_seconds(
            "all" if call.is_gang_call else slot
        )  # ranks of a gang wait for each other

    def pump(self) -> None:
        """Have each move on."""
        for slot in self.slots:
            slot.pump()

    def break_gang(self, reason: str) -> None:
        """The gang is no more; a client forms the next one."""
        gang = self._state.gang
        if gang.epoch and not gang.broken_reason and not gang.is_standalone:
            gang.broken_reason = reason
            self._clients.send_to_all(gang.status_frame())
            self.pump()

    def mark_gang_spent(self, reason: str) -> None:
        """A process of the gang takes no other call: what it has been given goes on; a client forms the next."""
        gang = self._state.gang
        if not gang.spent_reason and not gang.broken_reason:
            gang.spent_reason = reason
            self._clients.send_to_all(gang.status_frame())

    def processor_seconds(self) -> dict[str, float]:
        """What ranks that run something have taken of the processor so far, by rank."""
        spent: dict[str, float] = {}
        for slot in self.slots:
            if slot.running and slot.process is not None:
                rank = str(slot.rank)
                spent[rank] = spent.get(rank, 0.0) + processor_seconds(slot.process.pid)
        return spent

    # -- logs --------------------------------------------------------------------------------------------

    def log_send_limit(self, name: str) -> int:
        """How much of a log file may be sent to clients."""
        return next((slot.logs.limits[name].max_size for slot in self.slots if name in slot.logs.limits), NO_LIMIT)

    def mark_logs(self) -> None:
        """Mark what native code and children have printed; what Python prints is marked already."""
        for slot in self.slots:
            slot.logs.write_mark()

    def truncate_logs(self) -> None:
        for slot in self.slots:
            slot.logs.truncate()

    # -- what workers say --------------------------------------------------------------------------------

    async def listen(self) -> Callable[[], None]:
        """Serve workers from now on; gives how to stop."""
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self._on_frame, self._on_lost, validate_worker_frame),
            self._state.config.worker_socket,
        )
        return server.close

    def _on_frame(self, connection: Connection, header: FromWorker, body: bytes) -> None:
        slot, redactor = self._workers.get(connection), self._state.redactor
        if slot is None or header["t"] == "hello":
            self._on_unassigned_frame(connection, header, body)
            return
        if header["t"] == "outcome" or header["t"] == "item":
            if redactor:
                told: AnyHeader = header
                parts = ("summary", "error", "last", "numbers")
                told |= {key: redactor.redact_json(told[key]) for key in parts if key in told}
                if told.get("kind") == "raised":
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
        elif header["t"] == "secrets":
            redactor.add(header["values"])
        elif header["t"] == "modules":
            self._learn_modules(slot, header["files"])

    def _on_unassigned_frame(self, connection: Connection, header: FromWorker, body: bytes) -> None:
        """Of who is no worker of a slot, or not yet."""
        around = self.plugin_contexts.process
        if header["t"] == "hello":
            self._on_hello(connection, header, body)
        elif around is not None and around.connection is connection:
            self.plugin_contexts.on_frame(header, body)
        else:
            connection.close()  # it was sent away, or never greeted

    def _on_hello(self, connection: Connection, header: WorkerHello, body: bytes) -> None:
        pid = connection.peer_pid(header["pid"])
        for slot in self.slots:
            if slot.process is not None and slot.process.pid == pid:
                self._workers[connection] = slot
                slot.on_connected(connection, header, body)
                self._learn_env(header)
                self._learn_modules(slot, header.get("modules", {}))
                self.worker_event.set()
                return
        if self.plugin_contexts.process is not None and self.plugin_contexts.process.pid == pid:
            self.plugin_contexts.on_connected(connection, header)
            return
        # It may be a worker that another agent started and had no time to write down.
        connection.send({"t": "exit"})
        connection.close()

    def _on_lost(self, connection: Connection) -> None:
        # The process itself is what counts; its end is seen by SIGCHLD.
        self._workers.pop(connection, None)

    def _learn_env(self, header: WorkerHello) -> None:
        """What a worker knows that an agent before this one has started."""
        if not self._state.env_known.is_set() and "env" in header:
            self._state.learn_env(header["env"])
            self.start_workers()

    # -- what of the person's own they have loaded --------------------------------------------------------

    def _learn_modules(self, slot: Slot, files: dict[str, str]) -> None:
        """A worker has loaded these, from files with these hashes; of one that is on its way out nobody cares."""
        process, known = slot.process, self._state.module_hashes
        if process is None or (process.epoch is not None and process.epoch < self._state.gang.renewed_epoch):
            return
        # Where another one has loaded something else, nobody can tell what the node has.
        news = {name: digest if known.get(name, digest) == digest else "" for name, digest in files.items()}
        if any(known.get(name) != digest for name, digest in news.items()):
            known.update(news)
            self._clients.send_to_all({"t": "modules", "files": known})

    def forget_modules(self) -> None:
        """Other processes take the place of all that have loaded some."""
        from skyward_core.node.agent import received_source_files  # few pools need it

        received_source_files.remove_compiled(self._state.config.cwd, self._state.module_hashes)
        self._state.module_hashes.clear()
        self._clients.send_to_all({"t": "modules", "files": {}})

    # -- how they begin and end --------------------------------------------------------------------------

    def start_workers(self) -> None:
        """Have a worker in every rank's slot, now that it is known what to start them with."""
        if self._state.env_known.is_set():
            return
        self._state.env_known.set()
        for slot in self.slots:
            if slot.number == 0 and slot.process is None and not self._state.is_closing:
                slot.start()
        self.pump()

    def on_worker_exit(self) -> None:
        """A worker has ended, perhaps the last one that could have told."""
        self.worker_event.set()
        if not self.has_live_processes:
            self.start_workers()

    def reap(self) -> None:
        """See which processes have ended."""
        ended = reap()
        for slot in self.slots:
            if slot.process is not None and slot.process.pid in ended:
                slot.on_exit(ended[slot.process.pid])
        if self.plugin_contexts.process is not None and self.plugin_contexts.process.pid in ended:
            self.plugin_contexts.on_exit(ended[self.plugin_contexts.process.pid])

    async def close(self) -> None:
        """Have all workers end, then what plugins have around them."""
        grace = self._state.config.grace
        for slot in self.slots:
            slot.exit_process("the pool is torn down", grace)
        while self.has_live_processes:
            await asyncio.sleep(EXIT_POLL)
            self.reap()
        self.plugin_contexts.exit_process(grace)
        while self.plugin_contexts.process:
            await asyncio.sleep(EXIT_POLL)
            self.reap()


MAX_REMOTE_PAUSE = 60.0  # seconds for which a client's word on other nodes is believed, unless it is said again
ALL_PAUSES = "all"


class PauseClock:
    """Clocks that run while something stands still: one for each, and one for all of them."""

    def __init__(self) -> None:
        self._paused: dict[Hashable, set[Hashable]] = {}
        self._paused_since: dict[Hashable, float] = {}
        self._accumulated: dict[Hashable, float] = {}
        self._remote_timer: asyncio.TimerHandle | None = None

    def paused_seconds(self, what: Hashable) -> float:
        """For how long something stood still, all in all; with ``ALL``, at least one of them."""
        return self._accumulated.get(what, 0.0) + (
            monotonic() - self._paused_since[what] if what in self._paused_since else 0.0
        )

    def set_paused(self, what: Hashable, stands: bool) -> None:
        """One of them stands still now, or goes on."""
        for clock in (what, ALL_PAUSES):
            still = self._paused.setdefault(clock, set())
            (still.add if stands else still.discard)(what)
            if still:
                self._paused_since.setdefault(clock, monotonic())
            elif clock in self._paused_since:
                self._accumulated[clock] = self.paused_seconds(clock)
                del self._paused_since[clock]

    def set_remote_pause(self, seconds: float) -> None:
        """A rank of another node does, for so many seconds unless that is said again."""
        if self._remote_timer is not None:
            self._remote_timer.cancel()
            self._remote_timer = None
        self.set_paused("elsewhere", seconds > 0)
        if seconds > 0:
            late = min(seconds, MAX_REMOTE_PAUSE)
            self._remote_timer = asyncio.get_running_loop().call_later(late, self.set_remote_pause, 0.0)
