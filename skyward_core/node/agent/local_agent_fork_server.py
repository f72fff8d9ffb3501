"""Fork server for the agents of this machine, so that their common modules are imported only once.

Each line of standard input is a request: the config of one agent as JSON. Each answer is one line of JSON on standard
output, which names the folder. The server exits at the end of standard input; its agents continue. If the client no
longer reads the answers, the server starts no agent, because nothing would track that agent.
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
from skyward_core.node.agent.worker_processes import describe_exit, describe_shortage, reap

MAX_ERROR_BYTES = 2000  # maximum characters of an error; a longer answer might not be written atomically


def main() -> None:
    preload_modules()
    # Without this, garbage collection would write to the shared pages and so copy them into every forked agent.
    gc.freeze()
    starting: dict[int, str] = {}  # pid of a process that starts an agent and then exits -> folder of the agent

    def report_deaths(*_: object) -> None:
        """Send an error for each agent process that died before it sent its answer."""
        for pid, status in reap().items():
            if (folder := starting.pop(pid, "")) and status:
                send_answer(folder, {"ok": False, "error": describe_exit(status)[1]})

    signal.signal(signal.SIGCHLD, report_deaths)
    for line in sys.stdin.buffer:
        # Delay SIGCHLD until ``starting`` has the new pid, which report_deaths() looks up.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        try:
            pid = os.fork()
        except OSError as error:
            send_answer(json.loads(line)["folder"], {"ok": False, "error": describe_shortage(error)})
        else:
            if not pid:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
                start_agent(json.loads(line))
            starting[pid] = json.loads(line)["folder"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def start_agent(config: dict[str, Any]) -> NoReturn:
    """Start an agent in this forked process, send the answer and exit."""
    answer = try_start(config, is_client_connected)
    if not answer["ok"] and not is_client_connected():
        with suppress(OSError):
            os.rmdir(os.path.dirname(config["folder"]))  # noqa: PTH106, PTH120  # the pool's folder, if now empty
    send_answer(config["folder"], answer)
    os._exit(0)


def send_answer(folder: str, answer: dict[str, Any]) -> None:
    fields = {"error": str(answer.get("error", ""))[:MAX_ERROR_BYTES], "folder": folder}
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(answer | fields).encode() + b"\n")


def is_client_connected() -> bool:
    """Check whether the client still reads the answers."""
    reader = select.poll()
    reader.register(1, 0)  # An empty event mask reports only that the reader has closed the pipe.
    return not reader.poll(0)
