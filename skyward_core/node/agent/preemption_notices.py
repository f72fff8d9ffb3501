"""Preemption notices: detected on this node, forwarded to clients and ranks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from signal import SIGKILL
from time import monotonic
from typing import Any, cast

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_lifecycle import CallLifecycle
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_processes import signal_group, signal_process, spawn_monitor
from skyward_core.node.agent.worker_slot_queue_and_process import Slot
from skyward_core.protocol.frame_codec import CANCELLED_NODE, Header
from skyward_core.protocol.frame_schemas_and_size_limits import LONGEST_NOTICE, NOTICES, is_same_deadline
from skyward_core.runtime.preemption import NOTICE_GRACE, NOTICE_SIGNAL, PreemptionNotice, read_notices

MAX_LINE_BYTES = 4096  # maximum bytes of one line that the provider's watcher program prints
RESTART_DELAYS = (1.0, 60.0)  # minimum and maximum seconds until the provider's watcher program is restarted

OnMessage = Callable[[dict[str, Any]], None]


class PreemptionMonitor:
    """Supervisor of the provider's program that polls for preemption notices. The program exits when its input closes.

    Args:
        config: Configuration of the agent; contains the program.
        on_message: Called with each JSON object that the program prints.
        warn: Called once with the reason if the program keeps failing.
    """

    def __init__(self, config: AgentConfig, on_message: OnMessage, warn: Callable[[str], None]) -> None:
        self._config, self._on_message, self._warn = config, on_message, warn
        self._child: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._pause = RESTART_DELAYS[0]
        self._has_warned = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Run the program until :meth:`stop`."""
        try:
            self._child = child = spawn_monitor(self._config, self._config.notices, stderr=subprocess.DEVNULL)
        except OSError as error:
            self._schedule_restart(str(error))
            return
        self._buffer = b""
        asyncio.get_running_loop().add_reader(cast(Any, child.stdout).fileno(), self._on_readable)

    def stop(self) -> None:
        """Stop the program."""
        if self._timer is not None:
            self._timer.cancel()
        self._close()

    def _close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            asyncio.get_running_loop().remove_reader(cast(Any, child.stdout).fileno())
            for pipe in (child.stdin, child.stdout):
                cast(Any, pipe).close()

    def _on_readable(self) -> None:
        child = self._child
        if child is None:
            return
        chunk = os.read(cast(Any, child.stdout).fileno(), MAX_LINE_BYTES)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            self._on_line(line)
        if not chunk or len(self._buffer) > MAX_LINE_BYTES:
            if chunk:
                signal_group(child.pid, SIGKILL)
            self._close()
            self._schedule_restart(
                "its polling program exited" if not chunk else "its polling program printed invalid output"
            )

    def _on_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict):
            self._pause = RESTART_DELAYS[0]
            self._on_message(message)

    def _schedule_restart(self, reason: str) -> None:
        pause, self._pause = self._pause, min(RESTART_DELAYS[1], self._pause * 2)
        if pause > RESTART_DELAYS[0] and not self._has_warned:
            # The first failure is not reported, because it may be transient.
            self._has_warned = True
            self._warn(reason)
        self._timer = asyncio.get_running_loop().call_later(pause, self.start)


# seconds between the notification of ranks, which run callbacks, and SIGTERM, which may end the ranks
CALLBACK_HEAD_START = 0.5


