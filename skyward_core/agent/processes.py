"""Ending processes for certain: whole process groups, and what escaped from them.

The agent is made the reaper of orphans below it (Linux), so that a child which left its rank's group, and even
its session, is still found among the agent's children and ended with the pool.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def become_reaper() -> bool:
    """Let orphans below this process become its children; says whether the system can."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


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


def descendants(root: int) -> set[int]:
    """Every process below ``root``, by the kernel's table; empty where there is no /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended while we looked
        fields = text.rpartition(")")[2].split()
        parents[int(text.partition(" ")[0])] = int(fields[1])
    below: set[int] = set()
    grown = {root}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown} - below
        below |= grown
    return below


def with_argument(wanted: str) -> dict[int, list[str]]:
    """Processes started with this very argument, and what they forked since: pid -> arguments."""
    text = wanted.encode()
    found: dict[int, list[str]] = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        if text in arguments:
            found[int(entry.parent.name)] = [argument.decode(errors="replace") for argument in arguments[:-1]]
    return found


def writes_under(folder: Path) -> bool:
    """Whether a process has its standard error there, as an agent and its workers have; the folder may be gone."""
    start = f"{folder}/"
    for entry in Path("/proc").glob("[0-9]*/fd/2"):
        try:
            if str(entry.readlink()).startswith(start):
                return True
        except OSError:
            continue  # it ended while we looked, or is somebody else's
    return False


def orphans(worker_socket: str) -> dict[tuple[int, int], int]:
    """Workers that were told to connect to this socket, whoever started them: (rank, slot) -> pid.

    A worker leads its process group; what it forked looks alike otherwise.
    """
    return {
        (int(arguments[-2]), int(arguments[-1])): pid
        for pid, arguments in with_argument(worker_socket).items()
        if _leads(pid)
    }


def _leads(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


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
