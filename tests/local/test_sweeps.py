"""Sweeps over arguments: real pools, failures, clients that are killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.waiting import wait_until

SCRIPT = """
import os, time
import skyward_core as sky

@sky.function
def train(lr: float = 0.1, seed: int = 0, mended: str = "mended") -> float:
    for step in range(3):
        sky.log(step=step, loss=lr / (step + 1))
    if seed == 2 and not os.path.exists(mended):
        raise ValueError(f"bad seed {seed}")
    return lr * seed

@sky.function
def ranked(lr: float, seed: int) -> float:
    rank = sky.instance_info().rank
    if seed == 2 and rank == 1 and not os.path.exists("mended"):
        raise ValueError(f"bad seed {seed}")
    return lr * seed * 10 + rank

@sky.function
def waits(seed: int, gate: str) -> int:
    print("begun", seed, flush=True)
    while seed > 2 and not os.path.exists(gate):
        time.sleep(0.02)
    return seed
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    cli = Cli(tmp_path_factory.mktemp("sweeps"))
    cli.write("swept.py", SCRIPT)
    return cli


def run_of(stderr: str) -> str:
    found = re.search(r"^run (\w+): .* on \d+ combinations?$", stderr, re.MULTILINE)
    assert found is not None, stderr
    return found[1]


def told(cli: Cli, run: str, status: int | None = 0) -> list[dict[str, Any]]:
    trials: list[dict[str, Any]] = cli.json("results", run, status=status)["trials"]
    return trials


def test_each_combination_is_a_row_and_what_failed_is_run_again_alone(cli: Cli) -> None:
    done = cli(
        "run", "swept.py:train", "--sweep", "-a", "lr=0.1,0.01", "-a", "seed=1..3", "--nodes", 2,
        "--pool", "dev", "--keep", status=1,
    )  # fmt: skip
    first = run_of(done.stderr)
    assert "4/6 " in done.stderr and "ValueError: bad seed 2" in done.stdout
    assert done.stdout.splitlines()[0].split() == [
        "#", "lr", "seed", "outcome", "time", "step", "loss", "result"
    ]  # fmt: skip
    rows = told(cli, first, status=1)
    assert [(row["arguments"]["seed"], row["outcome"]) for row in rows] == 2 * [
        ("1", "returned"), ("2", "raised"), ("3", "returned")
    ]  # fmt: skip
    assert rows[0]["numbers"] == {"step": 2.0, "loss": pytest.approx(0.1 / 3)}
    by_result = cli("results", first, "--sort", "-result", status=1).stdout.splitlines()
    assert [line.split()[0] for line in by_result[1:]] == ["2", "0", "5", "3", "1", "4"]
    assert "no column 'nothing'" in cli("results", first, "--sort", "nothing", status=2).stderr

    cli.write("mended", "")
    again = cli("rerun", first, "--missing")
    second = run_of(again.stderr)
    assert "2 of 6 combinations have no result and are run" in again.stderr
    assert [row["value"] for row in told(cli, second)] == pytest.approx([0.1, 0.2, 0.3, 0.01, 0.02, 0.03])
    assert {row["run"] for row in told(cli, second)} == {first, second}
    assert "have results" in cli("rerun", second, "--missing").stderr
    assert len(cli.pools()["dev"]["runs"]) == 2
    plain = run_of_plain(cli("run", "swept.py:train", "--pool", "dev").stderr)
    assert "is not a sweep" in cli("rerun", plain, "--missing", status=2).stderr
    assert "is not a sweep" in cli("results", plain, "--sort", "lr", status=2).stderr
    cli("down", "dev")


def run_of_plain(stderr: str) -> str:
    found = re.search(r"^run (\w+): ", stderr, re.MULTILINE)
    assert found is not None, stderr
    return found[1]


