"""Its life: lease, take-over, end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.call_journal import Call, Register
from skyward_core.node.agent.call_outcomes import CallDesk
from skyward_core.node.agent.client_requests import Requests
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import Audience, Phases
from skyward_core.node.agent.gang_queue_and_fail_fast import FailFast
from skyward_core.node.agent.slot_dispatcher import Slots
from skyward_core.node.agent.worker_processes import act_on, become_reaper, kill_all, left_behind, reap
from skyward_core.node.agent.worker_slot import PLACE
from skyward_core.node.bootstrap.host_inspection import members
from skyward_core.protocol.frame_codec import Header

if TYPE_CHECKING:
    from skyward_core.node.agent.preemption_notices import NoticeDesk
    from skyward_core.node.agent.sampler_process import Meter
    from skyward_core.protocol.frame_types import AgentOutcome


PARTS = 5  # it is put off this often in the time after which it ends the machine
LONGEST = 60.0  # seconds between two times


class Deadman:
    """The shutdown of one machine.

    Args:
        minutes: after which it comes, unless it is put off; 0 where there is none.
    """

    def __init__(self, minutes: int) -> None:
        self._minutes = minutes
        self._due = 0.0

    def put_off(self) -> None:
        """Have it come later, where it is time for that."""
        now = time.monotonic()
        if self._minutes and now >= self._due:
            self._due = now + min(LONGEST, self._minutes * 60 / PARTS)
            _shutdown(f"+{self._minutes}")

    def end_now(self) -> None:
        """Have it come at once."""
        if self._minutes:
            _shutdown("now")


def _shutdown(when: str) -> None:
    """Ask the system for it, as root where we are not, and wait for no answer: the next time comes soon."""
    command = f"sudo -n shutdown --no-wall -P {when} || shutdown --no-wall -P {when}"
    subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends with the agent does not end this
    )


SOON = 1.0  # seconds in which workers greet that are free to; it takes them a twentieth


async def take_over(state: NodeState, slots: Slots, desk: CallDesk) -> None:
    """Know what the other agent knew, and let its workers greet before any client is heard: they know of the gang, and
    a client would form another."""
    left = left_behind(state.config)
    for slot in slots.all:
        slot.logs.open()
        if pid := left.get((slot.rank, slot.number)):
            slot.adopt(pid)
    if pid := left.get(PLACE):
        slots.apps.adopt(pid)
    _read_journal(state, desk)
    for call in list(state.register.calls.values()):
        if call.outcome is None and call.width > 1:
            slots.blocks.adopt(call)
        elif call.outcome is None:
            next(s for s in slots.all if (s.rank, s.number) == (call.rank, call.slot)).adopt_call(call)
    with suppress(TimeoutError):
        async with asyncio.timeout(SOON):
            while any(slot.process and not slot.process.connection for slot in slots.all):
                slots.news.clear()
                await slots.news.wait()
    if slots.waits is not None:
        slots.waits.adopted()


def _read_journal(state: NodeState, desk: CallDesk) -> None:
    register = state.register
    for header, body in state.journal.read():
        if header["t"] == "ack":
            register.acknowledge(header["calls"])
            continue
        if header["t"] == "ended":
            _read_part(register, header["outcome"], body)
            continue
        told = header["call"] if header["t"] == "given" else header
        key = (told["run"], told["i"])
        known = register.calls.get(key)
        if header["t"] == "given" and known is not None and header["call"].get("width", 1) > 1:
            part = Call(*key, header["call"], b"", None, rank=header["rank"], slot=header["slot"])
            part.given_at, part.log_start = asyncio.get_running_loop().time(), header.get("log", {})
            known.parts.append(part)
        elif header["t"] == "given":
            call = Call(*key, header["call"], b"", None, rank=header["rank"], slot=header["slot"])
            call.given_at, call.log_start = asyncio.get_running_loop().time(), header.get("log", {})
            register.add(call)
            desk.open_yields(call)
        elif known is not None and known.outcome is None:
            known.result = body
            register.end(known, header)


def _read_part(register: Register, outcome: AgentOutcome, body: bytes) -> None:
    """A part of a block's call has ended."""
    whole = register.calls.get((outcome["run"], outcome["i"]))
    for part in whole.parts if whole is not None else ():
        if part.rank == outcome["rank"]:
            part.outcome, part.result = outcome, body


