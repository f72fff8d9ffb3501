"""Lifetime of the agent: taking over from an earlier agent, lease, shutdown of the machine, clean-up."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.node.agent import worker_processes
from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import DeadmanSwitch, NodeState
from skyward_core.node.agent.call_lifecycle import CallLifecycle
from skyward_core.node.agent.call_registry import Call, attempt_number
from skyward_core.node.agent.client_requests import ClientRequests
from skyward_core.node.agent.config import HANDLER_GRACE, AgentConfig
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.fail_fast_without_client import FailFast
from skyward_core.node.agent.plugin_context_supervisor import PLUGIN_CONTEXT_PLACE
from skyward_core.node.agent.restart_without_client import UnattendedRestarts
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_slot_queue_and_process import RankPhases
from skyward_core.node.bootstrap.host_inspection import find_node_processes
from skyward_core.node.deferred_imports import SPARE
from skyward_core.protocol.frame_codec import Header, encode_frame

if TYPE_CHECKING:
    from skyward_core.node.agent.metrics_sampler_supervisor import SamplerProcess
    from skyward_core.node.agent.preemption_notices import PreemptionNotifier


# seconds that a new agent waits for workers of a dead agent; idle workers reconnect within 0.05 s
RECONNECT_TIMEOUT = 1.0


async def recover_state(state: NodeState, slots: SlotDispatcher, lifecycle: CallLifecycle) -> None:
    """Restore the previous agent's calls from its journal, and reconnect its workers.

    Runs before clients can connect. The workers report the gang that they belong to. Without this report, a client
    would form a new gang.
    """
    orphans = worker_processes.find_orphaned_workers(state.config)
    for slot in slots.slots:
        slot.logs.open()
        if pid := orphans.get((slot.rank, slot.number)):
            slot.adopt(pid)
    if pid := orphans.get(PLUGIN_CONTEXT_PLACE):
        slots.plugin_contexts.adopt(pid)
    _restore_journal(state, lifecycle)
    for call in list(state.registry.calls.values()):
        if call.end is None:
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
        fields = header["call"] if header["t"] == "given" else header
        key = (fields["run"], fields["i"])
        known = registry.calls.get(key)
        if header["t"] == "given":
            number = attempt_number(header["call"])
            # The new attempt's gang may use other call indices, so its calls do not replace those of earlier attempts.
            for earlier in registry.calls_of_run(fields["run"]):
                if earlier.is_gang_call and earlier.attempt < number:
                    if earlier.undecided is not None:
                        registry.record_outcome(earlier, earlier.undecided)
                    registry.drop(earlier)
            call = Call(*key, header["call"], body, None, rank=header["rank"], slot=header["slot"])
            call.started_at = call.owner_lost_at = asyncio.get_running_loop().time()
            call.log_start = header.get("log", {})
            registry.add(call)
            lifecycle.open_value_buffer(call)
        elif known is not None and known.outcome is None:
            lifecycle.restore_outcome(known, header, body)


WORKER_START_DELAY = 5.0  # seconds in which workers of the previous agent may reconnect before new ones start
# Number of consecutive lease checks (one per second) with active calls before the agent starts to sample machine
# metrics. The samples are the history for clients that connect later.
BUSY_CHECKS = 10
KILL_TIMEOUT = 5.0  # seconds to wait for killed processes to exit


class Agent:
    """The agent of a node. :meth:`run` serves clients and workers until the agent ends."""

    def __init__(self, config: AgentConfig) -> None:
        self._state = state = NodeState(config)
        self._clients = ClientRegistry()
        self._lifecycle = CallLifecycle(state, self._clients)
        phases = RankPhases(self._clients.send_to_watchers)
        self._slots = SlotDispatcher(state, self._clients, self._lifecycle, phases)
        self._fail_fast = FailFast(state, self._slots)
        self._fail_fast.on_notice = self.on_remote_notice
        self._requests = ClientRequests(
            state, self._clients, self._lifecycle, self._slots, phases, self._fail_fast, self
        )
        self._restarts = UnattendedRestarts(
            state, self._slots, self._clients, self._lifecycle, self._fail_fast, self._requests.gang_requests,
            self._requests.transfers,
        )  # fmt: skip
        self._end_requested = asyncio.Event()
        self._preemption: PreemptionNotifier | None = None
        self._sampler: SamplerProcess | None = None
        self._busy_checks = 0  # number of consecutive lease checks that found active calls
        self._discarded_runs: set[str] = set()  # runs whose results the client discarded when it tore the pool down
        self._deadman = DeadmanSwitch(config.deadman)
        self._is_expired = False  # whether the lease has expired
        self._min_retention = 0.0  # seconds for which results are retained at least
        SPARE.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(2))
        # Spare descriptor. If the process has no free descriptor, the agent closes this one to accept a client and send
        # it the error.
        self._spare = os.open(os.devnull, os.O_RDONLY)
        # shortages (for example of descriptors) already reported to clients, so that each is reported once
        self._shortages: set[str] = set()

    async def run(self, announce: Callable[[], None]) -> None:
        """Serve until a client, a signal or the lease ends the agent. Call ``announce`` once the agent listens."""
        config, slots = self._state.config, self._slots
        loop = asyncio.get_running_loop()
        worker_processes.become_reaper()
        loop.set_exception_handler(self._on_loop_error)
        worker_processes.add_signal_handlers({signal.SIGCHLD: slots.reap, signal.SIGTERM: self._end_requested.set})
        # Recovery scans all processes of the machine, so it runs only if an earlier agent left files.
        others_before = any(trace.exists() for trace in (Path(config.worker_socket), Path(config.paths.state)))
        for path in (config.socket, config.worker_socket):
            Path(path).unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            stop_listening = await slots.listen()
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
            from skyward_core.node import gpu_locks_and_usage

            gpu_locks_and_usage.serve_pool_name(loop, config.pool)
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
        stop_listening()
        if self._is_expired:
            self._deadman.trigger()

    def _detect_gpus(self) -> None:
        """Detect the GPUs in the background. Workers start before the result is known, and ranks wait for it."""
        state = self._state
        if state.gpus_known.is_set():
            return

        def known(found: list[tuple[str, str]], reason: str) -> None:
            if reason:
                self._lifecycle.warn_clients(f"node {state.config.node}: ranks do not know its GPUs: {reason}")
            state.learn_gpus([model for _, model in found])
            self._slots.pump()

        if not state.config.may_have_gpus:
            known([], "")
            return
        from skyward_core.node.agent.gpu_detection import start_gpu_query  # imported late, because few nodes need it

        start_gpu_query(state.config, known)

    def _start_preemption_monitor(self) -> None:
        """Start polling for preemption notices if the provider has them."""
        if self._state.config.notices or Path(self._state.config.paths.notices).exists():
            self._notifier().start()

    def _notifier(self) -> PreemptionNotifier:
        if self._preemption is None:
            from skyward_core.node.agent.preemption_notices import PreemptionNotifier

            parts = self._state, self._clients, self._lifecycle, self._slots, self._fail_fast.notify_preemption
            self._preemption = PreemptionNotifier(*parts)
        return self._preemption

    def notice_frames(self) -> list[Header]:
        """Return the preemption notices for a client that connects."""
        if not self._state.notices:
            return []
        from skyward_core.node.agent.preemption_notices import notice_frame

        return [notice_frame(*each) for each in self._state.notices.items()]

    def on_remote_notice(self, node: int, left: float) -> None:
        """Handle a preemption notice for another node, from a client or that node.

        Args:
            node: The other node.
            left: Seconds until its machine is reclaimed.
        """
        if self._preemption is not None:
            self._preemption.on_remote_notice(node, left)

    def save_run(self, run: str, grace: float | None) -> float:
        """Notify the ranks of a cancelled run to save their work. Return the seconds after which the ranks are killed.

        Args:
            run: The run.
            grace: Seconds until the ranks are killed; None for the pool's grace period.
        """
        own = self._state.config.grace
        grace = grace if grace is not None else HANDLER_GRACE if own is None else own
        self._notifier().save_run(run, grace)
        return grace

    def machine_sampler(self) -> SamplerProcess:
        """Return the sampler of machine metrics. Create it on first use."""
        if self._sampler is None:
            from skyward_core.node.agent.metrics_sampler_supervisor import SamplerProcess

            self._sampler = SamplerProcess(self._state.config)
        return self._sampler

    # -- limits of the machine ---------------------------------------------------------------------------

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Reject waiting clients or workers if accept() failed for lack of descriptors. Log other unhandled exceptions.

        The event loop retries accept() every second.
        """
        error, listener = context.get("exception"), context.get("socket")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE) or listener is None:
            loop.default_exception_handler(context)
            return
        shortage = worker_processes.describe_shortage(error)
        failure = f"the agent of node {self._state.config.node} cannot accept connections: {shortage}"
        self._warn_of_shortage(failure)
        if listener.getsockname() == self._state.config.worker_socket:
            self._slots.reject_unconnected(failure)
        else:
            self._reject_clients(listener.fileno(), failure)

    def _reject_clients(self, listener: int, failure: str) -> None:
        """Accept all clients that wait for a connection, only to send them the failure."""
        waiting = socket.socket(fileno=listener)
        try:
            with suppress(BlockingIOError):
                while True:
                    os.close(self._spare)
                    try:
                        connection, _ = waiting.accept()
                        with connection, suppress(OSError):  # fails if the client has already disconnected
                            connection.send(encode_frame({"t": "error", "message": failure}), socket.MSG_DONTWAIT)
                    finally:
                        self._spare = os.open(os.devnull, os.O_RDONLY)
        finally:
            waiting.detach()

    def _warn_of_shortage(self, message: str) -> None:
        if message not in self._shortages:
            self._shortages.add(message)
            self._lifecycle.warn_clients(message)

    # -- the lease ---------------------------------------------------------------------------------------

    async def _watch_lease(self) -> None:
        lease = self._state.lease
        while True:
            left = lease.remaining(in_use=self.is_in_use())
            if not Path(self._state.config.folder).exists():
                self._end_requested.set()  # End the agent: without the node's folder no client can find it.
                return
            try:
                self._deadman.postpone()
            except OSError as error:  # The next lease check postpones the shutdown again.
                self._warn_of_shortage(
                    f"the shutdown of the machine cannot be postponed: {worker_processes.describe_shortage(error)}"
                )
            self._slots.mark_logs()
            for slot in self._slots.slots:
                slot.logs.truncate()
            self._sample_long_work()
            self._fail_fast.check()
            self._restarts.check()
            if self._preemption is not None:
                self._preemption.check()
            if left is not None and left <= 0 and not self._state.registry.active:
                self._is_expired = True
                self.shut_down("", lease.reason())
                # Leave the reason why the node ended for the pool's next client. All other files of the node are
                # deleted.
                text = f"the node ended itself: {lease.reason()}\n"
                Path(self._state.config.paths.exit_reason).write_text(text, encoding="utf-8")
                return
            await asyncio.sleep(min(1.0, max(0.05, left or 1.0)))

    def _sample_long_work(self) -> None:
        """Sample machine metrics once calls have run for a while. Clients that connect later get these samples."""
        self._busy_checks = self._busy_checks + 1 if self._state.registry.active else 0
        if self._busy_checks == BUSY_CHECKS:
            self.machine_sampler().ensure_running()

    def is_in_use(self) -> bool:
        """Return whether a client or a call uses this node. If so, renew the lease."""
        if self._state.registry.active or self._clients.is_in_use:
            self._state.lease.renew()
            return True
        return False

    # -- the end -----------------------------------------------------------------------------------------

    def shut_down(self, who: str, reason: str) -> None:
        """End the agent, normally because the pool ends. Notify clients before the workers get their grace period.

        If a signal ends the agent, the pool continues, so clients are not notified of the pool's end.
        """
        if not self._end_requested.is_set():
            self._announce_end(who, reason)
            self._end_requested.set()

    def _announce_end(self, who: str, reason: str) -> None:
        if not self._state.end_frame:
            self._state.end_frame = {"t": "ending", "by": who, "why": reason}
            self._clients.send_to_all(self._state.end_frame)

    async def halt(self, who: str) -> None:
        """Stop the workers at the pool's end with a grace period. Continue to send their output to clients."""
        self._announce_end(who, "")
        self._state.is_closing = True
        self._lifecycle.release_all()
        await self._slots.close()

    def discard_results(self, runs: list[str], keep: float) -> None:
        """Mark the results of some runs as discarded, and set for how long all other results are retained.

        Args:
            runs: Runs whose results the client that tears the pool down does not need.
            keep: Minimum seconds for which the other results are retained.
        """
        self._discarded_runs.update(runs)
        self._min_retention = keep

    async def _close(self) -> None:
        state = self._state
        state.is_closing = True
        self._lifecycle.release_all()
        await self._slots.close()
        # Kill child processes that left the process group of their rank. The client's teardown reports survivors.
        deadline = time.monotonic() + KILL_TIMEOUT
        while (remaining := find_node_processes(state.config.folder)) and time.monotonic() < deadline:
            worker_processes.kill_all(remaining)
            await asyncio.sleep(0.01)
            worker_processes.reap()
        await self._clients.close_all(self._lifecycle.unconfirmed_sizes(self._discarded_runs))
        await asyncio.sleep(0)
        for path in (state.config.socket, state.config.worker_socket):
            Path(path).unlink(missing_ok=True)
        self._lifecycle.acknowledge(dict.fromkeys(self._discarded_runs))
        try:
            await worker_processes.run_in_thread(self._clean_up_folder)
        except OSError:  # The thread cannot be started, so clean up in this thread.
            self._clean_up_folder()

    def _clean_up_folder(self) -> None:
        """Delete the files of this node, except for retained results."""
        from skyward_core.node.agent.results_retained_after_node_end import redact_logs, remove_or_retain

        state = self._state
        folder = Path(state.config.folder)
        if not folder.exists():
            return
        logs = self._unsent_logs()
        if logs or state.registry.calls:
            state.journal.compact()
            if state.redactor.has_secrets:
                redact_logs(state.config.spool, state.redactor.redact_bytes, state.redactor.reach)
        remove_or_retain(folder, max(state.config.keep_results, self._min_retention), logs)

    def _unsent_logs(self) -> dict[str, int]:
        """Return for each run the number of log bytes that no client has received."""
        sent = self._clients.sent_log_sizes()
        # The agent withholds the last bytes of each log, because they may be the beginning of a secret.
        held_back = self._state.redactor.reach * len(self._slots.slots)
        unsent: dict[str, int] = {}
        for record in self._state.registry.records.values():
            spans = [span for outcome in record.outcomes.values() for span in outcome.get("log", {}).items()]
            size = sum(max(0, end - max(start, sent.get(name, 0))) for name, (start, end) in spans)
            if record.run not in self._discarded_runs and size > held_back:
                unsent[record.run] = size
        return unsent
