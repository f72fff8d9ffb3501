"""One worker's slot: queue, process, state machine.

The process is a fresh interpreter in a session and process group of its own. It lives on for later calls; it is
replaced when it dies, when it was stopped, and when its gang is broken.
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

from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.call_outcomes import CallLifecycle
from skyward_core.node.agent.call_registry import Call, Key
from skyward_core.node.agent.connected_clients import RankPhases
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.gang_state import Gang, ReservedPorts
from skyward_core.node.agent.log_tailing import RankLogs
from skyward_core.node.agent.worker_processes import Process, call_on_exit, describe_exit, signal_group, spawn
from skyward_core.protocol.frame_codec import Header, encode_json
from skyward_core.protocol.node_paths import APP_LOG

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import (
        ErrorKeys,
        FromWorker,
        PluginErrorKeys,
        WorkerHello,
        WorkerOutcome,
    )


PLUGIN_CONTEXT_PLACE = (-1, 0)  # what stands for a worker's rank and number on its command line


class PluginContextProcess:
    """At most one process, started when a gang comes whose plugins ask for it, and then kept.

    Args:
        pump: called when ranks may go on.
        break_gang: told why, when what the gang's plugins had around the node is gone.

    Attributes:
        process: the process, while there is one.
        entry_failure: the outcome's error and the pickled exception, where the contexts could not be entered.
    """

    def __init__(self, state: NodeState, pump: Callable[[], None], break_gang: Callable[[str], None]) -> None:
        self._state = state
        self._pump = pump
        self._break_gang = break_gang
        self.process: Process | None = None
        self.entry_failure: tuple[ErrorKeys | PluginErrorKeys, bytes] | None = None
        self._setup: tuple[Header, bytes] | None = None  # to give to a fresh process once it has greeted
        self._fresh = False  # it has greeted, and was given nothing
        self._entering = ""

    @property
    def is_resolved(self) -> bool:
        """Whether ranks may be set up: the contexts are entered, or it is known that they cannot be."""
        return self.entry_failure is not None or (self.process is not None and self.process.is_ready)

    def ensure_entered(self) -> None:
        """Have the contexts entered for the gang's epoch: they are already, or will be."""
        config = self._state.config
        info = self._state.rank_info(config.node * config.ranks_per_node)
        self._setup = ({"t": "setup", "info": info}, self._state.gang.plugins)
        if self.process is None:
            self._spawn()
        elif self.process.kill_reason:
            self.entry_failure = None  # it is on its way out, and is followed by another
        else:
            self._send_setup()

    def _send_setup(self) -> None:
        if self._fresh and self._setup is not None and self.process and self.process.connection:
            self._fresh = False
            self.process.connection.send(*self._setup)

    def _spawn(self) -> None:
        config = self._state.config
        self.entry_failure = None
        self._fresh, self._entering = False, ""
        log = os.open(config.spool / APP_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self.process = Process(spawn(config, "plugin_context_process", PLUGIN_CONTEXT_PLACE, log, log, {}))
        except OSError as error:
            message = f"the process for around_app could not be started: {error}"
            self.entry_failure = ({"type": "PluginError", "message": message, "plugin": ""}, b"")
            self._pump()
        finally:
            os.close(log)

    def adopt(self, pid: int) -> None:
        """Take over the process that another agent started."""
        self.process = Process(pid)
        call_on_exit(pid, lambda: self.on_exit(None))

    def on_connected(self, connection: Connection, header: WorkerHello) -> None:
        """The process greets: a fresh one, or one that outlived its agent."""
        if self.process is None:
            return
        self.process.connection = connection
        self._fresh = header["state"] == "fresh"
        if header["state"] == "entered":
            self._on_entered()
        self._send_setup()

    def on_frame(self, header: FromWorker, body: bytes) -> None:
        """What the process says of its contexts."""
        if header["t"] == "entering":
            self._entering = header["plugin"]
        elif header["t"] == "entered":
            self._on_entered()
        elif header["t"] == "failed":
            self.entry_failure = (header["error"], body)
            self.exit_process(self._state.config.grace)
            self._pump()

    def _on_entered(self) -> None:
        if self.process is not None:
            self.process.is_ready = True
            self._pump()

    def exit_process(self, grace: float) -> None:
        """Let the process leave its contexts and end; SIGKILL after the grace."""
        process = self.process
        if process is None or process.kill_reason:
            return
        process.kill_reason = "it is no longer needed"
        if process.connection is not None:
            process.connection.send({"t": "exit"})
        if not process.is_ready and self.entry_failure is None:
            signal_group(process.pid, signal.SIGTERM)  # it is in user code, or has none to leave
        asyncio.get_running_loop().call_later(grace, self._kill_if_current, process)

    def _kill_if_current(self, process: Process) -> None:
        if self.process is process:
            signal_group(process.pid, signal.SIGKILL)

    def on_exit(self, status: int | None) -> None:
        """The process has ended, with this wait status if it was our child."""
        process, self.process = self.process, None
        if process is None:
            return
        signal_group(process.pid, signal.SIGKILL)  # children that outlived it
        if self._state.is_closing:
            return
        if process.kill_reason:
            if self.entry_failure is None:
                self._spawn()  # asked for again while it ended
            return
        _, words = describe_exit(status)
        if process.is_ready:
            # What the plugins promised is gone: the next epoch enters it anew.
            self._break_gang(f"the process of its plugins' around_app ended: {words}")
            return
        doing = f"plugin {self._entering} failed in around_app" if self._entering else "around_app failed"
        message = f"{doing}: {words}; {self._state.last_output(APP_LOG)}"
        self.entry_failure = ({"type": "PluginError", "message": message, "plugin": self._entering}, b"")
        self._pump()


MAX_START_ATTEMPTS = 2
MIN_TIMEOUT_CHECK = 0.05  # seconds between two looks at whether a call's time is over
UNUSABLE = "its plugins could not be entered"
# Seconds, at least, that one has to end which nobody stops: its exit handlers may upload what it logged.
EXIT_HANDLER_GRACE = 60.0
SPENT_EPOCH = -1  # the epoch of a process that has left its gang, and takes no other call
WORKER_EXIT_GRACE = 1.0  # seconds that a call's outcome waits for the end of the worker that it ended

Step = Literal["wait", "start", "send away", "replace", "set up", "look around", "hand back", "hand over"]


def decide_step(slot: Slot, node: NodeState, apps: PluginContextProcess) -> Step:
    """Return what a slot does next.

    Returns:
        "wait": nothing, until something happens.
        "start": start a process.
        "send away": let the process end, as its plugins could not be entered.
        "replace": let it end, as its gang is no more.
        "set up": give it its place in the gang, and the plugins.
        "look around": take a task that waits for another slot, if there is one.
        "hand back": the first call of the queue is for a gang that is no more.
        "hand over": give the first call of the queue to the process.
    """
    process = slot.process
    if process is None:
        idle = node.is_closing or (slot.failed_starts and not slot.queue) or not node.env_known.is_set()
        # First the end of what the last one ran is told: else who adopts the next takes it for its work.
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
        # A process for tasks needs the plugins alone, and those of a lone slot once.
        fits = epoch is None if slot.is_task_slot else not gang.broken_reason or (slot.number and epoch is None)
        if epoch != gang.epoch and gang.epoch and fits and not has_left:
            if node.has_separate_tasks and not slot.number and not slot.queue:
                return "wait"  # ranks join one another for a broadcast only
            # The plugins' contexts around the whole node come first.
            return "set up" if not gang.has_app_hooks or apps.is_resolved else "wait"
    if not slot.queue:
        return "wait" if slot.running else "look around"
    if not slot.has_turn:
        return "wait"
    call = slot.queue[0]
    if not gang.epoch and not (call.header.get("headless") and node.gpus_known.is_set()):
        return "wait"  # a client that comes to an agent which was started anew sets it up after its calls
    if _is_stale(call, gang, has_left):
        return "hand back"
    if gang.has_hooks and (has_left or (gang.broken_reason and slot.number == 0)):
        return "wait"  # for the next epoch, which a client forms when it hears of the break
    return "hand over"


def _is_stale(call: Call, gang: Gang, has_left: bool) -> bool:
    """Whether a call is for a gang that is no more, or that its rank has left."""
    over = gang.broken_reason or has_left or call.header.get("epoch") != gang.epoch
    return call.is_gang_call and not gang.is_standalone and bool(over)


class SlotGroup(Protocol):
    """What a slot asks of all of them; see ``slot_dispatcher.SlotDispatcher``."""

    def set_paused(self, slot: Slot, stands: bool) -> None: ...

    def paused_seconds(self, slot: Slot, call: Call) -> float: ...

    def break_gang(self, reason: str) -> None: ...

    def mark_gang_spent(self, reason: str) -> None: ...

    def steal_task(self, idle: Slot) -> Call | None: ...

    def stop(self, call: Call, reason: str, grace: float) -> None: ...

    def on_worker_exit(self) -> None: ...

    def separate_tasks(self) -> None: ...


class Slot:
    """A worker's place.

    Args:
        place: its rank, and its number within the rank; 0 is the gang's.

    Attributes:
        is_task_slot: its process runs the rank's tasks in place of the gang's, where that has joined other ranks.
        twin: the other one of these two, which take turns.
        queue: calls that wait for it.
        running: calls that its process has been given.
        left: the latest epoch whose process here has taken its last call.
        logs: what its process prints into.
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
        self._state, self._lifecycle, self._plugin_contexts, self._phases, self._slot_group = (
            state,
            lifecycle,
            apps,
            phases,
            others,
        )

    @property
    def has_turn(self) -> bool:
        """Whether the first call of the queue may begin, as far as the rank's other calls are concerned."""
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
        """Queue a call by the order in which it came to the node: tasks may move here from another slot."""
        call.rank = self.rank
        place = len(self.queue)
        while place and self.queue[place - 1].order > call.order:
            place -= 1
        self.queue.insert(place, call)
        self.pump()

    def pump(self) -> None:
        """Move on: replace the process where that is due, set it up, hand it what it can take."""
        while (step := decide_step(self, self._state, self._plugin_contexts)) != "wait":
            process = self.process
            connection = process.connection if process is not None else None
            if process is None:
                self.start()
            elif connection is None:
                return  # it has not greeted yet; once it has, it is looked at again
            elif step == "hand over":
                self._hand_over(self.queue.popleft(), process, connection)
            elif step == "look around":
                call = self._slot_group.steal_task(self)  # what that one runs may take for ever
                if call is None:
                    return
                call.rank = self.rank
                self.queue.append(call)
            elif step == "set up":
                self._set_up(process, connection)
            elif step == "hand back":
                self._lifecycle.reject_stale(self.queue.popleft())
            elif step == "replace":
                self.exit_process("its gang was replaced", self._state.config.grace)
            else:
                self.exit_process(UNUSABLE, self._state.config.grace)

    # -- its process -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a fresh interpreter in this slot."""
        config = self._state.config
        self.logs.open()
        out, err = self.logs.descriptors
        env = {"SKYWARD_CAPACITY": str(config.capacity), "SKYWARD_GRACE": str(config.grace)}
        if not config.rendezvous:
            env["SKYWARD_RENDEZVOUS"] = "0"
        if config.debug_wait:
            env["SKYWARD_DEBUG_WAIT"] = str(config.debug_wait)
        folders = [] if config.client_cwd is None else [config.cwd, config.client_cwd]
        env["SKYWARD_FOLDERS"] = encode_json([[config.cwd, *config.path_before], folders])
        if config.devices:
            env["CUDA_VISIBLE_DEVICES"] = config.devices[self.rank - config.node * config.ranks_per_node]
        if config.notices:
            env["SKYWARD_NOTICES"] = "1"
        if config.knows_env:
            env["SKYWARD_VARIABLES"] = ",".join(config.env.keys() - env.keys())
        try:
            keeps: list[int] = []
            if config.free_gpus:
                from skyward_core.node.gpu_locks import inherited_lock_fds

                keeps = inherited_lock_fds(env["CUDA_VISIBLE_DEVICES"])
            self.process = Process(spawn(config, "worker", (self.rank, self.number), out, err, env, keeps))
            self.process.stderr_start = os.fstat(err).st_size
        except OSError as error:  # its working folder is gone, say, or there are no descriptors left
            self.failed_starts += 1
            waiting, self.queue = list(self.queue), deque()
            for call in waiting:
                self._lifecycle.report_start_failure(call, f"its worker could not be started: {error}")
        self.set_phase("starting")

    def adopt(self, pid: int) -> None:
        """Take over a worker that another agent started: we learn of its end, but not how it ended."""
        self.process = Process(pid)
        self.process.has_run_code = True
        call_on_exit(pid, lambda: self.on_exit(None))

    def adopt_call(self, call: Call) -> None:
        """Take over a call that another agent gave to the process here; it has ended where there is none. When it
        began is not known: its time limit begins anew."""
        if self.process is not None:
            self.running[call.key] = call
            self._start_timeout(call)
        else:
            self._lifecycle.on_worker_death(call, Process(0), None, self.logs)

    def on_connected(self, connection: Connection, header: WorkerHello, plugins: bytes) -> None:
        """The slot's worker greets: a fresh one, or one that outlived the agent which started it."""
        process = self.process
        if process is None:
            return
        if process.connection is not None:
            process.connection.close()  # user code has closed its end
        process.connection = connection
        self.failed_starts = 0
        self.set_phase(header.get("phase", ""), header.get("age", 0.0))
        if "epoch" in header and process.epoch is None:
            process.epoch, process.is_ready, process.has_place = header["epoch"], True, True
            self._learn_gang(Gang.from_header(header, plugins))
        for call in self.running.values():
            call.worker = connection
            self._lifecycle.send_credit(call)
        for want in header.get("wants", ()):
            if (waits := self.running.get((want["run"], want["i"]))) is not None:
                self._lifecycle.on_want(waits, want)
        self.pump()

    def _learn_gang(self, gang: Gang) -> None:
        """Its process has outlived another agent, and belongs to a gang that this one has not heard of."""
        if gang.epoch > self._state.gang.epoch:
            self._state.learn_gang(gang)
            if gang.has_app_hooks and self._plugin_contexts.process is None:
                self._slot_group.break_gang(
                    "the process of its plugins' around_app ended with the agent before this one"
                )

    def set_phase(self, phase: str, age: float = 0.0) -> None:
        """Its process is at that since so many seconds; a rank's further workers are nobody's news."""
        self._slot_group.set_paused(self, phase == "paused")
        if self.number == 0 or self.is_task_slot:
            self._phases.set_phase(self.rank, phase, age)

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
        """Return the place of the rank in tasks, with a port that the agent keeps free for it."""
        with suppress(OSError):
            self._port = self._port or ReservedPorts(self._state.config.address)
        return self._state.task_info(self.rank, self._worker_number, self._port.number if self._port else 0)

    def on_setup_done(self) -> None:
        """Its process has entered its plugins' contexts, or failed to."""
        if self.process is not None:
            self.process.is_ready = True
            self.set_phase("")
            for call in self.running.values():
                self._start_timeout(call)
            self._request_exit()
            if self.queue and not self.running:
                self.pump()  # what waits may be for another process

    def _request_exit(self) -> None:
        """Have a worker end that we stopped, and whose code took the signal for itself and came to its own end."""
        process = self.process
        if process is not None and process.kill_reason and process.connection is not None and not self.running:
            process.connection.send({"t": "exit"})

    def stop_process(self, reason: str, grace: float) -> None:
        """SIGTERM to the process group now, SIGKILL after the grace."""
        process = self.process
        if process is None or process.kill_reason:
            return
        process.kill_reason = reason
        signal_group(process.pid, signal.SIGTERM)
        self._mark_gang_broken(process, reason)
        self._schedule_kill(process, grace)

    def exit_process(self, reason: str, grace: float) -> None:
        """Let an idle worker leave its contexts and end as Python does; SIGKILL after the grace."""
        process = self.process
        if process is not None and process.epoch == SPENT_EPOCH:
            self._schedule_kill(process, grace)  # from now on somebody does wait for it
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
        """A process is on its way out: SIGKILL if it is not after the grace."""
        asyncio.get_running_loop().call_later(grace, self._kill_if_current, process)

    def _mark_gang_broken(self, process: Process, how: str) -> None:
        """The gang lost this process. Say so before its outcome: the client may start the next run at once."""
        if self.number == 0 and process.epoch is not None and process.epoch == self._state.gang.epoch:
            self._slot_group.break_gang(f"the worker of rank {self.rank} ended" + (f": {how}" if how else ""))

    def _mark_gang_spent(self, process: Process, reason: str) -> None:
        """A call has ended well, and left a process that takes no other. The gang goes on for ranks that have not begun
        theirs; what comes next is for another one."""
        gang = self._state.gang
        if self.number == 0 and process.epoch is not None and process.epoch == gang.epoch and not gang.is_standalone:
            process.epoch, self.left_epoch = SPENT_EPOCH, gang.epoch
            self._slot_group.mark_gang_spent(reason)

    def _kill_if_current(self, process: Process) -> None:
        if self.process is process:
            self.logs.write_message(
                f"the worker of rank {self.rank} was still there at the end of its grace and is killed "
                f"({process.kill_reason}): what its exit handlers, threads and unwritten files had left to do is "
                "cut off"
            )
            signal_group(process.pid, signal.SIGKILL)

    def on_exit(self, status: int | None) -> None:
        """The process of this slot has ended, with this wait status if it was our child."""
        process, self.process = self.process, None
        if process is None:
            return
        self.set_phase("")
        signal_group(process.pid, signal.SIGKILL)  # children that outlived it
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
        self._slot_group.on_worker_exit()
        if self.failed_starts >= MAX_START_ATTEMPTS:
            waiting, self.queue = list(self.queue), deque()
            for call in waiting:
                self._lifecycle.on_worker_death(call, process, status, self.logs)
        if not self._state.is_closing:
            self._pump_waiting()

    def _pump_waiting(self) -> None:
        self.pump()
        if self.twin is not None:
            self.twin.pump()

    # -- its calls ---------------------------------------------------------------------------------------

    def _hand_over(self, call: Call, process: Process, connection: Connection) -> None:
        self.running[call.key] = call
        process.has_run_code = True
        call.started_at, call.started_unix = time.monotonic(), time.time()
        call.slot, call.worker = self.number, connection
        process.is_script = bool(call.header.get("script"))
        call.log_start = self.logs.ends
        if not process.has_place:  # it runs tasks of a gang that broke, until there is the next one
            process.has_place = True
            info = self._state.rank_info(self.rank, self._worker_number)
            connection.send({"t": "place", "info": info, "own": self._task_info()})
        text = encode_json(call.header)
        connection.send_acknowledging(text, call.body)
        self._lifecycle.on_call_started(call, text)
        if process.is_ready or process.epoch is None:
            self._start_timeout(call)

    def _start_timeout(self, call: Call) -> None:
        """Start the clock of a call's time limit."""
        if call.timeout is not None and call.outcome is None:
            self._schedule_timeout(call, call.timeout, self._slot_group.paused_seconds(self, call))

    def _schedule_timeout(self, call: Call, seconds: float, stood: float) -> None:
        call.cancel_timers()
        timer = asyncio.get_running_loop().call_later(seconds, self._on_timeout, call, stood)
        call.timers.append(timer)

    def _on_timeout(self, call: Call, stood: float) -> None:
        """Its time is over, unless some of it went by while a rank stood still."""
        now = self._slot_group.paused_seconds(self, call)
        if now > stood:
            self._schedule_timeout(call, max(now - stood, MIN_TIMEOUT_CHECK), now)
        else:
            self._slot_group.stop(call, "timeout", self._state.config.grace)

    def on_outcome(self, call: Call, header: WorkerOutcome, body: bytes) -> None:
        """Its process tells what came of a call."""
        process = self.process
        killed = process.kill_reason if process is not None else ""
        used_up = header.get("ends", "")
        ends = (header["kind"] in ("exited", "collateral") or bool(used_up)) and process is not None
        if ends and process is not None:
            process.kill_reason = killed or "it is exiting"
            error = header.get("error")
            if used_up:
                self._mark_gang_spent(process, used_up)
            else:
                self._mark_gang_broken(process, error.get("message", killed) if error else killed)
            if not killed:
                grace = self._state.config.grace
                self._schedule_kill(process, max(grace, EXIT_HANDLER_GRACE) if used_up else grace)
        if header.pop("unusable", False) and process is not None:
            process.is_unusable = True
            self._mark_gang_broken(process, UNUSABLE)
        if header.pop("joined", False):
            if process is not None and not call.is_gang_call:
                self._mark_gang_spent(process, "a task has left a process group in its process")
            self._slot_group.separate_tasks()
        left = header.pop("left", False)
        stopped = left and self._state.is_preempted
        if left or (process is not None and process.is_script):
            stopped |= bool(killed or call.stop_reason)
        if stopped and header["kind"] == "returned":
            # Many a handler saves its state and leaves by sys.exit(0): that is how it ends, and no result.
            header["kind"], header["summary"], header["size"], body = "collateral", None, 0, b""
        header = self._lifecycle.finalize_outcome(call, header, killed, process)
        if ends:
            # What its exit handlers still print and write is the run's: who hears of its end finds it there.
            call.pending_outcome = (header, body)
            call.cancel_timers()
            asyncio.get_running_loop().call_later(
                EXIT_HANDLER_GRACE if used_up else WORKER_EXIT_GRACE, self._finish_pending, call
            )
        else:
            self._finish(call, header, body)
            if killed:
                self._request_exit()

    def _finish_pending(self, call: Call) -> None:
        """Tell of a call whose worker has ended, or takes its time to."""
        if call.pending_outcome and call.outcome is None:
            self._finish(call, *call.pending_outcome)

    def _finish(self, call: Call, header: WorkerOutcome, body: bytes) -> None:
        self._lifecycle.finish(call, header, body, self.logs, more=bool(self.queue))
        self.running.pop(call.key, None)
        self._pump_waiting()
