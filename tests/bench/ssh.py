"""Benchmark of four lab hosts over SSH against Dask's SSHCluster on the same hosts: start, latency, rate, logs."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from . import work
from .fresh import BenchError, fresh
from .local import RANKS, dask_figures, our_figures
from .logs import flood_figures
from .metric import Bar, Metric
from .peers import dask_ssh

ROUNDS = 5
# Dask sends nothing of the folder that it is called in; we send this one, as small as a person's project.
PROJECT = Path(__file__).parent
LINES = 100_000  # of each rank


@dataclass(frozen=True, slots=True)
class Hosts:
    """Lab data that a client needs."""

    addresses: tuple[str, ...]
    user: str
    key: str
    known_hosts: str


def measure() -> list[Metric]:
    # Not in the measured interpreters: it imports asyncssh, which counts there.
    from tests.lab import Lab, missing

    if why := missing():
        raise BenchError(why)
    with Lab(RANKS) as lab:
        hosts = asdict(Hosts(tuple(h.address for h in lab.hosts), lab.user, str(lab.key), str(lab.known_hosts)))

        def on_clean_hosts(function: str, wiped: bool = False) -> Any:
            for host in lab.hosts:
                host.kill_all()
                if wiped:
                    host.wipe_home()
            return fresh(f"ssh:{function}", hosts)

        cold_ours, cold_theirs, again = [], [], []
        for _ in range(ROUNDS):
            cold_theirs.append(on_clean_hosts("cold_dask"))
            cold_ours.append(on_clean_hosts("cold_ours", wiped=True))
            again.append(on_clean_hosts("cold_ours"))  # the bundle is there now
        theirs = on_clean_hosts("warm_dask")
        ours = on_clean_hosts("warm_ours")
        logs = on_clean_hosts("logs_ours")

    bars = {
        "broadcast_p50_ms": Bar(at_most=2, ratio_at_most=1),
        "single_p50_ms": Bar(at_most=1),
        "gather_per_s": Bar(ratio_at_least=2),
        "argument_100mb_s": Bar(ratio_at_most=0.5),
        "argument_100mb_run_s": Bar(),
        "argument_100mb_unhashed_s": Bar(),
        "result_4x25mb_s": Bar(ratio_at_most=1),
        "agent_mb": Bar(at_most=25),
    }
    first = median(cold_theirs)
    return [
        Metric("first_broadcast_s", median(cold_ours), first, Bar(ratio_at_most=1 / 5)),
        Metric("second_start_s", median(again), first, Bar(at_most=0.7)),
        *(Metric(name, ours[name], theirs[name], bar) for name, bar in bars.items()),
        Metric("log_lines_per_s", logs["lines_per_s"], None, Bar(at_least=50_000)),
        Metric("ranks_with_loss", logs["ranks_with_loss"], None, Bar(at_most=0)),
    ]


def cold_dask(hosts: dict[str, Any]) -> float:
    began = perf_counter()
    with dask_ssh(**hosts) as client:
        results = client.run(work.noop())
        taken = perf_counter() - began
    if len(results) != RANKS:
        raise BenchError(f"{len(results)} results from {RANKS} workers")
    return taken


def warm_dask(hosts: dict[str, Any]) -> dict[str, float]:
    with dask_ssh(**hosts) as client:
        return dask_figures(client)


def cold_ours(hosts: dict[str, Any]) -> float:
    began = perf_counter()
    import skyward_core as sky

    with _compute(sky, hosts) as compute:
        results = sky.function(work.noop())() @ compute
        taken = perf_counter() - began
    if len(results) != RANKS:
        raise BenchError(f"{len(results)} results from {RANKS} ranks")
    return taken


def warm_ours(hosts: dict[str, Any]) -> dict[str, float]:
    import skyward_core as sky

    with _compute(sky, hosts) as compute:
        return our_figures(sky, compute)


def logs_ours(hosts: dict[str, Any]) -> dict[str, float]:
    import skyward_core as sky
    from skyward_core.client.session import Session

    session = Session()
    spec = sky.PoolSpec(
        name="bench-ssh-logs", provider=provider(sky, hosts), nodes=RANKS, options=sky.Options(console=False)
    )
    pool = session.create(spec).result(120)
    try:
        return flood_figures(session, pool, RANKS, LINES)
    finally:
        session.tear_down(pool.name).result(120)
        session.detach()


def _compute(sky: Any, hosts: dict[str, Any]) -> Any:
    return sky.Compute(
        provider=provider(sky, hosts),
        nodes=RANKS,
        image=sky.Image(workdir=str(PROJECT)),
        options=sky.Options(console=False),
    )


def provider(sky: Any, hosts: dict[str, Any]) -> Any:
    return sky.SSH(
        hosts=hosts["addresses"],
        user=hosts["user"],
        keys=[hosts["key"]],
        known_hosts=hosts["known_hosts"],
        python=sys.executable,
        config=False,
    )
