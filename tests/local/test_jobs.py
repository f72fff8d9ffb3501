"""Job files from the command line on real pools: steps, pools and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from skyward_core.node.bootstrap.host_inspection import find_node_processes
from skyward_core.store.ledger_rows import marked_pid
from tests.support.cli import PATIENCE, Cli
from tests.support.loss import destroy
from tests.support.waiting import wait_until

JOB = """
name: job
num_nodes: {nodes}
resources:
  accelerators: A100:8
envs:
  WORD: none
  OLD_API_KEY: {old}
secrets:
  HF_TOKEN:
file_mounts:
  {there}/data: {here}/data
  {there}/one/word.txt: {here}/data/word.txt
setup: |
  echo "setup $SKYPILOT_SETUP_NODE_RANK of $(echo "$SKYPILOT_SETUP_NODE_IPS" | wc -l)" $SKYPILOT_SETUP_NUM_GPUS_PER_NODE
  ls {there}/data; touch {there}/setup-$SKYPILOT_SETUP_NODE_RANK
run: |
  echo "node $SKYPILOT_NODE_RANK/$SKYPILOT_NUM_NODES has $SKYPILOT_NUM_GPUS_PER_NODE, $WORD, $HF_TOKEN $OLD_API_KEY"
  ls {there} | grep -c setup-
  cat {there}/one/word.txt
