"""``skyward-tui top`` and ``metrics``: metrics of machines and ranks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from skyward_core.client.run_history import load_all_metrics
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError
from skyward_core.model.metric_definitions_series_and_export import (
    GPU_METRIC_DEFINITIONS,
    NODE_METRIC_DEFINITIONS,
    Curve,
    Curves,
    curve_json,
)
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.pool_view import PoolView, RunView, build_curves
from skyward_core.views.problem_alerts_and_stragglers import Alert, find_alerts
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session, resolve_run
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.hardware_and_offer_cells import HARDWARE_COLUMNS, quantity, rows
from skyward_tui.text.number_time_and_run_state_format import clock, count, number, run_progress

PERIOD = 1.0  # seconds between tables
ENDINGS = (".csv", ".json", ".parquet")


@command()
@click.argument("pool")
@click.option("--once", is_flag=True, help="Print one table and exit.")
def top(console: Console, pool: str, once: bool) -> None:
    """Show the metrics of a pool's machines every second."""
    with open_session(console) as session, suppress(KeyboardInterrupt):
        (row,) = live_pools(session, (pool,))
        view = session.start_sampling(row.key).result()
        while True:
            _show(view, console)
            if once or not view.is_live or console.has_no_reader:
                break
            time.sleep(PERIOD)
            session.start_sampling(row.key).result()


def _show(view: PoolView, console: Console) -> None:
    metrics, now = view.machines or MachineMetrics(), time.time()
    if console.as_json:
        nodes = [_node_json(metrics, node) for node in metrics.nodes]
        alerts = [{"run": run} | alert.to_json() for run, alert in _alerts(view, now)]
        runs = [_run_json(view, run.id, now) for run in _active(view)]
        console.result({"pool": view.name, "at": now, "nodes": nodes, "alerts": alerts, "runs": runs})
        return
    console.print_table([HARDWARE_COLUMNS, *rows(metrics, now)], [1])
    for progress_run in _active(view):
        if progress := run_progress(view, progress_run, now):
            console.print_line(f"run {progress_run.id}: {progress}")
    for run, alert in _alerts(view, now):
        console.print_line(f"! run {run}: {alert.kind}: {alert.who} since {clock(alert.since)}: {alert.words}")
    console.print_line("")


def _alerts(view: PoolView, now: float) -> list[tuple[str, Alert]]:
    """Return the alerts of all active runs."""
    return [(run.id, alert) for run in _active(view) for alert in find_alerts(view, run, now)]


def _active(view: PoolView) -> list[RunView]:
    return [run for run in list(view.runs.values()) if run.state == "running"]


def _run_json(view: PoolView, run: str, now: float) -> dict[str, Any]:
    progress = {
        rank: {"value": each.value, "total": each.total, "rate": each.rate, "seconds_left": each.seconds_left(now)}
        for rank, each in view.metrics.progress_by_rank(run).items()
    }
    return {"run": run, "progress": progress}


def _node_json(metrics: MachineMetrics, node: int) -> dict[str, Any]:
    machine = metrics.nodes[node]
    gpus = [
        {"id": device.id, "model": device.model, "figures": dict(track.latest)}
        for device, track in zip(machine.devices, machine.gpus, strict=False)
    ]
    about = {"node": node, "at": machine.host.latest_at, "figures": dict(machine.host.latest), "gpus": gpus}
    return about | ({"why": machine.why} if machine.why else {})


@command()
@click.argument("run")
@click.option("--prometheus", is_flag=True, help="Print the latest values in the Prometheus text format.")
@click.option("-o", "--output", metavar="FILE", help="Write all values to FILE: .csv, .json or .parquet.")
def metrics(console: Console, run: str, prometheus: bool, output: str | None) -> None:
    """Show the metrics of a run's ranks and machines."""
    if output is not None:
        from skyward_tui.file_export import check_output

        check_output(output, ENDINGS)
    with open_session(console) as session:
        found, labels = _load_curves(session, run, console)
    for note in found.notes:
        console.note(note)
    if output is not None:
        _write(found, output)
        console.note(f"{output}: {sum(map(len, found)):,} values for {count(len(found), 'metric')}")
    elif prometheus:
        for line in format_prometheus(found, labels).splitlines():
            console.print_line(line)
    elif not console.as_json:
        console.print_table([("name", "source", "last", "points"), *_newest_rows(found)])
    console.result(labels | {"curves": [curve_json(curve) for curve in found]})


