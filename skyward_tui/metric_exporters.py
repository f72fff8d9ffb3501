"""Exporters of a run's metrics to TensorBoard, W&B and MLflow, and the Prometheus endpoint.

Each exporter is one function. Installed packages add more as entry points of the group ``skyward.exporters``. The
libraries are imported late, because they are optional and slow to import.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from skyward_core.model.errors import UsageError
from skyward_core.model.metric_definitions_series_and_export import (
    GPU_METRIC_DEFINITIONS,
    NODE_METRIC_DEFINITIONS,
    Curve,
    Curves,
)
from skyward_core.model.plugin_and_provider_entry_points import load_entry_points, resolve_entry_point
from skyward_core.views.metric_kinds_and_order import STEP_NAMES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Writes metrics to a target, given the labels ``pool`` and ``run``. Returns a text about where the data is.
Exporter = Callable[[Curves, Mapping[str, str], str], str]


class Point(NamedTuple):
    """One value of a metric. ``source`` names the rank, node or GPU, such as "rank 0" or "node 1 GPU 2"; ``step`` is
    the rank's training step.
    """

    at: float
    source: str
    name: str
    value: float
    step: int


def curve_source(curve: Curve) -> str:
    """Return the rank, node or GPU of a metric series."""
    source = f"rank {curve.rank}" if curve.rank is not None else f"node {curve.node}"
    return source + ("" if curve.gpu is None else f" GPU {curve.gpu}")


def points(curves: Curves) -> Iterator[Point]:
    """Yield all values of the metric series. The step of a value is the last step that its rank had logged at that
    time; without steps, the index of the value.
    """
    axes = {curve.rank: curve for name in reversed(STEP_NAMES) for curve in curves.of(name) if curve.rank is not None}
    for curve in curves:
        axis = axes.get(curve.rank) if curve.rank is not None else None
        if axis is curve:
            continue
        for place, (at, value) in enumerate(zip(curve.at, curve.values, strict=True)):
            step = float(place) if axis is None else axis.values[max(0, bisect_right(axis.at, at) - 1)]
            yield Point(at, curve_source(curve), curve.name, value, int(step) if isfinite(step) else place)


def export_tensorboard(curves: Curves, labels: Mapping[str, str], target: str) -> str:
    """Write event files: a folder for each rank, node and GPU, in a folder for the run."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = Path(target or "runs") / labels["run"]
    for source, values in groupby(points(curves), lambda point: point.source):
        writer = EventFileWriter(str(folder / source.replace(" ", "_")))
        for each in values:
            summary = Summary(value=[Summary.Value(tag=each.name, simple_value=each.value)])
            writer.add_event(Event(wall_time=each.at, step=each.step, summary=summary))
        writer.close()
    return str(folder)


def export_wandb(curves: Curves, labels: Mapping[str, str], target: str) -> str:
    """Write a run of W&B, offline unless WANDB_MODE states otherwise."""
    import wandb

    mode = os.environ.get("WANDB_MODE", "offline")
    options = wandb.Settings(mode=mode, silent=True, console="off")
    run = wandb.init(project=target or labels["pool"], name=labels["run"], config=dict(labels), settings=options)
    run.define_metric("*", step_metric="step")
    in_order = sorted(points(curves), key=lambda point: (point.step, point.source))
    for (step, _), values in groupby(in_order, lambda point: (point.step, point.source)):
        run.log({f"{each.source}/{each.name}": each.value for each in values} | {"step": step})
    run.finish()
    wandb.teardown()  # waits until W&B's service process has written the file
    folder = Path(run.dir).parent
    return f"{folder}; upload with: wandb sync {folder}" if mode == "offline" else str(folder)


def export_mlflow(curves: Curves, labels: Mapping[str, str], target: str) -> str:
    """Write a run of MLflow in the experiment of the pool's name; ``target`` is the tracking URI."""
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=target or None)
    known = client.get_experiment_by_name(labels["pool"])
    experiment = client.create_experiment(labels["pool"]) if known is None else known.experiment_id
    run = client.create_run(experiment, tags=dict(labels), run_name=labels["run"]).info.run_id
    values = points(curves)
    while batch := list(islice(values, 1000)):  # MLflow accepts at most 1,000 metrics per request
        names = [re.sub(r"[^\w ./:-]", "_", f"{each.source}/{each.name}", flags=re.ASCII) for each in batch]
        metrics = [
            Metric(name, each.value, int(each.at * 1000), each.step) for name, each in zip(names, batch, strict=True)
        ]
        client.log_batch(run, metrics=metrics)
    client.set_terminated(run)
    return f"run {run} of experiment {labels['pool']}"


