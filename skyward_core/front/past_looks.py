"""One past run at a glance: how its ranks ended, its first numbers, the last lines of the rank that matters.

It is read while somebody goes through a list, so that of each file little is read: the whole is opened by who wants it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..model.errors import NoTrials, SkywardError, UsageError
from ..store.archive import log_files, rank_of
from ..store.home import pool_path
from ..store.ledger import Ledger
from ..store.run_logs import Part, RunLogs
from ..views.metrics import MetricBook
from ..views.trials import TrialTable
from ..views.views import RunView
from ..wire.node_paths import ERR, METRICS, OUT
from .history import run_view
from .session_part import SessionPart
from .trials import board_of

LINES = 60  # of a log, at most
SHORT = 256 << 10  # bytes of a log that is read whole, so that both streams are in their true order
TAIL = 16 << 10  # bytes that are read of a longer one
NUMBERS = 1 << 20  # bytes of a rank's numbers that are read, from their end
RANKS = 8  # of whose numbers


class PastLook(NamedTuple):
    """What there is to see.

    Attributes:
        view: the run with its outcomes; None where nothing is known.
        book: its numbers over time.
        rank: whose lines they are: of a run that failed the one that it failed by; None for none.
        lines: those that it printed last.
        trials: of a sweep, its table; None for any other run.
    """

    view: RunView | None = None
    book: MetricBook = MetricBook()
    rank: int | None = None
    lines: Sequence[str] = ()
    trials: TrialTable | None = None


def past_look(ledger: Ledger, run: str) -> PastLook:
    """Look at a run by its id, as far as it is kept here.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    row = ledger.run(run)
    if row is None:
        return PastLook()
    key = ledger.pool(row.token).key
    view, folder = run_view(ledger, row), pool_path(key) / "logs"
    rank, lines = None, []
    with suppress(OSError, SkywardError):  # what was pruned is not there any more
        logs = RunLogs(ledger, run)
        cause = None if row.root_cause is None else row.root_cause.rank
        rank = cause if cause in logs.parts else min(logs.parts, default=None)
        lines = [] if rank is None else last_lines(logs, rank)
    book = MetricBook()
    with suppress(OSError):
        book = numbers(folder, run)
    return PastLook(view, book, rank, lines, _trials(ledger, key, view, book))


def _trials(ledger: Ledger, pool: str, run: RunView, book: MetricBook) -> TrialTable | None:
    """The table of a sweep; of one by gangs each run is looked at by itself."""
    if run.kind != "sweep":
        return None
    with suppress(UsageError, NoTrials):
        return board_of(ledger, pool, run, {}).table(run.id, run.tasks, book)
    return None


def last_lines(logs: RunLogs, rank: int) -> list[str]:
    """What a rank printed last in a run."""
    parts = logs.parts[rank]
    if sum(sum(part.end) - sum(part.start) for part in parts) <= SHORT:
        return list(deque((line.text for line in logs.lines(rank)), LINES))
    # Which came when is not looked up: whatever of the two has more to tell.
    ends = [_tail(logs.folder, parts[-1], stream) for stream in (0, 1)]
    return max(ends, key=len)


def _tail(folder: Path, part: Part, stream: int) -> list[str]:
    end = part.end[stream]
    start = max(part.start[stream], end - TAIL)
    if start == end:
        return []
    with open(folder / f"{part.stem}{(OUT, ERR)[stream]}", "rb") as source:
        source.seek(start)
        lines = source.read(end - start).split(b"\n")
    whole = lines[1:] if start > part.start[stream] else lines
    return [line.decode("utf-8", "replace") for line in whole if line][-LINES:]


def numbers(folder: Path, run: str, most: int = NUMBERS, ranks: int | None = RANKS) -> MetricBook:
    """The numbers of one run, from the files of its pool.

    Args:
        most: bytes that are read of each rank's, from their end.
        ranks: of how many; None for all.
    """
    book, needle = MetricBook(), f'"{run}"'.encode()
    files = [path for path in (log_files(folder) if folder.is_dir() else ()) if path.suffix == METRICS]
    for path in files[:ranks]:
        with open(path, "rb") as source:
            source.seek(max(0, path.stat().st_size - most))
            for line in source:
                if needle in line:
                    book.feed(path.name, rank_of(path.name), line)
    return book


class PastLooks(SessionPart):
    """The part of a session that shows them."""

    ledger: Ledger

    def look_at_run(self, run: str) -> Future[PastLook]:
        """See :func:`past_look`; the future raises what that raises."""

        async def work() -> PastLook:
            return await asyncio.to_thread(past_look, self.ledger, run)

        return self._submit(work())
