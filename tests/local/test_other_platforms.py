"""Clients and local pools on systems without Linux's parts (macOS), and the answer on native Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.loopback_hosts import Hosts
from tests.support.without_linux import make_python

SCRIPT = """
import os, threading
import skyward_core as sky

@sky.function
def fine():
    print("seen by rank", sky.instance_info().rank, flush=True)
    return sky.instance_info().rank, os.getpid()

@sky.function
def waits():
    print("waiting", flush=True)
    threading.Event().wait()
"""
# One process runs all commands, because imports take long.
JOURNEY = """
import json, os, select, signal, time
from pathlib import Path

from click.testing import CliRunner

import skyward_core as sky
from skyward_tui.cli.main import cli

assert not hasattr(select, "epoll") and not hasattr(os, "pidfd_open") and not Path("/proc").exists()

def command(*words):
    done = CliRunner().invoke(cli, [*words], standalone_mode=False)
    assert done.exit_code == 0 and not done.return_value, (words, done.output, done.exception)
    return done.stdout

def until(check):
    deadline = time.monotonic() + 90
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)

def run(function, *options):
    ranks = json.loads(command("run", f"script.py:{function}", "--pool", "p", "--json", *options))["ranks"]
    return [each["value"] for each in ranks]

def agents():
    states = Path(os.environ["SKYWARD_HOME"]).rglob("agent.json")
    return sorted(json.loads(each.read_text())["pid"] for each in states)

"""
MAIN = """
try:
    values = run("fine", *OPTIONS, "--keep")
    assert [rank for rank, pid in values] == [0, 1]
    assert "seen by rank" in command("logs", "p")
    command("run", "script.py:waits", "--pool", "p", "--detach")
    until(lambda: "waiting" in command("logs", "p"))
    stacks = command("stacks", "p", "--signal")
    assert "ranks 0-1 (2): waits" in stacks, stacks
    assert ("by signal" in stacks) == bool(agents()), "hosts are Linux, where py-spy needs no signal"
    command("cancel", "p")
    values = run("fine")
    if before := agents():
        os.kill(before[0], signal.SIGKILL)
        assert run("fine") == values, "a new agent adopts the workers of a killed one"
        assert agents() != before
finally:
    command("down", "p", "--yes")
assert json.loads(command("ls", "--json"))["pools"] == []
print("done")
"""


def journey(tmp_path: Path, *options: str) -> None:
    """Run, inspect, recover and tear down a pool of two nodes."""
    python = make_python(tmp_path)
    # Temporary folders of macOS have long names.
    temporary = tmp_path / "var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"
    temporary.mkdir(parents=True)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PATH": "/usr/bin:/bin", "TMPDIR": str(temporary), "SKYWARD_HOME": str(temporary / "sky")}
    done = subprocess.run(
        [python, "-c", f"OPTIONS = {options}\n{JOURNEY}{MAIN}"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("done\n")


def test_local_pool_works_without_the_parts_of_linux(tmp_path: Path) -> None:
    journey(tmp_path, "--nodes", "2")


@pytest.mark.proof("3 s of a processor")
def test_ssh_pool_works_from_a_client_without_the_parts_of_linux(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    try:
        names = ",".join(f"127.0.0.1:{host.port}" for host in hosts.slots)
        settings = {"keys": hosts.slots[0].client_key, "known_hosts": hosts.known, "config": "false"}
        journey(
            tmp_path,
            "--hosts",
            names,
            *(word for each in settings.items() for word in ("--set", "=".join(map(str, each)))),
        )
    finally:
        hosts.stop()


ON_WINDOWS = """
import sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
sys.platform = "win32"
from skyward_tui.entry import main
main()
"""


def test_command_on_native_windows_names_wsl2() -> None:
    done = subprocess.run([sys.executable, "-c", ON_WINDOWS], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("skyward-tui does not run on native Windows") and "WSL2" in done.stderr
    assert done.stderr.count("\n") == 1
