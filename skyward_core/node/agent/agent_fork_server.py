"""Start agents of this machine from one interpreter, so that what they all import is imported once.

A request is a line of JSON on standard input, an agent's config; its answer a line on standard output, which
names the folder. The end of standard input is the end of the starter, not of the agents it started. Where nobody reads
answers any more none is started: the client was killed, and whoever looks after it has found no agent.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

from skyward_core.node.agent.__main__ import preload_modules, try_start
from skyward_core.node.agent.worker_processes import describe_exit, reap

MAX_ERROR_BYTES = 2000  # characters of an error, so that an answer is written in one piece


def main() -> None:
    preload_modules()
    gc.freeze()  # what is here is here to stay: collecting it would copy its pages into every agent
    starting: dict[int, str] = {}  # the process that starts an agent -> its folder

    def look(*_: object) -> None:
        """What one has died of that has given no answer."""
        for pid, status in reap().items():
            if (folder := starting.pop(pid, "")) and status:
                send_answer(folder, {"ok": False, "error": describe_exit(status)[1]})

    signal.signal(signal.SIGCHLD, look)
    for line in sys.stdin.buffer:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until we know whose end it tells of
        if not (pid := os.fork()):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            start_agent(json.loads(line))
        starting[pid] = json.loads(line)["folder"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def start_agent(config: dict[str, Any]) -> NoReturn:
    """Start an agent, and answer. Runs in a process of its own."""
    said = try_start(config, is_client_connected)
    if not said["ok"] and not is_client_connected():
        with suppress(OSError):
            os.rmdir(os.path.dirname(config["folder"]))  # noqa: PTH106, PTH120  the pool's, if it has no more
    send_answer(config["folder"], said)
    os._exit(0)


def send_answer(folder: str, said: dict[str, Any]) -> None:
    told = {"error": str(said.get("error", ""))[:MAX_ERROR_BYTES], "folder": folder}
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(said | told).encode() + b"\n")


def is_client_connected() -> bool:
    """Whether somebody still reads what we answer."""
    reader = select.poll()
    reader.register(1, 0)  # tells of the other side's end alone
    return not reader.poll(0)
