"""Views of ended pools, restored from ledger, journal and log files."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from skyward_core.model.machines_checks_and_gpu_use import total_hourly
from skyward_core.model.outcomes_states_and_alerts import PoolStatus
from skyward_core.protocol.node_paths import METRICS
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, RunRow
from skyward_core.store.pool_folder import fill_last_metrics, log_files, parse_rank, read_events, read_tail
from skyward_core.store.state_folder import pool_path
from skyward_core.views import events
from skyward_core.views.pool_view import MAX_RUNS, PoolView, apply
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.stdout_stderr_order import Piece, Place, end_place, find_tail_start, merge_streams

LOG_TAIL_BYTES = 1 << 20  # maximum bytes at the end of each worker's logs that a view shows
MAX_OPEN_FILES = 64  # maximum number of workers whose log files are open at the same time


def summarize_pool(ledger: Ledger, row: PoolRow) -> PoolView:
    """Return the view of an ended pool for a list, without logs and outcomes."""
    view = PoolView(row.name, key=row.key)
    _open_pool(view, row)
    for run in ledger.runs(row.token)[-MAX_RUNS:]:
        _add_run(view, run)
    return _finish_view(view, ledger, row)


def load_finished_pool(ledger: Ledger, row: PoolRow) -> PoolView:
    """Return the complete view of an ended pool, with the last part of its logs.

    Raises:
        LedgerError, OSError: If the ledger or a file cannot be read.
    """
    folder = pool_path(row.key)
    view = PoolView(row.name, key=row.key)
    _open_pool(view, row)
    if (folder / "events.jsonl").exists():
        for event in read_events(folder):
            apply(view, event)
    for run in ledger.runs(row.token)[-MAX_RUNS:]:
        _add_run(view, run)
        for outcome, _ in ledger.outcomes(run.run):
            apply(view, events.RankEnded(pool=row.name, run=run.run, outcome=outcome))
        if run.run in view.runs:
            fill_last_metrics(view.runs[run.run], folder)
    view.runs = dict(sorted(view.runs.items(), key=lambda item: item[1].opened_at))
    if (folder / "logs").is_dir():
        add_logs(view, folder / "logs")
    return _finish_view(view, ledger, row)


def add_logs(view: PoolView, folder: Path) -> dict[str, Place]:
    """Add the last part of a folder's log files to a view, all ranks merged by time.

    Returns:
        Stem of a worker's log files -> position up to which the worker's output was added.
    """
    ends: dict[str, Place] = {}
    for path in log_files(folder):
        if path.suffix == METRICS:
            view.metrics.feed(path.name, parse_rank(path.name), read_tail(path, LOG_TAIL_BYTES))
        elif path.stem not in ends:
            ends[path.stem] = end_place(folder, path.stem)
    stems = list(ends)
    for first in range(0, len(stems), MAX_OPEN_FILES):
        some = [_timed_pieces(folder, stem, ends[stem]) for stem in stems[first : first + MAX_OPEN_FILES]]
        for _, stem, piece in heapq.merge(*some, key=itemgetter(0)):
            add_output(view, stem, piece)
    return ends


def _timed_pieces(folder: Path, stem: str, end: Place) -> Iterator[tuple[float, str, Piece]]:
    """Yield the last part of a worker's output as pieces with a time each, which never decreases."""
    latest = 0.0
    for piece in merge_streams(folder, stem, find_tail_start(folder, stem, end, LOG_TAIL_BYTES), end):
        latest = max(latest, piece.at or 0.0)
        yield latest, stem, piece


def add_output(view: PoolView, stem: str, piece: Piece) -> None:
    """Add a worker's output to a view. ``stem`` is the name of its files without the ending."""
    view.logs.feed(parse_rank(stem), piece.stream, piece.data, piece.at, piece.run, stem)


def _open_pool(view: PoolView, row: PoolRow) -> None:
    apply(view, events.PoolOpened(pool=row.name, spec=row.spec, created_at=row.created_at, at=row.created_at))


def unreachable_view(row: PoolRow, state: PoolStatus, detail: str) -> PoolView:
    """Return the view of a pool to which this client has no connection."""
    provider = str(row.spec.get("provider") or row.provider["provider"])
    view = PoolView(row.name, provider, state, detail, row.created_at, row.spec, key=row.key)
    view.priced_at, view.budget = row.created_at, row.spec.get("options", {}).get("budget")
    return view


def set_hourly_price(view: PoolView, ledger: Ledger, row: PoolRow) -> None:
    """Set the hourly price of a view, as recorded with the machines."""
    hourly = total_hourly(ledger.machines(row.token)) if row.spec.get("rents") else None
    if hourly is not None:
        apply(view, events.PriceNews(pool=row.name, hourly=hourly))


def _add_run(view: PoolView, row: RunRow) -> None:
    opened = events.RunOpened(
        pool=view.name, run=row.run, function=row.function, kind=row.kind, total=row.total, at=row.opened_at
    )
    apply(view, opened)
    if row.state != "running":
        at = row.opened_at if row.ended_at is None else row.ended_at
        apply(view, events.RunEnded(pool=view.name, run=row.run, state=row.state, root_cause=row.root_cause, at=at))


def _finish_view(view: PoolView, ledger: Ledger, row: PoolRow) -> PoolView:
    receipt = row.receipt or {}
    at = row.created_at if row.ended_at is None else row.ended_at
    set_hourly_price(view, ledger, row)
    apply(view, events.PoolEnded(pool=row.name, receipt=receipt, at=at))
    reasons = sorted({note.partition(": ")[2] or note for note in receipt.get("notes", ())})
    retained = ledger.unfetched_results(row.token)
    start_error = [view.start_error] if view.start_error else []
    view.detail = "; ".join([*start_error, *reasons, *(f"not fetched: {each}" for each in retained)])
    view.unfetched = {run: size for each in retained for run, size in each.runs.items() if size}
    return view


METRIC_TAIL_BYTES = 1 << 20  # bytes at the end of each rank's metric file that are read
MAX_METRIC_RANKS = 8  # maximum number of ranks whose metrics are read


def load_metrics(
    folder: Path, run: str, most: int = METRIC_TAIL_BYTES, ranks: int | None = MAX_METRIC_RANKS, *, thin: bool = True
) -> MetricStore:
    """Load the metrics of one run from the files of its pool.

    Args:
        folder: Folder of the files.
        run: ID of the run.
        most: Bytes to read of each rank, from the end.
        ranks: Number of ranks; None for all.
        thin: Whether to limit the number of values of each metric.
    """
    metrics, needle = MetricStore() if thin else MetricStore(None), f'"{run}"'.encode()
    files = [path for path in (log_files(folder) if folder.is_dir() else ()) if path.suffix == METRICS]
    chosen = sorted({parse_rank(path.name) for path in files})[:ranks]
    for path in (each for each in files if parse_rank(each.name) in chosen):
        with open(path, "rb") as source:
            source.seek(max(0, path.stat().st_size - most))
            for line in source:
                if needle in line:
                    metrics.feed(path.name, parse_rank(path.name), line)
    return metrics
