"""``skyward-tui top`` and ``metrics``: metrics of machines and ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from skyward_core.client.run_history import load_all_metrics
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.metric_definitions_series_and_export import Curve, Curves, curve_json
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.metric_kinds_and_order import main_metric
from skyward_core.views.pool_view import PoolView, RunView, build_curves
from skyward_core.views.problem_alerts_and_stragglers import Alert, find_alerts
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session, resolve_run
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.metric_exporters import curve_source, export, find_exporter, format_prometheus, prometheus_registry
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.hardware_and_offer_cells import HARDWARE_COLUMNS, quantity, rows
from skyward_tui.text.number_time_and_run_state_format import clock, count, metric_text, number, run_progress

PERIOD = 1.0  # seconds between two tables of ``top``
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
    for active in _active(view):
        name = main_metric(values := view.metrics.run_values(active.id))
        metric = metric_text(name, values[name]) if name else ""
        if text := "  ".join(filter(None, (run_progress(view, active, now), metric))):
            console.print_line(f"run {active.id}: {text}")
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
    return {"run": run, "progress": progress, "metrics": view.metrics.run_values(run)}


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
@click.option("--port", type=click.IntRange(0, 65535), help="With --prometheus, serve the values on this local port.")
@click.option("--to", metavar="NAME[:TARGET]", help="Export: tensorboard:FOLDER, wandb:PROJECT or mlflow:URI.")
@click.option("-o", "--output", metavar="FILE", help="Write all values to FILE: .csv, .json or .parquet.")
def metrics(console: Console, run: str, prometheus: bool, port: int | None, to: str | None, output: str | None) -> None:
    """Show the metrics of a run's ranks and machines."""
    if port is not None and not prometheus:
        raise click.UsageError("--port needs --prometheus")
    if to is not None:
        find_exporter(to.partition(":")[0])
    if output is not None:
        from skyward_tui.file_export import check_output

        check_output(output, ENDINGS)
    with open_session(console) as session:
        found, images, labels = _load_curves(session, run, console)
        if port is not None:
            return _serve(session, run, port, labels, console)
    for note in found.notes:
        console.note(note)
    if output is not None:
        _write(found, output)
        console.note(f"{output}: {sum(map(len, found)):,} values for {count(len(found), 'metric')}")
    elif to is not None:
        console.note(f"exported {count(len(found), 'metric')} to {sanitize_line(export(found, labels, to))}")
    elif prometheus:
        for line in format_prometheus(found, labels).splitlines():
            console.print_line(line)
    elif not console.as_json:
        console.print_table([("name", "source", "last", "points"), *_newest_rows(found)])
        for each in images:
            step = "" if each["step"] is None else f", step {each['step']:,.12g}"
            console.print_line(f"image {each['name']}, rank {each['rank']}{step}: {each['path']}")
    console.result(labels | {"curves": [curve_json(curve) for curve in found], "images": images})
    return None


def _serve(session: Session, word: str, port: int, labels: Mapping[str, str], console: Console) -> None:
    """Serve the latest values on the loopback interface until the run has ended or the user presses ctrl-c."""
    from prometheus_client import start_http_server  # imported late, because only this function needs the package

    row = resolve_run(session, word)
    view = session.start_sampling(session.ledger.pool(row.token).key).result()
    newest: list[Curve] = []
    registry = prometheus_registry(lambda: newest, labels)
    try:
        server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise UsageError(f"cannot serve on port {port}: {error.strerror}. Use another port") from error
    console.note(f"serving http://127.0.0.1:{server.server_port}/metrics until the run ends; ctrl-c: stop")
    with suppress(KeyboardInterrupt):
        while view.is_live and (run := view.runs.get(row.run)) is not None and run.ended_at is None:
            newest = list(build_curves(view, run))
            time.sleep(PERIOD)
            session.start_sampling(view.key).result()
    server.shutdown()


def _load_curves(session: Session, word: str, console: Console) -> tuple[Curves, list[Any], dict[str, str]]:
    """Return all metrics of a run, the newest image of each name, and the labels of the run."""
    row = resolve_run(session, word)
    pool = session.ledger.pool(row.token)
    labels, logged = {"pool": pool.name, "run": row.run}, load_all_metrics(session.ledger, row)
    images = [{name: getattr(each, name) for name in each._fields[:-1]} for each in logged.images(row.run)]
    if pool.ended_at is None:
        try:
            view = session.start_sampling(pool.key).result()
            return build_curves(view, view.runs.get(row.run), logged), images, labels
        except PoolError as error:
            console.note(f"{format_error(error)}; showing the metrics saved on this machine")
    view = session.load_ended_pool(pool.key).result()
    saved = build_curves(view, view.runs.get(row.run), logged)
    saved.notes.append("the metrics of the machines no longer exist; showing only the metrics of the ranks")
    return saved, images, labels


def _newest_rows(found: Curves) -> Sequence[tuple[str, str, str, str]]:
    rows = []
    for curve in found:
        source = curve_source(curve) + (curve.origin and f", {curve.origin}")
        value = quantity(curve.latest, curve.unit) if curve.unit else number(curve.latest)
        rows.append((curve.name, source, value, f"{len(curve):,}"))
    return rows


def _write(found: Curves, output: str) -> None:
    """Write all metric values of a run to a new file."""
    if output.endswith(".parquet"):
        found.to_parquet(output)
        return
    write = found.to_csv if output.endswith(".csv") else found.to_json
    with open(output, "x", encoding="utf-8", newline="") as file:
        write(file)
