"""Slot of one worker: its queue, its process, and the state machine that starts, sets up and replaces the process.

The process is an interpreter in its own session and process group. Later calls reuse it. It is replaced when it dies,
when it was stopped, and when its gang is broken. The slots set the phases of the ranks, which watching clients receive.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Protocol

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_lifecycle import CallLifecycle
from skyward_core.node.agent.call_registry import Call, Key
from skyward_core.node.agent.config import HANDLER_GRACE
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.gang_state import Gang, ReservedPorts
from skyward_core.node.agent.log_tailing_and_size_limits import RankLogs
from skyward_core.node.agent.worker_processes import (
    Process,
    call_on_exit,
    describe_exit,
    describe_shortage,
    signal_group,
    spawn,
)
from skyward_core.protocol.frame_codec import CANCELLED_NODE, Header, encode_json

if TYPE_CHECKING:
    from skyward_core.protocol import frame_types as frames
from skyward_core.node.agent.plugin_context_supervisor import PluginContextProcess

# seconds that a rank must be in a phase before the agent publishes the phase; most phases are shorter
MIN_PHASE_SECONDS = 0.1
# phases of a rank; "" means idle or unknown
PHASES = ("", "starting", "importing", "joining", "running", "paused", "saving")


class RankPhases:
    """Current phase of each rank, and the time since it began.

    Args:
        publish: Sends a frame to the watching clients.
    """

    def __init__(self, publish: Callable[[Header], None]) -> None:
        self._publish = publish
        # rank -> its phase, the start of the phase, and the time at which the agent kills the process (None if it does
        # not). Times are by the monotonic clock.
        self._current: dict[int, tuple[str, float, float | None]] = {}
        self._published: dict[int, tuple[str, float, float | None]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def set_phase(self, rank: int, phase: str, age: float = 0.0, left: float | None = None) -> None:
        """Set a rank's phase, which began ``age`` seconds ago. ``left``: seconds until the agent kills the process."""
        if phase not in PHASES:
            return
        now = time.monotonic()
        self._current[rank] = phase, now - age, None if left is None else now + left
        if rank not in self._timers:
            self._timers[rank] = asyncio.get_running_loop().call_later(MIN_PHASE_SECONDS, self._publish_due, rank)

    def frames(self) -> list[Header]:
        """Return the frames with the published phases, for a client that connects.

        Omits unpublished phases, because no frame would announce the end of a short phase.
        """
        return [self._frame(rank) for rank, (phase, *_) in self._published.items() if phase]

    def _publish_due(self, rank: int) -> None:
        del self._timers[rank]
        before = self._published.get(rank, ("", 0.0, None))
        (phase, _, ends), published = self._current[rank], before[0]
        if (phase, ends) == (published, before[2]) or (phase == "running" and not published):
            return  # Not published, because clients already know from the call's start that the rank is running.
        self._published[rank] = self._current[rank]
        self._publish(self._frame(rank))

    def _frame(self, rank: int) -> Header:
        (phase, since, ends), now = self._published[rank], time.monotonic()
        left = {} if ends is None else {"left": round(max(0.0, ends - now), 3)}
        return {"t": "phase", "rank": rank, "phase": phase, "age": round(now - since, 3)} | left


MAX_START_ATTEMPTS = 2
# seconds that a worker waits for its connection to be accepted if the agent has no free descriptors
CONNECT_PATIENCE = 3.0
MIN_TIMEOUT_CHECK = 0.05  # seconds between two checks of a call's timeout
UNUSABLE = "its plugins could not be entered"
# Minimum seconds for a worker to exit by itself, because its exit handlers may upload data.
EXIT_HANDLER_GRACE = 60.0
SPENT_EPOCH = -1  # value of ``Process.epoch`` for a process that left its gang and accepts no further call
# seconds that the agent delays a call's outcome for the exit of a worker that exits after the call
WORKER_EXIT_GRACE = 1.0

Step = Literal["wait", "start", "send away", "replace", "set up", "look around", "hand back", "hand over"]


