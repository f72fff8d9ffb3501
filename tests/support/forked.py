"""Processes that start with all modules imported: forked from a process that has imported them.

A forked process is our child with its own working folder, variables, arguments, streams and session. Its signals are
those of a fresh interpreter, and it has one thread. Imports take most of the time of a short process. Tests about the
start of a process use real ones.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.child import Child
from tests.support.fewer import FOLDER, without

# SYS_clone, with which a fork has the parent of who forks: us. Where we know no number, all are started.
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), 0) if sys.platform == "linux" else 0

LOOP = f"""
import ctypes, gc, io, json, os, signal, socket, sys
_python, _requests = ctypes.pythonapi, socket.socket(fileno=int(sys.argv.pop()))
gc.freeze()
while True:
    _data, _streams, _, _ = socket.recv_fds(_requests, 1 << 20, 3)
    if not _data:
        sys.exit()
    _python.PyOS_BeforeFork()
    _pid = ctypes.PyDLL(None).syscall({CLONE}, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)  # CLONE_PARENT
    if not _pid:
        _python.PyOS_AfterFork_Child()
        break
    _python.PyOS_AfterFork_Parent()
    _requests.send(str(_pid).encode())
    for _each in _streams:
        os.close(_each)
_requests.close()
for _number, _each in enumerate(_streams):
    os.dup2(_each, _number)
    os.close(_each)
for _number, (_name, _mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
    _old = getattr(sys, _name)
    _bytes = open(_number, _mode + "b", 0 if _old.write_through and _mode == "w" else -1, closefd=False)
    _new = io.TextIOWrapper(
        _bytes, _old.encoding, _old.errors, line_buffering=_old.line_buffering, write_through=_old.write_through
    )
    _new.mode = _mode
    setattr(sys, _name, _new)
    setattr(sys, f"__{{_name}}__", _new)
_asked = json.loads(_data)
if _asked["session"]:
    os.setsid()
if _asked.get("umask", -1) >= 0:
    os.umask(_asked["umask"])
os.chdir(_asked["cwd"])
os.environ.clear()
os.environ.update(_asked["env"])
sys.argv[:] = _asked["argv"]
_first = 0 if sys.flags.safe_path else 1
sys.path[_first:_first] = _asked["path"]
"""


def ending_at_once(last: str) -> str:
    """Return a program that ends its process without freeing objects.

    Python frees the objects of all modules at exit, which copies most of the pages that a fork shares with its parent.
    The copies take half of the processor time of a short command. Exit functions and non-daemon threads are
    unaffected. A stream that cannot be flushed leads to the regular end.

    Args:
        last: The last statements of the program.
    """
    return f"""
import atexit, os, sys, threading
_status = 0
try:
{textwrap.indent(last, "    ")}
except SystemExit as _ended:
    if not isinstance(_ended.code, int | None):
        raise
    _status = _ended.code or 0
threading._shutdown()
atexit._run_exitfuncs()
try:
    for _stream in filter(None, (sys.stdout, sys.stderr)):
        _stream.flush()
except (OSError, ValueError):
    sys.exit(_status)
os._exit(_status & 0xFF)
"""


class Loaded:
    """Process from which others are forked. It starts with the first fork and ends with this process. There is one for
    each value of ``NOT_INSTALLED``.

    Args:
        python: The interpreter and its options.
        first: Program that imports the modules.
        then: Program that each fork runs.
    """

    def __init__(self, python: Sequence[str], first: str, then: str) -> None:
        self._python, self._first, self._then = python, first, then
        self._lock, self._ours = threading.Lock(), os.getpid()
        self._requests: dict[str, socket.socket] = {}
        self._env = read_by_python(os.environ)

    def start(self, argv: Sequence[str], **more: Any) -> Child:
        """Return a child with all modules imported. If its interpreter needs other variables, the child is started
        instead of forked.

        Args:
            argv: ``sys.argv`` of the child.
            more: Arguments of Popen.
        """
        env = os.environ if (env := more.get("env")) is None else env
        path = self._more_path(env)
        if not CLONE or path is None:
            return Child([*self._python, "-c", self._first + self._then, *argv[1:]], **more)
        return _Forked(partial(self._fork, path), argv, **more)

    def _more_path(self, env: Mapping[str, str]) -> list[str] | None:
        """Return the folders of PYTHONPATH in the given variables. None if the interpreter differs in more than these,
        or if a file in them runs at start-up.
        """
        needed, here = read_by_python(env), self._read(env.get("NOT_INSTALLED", ""))
        if needed == here:
            return []
        path = needed.pop("PYTHONPATH", "").split(os.pathsep)
        at_start = any(not Path(each).is_absolute() or any(Path(each).glob("*customize*")) for each in path)
        return None if needed != here or at_start or "-I" in self._python else path

    def _read(self, hidden: str) -> dict[str, str]:
        """Return the variables that an interpreter with hidden packages reads."""
        if not hidden:
            return self._env
        paths = filter(None, (str(FOLDER), self._env.get("PYTHONPATH")))
        return self._env | without(hidden) | {"PYTHONPATH": os.pathsep.join(paths)}

    def _fork(self, path: list[str], asked: dict[str, Any], streams: Sequence[int]) -> int:
        hidden = asked["env"].get("NOT_INSTALLED", "")
        with self._lock:
            if hidden not in self._requests:
                self._requests[hidden] = self._begin(self._read(hidden))
            requests = self._requests[hidden]
            socket.send_fds(requests, [json.dumps(asked | {"path": path}).encode()], streams)
            if not (pid := requests.recv(20)):
                raise ChildProcessError("what these processes are forked from has ended")
            return int(pid)

    def _begin(self, read: Mapping[str, str]) -> socket.socket:
        requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours = os.environ.items() - read_by_python(os.environ).items()
        with theirs:
            process = subprocess.Popen(
                [*self._python, "-c", self._first + LOOP + self._then, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/",
                env={**dict(ours), **read},
            )  # fmt: skip
        atexit.register(self._end, process, requests)
        return requests

    def _end(self, process: subprocess.Popen[bytes], requests: socket.socket) -> None:
        if os.getpid() == self._ours:  # and no fork of this one, which shares it
            requests.shutdown(socket.SHUT_RDWR)
            process.wait()


READ = ("PYTHON", "LC_", "LANG", "NOT_INSTALLED")


def read_by_python(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter reads when it starts."""
    return {name: value for name, value in env.items() if name.startswith(READ)}


class _Forked(Child):
    """Forked child with the interface of Popen."""

    def __init__(self, fork: Callable[[dict[str, Any], Sequence[int]], int], argv: Sequence[str], **more: Any) -> None:
        self._fork = fork
        super().__init__(list(argv), **more)

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: Any, stdin: int, to_stdin: int, of_stdout: int, stdout: int,
        of_stderr: int, stderr: int, restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: Any,
        start_new_session: bool, *rest: Any,
    ) -> None:  # fmt: skip
        asked = {
            "argv": args, "cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env),
            "session": start_new_session,
        }  # fmt: skip
        given = (stdin, stdout, stderr)
        self.pid = self._fork(asked, [each if each >= 0 else n for n, each in enumerate(given)])
        self._child_created = True
        self._close_pipe_fds(stdin, to_stdin, of_stdout, stdout, of_stderr, stderr)  # type: ignore[attr-defined]
