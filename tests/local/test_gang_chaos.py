"""Sweeps by gangs whose client is killed at any of its steps, and two of them on one pool.

Each combination runs once on each of its ranks.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.child import Child
from tests.support.cli import Cli
from tests.support.waiting import wait_until

SCRIPT = """
import os, time
import skyward_core as sky

@sky.function
def trial(n: int, marks: str, waits: bool = False) -> int:
    mark = f"{marks}/agent.{os.getppid()}"  # by its number in the gang, a node of another one may be called the same
    node = os.open(mark, os.O_CREAT | os.O_EXCL)  # no other gang has it
    try:
        with open(f"{marks}/begun", "a") as file:
            file.write(f"{n} ")
        while waits and not os.path.exists(f"{marks}/gate"):
            time.sleep(0.02)
        return n * 10
    finally:
        os.unlink(mark)
        os.close(node)
"""
# Before and after all that the scheduler waits for it counts a step, and ends the process at one of them.
KILLED = """
import asyncio, os, sys
import skyward_core.pool.runs.gang_sweep as scheduler

at, steps = int(os.environ["KILL_AT"]), 0

def step():
    global steps
    steps += 1
    if steps == at:
        os.kill(os.getpid(), 9)

class Steps:
    def __getattr__(self, name):
        return getattr(asyncio, name)

    async def to_thread(self, *work):
        step()
        done = await asyncio.to_thread(*work)
        step()
        return done

    async def wait(self, *given, **said):
        step()
        done = await asyncio.wait(*given, **said)
        step()
        return done

    def wrap_future(self, future):
        step()
        return asyncio.wrap_future(future)

scheduler.asyncio = Steps()
from skyward_tui.cli.main import main
main()
"""
TRIALS = 5
# The sheet; each trial's task and its future; what is waited for at least as often as the pool is full; the end.
STEPS = 2 + TRIALS * 3 + 2 * (TRIALS // 2) + 2


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("chaos"))
    made.write("swept.py", SCRIPT)
    made.write("killed.py", KILLED)
    made.write("first.py", "import skyward_core as sky\n@sky.function\ndef first() -> int: return 1\n")
    made("run", "first.py", "--nodes", 4, "--pool", "storm", "--keep")
    yield made
    made("down", "--all", "-y", status=None)


def words(marks: Path, *more: object) -> list[object]:
    swept = ["-a", f"n=1..{TRIALS}", "-a", f"marks={marks}"]
    return ["run", "swept.py", "--sweep", "--gang-nodes", 2, *swept, "--pool", "storm", *more]


def begun(marks: Path) -> Counter[str]:
    found = marks / "begun"
    return Counter(found.read_text().split()) if found.exists() else Counter()


def gangs_begun(stderr: str) -> list[str]:
    return re.findall(r"^run (\w+): \d+/\d+ (?!ended,)", stderr, re.MULTILINE)


def runs_of(cli: Cli, marks: Path) -> list[str]:
    return [run["run"] for run in cli.json("history", "--all", f"marks={marks}")["runs"]]


def storm(cli: Cli, marks: Path, at: int) -> None:
    """Kill a client at that step; then whoever comes later gets all that there is, and runs the rest."""
    client = Child(
        [sys.executable, "killed.py", *map(str, words(marks))],
        cwd=cli.folder, env=cli.env | {"KILL_AT": str(at)}, text=True,
    )  # fmt: skip
    with client:
        status = client.wait()
    assert status in (0, -signal.SIGKILL)
    new = runs_of(cli, marks)
    if not new:
        assert status, "nothing had begun"
        assert not begun(marks)
        return
    refused = True
    while refused:
        done = cli("rerun", new[0], "--missing", status=None)
        refused = "is still running. Wait for its end" in done.stderr
    assert done.returncode == 0, done.stderr
    ran = gangs_begun(done.stderr)
    rows = cli.json("results", (ran or new)[0], status=None)["trials"]
    assert [row["value"] for row in rows] == [10 * (n + 1) for n in range(TRIALS)]
    assert begun(marks) == {str(n + 1): 2 for n in range(TRIALS)}, "each on both of its ranks, once"


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_client_is_killed_at_some_step(cli: Cli, tmp_path: Path, seed: int) -> None:
    storm(cli, tmp_path, Random(seed).randint(3, STEPS))


@pytest.mark.proof("3 min")
@pytest.mark.parametrize("at", range(1, STEPS + 3))
def test_a_client_is_killed_at_each_step(cli: Cli, tmp_path: Path, at: int) -> None:
    storm(cli, tmp_path, at)


@pytest.mark.proof("1 s of a processor")
def test_two_sweeps_share_a_pool_and_one_loses_its_client(cli: Cli, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    # Both mark the nodes that they have in one folder: a gang on another's node would fail.
    swept = ["run", "swept.py", "--sweep", "--gang-nodes", 2, "-a", f"marks={shared}", "--pool", "storm"]
    with (
        cli.begin(*swept, "-a", "n=1..4", "-a", "waits=true") as one,
        cli.begin(*swept, "-a", "n=11..14", "-a", "waits=true") as two,
    ):
        wait_until(lambda: len(begun(shared)) == 2)
        wait_until(lambda: len(cli.json("queue", "storm")["runs"]) == 4, what=lambda: cli.json("queue", "storm"))
        os.kill(one.pid, signal.SIGKILL)
        killed = one.communicate()[1]
        (shared / "gate").touch()
        said = two.communicate()[1]
    assert two.returncode == 0, said
    assert [begun(shared)[str(n)] for n in range(11, 15)] == [2] * 4
    (run, *_) = gangs_begun(killed)
    wait_until(lambda: cli("rerun", run, "--missing", status=None).returncode == 0)
    assert begun(shared) == {str(n): 2 for n in (1, 2, 3, 4, 11, 12, 13, 14)}
