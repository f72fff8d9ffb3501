"""The processes of a run that are forked do what started ones do: find each test, tell each failure, are replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFTEST = """
import pytest
from tests.support.forked_runs import fork_runs

def pytest_xdist_setupnodes(config):
    fork_runs(config)
"""
THREADED = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
TESTS = """
import os
from pathlib import Path
with open("imported", "a") as file:
    file.write(f"{os.getpid()}\\n")

def test_where():
    assert str(os.getpid()) not in Path("imported").read_text().split()

def test_fails():
    left, right = [1, 2], [1, 3]
    assert left == right

def test_dies():
    os._exit(3)

def test_after():
    print("said")
"""


def run(folder: Path, tests: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-v", "--junitxml=report.xml"],
        cwd=folder, env=env, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_each_test_is_run_in_processes_that_had_it_imported(tmp_path: Path) -> None:
    said = run(tmp_path, TESTS)
    assert "2 failed, 2 passed" in said, said
    assert "assert [1, 2] == [1, 3]" in said and "At index 1 diff: 2 != 3" in said, said
    assert "crashed while running 'test_it.py::test_dies'" in said, said
    assert "already imported" not in said, said
    assert len((tmp_path / "imported").read_text().split()) == 1
    assert (tmp_path / "report.xml").read_text().count("<testcase ") == 4


def test_where_an_import_begins_a_thread_they_are_started(tmp_path: Path) -> None:
    said = run(tmp_path, THREADED + "import os\ndef test_it():\n    assert len(os.listdir('/proc/self/task')) > 2\n")
    assert "1 passed" in said, said