class PreemptionNotifier:
    """Preemption notices of one node: tells ranks to save their work, and informs clients and the gang's other nodes.

    Args:
        state: State of the agent.
        clients: Connected clients.
        lifecycle: Handler of calls; sends warnings.
        slots: Slots of the ranks.
        notify_peers: Notifies the gang's other nodes, because no client may be connected that notifies them. Takes the
            seconds until the preemption.
    """

    def __init__(
        self,
        state: NodeState,
        clients: ClientRegistry,
        lifecycle: CallLifecycle,
        slots: SlotDispatcher,
        notify_peers: Callable[[float], Coroutine[Any, Any, None]],
    ) -> None:
        self._notify_peers = notify_peers
        self._state, self._clients, self._lifecycle, self._slots = state, clients, lifecycle, slots
        self._node = state.config.node
        self._monitor = PreemptionMonitor(state.config, self._on_notice, self._warn_clients)
        self._saved: dict[int, PreemptionNotice] = {}
        self._epochs: dict[int, int] = {}  # preempted node -> epoch of the gang whose ranks were notified

    def start(self) -> None:
        """Resume the notifications that an earlier agent has begun or saved, then start polling for notices."""
        self._saved = {each.node: each for each in read_notices(self._state.config.paths.notices)}
        self._note_end()
        self._state.is_preempted = self._node in self._saved
        if self._saved:
            self._signal_ranks()
            self._send_sigterm()
            for notice in self._saved.values():
                self._mark_saving(notice)
        if self._state.config.notices:
            self._monitor.start()

    def stop(self) -> None:
        """Stop polling for preemption notices."""
        self._monitor.stop()

    # -- this node ---------------------------------------------------------------------------------------

    def _warn_clients(self, reason: str) -> None:
        self._lifecycle.warn_clients(f"node {self._node}: cannot poll for preemption notices: {reason}")

    def _on_notice(self, message: dict[str, Any]) -> None:
        if isinstance(reason := message.get("error"), str):
            self._warn_clients(reason[:200])
        kind, left = message.get("kind"), message.get("left")
        if kind not in NOTICES or not (left is None or (type(left) in (int, float) and 0 <= left <= LONGEST_NOTICE)):
            return
        deadline = None if left is None or kind == "rebalance" else monotonic() + left
        known = self._state.notices
        if kind in known and is_same_deadline(known[kind], deadline):
            return
        known[kind] = deadline
        self._clients.send_to_all(notice_frame(kind, deadline))
        if kind != "rebalance":
            self._announce_preemption(monotonic() if deadline is None else deadline)

    def _announce_preemption(self, deadline: float) -> None:
        """Notify the ranks of this node of its preemption. Send SIGTERM to the ranks soon after."""
        self._state.is_preempted = True
        before = self._saved.get(self._node)
        if before is not None and is_same_deadline(before.ends, deadline):
            return
        # Do not notify workers that are still starting: they have no signal handler yet, and no work to save.
        self._notify_ranks(self._node, deadline, lambda slot: slot.is_set_up)
        self._state.spawn(self._notify_peers(max(0.0, deadline - monotonic())))

    def _send_sigterm(self) -> None:
        """Send SIGTERM to the notified ranks, but only once: ranks treat a second SIGTERM as a stop."""
        for notice in [each for each in self._saved.values() if not each.sent]:
            self._send_sigterm_to(notice.pids)
            self._save_notice(PreemptionNotice(notice.node, notice.here, notice.ends, notice.pids, sent=True))

    def _send_sigterm_to(self, pids: Collection[int]) -> None:
        for slot in self._slots.slots:
            if slot.process is not None and slot.process.pid in pids:
                # Send SIGTERM to the rank's process only. Its child processes, such as data loaders, are needed while
                # it saves.
                signal_process(slot.process.pid, signal.SIGTERM)

    def check(self) -> None:
        """Notify ranks that started their calls after a notice arrived.

        Ranks of a newer gang run the next attempt, which the notice does not concern.
        """
        epoch = self._state.gang.epoch
        due = [each for node, each in self._saved.items() if each.sent and self._epochs.get(node) == epoch]
        for notice in due[:1]:
            if late := set(self._unnotified(Slot.restarts_with_gang)) - set(notice.pids):
                pids = (*notice.pids, *late)
                late_notice = PreemptionNotice(notice.node, notice.here, notice.ends, pids, sent=True)
                # Save the notice first: it tells the rank that the following SIGTERM announces a preemption.
                self._save_notice(late_notice)
                self._mark_saving(late_notice)
                self._send_sigterm_to(late)

    # -- other nodes -------------------------------------------------------------------------------------

    def on_remote_notice(self, node: int, left: float) -> None:
        """Notify the ranks of this node that another node is preempted, as a client or that node reported.

        If the run restarts, the ranks save their work together with that node's ranks, because saving a framework's
        checkpoint is a collective operation. They get SIGTERM, too.

        Args:
            node: The other node.
            left: Seconds until its machine is reclaimed.
        """
        deadline = monotonic() + min(LONGEST_NOTICE, max(0.0, left))
        known = self._saved.get(node)
        if node != self._node and not (known is not None and is_same_deadline(known.ends, deadline)):
            self._notify_ranks(node, deadline, Slot.restarts_with_gang)

    # -- cancelled runs ----------------------------------------------------------------------------------

    def save_run(self, run: str, grace: float) -> None:
        """Notify the ranks of a run that is cancelled, so that they save their work within ``grace`` seconds."""
        key = min(CANCELLED_NODE, min(self._saved, default=0) - 1)
        for slot in self._slots.slots:  # Only extend the time of saving ranks: a second SIGTERM would interrupt them.
            saves = slot.process is not None and slot.process.saves_for is not None
            if saves and any(call[0] == run for call in slot.running):
                slot.mark_saving(key, monotonic() + grace)
        self._notify_ranks(key, monotonic() + grace, lambda slot: any(call[0] == run for call in slot.running))

    # -- notification of ranks ---------------------------------------------------------------------------

    def _notify_ranks(self, node: int, deadline: float, gets_sigterm: Callable[[Slot], bool]) -> None:
        """Make all ranks run their preemption callbacks, and send SIGTERM to the selected ranks soon after."""
        notice = PreemptionNotice(node, node == self._node, deadline, tuple(self._unnotified(gets_sigterm)))
        self._save_notice(notice)
        if node > CANCELLED_NODE:
            self._epochs[node] = self._state.gang.epoch
        self._signal_ranks()
        self._mark_saving(notice)
        asyncio.get_running_loop().call_later(CALLBACK_HEAD_START, self._send_sigterm)

    def _unnotified(self, gets_sigterm: Callable[[Slot], bool]) -> list[int]:
        return [
            slot.process.pid
            for slot in self._slots.slots
            if slot.process is not None and slot.process.connection is not None
            if slot.process.saves_for is None and gets_sigterm(slot)
        ]

    def _mark_saving(self, notice: PreemptionNotice) -> None:
        for slot in self._slots.slots:
            if slot.process is not None and slot.process.pid in notice.pids:
                slot.mark_saving(notice.node, notice.ends)

    def _save_notice(self, notice: PreemptionNotice) -> None:
        """Save a notice where ranks and later agents find it. Drop expired notices."""
        now, path = monotonic(), self._state.config.paths.notices
        current = {node: each for node, each in self._saved.items() if each.here or now < each.ends + NOTICE_GRACE}
        self._saved = current | {notice.node: notice}
        self._note_end()
        try:
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                json.dump([each.to_json() for each in self._saved.values()], file)
            Path(f"{path}.part").replace(path)
        except OSError as error:
            self._lifecycle.warn_clients(f"node {self._node}: cannot notify ranks of preemptions: {error}")

    def _note_end(self) -> None:
        ends = [each.ends for each in self._saved.values() if each.node > CANCELLED_NODE]
        self._state.preemption_ends = max(ends, default=0.0)

    def _signal_ranks(self) -> None:
        for slot in self._slots.slots:
            if slot.process is not None and slot.process.connection is not None:
                signal_process(slot.process.pid, NOTICE_SIGNAL)


def notice_frame(kind: str, deadline: float | None) -> Header:
    """Return the frame that informs clients of a notice.

    Args:
        kind: Kind of the notice.
        deadline: Deadline by the monotonic clock; None if unknown.
    """
    seconds = None if deadline is None else round(max(0.0, deadline - monotonic()), 3)
    return {"t": "notice", "kind": kind, "left": seconds}
