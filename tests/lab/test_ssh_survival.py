"""What a pool over SSH survives: an unused lease, two clients; and training across hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky

from . import Lab
from .conftest import MakeLab
from .pools import DEADLINE, Client, nothing_runs, pool, rank

COMMAND = [sys.executable, "-m", "skyward_tui"]


def test_hosts_clean_themselves_up_when_nobody_comes_back(make_lab: MakeLab, capfd: pytest.CaptureFixture[str]) -> None:
    lab = make_lab(2)
    for name in ("left", "too"):
        with Client(
            lab,
            f"""
            options = sky.Options(**quiet, idle_timeout=1.0)
            with sky.Compute(provider=ssh, name={name!r}, options=options):
                print("up", flush=True)
                time.sleep(600)
            """,
        ) as first:
            assert first.said() == "up"
    nothing_runs(lab)
    for host in lab.hosts:
        assert not [path for path in host.home.glob(".cache/skyward/pools/*") if path.is_dir()]

    said = "the node ended itself: nobody used it for 1 s"
    # A start with the name says what became of the pool that had it; so does the list, of the others.
    with pool(lab, nodes=1, name="left", options={"console": True}) as again:
        assert rank() @ again == [0]
    assert f"pool left: of the pool that had this name before: {said}" in capfd.readouterr().err
    listed = subprocess.run([*COMMAND, "ls"], capture_output=True, text=True, timeout=DEADLINE)
    assert f"pool too: {said}" in listed.stderr
    assert "no pools are up" in listed.stdout


@pytest.mark.proof("2 s of a processor")
def test_two_clients_at_once_never_swap_results(pair: Lab, home: Path) -> None:
    def tag(number: int) -> list[Any]:
        return ["ours", number, sky.instance_info().rank]

    ours = sky.function(tag)
    with (
        pool(pair, name="shared") as compute,
        Client(
            pair,
            """
            from skyward_core.tasks.function_pickling import make_task
            from skyward_core.client.session import Session
            @sky.function
            def tag(number):
                return ["theirs", number, sky.instance_info().rank]
            session = Session()
            session.attach("shared").result(60)
            print("attached", flush=True)
            for number in range(50):
                run = session.launch("shared", make_task(tag(number))).result(60)
                session.wait("shared", run.id).result(60)
                values = [outcome.summary.json for outcome in run.outcomes()]
                assert values == [["theirs", number, rank] for rank in range(2)], values
            print("right", flush=True)
            session.detach()
            """,
        ) as other,
    ):
        assert other.said() == "attached"
        for number in range(50):
            assert ours(number) @ compute == [["ours", number, r] for r in range(2)]
        assert other.said() == "right"
        assert other.process.wait(DEADLINE) == 0
