"""Untrusted project files, of which none runs before a launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.client.launch.launch_records_and_script_state import ScriptState
from skyward_core.transport.working_folder_upload import build_manifest
from tests.support.cli import Cli
from tests.support.hostile_project import JOB, SCRIPT, hostile_project


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def cli(tmp_path: Path, mark: Path) -> Cli:
    (tmp_path / "theirs").mkdir()
    cli = Cli(tmp_path / "theirs")
    cli.env["SKYWARD_HOME"] = str(tmp_path / "home")
    cli.env.pop("VIRTUAL_ENV", None)
    hostile_project(cli.folder, mark)
    return cli


@pytest.mark.proof("0.1 s of a processor", after=4)
@pytest.mark.parametrize(
    "words",
    [
        ("run", SCRIPT, "--dry-run"),
        ("run", f"{SCRIPT}:train", "--dry-run", "--python", "./evil.sh"),
        ("run", "block.py", "--dry-run", "--plugin", "torch"),
        ("run", SCRIPT, "--dry-run", "--requirements", "requirements.txt"),
        ("run", SCRIPT, "--dry-run", "--project", "--image-set", "setup=./evil.sh"),
        ("run", SCRIPT, "--dry-run", "--", "--whole"),
        ("run", "notebook.ipynb", "--dry-run"),
        ("launch", JOB, "--dry-run"),
        ("ls",),
        ("history",),
    ],
    ids=" ".join,
)
def test_project_files_are_not_run_before_a_launch(cli: Cli, mark: Path, words: tuple[str, ...]) -> None:
    assert "Traceback" not in cli(*words, status=None).stderr
    assert not mark.exists(), mark.read_text()


def test_dry_run_reads_the_interpreter_from_files_only(cli: Cli, mark: Path) -> None:
    assert (
        f"Python 3.11.7 at {cli.folder}/.venv/bin/python (.venv of project theirs)"
        in cli("run", SCRIPT, "--dry-run").stdout
    )
    output = cli("run", SCRIPT, "--dry-run", "--python", "./evil.sh").stdout
    assert f"Python ? at {cli.folder}/evil.sh (--python)" in output
    assert not mark.exists(), mark.read_text()


def test_git_runs_no_program_configured_by_a_project(cli: Cli, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git is called only at a launch, and even then runs no program of the repository's configuration."""
    monkeypatch.chdir(cli.folder)
    listed = {item.path for item in build_manifest(cli.folder).items}
    assert {SCRIPT, "block.py", "requirements.txt"} <= listed and "evil.sh" in listed
    assert ScriptState.capture(cli.folder / SCRIPT).changed
    assert not mark.exists(), mark.read_text()


def test_launch_runs_the_interpreter_it_names(cli: Cli, mark: Path) -> None:
    done = cli("run", SCRIPT, "--python", "./evil.sh", "--provider", "local", status=2)
    assert "it is not a usable Python" in done.stderr
    assert mark.read_text().startswith("evil.sh -I -S -c")
