"""The older name in an environment of a person's: written, found, and taken away; nothing else is touched."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from skyward_core.client import skyward_alias
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
    shim = skyward_alias.install(python)
    assert shim.changed and shim.path.read_text().startswith(skyward_alias.MARK)
    assert not skyward_alias.install(python).changed
    said = subprocess.run([python, str(script)], capture_output=True, text=True, check=True).stdout
    assert said == "True skyward_core.model.function A100\n"
    assert skyward_alias.remove(python).changed and not shim.path.exists()
    assert not skyward_alias.remove(python).changed
    assert list(shim.path.parent.glob(".skyward-*")) == []


def test_nothing_of_others_is_written_over_or_removed(environment: Path) -> None:
    python = python_of(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    other = site / "skyward.py"
    other.write_text("# somebody else's\n")
    try:
        with pytest.raises(UsageError, match=r"has another package skyward, at .*uninstall it first"):
            skyward_alias.install(python)
        with pytest.raises(UsageError, match="was not written by this program"):
            skyward_alias.remove(python)
    finally:
        other.unlink()


def test_the_real_one_comes_later(environment: Path) -> None:
    """A package's folder is found before a module of its name: scripts get that."""
    python = python_of(environment)
    shim = skyward_alias.install(python)
    real = shim.path.with_suffix("")
    real.mkdir()
    (real / "__init__.py").write_text("")
    try:
        with pytest.raises(UsageError, match=r"another package skyward, at .*/skyward/__init__.py, which scripts get"):
            skyward_alias.install(python)
        assert skyward_alias.remove(python).changed and not shim.path.exists() and real.exists()
    finally:
        shutil.rmtree(real)
        skyward_alias.remove(python)


def test_the_real_one_in_the_persons_own_packages(environment: Path, tmp_path: Path) -> None:
    """Which come before an environment's that has them, too, as that of a Python which nobody made for a project."""
    python = python_of(environment)
    seen = environment / "pyvenv.cfg"
    before = seen.read_text()
    seen.write_text(before.replace("include-system-site-packages = false", "include-system-site-packages = true"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONUSERBASE", str(tmp_path))
        own = Path(subprocess.run([python, "-m", "site", "--user-site"], capture_output=True, text=True).stdout.strip())
        own.mkdir(parents=True)
        (own / "skyward.py").write_text("")
        try:
            assert own.is_relative_to(tmp_path)
            with pytest.raises(UsageError, match=r"has another package skyward, at .*which scripts get"):
                skyward_alias.install(python)
        finally:
            seen.write_text(before)


def test_what_was_killed_half_way_leaves_nothing(environment: Path) -> None:
    python = python_of(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    for name, text in (("none", ""), ("part", skyward_alias.MARK + "import")):
        (site / f"{skyward_alias._PREFIX}{name}").write_text(text)
    other = site / f"{skyward_alias._PREFIX}core.pth"
    other.write_text("# somebody else's\n")
    shim = skyward_alias.install(python)
    subprocess.run([python, "-c", "import skyward"], check=True, env={})
    assert [*site.glob(f"{skyward_alias._PREFIX}*")] == [other] and [*site.glob("__pycache__/skyward.*")]
    assert skyward_alias.remove(python).changed and not shim.path.exists()
    assert not [*site.glob("__pycache__/skyward.*")] and other.exists()


def test_what_cannot_be_is_refused_in_words(environment: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not say where its packages are: No such file or directory$"):
        skyward_alias.install(str(tmp_path / "nothing"))
    for text, why in {"echo no; exit 3": "it ended with status 3", "echo hello": "it answers something else",
                      "echo oh >&2; exit 1": "it ended with status 1: oh"}.items():  # fmt: skip
        (other := tmp_path / "other").write_text(f"#!/bin/sh\n{text}\n")
        other.chmod(0o755)
        with pytest.raises(UsageError, match=rf"does not say where its packages are: {why}"):
            skyward_alias.install(str(other))
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    with pytest.raises(UsageError, match=r"has no skyward_core, .*install this package there first"):
        skyward_alias.install(python_of(bare))
