"""Calls of functions in fresh interpreters, so that start-up time counts and no cache is warm."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class BenchError(RuntimeError):
    """A side of a measurement failed. The message contains its output."""


def fresh(function: str, *args: Any, timeout: float = 180.0) -> Any:
    """Call ``function`` (``"module:name"`` under ``tests.bench``) in a new interpreter.

    Args:
        args: JSON values.
        timeout: Seconds.

    Returns:
        The function's result, which must also be JSON.

    Raises:
        BenchError: If the function fails or takes too long. The message has the end of its standard error.
    """
    compile_ours()
    command = [sys.executable, "-m", "tests.bench.fresh", function, json.dumps(args)]
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"SKYWARD_HOME": home}  # a ledger of its own, not the person's
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{function} took longer than {timeout:g} s") from None
    if done.returncode:
        raise BenchError(f"{function} exited with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@cache
def compile_ours() -> None:
    """Compile the bytecode of this checkout and the peer's, as an installation would."""
    for package in ("skyward_core", "skyward_tui"):
        compileall.compile_dir(ROOT / package, quiet=1)


def in_turn(rounds: int, *functions: str) -> list[float]:
    """Return the median of each function's results. The functions are called alternately, so that a busy moment affects
    all of them.
    """
    results: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name in functions:
            results[name].append(fresh(name))
    return [median(results[name]) for name in functions]


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    result = getattr(import_module(f"tests.bench.{module}"), name)(*json.loads(sys.argv[2]))
    print(json.dumps(result))


def machine_cpu_s() -> float:
    """Return the CPU seconds of all processes of this machine."""
    user, nice, system, *_ = (int(field) for field in Path("/proc/stat").read_text().split()[1:5])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")
