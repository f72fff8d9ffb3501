"""The stacks of 64 ranks of this machine: how long until all of them are known."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from time import monotonic, perf_counter, sleep

from .fresh import BenchError, fresh
from .metric import Bar, Metric

NODES, RANKS_PER_NODE = 8, 8
TIMES = 5
POOL = "bench-stacks"
SECONDS = 120.0

WAITS = """
import threading
import skyward_core as sky

@sky.function
def waits() -> None:
    level(sky.instance_info().rank % 4 + 10)

def level(depth: int) -> None:
    if depth:
        level(depth - 1)
    threading.Event().wait()
"""


def measure() -> list[Metric]:
    taken = fresh("stacks:taken")
    return [
        Metric("stacks_of_64_ranks_s", taken["median_s"], None, Bar(at_most=2)),
        Metric("slowest_s", taken["slowest_s"], None, Bar(at_most=4)),
        Metric("ranks_not_known", taken["ranks_not_known"], None, Bar(at_most=0)),
        Metric("stacks_told_apart", taken["groups"], None, Bar(at_least=4)),
    ]


def taken() -> dict[str, float]:
    """By py-spy where it is installed, else by the signal."""
    from skyward_core.front.session import Session
    from skyward_core.model.spec import PoolSpec, Worker
    from skyward_core.providers.local.provider import Local
    from skyward_core.tasks.scripts import build_task
    from skyward_core.views.stacks import groups

    session = Session()
    worker = Worker(ranks_per_node=RANKS_PER_NODE)
    pool = session.create(PoolSpec(name=POOL, provider=Local(), nodes=NODES, worker=worker)).result(SECONDS)
    try:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "waits.py"
            script.write_text(WAITS)
            run = session.launch(pool.key, build_task(script, "waits", {})).result(SECONDS)
        until = monotonic() + SECONDS
        while sum(task.began_at is not None for task in run.tasks.values()) < NODES * RANKS_PER_NODE:
            if monotonic() > until:
                raise BenchError("the ranks have not begun")
            sleep(0.05)
        took = []
        for _ in range(TIMES):
            began = perf_counter()
            told = session.stacks(pool.key, run.id, signal=True).result(SECONDS)
            took.append(perf_counter() - began)
        return {
            "median_s": statistics.median(took),
            "slowest_s": max(took),
            "ranks_not_known": NODES * RANKS_PER_NODE - sum(bool(each.how) for each in told.ranks),
            "groups": len(groups(told)),
        }
    finally:
        session.down(pool.key).result(SECONDS)
        session.detach()
