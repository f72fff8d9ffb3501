"""Benchmark of stacks of local ranks: time until the stacks of 64 ranks are known, and until a hang is found."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
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


# Rank 2 stays away from what the others do together, and leaves word of when.
STRAYS = """
import time
from pathlib import Path
import skyward_core as sky

@sky.function
def strays(word: str) -> None:
    if sky.instance_info().rank == 2:
        Path(word).touch()
        stays_away()
    together()

def stays_away() -> None:
    while True:
        time.sleep(1)
"""
TOGETHER = {
    "torch": """
def together() -> None:
    import torch
    torch.distributed.all_reduce(torch.ones(1))
""",
    "jax": """
def together() -> None:
    import jax
    from jax.experimental import multihost_utils
    multihost_utils.process_allgather(jax.numpy.ones(1))
""",
}


def measure() -> list[Metric]:
    taken = fresh("stacks:taken")
    return [
        Metric("stacks_of_64_ranks_s", taken["median_s"], None, Bar(at_most=2)),
        Metric("slowest_s", taken["slowest_s"], None, Bar(at_most=4)),
        Metric("ranks_not_known", taken["ranks_not_known"], None, Bar(at_most=0)),
        Metric("stacks_told_apart", taken["groups"], None, Bar(at_least=4)),
        *(Metric(f"{name}_hang_found_s", fresh("stacks:hang_found", name), None, Bar(at_most=10)) for name in TOGETHER),
    ]


def taken() -> dict[str, float]:
    """Return the seconds to collect the stacks, by py-spy if it is installed, otherwise by the signal."""
    from skyward_core.client.session import Session
    from skyward_core.model.specs import PoolSpec, Worker
    from skyward_core.providers.local.provider import Local
    from skyward_core.views.stack_groups_and_profiles import group_stacks
    from tests.support.loaded_calls import build_task

    session = Session()
    worker = Worker(ranks_per_node=RANKS_PER_NODE)
    pool = session.create(PoolSpec(name=POOL, provider=Local(), nodes=NODES, worker=worker)).result(SECONDS)
    try:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "waits.py"
            script.write_text(WAITS)
            run = session.launch(pool.key, build_task(script, "waits", {})).result(SECONDS)
        ranks = NODES * RANKS_PER_NODE
        _until(
            lambda: sum(task.began_at is not None for task in run.tasks.values()) == ranks, "the ranks have not begun"
        )
        took = []
        for _ in range(TIMES):
            began = perf_counter()
            stacks = session.stacks(pool.key, run.id, signal=True).result(SECONDS)
            took.append(perf_counter() - began)
        return {
            "median_s": statistics.median(took),
            "slowest_s": max(took),
            "ranks_not_known": NODES * RANKS_PER_NODE - sum(bool(each.how) for each in stacks.ranks),
            "groups": len(group_stacks(stacks)),
        }
    finally:
        session.tear_down(pool.key).result(SECONDS)
        session.detach()


def hang_found(framework: str) -> float:
    """Return the seconds until the missing one of four ranks is found, and the collective of the others."""
    import skyward_core as sky
    from skyward_core.client.session import Session
    from skyward_core.model.specs import PoolSpec, Worker
    from skyward_core.providers.local.provider import Local
    from skyward_core.views.stack_groups_and_profiles import summarize_collectives
    from tests.support.loaded_calls import build_task

    session = Session()
    plugin = getattr(sky.plugins, framework)()
    spec = PoolSpec(name=POOL, provider=Local(), nodes=1, worker=Worker(ranks_per_node=4), plugins=(plugin,))
    pool = session.create(spec).result(SECONDS)
    try:
        with tempfile.TemporaryDirectory() as folder:
            script, word = Path(folder) / "strays.py", Path(folder) / "word"
            script.write_text(STRAYS + TOGETHER[framework])
            run = session.launch(pool.key, build_task(script, "strays", {"word": str(word)})).result(SECONDS)
            _until(word.exists, "no rank strayed")
            began = perf_counter()

            def is_told() -> bool:
                lines = summarize_collectives(session.stacks(pool.key, run.id, signal=True).result(SECONDS))
                return any(line.startswith("ranks 0-1,3 are in ") and "stays_away" in line for line in lines)

            _until(is_told, "the hang was not found")
            return perf_counter() - began
    finally:
        session.tear_down(pool.key).result(SECONDS)
        session.detach()


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    until = monotonic() + SECONDS
    while not holds():
        if monotonic() > until:
            raise BenchError(otherwise)
        sleep(0.05)
