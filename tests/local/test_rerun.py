"""The rerun command: repeated runs, jobs and scripts."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.cli import Cli, call
from tests.support.pythons import another_python, make_environment

SCRIPT = """
import os, sys
import skyward_core as sky

@sky.function
def product(n: int = 1, m: int = 2) -> int:
    return n * m
"""
HELD = """
import skyward_core as sky

@sky.function
def product(n: int = 1) -> int:
    with open("gate") as gate:  # a pipe: waits for the test
        gate.read()
    return n
"""
WHOLE = "import sys\nprint('words', *sys.argv[1:])\n"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    cli = Cli(tmp_path_factory.mktemp("rerun"))
    cli.write("maths.py", SCRIPT)
    cli.write("whole.py", WHOLE)
    return cli


def run_of(done: CompletedProcess[str]) -> str:
    """Return the run that a command's output names."""
    found = re.search(r"^run (\w+): .* on \d ranks?$", done.stderr, re.MULTILINE)
    assert found is not None, done.stderr
    return found[1]


def test_rerun_repeats_a_run_and_accepts_another_argument(cli: Cli) -> None:
    run = run_of(cli("run", "maths.py", "--nodes", 2, "--arg", "n=5"))
    again = cli("rerun", run[:5])
    assert f"in {cli.folder}: skyward-tui run maths.py --arg n=5 --nodes 2" in again.stderr
    assert "value of 2: mean 10" in again.stdout
    cli.write("maths.py", SCRIPT + "# edited\n")
    with_other = cli("rerun", run, "-a", "m=10")
    assert f"run {run}: the script has changed" in with_other.stderr
    assert "value of 2: mean 50" in with_other.stdout
    assert cli.pools() == {}
    output = cli("rerun", run_of(with_other), "--dry-run")
    assert "product(n=5, m=10) on all 2 ranks" in output.stdout, "a run that was a rerun is one, too"


