"""Machines of the pool that are about to be taken back: this node's, as its provider's program says, and others', as
clients tell. Clients are told of the one, ranks of both."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from time import monotonic
from typing import Any

from ...runtime.preempt import LATE, NEWS, Notice
from ...wire.end_notice import LONGEST_NOTICE, NOTICES, is_same_end
from ...wire.frames import Header
from .audience import Audience
from .call_desk import CallDesk
from .node_state import NodeState
from .notice_source import NoticeSource
from .processes import kill_one
from .slots import Slots

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
        self._desk.complain(
            f"node {self._node}: nobody tells whether its machine is about to be taken back: {why}"
        )

    def _hear(self, told: dict[str, Any]) -> None:
        if isinstance(why := told.get("error"), str):
            self._complain(why[:200])
        kind, left = told.get("kind"), told.get("left")
        if kind not in NOTICES or not (
            left is None or (type(left) in (int, float) and 0 <= left <= LONGEST_NOTICE)
        ):
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
            self._desk.complain(
                f"node {self._node}: ranks are not told that machines are taken back: {error}"
            )

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
