"""A node that cannot be reached, and of which nobody can say that it is gone."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.node.bootstrap.host_inspection import find_node_processes
from skyward_core.store.ledger import Ledger
from tests.support.cli import Cli
from tests.support.faults import on_loop, remove
from tests.support.loss import cut
from tests.support.pool_logs import last_run, log_of
from tests.support.waiting import wait_until


@sky.function
def forever() -> None:
    print("its last words", flush=True)
    while True:
        time.sleep(0.05)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


def test_the_only_node_is_suspected_and_then_lost_with_both_times(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, lost_after=1.0)) as compute:
        (link,) = compute.pool.links
        node = compute.pool.view.nodes[0]
        wait = forever() > compute
        log = compute.pool.view.logs.rank(0)
        wait_until(lambda: "its last words" in log.lines(0, 99), what="what it prints")
        agent = link.welcome["pid"]
        cut(link)
        wait_until(lambda: "counts as lost at" in node.link_detail, what="the suspicion")
        words = r"unreachable since \d\d:\d\d:\d\d, counts as lost at \d\d:\d\d:\d\d"
        assert re.search(words, node.link_detail), node.link_detail
        error = wait.exception(30)
        assert isinstance(error, sky.RunError)
        assert error.root_cause.outcome == "lost"
        run = last_run(compute)
        wait_until(lambda: (row := Ledger().run(run)) is not None and row.state == "failed", what="its end")
        assert log_of(compute, run, 0) == b"its last words\n"  # nobody told how far its log went
        assert error.root_cause.message == f"node 0 is gone: {node.detail}"
        assert compute.stacks(run=run).returned == (), "nobody knows how far its function came"
        assert node.phase == "gone"
        assert re.search(r"no answer since \d\d:\d\d:\d\d, lost at \d\d:\d\d:\d\d, after 1 s", node.detail)
        Path(f"/proc/{agent}").stat()  # a cut ends no healthy machine
        with pytest.raises(sky.RunError):
            _ = rank() >> compute


def test_a_node_that_answers_in_time_is_suspected_no_longer(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, lost_after=3.0)) as compute:
        (link,) = compute.pool.links
        node = compute.pool.view.nodes[0]
        there = cut(link)
        wait_until(lambda: "counts as lost at" in node.link_detail, what="the suspicion")
        link.transport.socket = there  # type: ignore[attr-defined]
        wait_until(lambda: node.link_up, what="the link")
        assert "counts as lost at" not in node.link_detail
        on_loop(lambda: None)
        assert not compute.pool.context.recovery.suspects._since
        assert rank() >> compute == 0


def test_a_node_that_is_out_of_reach_when_a_client_comes_is_bounded_too(home: Path) -> None:
    with sky.Compute(name="shared", nodes=2, options=sky.Options(console=False, lost_after=1.0)) as compute:
        path: Path = compute.pool.links[1].transport.socket  # type: ignore[attr-defined]
        path.rename(path.with_suffix(".away"))
        code = """
import skyward_core as sky
@sky.function
def rank(): return sky.instance_info().rank
with sky.attach("shared") as compute:
    try:
        rank() @ compute
    except sky.RunError as error:
        print(error.root_cause.outcome, error.root_cause.rank)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
        path.with_suffix(".away").rename(path)
        assert done.stdout == "lost 1\n", done.stderr


# A node goes with all that is on it while no client of its pool is there: whoever comes next tells what it had.


def leave(cli: Cli) -> tuple[str, str, str]:
    """Detach from a run that has gone on for a while; gives its pool, itself, and the folder of node 1."""
    left = cli("run", "endings.py:waits", "--nodes", 2, "--arg", f"marker={cli.folder}/m", "--detach", "--json")
    run = json.loads(left.stdout.splitlines()[-1])["run"]
    with closing(Ledger(cli.folder / "home/ledger.db")) as ledger:
        row = ledger.run(run)
        assert row is not None and not row.has_client
        (machine,) = [each for each in ledger.machines(row.token) if each.node == 1]
    with closing(sqlite3.connect(cli.folder / "home/ledger.db")) as db:
        db.execute("UPDATE runs SET opened_at=opened_at-60")
        db.commit()
    return left.stderr.split("attach ")[1].split()[0], run, machine.extra["folder"]


def lose(folder: str) -> None:
    """Have a node go with all that is on it."""
    for pid in find_node_processes(folder):
        os.kill(pid, signal.SIGKILL)
    remove(folder)


@pytest.mark.proof("2 s of a processor")
def test_a_run_that_loses_a_node_while_somebody_follows_it_fails(cli: Cli) -> None:
    pool, _, folder = leave(cli)
    with cli.begin("attach", pool, "--json") as follower:
        assert follower.stderr is not None and "on 2 ranks" in follower.stderr.readline()
        lose(folder)
        out, said = follower.communicate()
    found = json.loads(out.splitlines()[-1])
    assert follower.returncode == 1 and "node 1 " in found["root_cause"]["message"], said
    assert [rank["outcome"] for rank in found["ranks"]] == ["collateral", "lost"]
    assert cli.pools()[pool]["runs"][0]["state"] == "failed"


def test_a_run_that_lost_a_node_ends_when_somebody_follows_it(cli: Cli) -> None:
    pool, run, folder = leave(cli)
    lose(folder)
    assert cli.pools()[pool]["runs"][0]["state"] == "running", "who only looks stops nothing"
    outcomes = [rank["outcome"] for rank in cli.json("results", run)["ranks"]]
    assert outcomes == ["running", "lost"]
    followed = cli("attach", pool, "--json", status=1)
    found = json.loads(followed.stdout.splitlines()[-1])
    assert [rank["outcome"] for rank in found["ranks"]] == ["collateral", "lost"]
    assert found["root_cause"]["message"] == "node 1 is gone: its machine was already gone"
    assert cli.pools()[pool]["runs"][0]["state"] == "failed"