@pytest.mark.proof("1 s of a processor")
def test_rerun_with_another_python_prints_the_difference(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    make_environment(another_python().path, folder / ".venv")
    cli.write(str(folder / "maths.py"), SCRIPT)
    run = run_of(cli("run", folder / "maths.py"))
    assert "Python was" not in cli("rerun", run, "--dry-run").stderr
    shutil.rmtree(folder / ".venv")
    output = cli("rerun", run, "--dry-run").stderr
    before = f"Python {another_python().version} at {folder}/.venv/bin/python (.venv of project project)"
    now = f"Python {sys.version.split()[0]} at {sys.executable} (this program's own)"
    assert f"run {run}: Python was {before}, is now {now}" in output


@pytest.mark.proof("1 s of a processor")
def test_rerun_of_a_whole_script_keeps_its_arguments(cli: Cli) -> None:
    run = run_of(cli("run", "whole.py", "--", "--epochs", "3"))
    assert "words --epochs 3" in cli("rerun", run).stdout
    assert "words --epochs 4" in cli("rerun", run, "--", "--epochs", "4").stdout
    refused = cli("rerun", run, "--arg", "n=1", status=2)
    assert "takes no --arg" in refused.stderr


@pytest.mark.proof("2 s of a processor")
def test_rerun_uses_the_pool_of_the_run_while_it_is_up(cli: Cli) -> None:
    first = run_of(cli("run", "maths.py", "--nodes", 2, "--pool", "dev", "--keep"))
    joined = run_of(cli("run", "maths.py", "--pool", "dev", "--arg", "n=3"))
    cli("rerun", first)
    assert list(cli.pools()) == ["dev"], "the pool stays"
    assert len(cli.pools()["dev"]["runs"]) == 3
    cli("down", "dev")
    anew = cli("rerun", joined)
    assert "pool dev: 2 nodes on local" in anew.stderr, "as the launch made it that the run had joined"
    assert not cli.pools()
    again = cli("rerun", first)
    assert "pool dev: 2 nodes on local" in again.stderr
    assert list(cli.pools()) == ["dev"], "it was to be kept"
    cli("rerun", joined, "--pool", "dev")
    assert "product(n=3)" in cli("rerun", "dev", "--dry-run").stdout, "the last run of the pool"
    cli("down", "dev")


def test_run_that_cannot_be_rerun_is_rejected(cli: Cli) -> None:
    assert "no run or pool 'nothing'" in cli("rerun", "nothing", status=2).stderr
    run = run_of(cli("run", "maths.py"))
    cli.folder.joinpath("maths.py").rename(cli.folder / "moved.py")
    refused = cli("rerun", run, status=None)
    assert refused.returncode and "maths.py" in refused.stderr
    cli.folder.joinpath("moved.py").rename(cli.folder / "maths.py")


@pytest.mark.proof("1 s of a processor")
def test_launch_record_of_a_client_killed_at_the_start_is_saved(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    git = cli.write("git", "#!/bin/sh\nexec sleep 60\n")  # it has not come to that yet
    git.chmod(0o700)
    monkeypatch.setitem(cli.env, "PATH", f"{cli.folder}:{cli.env['PATH']}")
    cli.write("held.py", HELD)
    gate = cli.folder / "gate"
    os.mkfifo(gate)
    with cli.begin("run", "held.py", "--pool", "cut", "--arg", "n=4") as client:
        assert client.stderr is not None
        line = ""
        while "run " not in line[:4]:
            line = client.stderr.readline()
            assert line, "it ended"
        client.kill()
    git.unlink()
    gate.write_text("go")  # only now, because a client whose run has ended tears the pool down
    cli("attach", "cut")  # should the ledger not have had it yet: the agents know of it
    output = cli("rerun", line.split()[1].rstrip(":"), "--dry-run")
    assert "product(n=4) on 1 rank" in output.stdout
    assert "pool stays up" in output.stdout, "it was up before"
    cli("down", "cut", "--yes")


JOB = """
name: tuned
num_nodes: 2
workdir: .
envs: {EPOCHS: 3}
secrets: {HF_TOKEN: in-the-file-1}
setup: echo setup $SKYPILOT_SETUP_NODE_RANK
run: echo "run $EPOCHS ${#HF_TOKEN} $SKYPILOT_NODE_RANK"
"""


def steps_of(stderr: str) -> list[str]:
    return re.findall(r"^run (\w+): \w+ on \d ranks?$", stderr, re.MULTILINE)


@pytest.mark.proof("1 s of a processor")
def test_rerun_of_a_job_uses_its_saved_copy(cli: Cli) -> None:
    cli.env["HOME"] = str(cli.folder / "home")
    cli.write("task.yaml", JOB)
    done = cli("launch", "task.yaml", "--env", "EPOCHS=7", "-c", "jobs")
    setup, run = steps_of(done.stderr)
    assert "| run 7 13 0" in done.stdout
    assert not any(b"in-the-file-1" in path.read_bytes() for path in (cli.folder / "home").rglob("*.json"))
    refused = cli("rerun", setup, status=2)
    assert "HF_TOKEN of task.yaml is a secret whose value is not saved. Give --secret HF_TOKEN" in refused.stderr
    cli.write("task.yaml", "run: exit 9\n")
    again = cli("rerun", setup, "--secret", "HF_TOKEN=short-one")
    assert "task.yaml has changed; running the saved version" in again.stderr
    assert "| setup 1" in again.stdout and "| run 7 9 1" in again.stdout
    cli.env["HF_TOKEN"] = "this-shells-own"
    try:
        other = call(["rerun", steps_of(again.stderr)[-1], "--env", "EPOCHS=8"], cli.env, cli.folder / "home")
    finally:
        del cli.env["HF_TOKEN"]
    assert f"in {cli.folder}: launch task.yaml" in other.stderr
    assert "HF_TOKEN is taken from this shell" in other.stderr and "| run 8 15 0" in other.stdout
    for words, text in (
        (["--arg", "n=1"], "Set its variables with --env"),
        (["--missing"], "is not a sweep over arguments"),
    ):
        assert text in cli("rerun", run, *words, status=2).stderr
    assert [row["function"] for row in cli.pools()["jobs"]["runs"]].count("setup") == 3
    cli("down", "jobs", "--yes")
    anew = cli("rerun", run, "--secret", "HF_TOKEN=in-the-file-2", "--dry-run")
    assert "2 nodes" in anew.stdout, "its pool is made anew"


@pytest.mark.proof("1 s of a processor")
def test_rerun_of_a_job_asks_for_its_secret_on_a_terminal(cli: Cli) -> None:
    import pexpect

    cli.write("task.yaml", JOB)
    run = steps_of(cli("launch", "task.yaml", "-c", "asked").stderr)[-1]
    child = cli.terminal("rerun", run)
    child.expect("task.yaml: value of HF_TOKEN")
    child.sendline("typed-secretly-1")
    child.expect(r"run 3 16 0")
    child.expect(pexpect.EOF)
    cli("exec", "asked", "task.yaml")
    commands_are_run_again(cli)
    cli("down", "asked", "--yes")


def commands_are_run_again(cli: Cli) -> None:
    words = ("--env", "A=1", "--secret", "KEY=hidden-1", "--nodes", "1,", "asked", "--", "echo $A ${#KEY} $0 'x  y'")
    first = steps_of(cli("exec", *words).stderr)[-1]
    refused = cli("rerun", first, status=2).stderr
    assert "KEY of the command" in refused and "Give --secret KEY" in refused
    again = cli("rerun", first, "--secret", "KEY=other")
    assert again.stdout.count("r001| 1 5 ") == 1 and "r000|" not in again.stdout, "on the same node"
    last = steps_of(again.stderr)[-1]
    assert "r001| 2 5 " in cli("rerun", last, "--secret", "KEY=other", "--env", "A=2").stdout
    listed = {row["run"]: row["arguments"] for row in cli.json("history")["runs"]}
    assert listed[first] == listed[last] == [words[-1]]
    for more, text in (
        (["--arg", "n=1"], "Set its variables with --env"),
        (["--dry-run"], "exec creates nothing. Remove --dry-run"),
    ):
        assert text in cli("rerun", first, *more, status=2).stderr


@pytest.mark.proof("1 s of a processor")
def test_rerun_of_a_script_rejects_job_variables(cli: Cli) -> None:
    run = run_of(cli("run", "maths.py"))
    assert "apply only to job files and commands. Remove them" in cli("rerun", run, "--env", "A=1", status=2).stderr
