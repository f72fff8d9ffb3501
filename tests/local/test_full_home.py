"""The disk that the home is on is full: a script that is to be launched is not what is blamed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.model.errors import UsageError
from skyward_core.tasks.run_script_loader import build_task
from tests.support.full_disk import fill

SCRIPT = "import skyward_core as sky\n\n@sky.function\ndef f() -> None: ...\n"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making a small disk needs root")


@pytest.fixture
def small_home(home: Path) -> Iterator[Path]:
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(home)], check=True)
    yield home
    subprocess.run(["umount", "-l", str(home)], check=True)


def test_the_disk_is_named_and_not_the_script(small_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert build_task(script, "f", {}).name == "f"
    empty = fill(small_home / "full")
    with pytest.raises(UsageError, match=rf"the disk of {small_home}/tasks is full"):
        build_task(script, "f", {})
    empty()
    assert build_task(script, "f", {}).name == "f"


def test_a_home_that_takes_no_folder_is_named(small_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (small_home / "tasks").write_text("somebody's file")
    with pytest.raises(UsageError, match=rf"no folder can be created in {small_home}/tasks: "):
        build_task(script, "f", {})
