"""The workers of a node: one slot per worker process, with a queue of its own.

A slot's process is a fresh interpreter in a session and process group of its own. It lives on for later calls; it
is replaced when it dies, when it was stopped, and when its gang is broken.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from ...wire.frames import Header, encoded
from ...wire.marks import AFTER, Marker
from .calls import Call
from .connection import Connection
from .log_limit import LogLimit
from .processes import signal_group
from .spawn import spawn, when_ended

if TYPE_CHECKING:
    from .agent import Agent

START_ATTEMPTS = 2
KEPT_OF_EMPTIED = 1 << 20  # bytes since a log was emptied that are taken to its end


class Process:
    """One worker process. ``epoch`` is the gang epoch it was set up for, None while it is fresh."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.says_from = 0  # where in the file of standard error its own lines begin
        self.connection: Connection | None = None
        self.epoch: int | None = None
        self.placed = False  # it knows which rank it is, of how many
        self.ready = False  # its plugins' contexts are entered (or failed to be)
        self.killed = ""  # why we ended it, when we did
        self.unusable = False  # its plugins' contexts could not be entered, and a call has told so


class Slot:
    """A worker's place: rank, number within the rank (0 is the gang's), queue, and the process now in it."""

    def __init__(self, agent: Agent, rank: int, number: int) -> None:
        self.agent = agent
        self.rank = rank
        self.local_rank = rank - agent.config.node * agent.config.ranks_per_node
        self.number = number
        self.queue: deque[Call] = deque()
        self.running: dict[tuple[str, int], Call] = {}
        self.process: Process | None = None
        self.failed_starts = 0
        name = f"r{rank:03d}" if number == 0 else f"r{rank:03d}.{number}"
        self.log_files = [name + ".out", name + ".err"]
        self._metrics = name + ".metrics"
        self._spool = str(agent.config.spool)
        self._marks = name + ".marks"
        self._marker: Marker | None = None
        self._logs: dict[str, int] = {}
        self._log_ends: dict[str, int] = {}
        self._most: dict[str, int] = {}  # how long they have been
        limit = agent.config.log_limit
        self.limits = {each: LogLimit(f"{self._spool}/{each}", limit) for each in self.log_files}

    def log_range(self, call: Call) -> dict[str, list[int]]:
        """Where what a call printed stands in the slot's log files: start and end.

        A call begins where the last one ended, so that no byte belongs to no run; threads of one worker, which
        print into the same files at the same time, share what they saw.
        """
        if not self._quiet():
            self.limit_logs()
            self.mark_logs(call)
            before, self._log_ends = self._log_ends, self._log_sizes()
            for name, end in self._log_ends.items() if len(self.running) <= 1 else ():
                if end != before.get(name):
                    self.limits[name].begin(end)
        return {name: [call.log_start.get(name, 0), end] for name, end in self._log_ends.items()}

    def _quiet(self) -> bool:
        """Whether nothing was printed since the last call's end, and all before it is marked: so it is with most."""
        if self._marker is None:
            return False
        ends = self._log_sizes()
        return ends == self._log_ends and (*ends.values(),) == (self._marker.out, self._marker.err)

    def limit_logs(self) -> None:
        """Cut logs back to what one run may print, and tell where that has just begun."""
        for name, size in self._log_sizes().items():
            if self.limits[name].look(size):
                runs = ", ".join({call.run for call in self.running.values()}) or "what runs on"
                said = f"rank {self.rank} has printed its limit during {runs}: the rest of it in {name} is dropped"
                self.agent.clients.tell({"t": "error", "message": said})

    def _log_sizes(self) -> dict[str, int]:
        sizes = {}
        for name, opened in self._logs.items():
            size = os.fstat(opened).st_size
            if size < self._most.get(name, 0):
                size = self._restore(name, opened, size)
            sizes[name] = size
            self._most[name] = min(size, self.limits[name].most)
        return sizes

    def _restore(self, name: str, opened: int, size: int) -> int:
        """A rank has emptied its own log: go on where it was, so that what comes is sent; say what happened."""
        with open(f"{self._spool}/{name}", "rb") as emptied:
            since = emptied.read(min(size, KEPT_OF_EMPTIED))
        with suppress(OSError):  # a full disk is said by others
            os.ftruncate(opened, self._most[name])
            said = f"\nskyward: rank {self.rank} opened this stream anew and emptied it; what was not fetched is lost\n"
            os.write(opened, said.encode() + since)
        return os.fstat(opened).st_size

    def mark_logs(self, ended: Call | None = None) -> None:
        """Mark what has been printed since this was last done as a run's, where but one has calls here; a call that
        has just ``ended`` is among them."""
        if self._marker is not None:
            self._log_sizes()  # one that a rank has emptied is mended there
            runs = {call.run for call in (*self.running.values(), *filter(None, (ended,)))}
            self._marker.after(runs.pop() if len(runs) == 1 else "", soon=ended is None)

    def other_ends(self) -> dict[str, int]:
        """The sizes of the files that come beside the logs, of those that are there."""
        sizes = {}
        for name in (self._marks, self._metrics):
            path = f"{self._spool}/{name}"
            # Mostly no rank has put anything there; an exception takes longer to say so.
            if os.access(path, os.F_OK):
                with suppress(FileNotFoundError):  # a rank's code may remove what it finds
                    sizes[name] = os.stat(path).st_size
        return sizes

    @property
    def load(self) -> int:
        return len(self.queue) + len(self.running)

    def open_logs(self) -> None:
        """Have the log files. What an agent before this one did not see the end of belongs to no later call."""
        if not self._logs:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._logs = {name: os.open(f"{self._spool}/{name}", flags, 0o600) for name in self.log_files}
            self._log_ends = self._log_sizes()
            for name, end in self._log_ends.items():
                self.limits[name].begin(end)
            out, err = self._logs.values()
            self._marker = Marker(f"{self._spool}/{self._marks}", out, err, AFTER)

    def spawn(self) -> None:
        """Start a fresh interpreter in this slot."""
        config = self.agent.config
        self.open_logs()
        out, err = (self._logs[name] for name in self.log_files)
        env = {"SKYWARD_CAPACITY": str(config.capacity), "SKYWARD_GRACE": str(config.grace)}
        if config.devices:
            env["CUDA_VISIBLE_DEVICES"] = config.devices[self.local_rank]
        if config.knows_env:
            env["SKYWARD_VARIABLES"] = ",".join(config.env.keys() - env.keys())
        try:
            self.process = Process(spawn(config, "worker", (self.rank, self.number), out, err, env))
            self.process.says_from = os.fstat(err).st_size
        except OSError as error:  # its working folder is gone, say, or there are no descriptors left
            self.failed_starts += 1
            waiting, self.queue = list(self.queue), deque()
            for call in waiting:
                self.agent.not_started(self, call, f"its worker could not be started: {error}")
        self.enter("starting")

    def enter(self, phase: str, age: float = 0.0) -> None:
        """Its process is at that since so many seconds; a rank's further workers are nobody's news."""
        if self.number == 0:
            self.agent.phases.enter(self.rank, phase, age)

    def give(self, call: Call) -> None:
        call.rank = self.rank
        self.queue.append(call)
        self.pump()

    def pump(self) -> None:
        """Move on: replace the process where that is due, set it up, hand it what it can take."""
        if self.process is None:
            if (
                self.agent.closing
                or (self.failed_starts and not self.queue)
                or not self.agent.informed.is_set()
            ):
                return
            if self.running:
                return  # first the end of what the last one ran is told: else who adopts the next takes it for its work
            self.spawn()
        process = self.process
        if process is None or process.connection is None or process.killed:
            return
        if process.unusable:
            if not self.running:
                self.exit_process("its plugins could not be entered", self.agent.config.grace)
            return
        gang = self.agent.gang
        while True:
            if (
                self.number == 0
                and process.epoch is not None
                and (process.epoch != gang.epoch or gang.broken)
            ):
                if not self.running:
                    self.exit_process("its gang was replaced", self.agent.config.grace)
                return
            if process.epoch != gang.epoch and gang.epoch and not gang.broken:
                if gang.apps and not self.agent.apps.settled:
                    return  # what plugins have around the whole node comes first
                self._set_up(process)
            if not self.queue and not self.running:
                self._take_from_others()
            if not self.queue or len(self.running) >= self.agent.config.capacity:
                return
            call = self.queue[0]
            if not gang.epoch and not call.header.get("headless"):
                return  # a client that comes to an agent which was started anew sets it up after its calls
            if call.gang and not gang.alone and (gang.broken or call.header.get("epoch") != gang.epoch):
                self.queue.popleft()
                self.agent.stale(call)
                continue
            if gang.broken and gang.hooks and self.number == 0:
                return  # waits for the next epoch, which a client forms when it hears of the break
            self.queue.popleft()
            self._hand_over(call, process.connection, process)

    def _take_from_others(self) -> None:
        """With nothing to do, take a task that waits for another slot: what that one runs may take for ever."""
        call = self.agent.waiting_task(self)
        if call is not None:
            call.rank = self.rank
            self.queue.append(call)

    def _set_up(self, process: Process) -> None:
        gang = self.agent.gang
        process.epoch = gang.epoch
        process.ready, process.placed = False, True
        info = gang.place(self.agent.config, self.rank)
        if process.connection is not None:
            header = {"t": "setup", "epoch": gang.epoch, "info": info, "gang": self.number == 0}
            header |= {"hooks": gang.hooks, "apps": gang.apps, "secrets": gang.secrets, "alone": gang.alone}
            if gang.apps and self.agent.apps.failure is not None:
                error, data = self.agent.apps.failure
                process.connection.send(header | {"failed": error}, data)
            else:
                process.connection.send(header, gang.plugins)

    def _hand_over(self, call: Call, connection: Connection, process: Process) -> None:
        self.running[call.key] = call
        call.given_at, call.begun_at = time.monotonic(), time.time()
        call.slot = self.number
        call.log_start = self._log_ends
        if not process.placed:
            # It runs tasks of a gang that broke, until there is the next one.
            process.placed = True
            connection.send({"t": "place", "info": self.agent.gang.place(self.agent.config, self.rank)})
        text = encoded(call.header)
        connection.reply(text, call.body)
        # Written while the worker begins.
        self.agent.journal.write(call.given(text))
        self.agent.call_given(self, call, armed=process.ready or process.epoch is None)

    def connected(self, connection: Connection, header: Header, plugins: bytes) -> None:
        """The slot's worker greets: a fresh one, or one that outlived the agent which started it."""
        if self.process is not None:
            if self.process.connection is not None:
                self.process.connection.close()  # user code has closed its end
            self.process.connection = connection
            self.failed_starts = 0
            self.enter(header.get("phase", ""), header.get("age", 0.0))
            if "epoch" in header and self.process.epoch is None:
                self.process.epoch, self.process.ready = header["epoch"], True
                self.process.placed = True
                self.agent.restore_gang(header, plugins)
            self.pump()

    def adopt(self, pid: int) -> None:
        """Take over a worker that another agent started: we learn of its end, but not how it ended."""
        self.process = Process(pid)
        when_ended(pid, lambda: self.ended(None))

    def set_up_done(self) -> None:
        if self.process is not None:
            self.process.ready = True
            self.enter("")
            for call in self.running.values():
                self.agent.arm(call)
            self.send_away()

    def finished(self, call: Call) -> None:
        self.running.pop(call.key, None)
        self.pump()

    def send_away(self) -> None:
        """Have a worker end that we stopped, and whose code took the signal for itself and came to its own end."""
        process = self.process
        if process is not None and process.killed and process.connection is not None and not self.running:
            process.connection.send({"t": "exit"})

    def stop_process(self, reason: str, grace: float) -> None:
        """SIGTERM to the process group now, SIGKILL after the grace."""
        process = self.process
        if process is None or process.killed:
            return
        process.killed = reason
        signal_group(process.pid, signal.SIGTERM)
        self.break_gang(process, reason)
        self.expect_end(process, grace)

    def exit_process(self, reason: str, grace: float) -> None:
        """Let an idle worker leave its contexts and end as Python does; SIGKILL after the grace."""
        process = self.process
        if process is None or process.killed:
            return
        setting_up = process.epoch is not None and not process.ready
        if self.running or setting_up or process.connection is None:
            self.stop_process(reason, grace)
            return
        process.killed = reason
        process.connection.send({"t": "exit"})
        self.expect_end(process, grace)

    def expect_end(self, process: Process, grace: float) -> None:
        """A process is on its way out: SIGKILL if it is not after the grace."""
        asyncio.get_running_loop().call_later(grace, self._kill_if, process)

    def break_gang(self, process: Process, how: str) -> None:
        """The gang lost this process. Say so before its outcome: the client may start the next run at once."""
        if self.number == 0 and process.epoch is not None and process.epoch == self.agent.gang.epoch:
            self.agent.break_gang(f"the worker of rank {self.rank} ended" + (f": {how}" if how else ""))

    def _kill_if(self, process: Process) -> None:
        if self.process is process:
            self._say(
                f"the worker of rank {self.rank} was still there at the end of its grace and is killed "
                f"({process.killed}): what its exit handlers, threads and unwritten files had left to do is cut off"
            )
            signal_group(process.pid, signal.SIGKILL)

    def _say(self, words: str) -> None:
        """Put a line of ours into the rank's log."""
        with suppress(OSError):  # a full disk is said by others
            os.write(self._logs[self.log_files[1]], f"skyward: {words}\n".encode())

    def ended(self, status: int | None) -> None:
        """The process of this slot has ended, with this wait status if it was our child."""
        process, self.process = self.process, None
        if process is None:
            return
        self.enter("")
        signal_group(process.pid, signal.SIGKILL)  # children that outlived it
        if process.connection is None and not process.killed:
            self.failed_starts += 1
        self.break_gang(process, process.killed or exit_words(status)[1])
        for call in list(self.running.values()):
            self.running.pop(call.key, None)
            if call.parting:
                self.agent.parted(self, call)
            else:
                self.agent.died(self, call, process, status)
        self.agent.one_less()
        if self.failed_starts >= START_ATTEMPTS:
            waiting, self.queue = list(self.queue), deque()
            for call in waiting:
                self.agent.died(self, call, process, status)
        if not self.agent.closing:
            self.pump()


def exit_words(status: int | None) -> tuple[Header, str]:
    """A wait status as fields of an outcome and in words."""
    if status is None:
        return {
            "exit_code": None,
            "signal": None,
        }, "its process ended, and the agent that could say how had ended too"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        hint = " (the kernel does this when memory runs out; see dmesg)" if number == signal.SIGKILL else ""
        return {"exit_code": None, "signal": number}, f"its process was ended by {name}{hint}"
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code, "signal": None}, f"its process exited with status {code}"


def ended_with_worker(why: str) -> Header:
    """The part of an outcome that says that we stopped a call's worker for another reason than the call."""
    words = f"its worker was stopped: {why}"
    return {"kind": "collateral", "error": {"type": "Stopped", "message": words}}


def ended_from_outside() -> Header:
    """The same for a SIGTERM that was not ours: somebody on the node sent it."""
    fields, words = exit_words(signal.SIGTERM)
    return fields | {"kind": "exited", "error": {"type": "RankExit", "message": words}}
