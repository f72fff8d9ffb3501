"""Notices that the machine will be taken back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from time import monotonic
from typing import Any, cast

from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.call_outcomes import CallLifecycle
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_processes import node_mark_env, signal_group, signal_process
from skyward_core.protocol.frame_codec import Header
from skyward_core.protocol.frame_schema import LONGEST_NOTICE, NOTICES, is_same_deadline
from skyward_core.runtime.preemption import NOTICE_GRACE, NOTICE_SIGNAL, PreemptionNotice

MAX_LINE_BYTES = 4096  # bytes of a line
RESTART_DELAYS = (1.0, 60.0)  # seconds before it is started again, the first time and at most

OnMessage = Callable[[dict[str, Any]], None]


class PreemptionMonitor:
    """One node's. It ends with its standard input, and so with its agent.

    Args:
        config: of the node; it has the program.
        hear: told of each object that the program prints as a line of JSON.
        complain: told in words, once, where it does not go on by itself.
    """

    def __init__(self, config: AgentConfig, hear: OnMessage, complain: Callable[[str], None]) -> None:
        self._config, self._on_message, self._warn = config, hear, complain
        self._child: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._pause = RESTART_DELAYS[0]
        self._has_warned = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Have it run, until :meth:`end`."""
        config = self._config
        try:
            self._child = child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", config.notices],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=os.environ | config.env | node_mark_env(config.folder),
                start_new_session=True,
            )
        except OSError as error:
            self._schedule_restart(str(error))
            return
        child.returncode = 0  # the agent collects every child itself
        self._buffer = b""
        asyncio.get_running_loop().add_reader(cast(Any, child.stdout).fileno(), self._on_readable)

    def stop(self) -> None:
        """Have it end."""
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
        piece = os.read(cast(Any, child.stdout).fileno(), MAX_LINE_BYTES)
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            self._on_line(line)
        if not piece or len(self._buffer) > MAX_LINE_BYTES:
            if piece:
                signal_group(child.pid, SIGKILL)
            self._close()
            self._schedule_restart("what asks for it has ended" if not piece else "what asks for it says no such thing")

    def _on_line(self, line: bytes) -> None:
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            self._pause = RESTART_DELAYS[0]
            self._on_message(told)

    def _schedule_restart(self, reason: str) -> None:
        pause, self._pause = self._pause, min(RESTART_DELAYS[1], self._pause * 2)
        if pause > RESTART_DELAYS[0] and not self._has_warned:  # once may be an accident
            self._has_warned = True
            self._warn(reason)
        self._timer = asyncio.get_running_loop().call_later(pause, self.start)


CALLBACK_HEAD_START = 0.5  # seconds that ranks' callbacks begin before SIGTERM, which may end all


