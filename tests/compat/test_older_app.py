"""``sky.app``: scripts of the newest generation whose functions are commands."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import skyward_core as sky
from skyward_core import providers
from skyward_core.__main__ import main
from skyward_core.api import older_api_names
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import make_plan
from skyward_core.tasks import script_loader_child
from skyward_core.tasks.script_functions import list_commands
from tests.support.cli import Cli
from tests.support.processes import run_command

ROOT = Path(__file__).parents[2]
# As its first example has it, but for what is asked of a GPU.
SCRIPT = """
import skyward as sky


@sky.app(
    provider=sky.RunPod(), accelerator=sky.accelerators.RTX_3090(), nodes=3, image=sky.Image(env={"STAGE": "there"})
)
def estimate(n: int = 1000, verbose: bool = False) -> dict:
    import os
    from pathlib import Path  # which JSON has no word for

    return {"n": n, "verbose": verbose, "rank": sky.instance_info().rank, "stage": Path(os.environ["STAGE"])}
"""


def test_app_command_runs_on_its_machines_or_those_of_the_options(tmp_path: Path) -> None:
    script = tmp_path / "pi.py"
    script.write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    # It is python -m skyward_core then, in the place of that process.
    command = [sys.executable, "-m", "skyward_tui", "run", str(script), "--provider", "local", "--nodes", "2"]
    done = run_command([*command, "--n=500", "--verbose", "--node", "all", "-f"], cwd=tmp_path, env=env)
    command = [sys.executable, "-m", "skyward_core", "--provider", "local", str(script)]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"n": 500, "verbose": True, "rank": rank, "stage": "there"} for rank in (0, 1)]
    wrong = run_command([*command, "--n", "many"], cwd=tmp_path, env=env)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: argument n of estimate must be int, got 'many'\n"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the arguments that a command line would pass to its command."""
    monkeypatch.setattr(older_api_names, "_commands", {})
    monkeypatch.setattr(older_api_names, "_called_commands", [])
    made = sky.app(provider=sky.RunPod(), nodes=2)

    @made
    def train(epochs: int, *, lr: float = 0.1, mode: Literal["fast", "slow"] = "fast", shuffle: bool = True) -> float:
        """Train it."""
        return epochs * lr

    @made
    def show_it(name="x", layers: list[int] | None = None, no_color: bool = False) -> str:  # type: ignore[no-untyped-def]
        return f"{name}{layers}{no_color}"

    assert train(2, lr=0.5) == 1.0 and not older_api_names.should_run_command(), "a script that calls it runs it itself"
    older_api_names._called_commands.clear()
    assert older_api_names.should_run_command()

    def given(line: str) -> Any:
        name, words = older_api_names._select_command(line.split())
        return name, *older_api_names._parse_command_arguments(name, older_api_names._commands[name][0], words)

    return given


def test_command_line_words_are_converted_by_the_signature(commands: Callable[..., Any]) -> None:
    assert commands("train --epochs 5 --lr=1e-3 --mode slow --no-shuffle") == (
        "train", {"epochs": 5, "lr": 1e-3, "mode": "slow", "shuffle": False}, False,
    )  # fmt: skip
    assert commands("train --shuffle false --epochs=1 --node all --foreground") == (
        "train", {"shuffle": False, "epochs": 1}, True,
    )  # fmt: skip
    assert commands("show-it --layers 1,2 --name a=b -f") == ("show_it", {"layers": [1, 2], "name": "a=b"}, False)
    assert commands("show-it --no-color") == ("show_it", {"no_color": True}, False), "its own name has it"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--epochs 5", "several commands. Name one of train, show_it"),
        ("train", "train requires --epochs"),
        ("train --epochs", "--epochs of train requires a value"),
        ("train --epochs 1.5", "argument epochs of train must be int, got '1.5'"),
        ("train --epochs 1 --mode other", "argument mode of train must be "),
        ("train --epoch 1", r"train has no argument '--epoch'. Its arguments: --epochs, --lr, --mode, --shuffle"),
        ("train 5", "train has no argument '5'"),
        ("train --epochs 1 --node 3", "--node '3' is not supported"),
    ],
)
def test_invalid_app_command_is_refused_before_machines_are_requested(
    commands: Callable[..., Any], line: str, why: str
) -> None:
    with pytest.raises(sky.UsageError, match=why):
        older_api_names.run_command(line.split())


def test_command_help_shows_the_signature(commands: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    older_api_names.run_command(["train", "--help"])
    assert capsys.readouterr().out.startswith("train(epochs: ")


def test_app_with_unsupported_provider_is_refused_like_compute(commands: Callable[..., Any]) -> None:
    with pytest.raises(sky.UsageError, match=r"sky\.RunPod: renting machines of RunPod"):
        older_api_names.run_command(["show_it"])
    with pytest.warns(FutureWarning, match="starts failed calls again"):
        sky.app(provider=sky.RunPod(), retry=lambda why, attempt: True)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import skyward as sky\n@sky.app(nodes=2)\ndef a(): ...\n@sky.function\ndef b(): ...", ["a"]),
        ("import skyward_core\nmine = skyward_core.app()\n@mine\ndef a(): ...\n@mine\ndef b(): ...", ["a", "b"]),
        ("from skyward import app as on\n@on()\n@other\nasync def a(): ...", ["a"]),
        ("import flask\napp = flask.app()\n@app\ndef a(): ...\n@flask.app()\ndef b(): ...", []),
        ("import skyward as sky\ndef outer():\n    @sky.app()\n    def a(): ...", []),
    ],
)
def test_app_commands_are_listed_without_running_the_script(tmp_path: Path, source: str, names: list[str]) -> None:
    (tmp_path / "s.py").write_text(source)
    assert [each.name for each in list_commands(tmp_path / "s.py")] == names


def test_run_options_for_an_app_command_are_applied_or_refused(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    script = cli.write("pi.py", SCRIPT)
    refused = cli("run", "pi.py", "--keep", "--pool", "x", "--n", "3", status=2).stderr
    assert "has commands of sky.app (estimate)" in refused and "Remove --pool, --keep;" in refused
    assert "Arguments of estimate" in cli("run", "pi.py", "--help").stdout
    with pytest.raises(sky.UsageError, match=r"estimate of .* is a command of sky\.app"):
        make_plan(LaunchRequest(script=str(script), script_args=()))


def test_dry_run_of_an_app_requests_no_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, [*getattr(sys, name)])
    for name, value in (("provider_override", None), ("nodes_override", None), ("override_settings", {})):
        monkeypatch.setattr(providers, name, value)
    monkeypatch.setenv(providers.OVERRIDE_VARIABLE, "")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(older_api_names, "_commands", {})
    monkeypatch.setattr(older_api_names, "_called_commands", [])
    monkeypatch.setattr(script_loader_child, "loading", False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    script = tmp_path / "pi.py"
    script.write_text(SCRIPT)
    words = ["--provider", "local", "--dry-run", str(script)]
    assert main(words) == 0
    assert capsys.readouterr().out == "nothing is rented\n"
    script.write_text(SCRIPT + "with sky.Compute() as pool: print('up')\n")
    assert main(words) == 2
    output = capsys.readouterr()
    assert "starts a pool itself" in output.err and output.out == ""
    script.write_text("print('runs')")
    assert main(words) == 2 and "has none" in capsys.readouterr().err
