"""The agent: owns a node's workers, spool and lease; serves any number of clients over a Unix socket."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...wire.frames import Header, WireError, encoded, frame
from ...wire.messages import from_worker
from ...wire.redact import Redactor, secret_values
from ..boot.bootstrap import members
from .around_app import PLACE, Apps
from .calls import Call, Register
from .config import AgentConfig
from .connection import Connection
from .gang import Epochs, Gang
from .journal import Journal
from .last_line import last_line
from .lease import Lease
from .log_limit import NEVER
from .phases import Phases
from .processes import become_reaper, kill_all, reap
from .requests import Clients
from .signals import act_on
from .slots import Process, Slot, ended_from_outside, ended_with_worker, exit_words
from .slow_calls import SlowCalls
from .spawn import left_behind
from .yields import Yields

PARTING = 1.0  # seconds that a call's outcome waits for the end of the worker that it ended
GREETING = 5.0  # seconds in which workers that another agent left have greeted
SOON = 1.0  # seconds in which those of them do that are free to; it takes them a twentieth
STUBBORN = 5.0  # seconds for what a node ran to end once it is killed
FREE_SPACE = 1 << 20  # bytes below which a full disk is named as the likely cause of a failure


class Agent:
    """See the module. One instance per process; :meth:`run` is its whole life."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.gang = Gang()
        self.epochs = Epochs(config.spool / "epoch")
        self.closing = False
        self.register = Register()
        self.lease = Lease(config.idle_timeout, config.ttl)
        self._workers: dict[Connection, Slot] = {}
        first = config.node * config.ranks_per_node
        self.slots = [
            Slot(self, first + local, number)
            for local in range(config.ranks_per_node)
            for number in range(config.slots)
        ]
        self.apps = Apps(self)
        self.journal = Journal(config.spool / "journal", self.register.unacknowledged)
        self.redactor = Redactor([*secret_values(os.environ | config.env), *config.secrets])
        # Of the pool's variables and secrets, as far as anybody here knows them.
        self.informed = asyncio.Event()
        self._slow = SlowCalls(self._announce)
        self._news = asyncio.Event()  # a worker has greeted, or ended
        self.end = asyncio.Event()
        self._given_up: set[str] = set()  # runs whose client ends the pool
        self._keep = 0.0  # seconds for which what is left has to be kept at least
        self._ending: Header = {}  # who ends it and why, where that is known
        self.clients = Clients(self)
        self.phases = Phases(self.clients.broadcast)

    # -- life --------------------------------------------------------------------------------------------

    async def run(self, announce: Callable[[], None]) -> None:
        """Serve until shut down, by a client or by the lease. ``announce`` is called once it listens."""
        loop = asyncio.get_running_loop()
        become_reaper()
        act_on({signal.SIGCHLD: self._reap, signal.SIGTERM: self.end.set})
        # Looking for what others have left takes as long as the machine has processes.
        traces = (Path(self.config.worker_socket), Path(self.config.folder, "agent.json"))
        others_before = any(trace.exists() for trace in traces)
        for path in (self.config.socket, self.config.worker_socket):
            Path(path).unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            workers = await loop.create_unix_server(
                lambda: Connection(self._worker_frame, self._worker_lost, from_worker),
                self.config.worker_socket,
            )
            if others_before:
                self._take_over()
                await self._hear_workers()
            if self.config.knows_env or not any(slot.process for slot in self.slots):
                self._begin()
            else:
                loop.call_later(GREETING, self._begin)
            clients = await loop.create_unix_server(self.clients.accept, self.config.socket)
        finally:
            os.umask(old)
        announce()
        watching = [asyncio.create_task(work) for work in (self._watch_lease(), self.clients.judge())]
        await self.end.wait()
        for task in watching:
            task.cancel()
        clients.close()
        await self._close()
        workers.close()

    def _begin(self) -> None:
        """Have a worker in every rank's slot, now that it is known what to start them with."""
        if self.informed.is_set():
            return
        self.informed.set()
        for slot in self.slots:
            if slot.number == 0 and slot.process is None and not self.closing:
                slot.spawn()
        self.pump()

    def one_less(self) -> None:
        """A worker has ended, perhaps the last one that could have told."""
        self._news.set()
        if not any(slot.process for slot in self.slots):
            self._begin()

    def _learn(self, header: Header) -> None:
        """What a worker knows that an agent before this one has started."""
        if not self.informed.is_set() and "env" in header:
            self.config = replace(self.config, env=self.config.env | header["env"], knows_env=True)
            self.redactor.add(secret_values(self.config.env))
            self._begin()

    def _take_over(self) -> None:
        """Go on where an agent that died in this folder stopped: its results, its workers, their calls."""
        left = left_behind(self.config)
        for slot in self.slots:
            slot.open_logs()
            if pid := left.get((slot.rank, slot.number)):
                slot.adopt(pid)
        if pid := left.get(PLACE):
            self.apps.adopt(pid)
        for header, body in self.journal.read():
            if header["t"] == "ack":
                self.register.acknowledge(header["calls"])
                continue
            told = header.get("call", header)
            key = (told["run"], told["i"])
            known = self.register.calls.get(key)
            if header["t"] == "given":
                now = asyncio.get_running_loop().time()
                call = Call(*key, told, b"", None, rank=header["rank"], slot=header["slot"])
                call.given_at, call.log_start = now, header.get("log", {})
                self.register.add(call)
                self.open_yields(call)
            elif known is not None and known.outcome is None:
                known.result = body
                self.register.end(known, header)
        for call in list(self.register.calls.values()):
            if call.outcome is not None:
                continue
            slot = next(s for s in self.slots if (s.rank, s.number) == (call.rank, call.slot))
            if slot.process is not None:
                slot.running[call.key] = call
            else:
                self.died(slot, call, Process(0), None)

    async def _hear_workers(self) -> None:
        """Let them greet before any client is heard: they know of the gang, and a client would form another."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON):
                while any(slot.process and not slot.process.connection for slot in self.slots):
                    self._news.clear()
                    await self._news.wait()

    def restore_gang(self, header: Header, plugins: bytes) -> None:
        """Learn of the gang from a worker that belongs to it."""
        if header["epoch"] > self.gang.epoch:
            self.gang = Gang.told(header, plugins)
            self.epochs.note(self.gang.epoch)
            self.redactor.add(self.gang.secrets)
            if self.gang.apps and self.apps.process is None:
                self.break_gang("the process of its plugins' around_app ended with the agent before this one")

    async def _watch_lease(self) -> None:
        while True:
            left = self.lease.remaining(in_use=self.in_use())
            if not Path(self.config.folder).exists():
                self.end.set()  # somebody removed it: nobody can find this agent any more
                return
            self.mark_logs()
            for slot in self.slots:
                slot.limit_logs()
            if left is not None and left <= 0 and not self.register.active:
                self.end_by("", self.lease.reason())
                self._say_goodbye(self.lease.reason())
                return
            await asyncio.sleep(min(1.0, max(0.05, left or 1.0)))

    def end_by(self, who: str, why: str) -> None:
        """The pool ends: those that wait on it hear of that before the grace of its workers is over.

        A signal only ends this one agent, and says nothing of the pool.
        """
        if not self.end.is_set():
            self._ending = {"t": "ending", "by": who, "why": why}
            self.end.set()

    def in_use(self) -> bool:
        if self.register.active or self.clients.in_use:
            self.lease.renew()
            return True
        return False

    def _say_goodbye(self, reason: str) -> None:
        """Leave a word for the next client of this pool; the folder's end is the end of everything else."""
        folder = Path(self.config.folder)
        folder.with_name(f"ended.{folder.name}").write_text(
            f"the node ended itself: {reason}\n", encoding="utf-8"
        )

    async def _close(self) -> None:
        self.closing = True
        if self._ending:
            self.clients.tell(self._ending)
        for slot in self.slots:
            slot.exit_process("the pool is torn down", self.config.grace)
        while any(slot.process for slot in self.slots):
            await asyncio.sleep(0.01)
            self._reap()
        self.apps.exit_process(self.config.grace)
        while self.apps.process:
            await asyncio.sleep(0.01)
            self._reap()
        # Whatever escaped its group; what cannot be killed is left for whoever verifies the end to find.
        deadline = time.monotonic() + STUBBORN
        while (left := members(self.config.folder)) and time.monotonic() < deadline:
            kill_all(left)
            await asyncio.sleep(0.01)
            reap()
        await self.clients.part()
        await asyncio.sleep(0)
        for path in (self.config.socket, self.config.worker_socket):
            Path(path).unlink(missing_ok=True)
        self.acknowledge(dict.fromkeys(self._given_up))
        await asyncio.to_thread(self._settle)

    def _settle(self) -> None:
        """Leave nothing on this host but what nobody has fetched."""
        from . import unfetched  # no agent needs it before

        folder = Path(self.config.folder)
        if not folder.exists():
            return
        logs = self._unsent_logs()
        if logs or self.register.calls:
            self.journal.shorten()
            if self.redactor:
                unfetched.blank(self.config.spool, self.redactor.data, self.redactor.reach)
        unfetched.settle(folder, max(self.config.keep_results, self._keep), logs)

    def _unsent_logs(self) -> dict[str, int]:
        """Runs of which log bytes have been sent to no client, and how many."""
        sent = self.clients.sent()
        unsent: dict[str, int] = {}
        for record in self.register.records.values():
            spans = [span for outcome in record.outcomes.values() for span in outcome.get("log", {}).items()]
            size = sum(max(0, end - max(start, sent.get(name, 0))) for name, (start, end) in spans)
            # A little waits for more, as it may be a secret's beginning.
            if record.run not in self._given_up and size > self.redactor.reach * len(self.slots):
                unsent[record.run] = size
        return unsent

    def give_up(self, runs: list[str], keep: float) -> None:
        """Who ends the pool has no use for what comes of these runs; the rest is to be kept for at least this long."""
        self._given_up.update(runs)
        self._keep = keep

    def acknowledge(self, calls: dict[str, list[int] | None]) -> None:
        """A client has what came of these calls."""
        self._drop(calls)
        if self.register.calls:
            self.journal.write(frame({"t": "ack", "calls": calls}))
        else:
            self.journal.clear()

    def _drop(self, calls: dict[str, list[int] | None]) -> None:
        for call in self.register.acknowledge(calls):
            if call.outcome is not None and (name := call.outcome.get("file")):
                (self.config.spool / Path(name).name).unlink(missing_ok=True)

    def _reap(self) -> None:
        ended = reap()
        for slot in self.slots:
            if slot.process is not None and slot.process.pid in ended:
                slot.ended(ended[slot.process.pid])
        if self.apps.process is not None and self.apps.process.pid in ended:
            self.apps.ended(ended[self.apps.process.pid])

    # -- what clients ask of the agent -------------------------------------------------------------------

    def pick(self, call: Call) -> Slot:
        """Whose queue a call belongs into.

        Raises:
            WireError: it is for a rank that is not of this node.
        """
        rank = call.header.get("rank")
        if call.gang or rank is not None:
            found = [slot for slot in self.slots if slot.rank == rank and slot.number == 0]
            if found:
                return found[0]
            raise WireError(f"node {self.config.node} has no rank {rank}")
        return min(self.slots, key=lambda slot: slot.load)

    def to_worker(self, call: Call, header: Header) -> None:
        """Say something to the worker that runs a call, if one does."""
        for slot in self.slots:
            if call.key in slot.running and slot.process and slot.process.connection:
                slot.process.connection.reply(encoded(header))

    def need_apps(self) -> None:
        """Have what the gang's plugins have around the node entered for its epoch."""
        self.apps.need(self.gang.place(self.config, self.slots[0].rank), self.gang.plugins)

    # -- workers -----------------------------------------------------------------------------------------

    def _worker_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        kind = header["t"]
        if kind == "hello":
            pid = connection.peer(header["pid"])
            for slot in self.slots:
                if slot.process is not None and slot.process.pid == pid:
                    self._workers[connection] = slot
                    slot.connected(connection, header, body)
                    self._learn(header)
                    self._news.set()
                    for running in slot.running.values():
                        self.clients.credit(running)
                    return
            if self.apps.process is not None and self.apps.process.pid == pid:
                self.apps.connected(connection, header)
                return
            # It may be a worker that another agent started and had no time to write down.
            connection.send({"t": "exit"})
            connection.close()
            return
        if self.apps.process is not None and self.apps.process.connection is connection:
            self.apps.on_frame(header, body)
            return
        if connection not in self._workers:
            connection.close()  # it was sent away, or never greeted
            return
        slot = self._workers[connection]
        if self.redactor and kind in ("outcome", "item"):
            header |= {
                key: self.redactor.json(header[key]) for key in ("summary", "error", "last") if key in header
            }
            if header.get("kind") == "raised":
                body = self.redactor.data(body)
        if kind == "outcome":
            call = slot.running.get((header["run"], header["i"]))
            if call is not None:
                self._outcome(slot, call, header, body)
        elif kind == "item":
            call = slot.running.get((header["run"], header["i"]))
            if call is not None:
                self._item(slot, call, header, body)
        elif kind == "ready":
            slot.set_up_done()
        elif kind == "phase":
            slot.enter(header["phase"])

    def _worker_lost(self, connection: Connection) -> None:
        # The process itself is what counts; its end is seen by SIGCHLD.
        self._workers.pop(connection, None)

    def _item(self, slot: Slot, call: Call, header: Header, body: bytes) -> None:
        header = header | {"rank": slot.rank, "node": self.config.node}
        self.open_yields(call)
        data = frame(header, body)
        if call.yields is not None and call.yields.add(header["seq"], header.get("file"), data):
            self.clients.hand_on(call, call.yields, data)
            header.pop("file", None)  # whoever only watches gets no values
            if record := self.register.records.get(call.run):
                record.items[call.index] = header
            self.clients.broadcast(header, skip=call.owner)
        if call.owner is None:
            self.clients.credit(call)

    def open_yields(self, call: Call) -> None:
        """Have a place for what a generator yields, with what an agent before this one kept there."""
        if call.yields is None and call.header.get("stream"):
            call.yields = Yields(self.config.spool / f"{call.run}.{call.index}.yields")

    def _outcome(self, slot: Slot, call: Call, header: Header, body: bytes) -> None:
        killed = slot.process.killed if slot.process is not None else ""
        ends = header["kind"] in ("exited", "collateral") and slot.process is not None
        if ends and slot.process is not None:
            slot.process.killed = killed or "it is exiting"
            slot.break_gang(slot.process, (header.get("error") or {}).get("message", killed))
            if not killed:
                slot.expect_end(slot.process, self.config.grace)
        if header.pop("unusable", False) and slot.process is not None:
            slot.process.unusable = True
        if call.stop_reason and header["kind"] != "returned":
            header = header | call.stopped()
        elif header["kind"] == "collateral":
            header = header | (self._ended_with(killed) if killed else ended_from_outside())
        elif header["kind"] == "raised":
            self._note_full_disk(header)
        if ends:
            # What its exit handlers still print and write is the run's: who hears of its end finds it there.
            call.parting = (header, body)
            call.disarm()
            asyncio.get_running_loop().call_later(PARTING, self.parted, slot, call)
        else:
            self._finish(slot, call, header, body)
            slot.finished(call)
            if killed:
                slot.send_away()

    def parted(self, slot: Slot, call: Call) -> None:
        """Tell of a call whose worker has ended, or takes its time to."""
        if call.parting and call.outcome is None:
            self._finish(slot, call, *call.parting)
            slot.finished(call)

    def _note_full_disk(self, header: Header) -> None:
        error = header.get("error") or {}
        space = os.statvfs(self.config.folder)
        free = space.f_bavail * space.f_frsize
        if error.get("type", "").endswith("OSError") and free < FREE_SPACE:
            error["message"] += (
                f" [the disk under node {self.config.node}'s spool is full: {self.config.folder}]"
            )

    def _finish(self, slot: Slot | None, call: Call, header: Header, body: bytes = b"") -> None:
        call.disarm()
        header["rank"] = call.rank
        header["node"] = self.config.node
        header["begun"] = call.given_at is not None
        header["at"] = time.time()
        if slot is not None and call.given_at is not None:
            header["log"] = log = slot.log_range(call)
            ends = {name: end for name, (_, end) in log.items()}
            self.clients.flush(slot.other_ends() | ends)
        call.result = body
        data = frame(header, body)
        if call.owner is not None and (call.yields is None or call.yields.sent >= call.yields.next):
            call.owner.write(data)  # else it follows the last of the values
        self.register.end(call, header)
        self.journal.write(data)
        self.clients.broadcast(header, skip=call.owner)

    # -- what slots ask of the agent ---------------------------------------------------------------------

    def most_logs(self, name: str) -> int:
        """How much of a log file may be sent to clients."""
        return next((slot.limits[name].most for slot in self.slots if name in slot.limits), NEVER)

    def mark_logs(self) -> None:
        """Mark what native code and children have printed; what Python prints is marked already."""
        for slot in self.slots:
            slot.mark_logs()

    def waiting_task(self, idle: Slot) -> Call | None:
        """Take a task that any slot can run out of the queue of one that is busy, or still starting."""
        for slot in self.slots:
            for call in slot.queue if slot is not idle else ():
                if not call.gang and call.header.get("rank") is None:
                    slot.queue.remove(call)
                    return call
        return None

    def call_given(self, slot: Slot, call: Call, *, armed: bool) -> None:
        self._slow.add(slot.rank, call)
        if armed:
            self.arm(call)

    def arm(self, call: Call) -> None:
        """Start the clock of a call's time limit."""
        if call.timeout is not None and call.outcome is None:
            loop = asyncio.get_running_loop()
            call.timers.append(loop.call_later(call.timeout, self.stop, call, "timeout", self.config.grace))

    def _announce(self, rank: int, call: Call) -> None:
        self.clients.wake()
        header = {"t": "began", "run": call.run, "i": call.index, "rank": rank, "node": self.config.node}
        header |= {"log": call.log_start, "at": call.begun_at}
        if record := self.register.records.get(call.run):
            record.began[call.index] = header
        if call.owner is not None:
            call.owner.send(header)
        self.clients.broadcast(header | {"name": call.header.get("name")}, skip=call.owner)

    def stop(self, call: Call, reason: str, grace: float) -> None:
        """End one call: SIGTERM, the grace, SIGKILL; or take it out of its queue."""
        self._reap()  # who died by itself just now is no victim of this
        if call.outcome is not None or call.stop_reason or call.parting:
            return
        call.stop_reason = reason
        for slot in self.slots:
            if call.key in slot.running:
                slot.stop_process(reason, grace)
                return
            if call in slot.queue:
                slot.queue.remove(call)
                self._finish(None, call, call.no_result() | call.stopped())
                return

    def stale(self, call: Call) -> None:
        """A gang call whose gang is no more was not begun: hand it back for the client to start anew."""
        self.register.end(call, {"t": "stale", "run": call.run, "i": call.index, "kind": "stale"})
        self.register.drop(call)
        self.register.records[call.run].outcomes.pop(call.index, None)
        if call.owner is not None:
            why = {"epoch": self.gang.epoch, "why": self.gang.broken}
            call.owner.send({"t": "stale", "run": call.run, "i": call.index} | why)

    def died(self, slot: Slot, call: Call, process: Process, status: int | None) -> None:
        """The worker of a call ended before the call did."""
        header = call.no_result()
        if call.stop_reason:
            header |= call.stopped()
        elif process.killed:
            header |= self._ended_with(process.killed)
        else:
            fields, words = exit_words(status)
            if process.connection is None:
                words = f"its worker could not start: {words}; {self.last_words(slot.log_files[1], process.says_from)}"
            header |= fields | {"kind": "exited", "error": {"type": "RankExit", "message": words}}
        if call.given_at is not None:
            header["seconds"] = asyncio.get_running_loop().time() - call.given_at
        self._finish(slot, call, header)

    def not_started(self, slot: Slot, call: Call, words: str) -> None:
        """There is no worker for a call, and none to be had."""
        error = {"type": "RankExit", "message": words}
        header = call.stopped() if call.stop_reason else {"kind": "exited", "error": error}
        self._finish(slot, call, call.no_result() | header)

    def _ended_with(self, why: str) -> Header:
        """The part of an outcome that says why we ended its worker."""
        if self.closing and not self._ending:  # nobody ends the pool: only this node leaves it
            error = {
                "type": "NodeLost",
                "message": f"the agent of node {self.config.node} was ended on its machine",
            }
            return {"kind": "lost", "error": error}
        return ended_with_worker(why)

    def last_words(self, name: str, start: int = 0) -> str:
        """The last line of a file of the spool, in words; what stands before an offset is somebody else's."""
        line = last_line(self.config.spool / name, start)
        return f"it said: {self.redactor.text(line)}" if line else "it said nothing"

    def break_gang(self, why: str) -> None:
        if self.gang.epoch and not self.gang.broken and not self.gang.alone:
            self.gang.broken = why
            self.clients.tell(self.gang.state())
            self.pump()

    def pump(self) -> None:
        for slot in self.slots:
            slot.pump()
