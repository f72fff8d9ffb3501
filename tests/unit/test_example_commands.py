"""Packaged examples as the command line shows, copies and names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.model.errors import (
    ScriptError,
)
from skyward_tui.cli.commands.run import run
from skyward_tui.cli.console import Console
from skyward_tui.cli.main import cli
from skyward_tui.launch_form import form


def test_examples_are_listed_shown_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["examples"], standalone_mode=False) == 0
    listed = capfd.readouterr().out
    assert "ddp" in listed and "DistributedDataParallel" in listed
    source = form.example_path("hello").read_text()
    assert cli.main(["examples", "hello"], standalone_mode=False) == 0
    assert capfd.readouterr().out.strip() == source.strip()
    assert cli.main(["examples", "hello", "--copy"], standalone_mode=False) == 0
    assert Path("hello.py").read_text() == source
    Path("hello.py").write_text("mine")
    for words, why in ((["hello", "--copy"], "left as it is"), (["helo"], "did you mean 'hello'")):
        with pytest.raises(SystemExit) as caught:
            cli.main(["examples", *words], standalone_mode=False)
        assert caught.value.code == 2
        assert why in capfd.readouterr().err
    assert Path("hello.py").read_text() == "mine"


def test_an_example_has_a_name_for_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = form.FOLDER / "ddp.py"
    assert form.expand_example("example:ddp") == str(path)
    assert form.expand_example("example:ddp:train") == f"{path}:train"
    assert form.script_argument(str(path)) == "example:ddp"
    Path("example:ddp").write_text("")
    assert form.expand_example("example:ddp") == "example:ddp"
    with pytest.raises(ScriptError, match="no such script: hello\nthere is an example of that name: run example:hello"):
        run(LaunchRequest(script="hello"), Console())
    with pytest.raises(ScriptError, match=r"no such script: train\.py$"):
        run(LaunchRequest(script="train.py"), Console())
