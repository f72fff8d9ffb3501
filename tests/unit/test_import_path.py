"""What ranks are told of where modules come from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from skyward_core.tasks import client_interpreter

LIBRARY = str(Path(os.__file__).parent)


@pytest.fixture(autouse=True)
def no_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_interpreter, "_script_folders", [])


def test_what_is_before_the_standard_library_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/mine", LIBRARY, "/site"])
    assert client_interpreter.import_path_entries() == (["", "/mine"], [LIBRARY, "/site"])


def test_without_a_standard_library_all_of_it_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/mine", "/site"])
    assert client_interpreter.import_path_entries() == ([], ["/mine", "/site"])


def test_the_latest_script_comes_first_and_our_own_path_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", ["/mine", LIBRARY])
    for folder in ("a", "b", "a"):
        client_interpreter.add_script_folder(tmp_path / folder / "script.py")
    assert client_interpreter.import_path_entries() == (
        [str(tmp_path / "a"), str(tmp_path / "b"), "/mine"],
        [LIBRARY],
    )
    assert sys.path == ["/mine", LIBRARY]


def test_the_folder_of_the_command_that_loads_scripts_is_none_of_theirs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "bin"), "/of-pythonpath", LIBRARY])
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "skyward-tui")])
    assert client_interpreter.import_path_entries() == ([str(tmp_path / "bin"), "/of-pythonpath"], [LIBRARY])
    client_interpreter.add_script_folder(tmp_path / "script.py")
    assert client_interpreter.import_path_entries() == ([str(tmp_path), "/of-pythonpath"], [LIBRARY])
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "own.py")])  # a program that has its modules there
    assert client_interpreter.import_path_entries()[0] == [
        str(tmp_path),
        str(tmp_path / "bin"),
        "/of-pythonpath",
    ]
