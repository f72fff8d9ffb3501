"""A script whose folder is sent nowhere, and what it imports of that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from skyward_core.client.launch.launch_plan import make_plan
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.model.errors import UsageError
from skyward_core.tasks.script_inspection import check_script_folder

SCRIPT = """import os.path, skyward_core as sky


@sky.function
def f():
    import helper
    from package.inner import x
    from . import nothing
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a person's home, beside a module and a package."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    (tmp_path / "helper.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return path


SAID = r"imports helper, package from beside itself, and other machines are not sent that folder \(.* holds your home"


def test_what_it_imports_from_there_is_named_before_anything_is_asked_for(script: Path) -> None:
    elsewhere = LaunchRequest(script="train.py", provider="ssh", settings={"hosts": "gpu1"})
    with pytest.raises(UsageError, match=SAID) as caught:
        make_plan(elsewhere)
    assert caught.value.field == "script"
    assert make_plan(LaunchRequest(script="train.py")), "here it finds them"


def test_a_pool_that_it_makes_by_itself_is_refused_alike(script: Path) -> None:
    script.write_text(SCRIPT + "with sky.Compute(provider=sky.SSH(['gpu1.invalid']), nodes=1): pass\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "imports helper, package from beside itself" in done.stderr


def test_one_that_needs_nothing_of_its_folder_or_has_one_of_its_own_goes(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").touch()
    (folder / "train.py").write_text(SCRIPT)
    check_script_folder(folder / "train.py")
    script.write_text("import os\n")
    check_script_folder(script)
