"""Installer of the older package name in an environment: written, found and removed without harm to other files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from skyward_core.client import skyward_alias_installer
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
    """Environment that contains this library and its dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "these.pth").write_text("\n".join([str(ROOT), *ours]) + "\n")
    return folder


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def test_installed_skyward_alias_works_in_scripts_until_removed(environment: Path, tmp_path: Path) -> None:
    python, script = python_of(environment), tmp_path / "script.py"
    script.write_text(SCRIPT)
    shim = skyward_alias_installer.install(python)
    assert shim.changed and shim.path.read_text().startswith(skyward_alias_installer.MARK)
    assert not skyward_alias_installer.install(python).changed
    output = subprocess.run([python, str(script)], capture_output=True, text=True, check=True).stdout
    assert output == "True skyward_core.model.function A100\n"
    assert skyward_alias_installer.remove(python).changed and not shim.path.exists()
    assert not skyward_alias_installer.remove(python).changed


def test_skyward_alias_installer_keeps_files_of_other_packages(environment: Path) -> None:
    python = python_of(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    other = site / "skyward.py"
    other.write_text("# somebody else's\n")
    try:
        with pytest.raises(UsageError, match=r"has another package skyward, at .*Uninstall it first"):
            skyward_alias_installer.install(python)
        with pytest.raises(UsageError, match="was not written by this program"):
            skyward_alias_installer.remove(python)
    finally:
        other.unlink()


def test_later_installed_skyward_package_takes_precedence(environment: Path) -> None:
    """Python finds a package folder before a module of the same name."""
    python = python_of(environment)
    shim = skyward_alias_installer.install(python)
    real = shim.path.with_suffix("")
    real.mkdir()
    (real / "__init__.py").write_text("")
    try:
        with pytest.raises(UsageError, match=r"at .*/skyward/__init__.py, which takes precedence"):
            skyward_alias_installer.install(python)
        assert skyward_alias_installer.remove(python).changed and not shim.path.exists() and real.exists()
    finally:
        shutil.rmtree(real)
        skyward_alias_installer.remove(python)


def test_partial_skyward_alias_file_is_replaced_by_the_next_install(environment: Path) -> None:
    python = python_of(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "skyward.py.draft").write_text("imp")
    shim = skyward_alias_installer.install(python)
    subprocess.run([python, "-c", "import skyward"], check=True, env={})
    assert [*site.glob("skyward.py*")] == [shim.path] and [*site.glob("__pycache__/skyward.*")]
    assert skyward_alias_installer.remove(python).changed and not shim.path.exists()
    assert not [*site.glob("__pycache__/skyward.*")]


def test_unusable_python_is_rejected_by_the_alias_installer(environment: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Cannot find the packages of .*: No such file or directory$"):
        skyward_alias_installer.install(str(tmp_path / "nothing"))
    for text, why in {"echo no; exit 3": "it exited with status 3", "echo hello": "unexpected output",
                      "echo oh >&2; exit 1": "it exited with status 1: oh"}.items():  # fmt: skip
        (other := tmp_path / "other").write_text(f"#!/bin/sh\n{text}\n")
        other.chmod(0o755)
        with pytest.raises(UsageError, match=rf"Cannot find the packages of .*: {why}"):
            skyward_alias_installer.install(str(other))
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    with pytest.raises(UsageError, match=r"has no skyward_core, .*Install this package there first"):
        skyward_alias_installer.install(python_of(bare))
