"""Benchmarks of machine metrics: CPU time of the sampler on a node, and of the client for metrics of 256 GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .fresh import BenchError
from .metric import Bar, Metric

ROOT = Path(__file__).parents[2]
SECONDS = 10.0
SETTLED = 2.0  # seconds in which it has started
NODES, GPUS = 32, 8
ROUNDS = 200
RUN = "import sys; from skyward_core.node.machine_metrics_sampler import main; main(*sys.argv[1:])"


def measure() -> list[Metric]:
    share, size = _sampler()
    update, look = _client()
    return [
        Metric("sampler_core_percent", share, None, Bar(at_most=0.5)),
        Metric("sampler_bytes_per_s", size),
        Metric("update_of_256_gpus_ms", update, None, Bar(at_most=5)),
        Metric("outliers_of_256_gpus_ms", look, None, Bar(at_most=5)),
    ]


def _sampler() -> tuple[float, float]:
    """Return the sampler's CPU percentage over ten seconds, and its bytes per second."""
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-c", RUN, f"{folder}/samples", folder, "1.0"],
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        try:
            time.sleep(SETTLED)
            before, size = _taken(child.pid), _size(folder)
            time.sleep(SECONDS)
            share = 100 * (_taken(child.pid) - before) / SECONDS
            return share, (_size(folder) - size) / SECONDS
        finally:
            child.communicate()


def _taken(pid: int) -> float:
    """Return the CPU seconds of a process by the scheduler's clock, because clock ticks are too coarse."""
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except OSError as error:
        raise BenchError(f"the sampler cannot be looked at: {error}") from error
    return total / 1e9


def _size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder, "samples").iterdir())


def _client() -> tuple[float, float]:
    """Return the CPU milliseconds to store a sample of each of 32 nodes, and to find the outliers."""
    from skyward_core.model.metric_definitions_series_and_export import GPU_METRIC_DEFINITIONS, NODE_METRIC_DEFINITIONS
    from skyward_core.views.machine_metrics import MachineMetrics
    from skyward_tui.text.hardware_and_offer_cells import outlier_metrics

    node = {name: 1.5 * number for number, name in enumerate(NODE_METRIC_DEFINITIONS)}
    gpu = {name: 2.5 * number for number, name in enumerate(GPU_METRIC_DEFINITIONS)}
    book = MachineMetrics()
    lines = [
        [json.dumps({"at": float(at), "node": node, "gpus": [gpu] * GPUS}).encode() + b"\n" for at in range(ROUNDS)]
        for _ in range(NODES)
    ]
    began = time.process_time()
    for at in range(ROUNDS):
        for number in range(NODES):
            book.feed(number, lines[number][at])
    update = 1000 * (time.process_time() - began) / ROUNDS
    began = time.process_time()
    for _ in range(20):
        outlier_metrics(book)
    return update, 1000 * (time.process_time() - began) / 20
