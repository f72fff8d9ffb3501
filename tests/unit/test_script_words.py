"""Flags of a function, what stands behind ``--``, and torchrun's options, on the command line; nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skyward_core.client.launch.launch_plan import resolve_call
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.model.errors import ScriptError
from skyward_tui.cli.commands import run
from skyward_tui.cli.main import cli
from tests.support.commands import COMMANDS

SCRIPT = """
import skyward_core as sky

@sky.function
def train(epochs: int, lr: float = 0.1, fast: bool = False, *, run_name: str = "x", **more): ...

@sky.function
def other(n: int = 1): ...
"""

Asked = Callable[..., LaunchRequest | str]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What a command line comes to: the request, or what it says as it refuses."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text(SCRIPT)
    (tmp_path / "one.py").write_text(SCRIPT.partition("@sky.function\ndef other")[0])
    (tmp_path / "plain.py").write_text("print(__name__)\n")
    (tmp_path / "-odd.py").write_text("print(__name__)\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text("")
    found: list[LaunchRequest] = []
    notes: list[str] = []

    def execute(request: LaunchRequest, console: Any, dry_run: bool = False, watch: bool = False) -> int:
        resolve_call(request)
        found.append(request)
        return 0

    monkeypatch.setattr(run, "run", execute)
    monkeypatch.setattr("skyward_tui.cli.console.Console.note", lambda self, text: notes.append(text))

    def ask(line: str) -> LaunchRequest | str:
        found.clear()
        notes.clear()
        done = CliRunner().invoke(cli, line.split(), terminal_width=400)
        return found[0] if found else "\n".join([done.output, *notes])

    ask.notes = notes  # type: ignore[attr-defined]
    return ask


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("one.py --epochs 5", ["epochs=5"]),
        ("one.py --epochs=5 --lr -0.5 -n 3 --fast", ["epochs=5", "lr=-0.5", "fast=true"]),
        ("one.py --no-fast --run-name a -a epochs=2", ["epochs=2", "fast=false", "run_name=a"]),
        ("two.py:train --fast no --epochs 1 --other 7", ["fast=no", "epochs=1", "other=7"]),
    ],
)
def test_flags_of_a_function(asked, line, arguments):
    request = asked(f"run {line}")
    assert isinstance(request, LaunchRequest), request
    assert (list(request.arguments), request.script_args) == (arguments, None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "two.py:other --nodse 4",
            "no option --nodse, and other has no such argument: it takes --n; did you mean --nodes?",
        ),
        ("two.py:other --epochs 4", "it takes --n"),  # and not --detach
        ("two.py:other --n", "--n of other wants a value"),
        ("two.py:other 5", "'5' is no flag of other"),
        ("one.py --epochs five", "argument epochs of train wants int, got 'five'"),
        ("plain.py --epochs 5", "goes behind --: plain.py -- --epochs 5"),
        ("one.py:train -- --epochs 5", "leave one of them out"),
        ("plain.py -a n=5 -- 5", "takes no --arg"),
    ],
)
def test_what_no_function_takes_is_refused(asked, line, says):
    assert says in asked(f"run {line}")


@pytest.mark.parametrize(
    ("line", "script", "own"),
    [
        ("plain.py", "plain.py", ()),
        ("plain.py -n 2 -- --epochs 3 --help", "plain.py", ("--epochs", "3", "--help")),
        ("one.py -- -x -- y", "one.py", ("-x", "--", "y")),
        ("one.py --", "one.py", ()),
        ("-n 2 -- -odd.py a", "-odd.py", ("a",)),
    ],
)
def test_a_script_is_run_as_a_whole(asked, line, script, own):
    request = asked(f"run {line}")
    assert isinstance(request, LaunchRequest), request
    assert (request.script, request.script_args) == (script, own)


def test_the_help_of_run_shows_what_a_scripts_function_takes(asked):
    said = " ".join(asked("run one.py --help").split())
    assert "Arguments of train:" in said and "--epochs INT [required]" in said
    assert "--fast / --no-fast [default: False]" in said and "--run-name STR [default: 'x']" in said
    Path("choices.py").write_text(
        "import enum\nfrom typing import Literal\nimport skyward_core as sky\n"
        "class Optimiser(enum.Enum):\n    SGD = 's'\n    ADAM = 'a'\n"
        "@sky.function\ndef train(how: Literal['fast', 'Well'], by: Optimiser | None = None):\n"
        "    '''Trains.\n\n    Args:\n        how: to train.\n    '''\n"
    )
    said = " ".join(asked("run choices.py --help").split())
    assert "--how fast|Well to train. [required]" in said and "--by SGD|ADAM|None [default: None]" in said
    assert "Arguments of other" in asked("run two.py -h") and "Arguments of" not in asked("run plain.py -h")


def test_a_module_is_run_as_python_runs_it(asked):
    request = asked("run -m package.train -n 2 -- --epochs 3")
    assert isinstance(request, LaunchRequest), request
    assert (request.module, request.script, request.script_args, request.nodes) == (
        "package.train",
        "package/train.py",
        ("--epochs", "3"),
        2,
    )
    words = ["-m", "package.train", "--nodes", "2", "--", "--epochs", "3"]
    assert request.to_argv() == words
    assert asked(f"run {' '.join(words)}") == request
    assert isinstance(asked("run -m package.train"), LaunchRequest)
    assert "goes behind --" in asked("run -m package.train --epochs 3")
    assert "neither package/nothing.py nor" in asked("run -m package.nothing")
    with pytest.raises(ScriptError, match=r"no such script: package\.train; .* run -m package\.train"):
        run._make_plan(LaunchRequest(script="package.train", script_args=()), launching=False)
    with pytest.raises(ScriptError, match=r"is a folder; name a script in it$"):
        run._make_plan(LaunchRequest(script="."), launching=False)


def test_torchruns_options(asked):
    request = asked("torchrun --nnodes=2 --nproc_per_node 4 --max-restarts 3 --tee 3 plain.py --nnodes 7 -m")
    assert isinstance(request, LaunchRequest), request
    assert (request.nodes, request.ranks_per_node, request.script_args) == (2, 4, ("--nnodes", "7", "-m"))
    assert [note.partition(" ")[0] for note in asked.notes] == ["--max-restarts", "--tee"]
    request = asked("torchrun --standalone --rdzv-backend c10d --node-rank 0 -m package.train a")
    assert isinstance(request, LaunchRequest), request
    assert (request.module, request.script, request.script_args) == (
        "package.train",
        "package/train.py",
        ("a",),
    )
    assert not asked.notes
    request = asked("torchrun --requirements r.txt --output *.pt plain.py --project")
    assert isinstance(request, LaunchRequest), request
    assert (request.requirements, request.outputs, request.project) == ("r.txt", ("*.pt",), False)
    assert request.torchrun, "it may be one process"
    assert not asked("torchrun --nnodes 1:4 plain.py").torchrun
    assert not asked("torchrun --nproc-per-node 2 plain.py").torchrun
    assert asked("run --torchrun plain.py").to_argv()[-2:] == ["--torchrun", "--"]
    assert "and a function of it is called" in asked("run --torchrun one.py --epochs 1")
    request = asked("torchrun --nnodes 1:4 plain.py")
    assert isinstance(request, LaunchRequest) and request.nodes == "1:4"
    for line, says in (
        ("--nnodes 4:1 plain.py", "a whole number from 1 to 1024, or a range"),
        ("--nnodes x plain.py", "a whole number from 1 to 1024, or a range"),
        ("--nproc-per-node 65 plain.py", "no number from 1 to 64"),
        ("--nproc-per-node cpu --hosts a plain.py", "on this machine also cpu"),
        ("--node_rank 1 plain.py", "one command starts all nodes"),
        ("--no-python ls", "ranks run Python scripts alone"),
        ("-m package.nothing", "neither package/nothing.py nor"),
        ("--nprocs 2 plain.py", "No such option"),
    ):
        assert says in asked(f"torchrun {line}"), line


def test_every_option_of_the_torchrun_that_is_installed_is_known():
    import re
    from importlib.util import find_spec

    found = find_spec("torch")
    if found is None or found.origin is None:
        pytest.skip("torch is not installed")
    source = Path(found.origin).with_name("distributed").joinpath("run.py").read_text()
    # --local-rank is what another launcher gave to scripts; the text tells of it.
    theirs = set(re.findall(r'"(--[a-z-]+)"', source.partition("def parse_args")[0])) - {"--local-rank"}
    ours = {name for each in COMMANDS["torchrun"].params for name in each.opts}
    assert theirs and theirs <= ours


def test_torchrun_says_as_run_does_what_machines_may_cost(asked):
    words = "--max-hourly 3 --budget 25 --allocation spot --selection first --wait-for-capacity 2h"
    by_run, by_torchrun = (
        asked(f"{command} --provider aws --set region=us-east-1 {words} plain.py") for command in ("run", "torchrun")
    )
    for name in ("max_hourly_cost", "budget", "allocation", "selection", "wait_for_capacity"):
        assert getattr(by_torchrun, name) == getattr(by_run, name) is not None, name


def test_a_dry_run_of_commands_is_refused_as_it_would_run_the_script(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text("import skyward as sky\nopen('mark', 'w')\n\n\n@sky.app\ndef train() -> None: ...\n")
    done = CliRunner().invoke(cli, ["run", str(script), "--dry-run"])
    assert done.exit_code == 2
    assert f"`python -m skyward_core --dry-run {script}` runs it, and rents nothing" in done.output
    assert not Path("mark").exists()
