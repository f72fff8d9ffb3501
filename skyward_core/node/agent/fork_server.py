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
import sys
from contextlib import suppress

from .__main__ import attempt, preload
from .processes import reap

LONGEST = 2000  # characters of an error, so that an answer is written in one piece


def main() -> None:
    preload()
    gc.freeze()  # what is here is here to stay: collecting it would copy its pages into every agent
    for line in sys.stdin.buffer:
        if not os.fork():
            config = json.loads(line)
            answer = attempt(config, client_is_there)
            if not answer["ok"] and not client_is_there():
                with suppress(OSError):
                    os.rmdir(os.path.dirname(config["folder"]))  # noqa: PTH106, PTH120  the pool's, if it has no more
                os._exit(1)
            answer["error"] = str(answer.get("error", ""))[:LONGEST]
            os.write(1, json.dumps(answer | {"folder": config["folder"]}).encode() + b"\n")
            os._exit(0)
        reap()


def client_is_there() -> bool:
    """Whether somebody still reads what we answer."""
    reader = select.poll()
    reader.register(1, 0)  # tells of the other side's end alone
    return not reader.poll(0)