class PreemptionNotifier:
    """One node's."""

    def __init__(
        self, state: NodeState, audience: ClientRegistry, lifecycle: CallLifecycle, slots: SlotDispatcher
    ) -> None:
        self._state, self._clients, self._lifecycle, self._slots = state, audience, lifecycle, slots
        self._node = state.config.node
        self._monitor = PreemptionMonitor(state.config, self._on_notice, self._warn_clients)
        self._saved: dict[int, PreemptionNotice] = {}

    def start(self) -> None:
        """Go on with what an agent before this one has told the ranks, or was about to, and ask."""
        self._saved = {each.node: each for each in _read_notices(self._state.config.paths.notices)}
        self._state.is_preempted = self._node in self._saved
        if self._saved:
            self._signal_ranks()
            self._send_sigterm()
        self._monitor.start()

    def stop(self) -> None:
        """Ask no more."""
        self._monitor.stop()

    # -- of this node ------------------------------------------------------------------------------------

    def _warn_clients(self, reason: str) -> None:
        self._lifecycle.warn_clients(
            f"node {self._node}: nobody tells whether its machine is about to be taken back: {reason}"
        )

    def _on_notice(self, told: dict[str, Any]) -> None:
        if isinstance(reason := told.get("error"), str):
            self._warn_clients(reason[:200])
        kind, left = told.get("kind"), told.get("left")
        if kind not in NOTICES or not (left is None or (type(left) in (int, float) and 0 <= left <= LONGEST_NOTICE)):
            return
        ends = None if left is None or kind == "rebalance" else monotonic() + left
        known = self._state.notices
        if kind in known and is_same_deadline(known[kind], ends):
            return
        known[kind] = ends
        self._clients.send_to_all(notice_frame(kind, ends))
        if kind != "rebalance":
            self._announce_preemption(monotonic() if ends is None else ends)

    def _announce_preemption(self, ends: float) -> None:
        """Tell the ranks of this node, and have what runs in them end, unless it says what else to do."""
        self._state.is_preempted = True
        before = self._saved.get(self._node)
        if before is not None and is_same_deadline(before.ends, ends):
            return
        # Who is just being started has no place for the signal yet, and nothing to lose.
        busy = [
            slot.process.pid
            for slot in self._slots.slots
            if slot.process and slot.process.connection and (slot.running or slot.process.is_ready)
        ]
        self._notify_ranks(PreemptionNotice(self._node, True, ends, tuple(busy)))
        asyncio.get_running_loop().call_later(CALLBACK_HEAD_START, self._send_sigterm)

    def _send_sigterm(self) -> None:
        """Send SIGTERM to whom it was announced, once: ranks take another one as a stop."""
        own = self._saved.get(self._node)
        if own is None or own.sent:
            return
        for slot in self._slots.slots:
            if slot.process is not None and slot.process.pid in own.pids:
                # What it has started, such as what loads its data, is needed where it goes on; else it passes that on.
                signal_process(slot.process.pid, signal.SIGTERM)
        self._save_notice(PreemptionNotice(own.node, own.here, own.ends, own.pids, sent=True))

    # -- of others ---------------------------------------------------------------------------------------

    def on_remote_notice(self, node: int, left: float) -> None:
        """A client tells of another node.

        Args:
            left: seconds.
        """
        ends = monotonic() + min(LONGEST_NOTICE, max(0.0, left))
        known = self._saved.get(node)
        if node != self._node and not (known is not None and is_same_deadline(known.ends, ends)):
            self._notify_ranks(PreemptionNotice(node, False, ends, ()))

    # -- what ranks are told -----------------------------------------------------------------------------

    def _notify_ranks(self, notice: PreemptionNotice) -> None:
        self._save_notice(notice)
        self._signal_ranks()

    def _save_notice(self, notice: PreemptionNotice) -> None:
        """Have it where ranks, and the next agent, find it."""
        now, path = monotonic(), self._state.config.paths.notices
        kept = {node: each for node, each in self._saved.items() if each.here or now < each.ends + NOTICE_GRACE}
        self._saved = kept | {notice.node: notice}
        try:
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                json.dump([each.to_json() for each in self._saved.values()], file)
            Path(f"{path}.part").replace(path)
        except OSError as error:
            self._lifecycle.warn_clients(f"node {self._node}: ranks are not told that machines are taken back: {error}")

    def _signal_ranks(self) -> None:
        for slot in self._slots.slots:
            if slot.process is not None and slot.process.connection is not None:
                signal_process(slot.process.pid, NOTICE_SIGNAL)


def notice_frame(kind: str, ends: float | None) -> Header:
    """What clients are told of a notice.

    Args:
        ends: by the monotonic clock; None where nobody knows.
    """
    left = None if ends is None else round(max(0.0, ends - monotonic()), 3)
    return {"t": "notice", "kind": kind, "left": left}


def _read_notices(path: str) -> list[PreemptionNotice]:
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
        return [PreemptionNotice(node, here, ends, tuple(pids), sent) for node, here, ends, pids, sent in told]
    except (OSError, ValueError, TypeError):
        return []