def _load_curves(session: Session, word: str, console: Console) -> tuple[Curves, dict[str, str]]:
    row = resolve_run(session, word)
    pool = session.ledger.pool(row.token)
    labels = {"pool": pool.name, "run": row.run}
    if pool.ended_at is None:
        try:
            view = session.start_sampling(pool.key).result()
            return build_curves(view, view.runs.get(row.run), load_all_metrics(session.ledger, row)), labels
        except PoolError as error:
            console.note(f"{format_error(error)}; showing the metrics saved on this machine")
    view = session.load_ended_pool(pool.key).result()
    saved = build_curves(view, view.runs.get(row.run), load_all_metrics(session.ledger, row))
    saved.notes.append("metrics of the machines were lost with the machines; showing those of the ranks")
    return saved, labels


def _newest_rows(found: Curves) -> Sequence[tuple[str, str, str, str]]:
    rows = []
    for curve in found:
        source = f"rank {curve.rank}" if curve.rank is not None else f"node {curve.node}"
        source += "" if curve.gpu is None else f" GPU {curve.gpu}"
        source += curve.origin and f", {curve.origin}"
        value = quantity(curve.latest, curve.unit) if curve.unit else number(curve.latest)
        rows.append((curve.name, source, value, f"{len(curve):,}"))
    return rows


def _write(found: Curves, output: str) -> None:
    """Write all values to a new file."""
    if output.endswith(".parquet"):
        found.to_parquet(output)
        return
    write = found.to_csv if output.endswith(".csv") else found.to_json
    with open(output, "x", encoding="utf-8", newline="") as file:
        write(file)


PREFIX = "skyward"
# a single metric for all numbers of ranks, because their names may be invalid as metric names; each name is a label
RANK_METRIC = f"{PREFIX}_rank_number"
# Suffix of metric names for each unit, by the conventions of Prometheus.
_UNITS = {
    "%": "percent",
    "B": "bytes",
    "B/s": "bytes_per_second",
    "W": "watts",
    "°C": "celsius",
    "MHz": "megahertz",
}


def format_prometheus(curves: Iterable[Curve], labels: Mapping[str, str]) -> str:
    """Return the latest value of each metric series in the Prometheus text format.

    Args:
        curves: The metric series.
        labels: Labels of all series, such as the pool's name and the run's ID.
    """
    # Imported late, because only this function needs the package.
    from prometheus_client import Metric, generate_latest
    from prometheus_client.registry import Collector

    families: dict[str, Metric] = {}
    for curve in curves:
        name, help = _family(curve)
        own = {
            "name": curve.name if name == RANK_METRIC else "",
            "rank": "" if curve.rank is None else str(curve.rank),
            "node": "" if curve.node is None else str(curve.node),
            "gpu": "" if curve.gpu is None else str(curve.gpu),
            "model": curve.model,
        }
        labelled = {**labels, **{key: value for key, value in own.items() if value}}
        families.setdefault(name, Metric(name, help, "gauge")).add_sample(name, labelled, curve.latest)

    class Newest(Collector):
        def collect(self) -> Iterable[Metric]:
            return [families[name] for name in sorted(families)]

    return generate_latest(Newest()).decode()


def _family(curve: Curve) -> tuple[str, str]:
    if curve.rank is not None:
        return RANK_METRIC, "metrics logged by ranks, by name"
    kind, definitions = ("node", NODE_METRIC_DEFINITIONS) if curve.gpu is None else ("gpu", GPU_METRIC_DEFINITIONS)
    known = definitions.get(curve.name)
    if known is None:  # an agent of a newer release sends metrics that this release does not know
        plain = "".join(each if each.isascii() and each.isalnum() else "_" for each in curve.name)
        return f"{PREFIX}_{kind}_{plain}", "metric unknown to this release"
    unit = _UNITS.get(known.unit)
    return f"{PREFIX}_{kind}_{curve.name}" + (f"_{unit}" if unit else ""), known.help
