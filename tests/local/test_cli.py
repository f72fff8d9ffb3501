"""The command line with real pools: output, exit codes, notifications and the debug log."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

import skyward_core as sky
from skyward_core.pool import agent_link
from skyward_tui.cli.main import main
from tests.support.child import Child
from tests.support.cli import COMMAND, EXAMPLES, PATIENCE, Cli, call
from tests.support.faults import agent_pids
from tests.support.loss import lose
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until


@pytest.fixture
def run_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process, which is faster for commands that end before a pool exists."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["skyward-tui", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capfd.readouterr()

    return run


@pytest.fixture(scope="module")
def dev_pool_cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """Command line with a pool named "dev" of two nodes, for tests that do not change it."""
    cli = Cli(tmp_path_factory.mktemp("cli"))
    cli("run", "endings.py:fine", "--nodes", 2, "--pool", "dev", "--keep")
    yield cli
    receipts = cli.json("down", "dev")["receipts"]
    assert [(r["pool"], r["created"], r["gone"], r["unaccounted"]) for r in receipts] == [("dev", 2, [0, 1], [])]


def test_help_and_version_import_no_heavy_modules() -> None:
    code = """
import sys
from skyward_tui.cli.main import cli
for arguments in (["--version"], ["--help"], ["run", "--help"]):
    assert cli.main(arguments, standalone_mode=False) == 0
