"""Clients that are away, stopped, killed while they launch or hold a lock, or two at once; runs go on or end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.node.agent.fail_fast import CLIENT_GRACE
from skyward_core.views.pool_view import PoolView
from skyward_tui.cli.commands import run as command
from skyward_tui.cli.console import Console
from tests.support.child import Child, read_line
from tests.support.cli import Cli
from tests.support.fates import gone
from tests.support.processes import exists
from tests.support.waiting import wait_until

SCRIPT = """
import os, pathlib, sys, time
import skyward_core as sky

folder, alone = pathlib.Path(sys.argv[1]), sys.argv[2] == "alone"

@sky.function
def work():
    rank = sky.instance_info().rank
    (folder / f"new{rank}").write_text(str(os.getpid()))
    (folder / f"new{rank}").rename(folder / f"began{rank}")
    while rank != 1 or not (folder / "fail").exists():
        time.sleep(0.01)
    os._exit(9)

options = sky.Options(console=False, fail_fast=not alone)
with sky.Compute(nodes=3, name="shared", options=options) as compute:
    work() @ compute
"""


def left(home: Path, folder: Path, how: str = "gang") -> None:
    """A pool with a run of three ranks on three nodes, whose client was killed."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), how]) as client:
        try:
            wait_until(lambda: len(list(folder.glob("began*"))) == 3, what="the ranks")
        finally:
            client.kill()


def test_the_others_are_stopped_and_the_next_run_finds_its_nodes_free(home: Path, tmp_path: Path) -> None:
    def pid() -> int:
        return __import__("os").getpid()

    left(home, tmp_path)
    others = [int((tmp_path / f"began{rank}").read_text()) for rank in (0, 2)]
    (tmp_path / "fail").touch()
    assert gone(others), "no client is there: their agents end them"
    with sky.attach("shared") as compute:
        try:
            run = compute.runs[0]
            wait_until(lambda: run.state != "running", what=lambda: f"the run's end: {run.state}, {run.counts}")
            assert (run.state, run.counts) == ("failed", {"exited": 1, "collateral": 2})
            cause = run.root_cause
            assert cause is not None
            assert cause.rank == 1
            assert sky.function(pid)() @ compute
        finally:
            receipt = compute.down()
    assert receipt.ok


@pytest.mark.proof("1 s of a processor")
def test_where_failures_stop_nobody_the_others_go_on(home: Path, tmp_path: Path) -> None:
    left(home, tmp_path, "alone")
    (tmp_path / "fail").touch()
    with sky.attach("shared") as compute:
        try:
            run = compute.runs[0]
            wait_until(lambda: run.counts == {"exited": 1}, what=lambda: f"the rank's end: {run.state}, {run.counts}")
            time.sleep(CLIENT_GRACE + 2)  # nothing is to happen: there is nothing else to wait for
            assert (run.state, run.counts) == ("running", {"exited": 1})
        finally:
            receipt = compute.down()
    assert receipt.ok


# A command is killed while its launch is not answered yet: the run goes on, and its lines are in its log.


SAYS = """
import time
from pathlib import Path
import skyward_core as sky

@sky.function
def says(go: str):
    print("its first line", flush=True)
    while not Path(go).exists():
        time.sleep(0.01)
    print("its last line", flush=True)
    return 42
"""
# The run is on its way, and its lines come, but the command does not hear that.
NEVER_ANSWERED = """
import sys
from concurrent.futures import Future
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.client.session import Session
from skyward_tui.cli.commands import run
from skyward_tui.cli.console import Console
from skyward_tui.cli.follow_run import Follower

launch, shows = Session.launch, Follower._show

def answers_nothing(*asked, **more):
    launch(*asked, **more)
    return Future()

def tells(follower, item):
    shows(follower, item)
    if isinstance(item, tuple):
        print("a line came", flush=True)

Session.launch, Follower._show = answers_nothing, tells
run.run(LaunchRequest(script="says.py", pool="shared", arguments=[f"go={sys.argv[1]}"]), Console())
"""


