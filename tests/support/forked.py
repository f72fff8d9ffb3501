"""Processes that begin with everything imported: forked from one that has loaded it, and otherwise as if started.

What is forked is a child of ours with a working folder, variables, arguments, streams and session of its own, signals
as a fresh interpreter has them, and no thread but one. To import what it needs takes most of the time of a process
that lives shortly. Tests of how a process starts start it.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# SYS_clone, with which a fork has the parent of who forks: us.
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), 0)
AVAILABLE = os.uname().sysname == "Linux" and bool(_CLONE)

_LOOP = f"""
import ctypes, gc, json, os, signal, socket, sys
_python, _requests = ctypes.pythonapi, socket.socket(fileno=int(sys.argv.pop()))
gc.freeze()
while True:
    _data, _streams, _, _ = socket.recv_fds(_requests, 1 << 20, 3)
    if not _data:
        sys.exit()
    _python.PyOS_BeforeFork()
    _pid = ctypes.PyDLL(None).syscall({_CLONE}, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)  # CLONE_PARENT
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
sys.stdin = sys.__stdin__ = open(0, encoding=sys.stdin.encoding, closefd=False)
sys.stdout = sys.__stdout__ = open(1, "w", encoding=sys.stdout.encoding, closefd=False)
sys.stderr = sys.__stderr__ = open(2, "w", 1, sys.stderr.encoding, "backslashreplace", closefd=False)
_asked = json.loads(_data)
if _asked["session"]:
    os.setsid()
os.chdir(_asked["cwd"])
os.environ.clear()
os.environ.update(_asked["env"])
sys.argv[:] = _asked["argv"]
"""


class Loaded:
    """The process that has it loaded; it ends with this one.

    Args:
        python: the interpreter and its options.
        first: what is to be loaded, as a program.
        then: what each fork does with it.
    """

    def __init__(self, python: Sequence[str], first: str, then: str) -> None:
        self._lock, self._ours = threading.Lock(), os.getpid()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [*python, "-c", first + _LOOP + then, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() == self._ours:  # and no fork of this one, which shares it
            self._requests.shutdown(socket.SHUT_RDWR)
            self._process.wait()

    def fork(self, asked: dict[str, Any], streams: Sequence[int]) -> int:
        """Gives the pid of a child of ours that goes on from there."""
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(asked).encode()], streams)
            return int(self._requests.recv(20))


class Forked(subprocess.Popen[Any]):
    """Such a child, begun and waited for as any other.

    Args:
        loaded: what it is forked from.
        argv: its ``sys.argv``.
        more: as of Popen.
    """

    def __init__(self, loaded: Loaded, argv: Sequence[str], **more: Any) -> None:
        self._loaded = loaded
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
        self.pid = self._loaded.fork(asked, [each if each >= 0 else n for n, each in enumerate(given)])
        self._child_created = True
        self._close_pipe_fds(stdin, to_stdin, of_stdout, stdout, of_stderr, stderr)  # type: ignore[attr-defined]
