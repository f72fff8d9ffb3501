"""Sweeps by gangs of some of a node's ranks, whose client or agent is killed: one pool of a node of four ranks."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.fates import gone
from tests.support.waiting import wait_until

SCRIPT = """
import os, time
import skyward_core as sky

@sky.function
def waits(n: int, folder: str) -> int:
    info = sky.instance_info()
    assert info.world_size == 2
    new = f"{folder}/new.{n}.{info.rank}"
    with open(new, "w") as file:
        file.write(str(os.getpid()))
    with open(f"{folder}/begun", "a") as file:
        file.write(f"{n}.{info.rank} ")
    os.rename(new, f"{folder}/{n}.rank{info.rank}")
    while n > 2 and not os.path.exists(f"{folder}/gate"):
        time.sleep(0.02)
    if os.path.exists(f"{folder}/bad{n}.{info.rank}"):
        raise ValueError(f"bad {n}")
    return n * 10

@sky.function
def whole() -> int:
    return sky.instance_info().world_size
"""
TRIALS = 6
SHAPE = ["--ranks-per-node", 4]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("left"))
    made.write("swept.py", SCRIPT)
    made("run", "swept.py:whole", *SHAPE, "--pool", "node", "--keep")
    yield made
    made("down", "--all", "-y", status=None)


def run_of(stderr: str) -> str:
    found = re.search(r"^run (\w+): .* on \d+ combinations?$", stderr, re.MULTILINE)
    assert found is not None, stderr
    return found[1]


def told(cli: Cli, run: str, status: int | None = 0) -> list[dict[str, Any]]:
    trials: list[dict[str, Any]] = cli.json("results", run, status=status)["trials"]
    return trials


def words(folder: Path, *more: object) -> list[object]:
    swept = ["-a", f"n=1..{TRIALS}", "-a", f"folder={folder}"]
    return ["run", "swept.py:waits", "--sweep", "--gang-ranks", 2, *swept, "--pool", "node", *more]


def sweeping(cli: Cli, folder: Path, *more: object) -> tuple[Any, str]:
    """A client whose third and fourth combination run, and the sweep's run."""
    before = {row["run"] for row in cli.pools()["node"]["runs"]}
    client = cli.begin(*words(folder, *more))
    wait_until(lambda: len(pids_in(folder)) == 8, what=lambda: str(list(folder.iterdir())))
    (run,) = {row["run"] for row in cli.pools()["node"]["runs"]} - before
    return client, run


def pids_in(folder: Path, trials: str = "[0-9]") -> list[int]:
    return [int(path.read_text()) for path in folder.glob(f"{trials}.rank*")]


def begun(folder: Path) -> Counter[str]:
    return Counter((folder / "begun").read_text().split())


def once(folder: Path) -> None:
    """Each combination has begun once on each of its ranks."""
    assert begun(folder) == {f"{n}.{rank}": 1 for n in range(1, TRIALS + 1) for rank in (0, 1)}


def agent_of(cli: Cli) -> int:
    (state,) = cli.folder.glob("home/local/*/*/agent.json")
    return int(json.loads(state.read_text())["pid"])


def test_what_a_killed_client_left_comes_to_the_next_and_the_rest_is_run(cli: Cli, tmp_path: Path) -> None:
    client, run = sweeping(cli, tmp_path)
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    assert f"run {run} goes on" in cli("rerun", run, "--missing", status=2).stderr
    (tmp_path / "gate").touch()
    wait_until(lambda: [row["outcome"] for row in told(cli, run, None)].count("returned") == 4)
    done = cli("rerun", run, "--missing")
    assert f"2 of {TRIALS} combinations have no result and are run" in done.stderr
    rows = told(cli, run_of(done.stderr))
    assert [row["value"] for row in rows] == [10 * n for n in range(1, TRIALS + 1)]
    once(tmp_path)


def test_who_detaches_hands_all_of_it_to_the_node(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    plan = cli(*words(tmp_path, "--dry-run")).stdout
    assert "and so on, as 6 trials, each on 2 ranks of a node" in plan
    run = run_of(cli(*words(tmp_path, "--detach")).stderr)
    wait_until(lambda: [row["outcome"] for row in told(cli, run, None)].count("returned") == TRIALS)
    once(tmp_path)
    assert {tuple(row["ranks"]) for row in told(cli, run)} == {(0, 1), (2, 3)}
    again = cli(*words(tmp_path), "--timeout", 60)
    assert " on ranks 0 to 1 (" in again.stderr and " on ranks 2 to 3 (" in again.stderr
    refused = cli(*words(tmp_path, "--gang-ranks", 4, "--detach"), status=2)
    assert "4 ranks are whole nodes of pool node" in refused.stderr


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("also", ["rank", "", "all"])
def test_a_killed_agent_is_followed_by_one_that_goes_on(cli: Cli, tmp_path: Path, also: str) -> None:
    """With it a rank, or all of them, of the combinations that run; those fail, and the others run."""
    client, run = sweeping(cli, tmp_path)
    agent, ranks = agent_of(cli), {n: pids_in(tmp_path, str(n)) for n in (3, 4)}
    killed = {"": [], "rank": [ranks[3][1]], "all": ranks[3] + ranks[4]}[also]
    for pid in (agent, *killed):
        os.kill(pid, signal.SIGSTOP)
    for pid in (agent, *killed):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: agent_of(cli) != agent, what="another agent")
    if also == "rank":
        assert gone(ranks[3]), "no rank runs on alone"
    (tmp_path / "gate").touch()
    _, said = client.communicate()
    rows = told(cli, run, None)
    failed = {"": [], "rank": [3], "all": [3, 4]}[also]
    assert [n for n, row in enumerate(rows, 1) if row["outcome"] != "returned"] == failed, said
    once(tmp_path)
    if failed:
        done = cli("rerun", run, "--missing")
        assert f"{len(failed)} of {TRIALS} combinations" in done.stderr
        assert all(row["outcome"] == "returned" for row in told(cli, run_of(done.stderr)))
    ranks_of_all = cli.json("run", "swept.py:whole", "--pool", "node")["ranks"]
    assert [rank["value"] for rank in ranks_of_all] == [4] * 4
