"""What a pool's view has of numbers, as curves: what ranks logged, and what their machines were measured at."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from skyward_core.model.metric_series import GPU_METRIC_DEFINITIONS, NODE_METRIC_DEFINITIONS, Curve, Curves
from skyward_core.views.outliers import Trace

if TYPE_CHECKING:
    from skyward_core.views.machine_metrics import MachineMetrics
    from skyward_core.views.pool_view import PoolView, RunView
    from skyward_core.views.rank_metrics import MetricStore


def build_curves(pool: PoolView, run: RunView | None = None) -> Curves:
    """What a pool's view has: of one run what its ranks logged, and its machines in the time of that run; of none the
    machines only."""
    found = [] if run is None else list(_rank_curves(pool.metrics, run.id))
    notes: list[str] = []
    if pool.machines is not None:
        since, until = (0.0, None) if run is None else (run.opened_at, run.ended_at)
        found += _machine_curves(pool.machines, since, until)
        notes = [f"node {node}: {machine.why}" for node, machine in pool.machines.nodes.items() if machine.why]
    return Curves(found, notes)


def _rank_curves(metrics: MetricStore, run: str) -> Iterator[Curve]:
    for rank in metrics.ranks(run):
        for name in metrics.latest(run, rank):
            trace = metrics.trace(run, rank, name)
            yield Curve(name, rank=rank, at=trace.at, values=trace.values)


def _machine_curves(metrics: MachineMetrics, since: float, until: float | None) -> Iterator[Curve]:
    for node, gpu, track in metrics.tracks():
        devices = metrics.nodes[node].devices
        model = devices[gpu].model if gpu is not None and gpu < len(devices) else ""
        for name in track.names:
            at, values = _cut_trace(track.trace(name), since, until)
            known = (NODE_METRIC_DEFINITIONS if gpu is None else GPU_METRIC_DEFINITIONS).get(name)
            yield Curve(name, known.unit if known else "", None, node, gpu, model, at, values)


def _cut_trace(trace: Trace, since: float, until: float | None) -> Trace:
    start = bisect_left(trace.at, since)
    stop = len(trace.at) if until is None else bisect_right(trace.at, until)
    return Trace(trace.at[start:stop], trace.values[start:stop])
