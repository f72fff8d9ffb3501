"""Sweeps over arguments: failures, gangs, and clients that are killed or stopped at any step."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skyward_core.store import sweep_trial_files
from tests.support.child import Child
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


def trial_rows(cli: Cli, run: str, status: int | None = 0) -> list[dict[str, Any]]:
    trials: list[dict[str, Any]] = cli.json("results", run, status=status)["trials"]
    return trials


def test_sweep_has_a_row_per_combination_and_failed_ones_can_be_rerun(cli: Cli) -> None:
    done = cli(
        "run", "swept.py:train", "--sweep", "-a", "lr=0.1,0.01", "-a", "seed=1..3", "--nodes", 2,
        "--pool", "dev", "--keep", status=1,
    )  # fmt: skip
    first = run_of(done.stderr)
    assert "4/6 " in done.stderr and "ValueError: bad seed 2" in done.stdout
    assert done.stdout.splitlines()[0].split() == [
        "#", "lr", "seed", "outcome", "time", "step", "loss", "result"
    ]  # fmt: skip
    rows = trial_rows(cli, first, status=1)
    assert [(row["arguments"]["seed"], row["outcome"]) for row in rows] == 2 * [
        ("1", "returned"), ("2", "raised"), ("3", "returned")
    ]  # fmt: skip
    assert rows[0]["numbers"] == {"step": 2.0, "loss": pytest.approx(0.1 / 3)}
    by_result = cli("results", first, "--sort", "-result", status=1).stdout.splitlines()
    assert [line.split()[0] for line in by_result[1:]] == ["2", "0", "5", "3", "1", "4"]
    as_json = cli.json("results", first, "--sort", "-result", status=1)["trials"]
    assert [rows.index(row) for row in as_json] == [2, 0, 5, 3, 1, 4]
    for more in ([], ["--json"]):
        refused = cli("results", first, "--sort", "nothing", *more, status=2)
        assert "no column 'nothing'" in refused.stderr

    cli.write("mended", "")
    again = cli("rerun", first, "--missing")
    second = run_of(again.stderr)
    assert "2 of 6 combinations have no result and are run" in again.stderr
    assert [row["value"] for row in trial_rows(cli, second)] == pytest.approx([0.1, 0.2, 0.3, 0.01, 0.02, 0.03])
    assert {row["run"] for row in trial_rows(cli, second)} == {first, second}
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


@pytest.mark.proof("2 s of a processor")
def test_missing_trials_of_a_killed_client_can_be_rerun(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client = cli.begin(
        "run", "swept.py:waits", "--sweep", "-a", "seed=1..9", "-a", f"gate={gate}", "--nodes", 2, "--pool", "cut"
    )  # fmt: skip
    wait_until(lambda: "cut" in cli.pools() and bool(cli.pools()["cut"]["runs"]))
    run = cli.pools()["cut"]["runs"][0]["run"]
    wait_until(lambda: [row["outcome"] for row in trial_rows(cli, run)][:2] == ["returned", "returned"])
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    early = cli("rerun", run, "--missing", status=2)
    assert f"run {run} is still running" in early.stderr
    gate.write_text("")

    # Each node had one task under way; the others were on no node yet.
    wait_until(lambda: [row["outcome"] for row in trial_rows(cli, run, None)].count("returned") == 4)
    done = cli("rerun", run, "--missing")
    assert "5 of 9 combinations have no result and are run" in done.stderr
    assert [row["value"] for row in trial_rows(cli, run_of(done.stderr))] == list(range(1, 10))
    cli("down", "cut", "--yes")


def gangs_begun(stderr: str) -> list[str]:
    return re.findall(r"^run (\w+): \d+/\d+ (?!ended,)", stderr, re.MULTILINE)


@pytest.mark.proof("3 s of a processor")
def test_sweep_on_gangs_runs_trials_concurrently_and_names_failures(cli: Cli) -> None:
    cli.folder.joinpath("mended").unlink(missing_ok=True)
    words = ["--sweep", "--gang-nodes", 2, "-a", "lr=1,2", "-a", "seed=1..3", "--pool", "wide", "--keep"]
    done = cli("run", "swept.py:ranked", *words, "--nodes", 5, status=1)
    assert "6 combinations, each on all ranks of 2 nodes, 2 at a time (1 node of 5 unused)" in done.stderr
    runs = gangs_begun(done.stderr)
    assert len(runs) == 6, "one that fails stops no other"
    assert f"4 of 6 combinations have results; lr=1 seed=2 raised (run {runs[1]}); lr=2 seed=2" in done.stderr
    for run in runs:
        rows = trial_rows(cli, run, None)
        assert [row["value"] for row in rows] == [10.0, None, 30.0, 20.0, None, 60.0]
        assert [row["run"] for row in rows] == runs and rows[1]["rank"] % 5 != rows[0]["rank"]
    by_result = cli("results", runs[0], "--sort", "-result").stdout.splitlines()
    table = by_result[by_result.index(next(line for line in by_result if line.startswith("#  lr"))) + 1 :]
    assert [line.split()[0] for line in table] == ["5", "2", "3", "0", "1", "4"]
    cli.write("mended", "")
    again = cli("rerun", runs[0], "--missing")
    assert "2 of 6 combinations have no result and are run" in again.stderr
    last = gangs_begun(again.stderr)[-1]
    assert [row["value"] for row in trial_rows(cli, last)] == [10.0, 20.0, 30.0, 20.0, 40.0, 60.0]
    assert "have results" in cli("rerun", last, "--missing").stderr
    small = cli(
        "run", "swept.py:ranked", "--sweep", "--gang-nodes", 6, "-a", "lr=1", "-a", "seed=1", "--pool", "wide", status=2
    )
    assert "needs 6 nodes, but pool wide has 5" in small.stderr
    cli("down", "wide")


@pytest.fixture(scope="module")
def held_pool(cli: Cli) -> Iterator[str]:
    """Pool of four nodes, on which sweeps are stopped."""
    cli.write("first.py", "import skyward_core as sky\n@sky.function\ndef first() -> int: return 1\n")
    cli("run", "first.py", "--nodes", 4, "--pool", "held", "--keep")
    yield "held"
    cli("down", "held", "--yes")


def running_runs(cli: Cli) -> list[str]:
    """Return the active runs of the held pool."""
    return [row["run"] for row in cli.json("queue", "held")["runs"]]


@pytest.mark.proof("2 s of a processor")
@pytest.mark.parametrize("how", ["cancel", "interrupt"])
def test_cancelling_one_run_or_client_of_a_gang_sweep_stops_all(
    cli: Cli, held_pool: str, tmp_path: Path, how: str
) -> None:
    words = ["--sweep", "--gang-nodes", 2, "-a", "seed=3..7", "-a", f"gate={tmp_path}/never", "--pool", held_pool]
    with cli.begin("run", "swept.py:waits", *words) as client:
        wait_until(lambda: len(running_runs(cli)) == 2)
        runs = running_runs(cli)
        if how == "cancel":
            cli("cancel", runs[1])
        else:
            client.send_signal(signal.SIGINT)
        out, output = client.communicate()
    assert client.returncode == 130, output
    assert "0 of 5 combinations have results" in output and "; 3 did not start" in output
    assert [line.split()[3:5] for line in out.splitlines() if re.match(r"[234] ", line)] == [["◌", "waiting"]] * 3
    assert running_runs(cli) == []
    listed = {row["run"]: row["arguments"] for row in cli.json("history")["runs"]}
    assert sorted(listed[run][0] for run in runs) == ["seed=3", "seed=4"], "each its own"


@pytest.mark.proof("1 s of a processor")
def test_gang_sweep_with_more_trials_than_kept_runs_lists_all(cli: Cli) -> None:
    words = ["--sweep", "--gang-nodes", 1, "-a", "seed=3..72", "-a", "lr=2", "-a", "mended=.", "--pool", "many"]
    done = cli("run", "swept.py:train", *words, "--nodes", 2, "--keep")
    runs = gangs_begun(done.stderr)
    assert len(runs) == 70 and "70/70 ended" in done.stderr
    assert [row["value"] for row in trial_rows(cli, runs[3])] == [2.0 * seed for seed in range(3, 73)]
    assert len(done.stdout.splitlines()) == 71 and "waiting" not in done.stdout
    cli("down", "many")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--one", "-a", "lr=1,2"], "Remove --one"),
        (["--gang", "--detach", "-a", "lr=1,2"], "cannot be combined with --detach"),
        (["--gang-nodes", "1", "--detach", "-a", "lr=1,2"], "cannot be combined with --detach"),
        (["--gang-nodes", "1", "--gang", "-a", "lr=1,2"], "cannot be combined"),
        (["--gang-nodes", "3", "--nodes", "2", "-a", "lr=1,2"], "each combination needs 3 nodes, but pool"),
        (["-a", "lr=1,x"], "argument lr of train must be float, got 'x'"),
        (["-a", "lr=1,1"], "1 is repeated"),
        (["-a", "seed=1..9999"], "more than 4,096"),
    ],
)
def test_invalid_sweep_options_are_rejected_before_pool_creation(cli: Cli, words: list[str], message: str) -> None:
    assert message in cli("run", "swept.py:train", "--sweep", *words, status=2).stderr


def test_sweep_dry_run_shows_the_number_of_combinations(cli: Cli) -> None:
    sweep = ("run", "swept.py:train", "--sweep", "-a", "lr=1,2", "--dry-run")
    plan = cli(*sweep).stdout
    assert "train(lr=1.0) and so on: 2 trials, each on one rank" in plan
    assert "each trial: 1 rank, world size 1\n" in plan
    shape = ("--nodes", 4, "--ranks-per-node", 2)
    for gang, ranks in (("--gang", 8), ("--gang-nodes=2", 4)):
        message = f"each trial: {ranks} ranks, world size {ranks}\n"
        assert message in cli(*sweep, *shape, gang).stdout, gang
    assert "world    1 rank, world size 1\n" in cli("run", "swept.py:train", "-a", "lr=1", "--one", "--dry-run").stdout
    assert "whole script" in cli("run", "swept.py", "--sweep", "--", "x", status=2).stderr


@pytest.mark.proof("1 s of a processor")
def test_detached_sweep_is_completed_by_the_nodes(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = ["--sweep", "-a", "seed=1..9", "-a", f"gate={gate}", "--nodes", 2, "--pool", "left", "--detach"]
    run = run_of(cli("run", "swept.py:waits", *words).stderr)
    gate.write_text("")
    wait_until(lambda: cli.pools()["left"]["runs"][0]["state"] == "done")
    assert [row["value"] for row in trial_rows(cli, run)] == list(range(1, 10))
    cli("down", "left", "--yes")


MARKED_TRIAL = """
import os
import skyward_core as sky

