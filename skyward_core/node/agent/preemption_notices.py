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
from skyward_core.node.agent.call_outcomes import CallDesk
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import Audience
from skyward_core.node.agent.slot_dispatcher import Slots
from skyward_core.node.agent.worker_processes import kill_one, mark, signal_group
from skyward_core.protocol.frame_codec import Header
from skyward_core.protocol.frame_schema import LONGEST_NOTICE, NOTICES, is_same_end
from skyward_core.runtime.preemption import LATE, NEWS, Notice

LONGEST = 4096  # bytes of a line
PAUSES = (1.0, 60.0)  # seconds before it is started again, the first time and at most

Heard = Callable[[dict[str, Any]], None]


class NoticeSource:
    """One node's. It ends with its standard input, and so with its agent.

    Args:
        config: of the node; it has the program.
        hear: told of each object that the program prints as a line of JSON.
        complain: told in words, once, where it does not go on by itself.
    """

    def __init__(self, config: AgentConfig, hear: Heard, complain: Callable[[str], None]) -> None:
        self._config, self._hear, self._complain = config, hear, complain
        self._child: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._pause = PAUSES[0]
        self._complained = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Have it run, until :meth:`end`."""
        config = self._config
        try:
            self._child = child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", config.notices],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=os.environ | config.env | mark(config.folder),
                start_new_session=True,
            )
        except OSError as error:
            self._again(str(error))
            return
        child.returncode = 0  # the agent collects every child itself
        self._said = b""
        asyncio.get_running_loop().add_reader(cast(Any, child.stdout).fileno(), self._readable)

    def end(self) -> None:
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

    def _readable(self) -> None:
        child = self._child
        if child is None:
            return
        piece = os.read(cast(Any, child.stdout).fileno(), LONGEST)
        *lines, self._said = (self._said + piece).split(b"\n")
        for line in lines:
            self._line(line)
        if not piece or len(self._said) > LONGEST:
            if piece:
                signal_group(child.pid, SIGKILL)
            self._close()
            self._again("what asks for it has ended" if not piece else "what asks for it says no such thing")

    def _line(self, line: bytes) -> None:
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            self._pause = PAUSES[0]
            self._hear(told)

    def _again(self, why: str) -> None:
        pause, self._pause = self._pause, min(PAUSES[1], self._pause * 2)
        if pause > PAUSES[0] and not self._complained:  # once may be an accident
            self._complained = True
            self._complain(why)
        self._timer = asyncio.get_running_loop().call_later(pause, self.begin)


HEAD_START = 0.5  # seconds that ranks' callbacks begin before SIGTERM, which may end all


class NoticeDesk:
    """One node's."""

    def __init__(self, state: NodeState, audience: Audience, desk: CallDesk, slots: Slots) -> None:
        self._state, self._audience, self._desk, self._slots = state, audience, desk, slots
        self._node = state.config.node
        self._source = NoticeSource(state.config, self._hear, self._complain)
        self._written: dict[int, Notice] = {}

    def begin(self) -> None:
        """Go on with what an agent before this one has told the ranks, or was about to, and ask."""
        self._written = {each.node: each for each in _read(self._state.config.paths.notices)}
        self._state.is_taken_back = self._node in self._written
        if self._written:
            self._wake_ranks()
            self._terminate()
        self._source.begin()

    def end(self) -> None:
        """Ask no more."""
        self._source.end()

    # -- of this node ------------------------------------------------------------------------------------

    def _complain(self, why: str) -> None:
        self._desk.complain(f"node {self._node}: nobody tells whether its machine is about to be taken back: {why}")

    def _hear(self, told: dict[str, Any]) -> None:
        if isinstance(why := told.get("error"), str):
            self._complain(why[:200])
        kind, left = told.get("kind"), told.get("left")
        if kind not in NOTICES or not (left is None or (type(left) in (int, float) and 0 <= left <= LONGEST_NOTICE)):
            return
        ends = None if left is None or kind == "rebalance" else monotonic() + left
        known = self._state.notices
        if kind in known and is_same_end(known[kind], ends):
            return
        known[kind] = ends
        self._audience.tell(frame_of(kind, ends))
        if kind != "rebalance":
            self._take_back(monotonic() if ends is None else ends)

    def _take_back(self, ends: float) -> None:
        """Tell the ranks of this node, and have what runs in them end, unless it says what else to do."""
        self._state.is_taken_back = True
        before = self._written.get(self._node)
        if before is not None and is_same_end(before.ends, ends):
            return
        # Who is just being started has no place for the signal yet, and nothing to lose.
        busy = [
            slot.process.pid
            for slot in self._slots.all
            if slot.process and slot.process.connection and (slot.running or slot.process.ready)
        ]
        self._tell_ranks(Notice(self._node, True, ends, tuple(busy)))
        asyncio.get_running_loop().call_later(HEAD_START, self._terminate)

    def _terminate(self) -> None:
        """Send SIGTERM to whom it was announced, once: ranks take another one as a stop."""
        own = self._written.get(self._node)
        if own is None or own.sent:
            return
        for slot in self._slots.all:
            if slot.process is not None and slot.process.pid in own.pids:
                # What it has started, such as what loads its data, is needed where it goes on; else it passes that on.
                kill_one(slot.process.pid, signal.SIGTERM)
        self._write(Notice(own.node, own.here, own.ends, own.pids, sent=True))

    # -- of others ---------------------------------------------------------------------------------------

    def warn(self, node: int, left: float) -> None:
        """A client tells of another node.

        Args:
            left: seconds.
        """
        ends = monotonic() + min(LONGEST_NOTICE, max(0.0, left))
        known = self._written.get(node)
        if node != self._node and not (known is not None and is_same_end(known.ends, ends)):
            self._tell_ranks(Notice(node, False, ends, ()))

    # -- what ranks are told -----------------------------------------------------------------------------

    def _tell_ranks(self, notice: Notice) -> None:
        self._write(notice)
        self._wake_ranks()

    def _write(self, notice: Notice) -> None:
        """Have it where ranks, and the next agent, find it."""
        now, path = monotonic(), self._state.config.paths.notices
        kept = {node: each for node, each in self._written.items() if each.here or now < each.ends + LATE}
        self._written = kept | {notice.node: notice}
        try:
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                json.dump([each.to_json() for each in self._written.values()], file)
            Path(f"{path}.part").replace(path)
        except OSError as error:
            self._desk.complain(f"node {self._node}: ranks are not told that machines are taken back: {error}")

    def _wake_ranks(self) -> None:
        for slot in self._slots.all:
            if slot.process is not None and slot.process.connection is not None:
                kill_one(slot.process.pid, NEWS)


def frame_of(kind: str, ends: float | None) -> Header:
    """What clients are told of a notice.

    Args:
        ends: by the monotonic clock; None where nobody knows.
    """
    left = None if ends is None else round(max(0.0, ends - monotonic()), 3)
    return {"t": "notice", "kind": kind, "left": left}


def _read(path: str) -> list[Notice]:
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
        return [Notice(node, here, ends, tuple(pids), sent) for node, here, ends, pids, sent in told]
    except (OSError, ValueError, TypeError):
        return []
