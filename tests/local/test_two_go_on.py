"""Two clients that go on with one sweep at once, of which one is stopped, or killed, at any of its steps.

Each combination that has no result runs once.
"""

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

import pytest

from skyward_core.store import pool_folder
from tests.support.child import Child
from tests.support.cli import Cli
from tests.support.waiting import wait_until

SCRIPT = """
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
# Before and after all that it writes down, or asks a pool for, it counts a step: at one of them it does that to itself.
# Other threads write to the ledger as well: none of them may be stopped in a transaction, which would stop everybody.
STEPPED = """
import os, signal, sys, threading
from contextlib import ExitStack
from skyward_core.client.session import Session
from skyward_core.store import pool_folder as kept_trials
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
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("two"))
    made.write("swept.py", SCRIPT)
    made.write("stepped.py", STEPPED)
    made.write("first.py", "import skyward_core as sky\n@sky.function\ndef first() -> int: return 1\n")
    made("run", "first.py", "--nodes", 2, "--pool", "two", "--keep")
    yield made
    made("down", "--all", "-y", status=None)


def begun(marks: Path) -> Counter[str]:
    return Counter((marks / "begun").read_text().split())


def swept(cli: Cli, marks: Path, *gang: object) -> str:
    """A sweep of which one combination has a result; what the others lacked is there by now."""
    words = ["--sweep", *gang, "-a", "n=1..4", "-a", f"marks={marks}", "--pool", "two"]
    said = cli("run", "swept.py", *words, status=1).stderr
    (marks / "mended").touch()
    found = re.search(r"^run (\w+): ", said, re.MULTILINE)
    assert found is not None, said
    return found[1]


def stepped(cli: Cli, run: str, at: int, how: int) -> Child:
    env = cli.env | {"STEP": str(at), "SIGNAL": str(how), "STEPS": str(cli.folder / "steps")}
    words = [sys.executable, "stepped.py", "rerun", run, "--missing"]
    return Child(words, cwd=cli.folder, env=env, text=True)


def stands_still(client: Child) -> bool:
    state = Path(f"/proc/{client.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in ("T", "Z")


def finish(cli: Cli, run: str) -> str:
    """Go on with it until nobody else does; gives what was said last."""
    while True:
        done = cli("rerun", run, "--missing", status=None)
        if done.returncode == 0:
            return done.stderr
        assert done.returncode == 2 and re.search("goes on|running", done.stderr), done.stderr


def check(cli: Cli, run: str, marks: Path) -> None:
    assert "have results" in finish(cli, run)
    assert begun(marks) == {"1": 1, "2": 1, "3": 1, "4": 1}, "each once"


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("gang", [(), ("--gang-nodes", 1)])
def test_of_several_that_start_at_once_one_runs_it(cli: Cli, tmp_path: Path, gang: tuple[object, ...]) -> None:
    run = swept(cli, tmp_path, *gang)
    clients = [cli.begin("rerun", run, "--missing") for _ in range(3)]
    told = [client.communicate()[1] for client in clients]
    ran = [said for said in told if "3 of 4 combinations have no result and are run" in said]
    assert len(ran) == 1, told
    for client, said in zip(clients, told, strict=True):
        if said not in ran:
            refused = client.returncode == 2 and re.search(
                r"another client \(process \d+, since [\d:]+\) is already running the missing trials of run", said
            )
            assert refused or (client.returncode == 0 and "have results" in said), said
    check(cli, run, tmp_path)


def test_a_refused_client_names_the_owner_of_a_claim_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        with pool_folder.lock_sweep("p.1", "r1"):
            is_owner.set()
            assert may_end.wait(60)

    monkeypatch.setattr("time.strftime", written_late)
    monkeypatch.setattr("fcntl.flock", noted)
    owner = threading.Thread(target=own)
    owner.start()
    try:
        assert is_locked.wait(60)
        with pytest.raises(pool_folder.SweepLocked) as refused, pool_folder.lock_sweep("p.1", "r1"):
            pass
        assert str(refused.value) == f"another client (process {os.getpid()}, since 12:00:00)"
    finally:
        may_write.set()
        may_end.set()
        owner.join()
    assert is_owner.is_set()


def stopped(cli: Cli, marks: Path, at: int) -> None:
    """One stands still at some step while another one comes, and goes on afterwards."""
    run = swept(cli, marks)
    with stepped(cli, run, at, signal.SIGSTOP) as one:
        wait_until(lambda: stands_still(one))
        other = cli("rerun", run, "--missing", status=None)
        assert other.returncode == 0 or re.search("goes on|running", other.stderr), other.stderr
        os.kill(one.pid, signal.SIGCONT)
        assert one.wait() in (0, 2), "there may have been nothing left to do, or the other one did it"
    check(cli, run, marks)


def killed(cli: Cli, marks: Path, at: int) -> None:
    """One dies at some step: the next one takes over."""
    run = swept(cli, marks)
    with stepped(cli, run, at, signal.SIGKILL) as one:
        assert one.wait() in (0, -signal.SIGKILL)
    finish(cli, run)
    check(cli, run, marks)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(("act", "seed"), [(stopped, 1), (killed, 2)])
def test_one_is_stopped_or_dies_at_some_step(
    cli: Cli, tmp_path: Path, act: Callable[[Cli, Path, int], None], seed: int
) -> None:
    act(cli, tmp_path, Random(seed).randint(1, STEPS))


@pytest.mark.proof("2 min of a processor")
@pytest.mark.parametrize("at", range(1, STEPS + 1))
def test_one_is_stopped_or_dies_at_each_step(cli: Cli, tmp_path: Path, at: int) -> None:
    for number, act in enumerate((stopped, killed)):
        marks = tmp_path / str(number)
        marks.mkdir()
        act(cli, marks, at)
