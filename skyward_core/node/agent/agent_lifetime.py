"""Lifetime of the agent: take-over from an earlier agent, lease, shutdown of the machine, clean-up."""

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
from skyward_core.node.agent.call_outcomes import CallLifecycle
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.client_requests import ClientRequests
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import ClientRegistry, RankPhases
from skyward_core.node.agent.fail_fast import FailFast
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_processes import (
    add_signal_handlers,
    become_reaper,
    find_orphaned_workers,
    kill_all,
    reap,
)
from skyward_core.node.agent.worker_slot import PLUGIN_CONTEXT_PLACE
from skyward_core.node.bootstrap.host_inspection import find_node_processes
from skyward_core.protocol.frame_codec import Header

if TYPE_CHECKING:
    from skyward_core.node.agent.metrics_sampler_process import SamplerProcess
    from skyward_core.node.agent.preemption_notices import PreemptionNotifier


POSTPONE_PARTS = 5  # it is put off this often in the time after which it ends the machine
MAX_POSTPONE_INTERVAL = 60.0  # seconds between two times


class DeadmanSwitch:
    """The shutdown of one machine.

    Args:
        minutes: after which it comes, unless it is put off; 0 where there is none.
    """

    def __init__(self, minutes: int) -> None:
        self._minutes = minutes
        self._due = 0.0

    def postpone(self) -> None:
        """Have it come later, where it is time for that."""
        now = time.monotonic()
        if self._minutes and now >= self._due:
            self._due = now + min(MAX_POSTPONE_INTERVAL, self._minutes * 60 / POSTPONE_PARTS)
            _schedule_shutdown(f"+{self._minutes}")

    def trigger(self) -> None:
        """Have it come at once."""
        if self._minutes:
            _schedule_shutdown("now")


def _schedule_shutdown(when: str) -> None:
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


RECONNECT_TIMEOUT = 1.0  # seconds in which workers greet that are free to; it takes them a twentieth


async def recover_state(state: NodeState, slots: SlotDispatcher, lifecycle: CallLifecycle) -> None:
    """Know what the other agent knew, and let its workers greet before any client is heard: they know of the gang, and
    a client would form another."""
    left = find_orphaned_workers(state.config)
    for slot in slots.slots:
        slot.logs.open()
        if pid := left.get((slot.rank, slot.number)):
            slot.adopt(pid)
    if pid := left.get(PLUGIN_CONTEXT_PLACE):
        slots.plugin_contexts.adopt(pid)
    _restore_journal(state, lifecycle)
    for call in list(state.registry.calls.values()):
        if call.outcome is None:
            next(s for s in slots.slots if (s.rank, s.number) == (call.rank, call.slot)).adopt_call(call)
    with suppress(TimeoutError):
        async with asyncio.timeout(RECONNECT_TIMEOUT):
            while any(slot.process and not slot.process.connection for slot in slots.slots):
                slots.worker_event.clear()
                await slots.worker_event.wait()


def _restore_journal(state: NodeState, lifecycle: CallLifecycle) -> None:
    registry = state.registry
    for header, body in state.journal.read():
        if header["t"] == "ack":
            registry.acknowledge(header["calls"])
            continue
        told = header["call"] if header["t"] == "given" else header
        key = (told["run"], told["i"])
        known = registry.calls.get(key)
        if header["t"] == "given":
            call = Call(*key, header["call"], b"", None, rank=header["rank"], slot=header["slot"])
            call.started_at, call.log_start = asyncio.get_running_loop().time(), header.get("log", {})
            registry.add(call)
            lifecycle.open_value_buffer(call)
        elif known is not None and known.outcome is None:
            known.result = body
            registry.record_outcome(known, header)


WORKER_START_DELAY = 5.0  # seconds in which workers that another agent left have greeted
# Looks at the lease, a second each, at which calls ran: somebody may want to know what the machine did.
BUSY_CHECKS = 10
KILL_TIMEOUT = 5.0  # seconds for what a node ran to end once it is killed


