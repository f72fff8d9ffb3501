"""Program that a node's sshd runs for each command from another node. Runs the command with the ranks' variables.

The file is copied to the node and run with the ranks' Python. It uses only the standard library, and nothing from this
package.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
GRACE = 5  # seconds for a command to end after its SSH connection has closed; then it is killed
PAUSE = 0.05  # seconds between two checks whether the command has ended
CONNECTION_CLOSED = 255  # exit status that ssh returns if the connection has closed
LOGIN_VARIABLES = ("HOME", "LOGNAME", "SHELL", "TERM", "USER")
SETUP = "SKYWARD_PATIENCE"  # environment variable for internal use by ranks, which commands must not get


def main(session_file: str) -> int:
    """Run the command.

    Args:
        session_file: Path of a JSON file with the process whose environment the command gets, and additional variables.
    """
    try:
        env = _variables(json.loads(Path(session_file).read_text()))
    except OSError:
        sys.stderr.write("this node no longer belongs to the pool\n")
        return CONNECTION_CLOSED
    shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    command = os.environ.get("SSH_ORIGINAL_COMMAND")
    if command is None:
        os.execve(shell, [f"-{shell.rpartition('/')[2]}"], env)
    if os.isatty(0):
        # no supervision, because the kernel signals all processes of a terminal when the terminal closes
        os.execve(shell, [shell, "-c", command], env)
    return _run_command([shell, "-c", command], env)


def _variables(session: dict[str, dict[str, str]]) -> dict[str, str]:
    text = Path(f"/proc/{session['process']['pid']}/environ").read_bytes()
    pairs = (os.fsdecode(each).partition("=") for each in text.split(b"\0") if each)
    env = {name: value for name, _, value in pairs if name != SETUP}
    ours = {
        name: value
        for name, value in os.environ.items()
        if name in LOGIN_VARIABLES or (name.startswith("SSH_") and name != "SSH_ORIGINAL_COMMAND")
    }
    # SHLVL is at least 2, because with a smaller value bash would read startup files again, after the login shell has
    # read them.
    return env | ours | {"SHLVL": "2"} | session["variables"]


def _run_command(words: list[str], env: dict[str, str]) -> int:
    """Run a command in its own process group, and end the group when its connection closes."""
    child = 0

    def end(number: int, frame: FrameType | None) -> None:
        _end_group(child)
        os._exit(CONNECTION_CLOSED)

    stops = (signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    for number in stops:
        signal.signal(number, end)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if not _is_sshd_child(os.getppid()):
        return CONNECTION_CLOSED  # the connection has closed before the kernel could be asked to signal its end
    # Reset the signals, because a child process inherits which signals are ignored or blocked.
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)
    child = os.posix_spawn(words[0], words, env, setpgroup=0, setsigmask=(), setsigdef=(*stops, *ignored))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def _end_group(leader: int) -> None:
    _signal_group(leader, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        with suppress(ChildProcessError):
            os.waitpid(leader, os.WNOHANG)
        if not _signal_group(leader, 0):
            return
        time.sleep(PAUSE)
    _signal_group(leader, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _is_sshd_child(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