def decide_step(slot: Slot, node: NodeState, apps: PluginContextProcess) -> Step:
    """Return the next step of a slot.

    Returns:
        "wait": do nothing until something happens.
        "start": start a process.
        "send away": let the process exit, because its plugins could not be entered.
        "replace": let the process exit, because its gang no longer exists.
        "set up": send the process its place in the gang and the plugins.
        "look around": take a task from the queue of another slot, if there is one.
        "hand back": return the first call of the queue, because its gang no longer exists.
        "hand over": send the first call of the queue to the process.
    """
    process = slot.process
    if process is None:
        idle = node.is_closing or (slot.failed_starts and not slot.queue) or not node.env_known.is_set()
        # First end the calls of the previous process. Otherwise a later agent that adopts the new process would assume
        # that this process runs these calls.
        return "wait" if idle or slot.running or (slot.is_task_slot and not slot.queue) else "start"
    if process.connection is None or process.kill_reason:
        return "wait"
    if process.is_unusable:
        return "wait" if slot.running else "send away"
    gang, epoch = node.gang, process.epoch
    has_left = slot.left_epoch == gang.epoch
    if epoch != gang.epoch or gang.broken_reason:
        if epoch is not None and (slot.number == 0 or epoch < gang.renewed_epoch):
            return "wait" if slot.running else "replace"
        # A process for tasks is set up only once, because it needs only the plugins and no gang. Slots other than slot
        # 0 can be set up for the first time even while the gang is broken.
        fits = epoch is None if slot.is_task_slot else not gang.broken_reason or (slot.number and epoch is None)
        if epoch != gang.epoch and gang.epoch and fits and not has_left:
            if node.has_separate_tasks and not slot.number and not slot.queue:
                return "wait"  # The rank waits for a broadcast to join the gang, because tasks run in other processes.
            # Wait until the node's plugin contexts were entered, or could not be entered.
            return "set up" if not gang.has_app_hooks or apps.is_resolved else "wait"
    if not slot.queue:
        return "wait" if slot.running or not node.registry.active else "look around"
    if not slot.has_turn:
        return "wait"
    call = slot.queue[0]
    if not gang.epoch and not (call.header.get("headless") and node.gpus_known.is_set()):
        return "wait"  # A restarted agent does not know its gang. The client sends the gang after its calls.
    if _is_stale(call, gang, has_left):
        return "hand back"
    if gang.has_hooks and (has_left or (gang.broken_reason and slot.number == 0)):
        return "wait"  # The call waits until a client starts the gang's next epoch.
    return "hand over"


def _is_stale(call: Call, gang: Gang, has_left: bool) -> bool:
    """Check whether a call is for a gang that no longer exists, or for a gang that the call's rank has left."""
    over = gang.broken_reason or has_left or call.header.get("epoch") != gang.epoch
    return call.is_gang_call and not gang.is_standalone and bool(over)


class SlotGroup(Protocol):
    """Interface of ``slot_dispatcher.SlotDispatcher`` that slots use."""

    def set_paused(self, slot: Slot, is_paused: bool) -> None: ...

    def paused_seconds(self, slot: Slot, call: Call) -> float: ...

    def break_gang(self, reason: str) -> None: ...

    def mark_gang_spent(self, reason: str) -> None: ...

    def steal_task(self, idle: Slot) -> Call | None: ...

    def stop(self, call: Call, reason: str, grace: float | None = None) -> None: ...

    def on_worker_exit(self) -> None: ...

    def separate_tasks(self) -> None: ...


