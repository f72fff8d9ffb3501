"""The programs that the lab stands on: iproute2, util-linux, OpenSSH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_NEEDED = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "sshd": "openssh-server",
}
# sshd and tc live where the PATH of an ordinary shell may not look.
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


# What looking at another process in /proc may raise: it ended meanwhile, or it is none of ours.
NOT_OURS = (FileNotFoundError, ProcessLookupError, PermissionError)


class LabError(RuntimeError):
    """The lab could not do what was asked; says what failed and how."""


def missing() -> str | None:
    """Why there can be no lab here, in words; None where there can."""
    if not sys.platform.startswith("linux"):
        return "the lab needs Linux namespaces"
    if os.geteuid() != 0:
        return "the lab needs root (network namespaces, mounts)"
    lacking = sorted({package for name, package in _NEEDED.items() if _which(name) is None})
    if lacking:
        return f"the lab needs {', '.join(lacking)}: apt-get install {' '.join(lacking)}"
    probe = _run(["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "true"])
    if probe.returncode:
        return f"the lab needs namespaces, which this machine refuses: {probe.stderr.strip()}"
    return None


def program(name: str) -> str:
    """Full path of one of the needed programs."""
    path = _which(name)
    if path is None:
        raise LabError(f"{name} is not there: apt-get install {_NEEDED.get(name, name)}")
    return path


def call(command: Sequence[str], stdin: str = "") -> str:
    """Run a program and return what it printed.

    Raises:
        LabError: it failed; holds the command and its complaint.
    """
    done = _run([program(command[0]), *command[1:]], stdin)
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def ip_batch(lines: Sequence[str], force: bool = False) -> None:
    """Run many ``ip`` commands in one process. ``force`` goes on after one that fails."""
    if force:
        _run([program("ip"), "-force", "-batch", "-"], "\n".join(lines) + "\n")
    else:
        call(["ip", "-batch", "-"], "\n".join(lines) + "\n")


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Look every few milliseconds until ``holds``, less often where a look takes long; deadlines are for what should
    never happen.

    Raises:
        LabError: it did not within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.thread_time()
        if holds():
            return
        if time.monotonic() > deadline:
            raise LabError(f"waited {seconds:g} s for {what}")
        time.sleep(max(0.003, 9 * (time.thread_time() - began)))  # looking takes a tenth of a core at most


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where it is gone.

    With its pid it names a process for good; pids alone are used again.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _which(name: str) -> str | None:
    return shutil.which(name, path=_PATH)


def _run(command: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
