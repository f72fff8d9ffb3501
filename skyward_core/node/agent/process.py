"""A process in which user code runs, as its agent sees it, and how its end is told."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from .connection import Connection

if TYPE_CHECKING:
    from ...wire.node_frame_types import Ended, Exit


ON_SIGTERM = 128 + signal.SIGTERM  # exit status of a program that ends by it, as shells have it


class SharedLife:
    """One life that the processes of a block of ranks have together, as an epoch is the gang's; see :mod:`.team`.

    Args:
        name: that no other one has, also of an agent before this one.
        epoch: the gang's epoch in which it began.
        first, width: the block: its first rank among the node's, and how many it has.
    """

    def __init__(self, name: str, epoch: int, first: int, width: int) -> None:
        self.name = name
        self.epoch = epoch
        self.first = first
        self.width = width
        self.broken = ""  # why its processes take no other call

    def told(self) -> dict[str, Any]:
        """As its processes are told, who tell an agent that comes later."""
        return {"name": self.name, "first": self.first, "width": self.width}


class Process:
    """One worker process. ``epoch`` is the gang epoch it was set up for, None while it is fresh."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.says_from = 0  # where in the file of standard error its own lines begin
        self.connection: Connection | None = None
        self.epoch: int | None = None
        self.life: SharedLife | None = None  # that it has with others of a block, in place of the gang's
        self.used = False  # it may have run user code
        self.joins_until = 0.0  # how long it has to join the gang, where a block of ranks waits for it
        self.placed = False  # it knows which rank it is
        self.ready = False  # its plugins' contexts are entered (or failed to be)
        self.killed = ""  # why we ended it, when we did
        self.is_script = False  # a whole script's, which may end it as it likes
        self.unusable = False  # its plugins' contexts could not be entered, and a call has told so

    def ended_well(self, status: int | None) -> bool:
        """Whether a script has come to its end in it, by a way that tells nobody: ``os._exit(0)``, or in a program that
        it has made of itself by ``os.execv``."""
        return self.is_script and status == 0 and not self.killed


def ended_as_told(status: int | None) -> bool:
    """Whether a process has ended by SIGTERM, or as those end that have dealt with one."""
    if status is None:
        return False
    return os.waitstatus_to_exitcode(status) in (0, -signal.SIGTERM, ON_SIGTERM)


def exit_words(status: int | None) -> tuple[Exit, str]:
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


def ended_with_worker(why: str) -> Ended:
    """The part of an outcome that says that we stopped a call's worker for another reason than the call."""
    words = f"its worker was stopped: {why}"
    return {"kind": "collateral", "error": {"type": "Stopped", "message": words}}


def ended_from_outside() -> Ended:
    """The same for a SIGTERM that was not ours: somebody on the node sent it."""
    fields, words = exit_words(signal.SIGTERM)
    return {**fields, "kind": "exited", "error": {"type": "RankExit", "message": words}}