@sky.function
def trial(n: int, marks: str) -> int:
    mark = f"{marks}/agent.{os.getppid()}"  # by its number in the gang, a node of another one may be called the same
    node = os.open(mark, os.O_CREAT | os.O_EXCL)  # no other gang has it
    try:
        with open(f"{marks}/begun", "a") as file:
            file.write(f"{n} ")
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
KILL_STEPS = 2 + TRIALS * 3 + 2 * (TRIALS // 2) + 2


@pytest.fixture(scope="module")
def storm_cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("chaos"))
    made.write("swept.py", MARKED_TRIAL)
    made.write("killed.py", KILLED)
    made.write("first.py", "import skyward_core as sky\n@sky.function\ndef first() -> int: return 1\n")
    made("run", "first.py", "--nodes", 4, "--pool", "storm", "--keep")
    yield made
    made("down", "--all", "-y", status=None)


def sweep_words(marks: Path, *more: object) -> list[object]:
    swept = ["-a", f"n=1..{TRIALS}", "-a", f"marks={marks}"]
    return ["run", "swept.py", "--sweep", "--gang-nodes", 2, *swept, "--pool", "storm", *more]


def begun_trials(marks: Path) -> Counter[str]:
    found = marks / "begun"
    return Counter(found.read_text().split()) if found.exists() else Counter()