class Slot:
    """Slot of one worker: its queue of calls, its process and its log files.

    Args:
        place: The rank, and the number of the slot within the rank. Slot 0 runs the gang's calls.

    Attributes:
        is_task_slot: Whether the process runs the rank's tasks because the gang's process has joined other ranks.
        twin: The rank's other slot, which takes turns with this slot.
        queue: Waiting calls.
        running: Calls that the process has received.
        left_epoch: Latest epoch that the process of this slot has left; the process accepts no further call of it.
        logs: Log files of the process.
    """

    def __init__(
        self,
        state: NodeState,
        lifecycle: CallLifecycle,
        apps: PluginContextProcess,
        phases: RankPhases,
        others: SlotGroup,
        place: tuple[int, int],
    ) -> None:
        self.rank, self.number = place
        self.is_task_slot = self.number == state.config.slots
        self.twin: Slot | None = None
        self._port: ReservedPorts | None = None
        self.capacity = state.config.capacity
        self.queue: deque[Call] = deque()
        self.running: dict[Key, Call] = {}
        self.process: Process | None = None
        self.failed_starts = 0
        self.left_epoch = SPENT_EPOCH
        self.logs = RankLogs(state.config, self.rank, self.number, self.running, lifecycle.warn_clients)
        self._state, self._lifecycle, self._plugin_contexts = state, lifecycle, apps
        self._phases, self._slot_group = phases, others

    @property
    def has_turn(self) -> bool:
        """Whether the first call of the queue may start: the rank has capacity, and its twin slot no earlier call."""
        running, twin = len(self.running), self.twin
        if twin is not None:
            running += len(twin.running)
            if twin.queue and self.queue and twin.queue[0].order < self.queue[0].order:
                return False
        return running < self.capacity

    @property
    def load(self) -> int:
        return len(self.queue) + len(self.running)

    def enqueue(self, call: Call) -> None:
        """Insert a call into the queue by its arrival order on the node, because tasks may come from another slot.

        If the call's run is cancelled, end the call instead.
        """
        call.rank = self.rank
        if self._state.registry.is_cancelled(call.run):
            call.stop_reason = "cancel"
            return self._lifecycle.finish_stopped(call)
        place = len(self.queue)
        while place and self.queue[place - 1].order > call.order:
            place -= 1
        self.queue.insert(place, call)
        self.pump()

    def pump(self) -> None:
        """Perform all steps that are due: replace the process, set the process up, send calls to the process."""
        while (step := decide_step(self, self._state, self._plugin_contexts)) != "wait":
            process = self.process
            connection = process.connection if process is not None else None
            if process is None:
                self.start()
            elif connection is None:
                return  # Return: on_connected() continues when the worker has connected.
            elif step == "hand over":
                self._hand_over(self.queue.popleft(), process, connection)
            elif step == "look around":
                # An idle slot takes a task from another slot's queue, so that the task does not wait.
                call = self._slot_group.steal_task(self)
                if call is None:
                    return
                call.rank = self.rank
                self.queue.append(call)
            elif step == "set up":
                self._set_up(process, connection)
            elif step == "hand back":
                self._lifecycle.reject_stale(self.queue.popleft())
            elif step == "replace":
                self.exit_process("its gang was replaced")
            else:
                self.exit_process(UNUSABLE)

    # -- its process -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a fresh interpreter in this slot."""
        config = self._state.config
        env = {"SKYWARD_CAPACITY": str(config.capacity), "SKYWARD_GRACE": str(config.base_grace)}
        env["SKYWARD_LOG_LIMIT"] = str(config.log_limit)
        if not config.rendezvous:
            env["SKYWARD_RENDEZVOUS"] = "0"
        if config.debug_wait:
            env["SKYWARD_DEBUG_WAIT"] = str(config.debug_wait)
        if not config.collect_metrics:
            env["SKYWARD_COLLECT_METRICS"] = "0"
        folders = [] if config.client_cwd is None else [config.cwd, config.client_cwd]
        env["SKYWARD_FOLDERS"] = encode_json([[config.cwd, *config.path_before], folders])
        if config.devices:
            env["CUDA_VISIBLE_DEVICES"] = config.devices[self.rank - config.node * config.ranks_per_node]
        if config.notices:
            env["SKYWARD_NOTICES"] = "1"
        if config.knows_env:
            env["SKYWARD_VARIABLES"] = ",".join(config.env.keys() - env.keys())
        try:
            self.logs.open()
            out, err = self.logs.descriptors
            keeps: list[int] = []
            if config.free_gpus:
                from skyward_core.node.gpu_locks_and_usage import inherited_lock_fds

                keeps = inherited_lock_fds(env["CUDA_VISIBLE_DEVICES"])
            self.process = Process(spawn(config, "worker", (self.rank, self.number), out, err, env, keeps))
            self.process.stderr_start = os.fstat(err).st_size
        except OSError as error:
            # The start failed, for example because the working folder is missing or there are no free descriptors.
            self.failed_starts += 1
            waiting, self.queue = list(self.queue), deque()
            for call in waiting:
                self._lifecycle.report_start_failure(
                    call, f"its worker could not be started: {describe_shortage(error)}"
                )
        self.set_phase("starting")

    def adopt(self, pid: int) -> None:
        """Take over a worker that an earlier agent started. Its exit is detected, but its exit status is unknown."""
        self.process = Process(pid)
        call_on_exit(pid, lambda: self.on_exit(None))

    def adopt_call(self, call: Call) -> None:
        """Take over a call that an earlier agent started. If its process has ended, the call has ended, too.

        The start time of the call is unknown, so its timeout is counted from now on.
        """
        if self.process is not None:
            self.running[call.key] = call
            self._start_timeout(call)
        else:
            self._lifecycle.on_worker_death(call, Process(0), None, self.logs)

    def on_connected(self, connection: Connection, header: frames.WorkerHello, plugins: bytes) -> None:
        """Register the connection of the slot's worker, which is either new or was started by an earlier agent."""
        process = self.process
        if process is None:
            return
        if process.connection is not None:
            process.connection.close()  # The worker reconnected, because user code closed its old connection.
        process.connection = connection
        self.failed_starts = 0
        process.handles_sigterm = header.get("handles", False)
        self.set_phase(header.get("phase", ""), header.get("age", 0.0))
        if "epoch" in header and process.epoch is None:
            process.epoch, process.is_ready, process.has_place = header["epoch"], True, True
            self._learn_gang(Gang.from_header(header, plugins))
        for call in self.running.values():
            call.worker = connection
            self._lifecycle.send_credit(call)
        for want in header.get("wants", ()):
            if (waiting := self.running.get((want["run"], want["i"]))) is not None:
                self._lifecycle.on_want(waiting, want)
        self.pump()

    def reject_unconnected(self, failure: str) -> None:
        """Kill a worker that has failed to connect to the agent for too long. Its calls end with the failure."""
        process = self.process
        if process and not process.connection and time.monotonic() > process.started_at + CONNECT_PATIENCE:
            process.failure, self.failed_starts = failure, MAX_START_ATTEMPTS
            signal_group(process.pid, signal.SIGKILL)

    def _learn_gang(self, gang: Gang) -> None:
        """Restore the agent's gang from a worker that an earlier agent started."""
        if gang.epoch > self._state.gang.epoch:
            self._state.learn_gang(gang)
            if gang.has_app_hooks and self._plugin_contexts.process is None:
                self._slot_group.break_gang(
                    "the process of its plugins' around_app ended with the agent before this one"
                )

    def set_phase(self, phase: str, age: float = 0.0, left: float | None = None) -> None:
        """Set the phase that began ``age`` seconds ago; see ``RankPhases.set_phase``. Only the phase of a rank's first
        worker is published.
        """
        self._slot_group.set_paused(self, phase == "paused")
        if self.number == 0 or self.is_task_slot:
            self._phases.set_phase(self.rank, phase, age, left)

    def _set_up(self, process: Process, connection: Connection) -> None:
        gang = self._state.gang
        process.epoch = gang.epoch
        process.is_ready, process.has_place = False, True
        info = self._state.rank_info(self.rank, self._worker_number)
        header = {"t": "setup", "epoch": gang.epoch, "info": info, "own": self._task_info()}
        header |= {"gang": self.number == 0, "apart": self._state.has_separate_tasks, "joins": gang.is_joined}
        if self.number and self._state.has_separate_tasks:
            header |= self._state.machine_share(self.rank)
        header |= {
            "hooks": gang.has_hooks,
            "apps": gang.has_app_hooks,
            "secrets": gang.secrets,
            "alone": gang.is_standalone,
        }
        if gang.has_app_hooks and self._plugin_contexts.entry_failure is not None:
            error, data = self._plugin_contexts.entry_failure
            connection.send(header | {"failed": error}, data)
        else:
            connection.send(header, gang.plugins)

    @property
    def _worker_number(self) -> int:
        return 0 if self.is_task_slot else self.number

    def _task_info(self) -> Header:
        """Return the ``InstanceInfo`` that the rank has in tasks, with a port reserved for it."""
        with suppress(OSError):
            self._port = self._port or ReservedPorts(self._state.config.address)
        return self._state.task_info(self.rank, self._worker_number, self._port.number if self._port else 0)

    def on_setup_done(self) -> None:
        """Continue after the worker has entered the plugins' contexts, or has failed to enter them."""
        if self.process is not None:
            self.process.is_ready = True
            self.set_phase("")
            for call in self.running.values():
                self._start_timeout(call)
            self._request_exit()
            if self.queue and not self.running:
                self.pump()  # Continue with queued calls, which may need another process.

    def _request_exit(self) -> None:
        """Make a worker exit that was stopped, but whose code handled SIGTERM and returned."""
        process = self.process
        if process is not None and process.kill_reason and process.connection is not None and not self.running:
            process.connection.send({"t": "exit"})

    def stop_process(self, reason: str, grace: float | None = None) -> None:
        """Send SIGTERM to the process group, and SIGKILL after the grace period.

        Args:
            reason: Why the process is stopped.
            grace: Seconds between both signals. A second call may shorten an earlier grace period. None: the result of
                :meth:`_grace`, but at least until a preempted machine ends. If the pool sets a grace period, this
                minimum applies only to stops because of the preemption.
        """
        process = self.process
        if process is None or (process.kill_reason and grace is None):
            return
        if grace is None:
            grace = self._grace(process)
            by_preemption = any(call.stop_reason == "preemption" for call in self.running.values())
            if by_preemption or self._state.config.grace is None:
                grace = max(grace, self._state.preemption_ends - time.monotonic())
        if not process.kill_reason:
            process.kill_reason = reason
            if not self._is_saving(process):
                signal_group(process.pid, signal.SIGTERM)
            self._mark_gang_broken(process, reason)
        if process.handles_sigterm:
            self.set_phase("saving", left=grace)
        self._schedule_kill(process, grace)

    def _is_saving(self, process: Process) -> bool:
        """Check whether the process still has time to save after SIGTERM. Another SIGTERM would interrupt it."""
        if process.saves_for is None or time.monotonic() >= process.saves_until:
            return False
        by_preemption = any(call.stop_reason == "preemption" for call in self.running.values())
        return by_preemption or process.saves_for <= CANCELLED_NODE

    def mark_saving(self, node: int, ends: float) -> None:
        """Record that the process gets SIGTERM because of a preemption notice, so that it has time to save.

        Args:
            node: Node of the notice; CANCELLED_NODE or less for a cancelled run.
            ends: Deadline of the notice, by the monotonic clock.
        """
        if self.process is not None:
            self.process.saves_for, self.process.saves_until = node, ends
            if any("attempt" in call.header for call in self.running.values()) or node <= CANCELLED_NODE:
                self.set_phase("saving", left=max(0.0, ends - time.monotonic()))

    @property
    def is_set_up(self) -> bool:
        """Whether the process runs a call or is ready for one."""
        return bool(self.running) or (self.process is not None and self.process.is_ready)

    def restarts_with_gang(self) -> bool:
        """Check whether the slot runs a gang's call that restarts after a preemption."""
        return any(call.is_gang_call and "attempt" in call.header for call in self.running.values())

    def _grace(self, process: Process) -> float:
        """Return the seconds between SIGTERM and SIGKILL for the process, longer if user code handles SIGTERM."""
        config = self._state.config
        return HANDLER_GRACE if config.grace is None and process.handles_sigterm else config.base_grace

    def exit_process(self, reason: str) -> None:
        """Make an idle worker leave its contexts and exit normally. Send SIGKILL after the grace period."""
        process = self.process
        grace = 0.0 if process is None else self._grace(process)
        if process is not None and process.epoch == SPENT_EPOCH:
            # The process is already exiting, with a longer grace period. Shorten the period, because the agent now
            # waits for the exit.
            self._schedule_kill(process, grace)
        if process is None or process.kill_reason:
            return
        setting_up = process.epoch is not None and not process.is_ready
        if self.running or setting_up or process.connection is None:
            self.stop_process(reason, grace)
            return
        process.kill_reason = reason
        process.connection.send({"t": "exit"})
        self._schedule_kill(process, grace)

    def _schedule_kill(self, process: Process, grace: float) -> None:
        asyncio.get_running_loop().call_later(grace, self._kill_if_current, process)

    def _mark_gang_broken(self, process: Process, cause: str) -> None:
        """Mark the gang as broken because it lost this process.

        Must be called before the outcome is sent, because the client may then start the next run at once.
        """
        if self.number == 0 and process.epoch is not None and process.epoch == self._state.gang.epoch:
            self._slot_group.break_gang(f"the worker of rank {self.rank} ended" + (f": {cause}" if cause else ""))

    def _mark_gang_spent(self, process: Process, reason: str) -> None:
        """Mark the gang as spent after a successful call whose process accepts no further call.

        Other ranks can still start their calls of the current run. The next run needs another gang.
        """
        gang = self._state.gang
        if self.number == 0 and process.epoch is not None and process.epoch == gang.epoch and not gang.is_standalone:
            process.epoch, self.left_epoch = SPENT_EPOCH, gang.epoch
            self._slot_group.mark_gang_spent(reason)

    def _kill_if_current(self, process: Process) -> None:
        if self.process is process:
            self.logs.write_message(
                f"the worker of rank {self.rank} did not exit within its grace period and is killed "
                f"({process.kill_reason}): exit handlers, threads and unwritten files are interrupted"
            )
            signal_group(process.pid, signal.SIGKILL)

    def on_exit(self, status: int | None) -> None:
        """End the slot's calls after its process has exited. ``status`` is the wait status of a child process."""
        process, self.process = self.process, None
        if process is None:
            return
        self.set_phase("")
        signal_group(process.pid, signal.SIGKILL)  # Kill child processes that the worker left behind.
        if process.connection is None and not process.kill_reason:
            self.failed_starts += 1
        if process.exited_successfully(status):
            self._mark_gang_spent(process, "a script has run in it")
        else:
            self._mark_gang_broken(process, process.kill_reason or describe_exit(status)[1])
        for call in list(self.running.values()):
            self.running.pop(call.key, None)
            if call.pending_outcome:
                self._finish_pending(call)
            else:
                self._lifecycle.on_worker_death(call, process, status, self.logs)
        self.logs.end_worker()
        self._slot_group.on_worker_exit()
        if self.failed_starts >= MAX_START_ATTEMPTS:
            waiting, self.queue = list(self.queue), deque()
            for call in waiting:
                self._lifecycle.on_worker_death(call, process, status, self.logs)
        if not self._state.is_closing:
            self._pump_waiting()

    def _pump_waiting(self) -> None:
        self.pump()
        if self.twin is not None and self.twin.queue:
            self.twin.pump()

    # -- its calls ---------------------------------------------------------------------------------------

    def _hand_over(self, call: Call, process: Process, connection: Connection) -> None:
        if not self.running:
            process.saves_for = None
        self.running[call.key] = call
        call.started_at, call.started_unix = time.monotonic(), time.time()
        call.slot, call.worker = self.number, connection
        process.is_script = bool(call.header.get("script"))
        ends = self.logs.ends
        call.log_start = self._state.registry.log_start(call, ends) if call.may_restart_unattended else ends
        if not process.has_place:
            # The gang broke before this process was set up, so the process runs only tasks until the next gang.
            process.has_place = True
            info = self._state.rank_info(self.rank, self._worker_number)
            connection.send({"t": "place", "info": info, "own": self._task_info()})
        text = encode_json(call.header)
        connection.send_acknowledging(text, call.body)
        self._lifecycle.on_call_started(call, text)
        if call.timeout is not None and (process.is_ready or process.epoch is None):
            self._start_timeout(call)

    def _start_timeout(self, call: Call) -> None:
        if call.timeout is not None and call.outcome is None:
            self._schedule_timeout(call, call.timeout, self._slot_group.paused_seconds(self, call))

    def _schedule_timeout(self, call: Call, seconds: float, paused: float) -> None:
        call.cancel_timers()
        call.timers.append(asyncio.get_running_loop().call_later(seconds, self._on_timeout, call, paused))

    def _on_timeout(self, call: Call, paused: float) -> None:
        """Stop a call whose timeout expired, or extend the timeout by the time a rank was paused."""
        now = self._slot_group.paused_seconds(self, call)
        if now > paused:
            self._schedule_timeout(call, max(now - paused, MIN_TIMEOUT_CHECK), now)
        else:
            self._slot_group.stop(call, "timeout")

    def on_outcome(self, call: Call, header: frames.WorkerOutcome, body: bytes) -> None:
        """Record the outcome that the worker sent for a call, but first wait for the exit of a worker that exits."""
        process = self.process
        killed = process.kill_reason if process is not None else ""
        spent_reason = header.get("ends", "")
        ends = (header["kind"] in ("exited", "collateral") or bool(spent_reason)) and process is not None
        if ends and process is not None:
            process.kill_reason = killed or "it is exiting"
            error = header.get("error")
            if spent_reason:
                self._mark_gang_spent(process, spent_reason)
            else:
                self._mark_gang_broken(process, error.get("message", killed) if error else killed)
            if not killed:
                self._schedule_kill(process, max(self._grace(process), EXIT_HANDLER_GRACE if spent_reason else 0.0))
        if header.pop("unusable", False) and process is not None:
            process.is_unusable = True
            self._mark_gang_broken(process, UNUSABLE)
        if header.pop("joined", False):
            if process is not None and not call.is_gang_call:
                self._mark_gang_spent(process, "a task left a process group open in its process")
            self._slot_group.separate_tasks()
        exited_by_itself = header.pop("left", False)
        saves = process is not None and process.saves_for is not None
        stopped = exited_by_itself and (saves or self._state.is_preempted)
        if exited_by_itself or (process is not None and process.is_script):
            stopped |= bool(killed or call.stop_reason)
        if stopped and header["kind"] == "returned":
            # A stopped call has no result, even if it exited with 0: many SIGTERM handlers save state and call
            # sys.exit(0).
            header["kind"], header["summary"], header["size"], body = "collateral", None, 0, b""
        header = self._lifecycle.finalize_outcome(call, header, killed, process)
        if ends:
            # The outcome waits for the worker's exit, because the output of exit handlers belongs to the run.
            call.pending_outcome = (header, body)
            call.cancel_timers()
            asyncio.get_running_loop().call_later(
                EXIT_HANDLER_GRACE if spent_reason else WORKER_EXIT_GRACE, self._finish_pending, call
            )
        else:
            self._finish(call, header, body)
            if killed:
                self._request_exit()

    def _finish_pending(self, call: Call) -> None:
        """Record the delayed outcome of a call, because its worker has exited or takes too long to exit."""
        if call.pending_outcome and call.end is None:
            self._finish(call, *call.pending_outcome)

    def _finish(self, call: Call, header: frames.WorkerOutcome, body: bytes) -> None:
        self._lifecycle.finish(call, header, body, self.logs, more=bool(self.queue))
        self.running.pop(call.key, None)
        self._pump_waiting()