print(sorted({"textual", "rich", "pydantic", "asyncssh", "boto3", "cloudpickle", "asyncio"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"skyward-tui \d+\.\d+\.\d+\n", done.stdout)


def test_app_without_a_terminal_is_rejected(run_in_process: Any) -> None:
    ended, _, err = run_in_process()
    assert ended == 2
    assert "needs a terminal" in err


def test_script_of_a_project_for_another_python_gets_a_note(run_in_process: Any, tmp_path: Path) -> None:
    project, script = tmp_path / "pyproject.toml", tmp_path / "src" / "train.py"
    script.parent.mkdir()
    script.write_text("import skyward_core as sky\n@sky.function\ndef f(): ...\n1 / 0\n")
    project.write_text('[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.98"\n')
    own = sys.version.split()[0]
    message = f"requires Python >=3.98, but skyward-tui runs {own}. Choose --project to find a matching one"
    assert f"pyproject.toml {message}" in run_in_process("run", "src/train.py", "--dry-run")[1]
    assert f"pyproject.toml {message}" in run_in_process("run", "src/train.py")[2], "before it is loaded, which fails"
    project.write_text('[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.9"\n')
    assert "asks for" not in run_in_process("run", "src/train.py", "--dry-run")[1]
    project.write_text("no TOML")
    assert run_in_process("run", "src/train.py", "--dry-run")[0] == 0


def test_run_prints_logs_results_and_receipt_and_leaves_nothing(cli: Cli) -> None:
    done = cli("run", EXAMPLES / "hello.py", "--nodes", 4, "--arg", "n=1000")
    assert "\x1b" not in done.stdout + done.stderr
    logs, table = done.stdout.splitlines()[:4], done.stdout.splitlines()[4:]
    assert sorted(logs) == [f"r{i:03d}| rank {i} of 4 on node {i}: 250 numbers" for i in range(4)]
    assert table[0].split() == ["rank", "node", "outcome", "time", "result"]
    assert [re.sub(r"  +[\d.]+ m?s +", "  ", line) for line in table[1:5]] == [
        f"r{i:03d}  n{i}    ✓ returned  {sum(range(i, 1000, 4))}" for i in range(4)
    ]
    assert table[5].startswith("value of 4: mean 124.9k ±")
    assert "created 4, verified gone 4, unaccounted 0" in done.stderr
    assert cli.json("ls") == {"pools": [], "kept": []}
    assert cli("ls").stdout == "no pools are up\n"


def test_run_json_prints_one_object(cli: Cli) -> None:
    done = cli("run", "endings.py:fine", "--nodes", 2, "--arg", "n=3", "--json")
    [line] = done.stdout.splitlines()
    found = json.loads(line)
    assert list(found) == [
        "run", "pool", "function", "ranks", "aggregate", "disagreements", "attempt", "attempts", "root_cause",
        "figures", "receipt",
    ]  # fmt: skip
    assert found["function"] == "fine"
    assert [{**rank, "seconds": 0} for rank in found["ranks"]] == [
        {
            "rank": i, "node": i, "outcome": "returned", "seconds": 0,
            "value": {"n": 3, "word": "next door"}, "error": None,
        }
        for i in range(2)
    ]  # fmt: skip
    assert found["aggregate"]["n"]["mean"] == 3
    assert found["root_cause"] is None
    assert found["receipt"]["unaccounted"] == []
    assert "r001| seen by rank 1" in done.stderr.splitlines()


@pytest.mark.proof("1 s of a processor", after=4)
@pytest.mark.parametrize(
    "how, status, outcome, error_type",
    [
        ("fine", 0, None, None),
        ("raise", 1, "raised", "KeyError"),
        ("exit7", 7, "exited", None),
        ("kill", 137, "exited", None),
        ("exit0", 1, "exited", None),
        ("lock", 1, "raised", None),
    ],
)
def test_run_exit_code_and_root_cause_follow_the_failure(
    dev_pool_cli: Cli, how: str, status: int, outcome: str | None, error_type: str | None
) -> None:
    found = dev_pool_cli.json("run", "endings.py:ends", "--pool", "dev", "--arg", f"how={how}", status=status)
    assert found["receipt"] is None
    if outcome is None:
        assert found["root_cause"] is None
        return
    cause, rank = found["root_cause"], found["ranks"][1]
    assert (cause["rank"], cause["outcome"], rank["outcome"]) == (1, outcome, outcome)
    assert rank["error"]["type"] == cause["type"]
    assert rank["error"]["message"] == cause["message"]
    if error_type:
        assert cause["type"] == error_type
        assert "raise KeyError" in rank["error"]["traceback"]
    if how == "lock":
        assert "deep" in cause["message"]
    # What the ledger kept says the same, and ends the same.
    data = dev_pool_cli.json("results", found["run"], status=status)
    assert (data["ranks"], data["root_cause"]) == (found["ranks"], found["root_cause"])


def test_run_of_unconnected_ranks_warns_about_the_missing_plugin(cli: Cli) -> None:
    cli.write("jax.py", "")
    cli.write("alone.py", "import jax\nimport skyward_core as sky\n@sky.function\ndef f(): pass\n")
    warning = "jax plugin is off: ranks will train separately. Add --plugin jax"
    output = cli("run", "alone.py", "--nodes", 2).stderr
    assert warning in output.partition("\npool ")[0].splitlines(), output
    assert warning not in cli("run", "alone.py").stderr, "one rank has no others"


def test_traceback_printed_by_a_script_is_shown_once_without_skyward_frames(cli: Cli) -> None:
    cli.write(
        "hooked.py",
        "import sys, traceback\n"
        "sys.excepthook = lambda kind, error, trace: traceback.print_exception(error)\n"
        "def step():\n    raise LookupError('no data')\n"
        "step()\n",
    )
    done = cli("run", "hooked.py", status=1)
    printed = [line.removeprefix("r000| ") for line in done.stdout.splitlines() if line.startswith("r000| ")]
    assert printed[0] == "Traceback (most recent call last):" and printed[-1] == "LookupError: no data"
    assert "/hooked.py" in printed[1] and "skyward" not in done.stdout.replace(str(cli.folder), "")
    assert "root cause: r000 raised: LookupError: no data\nits traceback is in the output above" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.proof("0.6 s of a processor", after=1)
@pytest.mark.parametrize(("target", "expected"), [("whole.py", ["<module>", "step"]), ("stack.py", ["rank", "step"])])
def test_stack_printed_by_a_rank_begins_with_user_code(cli: Cli, target: str, expected: list[str]) -> None:
    step = "def step():\n    traceback.print_stack()\n    print(traceback.extract_stack(limit=1)[0].name)\n"
    cli.write("whole.py", f"import traceback\n{step}step()\n")
    cli.write(
        "stack.py", f"import traceback\nimport skyward_core as sky\n{step}@sky.function\ndef rank():\n    step()\n"
    )
    done = cli("run", target, "--json")
    said = cli("logs", json.loads(done.stdout.splitlines()[-1])["run"])
    assert re.findall(r'File ".*", line \d+, in (\S+)', said.stderr) == expected, said.stderr
    assert said.stdout == "r000| step\n"


def test_logs_and_results_are_available_after_the_pool_ended(cli: Cli) -> None:
    found = cli.json("run", "endings.py:fine", "--nodes", 2)
    assert cli.json("ls") == {"pools": [], "kept": []}
    for rank in range(2):
        done = cli("logs", f"{found['run']}:{rank}")
        assert (done.stdout, done.stderr) == (f"seen by rank {rank}\n", "to stderr\n")
    assert cli("logs", found["run"]).stdout == "r000| seen by rank 0\nr001| seen by rank 1\n"
    collapsed = cli("logs", found["run"], "--collapse")
    assert collapsed.stdout.splitlines() == ["x2| seen by rank 0…1"]
    assert {line.partition("| ")[2] for line in collapsed.stderr.splitlines()} == {"to stderr"}
    rows = cli.json("logs", found["run"], "--collapse")["rows"]
    lines = [rank for row in rows for rank in row["ranks"] if (row["stream"], row["text"]) == ("err", "to stderr")]
    assert sorted(lines) == [0, 1]
    both = cli("logs", f"{found['run']}:1", "--collapse", status=2)
    assert "--collapse cannot be combined with a rank" in both.stderr
    assert cli.json("logs", f"{found['run']}:1") == {
        "run": found["run"], "logs": [{"rank": 1, "out": "seen by rank 1\n", "err": "to stderr\n"}],
    }  # fmt: skip
    data = cli.json("results", found["run"])
    assert data == found | {"receipt": None}
    assert "r001  n1    ✓ returned" in cli("results", found["run"]).stdout
    assert "has no rank 2. Choose a rank from 0 to 1" in cli("logs", f"{found['run']}:2", status=2).stderr
    # By the pool's name, shortened; and from the list of what was.
    assert cli("logs", "endings:0").stdout == "seen by rank 0\n"
    assert " ends, or ended " in cli("ls", "--all").stdout
    [pool] = cli.json("ls", "--all")["pools"]
    assert (pool["name"], pool["state"], pool["nodes"]) == (found["pool"], "gone", 2)
    assert pool["created_at"] < pool["ended_at"]
    assert pool["runs"] == [{"run": found["run"], "function": "fine", "state": "done", "metrics": {}}]
    assert f"pool {found['pool']} ended at" in cli("attach", found["pool"], status=2).stderr


def test_kept_pool_is_listed_and_separates_its_runs(dev_pool_cli: Cli) -> None:
    first = dev_pool_cli.json("run", "endings.py:fine", "--pool", "dev", "--arg", "n=1")["run"]
    second = dev_pool_cli.json("run", "endings.py:fine", "--pool", "dev", "--one")
    assert len(second["ranks"]) == 1
    [pool] = dev_pool_cli.json("ls")["pools"]
    assert (pool["name"], pool["state"], pool["provider"]) == ("dev", "up", "local")
    assert (pool["nodes"], pool["nodes_ready"], pool["price_hourly"]) == (2, 2, 0.0)
    runs = {run["run"]: run for run in pool["runs"]}
    assert runs[first] == {"run": first, "function": "fine", "state": "done", "metrics": {}}
    assert dev_pool_cli("logs", f"{first}:0").stdout == "seen by rank 0\n"
    assert "dev" in dev_pool_cli("ls").stdout


@pytest.mark.parametrize("options", [("--nodes", 2), ("--provider", "local"), ("--budget", 4)])
def test_run_with_the_name_of_a_running_pool_and_shape_is_rejected(
    dev_pool_cli: Cli, options: tuple[object, ...]
) -> None:
    done = dev_pool_cli("run", "endings.py:fine", "--pool", "dev", *options, status=2)
    assert done.stderr.startswith("error: pool dev is already up (2 nodes on local)")
    assert dev_pool_cli.pools()["dev"]["state"] == "up"


BAD = {
    "typed.py": "import skyward_core as sky\n@sky.function\ndef f(n: int): ...\n",
    "raises.py": "import skyward_core as sky\n@sky.function\ndef f(): ...\nraise OSError('no data')\n",
    "leaves.py": "import skyward_core as sky, sys\n@sky.function\ndef f(): ...\nsys.exit(3)\n",
    "held.py": "import skyward_core as sky, sys\nS = sys.stdin\n@sky.function\ndef f(): return S\n",
}


@pytest.mark.parametrize(
    "arguments, status, message",
    [
        (["missing.py"], 2, r"script missing\.py does not exist"),
        (["typed.py", "--arg", "n=1,2"], 2, r"must be int, got '1,2'; several values need --sweep"),
        (["typed.py", "--arg", "n=1", "--provider", "locl"], 2, r"no provider is called 'locl'; did you mean 'local'"),
        (["typed.py", "--ranks-per-node", "0"], 2, r"'--ranks-per-node'.*neither a number"),
        (["typed.py", "--timeout", "0"], 2, r"'--timeout'"),
        (["raises.py"], 1, r"raises\.py failed at line 4: OSError: no data"),
        (["leaves.py"], 1, r"leaves\.py calls sys\.exit\(3\) at line 4"),
        (["held.py"], 1, r"function f cannot be pickled: .*S"),
    ],
)
def test_invalid_run_arguments_are_one_error_line(
    run_in_process: Any, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    for name, text in BAD.items():
        (tmp_path / name).write_text(text)
    ended, out, err = run_in_process("run", *arguments)
    assert ended == status
    lines = [line for line in err.splitlines() if line.lower().startswith("error: ")]
    assert len(lines) == 1
    assert re.search(message, lines[0])
    assert "/skyward_core/" not in err  # no traceback of ours
    assert out == ""
    assert not list((tmp_path / "home").glob("local/*"))


def test_run_error_with_json_is_an_object(run_in_process: Any) -> None:
    _, out, _ = run_in_process("run", "missing.py", "--json")
    assert json.loads(out) == {"error": {"type": "ScriptError", "message": "script missing.py does not exist"}}


@pytest.mark.parametrize(
    "arguments, status",
    [
        (["logs", "nope"], 2),
        (["results", "nope"], 2),
        (["cancel", "nope"], 2),
        (["down", "nope"], 2),
        (["attach", "nope"], 2),
        (["rerun", "nope"], 2),
        (["stacks", "nope"], 2),
        (["top", "nope", "--once"], 2),
        (["metrics", "nope"], 2),
        (["exec", "nope", "true"], 2),
        (["queue", "nope"], 2),
        (["down"], 2),
        (["down", "x", "--all"], 2),
        (["nope"], 2),
    ],
)
def test_unknown_run_or_pool_name_is_one_error_line(run_in_process: Any, arguments: list[str], status: int) -> None:
    ended, _, err = run_in_process(*arguments)
    assert ended == status
    assert len([line for line in err.splitlines() if line.lower().startswith("error: ")]) == 1


@pytest.mark.proof("1 s of a processor")
def test_binary_and_very_long_log_lines_are_complete(cli: Cli) -> None:
    cli.write(
        "loud.py",
        "import os, sys\nimport skyward_core as sky\n"
        "@sky.function\ndef loud():\n"
        "    out = sys.stdout.buffer\n"
        "    out.write(bytes(set(range(256)) - {10, 13}) + b'\\n')\n"
        "    out.write(b'x' * 50_000_000 + b'\\n')\n"
        "    out.write(b'no end of line')\n"
        "    out.flush()\n",
    )
    done = subprocess.run(
        [*COMMAND, "run", "loud.py"],
        cwd=cli.folder,
        env=cli.env,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    prefix = b"r000| "
    expected = [bytes(set(range(256)) - {10, 13}), b"x" * 50_000_000, b"no end of line"]
    lines = done.stdout.split(b"\n")
    assert [line.removeprefix(prefix) for line in lines[:3]] == expected
    assert all(line.startswith(prefix) for line in lines[:3])


def test_timeout_option_stops_the_ranks(dev_pool_cli: Cli) -> None:
    found = dev_pool_cli.json(
        "run", "endings.py:waits", "--pool", "dev", "--arg", "marker=x", "--timeout", 0.5, status=1
    )
    assert found["root_cause"]["type"] == "TimeoutError"


def test_detached_run_can_be_followed_by_attach_and_cancelled(cli: Cli) -> None:
    cli.write(
        "slow.py",
        "import pathlib, threading\nimport skyward_core as sky\n"
        "@sky.function\ndef slow(gate: str):\n"
        "    print('begun', flush=True)\n"
        "    with open(gate) as fifo: word = fifo.read()\n"
        "    print('ended', word, flush=True)\n    return word\n",
    )
    gate = cli.folder / "gate"
    os.mkfifo(gate)
    left = cli("run", "slow.py", "--arg", f"gate={gate}", "--detach", "--json")
    assert "link down" not in left.stderr and "asyncio" not in left.stderr, left.stderr
    found = json.loads(left.stdout.splitlines()[-1])
    assert [rank["outcome"] for rank in found["ranks"]] == ["running"]
    run, pool = found["run"], found["pool"]
    assert found["receipt"] is None
    assert cli.pools()[pool]["runs"] == [{"run": run, "function": "slow", "state": "running", "metrics": {}}]
    # A rank has begun before it has printed.
    wait_until(lambda: cli("logs", f"{run}:0").stdout == "begun\n", seconds=PATIENCE)
    follower, watcher = cli.begin("logs", run, "-f"), cli.begin("attach", pool)
    with follower, watcher:
        assert follower.stdout is not None
        assert watcher.stderr is not None
        assert follower.stdout.readline() == "r000| begun\n"
        assert watcher.stderr.readline() == f"run {run}: slow on 1 rank\n"
        gate.write_text("open")
        out, _ = watcher.communicate(timeout=PATIENCE)
        assert watcher.returncode == 0
        assert "r000| ended open\n" in out
        assert "✓ returned" in out
        assert follower.communicate(timeout=PATIENCE)[0] == "r000| ended open\n"
        assert follower.returncode == 0
    assert cli.json("results", run)["ranks"][0]["value"] == "open"

    second = cli("run", "endings.py:waits", "--pool", pool, "--arg", "marker=1", "--detach")
    run = re.search(r"run (\w+):", second.stderr)[1]  # type: ignore[index]
    assert f"skyward-tui attach {pool}" in second.stderr
    assert [rank["outcome"] for rank in cli.json("results", run)["ranks"]] == ["running"]
    assert cli.json("cancel", run) == {"run": run, "state": "cancelled"}
    assert cli.json("cancel", run) == {"run": run, "state": "cancelled"}
    assert cli.json("results", run, status=130)["ranks"][0]["outcome"] == "collateral"
    assert pool in cli.pools()
    assert "nothing runs on pool" in cli("attach", pool).stderr
    assert cli.json("attach", pool) == cli.json("results", run, status=130)
    assert cli.json("cancel", pool) == {"run": run, "state": "cancelled"}


def start_waiting(cli: Cli, *options: object) -> Child:
    """Start a run whose ranks wait forever, and wait until they have begun."""
    process = cli.start("run", "endings.py:waits", "--nodes", 2, "--arg", "marker=1", *options)
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline().endswith("| waiting\n")
    return process


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_cancels_the_run_and_tears_the_pool_down(cli: Cli, number: int) -> None:
    with start_waiting(cli, "--pool", "p") as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out.count("⊘ stopped") == 2
    assert "created 2, verified gone 2, unaccounted 0" in err
    assert cli.pools() == {}


def test_edited_script_runs_again_on_the_same_pool_until_ctrl_c(cli: Cli) -> None:
    script = "import neighbour, signal\nimport skyward_core as sky\n@sky.function\ndef f(n: int):\n    "
    cli.write("again.py", f"{script}print('word', neighbour.WORD, n, flush=True)\n    signal.pause()\n")
    with cli.start("run", "again.py", "--on-change", "--n", 7, "--pool", "p") as process:
        assert process.stdout is not None and process.stderr is not None
        lines = iter(process.stdout.readline, "")
        errors = iter(process.stderr.readline, "")

        def wait_for(text: str, of: Iterator[str] = lines) -> str:
            return next(line for line in of if text in line)

        wait_for("word next door 7")
        cli.write("neighbour.py", "WORD = 'upstairs'\n")
        wait_for("⊘ stopped")  # the active run
        wait_for("word upstairs 7")
        assert wait_for("changed", errors) == "neighbour.py changed; running again.py again\n"
        cli.write("again.py", f"{script}raise ValueError('edited')\n")
        wait_for("✗ raised")
        wait_for("watching again.py; ctrl-c ends", errors)
        cli.write("again.py", script)
        assert "does not parse" in wait_for("error: ", errors)
        assert [*cli.pools()] == ["p"]
        cli.write("again.py", f"{script}return 10 * n\n")
        assert wait_for("r000  n0").split()[-1] == "70"
        wait_for("watching again.py; ctrl-c ends", errors)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, "the status of the last run"
    assert "created 1, verified gone 1, unaccounted 0" in err
    assert cli.pools() == {}


def test_watched_script_on_a_kept_pool_ends_with_the_status_of_its_last_run(cli: Cli) -> None:
    with cli.start(
        "run", "endings.py:ends", "-a", "how=raise", "-n", 2, "--pool", "p", "--keep", "--on-change"
    ) as process:
        assert process.stderr is not None
        next(line for line in iter(process.stderr.readline, "") if line.startswith("watching endings.py"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    assert "pool p stays up" in err
    with cli.start("run", "endings.py:fine", "--pool", "p", "--on-change") as process:
        assert process.stderr is not None
        next(line for line in iter(process.stderr.readline, "") if line.startswith("watching endings.py"))
        cli("down", "p", "--yes")
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, "without its pool, the command ends"


def test_ctrl_c_during_a_watched_run_cancels_it(cli: Cli) -> None:
    with start_waiting(cli, "--on-change") as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out.count("⊘ stopped") == 2
    assert "watching" not in err and "unaccounted 0" in err


@pytest.mark.parametrize("option", ["--detach", "--sweep", "--dry-run"])
def test_on_change_is_rejected_with_options_that_exclude_it(run_in_process: Any, tmp_path: Path, option: str) -> None:
    (tmp_path / "ok.py").write_text("import skyward_core as sky\n@sky.function\ndef f(x: int = 1): ...\n")
    ended, _, err = run_in_process("run", "ok.py", "--on-change", option)
    assert ended == 2
    assert f"--on-change cannot be combined with {option}. Remove one of the two" in err


def test_ctrl_c_on_a_terminal_asks_detach_cancel_or_tear_down(cli: Cli) -> None:
    child = cli.terminal("run", "endings.py:waits", "--nodes", 2, "--arg", "marker=1", "--pool", "p")
    child.expect(r"\x1b\[\d+mr000\| \x1b\[0mwaiting")
    child.sendintr()
    child.expect(r"\[d\]etach.*\[c\]ancel.*\[t\]ear")
    child.sendline("what?")
    child.expect("d, c or t")
    child.sendline("")
    child.expect("skyward-tui attach p")
    child.expect(pexpect.EOF)
    assert "Task was destroyed" not in child.before, child.before
    child.close()
    assert child.exitstatus == 130
    assert cli.pools()["p"]["runs"][0]["state"] == "running"

    child = cli.terminal("attach", "p", NO_COLOR="1")
    child.expect("run .*: waits on 2 ranks")
    child.sendintr()
    child.expect("ear the pool down")
    child.sendline("c")
    child.expect("r001  n1    ⊘ stopped")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert cli.pools()["p"]["state"] == "up"

    child = cli.terminal("run", "endings.py:waits", "--arg", "marker=1", "--pool", "p", NO_COLOR="1")
    child.expect(r"\nr00\d\| waiting")
    child.sendintr()
    child.expect("ear the pool down")
    child.sendintr()  # a second one leaves no choice
    child.expect("unaccounted 0")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert cli.pools() == {}


def test_doctor_reports_checks_and_a_damaged_ledger(cli: Cli) -> None:
    found = cli.json("doctor")
    assert found["ok"]
    assert {"python", "terminal", "open files", "folders", "ledger", "local"} <= {
        check["subject"] for check in found["checks"]
    }
    (cli.folder / "home" / "ledger.db").write_bytes(b"not a database, for sure" * 100)
    ledger = next(check for check in cli.json("doctor")["checks"] if check["subject"] == "ledger")
    assert ledger["state"] == "warn"
    assert "ledger.db.corrupt" in ledger["detail"]
    blocked = call(["doctor"], cli.env | {"SKYWARD_HOME": "/dev/null/x"})
    assert blocked.returncode == 1
    assert re.search(r"✗ fail +folders .*Set SKYWARD_HOME", blocked.stdout)


TOLD = 'echo "$SKYWARD_POOL|$SKYWARD_OUTCOME|$SKYWARD_MESSAGE" >> told'


def notify(cli: Cli, **settings: str) -> Path:
    """Return a notifier with some settings, and the recorded notifications."""
    table = "\n".join(f"{name} = {value}" for name, value in settings.items())
    cli.write("home/skyward.toml", f"[notify]\n{table}\n")
    (file := cli.folder / "home" / "told").unlink(missing_ok=True)
    return file


@pytest.mark.proof("0.6 s of a processor")
def test_notify_command_is_run_with_the_outcome_of_a_run(dev_pool_cli: Cli) -> None:
    notifications = notify(dev_pool_cli, after="0", command=f"""'''sh -c "{TOLD.replace('"', chr(92) + '"')}"'''""")
    dev_pool_cli("run", "endings.py:fine", "--pool", "dev")
    dev_pool_cli("run", "endings.py:ends", "-a", "how=raise", "--pool", "dev", status=None)
    done, failed = notifications.read_text().splitlines()
    assert done.startswith("dev|done|fine (") and done.endswith(": 2/2 returned")
    assert failed.startswith("dev|failed|ends (") and "rank 1 raised: KeyError: 'lost it'" in failed


@pytest.mark.proof("1 s of a processor")
def test_notify_command_is_not_run_for_short_or_detached_runs(dev_pool_cli: Cli) -> None:
    command = f"""'''sh -c "{TOLD.replace('"', chr(92) + '"')}"'''"""
    notifications = notify(dev_pool_cli, after="600", command=command)
    dev_pool_cli("run", "endings.py:fine", "--pool", "dev")
    notifications = notify(dev_pool_cli, after="0", command=command)
    dev_pool_cli("run", "endings.py:fine", "--pool", "dev", "--detach")
    assert not notifications.exists()


# `--watch` on a terminal, on a real pool: the summary is what stays.


WATCHED = """
import skyward_core as sky

@sky.function
def train(until: str):
    from pathlib import Path
    import time
    sky.log(step=1, loss=0.5)
    print("begun", flush=True)
    while not Path(until).exists():
        time.sleep(0.05)
    return 7
"""


@pytest.mark.proof("4 s of a processor")
def test_watch_shows_live_status_and_a_final_summary(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(WATCHED)
    until = tmp_path / "done"

    def terminal(*words: str) -> Terminal:
        return Terminal(tmp_path / "home", (110, 30), tmp_path, ("-m", "skyward_tui", *words))

    ran = terminal("run", "t.py", "-a", f"until={until}", "--nodes", "2", "--pool", "w", "--watch")
    attached = None
    try:
        ran.until(lambda text: "● 2 running" in text and "loss 0.5" in text and "| begun" in text)
        assert "train (" in ran.text and "0/2 ended" in ran.text
        attached = terminal("attach", "w", "--watch")
        attached.until(lambda text: "● 2 running" in text and "0/2 ended" in text)
        until.touch()
        for each in (ran, attached):
            assert each.ended() == 0
            assert each.text.count("✓ returned") == 2
            assert "output of the ranks: skyward-tui logs " in each.text
            assert "ended" not in each.text and "begun" not in each.text
    finally:
        ran.close()
        if attached is not None:
            attached.close()


SECRET = "hf_0f1e2d3c4b5a6978"


@pytest.mark.proof("0.5 s of a processor")
def test_debug_log_describes_a_run_without_values(cli: Cli) -> None:
    cli("--debug", "run", "endings.py:fine", "--arg", "n=7654321", "--nodes", 2, "--pool", "logged")
    log = (cli.folder / "home" / "debug" / "debug.log").read_text()
    for node in (0, 1):
        for text in ("up\n", r"sent call run=\w+ i=\d, \d+ bytes\n", r"got outcome run=\w+ i=\d, \d+ bytes\n"):
            assert re.search(rf"skyward\.link logged \[\d+\] node {node}: {text}", log), f"{text} in\n{log}"
        assert re.search(rf"INFO skyward\.pool logged \[\d+\] node {node}: gone: verified\n", log)
    assert "7654321" not in log and "next door" not in log, "no value"
    assert " WARNING " not in log, "a run that went well"


SCRIPT = f"""
    import skyward_core as sky
    from skyward_core.store.debug_log import get_logger as logger

    @sky.function
    def fails():
        raise ValueError("with {SECRET} in it")

    if __name__ == "__main__":
        image = sky.Image(env={{"HF_TOKEN": "{SECRET}"}})
        with sky.Compute(name="s", image=image, options=sky.Options(console=False)) as compute:
            logger("test").info("a word with {SECRET}")
            try:
                fails() @ compute
            except sky.RunError:
                pass
"""


def test_debug_log_of_a_script_has_no_secret_of_its_pool(cli: Cli) -> None:
    path = cli.write("logged.py", textwrap.dedent(SCRIPT))
    env = cli.env | {"SKYWARD_LOG": "debug"}
    done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout == done.stderr == ""
    log = (cli.folder / "home" / "debug" / "debug.log").read_text()
    assert f"a word with {'*' * len(SECRET)}" in log and SECRET not in log
    cli("debug-dump", "out.zip")
    with zipfile.ZipFile(cli.folder / "out.zip") as packed:
        parts = {name: packed.read(name).decode() for name in packed.namelist()}
    assert "ValueError" in parts["ledger.json"] and "HF_TOKEN" in parts["ledger.json"]
    assert not [name for name, text in parts.items() if SECRET in text]


def test_silent_node_is_revived_or_lost_and_logged(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_link, "SILENCE", 0.3)
    caplog.set_level(logging.INFO, "skyward")

    def is_logged(words: str) -> bool:
        return any(words in record.getMessage() for record in list(caplog.records))

    with sky.Compute(nodes=2, options=sky.Options(console=False, grace=0.5)) as compute:
        agent = agent_pids(compute)[1]
        os.kill(agent, signal.SIGSTOP)
        try:
            wait_until(lambda: is_logged("node 1: silent for"))
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_until(lambda: is_logged("node 1: answers again"))
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: is_logged("node 1: down: "))
        wait_until(lambda: is_logged("node 1: revived by a new agent"))
        wait_until(lambda: agent_pids(compute)[1] != agent and compute.pool.links[1].up)
        caplog.clear()
        lose(compute, 1)
        wait_until(lambda: is_logged("node 1: lost: "))
    assert {vars(record)["pool"] for record in caplog.records} == {compute.name}


SAVES = """
import pathlib, signal, sys, time
import skyward_core as sky

@sky.function
def saves():
    stops = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    pathlib.Path("ready").touch()
    while not stops or not pathlib.Path("go").exists():
        time.sleep(0.01)
    sys.exit()
"""


@pytest.mark.proof("0.5 s of a processor")
def test_cancel_counts_down_while_ranks_save(cli: Cli) -> None:
    cli.write("saves.py", SAVES)
    run = cli.json("run", "saves.py", "--pool", "p", "--grace", 60, "--detach")["run"]
    wait_until((cli.folder / "ready").exists, seconds=PATIENCE)
    with cli.begin("cancel", run) as process:
        assert process.stderr is not None
        assert re.fullmatch(r"rank 0 still saves: killed in [01]:\d\d\n", process.stderr.readline())
        (cli.folder / "go").touch()
        assert process.communicate(timeout=PATIENCE)[1] == f"run {run} is cancelled\n"


@pytest.mark.proof("0.5 s of a processor")
def test_cancel_kills_ranks_that_still_save_after_its_own_grace(cli: Cli) -> None:
    cli.write("saves.py", SAVES)
    run = cli.json("run", "saves.py", "--pool", "p", "--grace", "1h", "--detach")["run"]
    wait_until((cli.folder / "ready").exists, seconds=PATIENCE)
    assert cli.json("cancel", "--grace", 0.2, run) == {"run": run, "state": "cancelled"}


@pytest.mark.proof("1 s of a processor")
def test_kept_pool_survives_a_cancelled_run(cli: Cli) -> None:
    with start_waiting(cli, "--pool", "p", "--keep") as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "pool p is down" not in err
    assert cli.pools()["p"]["runs"][0]["state"] == "cancelled"
    cli("run", "endings.py:fine", "--pool", "p")


def test_invalid_log_level_is_rejected_by_every_command(cli: Cli) -> None:
    cli.env["SKYWARD_LOG"] = "loud"
    for command in ("ls", "doctor", "examples"):
        assert "Unknown log level SKYWARD_LOG='loud'" in cli(command, status=2).stderr


@pytest.mark.proof("1 s of a processor")
def test_unwritable_debug_log_is_reported_and_the_command_continues(cli: Cli) -> None:
    (cli.folder / "home").mkdir(mode=0o700)
    (cli.folder / "home" / "debug").write_text("in the way")
    done = cli("ls", "--debug")
    assert done.stderr.count("Cannot write the debug log") == 1