def runs_of(storm_cli: Cli, marks: Path) -> list[str]:
    return [run["run"] for run in storm_cli.json("history", "--all", f"marks={marks}")["runs"]]


def storm(storm_cli: Cli, marks: Path, at: int) -> None:
    """Kill a client at a step. A later client must get all results and run the remaining trials."""
    client = Child(
        [sys.executable, "killed.py", *map(str, sweep_words(marks))],
        cwd=storm_cli.folder, env=storm_cli.env | {"KILL_AT": str(at)}, text=True,
    )  # fmt: skip
    with client:
        status = client.wait()
    assert status in (0, -signal.SIGKILL)
    new = runs_of(storm_cli, marks)
    if not new:
        assert status, "nothing had begun"
        assert not begun_trials(marks)
        return
    refused = True
    while refused:
        done = storm_cli("rerun", new[0], "--missing", status=None)
        refused = "is still running. Wait for its end" in done.stderr
    assert done.returncode == 0, done.stderr
    ran = gangs_begun(done.stderr)
    rows = storm_cli.json("results", (ran or new)[0], status=None)["trials"]
    assert [row["value"] for row in rows] == [10 * (n + 1) for n in range(TRIALS)]
    assert begun_trials(marks) == {str(n + 1): 2 for n in range(TRIALS)}, "each on both of its ranks, once"


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("seed", [1, 2])
def test_sweep_client_killed_at_a_random_step_loses_nothing(storm_cli: Cli, tmp_path: Path, seed: int) -> None:
    storm(storm_cli, tmp_path, Random(seed).randint(3, KILL_STEPS))


