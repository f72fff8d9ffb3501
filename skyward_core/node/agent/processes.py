"""Ending processes for certain: whole process groups, and what escaped from them.

The agent is made the reaper of orphans below it (Linux), so that a child which left its rank's group, and even
its session, is still found among the agent's children and ended with the pool. One that was left to the system, when
its agent was killed, is found by the mark that all carry which a node runs (:func:`..boot.host.members`).
"""

from __future__ import annotations

import _ctypes  # what ctypes stands on: to import that, too, takes agents as long again
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def become_reaper() -> bool:
    """Let orphans below this process become its children; says whether the system can."""
    if not sys.platform.startswith("linux"):
        return False
    asked = (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if not hasattr(_ctypes, "call_function"):  # it is nobody's promise
        import ctypes

        return bool(ctypes.CDLL(None).prctl(*asked) == 0)
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    return bool(_ctypes.call_function(prctl, asked) == 0)


def give_way(pid: int, nice: int) -> None:
    """Lower the priority of a process that leads a session of its own.

    Linux shares the processor between sessions first (autogroups), so that the session's weight counts too.
    """
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    autogroup = Path(f"/proc/{pid}/autogroup")
    if autogroup.exists():
        try:
            autogroup.write_text(str(nice))
        except OSError:
            return  # too many changes in a short time are refused; it is a courtesy, no more


def signal_group(pid: int, number: int) -> bool:
    """Send a signal to the process group that ``pid`` leads; False when nothing of it is left."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A member changed its user (sudo, a setuid helper): the others have got the signal.
        return True
    return True


def kill_one(pid: int, number: int) -> None:
    """Send a signal to one process, where it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def started(pid: int) -> str:
    """When a process that has not been reaped was started, in the kernel's words; with its pid it names a process for
    good. "" where there is none, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def processor_seconds(pid: int) -> float:
    """What a process and its children have taken of the processor so far; 0 where nobody tells."""
    ticks = 0
    for each in (pid, *_children(pid)):
        try:
            text = Path(f"/proc/{each}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # Its own, and that of children that have ended.
        ticks += sum(map(int, text.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return []


def kill_groups(pids: Iterable[int]) -> None:
    """SIGKILL to processes and to the groups that they are in."""
    for pid in pids:
        try:
            group = os.getpgid(pid)
            if group == os.getpgrp():
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def reap() -> dict[int, int]:
    """Collect every ended child without waiting: pid -> wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status
