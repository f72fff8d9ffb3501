"""Child processes of scripts that use the older name, with another provider for the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import run_command

ROOT = Path(__file__).parents[2]
# One pool of the script's own, as in many that have no guard; a child imports the script as it begins.
UNGUARDED = """
import multiprocessing
import skyward as sky

if __name__ != "__main__":
    with sky.Compute(provider=sky.AWS()):
        print("a pool in a child")
else:
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
"""


def run(tmp_path: Path, source: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(source)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return run_command(
        [sys.executable, "-m", "skyward_core", "--provider", "local", "--nodes", "2", str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "SKYWARD_HOME": str(tmp_path / "home")},
    )


def test_child_process_of_an_unguarded_script_creates_no_pool(tmp_path: Path) -> None:
    done = run(tmp_path, UNGUARDED)
    assert "a pool in a child" not in done.stdout
    assert "creates a pool on import, and a child process of it" in done.stderr


@pytest.mark.parametrize(
    "first", ["import multiprocessing.spawn", ""], ids=["spawn imported first", "spawn imported later"]
)
def test_real_package_of_the_older_name_precedes_the_alias(tmp_path: Path, first: str) -> None:
    """The alias folder is last in the children's sys.path, in any order of imports."""
    source = f"""
{first}
from skyward_core.tasks import import_path as script_children
script_children.install_alias()
import multiprocessing.spawn
path = multiprocessing.spawn.get_preparation_data("child")["sys_path"]
print(path.index(str(script_children.ALIAS_FOLDER)) == len(path) - 1)
"""
    assert output_of(source) == "True\n"


def test_child_processes_inherit_the_provider_overrides() -> None:
    expected = "h.provider_override, h.override_settings, h.nodes_override"
    child = f"from skyward_core import providers as h; print({expected})"
    source = f"""
import subprocess, sys
from skyward_core import providers as home
home.set_override("ssh", {{"hosts": "a b"}}, "2:8")
subprocess.run([sys.executable, "-c", {child!r}], check=True)
"""
    assert output_of(source) == "ssh {'hosts': 'a b'} 2:8\n"


def output_of(source: str) -> str:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return run_command([sys.executable, "-c", source], env=os.environ | {"PYTHONPATH": path}, check=True).stdout