@pytest.mark.proof("3 min")
@pytest.mark.parametrize("at", range(1, KILL_STEPS + 3))
def test_sweep_client_killed_at_each_step_loses_nothing(storm_cli: Cli, tmp_path: Path, at: int) -> None:
    storm(storm_cli, tmp_path, at)


MENDED_TRIAL = """
import os
import skyward_core as sky

@sky.function
def trial(n: int, marks: str) -> int:
    if n > 1 and not os.path.exists(f"{marks}/mended"):
        raise ValueError(f"bad {n}")
    with open(f"{marks}/begun", "a") as file:
        file.write(f"{n} ")
    return n * 10
"""
# The client counts a step before and after each write and each request to a pool, and sends itself a signal at one of
# them. Other threads also write to the ledger. None of them may be suspended in a transaction, which would block all
# clients.
STEPPED = """
import os, signal, sys, threading
from contextlib import ExitStack
from skyward_core.client.session import Session
from skyward_core.store import sweep_trial_files as kept_trials
from skyward_core.store.ledger import Ledger
from skyward_tui.cli.main import main

at, how, count, ledgers = int(os.environ["STEP"]), int(os.environ["SIGNAL"]), 0, []
opened = Ledger.__init__

def noted(ledger, *given):
    opened(ledger, *given)
    ledgers.append(ledger)

Ledger.__init__ = noted

def step():
    global count
    count += 1
    if count == at:
        with ExitStack() as writers:
            for ledger in ledgers:
                writers.enter_context(ledger._lock)
            # This thread takes the signal before the call returns: it goes no further.
            signal.pthread_kill(threading.get_ident(), how)

def stepped(owner, name):
    act = getattr(owner, name)
    def with_steps(*given, **said):
        step()
        done = act(*given, **said)
        step()
        return done
    setattr(owner, name, with_steps)

for owner, names in {
    kept_trials: ("lock_sweep", "resumed_by", "save_trials", "write_atomic", "save_sweep_part"),
    Ledger: ("_write",), Session: ("attach", "detach_pool", "launch_sweep", "fetch_run"),
}.items():
    for name in names:
        stepped(owner, name)
try:
    main()
finally:
    with open(os.environ["STEPS"], "w") as file:
        file.write(str(count))
"""
STEPS = 30  # about as many as one takes


@pytest.fixture(scope="module")
def pair_cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("two"))
    made.write("swept.py", MENDED_TRIAL)
    made.write("stepped.py", STEPPED)
    made.write("first.py", "import skyward_core as sky\n@sky.function\ndef first() -> int: return 1\n")
    made("run", "first.py", "--nodes", 2, "--pool", "two", "--keep")
    yield made
    made("down", "--all", "-y", status=None)


def begun_counts(marks: Path) -> Counter[str]:
    return Counter((marks / "begun").read_text().split())


def sweep_with_one_result(pair_cli: Cli, marks: Path, *gang: object) -> str:
    """Run a sweep in which only one combination succeeds, then let later runs of the others succeed. Return the run."""
    words = ["--sweep", *gang, "-a", "n=1..4", "-a", f"marks={marks}", "--pool", "two"]
    output = pair_cli("run", "swept.py", *words, status=1).stderr
    (marks / "mended").touch()
    found = re.search(r"^run (\w+): ", output, re.MULTILINE)
    assert found is not None, output
    return found[1]


def start_stepping_client(pair_cli: Cli, run: str, at: int, how: int) -> Child:
    env = pair_cli.env | {"STEP": str(at), "SIGNAL": str(how), "STEPS": str(pair_cli.folder / "steps")}
    words = [sys.executable, "stepped.py", "rerun", run, "--missing"]
    return Child(words, cwd=pair_cli.folder, env=env, text=True)


