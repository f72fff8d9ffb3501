"""A client whose machine dies, or that is stopped (ctrl-z): its connection stays open, and nobody speaks on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import skyward_core as sky
from tests.support.processes import exists
from tests.support.waiting import wait_until

SCRIPT = """
import sys
import skyward_core as sky

@sky.function
def rank():
    return sky.instance_info().rank

with sky.Compute(nodes=2, name="shared", options=sky.Options(console=False, idle_timeout=1.0)) as compute:
    print(rank() @ compute, flush=True)
    sys.stdin.readline()
    try:
        rank() @ compute
    except sky.PoolGone as error:
        print(error, flush=True)
"""


def test_a_stopped_client_keeps_neither_the_lock_nor_the_pool(home: Path) -> None:
    def rank() -> int:  # of no module that the nodes would know
        return sky.instance_info().rank

    pipe = subprocess.PIPE
    client = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=pipe, stdout=pipe, text=True)
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stdout.readline() == "[0, 1]\n"  # from now on it holds the lock
    try:
        with ThreadPoolExecutor() as threads, sky.attach("shared") as compute:
            os.kill(client.pid, signal.SIGSTOP)
            run = threads.submit(lambda: sky.function(rank)() @ compute)
            holder = f"process {client.pid} (-c) of "
            wait_until(lambda: holder in compute.pool.view.detail, what="who holds the lock")
            assert run.result(60) == [0, 1]
            wait_until(lambda: compute.pool.view.detail == "", what="the end of the wait")
            agents = [link.welcome["pid"] for link in compute.pool.links]
        wait_until(lambda: not any(map(exists, agents)), what="the end of the pool's lease")
    finally:
        os.kill(client.pid, signal.SIGCONT)
    said, _ = client.communicate("go on\n", timeout=60)
    assert "ended itself at" in said and "nobody used it for 1 s" in said, said
