"""One combination of a sweep on a block of neighbouring ranks: a call of a client's, and a part of it for each of them.

Clients, and the register, know the call alone; its parts, of the same run and index, are known to the agent, their
slots and the journal. What came of the call is told once all parts have ended: the first rank's value, or the failure
that was a cause. No part runs on alone: once one has failed, the others are stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from .calls import Call

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentOutcome
    from .process import Process, SharedLife

CAUSES = ("raised", "exited", "lost")


class RankPlace(Protocol):
    """What a team asks of its ranks' slots; see :class:`.slot.Slot`."""

    @property
    def head(self) -> Call | None: ...

    @property
    def has_part(self) -> bool: ...

    @property
    def running(self) -> object: ...

    @property
    def process(self) -> Process | None: ...


class RankBlock:
    """Neighbouring ranks of the node, and the life that their processes have together.

    Args:
        first: the first one's place among the node's ranks.
        slots: theirs.


    Attributes:
        life: that of the processes that are there, or were last.
    """

    def __init__(self, first: int, slots: Sequence[RankPlace]) -> None:
        self.first = first
        self.slots = slots
        self.life: SharedLife | None = None

    @property
    def width(self) -> int:
        return len(self.slots)

    def fits(self, process: Process, renewed: int) -> bool:
        """Whether a process can take a part here: it is unused, or in the block's own life while that is whole.

        Args:
            renewed: the last epoch for which all processes had to be fresh.
        """
        if process.life is None:
            return process.epoch is None and not process.used
        return process.life is self.life and not process.life.broken and process.life.epoch >= renewed


class Team:
    """See the module.

    Args:
        whole: the client's call.
        parts: one for each rank of the block, in their order.
        stop: ends a part: why.
        over: told of the call's outcome, with its result.
    """

    def __init__(
        self, whole: Call, block: RankBlock, parts: list[Call],
        stop: Callable[[Call, str], None], over: Callable[[Team, AgentOutcome, bytes], None],
    ) -> None:  # fmt: skip
        self.whole = whole
        self.block = block
        self.parts = parts
        self.begun = False
        self._stop = stop
        self._over = over
        self._is_over = False
        self._ended: list[Call] = []  # in the order in which they did
        self._stopping: asyncio.TimerHandle | None = None
        for part in parts:
            part.team = self
        whole.parts = parts

    def fits(self, process: Process, renewed: int) -> bool:
        """Whether a process can take a part of it; see :meth:`RankBlock.fits`."""
        return self.block.fits(process, renewed)

    def stands(self, renewed: int) -> bool:
        """Whether all ranks are there for it: each has nothing else to do first, and a process that fits."""
        lives = set()
        for slot, part in zip(self.block.slots, self.parts, strict=True):
            process = slot.process
            if slot.head is not part or slot.running or process is None:
                return False
            if process.connection is None or process.killed or process.unusable:
                return False
            if not self.block.fits(process, renewed):
                return False
            lives.add(process.life)
        return len(lives) == 1

    def ended(self, part: Call) -> None:
        """A part has its outcome."""
        if part in self._ended:
            return
        self._ended.append(part)
        if part.outcome is not None and part.outcome["kind"] != "returned":
            self._fail()
        if len(self._ended) == len(self.parts) and not self._is_over:
            self._end()  # unless the end of one that was stopped for this has done so

    def _fail(self) -> None:
        life = self.block.life
        if self.begun and life is not None:
            life.broken = life.broken or f"a rank failed in run {self.whole.run}"
        if len(self._ended) == len(self.parts):
            return
        from ...wire.echoes import REAL, SETTLE

        if any(_doubt(each) == REAL for each in self._ended if each.outcome["kind"] != "returned"):  # type: ignore[index]
            self._stop_others()
        elif self._stopping is None:
            self._stopping = asyncio.get_running_loop().call_later(SETTLE, self._stop_others)

    def _stop_others(self) -> None:
        for part in self.parts:
            if part.outcome is None:
                self._stop(part, "fail-fast")

    def _end(self) -> None:
        self._is_over = True
        if self._stopping is not None:
            self._stopping.cancel()
        stands = self._stands_for_all()
        outcome = stands.outcome
        if outcome is None:
            raise RuntimeError("a part that has ended has no outcome")
        logs = {
            name: span
            for part in self.parts
            if part.outcome
            for name, span in part.outcome.get("log", {}).items()
        }
        told: AgentOutcome = outcome | {"log": logs} if logs else outcome
        told.pop("ends", None)  # its process is the block's affair
        self._over(self, told, stands.result)

    def _stands_for_all(self) -> Call:
        """The part of which the call's outcome is: the first rank's where all have returned, else the one whose failure
        was a cause; of those that were stopped, the first."""
        outcomes = [(part, part.outcome) for part in self._ended if part.outcome is not None]
        failed = [part for part, outcome in outcomes if outcome["kind"] in CAUSES]
        if failed:
            return min(failed, key=_doubt)
        stopped = [part for part, outcome in outcomes if outcome["kind"] != "returned"]
        return next(iter([*stopped, *self.parts]))


def _doubt(part: Call) -> int:
    """How far a part's failure is from being a cause."""
    from ...wire.echoes import doubt

    outcome = part.outcome
    if outcome is None:
        return 0
    error = outcome.get("error")
    words = (error["type"], error["message"]) if error else None
    return doubt(outcome["kind"], outcome.get("signal"), words)