def is_stopped(client: Child) -> bool:
    state = Path(f"/proc/{client.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in ("T", "Z")


def finish(pair_cli: Cli, run: str) -> str:
    """Rerun the missing trials until no other client is doing so. Return the last output."""
    while True:
        done = pair_cli("rerun", run, "--missing", status=None)
        if done.returncode == 0:
            return done.stderr
        assert done.returncode == 2 and re.search("goes on|running", done.stderr), done.stderr


def check(pair_cli: Cli, run: str, marks: Path) -> None:
    assert "have results" in finish(pair_cli, run)
    assert begun_counts(marks) == {"1": 1, "2": 1, "3": 1, "4": 1}, "each once"


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("gang", [(), ("--gang-nodes", 1)])
def test_only_one_of_concurrent_reruns_runs_the_missing_trials(
    pair_cli: Cli, tmp_path: Path, gang: tuple[object, ...]
) -> None:
    run = sweep_with_one_result(pair_cli, tmp_path, *gang)
    clients = [pair_cli.begin("rerun", run, "--missing") for _ in range(3)]
    output = [client.communicate()[1] for client in clients]
    ran = [text for text in output if "3 of 4 combinations have no result and are run" in text]
    assert len(ran) == 1, output
    for client, text in zip(clients, output, strict=True):
        if text not in ran:
            refused = client.returncode == 2 and re.search(
                r"another client \(process \d+, since [\d:]+\) is already running the missing trials of run", text
            )
            assert refused or (client.returncode == 0 and "have results" in text), text
    check(pair_cli, run, tmp_path)


def test_rejected_rerun_names_the_owner_of_an_incomplete_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    (tmp_path / "pools/p.1/trials").mkdir(parents=True)
    (tmp_path / "pools/p.1/trials/r1.claim").write_text("another client (process 1, since 00:00:00)")
    is_locked, may_write, is_owner, may_end = (threading.Event() for _ in range(4))
    lock, ours = fcntl.flock, threading.get_ident()

    def written_late(shape: str) -> str:
        is_locked.set()
        assert may_write.wait(60)
        return "12:00:00"

    def noted(file: object, how: int) -> None:
        if threading.get_ident() == ours and not how & fcntl.LOCK_NB:
            may_write.set()  # the owner writes only because this thread waits
        lock(file, how)  # type: ignore[arg-type]

    def own() -> None:
        with sweep_trial_files.lock_sweep("p.1", "r1"):
            is_owner.set()
            assert may_end.wait(60)

    monkeypatch.setattr("time.strftime", written_late)
    monkeypatch.setattr("fcntl.flock", noted)
    owner = threading.Thread(target=own)
    owner.start()
    try:
        assert is_locked.wait(60)
        with pytest.raises(sweep_trial_files.SweepLocked) as refused, sweep_trial_files.lock_sweep("p.1", "r1"):
            pass
        assert str(refused.value) == f"another client (process {os.getpid()}, since 12:00:00)"
    finally:
        may_write.set()
        may_end.set()
        owner.join()
    assert is_owner.is_set()


def stopped(pair_cli: Cli, marks: Path, at: int) -> None:
    """Suspend one client at a step while another one runs, then resume it."""
    run = sweep_with_one_result(pair_cli, marks)
    with start_stepping_client(pair_cli, run, at, signal.SIGSTOP) as one:
        wait_until(lambda: is_stopped(one))
        other = pair_cli("rerun", run, "--missing", status=None)
        assert other.returncode == 0 or re.search("goes on|running", other.stderr), other.stderr
        os.kill(one.pid, signal.SIGCONT)
        assert one.wait() in (0, 2), "there may have been nothing left to do, or the other one did it"
    check(pair_cli, run, marks)


def killed(pair_cli: Cli, marks: Path, at: int) -> None:
    """Kill one client at a step, and let the next one take over."""
    run = sweep_with_one_result(pair_cli, marks)
    with start_stepping_client(pair_cli, run, at, signal.SIGKILL) as one:
        assert one.wait() in (0, -signal.SIGKILL)
    finish(pair_cli, run)
    check(pair_cli, run, marks)


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize(("act", "seed"), [(stopped, 1), (killed, 2)])
def test_rerun_suspended_or_killed_at_a_random_step_is_continued(
    pair_cli: Cli, tmp_path: Path, act: Callable[[Cli, Path, int], None], seed: int
) -> None:
    act(pair_cli, tmp_path, Random(seed).randint(1, STEPS))


@pytest.mark.proof("2 min of a processor")
@pytest.mark.parametrize("at", range(1, STEPS + 1))
def test_rerun_suspended_or_killed_at_each_step_is_continued(pair_cli: Cli, tmp_path: Path, at: int) -> None:
    for number, act in enumerate((stopped, killed)):
        marks = tmp_path / str(number)
        marks.mkdir()
        act(pair_cli, marks, at)
