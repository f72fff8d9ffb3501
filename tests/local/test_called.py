"""What ``skyward-tui run`` says of a run: the command that notifies the person, and the summary of ``--watch``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.terminal import Terminal

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
    assert said.count("the command of [notify], sh, does not work: it exited with status 3") == 1


def test_a_folder_s_settings_run_nothing(shared: Cli) -> None:
    notify(shared)
    project = shared.write("skyward.toml", '[notify]\nafter = 0\ncommand = "touch gotcha"\n')
    try:
        said = shared("run", "endings.py:fine", "--pool", "dev").stderr
    finally:
        project.unlink()
    assert f"[notify] in {project} is ignored. Move it to " in said
    assert not list(shared.folder.rglob("gotcha"))


# `--watch` on a terminal, on a real pool: the summary is what stays.


SCRIPT = """
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
def test_a_block_while_it_runs_and_the_summary_afterwards(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    (tmp_path / "t.yaml").write_text("setup: echo set up\nrun: echo run >> told; sleep 1\n")
    until = tmp_path / "done"

    def terminal(*words: str) -> Terminal:
        return Terminal(tmp_path / "home", (110, 30), tmp_path, ("-m", "skyward_tui", *words))

    ran = terminal("run", "t.py", "-a", f"until={until}", "--nodes", "2", "--pool", "w", "--keep", "--watch")
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
    job = terminal("launch", "t.yaml", "-c", "w", "--watch", "--down")
    try:  # each of its steps has a block
        job.until(lambda text: "● setup (" in text or "● run (" in text)
        assert job.ended() == 0
        assert "is down: created 2" in job.text and "ended" not in job.text
    finally:
        job.close()
