"""A rank on a host waits at a breakpoint: no stranger of that host debugs it, and it goes on once the cable of who does
is pulled."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import skyward_core as sky
from skyward_core.pool.rank_inspection import send_to_debugger
from skyward_core.transport.background_loop import submit

from . import Lab
from .pools import DEADLINE, pool, until

# As another user of the host.
STRANGER = """
import os, socket, sys
os.setgid(60001), os.setuid(60001)
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    print("refused")
"""


@sky.function(timeout=3)
def job() -> str:
    value = "secret"
    if sky.instance_info().rank == 1:
        breakpoint()
        (Path.home() / "went_on").touch()
    while not (Path.home() / "enough").exists():  # the other rank waits, too
        time.sleep(0.02)
    return value


def test_a_pulled_cable_lets_a_rank_go_on_and_no_stranger_debugs_it(pair: Lab) -> None:
    host = pair.hosts[1]
    with pool(pair, options={"debug_wait": 60}) as compute, ThreadPoolExecutor(1) as beside:
        view, context = compute.pool.view, compute.pool.context
        try:
            running = beside.submit(lambda: job() @ compute)
            until(lambda: view.rank_phases.get(1, ("",))[0] == "paused", "that it stands still")
            (host.home / "stranger.py").write_text(STRANGER)
            (found,) = host.run("find $HOME /tmp /var/tmp -type s -name 'debug.*' 2>/dev/null || true").split()
            assert host.run(f"python3 -I stranger.py {found}") == "refused\n"
            said, over = submit(send_to_debugger(context, 1, "me")).result(DEADLINE)
            while b"(Pdb)" not in said:
                more, over = submit(send_to_debugger(context, 1, "me")).result(DEADLINE)
                said += more
            assert not over
            time.sleep(3.5)  # longer than the limit of both ranks
            assert not running.done()
            pair.client.unplug()
            until(lambda: (host.home / "went_on").exists(), "that it goes on without anybody")
            for each in pair.hosts:
                (each.home / "enough").touch()
            pair.client.plug()
            assert running.result(DEADLINE) == ["secret"] * 2
        finally:
            pair.client.plug()
            for each in pair.hosts:
                for name in ("enough", "went_on", "stranger.py"):
                    (each.home / name).unlink(missing_ok=True)
