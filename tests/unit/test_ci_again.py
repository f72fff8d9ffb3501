"""Rerun of failed tests in CI: real runs of pytest on small suites."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

AGAIN = Path(__file__).parents[2] / ".ci" / "again.py"
MAX_KNOWN_FLAKY = 0  # lower it with the file, never raise it
FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("way", ["a/b::c"])
def test_flaky(way):
    here = Path("seen.{number}")
    if not here.exists():
        here.touch()
        raise ValueError("only at first")
"""
BROKEN = "def test_broken():\n    assert 1 == 2\n"


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize(
    "flaky, broken, status, summary",
    [
        (1, True, 1, "FAILED TWICE: test_broken.py::test_broken"),
        (0, False, 1, "without a failed test"),
        (2, False, 0, "2 tests failed, 2 of them passed alone"),
        (3, False, 1, "3 tests failed, 3 of them passed alone"),
    ],
)
def test_rerun_distinguishes_flaky_from_broken_tests(
    tmp_path: Path, flaky: int, broken: bool, status: int, summary: str
) -> None:
    for number in range(flaky):
        (tmp_path / f"test_{number}.py").write_text(FLAKY.format(number=number))
    if broken:
        (tmp_path / "test_broken.py").write_text(BROKEN)
    if not flaky and not broken:
        (tmp_path / "conftest.py").write_text("raise RuntimeError")
    first = python(tmp_path, "-m", "pytest", "-q", "--junitxml=report.xml")
    assert first.returncode != 0
    again = python(tmp_path, str(AGAIN), "report.xml", "flaky")
    assert (again.returncode, summary in again.stdout + again.stderr) == (status, True), again.stdout + again.stderr
    assert again.stdout.count("ValueError: only at first") == flaky
    assert again.stdout.count("1 passed") == flaky
    if flaky:
        assert (tmp_path / "flaky").read_text().count("FLAKY: ") == flaky


def test_list_of_known_flaky_tests_does_not_grow() -> None:
    known = AGAIN.with_name("flaky.txt").read_text("utf-8").split("\n")
    assert sum("::" in line for line in known) <= MAX_KNOWN_FLAKY


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Of all plugins that are installed, which take longer to load than these suites, the one whose option it gives.
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=90
    )
