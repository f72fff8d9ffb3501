"""Benchmarks of scaling: 64 and 256 local ranks, and 64 fresh hosts over SSH. The peer is Dask with 64 workers."""

from __future__ import annotations

import sys
from dataclasses import asdict
from time import perf_counter, process_time
from typing import Any

from . import work
from .fresh import BenchError, fresh, machine_cpu_s
from .metric import Bar, Metric
from .peers import dask_local
from .ssh import PROJECT, Hosts, provider

FEW, MANY = 64, 256
HOSTS = 64
ROUNDS, PEER_ROUNDS = 40, 3  # a broadcast of the peer takes 2 s
PEER_TIMEOUT = 90.0  # seconds; the peer's start takes 40 s on two cores


def measure() -> list[Metric]:
    # Not in the measured interpreters: it imports asyncssh, which counts there.
    from tests.lab import Lab, missing

    try:
        theirs = fresh("scale:dask_ranks", FEW, timeout=PEER_TIMEOUT)
    except BenchError as error:
        print(f"bench scale: no figures of the peer: {error}", file=sys.stderr)
        theirs = {}
    metrics: list[Metric] = []
    bars: dict[int, dict[str, Bar]] = {
        FEW: {},
        MANY: {
            "first_broadcast_s": Bar(at_most=8),
            "broadcast_p50_ms": Bar(at_most=100),
            "broadcast_client_cpu_ms_per_rank": Bar(at_most=0.07),
        },
    }
    for ranks, bar in bars.items():
        ours = fresh("scale:our_ranks", ranks)
        peer = theirs if ranks == FEW else {}
        metrics += [Metric(f"ranks_{ranks}_{name}", ours[name], peer.get(name), bar.get(name, Bar())) for name in ours]
    if reason := missing():
        raise BenchError(reason)
    with Lab(HOSTS) as lab:
        hosts = asdict(Hosts(tuple(h.address for h in lab.hosts), lab.user, str(lab.key), str(lab.known_hosts)))
        cold = fresh("scale:cold_hosts", hosts)
    metrics.append(Metric(f"hosts_{HOSTS}_first_broadcast_s", cold["first_broadcast_s"], None, Bar(at_most=5)))
    metrics.append(Metric(f"hosts_{HOSTS}_start_client_cpu_ms_per_host", cold["start_client_cpu_ms_per_host"]))
    return metrics


def our_ranks(ranks: int) -> dict[str, float]:
    """Return figures of a local pool: seconds, milliseconds, and CPU time of the client and the whole machine."""
    began, client = perf_counter(), process_time()
    import skyward_core as sky

    with sky.Compute(provider=sky.Local(), nodes=ranks, options=sky.Options(console=False)) as compute:
        noop = sky.function(work.noop())
        _expect(len(noop() @ compute), ranks)
        first, start = perf_counter() - began, process_time() - client
        return {
            "first_broadcast_s": first,
            "start_client_cpu_ms_per_rank": start * 1000 / ranks,
            **_broadcasts(lambda: noop() @ compute, ranks),
        }


def dask_ranks(ranks: int) -> dict[str, float]:
    """Return the same figures of a ``LocalCluster``, whose scheduler runs in the client's process."""
    began, client_cpu = perf_counter(), process_time()
    noop = work.noop()
    with dask_local(ranks) as client:
        client.wait_for_workers(ranks)
        _expect(len(client.run(noop)), ranks)
        first, start = perf_counter() - began, process_time() - client_cpu
        return {
            "first_broadcast_s": first,
            "start_client_cpu_ms_per_rank": start * 1000 / ranks,
            **_broadcasts(lambda: client.run(noop), ranks, PEER_ROUNDS),
        }


def cold_hosts(hosts: dict[str, Any]) -> dict[str, float]:
    """Return the time of the first broadcast to hosts without any of our files, and the client's CPU time."""
    began, client = perf_counter(), process_time()
    import skyward_core as sky

    count = len(hosts["addresses"])
    options, image = sky.Options(console=False), sky.Image(workdir=str(PROJECT))
    with sky.Compute(provider=provider(sky, hosts), nodes=count, options=options, image=image) as compute:
        _expect(len(sky.function(work.noop())() @ compute), count)
        return {
            "first_broadcast_s": perf_counter() - began,
            "start_client_cpu_ms_per_host": (process_time() - client) * 1000 / count,
        }


def _broadcasts(call: Any, ranks: int, rounds: int = ROUNDS) -> dict[str, float]:
    p50 = work.p50_ms(call, rounds=rounds, warm=rounds // 8)
    client, machine = process_time(), machine_cpu_s()
    for _ in range(rounds):
        call()
    each = 1000 / rounds / ranks
    return {
        "broadcast_p50_ms": p50,
        "broadcast_client_cpu_ms_per_rank": (process_time() - client) * each,
        "broadcast_machine_cpu_ms_per_rank": (machine_cpu_s() - machine) * each,
    }


def _expect(found: int, expected: int) -> None:
    if found != expected:
        raise BenchError(f"{found} results from {expected} ranks")
