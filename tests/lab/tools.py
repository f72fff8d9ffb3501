"""External programs of the lab: iproute2, util-linux, OpenSSH."""

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
    """The lab could not execute a request. The message has the operation and its error."""


def missing() -> str | None:
    """Return the reason why this machine cannot run a lab. None if it can."""
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
    """Return the full path of a required program."""
    path = _which(name)
    if path is None:
        raise LabError(f"{name} is not there: apt-get install {_NEEDED.get(name, name)}")
    return path


def call(command: Sequence[str], stdin: str = "") -> str:
    """Run a program and return its output.

    Raises:
        LabError: If it failed. The message has the command and its error.
    """
    done = _run([program(command[0]), *command[1:]], stdin)
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def ip_batch(lines: Sequence[str], force: bool = False) -> None:
    """Run many ``ip`` commands in one process. ``force`` continues after a failed command."""
    if force:
        _run([program("ip"), "-force", "-batch", "-"], "\n".join(lines) + "\n")
    else:
        call(["ip", "-batch", "-"], "\n".join(lines) + "\n")


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Poll a condition every few milliseconds, less often if a check takes long. The deadline only ends a hang.

    Raises:
        LabError: If the condition does not hold within ``seconds``.
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
    """Return the start time of a process in clock ticks since boot. None if it has ended.

    Pids are reused, so only pid and start time together identify a process.
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