class Agent:
    """See the module. One instance per process; :meth:`run` is its whole life."""

    def __init__(self, config: AgentConfig) -> None:
        self._state = state = NodeState(config)
        self._clients = ClientRegistry()
        self._lifecycle = CallLifecycle(state, self._clients)
        phases = RankPhases(self._clients.send_to_watchers)
        self._slots = SlotDispatcher(state, self._clients, self._lifecycle, phases)
        self._fail_fast = FailFast(state, self._slots)
        self._requests = ClientRequests(
            state, self._clients, self._lifecycle, self._slots, phases, self._fail_fast, self
        )
        self._end_requested = asyncio.Event()
        self._preemption: PreemptionNotifier | None = None
        self._sampler: SamplerProcess | None = None
        self._busy_checks = 0  # looks at the lease, one after the other, at which calls ran
        self._discarded_runs: set[str] = set()  # runs whose client ends the pool
        self._deadman = DeadmanSwitch(config.deadman)
        self._is_expired = False  # the lease is over, and nobody needs the machine
        self._min_retention = 0.0  # seconds for which what is left has to be kept at least

    async def run(self, announce: Callable[[], None]) -> None:
        """Serve until shut down, by a client or by the lease. ``announce`` is called once it listens."""
        config, slots = self._state.config, self._slots
        loop = asyncio.get_running_loop()
        become_reaper()
        add_signal_handlers({signal.SIGCHLD: slots.reap, signal.SIGTERM: self._end_requested.set})
        # Looking for what others have left takes as long as the machine has processes.
        traces = (Path(config.worker_socket), Path(config.paths.state))
        others_before = any(trace.exists() for trace in traces)
        for path in (config.socket, config.worker_socket):
            Path(path).unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            hear_no_workers = await slots.listen()
            if others_before:
                await recover_state(self._state, slots, self._lifecycle)
            if config.knows_env or not slots.has_live_processes:
                slots.start_workers()
            else:
                loop.call_later(WORKER_START_DELAY, slots.start_workers)
            self._start_preemption_monitor()
            clients = await loop.create_unix_server(self._requests.accept, config.socket)
        finally:
            os.umask(old)
        announce()
        if config.free_gpus:
            from skyward_core.node import gpu_locks

            gpu_locks.serve_pool_name(loop, config.pool)
        self._detect_gpus()
        watching = [asyncio.create_task(work) for work in (self._watch_lease(), self._clients.drop_unresponsive())]
        await self._end_requested.wait()
        for task in watching:
            task.cancel()
        for part in (self._preemption, self._sampler):
            if part is not None:
                part.stop()
        clients.close()
        self._fail_fast.close()
        await self._close()
        hear_no_workers()
        if self._is_expired:
            self._deadman.trigger()

    def _detect_gpus(self) -> None:
        """Ranks are told of them. Asking the driver takes its time: the workers start meanwhile."""
        state = self._state
        if state.gpus_known.is_set():
            return

        def known(found: list[tuple[str, str]], reason: str) -> None:
            if reason:
                self._lifecycle.warn_clients(f"node {state.config.node}: its ranks are told of no GPU, as {reason}")
            state.learn_gpus([model for _, model in found])
            self._slots.pump()

        if not state.config.may_have_gpus:
            known([], "")
            return
        from skyward_core.node.agent.gpu_list import start_gpu_query  # only where there may be some

        start_gpu_query(state.config, known)

    def _start_preemption_monitor(self) -> None:
        """Ask whether the machine is about to be taken back, where that may be."""
        if self._state.config.notices:
            from skyward_core.node.agent.preemption_notices import PreemptionNotifier

            self._preemption = PreemptionNotifier(self._state, self._clients, self._lifecycle, self._slots)
            self._preemption.start()

    def notice_frames(self) -> list[Header]:
        """What a client that comes is told of that."""
        if not self._state.notices:
            return []
        from skyward_core.node.agent.preemption_notices import notice_frame

        return [notice_frame(*each) for each in self._state.notices.items()]

    def on_remote_notice(self, node: int, left: float) -> None:
        """Another node's machine is; seconds left."""
        if self._preemption is not None:
            self._preemption.on_remote_notice(node, left)

    def machine_sampler(self) -> SamplerProcess:
        """What measures the machine; made when somebody asks, or calls run for long."""
        if self._sampler is None:
            from skyward_core.node.agent.metrics_sampler_process import SamplerProcess

            self._sampler = SamplerProcess(self._state.config)
        return self._sampler

    # -- the lease ---------------------------------------------------------------------------------------

    async def _watch_lease(self) -> None:
        lease = self._state.lease
        while True:
            left = lease.remaining(in_use=self.is_in_use())
            if not Path(self._state.config.folder).exists():
                self._end_requested.set()  # somebody removed it: nobody can find this agent any more
                return
            self._deadman.postpone()
            self._slots.mark_logs()
            self._slots.truncate_logs()
            self._sample_long_work()
            self._fail_fast.check()
            if left is not None and left <= 0 and not self._state.registry.active:
                self._is_expired = True
                self.shut_down("", lease.reason())
                self._write_exit_reason(lease.reason())
                return
            await asyncio.sleep(min(1.0, max(0.05, left or 1.0)))

    def _sample_long_work(self) -> None:
        """Have the machine measured once calls have run for long, so that who comes later sees what it did."""
        self._busy_checks = self._busy_checks + 1 if self._state.registry.active else 0
        if self._busy_checks == BUSY_CHECKS:
            self.machine_sampler().ensure_running()

    def is_in_use(self) -> bool:
        """Whether anybody uses this node now."""
        if self._state.registry.active or self._clients.is_in_use:
            self._state.lease.renew()
            return True
        return False

    def _write_exit_reason(self, reason: str) -> None:
        """Leave a word for the next client of this pool; the folder's end is the end of everything else."""
        word = Path(self._state.config.paths.exit_reason)
        word.write_text(f"the node ended itself: {reason}\n", encoding="utf-8")

    # -- the end -----------------------------------------------------------------------------------------

    def shut_down(self, who: str, reason: str) -> None:
        """The pool ends: those that wait on it hear of that before the grace of its workers is over.

        A signal only ends this one agent, and says nothing of the pool.
        """
        if not self._end_requested.is_set():
            self._announce_end(who, reason)
            self._end_requested.set()

    def _announce_end(self, who: str, reason: str) -> None:
        if not self._state.end_frame:
            self._state.end_frame = {"t": "ending", "by": who, "why": reason}
            self._clients.send_to_all(self._state.end_frame)

    async def halt(self, who: str) -> None:
        """The pool ends: have the workers end, with their grace, and stay, to give out what they wrote last."""
        self._announce_end(who, "")
        self._state.is_closing = True
        await self._slots.close()

    def discard_results(self, runs: list[str], keep: float) -> None:
        """Who ends the pool has no use for what comes of these runs; the rest is to be kept for at least this long."""
        self._discarded_runs.update(runs)
        self._min_retention = keep

    async def _close(self) -> None:
        state = self._state
        state.is_closing = True
        await self._slots.close()
        # Whatever escaped its group; what cannot be killed is left for whoever verifies the end to find.
        deadline = time.monotonic() + KILL_TIMEOUT
        while (left := find_node_processes(state.config.folder)) and time.monotonic() < deadline:
            kill_all(left)
            await asyncio.sleep(0.01)
            reap()
        await self._clients.close_all(self._lifecycle.unconfirmed_sizes(self._discarded_runs))
        await asyncio.sleep(0)
        for path in (state.config.socket, state.config.worker_socket):
            Path(path).unlink(missing_ok=True)
        self._lifecycle.acknowledge(dict.fromkeys(self._discarded_runs))
        await asyncio.to_thread(self._clean_up_folder)

    def _clean_up_folder(self) -> None:
        """Leave nothing on this host but what nobody has fetched."""
        from skyward_core.node.agent import retained_results  # no agent needs it before

        state = self._state
        folder = Path(state.config.folder)
        if not folder.exists():
            return
        logs = self._unsent_logs()
        if logs or state.registry.calls:
            state.journal.compact()
            if state.redactor:
                retained_results.redact_logs(state.config.spool, state.redactor.redact_bytes, state.redactor.reach)
        retained_results.remove_or_retain(folder, max(state.config.keep_results, self._min_retention), logs)

    def _unsent_logs(self) -> dict[str, int]:
        """Runs of which log bytes have been sent to no client, and how many."""
        sent = self._clients.sent_log_sizes()
        # A little waits for more, as it may be a secret's beginning.
        little = self._state.redactor.reach * len(self._slots.slots)
        unsent: dict[str, int] = {}
        for record in self._state.registry.records.values():
            spans = [span for outcome in record.outcomes.values() for span in outcome.get("log", {}).items()]
            size = sum(max(0, end - max(start, sent.get(name, 0))) for name, (start, end) in spans)
            if record.run not in self._discarded_runs and size > little:
                unsent[record.run] = size
        return unsent
