"""A rank fails while no client is there: the agents stop the others."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.node.agent.fail_fast import CLIENT_GRACE
from tests.support.fates import gone
from tests.support.waiting import wait_until

SCRIPT = """
import os, pathlib, sys, time
import skyward_core as sky

folder, alone = pathlib.Path(sys.argv[1]), sys.argv[2] == "alone"

@sky.function
def work():
    rank = sky.instance_info().rank
    (folder / f"new{rank}").write_text(str(os.getpid()))
    (folder / f"new{rank}").rename(folder / f"began{rank}")
    while rank != 1 or not (folder / "fail").exists():
        time.sleep(0.01)
    os._exit(9)

options = sky.Options(console=False, fail_fast=not alone)
with sky.Compute(nodes=3, name="shared", options=options) as compute:
    work() @ compute
"""


def left(home: Path, folder: Path, how: str = "gang") -> None:
    """A pool with a run of three ranks on three nodes, whose client was killed."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), how]) as client:
        try:
            wait_until(lambda: len(list(folder.glob("began*"))) == 3, what="the ranks")
        finally:
            client.kill()


def test_the_others_are_stopped_and_the_next_run_finds_its_nodes_free(home: Path, tmp_path: Path) -> None:
    def pid() -> int:
        return __import__("os").getpid()

    left(home, tmp_path)
    others = [int((tmp_path / f"began{rank}").read_text()) for rank in (0, 2)]
    (tmp_path / "fail").touch()
    assert gone(others), "no client is there: their agents end them"
    with sky.attach("shared") as compute:
        try:
            run = compute.runs[0]
            wait_until(lambda: run.state != "running", what=lambda: f"the run's end: {run.state}, {run.counts}")
            assert (run.state, run.counts) == ("failed", {"exited": 1, "collateral": 2})
            cause = run.root_cause
            assert cause is not None
            assert cause.rank == 1
            assert sky.function(pid)() @ compute
        finally:
            receipt = compute.down()
    assert receipt.ok


@pytest.mark.proof("1 s of a processor")
def test_where_failures_stop_nobody_the_others_go_on(home: Path, tmp_path: Path) -> None:
    left(home, tmp_path, "alone")
    (tmp_path / "fail").touch()
    with sky.attach("shared") as compute:
        try:
            run = compute.runs[0]
            wait_until(lambda: run.counts == {"exited": 1}, what=lambda: f"the rank's end: {run.state}, {run.counts}")
            time.sleep(CLIENT_GRACE + 2)  # nothing is to happen: there is nothing else to wait for
            assert (run.state, run.counts) == ("running", {"exited": 1})
        finally:
            receipt = compute.down()
    assert receipt.ok
