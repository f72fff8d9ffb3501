"""What a script imports, and its ranks will not find, is said before anything is made, with what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from skyward_core.client.launch.launch_plan import make_plan
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_tui.launch_form.plan_text import missing_packages_text, plan_rows

HERE = f"is not installed for {sys.executable}: "


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)  # as README has it
    Path("beside.py").touch()
    Path("train.py").write_text("import os, beside, click\ndef f():\n    from no_such_thing.x import y\n")
    return tmp_path


def said(*, as_options: bool = True, **asked: Any) -> str:
    return missing_packages_text(
        make_plan(LaunchRequest(script="train.py", script_args=(), **asked)), as_options=as_options
    )


def test_files_of_the_project_that_nobody_named_are(folder: Path) -> None:
    assert said().startswith(f"no_such_thing {HERE}name it in the script's inline metadata")
    Path("requirements.txt").write_text("click\n")
    Path("uv.lock").touch()
    wanted = "--lock uv.lock or --requirements requirements.txt installs what the project asks for"
    assert said() == f"no_such_thing {HERE}{wanted}"
    in_form = f"no_such_thing {HERE}choose uv.lock or requirements.txt under packages"
    assert said(as_options=False) == in_form
    plan = make_plan(LaunchRequest(script="train.py", script_args=()))
    assert ("note", in_form) in plan_rows(plan)
    assert said(requirements="requirements.txt") == ""


def test_of_a_function_only_what_it_is_loaded_with_counts(folder: Path) -> None:
    text = "import skyward_core as sky\n@sky.function\ndef f():\n    import no_such_thing\n"
    Path("train.py").write_text(text)
    Path("requirements.txt").write_text("click\n")
    assert missing_packages_text(make_plan(LaunchRequest(script="train.py"))) == ""
    Path("train.py").write_text(f"import no_such_thing\n{text}")
    assert "choose requirements.txt" in missing_packages_text(make_plan(LaunchRequest(script="train.py")))