GREETING = 5.0  # seconds in which workers that another agent left have greeted
LONG = 10  # looks at the lease, a second each, at which calls ran: somebody may want to know what the machine did
STUBBORN = 5.0  # seconds for what a node ran to end once it is killed


class Agent:
    """See the module. One instance per process; :meth:`run` is its whole life."""

    def __init__(self, config: AgentConfig) -> None:
        self._state = state = NodeState(config)
        self._audience = Audience()
        self._desk = CallDesk(state, self._audience)
        phases = Phases(self._audience.broadcast)
        self._slots = Slots(state, self._audience, self._desk, phases)
        self._fail_fast = FailFast(state, self._slots)
        self._requests = Requests(state, self._audience, self._desk, self._slots, phases, self._fail_fast, self)
        self._end = asyncio.Event()
        self._notices: NoticeDesk | None = None
        self._meter: Meter | None = None
        self._worked = 0  # looks at the lease, one after the other, at which calls ran
        self._given_up: set[str] = set()  # runs whose client ends the pool
        self._deadman = Deadman(config.deadman)
        self._outlived = False  # the lease is over, and nobody needs the machine
        self._keep = 0.0  # seconds for which what is left has to be kept at least

    async def run(self, announce: Callable[[], None]) -> None:
        """Serve until shut down, by a client or by the lease. ``announce`` is called once it listens."""
        config, slots = self._state.config, self._slots
        loop = asyncio.get_running_loop()
        become_reaper()
        act_on({signal.SIGCHLD: slots.reap, signal.SIGTERM: self._end.set})
        # Looking for what others have left takes as long as the machine has processes.
        traces = (Path(config.worker_socket), Path(config.paths.state))
        others_before = any(trace.exists() for trace in traces)
        for path in (config.socket, config.worker_socket):
            Path(path).unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            hear_no_workers = await slots.listen()
            if others_before:
                await take_over(self._state, slots, self._desk)
            if config.knows_env or not slots.some_live:
                slots.begin()
            else:
                loop.call_later(GREETING, slots.begin)
            self._hear_of_the_end()
            clients = await loop.create_unix_server(self._requests.accept, config.socket)
        finally:
            os.umask(old)
        announce()
        if config.free_gpus:
            from skyward_core.node import gpu_locks

            gpu_locks.answer(loop, config.pool)
        self._look_for_gpus()
        watching = [asyncio.create_task(work) for work in (self._watch_lease(), self._audience.judge())]
        await self._end.wait()
        for task in watching:
            task.cancel()
        for part in (self._notices, self._meter):
            if part is not None:
                part.end()
        clients.close()
        self._fail_fast.end()
        await self._close()
        hear_no_workers()
        if self._outlived:
            self._deadman.end_now()

    def _look_for_gpus(self) -> None:
        """Ranks are told of them. Asking the driver takes its time: the workers start meanwhile."""
        state = self._state
        if state.gpus_known.is_set():
            return

        def known(found: list[tuple[str, str]], why: str) -> None:
            if why:
                self._desk.complain(f"node {state.config.node}: its ranks are told of no GPU, as {why}")
            state.learn_gpus([model for _, model in found])
            self._slots.pump()

        if not state.config.may_have_gpus:
            known([], "")
            return
        from skyward_core.node.agent.gpu_list import ask_meanwhile  # only where there may be some

        ask_meanwhile(state.config, known)

    def _hear_of_the_end(self) -> None:
        """Ask whether the machine is about to be taken back, where that may be."""
        if self._state.config.notices:
            from skyward_core.node.agent.preemption_notices import NoticeDesk

            self._notices = NoticeDesk(self._state, self._audience, self._desk, self._slots)
            self._notices.begin()

    def notices(self) -> list[Header]:
        """What a client that comes is told of that."""
        if not self._state.notices:
            return []
        from skyward_core.node.agent.preemption_notices import frame_of

        return [frame_of(*each) for each in self._state.notices.items()]

    def warn(self, node: int, left: float) -> None:
        """Another node's machine is; seconds left."""
        if self._notices is not None:
            self._notices.warn(node, left)

    def meter(self) -> Meter:
        """What measures the machine; made when somebody asks, or calls run for long."""
        if self._meter is None:
            from skyward_core.node.agent.sampler_process import Meter

            self._meter = Meter(self._state.config)
        return self._meter

    # -- the lease ---------------------------------------------------------------------------------------

    async def _watch_lease(self) -> None:
        lease = self._state.lease
        while True:
            left = lease.remaining(in_use=self.in_use())
            if not Path(self._state.config.folder).exists():
                self._end.set()  # somebody removed it: nobody can find this agent any more
                return
            self._deadman.put_off()
            self._slots.mark_logs()
            self._slots.cut_logs_back()
            self._measure_work()
            self._fail_fast.look()
            if left is not None and left <= 0 and not self._state.register.active:
                self._outlived = True
                self.end_by("", lease.reason())
                self._say_goodbye(lease.reason())
                return
            await asyncio.sleep(min(1.0, max(0.05, left or 1.0)))

    def _measure_work(self) -> None:
        """Have the machine measured once calls have run for long, so that who comes later sees what it did."""
        self._worked = self._worked + 1 if self._state.register.active else 0
        if self._worked == LONG:
            self.meter().begin()

    def in_use(self) -> bool:
        """Whether anybody uses this node now."""
        if self._state.register.active or self._audience.in_use:
            self._state.lease.renew()
            return True
        return False

    def _say_goodbye(self, reason: str) -> None:
        """Leave a word for the next client of this pool; the folder's end is the end of everything else."""
        word = Path(self._state.config.paths.last_word)
        word.write_text(f"the node ended itself: {reason}\n", encoding="utf-8")

    # -- the end -----------------------------------------------------------------------------------------

    def end_by(self, who: str, why: str) -> None:
        """The pool ends: those that wait on it hear of that before the grace of its workers is over.

        A signal only ends this one agent, and says nothing of the pool.
        """
        if not self._end.is_set():
            self._say_ending(who, why)
            self._end.set()

    def _say_ending(self, who: str, why: str) -> None:
        if not self._state.ending:
            self._state.ending = {"t": "ending", "by": who, "why": why}
            self._audience.tell(self._state.ending)

    async def halt(self, who: str) -> None:
        """The pool ends: have the workers end, with their grace, and stay, to give out what they wrote last."""
        self._say_ending(who, "")
        self._state.closing = True
        await self._slots.close()

    def give_up(self, runs: list[str], keep: float) -> None:
        """Who ends the pool has no use for what comes of these runs; the rest is to be kept for at least this long."""
        self._given_up.update(runs)
        self._keep = keep

    async def _close(self) -> None:
        state = self._state
        state.closing = True
        await self._slots.close()
        # Whatever escaped its group; what cannot be killed is left for whoever verifies the end to find.
        deadline = time.monotonic() + STUBBORN
        while (left := members(state.config.folder)) and time.monotonic() < deadline:
            kill_all(left)
            await asyncio.sleep(0.01)
            reap()
        await self._audience.part(self._desk.unconfirmed(self._given_up))
        await asyncio.sleep(0)
        for path in (state.config.socket, state.config.worker_socket):
            Path(path).unlink(missing_ok=True)
        self._desk.acknowledge(dict.fromkeys(self._given_up))
        await asyncio.to_thread(self._settle)

    def _settle(self) -> None:
        """Leave nothing on this host but what nobody has fetched."""
        from skyward_core.node.agent import retained_results  # no agent needs it before

        state = self._state
        folder = Path(state.config.folder)
        if not folder.exists():
            return
        logs = self._unsent_logs()
        if logs or state.register.calls:
            state.journal.shorten()
            if state.redactor:
                retained_results.blank(state.config.spool, state.redactor.data, state.redactor.reach)
        retained_results.settle(folder, max(state.config.keep_results, self._keep), logs)

    def _unsent_logs(self) -> dict[str, int]:
        """Runs of which log bytes have been sent to no client, and how many."""
        sent = self._audience.sent()
        # A little waits for more, as it may be a secret's beginning.
        little = self._state.redactor.reach * len(self._slots.all)
        unsent: dict[str, int] = {}
        for record in self._state.register.records.values():
            spans = [span for outcome in record.outcomes.values() for span in outcome.get("log", {}).items()]
            size = sum(max(0, end - max(start, sent.get(name, 0))) for name, (start, end) in spans)
            if record.run not in self._given_up and size > little:
                unsent[record.run] = size
        return unsent
