"""The stand-in for pytest in ranks that load a module of tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "support" / "in_ranks"

MODULE = """
import sys
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(True, reason="none")]

@pytest.fixture
def plain(): return "plain"

@pytest.fixture(scope="module", autouse=True)
def wider(): return "wider"

@pytest.mark.parametrize("n", [pytest.param(1, id="one"), 2])
@pytest.mark.slow
def doubled(n): return 2 * n

print(plain(), wider(), doubled(2), "_pytest" in sys.modules, hasattr(pytest, "__path__"))
with pytest.raises(KeyError):
    raise KeyError
print("_pytest" in sys.modules, __import__("pytest") is not pytest, hasattr(__import__("pytest"), "__path__"))
"""


def test_functions_are_as_they_are_and_all_else_is_the_real_one_s() -> None:
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n{MODULE}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout.splitlines() == ["plain wider 4 False False", "True True True"], said.stderr