def test_who_comes_after_a_client_that_was_killed_before_its_launch_was_answered_has_all(cli: Cli) -> None:
    cli.write("says.py", SAYS)
    go = cli.folder / "go"
    go.touch()
    cli("run", "says.py", "--pool", "shared", "--arg", f"go={go}", "--keep")
    go.unlink()
    command = [sys.executable, "-c", NEVER_ANSWERED, str(go)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Child(command, cwd=cli.folder, env=cli.env, text=True, **pipes) as client:  # type: ignore[call-overload]
        assert read_line(client) == "a line came"
        os.kill(client.pid, signal.SIGKILL)
        out, err = client.communicate()
    assert "its first line" not in out + err
    (run,) = [each for each in cli.pools()["shared"]["runs"] if each["state"] == "running"]
    with cli.begin("attach", "shared", "--json") as follower:
        assert follower.stderr is not None and run["run"] in follower.stderr.readline()
        go.touch()
        follower.communicate()
    assert follower.returncode == 0
    assert cli("logs", run["run"]).stdout.splitlines() == ["r000| its first line", "r000| its last line"]
    assert [rank["outcome"] for rank in cli.json("results", run["run"])["ranks"]] == ["returned"]


# Two clients of one home at once: what one begins the other finds as it is by then.


MAKES = """
import sys
from pathlib import Path
import skyward_core as sky
folder = sys.argv[1]
wait = f"touch {folder}/began; until test -e {folder}/go; do sleep 0.01; done"
options = sky.Options(console=False)
with sky.Compute(provider=sky.Local(), name="shared", image=sky.Image(setup=[wait]), options=options):
    Path(folder, "up").touch()
    sys.stdin.readline()
"""


@pytest.fixture
def other(home: Path, tmp_path: Path) -> Iterator[None]:
    """A client that is bringing up the pool "shared"; it goes on once the file "go" is there."""
    command = [sys.executable, "-c", MAKES, str(tmp_path)]
    with Child(command, stdin=subprocess.PIPE, text=True) as client:
        wait_until((tmp_path / "began").exists)
        yield
        (tmp_path / "go").touch()
        assert client.stdin is not None
        client.stdin.write("\n")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("detach", [False, True])
def test_a_pool_that_comes_up_after_it_was_looked_at_is_followed(
    other: None,
    tmp_path: Path,
    detach: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    look = command.live_pool

    def live(*asked: Any) -> PoolView | None:
        found = look(*asked)
        assert found is not None and found.state == "starting"
        (tmp_path / "go").touch()
        wait_until((tmp_path / "up").exists)
        return found

    monkeypatch.setattr(command, "live_pool", live)
    script = tmp_path / "work.py"
    script.write_text("import skyward_core as sky\n@sky.function\ndef work():\n    print('hello')\n    return 1\n")
    assert command.run(LaunchRequest(script=str(script), pool="shared", detach=detach), Console()) == 0
    if not detach:
        assert "hello" in capsys.readouterr().out


# A client dies while it holds the right to start gang runs, and another one comes to start its own.


HOLDS_THE_LOCK = """
import pathlib, sys, time
import skyward_core as sky

folder = pathlib.Path(sys.argv[1])

@sky.function
def work():
    while sky.instance_info().rank and not (folder / "go").exists():
        time.sleep(0.01)
    return "of the one that died"

with sky.Compute(nodes=2, name="shared", options=sky.Options(console=False)) as compute:
    print("up", flush=True)
    sys.stdin.readline()
    work() @ compute
"""


def test_a_run_that_was_wholly_started_goes_on_when_another_client_starts_the_next(home: Path, tmp_path: Path) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_LOCK, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"

    def rank() -> int:  # of no module that the nodes would know
        return sky.instance_info().rank

    # Before there is a run: what the agents say at the welcome knows of none.
    with sky.attach("shared") as compute:
        try:
            client.stdin.write("go on\n")
            client.stdin.flush()
            wait_until(lambda: compute.runs and compute.runs[0].counts == {"returned": 1}, what="rank 0's end")
            client.kill()
            client.communicate()
            first = compute.runs[0]
            with ThreadPoolExecutor() as threads:
                second = threads.submit(lambda: sky.function(rank)() @ compute)
                wait_until(lambda: compute.pool.links[1]._calls, what="the second run's calls")
                (tmp_path / "go").touch()
                assert second.result(90) == [0, 1]
            wait_until(lambda: first.state != "running", what="the first run's end")
            assert (first.state, first.counts) == ("done", {"returned": 2})
        finally:
            receipt = compute.down()
    assert receipt.ok


# A client whose machine dies, or that is stopped (ctrl-z): its connection stays open, and nobody speaks on it.


TWO_RUNS = """
import sys
import skyward_core as sky

@sky.function
def rank():
    return sky.instance_info().rank

with sky.Compute(nodes=2, name="shared", options=sky.Options(console=False, idle_timeout=1.0)) as compute:
    print(rank() @ compute, flush=True)
    sys.stdin.readline()
    try:
        rank() @ compute
    except sky.PoolGone as error:
        print(error, flush=True)
"""


def test_a_stopped_client_keeps_neither_the_lock_nor_the_pool(home: Path) -> None:
    def rank() -> int:  # of no module that the nodes would know
        return sky.instance_info().rank

    pipe = subprocess.PIPE
    client = subprocess.Popen([sys.executable, "-c", TWO_RUNS], stdin=pipe, stdout=pipe, text=True)
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stdout.readline() == "[0, 1]\n"  # from now on it holds the lock
    try:
        with ThreadPoolExecutor() as threads, sky.attach("shared") as compute:
            os.kill(client.pid, signal.SIGSTOP)
            run = threads.submit(lambda: sky.function(rank)() @ compute)
            holder = f"process {client.pid} (-c) of "
            wait_until(lambda: holder in compute.pool.view.detail, what="who holds the lock")
            assert run.result(60) == [0, 1]
            wait_until(lambda: compute.pool.view.detail == "", what="the end of the wait")
            agents = [link.welcome["pid"] for link in compute.pool.links]
        wait_until(lambda: not any(map(exists, agents)), what="the end of the pool's lease")
    finally:
        os.kill(client.pid, signal.SIGCONT)
    said, _ = client.communicate("go on\n", timeout=60)
    assert "ended itself at" in said and "idle for 1 s" in said, said
