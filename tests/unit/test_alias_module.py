"""The older name in an environment of a person's: written, found, and taken away; nothing else is touched."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from skyward_core.front import alias_module
from skyward_core.model.errors import UsageError

SCRIPT = """
import skyward as sky, skyward_core
from skyward.accelerators import A100
import skyward.plugins
print(sky is skyward_core, sky.function.__module__, A100().name)
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which this library is found, and what it needs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "these.pth").write_text("\n".join([str(ROOT), *ours]) + "\n")
    return folder


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def test_a_plain_script_finds_it_until_it_is_removed(environment: Path, tmp_path: Path) -> None:
    python, script = python_of(environment), tmp_path / "script.py"
    script.write_text(SCRIPT)
    shim = alias_module.install(python)
    assert shim.changed and shim.path.read_text().startswith(alias_module.MARK)
    assert not alias_module.install(python).changed
    said = subprocess.run([python, str(script)], capture_output=True, text=True, check=True).stdout
    assert said == "True skyward_core.model.function A100\n"
    assert alias_module.remove(python).changed and not shim.path.exists()
    assert not alias_module.remove(python).changed
    assert list(shim.path.parent.glob(".skyward-*")) == []


def test_nothing_of_others_is_written_over_or_removed(environment: Path) -> None:
    python = python_of(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    other = site / "skyward.py"
    other.write_text("# somebody else's\n")
    try:
        with pytest.raises(UsageError, match=r"has another package skyward, at .*uninstall it first"):
            alias_module.install(python)
        with pytest.raises(UsageError, match="was not written by this program"):
            alias_module.remove(python)
    finally:
        other.unlink()


def test_what_cannot_be_is_refused_in_words(environment: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not say where its packages are"):
        alias_module.install(str(tmp_path / "nothing"))
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    with pytest.raises(UsageError, match=r"has no skyward_core, .*install this package there first"):
        alias_module.install(python_of(bare))
