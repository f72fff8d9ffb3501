"""Sweeps by gangs of two of each node's four ranks, while ranks, agents and clients are killed at random steps.

Everything ends: what has failed is told, whoever comes later runs the rest, and no rank is left at work alone.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.fates import gone
from tests.support.waiting import wait_until

SCRIPT = """
import os, socket, threading
import skyward_core as sky

def mark(folder, name):
    with open(f"{folder}/new.{name}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{folder}/new.{name}", f"{folder}/{name}")

@sky.function
def trial(n: int, folder: str) -> int:
    "Its two ranks meet three times; one whose mate is gone would wait for ever."
    info, pid = sky.instance_info(), os.getpid()
    assert info.world_size == 2
    mark(folder, f"begun.{n}.{info.rank}.{pid}")
    for turn in range(3):
        mark(folder, f"at.{n}.{info.head_port}.{info.rank}.{turn}")
        while not os.path.exists(f"{folder}/at.{n}.{info.head_port}.{1 - info.rank}.{turn}"):
            threading.Event().wait(0.005)
    mark(folder, f"ended.{n}.{info.rank}.{pid}")
    return n * 10

@sky.function
def whole() -> int:
    return sky.instance_info().world_size
"""
NODES, TRIALS = 2, 12


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("chaos"))
    made.write("swept.py", SCRIPT)
    made("run", "swept.py:whole", "--nodes", NODES, "--ranks-per-node", 4, "--pool", "storm", "--keep")
    yield made
    made("down", "--all", "-y", status=None)


class Storm:
    """One sweep, and what is killed meanwhile."""

    def __init__(self, cli: Cli, folder: Path, seed: int) -> None:
        self.cli, self.folder, self.random = cli, folder, Random(seed)
        self.before = {row["run"] for row in self.runs()}

    def runs(self) -> list[Any]:
        return [row for row in self.cli.pools()["storm"]["runs"] if row["function"] == "trial"]

    def marks(self, kind: str) -> dict[str, int]:
        """Where a rank has begun or ended, and its process."""
        return {path.name.partition(".")[2]: int(path.suffix[1:]) for path in self.folder.glob(f"{kind}.*")}

    def kill_something(self, client: Any) -> None:
        """Once a random number of ranks have begun, kill one that is at work, an agent, or the client."""
        many = self.random.randint(0, 2 * TRIALS)
        wait_until(lambda: len(self.marks("begun")) >= many or client.poll() is not None)
        what = self.random.choice(["rank", "rank", "agent", "agents and rank", "client", "broadcast"])
        if what == "broadcast":
            done = self.cli("run", "swept.py:whole", "--pool", "storm", status=None)
            assert done.returncode in (0, 1), done.stderr
        pids: list[int] = []
        if what == "client":
            pids.append(client.pid)
        if "agent" in what:
            states = list(self.cli.folder.glob("home/local/*/*/agent.json"))
            states = states if "agents" in what else [self.random.choice(states)]
            pids += [json.loads(state.read_text())["pid"] for state in states]
        at_work = sorted(self.marks("begun").items() - self.marks("ended").items())
        if "rank" in what and at_work:
            pids.append(self.random.choice(at_work)[1])
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def rerun(self) -> list[Any]:
        """Run what is missing until nothing is; gives the rows of the table."""
        new = [row["run"] for row in self.runs() if row["run"] not in self.before]
        if not new:
            return []
        over = None
        while over is None:
            done = self.cli("rerun", new[0], "--missing", status=None)
            over = re.search(r"nothing is missing of run (\w+)", done.stderr)
        rows: list[Any] = self.cli.json("results", over[1], status=None)["trials"]
        return rows

    def judge(self) -> None:
        rows = self.rerun()
        assert [row["value"] for row in rows] == [10 * (n + 1) for n in range(len(rows))]
        cut_off = self.marks("begun").items() - self.marks("ended").items()
        assert gone([pid for _, pid in cut_off]), "no rank is at work alone"
        ranks = self.cli.json("run", "swept.py:whole", "--pool", "storm")["ranks"]
        assert [rank["value"] for rank in ranks] == [4 * NODES] * 4 * NODES


def storm(cli: Cli, folder: Path, seed: int) -> None:
    found = Storm(cli, folder, seed)
    words = ["-a", f"n=1..{TRIALS}", "-a", f"folder={folder}", "--pool", "storm"]
    client = cli.begin("run", "swept.py:trial", "--sweep", "--gang-ranks", 2, *words)
    for _ in range(found.random.randint(1, 3)):
        found.kill_something(client)
    client.communicate(timeout=60)
    found.judge()


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("seed", [1, 2])
def test_all_comes_to_an_end(cli: Cli, tmp_path: Path, seed: int) -> None:
    storm(cli, tmp_path, seed)


@pytest.mark.proof("1 min")
@pytest.mark.parametrize("seed", range(3, 23))
def test_all_comes_to_an_end_at_more_steps(cli: Cli, tmp_path: Path, seed: int) -> None:
    storm(cli, tmp_path, seed)
