"""A client dies while it holds the right to start gang runs, and another one comes to start its own."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import skyward_core as sky
from tests.support.waiting import wait_until

SCRIPT = """
import pathlib, sys, time
import skyward_core as sky

folder = pathlib.Path(sys.argv[1])

@sky.function
def work():
    while sky.instance_info().rank and not (folder / "go").exists():
        time.sleep(0.01)
    return "of the one that died"

with sky.Compute(nodes=2, name="shared", options=sky.Options(console=False)) as compute:
    print("up", flush=True)
    sys.stdin.readline()
    work() @ compute
"""


def test_a_run_that_was_wholly_started_goes_on_when_another_client_starts_the_next(home: Path, tmp_path: Path) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"

    def rank() -> int:  # of no module that the nodes would know
        return sky.instance_info().rank

    # Before there is a run: what the agents say at the welcome knows of none.
    with sky.attach("shared") as compute:
        try:
            client.stdin.write("go on\n")
            client.stdin.flush()
            wait_until(lambda: compute.runs and compute.runs[0].counts == {"returned": 1}, what="rank 0's end")
            client.kill()
            client.communicate()
            first = compute.runs[0]
            with ThreadPoolExecutor() as threads:
                second = threads.submit(lambda: sky.function(rank)() @ compute)
                wait_until(lambda: compute.pool.links[1]._calls, what="the second run's calls")
                (tmp_path / "go").touch()
                assert second.result(90) == [0, 1]
            wait_until(lambda: first.state != "running", what="the first run's end")
            assert (first.state, first.counts) == ("done", {"returned": 2})
        finally:
            receipt = compute.down()
    assert receipt.ok
