"""A command is killed while its launch is not answered yet: the run goes on, and its lines are in its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.support.child import Child, read_line
from tests.support.cli import Cli

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