EXPORTERS: dict[str, Exporter] = {"tensorboard": export_tensorboard, "wandb": export_wandb, "mlflow": export_mlflow}
# package that installs an exporter's library, if its name differs from the exporter's
PACKAGES = {"mlflow": "mlflow-skinny"}


def find_exporter(name: str) -> Exporter:
    """Return the exporter of a name: one of :data:`EXPORTERS`, or that of an installed package.

    Raises:
        UsageError: If no package declares the name, or several do.
    """
    if name in EXPORTERS:
        return EXPORTERS[name]
    declared = load_entry_points("skyward.exporters", EXPORTERS)
    if name not in declared:
        raise UsageError(f"unknown exporter {name!r}. Use one of: {', '.join((*EXPORTERS, *sorted(declared)))}")
    found: Exporter = resolve_entry_point("exporter", declared[name]).load()
    return found


def export(curves: Curves, labels: Mapping[str, str], to: str) -> str:
    """Write metrics to a target such as ``tensorboard:runs``. Return a text about where the exported data is.

    Raises:
        UsageError: If the exporter is unknown, its package is not installed, or it cannot write.
    """
    name, _, target = to.partition(":")
    exporter = find_exporter(name)
    try:
        return exporter(curves, labels, target)
    except ImportError as error:
        raise UsageError(f"cannot export to {name}: {error}. Run pip install {PACKAGES.get(name, name)}") from error
    except Exception as error:  # each exporter's library raises its own types of errors
        raise UsageError(f"cannot export to {name}: {type(error).__name__}: {error}") from error


PREFIX = "skyward"
# Name of the Prometheus metric for all metrics that ranks log. The name of the logged metric is a label, because label
# values may contain any character.
RANK_METRIC = f"{PREFIX}_rank_number"
# Suffix of a Prometheus metric's name for each unit, by the naming conventions of Prometheus.
_UNITS = {
    "%": "percent",
    "B": "bytes",
    "B/s": "bytes_per_second",
    "W": "watts",
    "°C": "celsius",
    "MHz": "megahertz",
}


def prometheus_registry(newest: Callable[[], Iterable[Curve]], labels: Mapping[str, str]) -> CollectorRegistry:
    """Return a registry with the latest value of each metric series.

    Args:
        newest: Returns the metric series; called for each scrape, in any thread.
        labels: Labels of all series, such as the pool's name and the run's ID.
    """
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.registry import Collector

    class Newest(Collector):
        def collect(self) -> Iterable[Metric]:
            families: dict[str, Metric] = {}
            for curve in newest():
                name, help = _family(curve)
                own = {"name": curve.name if name == RANK_METRIC else "", "rank": curve.rank, "node": curve.node}
                own |= {"gpu": curve.gpu, "model": curve.model}
                labelled = {**labels, **{key: str(value) for key, value in own.items() if value not in (None, "")}}
                families.setdefault(name, Metric(name, help, "gauge")).add_sample(name, labelled, curve.latest)
            return [families[name] for name in sorted(families)]

    registry = CollectorRegistry()
    registry.register(Newest())
    return registry


def format_prometheus(curves: Iterable[Curve], labels: Mapping[str, str]) -> str:
    """Return the latest value of each metric series in the Prometheus text format."""
    from prometheus_client import generate_latest

    return generate_latest(prometheus_registry(lambda: curves, labels)).decode()


def _family(curve: Curve) -> tuple[str, str]:
    if curve.rank is not None:
        return RANK_METRIC, "metrics logged by ranks, by name"
    kind, definitions = ("node", NODE_METRIC_DEFINITIONS) if curve.gpu is None else ("gpu", GPU_METRIC_DEFINITIONS)
    known = definitions.get(curve.name)
    if known is None:  # an agent of a newer release may send metrics that this release does not know
        plain = "".join(each if each.isascii() and each.isalnum() else "_" for each in curve.name)
        return f"{PREFIX}_{kind}_{plain}", "metric unknown to this release"
    unit = _UNITS.get(known.unit)
    return f"{PREFIX}_{kind}_{curve.name}" + (f"_{unit}" if unit else ""), known.help
