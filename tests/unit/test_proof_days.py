"""Rotation of the proofs over seven days of CI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.proof_days import DAYS, NEEDS, is_due, packages

ROOT = Path(__file__).parents[2]
TODAY = 20_786


@pytest.mark.parametrize("file", [*NEEDS, "tests/local/test_slurm_of_another_kind.py"])
def test_each_proof_is_due_once_a_week(file: str) -> None:
    assert not is_due(f"{file}::test_it", None)
    for case in range(50):
        assert sum(is_due(f"{file}::test_it[{case}]", TODAY + day) for day in range(DAYS)) == 1


def test_a_file_and_its_packages_are_due_on_one_day() -> None:
    for file, (day, installer, names) in NEEDS.items():
        assert (ROOT / file).is_file()
        assert is_due(f"{file}::test_it", day) and set(names.split()) <= set(packages(day, installer))


def test_packages_are_printed_without_anything_installed() -> None:
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; "]
    command[-1] += "sys.argv = ['', '5', 'apt']; runpy.run_module('tests.support.proof_days', run_name='__main__')"
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "slurm-wlm\nmunge\n"
