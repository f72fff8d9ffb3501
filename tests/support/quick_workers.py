"""Workers of local agents that start with all modules of a worker imported: forked instead of started.

Imports take three quarters of the processor time of a worker. Each agent forks a process when it starts. Workers are
forked from that process, as children of the agent.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.forked import CLONE, read_by_python
from tests.support.processes import FORKS_WORKERS

MOST = 150_000  # bytes of a request
FORKS = 500  # descriptor that no object of an agent closes
MODULES: set[str] = set()  # of a fresh worker
PATH: list[str] = []  # sys.path of a fresh worker
ENV: dict[str, str] = {}  # variables that the interpreter has read


class WorkerForks(BaseException):
    """Unwinds the stack of a process from which workers are forked."""


def load_worker(root: str) -> None:
    """Import the modules of a worker. Leave the path of an isolated interpreter."""
    ENV.update(read_by_python(os.environ))
    PATH[:] = sys.path
    sys.path.insert(0, root)
    import cloudpickle  # noqa: F401

    import skyward_core.node.worker.worker  # noqa: F401

    MODULES.update(sys.modules)
    sys.modules["ssl"] = None  # type: ignore[assignment]  # its libraries are in no agent
    import asyncio  # noqa: F401

    del sys.modules["ssl"]
    sys.path[:] = [each for each in PATH if each.startswith(sys.base_prefix) and "packages" not in each]


def fork_workers() -> None:
    """Make each agent of this process fork its workers, if the system can."""
    if not CLONE:
        return
    from skyward_core.node.agent import __main__ as agent
    from skyward_core.node.agent import worker_processes

    serve = agent.serve

    def fork_and_serve(*given: Any) -> None:
        requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            os.dup2(theirs.detach(), FORKS)
            os.closerange(3, FORKS)
            Path("/proc/self/comm").write_text(FORKS_WORKERS)
            raise WorkerForks
        theirs.close()
        known = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "run")}

        def begun(command: Sequence[str], **more: Any) -> Any:
            return _fork(requests, command, **more) or subprocess.Popen(command, **more)

        vars(worker_processes)["subprocess"] = SimpleNamespace(Popen=begun, **known)
        serve(*given)

    vars(agent)["serve"] = fork_and_serve


def _fork(requests: socket.socket, command: Sequence[str], **more: Any) -> SimpleNamespace | None:
    """Fork a worker. Return None if it must be started."""
    python, flag, *argv = command
    env, cwd = more["env"], more["cwd"]
    if python != sys.executable or flag != "-c" or more["pass_fds"] or read_by_python(env) != ENV:
        return None
    asked = {"argv": argv, "cwd": cwd, "env": env, "session": True, "umask": more["umask"], "path": []}
    data = json.dumps(asked).encode()
    if len(data) > MOST or not os.access(cwd, os.X_OK):
        return None
    null = os.open(os.devnull, os.O_RDWR)
    try:
        socket.send_fds(requests, [data], [null, more["stdout"], more["stderr"]])
        pid = int(requests.recv(20) or 0)
    except OSError:
        return None
    finally:
        os.close(null)
    return SimpleNamespace(pid=pid) if pid > 0 else None


def become_worker() -> str:
    """Give this forked process the state of a fresh interpreter. Return the code of the worker."""
    import gc

    for name, module in list(sys.modules.items()):
        own = name not in MODULES and name.startswith("skyward_core")
        if own or name.partition(".")[0] == "tests" or type(module).__name__ == "LazyModule":
            del sys.modules[name]
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    Path("/proc/self/comm").write_text("python")
    time.tzset()
    sys.path[:] = PATH
    code, sys.argv[:] = sys.argv[0], ["-c", *sys.argv[1:]]
    gc.enable()
    return code