def test_a_client_that_is_killed_loses_nothing_and_the_rest_is_run_later(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client = cli.begin(
        "run", "swept.py:waits", "--sweep", "-a", "seed=1..9", "-a", f"gate={gate}", "--nodes", 2, "--pool", "cut"
    )  # fmt: skip
    wait_until(lambda: "cut" in cli.pools() and bool(cli.pools()["cut"]["runs"]))
    run = cli.pools()["cut"]["runs"][0]["run"]
    wait_until(lambda: [row["outcome"] for row in told(cli, run)][:2] == ["returned", "returned"])
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    early = cli("rerun", run, "--missing", status=2)
    assert f"run {run} is still running" in early.stderr
    gate.write_text("")

    # Each node had one task under way; the others were on no node yet.
    wait_until(lambda: [row["outcome"] for row in told(cli, run, None)].count("returned") == 4)
    done = cli("rerun", run, "--missing")
    assert "5 of 9 combinations have no result and are run" in done.stderr
    assert [row["value"] for row in told(cli, run_of(done.stderr))] == list(range(1, 10))
    cli("down", "cut", "--yes")


@pytest.mark.proof("1 s of a processor")
def test_with_gangs_each_combination_runs_on_every_rank_one_after_the_other(cli: Cli) -> None:
    cli.folder.joinpath("mended").unlink(missing_ok=True)
    words = [
        "--sweep",
        "--gang",
        "-a",
        "lr=1,2",
        "-a",
        "seed=1..3",
        "--nodes",
        2,
        "--pool",
        "gangs",
        "--keep",
    ]
    done = cli("run", "swept.py:ranked", *words, status=1)
    runs = re.findall(r"^run (\w+): (\d)/6 (?!ended,)", done.stderr, re.MULTILINE)
    assert [place for _, place in runs] == list("123456"), "one that fails stops no other"
    rows = told(cli, runs[-1][0], None)
    assert [row["outcome"] for row in rows] == 2 * ["returned", "raised", "returned"]
    assert [row["value"] for row in rows] == [10.0, None, 30.0, 20.0, None, 60.0]
    assert [row["run"] for row in rows] == [run for run, _ in runs]
    assert [row["rank"] for row in rows] == [0, 1, 0, 0, 1, 0], "who failed stands for all"
    cli.write("mended", "")
    again = cli("rerun", "gangs", "--missing")
    assert "2 of 6 combinations have no result and are run" in again.stderr
    last = re.findall(r"^run (\w+): 2/2 (?!ended,)", again.stderr, re.MULTILINE)[0]
    assert [row["value"] for row in told(cli, last)] == [10.0, 20.0, 30.0, 20.0, 40.0, 60.0]
    assert "have results" in cli("rerun", last, "--missing").stderr
    cli("down", "gangs")


def gangs_begun(stderr: str) -> list[str]:
    return re.findall(r"^run (\w+): \d+/\d+ (?!ended,)", stderr, re.MULTILINE)


def test_gangs_of_some_nodes_run_side_by_side_and_who_fails_is_named(cli: Cli) -> None:
    cli.folder.joinpath("mended").unlink(missing_ok=True)
    words = ["--sweep", "--gang-nodes", 2, "-a", "lr=1,2", "-a", "seed=1..3", "--pool", "wide", "--keep"]
    done = cli("run", "swept.py:ranked", *words, "--nodes", 5, status=1)
    assert "6 combinations, each on all ranks of 2 nodes, 2 at a time (1 node of 5 unused)" in done.stderr
    runs = gangs_begun(done.stderr)
    assert len(runs) == 6, "one that fails stops no other"
    assert f"4 of 6 combinations have results; lr=1 seed=2 raised (run {runs[1]}); lr=2 seed=2" in done.stderr
    for run in runs:
        rows = told(cli, run, None)
        assert [row["value"] for row in rows] == [10.0, None, 30.0, 20.0, None, 60.0]
        assert [row["run"] for row in rows] == runs and rows[1]["rank"] % 5 != rows[0]["rank"]
    by_result = cli("results", runs[0], "--sort", "-result").stdout.splitlines()
    table = by_result[by_result.index(next(line for line in by_result if line.startswith("#  lr"))) + 1 :]
    assert [line.split()[0] for line in table] == ["5", "2", "3", "0", "1", "4"]
    cli.write("mended", "")
    again = cli("rerun", runs[0], "--missing")
    assert "2 of 6 combinations have no result and are run" in again.stderr
    last = gangs_begun(again.stderr)[-1]
    assert [row["value"] for row in told(cli, last)] == [10.0, 20.0, 30.0, 20.0, 40.0, 60.0]
    assert "have results" in cli("rerun", last, "--missing").stderr
    small = cli(
        "run",
        "swept.py:ranked",
        "--sweep",
        "--gang-nodes",
        6,
        "-a",
        "lr=1",
        "-a",
        "seed=1",
        "--pool",
        "wide",
        status=2,
    )
    assert "needs 6 nodes, but pool wide has 5" in small.stderr
    cli("down", "wide")


@pytest.mark.proof("3 s of a processor")
def test_a_client_of_gangs_that_is_killed_leaves_what_runs_and_the_rest_is_run_later(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = ["--sweep", "--gang-nodes", 2, "-a", "seed=3..7", "-a", f"gate={gate}", "--pool", "killed"]
    client = cli.begin("run", "swept.py:waits", *words, "--nodes", 4)
    wait_until(lambda: "killed" in cli.pools() and len(cli.pools()["killed"]["runs"]) == 2)
    run = cli.pools()["killed"]["runs"][0]["run"]
    wait_until(lambda: [row["outcome"] for row in told(cli, run)][:2] == ["running", "running"])
    assert "is still running" in cli("rerun", run, "--missing", status=2).stderr
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    assert "is still running" in cli("rerun", run, "--missing", status=2).stderr, "its gangs do, without it"
    gate.write_text("")
    wait_until(lambda: [row["outcome"] for row in told(cli, run, None)].count("returned") == 2)
    done = cli("rerun", run, "--missing")
    assert "3 of 5 combinations have no result and are run" in done.stderr
    assert [row["value"] for row in told(cli, gangs_begun(done.stderr)[0])] == [3, 4, 5, 6, 7]
    cli("down", "killed", "--yes")


@pytest.fixture(scope="module")
def held(cli: Cli) -> Iterator[str]:
    """A pool of four nodes, on which sweeps are stopped."""
    cli.write("first.py", "import skyward_core as sky\n@sky.function\ndef first() -> int: return 1\n")
    cli("run", "first.py", "--nodes", 4, "--pool", "held", "--keep")
    yield "held"
    cli("down", "held", "--yes")


def going(cli: Cli) -> list[str]:
    """The runs that go on there."""
    return [row["run"] for row in cli.json("queue", "held")["runs"]]


@pytest.mark.proof("2 s of a processor")
@pytest.mark.parametrize("how", ["cancel", "interrupt"])
def test_a_sweep_by_gangs_is_stopped_as_a_whole(cli: Cli, held: str, tmp_path: Path, how: str) -> None:
    words = ["--sweep", "--gang-nodes", 2, "-a", "seed=3..7", "-a", f"gate={tmp_path}/never", "--pool", held]
    with cli.begin("run", "swept.py:waits", *words) as client:
        wait_until(lambda: len(going(cli)) == 2)
        runs = going(cli)
        if how == "cancel":
            cli("cancel", runs[1])
        else:
            client.send_signal(signal.SIGINT)
        out, said = client.communicate()
    assert client.returncode == 130, said
    assert "0 of 5 combinations have results" in said and "; 3 did not start" in said
    assert [line.split()[3:5] for line in out.splitlines() if re.match(r"[234] ", line)] == [["◌", "waiting"]] * 3
    assert going(cli) == []
    listed = {row["run"]: row["arguments"] for row in cli.json("history")["runs"]}
    assert sorted(listed[run][0] for run in runs) == ["seed=3", "seed=4"], "each its own"


@pytest.mark.proof("1 s of a processor")
def test_who_leaves_a_sweep_by_gangs_is_told_what_becomes_of_it(cli: Cli, held: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = ["--sweep", "--gang-nodes", 2, "-a", "seed=3..7", "-a", f"gate={gate}", "--pool", held]
    client = cli.terminal("run", "swept.py:waits", *words)
    wait_until(lambda: len(going(cli)) == 2)
    client.expect("2/5 seed=4")
    client.sendintr()
    client.expect("running trials continue, pending trials are cancelled")
    client.sendline("d")
    client.expect(r"Run them later with: skyward-tui rerun (\w+) --missing")
    run = client.match[1]
    client.wait()
    gate.touch()
    wait_until(lambda: going(cli) == [])
    done = cli("rerun", run, "--missing")
    assert "3 of 5 combinations have no result and are run" in done.stderr


@pytest.mark.proof("1 s of a processor")
def test_results_of_an_ended_gang_show_others_that_still_run(cli: Cli, held: str, tmp_path: Path) -> None:
    cli.write(
        "uneven.py",
        """
import os, time
import skyward_core as sky

@sky.function
def trial(gate: str) -> int:
    while not os.path.exists(gate):
        time.sleep(0.02)
    return 1
""",
    )
    words = ["--sweep", "--gang-nodes", 2, "-a", f"gate=.,{tmp_path}/gate", "--pool", held]
    with cli.begin("run", "uneven.py", *words) as client:
        wait_until(lambda: len(going(cli)) == 1 and len(cli.json("history", "gate=.")["runs"]) == 1)
        (ended,), (other,) = cli.json("history", "gate=.")["runs"], going(cli)
        rows = told(cli, ended["run"])
        (tmp_path / "gate").touch()
        client.communicate()
    assert [(row["run"], row["outcome"]) for row in rows] == [(ended["run"], "returned"), (other, "running")]


@pytest.mark.proof("1 s of a processor")
def test_more_gangs_than_a_pool_has_in_memory_are_all_told(cli: Cli) -> None:
    words = [
        "--sweep",
        "--gang-nodes",
        1,
        "-a",
        "seed=3..72",
        "-a",
        "lr=2",
        "-a",
        "mended=.",
        "--pool",
        "many",
    ]
    done = cli("run", "swept.py:train", *words, "--nodes", 2, "--keep")
    runs = gangs_begun(done.stderr)
    assert len(runs) == 70 and "70/70 ended" in done.stderr
    assert [row["value"] for row in told(cli, runs[3])] == [2.0 * seed for seed in range(3, 73)]
    assert len(done.stdout.splitlines()) == 71 and "waiting" not in done.stdout
    cli("down", "many")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--one", "-a", "lr=1,2"], "Remove --one"),
        (["--gang", "--detach", "-a", "lr=1,2"], "cannot be combined with --detach"),
        (["--gang-nodes", "1", "--detach", "-a", "lr=1,2"], "cannot be combined with --detach"),
        (["--gang-nodes", "1", "--gang", "-a", "lr=1,2"], "cannot be combined"),
        (
            ["--gang-nodes", "3", "--nodes", "2", "-a", "lr=1,2"],
            "each combination needs 3 nodes, but pool",
        ),
        (
            ["--gang-ranks", "3", "--nodes", "2", "--ranks-per-node", "2", "-a", "lr=1,2"],
            "has 2. Use 2 or 4 ranks",
        ),
        (["--gang-ranks", "2", "--detach", "-a", "lr=1,2"], "cannot be combined with --detach"),
        (["--gang-ranks", "2", "--ranks-per-node", "gpu", "-a", "lr=1,2"], "use a running pool"),
        (["-a", "lr=1,x"], "argument lr of train must be float, got 'x'"),
        (["-a", "lr=1,1"], "1 is repeated"),
        (["-a", "seed=1..9999"], "more than 4,096"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_pool_is_made(cli: Cli, words: list[str], said: str) -> None:
    assert said in cli("run", "swept.py:train", "--sweep", *words, status=2).stderr


def test_a_plan_says_how_many_combinations(cli: Cli) -> None:
    sweep = ("run", "swept.py:train", "--sweep", "-a", "lr=1,2", "--dry-run")
    plan = cli(*sweep).stdout
    assert "train(lr=1.0) and so on: 2 trials, each on one rank" in plan
    assert "each trial: 1 rank, world size 1\n" in plan
    shape = ("--nodes", 4, "--ranks-per-node", 2)
    for gang, ranks in (("--gang", 8), ("--gang-nodes=2", 4), ("--gang-ranks=2", 2)):
        said = f"each trial: {ranks} ranks, world size {ranks}\n"
        assert said in cli(*sweep, *shape, gang).stdout, gang
    assert "world    1 rank, world size 1\n" in cli("run", "swept.py:train", "-a", "lr=1", "--one", "--dry-run").stdout
    assert "whole script" in cli("run", "swept.py", "--sweep", "--", "x", status=2).stderr


@pytest.mark.proof("1 s of a processor")
def test_who_detaches_leaves_all_of_it_to_the_nodes(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = ["--sweep", "-a", "seed=1..9", "-a", f"gate={gate}", "--nodes", 2, "--pool", "left", "--detach"]
    run = run_of(cli("run", "swept.py:waits", *words).stderr)
    gate.write_text("")
    wait_until(lambda: cli.pools()["left"]["runs"][0]["state"] == "done")
    assert [row["value"] for row in told(cli, run)] == list(range(1, 10))
    cli("down", "left", "--yes")
