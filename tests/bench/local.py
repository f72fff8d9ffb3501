"""Benchmark of four local ranks against Dask's LocalCluster of four processes: start, latency, rate, memory."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

from . import work
from .fresh import fresh, in_turn
from .metric import Bar, Metric
from .peers import dask_local

RANKS = 4
TASKS = 2000


def measure() -> list[Metric]:
    cold_ours, cold_theirs = in_turn(3, "local:cold_ours", "local:cold_dask")
    theirs = fresh("local:warm_dask")
    ours = fresh("local:warm_ours")
    bars = {
        "broadcast_p50_ms": Bar(at_most=2), "single_p50_ms": Bar(at_most=1), "gather_per_s": Bar(at_least=2000),
        "argument_100mb_s": Bar(at_most=0.5), "argument_100mb_run_s": Bar(), "argument_100mb_unhashed_s": Bar(),
        "result_4x25mb_s": Bar(), "agent_mb": Bar(at_most=25),
    }  # fmt: skip
    cold = Metric("first_broadcast_s", cold_ours, cold_theirs, Bar(at_most=1.0, ratio_at_most=1 / 3))
    return [cold, *(Metric(name, ours[name], theirs[name], bar) for name, bar in bars.items())]


def cold_dask() -> float:
    began = perf_counter()
    with dask_local(RANKS) as client:
        results = client.run(work.noop())
        taken = perf_counter() - began
    _expect(len(results) == RANKS, results)
    return taken


def warm_dask() -> dict[str, float]:
    with dask_local(RANKS) as client:
        return dask_figures(client)


def dask_figures(client: Any) -> dict[str, float]:
    """Return Dask's figures on a running cluster. docs/explain/benchmarks.md names the Dask method of each figure."""
    noop, identity, size, produce = work.noop(), work.identity(), work.size(), work.produce()
    addresses = list(client.scheduler_info(n_workers=-1)["workers"])
    _expect(len(addresses) == RANKS, addresses)

    def gather() -> None:
        futures = client.map(identity, range(TASKS), pure=False)
        _expect(client.gather(futures) == list(range(TASKS)), "a gather in order")

    def scattered(data: bytes, **how: bool) -> float:
        began = perf_counter()
        held = client.scatter(data, broadcast=True, **how)
        tasks = [client.submit(size, held, workers=[a], pure=False) for a in addresses]
        _expect(set(client.gather(tasks)) == {len(data)}, "the argument's size")
        return perf_counter() - began

    def submitted(data: bytes) -> float:
        began = perf_counter()
        tasks = [client.submit(size, data, workers=[a], pure=False) for a in addresses]
        _expect(set(client.gather(tasks)) == {len(data)}, "the argument's size")
        return perf_counter() - began

    def run(data: bytes) -> float:
        began = perf_counter()
        sizes = client.run(size, data)
        taken = perf_counter() - began
        _expect(set(sizes.values()) == {len(data)}, sizes)
        return taken

    as_task, as_run, unhashed = [], [], []
    figures = {
        "agent_mb": max(client.run(work.resident_mb(parent=False)).values()),  # idle: what a worker costs
        "broadcast_p50_ms": work.p50_ms(lambda: client.run(noop)),
        "single_p50_ms": work.p50_ms(lambda: client.submit(noop, pure=False).result(), rounds=100),
        "gather_per_s": TASKS / work.best_s(gather),
        "result_4x25mb_s": work.best_s(lambda: client.run(produce, 25 * work.MB)),
    }
    for _ in range(3):
        data = os.urandom(100 * work.MB)
        as_task += [submitted(data), scattered(data)]
        as_run.append(run(data))
        unhashed.append(scattered(data, hash=False))
    figures["argument_100mb_s"] = min(as_task)
    figures["argument_100mb_run_s"] = min(as_run)
    figures["argument_100mb_unhashed_s"] = min(unhashed)
    return figures


def cold_ours() -> float:
    began = perf_counter()
    import skyward_core as sky

    with _pool(sky) as compute:
        results = sky.function(work.noop())() @ compute
        taken = perf_counter() - began
    _expect(len(results) == RANKS, results)
    return taken


def warm_ours() -> dict[str, float]:
    import skyward_core as sky

    with _pool(sky) as compute:
        return our_figures(sky, compute)


def our_figures(sky: Any, compute: Any) -> dict[str, float]:
    """Return our figures on a running pool of four ranks."""
    noop, identity = sky.function(work.noop()), sky.function(work.identity())
    size, produce = sky.function(work.size()), sky.function(work.produce())
    resident = sky.function(work.resident_mb(parent=True))

    def gather() -> None:
        results = sky.gather(*[identity(i) for i in range(TASKS)]) >> compute
        _expect(list(results) == list(range(TASKS)), "a gather in order")

    def to_all() -> None:
        data = os.urandom(100 * work.MB)
        began = perf_counter()
        sizes = size(data) @ compute
        times.append(perf_counter() - began)
        _expect(sizes == [len(data)] * RANKS, sizes)

    times: list[float] = []
    agent_mb = max(resident() @ compute)
    figures = {
        "broadcast_p50_ms": work.p50_ms(lambda: noop() @ compute),
        "single_p50_ms": work.p50_ms(lambda: noop() >> compute),
        "gather_per_s": TASKS / work.best_s(gather),
        "result_4x25mb_s": work.best_s(lambda: produce(25 * work.MB) @ compute),
    }
    for _ in range(3):
        to_all()
    ways = ("argument_100mb_s", "argument_100mb_run_s", "argument_100mb_unhashed_s")  # of Dask's; we have one
    figures |= dict.fromkeys(ways, min(times))
    # Before and after the work: what it holds on to counts.
    figures["agent_mb"] = max(agent_mb, *(resident() @ compute))
    return figures


def _pool(sky: Any) -> Any:
    return sky.Compute(provider=sky.Local(), nodes=RANKS, options=sky.Options(console=False))


def _expect(holds: bool, found: object) -> None:
    if not holds:
        raise RuntimeError(f"the measured work went wrong: {found!r}")
