"""Benchmark of ``skyward-tui exec`` on a running pool of four nodes: time until the command runs on all of them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .fresh import BenchError
from .metric import Bar, Metric

NODES, TIMES = 4, 9
POOL = "bench-jobs"
# A command tells when it begins, by the clock that everything on this machine has.
JOB = f"num_nodes: {NODES}\nworkdir: .\nrun: date +%s.%N >began.$SKYPILOT_NODE_RANK\n"


def measure() -> list[Metric]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(JOB)
        _program(folder, "launch", "job.yaml", "-c", POOL)
        try:
            command = "date +%s.%N >began.$SKYWARD_RANK"
            of_command = [_until_it_runs(folder, command) for _ in range(TIMES)]
            of_file = [_until_it_runs(folder, "job.yaml") for _ in range(TIMES)]
        finally:
            _program(folder, "down", POOL, "-y")
    return [
        Metric("exec_of_a_command_ms", statistics.median(of_command), None, Bar(at_most=300)),
        Metric("exec_of_a_file_ms", statistics.median(of_file), None, Bar(at_most=450)),
        Metric("slowest_ms", max(*of_command, *of_file)),
    ]


def _until_it_runs(folder: Path, what: str) -> float:
    """Return the milliseconds from the program's start until the last node has started the command."""
    began = time.time()
    _program(folder, "exec", POOL, what)
    return (max(float((folder / f"began.{rank}").read_text()) for rank in range(NODES)) - began) * 1e3


def _program(folder: Path, *words: str) -> None:
    # A home without ~/.bashrc, which a job's shell reads: how long that takes is its person's affair.
    env = {"SKYWARD_HOME": str(folder / "home"), "HOME": str(folder), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-m", "skyward_tui", *words],
        cwd=folder, env=os.environ | env,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"{' '.join(words)}: {done.stderr}")
