"""A node goes with all that is on it while no client of its pool is there: whoever comes next tells what it had."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing

import pytest

from skyward_core.node.bootstrap.host_inspection import find_node_processes
from skyward_core.store.ledger import Ledger
from tests.support.cli import Cli
from tests.support.faults import remove


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
    assert found["root_cause"]["message"] == "node 1 is gone: its machine was gone when somebody came"
    assert cli.pools()[pool]["runs"][0]["state"] == "failed"
