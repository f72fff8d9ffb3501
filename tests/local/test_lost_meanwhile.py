"""A node goes with all that is on it while no client of its pool is there: whoever comes next tells what it had."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing

from skyward_core.node.boot.host import members
from skyward_core.store.ledger import Ledger
from tests.support.cli import Cli
from tests.support.faults import remove


def test_a_run_that_lost_a_node_ends_when_somebody_follows_it(cli: Cli) -> None:
    left = cli(
        "run", "endings.py:waits", "--nodes", 2, "--arg", f"marker={cli.folder}/m", "--detach", "--json"
    )
    run = json.loads(left.stdout.splitlines()[-1])["run"]
    with closing(Ledger(cli.folder / "home/ledger.db")) as ledger:
        row = ledger.run(run)
        assert row is not None and not row.has_client
        (machine,) = [each for each in ledger.machines(row.token) if each.node == 1]
    for pid in members(machine.extra["folder"]):
        os.kill(pid, signal.SIGKILL)
    remove(machine.extra["folder"])
    with closing(sqlite3.connect(cli.folder / "home/ledger.db")) as db:  # it has run for a while
        db.execute("UPDATE runs SET opened_at=opened_at-60")
        db.commit()
    pool = left.stderr.split("attach ")[1].split()[0]
    assert cli.pools()[pool]["runs"][0]["state"] == "running", "who only looks stops nothing"
    outcomes = [rank["outcome"] for rank in cli.json("results", run)["ranks"]]
    assert outcomes == ["running", "lost"]
    followed = cli("attach", pool, "--json", status=1)
    found = json.loads(followed.stdout.splitlines()[-1])
    assert [rank["outcome"] for rank in found["ranks"]] == ["collateral", "lost"]
    assert found["root_cause"]["message"] == "node 1 is gone: its machine was gone when somebody came"
    assert cli.pools()[pool]["runs"][0]["state"] == "failed"