"""
TOKEN = "hf_" + "NobodyMayRead"
OLD = "sk-" + "NobodyEither"  # where others' files have it: among the variables


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("jobs"))
    made.env["HOME"] = str(made.folder / "home")  # a job's shell reads its start-up file, and a person's may take locks
    (made.folder / "data").mkdir()
    (made.folder / "data" / "word.txt").write_text("brought\n")
    yield made
    made("down", "--all", "-y", status=None)


def write_job_file(cli: Cli, text: str, **options: Any) -> str:
    text = (
        text.format(**{"nodes": 2, "old": OLD, "here": cli.folder, "there": cli.folder / "there"} | options)
        if options
        else text
    )
    (cli.folder / "task.yaml").write_text(text)
    return "task.yaml"


def test_job_places_files_then_runs_setup_on_all_nodes_then_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.env, "HF_TOKEN", TOKEN)
    name = write_job_file(cli, JOB, nodes=2)
    done = cli("launch", name, "-c", "job", "--env", "WORD=said", "--secret", "HF_TOKEN")
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("r00") and "| " in line)
    assert lines == sorted(
        line
        for rank in range(2)
        for line in (
            f"r00{rank}| setup {rank} of 2 8",
            f"r00{rank}| word.txt",
            f"r00{rank}| node {rank}/2 has 8, said, {'*' * len(TOKEN)} {'*' * len(OLD)}",
            f"r00{rank}| 2",  # both nodes were set up before either ran
            f"r00{rank}| brought",
        )
    )
    steps = [words.split(": ")[1].split(" on ")[0] for words in done.stderr.splitlines() if words.startswith("run ")]
    assert steps == ["file_mounts", "setup", "job"]
    assert "pool job stays up until it is idle for 10:00; end it now: skyward-tui down job" in done.stderr
    assert list(cli.pools()) == ["job"]
    leaking_files = [
        file for file in (cli.folder / "home").rglob("*") if file.is_file() and TOKEN.encode() in file.read_bytes()
    ]
    # A node keeps what it was given and what was printed there, for its ranks' own user.
    assert not [file for file in leaking_files if not {"blobs", "spool"} & set(file.parts)]


@pytest.fixture(scope="module")
def pool(cli: Cli) -> str:
    """Running pool of two nodes."""
    if "job" not in cli.pools():
        cli("launch", write_job_file(cli, "num_nodes: 2\nrun: 'true'\n"), "-c", "job")
    return "job"


def run_and_read_output(cli: Cli, *words: object, status: int = 0) -> list[str]:
    out = cli(*words, status=status).stdout.splitlines()
    return sorted(line for line in out if line.startswith("r00") and "| " in line)


def test_job_on_a_running_pool_may_skip_setup(cli: Cli, pool: str) -> None:
    name = write_job_file(cli, "num_nodes: 2\nsetup: echo set up\nrun: echo run\n")
    assert run_and_read_output(cli, "launch", name, "-c", pool) == [
        f"r00{r}| {w}" for r in (0, 1) for w in ("run", "set up")
    ]
    assert run_and_read_output(cli, "launch", name, "-c", pool, "--no-setup") == ["r000| run", "r001| run"]
    assert run_and_read_output(cli, "exec", pool, name) == ["r000| run", "r001| run"]


def test_job_on_fewer_nodes_than_the_pool_runs_on_the_first_ones(cli: Cli, pool: str) -> None:
    """Setup runs on all nodes, the run only on the first ones, which know no others."""
    run = "echo $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES $SKYPILOT_NODE_IPS, $RANK of $WORLD_SIZE"
    name = write_job_file(cli, f"setup: echo set up\nrun: {run}\n")
    assert run_and_read_output(cli, "launch", name, "-c", pool) == [
        "r000| 0 of 1 127.0.0.1, 0 of 1",
        "r000| set up",
        "r001| set up",
    ]


def test_exec_runs_a_command_on_a_pool(cli: Cli, pool: str) -> None:
    assert run_and_read_output(cli, "exec", pool, "echo", "a  b", "$HOME") == ["r000| a  b $HOME", "r001| a  b $HOME"]
    assert run_and_read_output(cli, "exec", "--env", "A=1", pool, "--", "echo $A") == ["r000| 1", "r001| 1"]
    (cli.folder / "variables").write_text(f"export A=1\nMY_TOKEN='{TOKEN}'\n")
    found = run_and_read_output(cli, "exec", "--env-file", "variables", pool, "--", "echo $A ${#MY_TOKEN} $MY_TOKEN")
    assert found == [f"{rank}| 1 {len(TOKEN)} {'*' * len(TOKEN)}" for rank in ("r000", "r001")]
    assert run_and_read_output(cli, "exec", "--secret", f"A={TOKEN}", pool, "echo $A; exit 5", status=5)
    found = json.loads(cli("exec", "--json", pool, "exit 7", status=7).stdout.splitlines()[-1])
    assert found["root_cause"]["outcome"] == "exited" and found["root_cause"]["exit_code"] == 7


@pytest.mark.skipif(os.getuid() != 0, reason="a small disk is mounted")
def test_full_disk_for_job_files_is_named(cli: Cli, pool: str, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=True)
    try:
        (cli.folder / "large").write_bytes(bytes(100_000))
        text = f"file_mounts:\n  {tmp_path}/there/large: {cli.folder}/large\nrun: echo ran\n"
        done = cli("launch", write_job_file(cli, text), "-c", pool, status=1)
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
    (cause,) = (line for line in done.stderr.splitlines() if line.startswith("root cause: "))
    assert f"file_mounts: {tmp_path}/there/large on node 0 (" in cause
    assert "is incomplete: No space left on device. Free some space there (now 0 bytes), or choose" in cause
    assert "Traceback" not in done.stderr and "| ran" not in done.stdout


@pytest.mark.proof("1 s of a processor")
def test_job_without_run_commands_reports_what_was_done(cli: Cli, pool: str) -> None:
    """In SkyPilot such a file only creates machines and sets them up."""
    name = write_job_file(cli, "num_nodes: 1\n")
    made = cli("launch", name, "-c", "bare", "--down")
    assert "task.yaml has no run commands: created pool bare" in made.stderr
    assert "task.yaml has no run commands: nothing was done" in cli("launch", name, "-c", pool).stderr
    assert "nothing: the file has no run commands" in cli("launch", name, "-c", "bare", "--dry-run").stdout
    name = write_job_file(
        cli, f"num_nodes: 2\nfile_mounts: {{{cli.folder}/brought: {cli.folder}/data}}\nsetup: echo set\n"
    )
    done = cli("launch", name, "-c", pool)
    assert "r001| set" in done.stdout
    assert "has no run commands: uploaded its files, set up its nodes" in done.stderr


def test_local_job_runs_in_its_workdir_and_overwrites_nothing(cli: Cli, pool: str, tmp_path: Path) -> None:
    """The working folder of the pool is the user's own folder."""
    (tmp_path / "word.txt").write_text("the job's\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "x")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    cli.write("word.txt", "the person's\n")
    for workdir in (tmp_path, f"{{url: {tmp_path}}}"):
        name = write_job_file(cli, f"workdir: {workdir}\nrun: cat word.txt\n")
        for text in (("exec", pool, name), ("launch", name, "-c", pool)):
            (line,) = run_and_read_output(cli, *text)
            assert line.endswith("| the job's"), "on whichever node is free"
    assert (cli.folder / "word.txt").read_text() == "the person's\n"


@pytest.mark.proof("1 s of a processor")
def test_git_clone_of_a_job_is_removed_after_its_pool_ended(cli: Cli, tmp_path: Path) -> None:
    """The clone of a killed client is removed, too, but not while ranks work in it."""
    (tmp_path / "word.txt").write_text("cloned\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "x")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    name = write_job_file(cli, f"workdir: {{url: {tmp_path}}}\nrun: cat word.txt; touch began; sleep 60\n")
    clones = Path(cli.env["SKYWARD_HOME"]) / "clones"
    with cli.begin("launch", name, "-c", "cloned") as launched:
        wait_until(lambda: list(clones.glob("*/began")))
        launched.kill()
        launched.wait()
    (mine,) = {path.parent.name for path in clones.glob("*/began")}
    cli("prune")
    assert (clones / mine / "word.txt").exists()
    cli("down", "cloned", "-y", "--discard", status=None)
    assert mine in {each["folder"] for each in cli.json("prune")["clones"]}
    assert not list(clones.glob(f"{mine}*"))


def test_failing_setup_ends_the_job_with_its_log_before_run(cli: Cli, pool: str) -> None:
    setup = "if [ $SKYPILOT_SETUP_NODE_RANK = 1 ]; then echo no such package >&2; exit 9; fi; sleep 1000"
    done = cli("launch", write_job_file(cli, f"num_nodes: 2\nsetup: {setup}\nrun: touch ran\n"), "-c", pool, status=9)
    assert "r001| no such package" in done.stdout + done.stderr
    assert "root cause: r001 exited: ended with status 9" in done.stderr
    assert "skipped after setup: run" in done.stderr
    assert not (cli.folder / "ran").exists()


def test_failing_rank_of_a_job_stops_the_others(cli: Cli, pool: str) -> None:
    run = "test $SKYPILOT_NODE_RANK = 1 && exit 3; sleep 1000"
    found = cli.json("launch", write_job_file(cli, f"num_nodes: 2\nrun: {run}\n"), "-c", pool, status=3)
    assert (found["root_cause"]["rank"], found["root_cause"]["exit_code"]) == (1, 3)
    assert found["ranks"][0]["outcome"] == "collateral"


@pytest.mark.proof("2 s of a processor")
def test_job_recovery_restarts_the_run_commands_after_errors_up_to_its_limit(cli: Cli) -> None:
    """``setup`` does not run again, and an error after the limit fails the job."""
    run = "echo attempt $SKYWARD_ATTEMPT; test $SKYWARD_ATTEMPT -gt {}"
    text = "resources:\n  job_recovery:\n    max_restarts_on_errors: {}\nsetup: echo set up\nrun: |\n  {}\n"
    # Each attempt fails at another place, because the same error twice without progress ends the run.
    places = run.format(2) + " || exit $SKYWARD_ATTEMPT"
    done = cli("launch", write_job_file(cli, text.replace("{}", "2", 1).replace("{}", places)), "-c", "again", "--down")
    said = [line.partition("| ")[2] for line in done.stdout.splitlines() if line.startswith("r000| ")]
    assert [line for line in said if not line.startswith("---")] == ["set up", "attempt 1", "attempt 2", "attempt 3"]
    assert "restart 2 of 2 after an error of the code" in done.stderr
    name = write_job_file(cli, text.replace("{}", "1", 1).replace("{}", places))
    failed = cli("launch", name, "-c", "again", "--down", status=2)
    assert "the run was restarted once after an error of the code, which is the limit" in failed.stderr


RECOVERED_JOB = """
num_nodes: 2
resources: {job_recovery: {max_restarts_on_errors: 0}}
file_mounts: {<mounted>: <data>}
setup: echo set up with $(cat <mounted>/word.txt)
run: |
  echo attempt $SKYWARD_ATTEMPT; touch began-$SKYPILOT_NODE_RANK
  while [ $SKYWARD_ATTEMPT = 1 ]; do sleep 0.05; done
"""


def lose_node_of_job(cli: Cli, pool: str, *words: object) -> tuple[int, list[str], str]:
    """Run a command, and destroy the second node of its pool when both ranks run.

    Returns:
        The exit status of the command, the lines of the ranks, and the errors.
    """
    for old in cli.folder.glob("began-*"):
        old.unlink()
    with cli.begin(*words) as command:
        wait_until(lambda: len(list(cli.folder.glob("began-*"))) == 2)
        (folder,) = cli.folder.glob(f"home/**/{pool}.*/node-1")
        destroy(folder, find_node_processes(str(folder)))
        out, errors = command.communicate(timeout=PATIENCE)
        lines = [line.partition("| ")[2] for line in out.splitlines() if line.startswith("r00")]
        return command.returncode, sorted(line for line in lines if line and not line.startswith("---")), errors


def write_recovered_job(cli: Cli, *, sets_up: bool) -> str:
    text = RECOVERED_JOB.replace("<mounted>", str(cli.folder / "mounted")).replace("<data>", str(cli.folder / "data"))
    lines = [line for line in text.splitlines() if sets_up or not line.startswith(("file_mounts", "setup"))]
    return write_job_file(cli, "\n".join(lines))


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("sets_up", [True, False])
def test_job_whose_machine_is_replaced_starts_again_with_its_first_step(cli: Cli, *, sets_up: bool) -> None:
    name = write_recovered_job(cli, sets_up=sets_up)
    status, lines, errors = lose_node_of_job(cli, "heals", "launch", name, "-c", "heals", "--down")
    assert status == 0, errors
    assert "restart 1 of 3 after a lost rank" in errors
    # The output of the lost rank may not have arrived.
    assert [line for line in lines if line != "attempt 1"] == ["attempt 2"] * 2 + ["set up with brought"] * 4 * sets_up


def test_exec_whose_machine_is_replaced_fails_with_the_reason(cli: Cli) -> None:
    cli("launch", write_job_file(cli, "num_nodes: 2\nresources: {job_recovery: EAGER}\nsetup: 'true'\n"), "-c", "stays")
    name = write_recovered_job(cli, sets_up=True)
    status, lines, errors = lose_node_of_job(cli, "stays", "exec", "stays", name)
    assert (status, set(lines)) == (1, {"attempt 1"})
    assert "not restarted: node 1 lost its machine, and this client cannot set up another one. Launch" in errors
    cli("down", "stays", "-y")


@pytest.mark.proof("0.5 s of a processor")
def test_job_can_be_detached_and_its_pool_torn_down_by_launch(cli: Cli) -> None:
    name = write_job_file(cli, "run: while ! [ -e go ]; do sleep 0.02; done; echo went\n")
    output = cli("launch", name, "-c", "left", "--detach").stderr
    assert "keeps running; watch: skyward-tui attach left" in output
    (cli.folder / "go").touch()
    assert "r000| went" in cli("attach", "left").stdout or "went" in cli("logs", "left").stdout
    assert "pool left is down: created 1" in cli("launch", name, "-c", "left", "--down").stderr
    assert "left" not in cli.pools()


def test_files_of_a_killed_launch_are_removed_by_the_next_one(cli: Cli, pool: str) -> None:
    folder = cli.folder / "home" / "tasks"
    before = set(folder.iterdir()) if folder.exists() else set()
    go_on = cli.folder / "go on"
    text = f"run: while [ ! -e '{go_on}' ]; do sleep 0.05; done\n"
    with cli.begin("launch", write_job_file(cli, text), "-c", pool) as launch:
        wait_until(lambda: folder.exists() and set(folder.iterdir()) - before, what="its folder")
        (left,) = set(folder.iterdir()) - before
        assert marked_pid(int(left.name.partition("-")[0])) == launch.pid
        launch.kill()
        launch.wait()
    go_on.touch()
    assert left.exists(), "nobody was there to remove it"
    cli("launch", write_job_file(cli, "run: 'true'\n"), "-c", pool)
    assert not set(folder.iterdir()) - before


def test_launch_dry_run_shows_the_plan(cli: Cli) -> None:
    name = write_job_file(cli, JOB, nodes=2)
    found = cli.json("launch", name, "--dry-run", "--secret", "HF_TOKEN=abcdefgh")
    assert dict(found["plan"])["creates"].endswith(": 2 local nodes")


@pytest.mark.parametrize(
    "words, message",
    [
        (("launch", "task.yaml", "-c", "job", "--plugin", "mpi"), "Remove --plugin"),
        (("exec", "job", "large.yaml"), "large.yaml needs 9 nodes, but pool job has 2"),
        (("launch", "task.yaml", "-c", "job", "--set", "a=b", "-i", "5"), "Remove --set, --idle"),
        (("launch", "empty.yaml", "--detach", "--down"), "Add --idle TIME"),
        (("launch", "empty.yaml", "--budget", "5"), "machines of provider local are free of charge"),
        (("exec", "job", "empty.yaml"), "empty.yaml has no run"),
        (("exec", "job", "task.yaml", "--env", "A=1"), "options of exec must precede the pool"),
        (("exec", "job", "--"), "name a job file, or a command"),
    ],
)
def test_invalid_launch_or_exec_command_is_one_error_line(
    cli: Cli, pool: str, words: tuple[str, ...], message: str
) -> None:
    cli.write("large.yaml", "num_nodes: 9\nrun: a\n")
    cli.write("empty.yaml", "")
    write_job_file(cli, "num_nodes: 2\nrun: 'true'\n")
    done = cli(*words, status=2)
    assert message in done.stderr


def test_job_shell_reads_bashrc_and_finds_conda(
    cli: Cli, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setup may append lines to ``~/.bashrc``; conda works even if that file returns early."""
    (tmp_path / ".bashrc").write_text("echo noise; export FROM_FILE=1\nreturn\nexport BEHIND=1\n")
    profile = tmp_path / "miniconda3" / "etc" / "profile.d"
    profile.mkdir(parents=True)
    (profile / "conda.sh").write_text('conda() { echo "conda $*"; }\n')
    (tmp_path / "miniconda3" / "bin").mkdir()
    (tmp_path / "miniconda3" / "bin" / "conda").write_text("#!/bin/sh\n")
    (tmp_path / "miniconda3" / "bin" / "conda").chmod(0o755)
    name = write_job_file(cli, "run: echo $FROM_FILE $BEHIND; conda activate ray\n")
    monkeypatch.setitem(cli.env, "HOME", str(tmp_path))
    made = run_and_read_output(cli, "launch", name, "-c", "shells", "--env", f"HOME={tmp_path}", "--down")
    assert made == ["r000| 1", "r000| conda activate ray"]


def test_job_shell_uses_the_python_of_the_pool_despite_bashrc(cli: Cli, pool: str, tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "python").write_text("#!/bin/sh\necho shim\n")
    (shims / "python").chmod(0o755)
    (tmp_path / ".bashrc").write_text(
        f"export PATH={shims}:$PATH VIRTUAL_ENV=/other CONDA_PREFIX=/other CONDA_SHLVL=1 OTHER=1\n"
    )
    name = write_job_file(
        cli,
        """run: |
  python -c 'import sys; print(1, sys.prefix)'
  echo "2 $OTHER ${VIRTUAL_ENV-} ${CONDA_PREFIX-none} ${CONDA_SHLVL-none}"
  PATH="$HOME/shims:$PATH"
  echo 3 $(python)
  echo 4 $LINENO
""",
    )
    made = run_and_read_output(cli, "exec", "--env", f"HOME={tmp_path}", pool, name)
    environment = sys.prefix if sys.prefix != sys.base_prefix else ""
    conda = " ".join(cli.env.get(name, "none") for name in ("CONDA_PREFIX", "CONDA_SHLVL"))
    lines = [f"1 {sys.prefix}", f"2 1 {environment} {conda}", "3 shim", "4 6"]
    assert [line.partition("| ")[2] for line in made if line.startswith("r000")] == lines


@pytest.mark.proof("1 s of a processor")
def test_detaching_during_setup_reports_skipped_job_steps(cli: Cli, pool: str) -> None:
    name = write_job_file(
        cli, "name: trains\nsetup: echo at setup; while [ ! -e left.end ]; do sleep 0.05; done\nrun: 'true'\n"
    )
    child = cli.terminal("launch", name, "-c", pool, NO_COLOR="1")
    child.expect("at setup")
    child.sendintr()
    child.expect(r"is still running. \[d\]etach: this step continues, the remaining steps \(trains\) are skipped")
    child.sendline("d")
    child.expect("skipped after setup: trains")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    (cli.folder / "left.end").touch()
    wait_until(lambda: cli.json("queue", pool)["runs"] == [])
