"""``skyward-tui run`` calls the person by their own command when the run ends, and by nothing that a project says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli

TOLD = 'echo "$SKYWARD_POOL|$SKYWARD_OUTCOME|$SKYWARD_MESSAGE" >> told'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """One with a pool named "dev", for tests that leave it as it is."""
    cli = Cli(tmp_path_factory.mktemp("called"))
    cli("run", "endings.py:fine", "--nodes", 2, "--pool", "dev", "--keep")
    yield cli
    cli("down", "dev")


def notify(cli: Cli, **settings: str) -> Path:
    """Have the settings; what is told."""
    table = "\n".join(f"{name} = {value}" for name, value in settings.items())
    cli.write("home/skyward.toml", f"[notify]\n{table}\n")
    (told := cli.folder / "home" / "told").unlink(missing_ok=True)
    return told


def test_the_command_of_the_person_is_told_how_a_run_ended(shared: Cli) -> None:
    told = notify(shared, after="0", command=f"""'''sh -c "{TOLD.replace('"', chr(92) + '"')}"'''""")
    shared("run", "endings.py:fine", "--pool", "dev")
    shared("run", "endings.py:ends", "-a", "how=raise", "--pool", "dev", status=None)
    done, failed = told.read_text().splitlines()
    assert done.startswith("dev|done|fine (") and done.endswith(": 2/2 returned")
    assert failed.startswith("dev|failed|ends (") and "rank 1 raised: KeyError: 'lost it'" in failed


@pytest.mark.proof("1 s of a processor")
def test_nobody_is_called_for_what_is_over_at_once_or_goes_on_without_us(shared: Cli) -> None:
    command = f"""'''sh -c "{TOLD.replace('"', chr(92) + '"')}"'''"""
    told = notify(shared, after="600", command=command)
    shared("run", "endings.py:fine", "--pool", "dev")
    told = notify(shared, after="0", command=command)
    shared("run", "endings.py:fine", "--pool", "dev", "--detach")
    assert not told.exists()


def test_a_command_that_fails_is_said_and_changes_no_exit_status(shared: Cli) -> None:
    notify(shared, after="0", command="\"sh -c 'exit 3'\"")
    said = shared("run", "endings.py:fine", "--pool", "dev").stderr
    assert said.count("the command of [notify], sh, does not work: it ended with status 3") == 1


def test_a_folder_s_settings_run_nothing(shared: Cli) -> None:
    notify(shared)
    project = shared.write("skyward.toml", '[notify]\nafter = 0\ncommand = "touch gotcha"\n')
    try:
        said = shared("run", "endings.py:fine", "--pool", "dev").stderr
    finally:
        project.unlink()
    assert f"[notify] of {project} is not used: that is taken from " in said
    assert not list(shared.folder.rglob("gotcha"))
