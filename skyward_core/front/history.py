"""What this machine keeps of pools and runs: the ledger's rows, runs as views, and what their ranks printed."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ..model.errors import UsageError
from ..store import kept_locks
from ..store.archive import rank_of
from ..store.home import pool_path
from ..store.last_figures import fill
from ..store.ledger import Ledger
from ..store.ledger_rows import Kept, PoolRow, Receipt, RunRow
from ..store.prune import prune, prune_clones, prune_environments
from ..store.run_logs import Part, RunLogs
from ..store.stored_lines import StoredLines, tail_of
from ..views.views import RunView, TaskView
from ..views.weave import PIECE, Place, weave

__all__ = [
    "Kept",
    "PoolRow",
    "Printed",
    "Receipt",
    "RunLogs",
    "RunRow",
    "StoredLines",
    "following",
    "locks",
    "printed",
    "printed_together",
    "prune",
    "prune_clones",
    "prune_environments",
    "result_pickles",
    "run_view",
    "tail_of",
]

PERIOD = 0.05  # seconds between two looks at log files
OF_MANY = 16 << 10  # bytes of each file that are in memory at once where all ranks' files are read together
SETTLED = 0.3  # seconds without anything new after which a log has been read


class Printed(NamedTuple):
    """A piece of what a worker printed; the bytes of one ``file`` are in order. ``at``: when, by its node's clock."""

    rank: int
    file: str
    stream: str
    data: bytes
    at: float | None = None


def run_view(ledger: Ledger, row: RunRow) -> RunView:
    """A run as the ledger has it, with its outcomes and without its logs.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    view = RunView(row.run, ledger.pool(row.token).name, row.function, row.kind, row.total, row.opened_at)
    view.nodes = row.nodes or ()
    view.state, view.ended_at, view.root_cause = row.state, row.ended_at, row.root_cause
    for outcome, _ in ledger.outcomes(row.run):
        view.tasks[outcome.index] = TaskView(
            outcome.index, outcome.rank, outcome.node, outcome.kind, outcome=outcome
        )
        view.counts[outcome.kind] = view.counts.get(outcome.kind, 0) + 1
    with suppress(OSError):  # they are beside what the run is
        fill(view, pool_path(ledger.pool(row.token).key))
    return view


def result_pickles(ledger: Ledger, run: RunView) -> dict[int, Path]:
    """The files that have the values of a run's ranks, or tasks, that have returned, as far as these are kept here.

    Raises:
        UsageError: they are not: they were given to the script that ran it, or are on its nodes.
        LedgerError: the ledger cannot be read.
    """
    row = ledger.run(run.id)
    folder = pool_path(ledger.pool(row.token).key) / "results" if row is not None else None
    returned = [out.index for out in run.outcomes() if out.kind == "returned"]
    paths = {index: folder / f"{run.id}.{index}.pickle" for index in returned} if folder is not None else {}
    lacking = [index for index, path in paths.items() if not path.is_file()]
    if lacking or not paths:
        raise UsageError(
            f"the values of run {run.id} are not all kept here: they were given to who ran it, or wait on its nodes; "
            ".csv, .json and .parquet have what is known of them"
        )
    return paths


def locks(ledger: Ledger, row: RunRow) -> dict[int, str]:
    """What the nodes of a run's pool had when it ended, node by node, as ``Image(lock=...)`` takes it.

    None of other machines where nobody asked for packages.

    Raises:
        LedgerError, OSError: it cannot be read.
    """
    return kept_locks.kept(ledger.pool(row.token).key, row.ended_at)


def printed(ledger: Ledger, run: str) -> Iterator[Printed]:
    """What the ranks of a run have printed, as far as it is here; rank by rank."""
    found = RunLogs(ledger, run)
    for rank in sorted(found.parts):
        for part in found.parts[rank]:
            yield from _pieces(found, part)


def printed_together(ledger: Ledger, run: str) -> Iterator[Printed]:
    """The same for all ranks together, in the order of their clocks."""
    found = RunLogs(ledger, run)
    ranks = [_timed(found, found.parts[rank]) for rank in sorted(found.parts)]
    return (piece for _, piece in heapq.merge(*ranks, key=itemgetter(0)))


def _timed(found: RunLogs, parts: list[Part]) -> Iterator[tuple[float, Printed]]:
    """A rank's pieces in its own order, each with the latest time that is known by then."""
    latest = 0.0
    for part in parts:
        for piece in _pieces(found, part, OF_MANY):
            latest = max(latest, piece.at or 0.0)
            yield latest, piece


def following(ledger: Ledger, run: str, ended: Future[Any] | None) -> Iterator[Printed]:
    """What the ranks of a running run print: from where those of runs before it ended, as it comes here.

    Args:
        ended: done when nothing comes any more, whose error then is raised; None to end when nothing has come for a
            moment.
    """
    seen: dict[str, Place] = {}
    quiet = 0.0
    while True:
        over = quiet >= SETTLED if ended is None else ended.done()
        found = RunLogs(ledger, run)
        came = False
        for part in itertools.chain.from_iterable(found.parts.values()):
            at = seen.get(part.stem, (0, 0))
            start = max(at[0], part.start[0]), max(at[1], part.start[1])
            yield from _pieces(found, part._replace(start=start))
            seen[part.stem] = end = max(start[0], part.end[0]), max(start[1], part.end[1])
            came |= start != end
        if over:
            break
        quiet = 0.0 if came else quiet + PERIOD
        time.sleep(PERIOD)
    if ended is not None:
        ended.result()


def _pieces(found: RunLogs, part: Part, size: int = PIECE) -> Iterator[Printed]:
    for piece in weave(found.folder, *part, size):
        yield Printed(rank_of(part.stem), f"{part.stem}.{piece.stream}", piece.stream, piece.data, piece.at)
