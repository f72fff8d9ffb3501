"""What a script defines and pickle knows by its name alone: it is not there on a node, so it travels by value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import functools, typing
import skyward_core as sky

UserId = typing.NewType("UserId", int)

@functools.lru_cache(maxsize=7)
def fib(n):
    "Of Fibonacci."
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@sky.function
def f(n: int = 10):
    return fib(n), fib.cache_parameters()["maxsize"], fib.__doc__, UserId(3), fib.cache_info().hits > 0

if __name__ == "__main__":
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        print(f() @ compute)
"""


def test_cached_functions_and_new_types_of_a_script(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "cached.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90)
    assert done.stdout == "[(55, 7, 'Of Fibonacci.', 3, True)]\n", done.stderr


@pytest.mark.proof("1 s of a processor")
def test_the_same_from_the_command_line(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "cached.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "skyward_tui", "run", f"{script}:f", "--nodes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[55, 7, 'Of Fibonacci.', 3, True]" in done.stdout


# Nothing of ours can know that this object goes by its name.
NESTED = """
import skyward_core as sky

class Named:
    def __reduce__(self):
        return "named"

named = Named()

@sky.function
def f():
    return type(named).__name__

with sky.Compute(nodes=1) as compute:
    print(f() @ compute)
"""


def test_a_rank_that_imports_a_script_makes_no_pool(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "nested.py"
    script.write_text(NESTED)
    command = [sys.executable, "-m", "skyward_tui", "run", f"{script}:f", "--nodes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert "makes a pool when it is imported" in done.stdout + done.stderr
    assert done.returncode == 1
    assert len(list((home / "pools").iterdir())) == 1
