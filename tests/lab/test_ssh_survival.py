"""What a pool over SSH survives: an unused lease, two clients; and training across hosts."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.transport.background_loop import submit

from . import Lab
from .conftest import MakeLab
from .pools import DEADLINE, Client, nothing_runs, pool, rank, until

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

    said = "the node ended itself: idle for 1 s"
    # A start with the name says what became of the pool that had it; so does the list, of the others.
    with pool(lab, nodes=1, name="left", options={"console": True}) as again:
        assert rank() @ again == [0]
    assert f"pool left: previous pool of this name: {said}" in capfd.readouterr().err
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


# The client is killed in the middle of a run of 10 s: the run goes on, and those who come back miss nothing.


SECONDS = 10


def test_a_run_goes_on_without_its_client_and_every_line_comes_once(pair: Lab) -> None:
    with Client(
        pair,
        f"""
        @sky.function
        def work():
            import hashlib
            rank, number, printed = sky.instance_info().rank, 0, hashlib.sha256()
            began = time.monotonic()
            while time.monotonic() < began + {SECONDS}:
                line = f"rank {{rank}} line {{number}}"
                print(line, flush=True)
                printed.update(line.encode() + b"\\n")
                number += 1
                time.sleep(0.01)
            return rank, number, printed.hexdigest(), time.monotonic() - began, bytes(300_000)

        # Shorter than the run: a pool that is busy outlives its lease.
        options = sky.Options(**quiet, idle_timeout=3.0)
        with sky.Compute(provider=ssh, name="goes-on", options=options) as compute:
            threading.Thread(target=lambda: work() @ compute, daemon=True).start()
            while not all(compute.pool.archive.cursors.get(f"r{{rank:03d}}.out") for rank in range(2)):
                time.sleep(0.01)
            print(compute.pool.archive.logs, flush=True)
            time.sleep(600)
        """,
    ) as first:
        logs = Path(first.said())
        assert logs.is_dir(), logs
    seen = [(logs / f"r{rank:03d}.out").stat().st_size for rank in range(2)]  # by the one that is dead

    command = [sys.executable, "-m", "skyward_tui", "attach", "goes-on"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as beside:
        try:
            assert beside.stderr is not None
            assert b"work on 2 ranks" in beside.stderr.readline()
            with sky.attach("goes-on") as compute:
                (run,) = compute.runs
                assert run.state == "running"
                # The other client does not own the results: it shows their summaries, whoever fetches them.
                results = compute.wait()
                until(lambda: run.state == "done", "the run's end in the view")
                assert [rank for rank, *_ in results] == [0, 1]
                assert all(lasted >= SECONDS and len(large) == 300_000 for *_, lasted, large in results)
                submit(compute.pool.news.wait_logs_complete(run.id)).result(DEADLINE)
                out, err = beside.communicate(timeout=DEADLINE)
                receipt = compute.down()
        finally:
            beside.kill()
    assert receipt.ok and receipt.created == 2
    nothing_runs(pair)

    for number, count, digest, *_ in results:
        printed = (logs / f"r{number:03d}.out").read_bytes()
        assert printed.count(b"\n") == count
        assert hashlib.sha256(printed).hexdigest() == digest
        # Shown by the command line: all that came after the dead client's last byte, once and in order.
        prefix = f"r{number:03d}| ".encode()
        shown = [line for line in out.splitlines() if line.startswith(prefix)]
        assert shown == [prefix + line for line in printed[seen[number] :].splitlines()]
    assert beside.returncode == 0, err
