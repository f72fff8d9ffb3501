"""``skyward-tui ls``, ``logs``, ``results`` and ``lock``: what there is, and what there was."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from skyward_core.front.history import PoolRow, Printed, following, locks, printed, printed_together, run_view
from skyward_core.front.session import Session
from skyward_core.model import exit_status
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.views.metrics import MetricBook
from skyward_core.views.trials import TrialBoard
from skyward_core.views.views import RunView

from ..as_json import kept_json, pool_json, run_json, trials_json
from ..hints import detail_of, words_of
from ..words import BROKEN_OFF, count, duration, hourly
from .collapsing import Collapsed
from .console import Console
from .reach import fetched, meant, opened
from .report import drop_shown, show_difference, show_run, status_of, table, unfetched
from .trials import show_trials


def ls(everything: bool, console: Console) -> int:
    """The pools that are up, or whose end nobody has verified, with their runs; with ``everything`` also those that
    are over."""
    with opened(console) as session:
        found = session.refresh(over=everything).result()
        kept = [(session.ledger.pool(each.token).name, each) for each in session.kept()]
        _show_receipts(session, console)
    pools = found if everything else [pool for pool in found if pool.is_live]
    for pool in found:
        if pool.state in ("unreachable", "unfinished") or (not pool.is_live and not everything):
            said = detail_of(pool) or "it is over, as whoever made it has ended; nothing of it is left"
            console.note(f"pool {pool.name}: {said}")
    when = "ends" if all(pool.ended_at is None for pool in pools) else "ends, or ended"
    rows = [("pool", "state", "provider", "nodes", "price", when, "runs")]
    for pool in pools:
        runs = ", ".join(
            f"{run.id} {run.function} {run.state}" + unfetched(pool, run.id) for run in pool.runs.values()
        )
        ready = f"{pool.nodes_ready}/{pool.node_count}"
        left = pool.lease_left(time.time())
        ends = "" if left is None else f"in {duration(left)}"
        if pool.ended_at is not None:
            ready, ends = str(pool.node_count), time.strftime("%Y-%m-%d %H:%M", time.localtime(pool.ended_at))
        price = hourly(pool) or "-"
        state = BROKEN_OFF if pool.state == "unfinished" else pool.state
        rows.append((pool.name, state, pool.provider, ready, price, ends, runs))
    if console.as_json:
        told = [kept_json(*each) for each in kept]
        console.result({"pools": [pool_json(pool) for pool in pools], "kept": told})
    else:
        for line in table(rows) if pools else ["no pools are up"]:
            console.say(line)
        for name, each in kept:
            fetch = f"skyward-tui results {next(iter(each.runs))}"
            console.say(f"of pool {name}, which has ended, nobody has fetched {each}; {fetch} does")
    return exit_status.OK


def _show_receipts(session: Session, console: Console) -> None:
    """Show, once, the receipts that could not be printed when their pools ended."""
    unshown = session.ledger.unshown()
    for text in unshown.values():
        console.note(f"not printed when it ended: {text}")
    if unshown and console.shows_notes:
        drop_shown(session, unshown)


def results(run: str, console: Console, sort: str | None, diff: str | None, output: str | None) -> int:
    """The outcomes of a run so far; ends with the status that the run ended with.

    Args:
        run: its id, or its pool's name; see :func:`.reach.meant`.
        sort: of a sweep, the column that its table is sorted by, as :func:`.trials.show_trials` takes it.
        diff: two ranks, or tasks, with a comma between them: only in what these differ is told.
        output: a file that they are written to.

    Raises:
        UsageError: there is no such column or rank, it is no sweep, or the file cannot be written.
    """
    if diff is not None and (sort is not None or output is not None):
        raise UsageError("--diff shows two ranks: leave --sort and --output out")
    if output is not None:
        from ..result_files import check

        check(output)
    with opened(console) as session:
        row = fetched(session, meant(session, run), console)
        pool = session.ledger.pool(row.token)
        view, book = run_view(session.ledger, row), MetricBook()
        runs: Mapping[str, RunView] = {}
        if row.state == "running" and pool.ended_at is None:
            # Nobody may have told the ledger what has happened since. If nobody can, its word is all there is.
            with suppress(PoolError):
                live = session.look(pool.key).result()
                view, book, runs = live.runs.get(row.run, view), live.metrics, live.runs
        board = _board_of(session, pool.key, view, sort)
        if board is not None and board.sheet.gang and not runs:  # other runs of the sweep may go on
            with suppress(PoolError):
                runs = session.view(pool.key).runs
        trials = None if board is None else board.table(view.id, view.tasks, book, runs)
        if output is not None:
            from ..result_files import write

            remark = write(view, output, session.result_values)
            console.note(f"{output}: {count(len(view.tasks), 'result')}" + (f" ({remark})" if remark else ""))
    if diff is not None:
        show_difference(view, diff, console)
        return exit_status.OK if view.state == "running" else status_of(view)
    if console.as_json:
        console.result(run_json(view) | ({} if trials is None else trials_json(trials)))
        return exit_status.OK if view.state == "running" else status_of(view)
    console.note(f"run {view.id}: {view.function} on pool {view.pool}, {view.state}")
    if row.kind != "sweep":  # one of a sweep by gangs is a run like any other
        show_run(view, console)
    if trials is not None:
        show_trials(view, trials, console, sort)
    return exit_status.OK if view.state == "running" else status_of(view)


def _board_of(session: Session, pool: str, run: RunView, sort: str | None) -> TrialBoard | None:
    """What the table of a sweep is made of; None for what is none.

    Raises:
        UsageError: a table is to be sorted, and there is none.
    """
    try:
        return session.trials(pool, run).result()
    except UsageError:
        if sort is not None or run.kind == "sweep":
            raise
        return None


def logs(run: str, rank: int | None, follow: bool, collapse: bool, console: Console) -> int:
    """What the ranks of a run printed: their standard output to ours, their standard error to ours.

    Of one rank, lines come as they are; of all ranks, every line has its rank before it. With ``follow`` until
    the run ends. With ``collapse`` equal lines of ranks are one, in the order of the ranks' clocks.

    Raises:
        UsageError: it is to be collapsed and of one rank, or followed.
    """
    if collapse and (follow or rank is not None):
        raise UsageError("--collapse shows all ranks' lines so far: leave --rank and --follow out")
    with opened(console) as session:
        ledger, row = session.ledger, fetched(session, meant(session, run), console)
        if rank is not None and row.kind == "broadcast" and row.nodes is None and rank >= row.total:
            raise UsageError(f"run {row.run} has ranks 0 to {row.total - 1}, not {rank}")
        out: _Out | Collapsed = _Out(console, rank)
        pool = ledger.pool(row.token)
        if row.state == "running" and pool.ended_at is None:
            _catch_up(session, pool, follow, console)
            pieces = following(ledger, row.run, session.wait(pool.key, row.run) if follow else None)
        else:
            pieces = printed(ledger, row.run)
        if collapse:
            for _ in pieces:  # until nothing more of it comes here
                pass
            pieces = printed_together(ledger, row.run)
            ranks = 1 + max(session.run_logs(row.run).parts, default=0)
            out = Collapsed(console, row.total if row.kind == "broadcast" and row.nodes is None else ranks)
        for piece in pieces:
            out.put(piece)
            if console.unread:
                break
    out.finish(row.run)
    return exit_status.OK


def lock(run: str, node: int | None, console: Console) -> int:
    """What was installed for a run: a lock on standard output."""
    with opened(console) as session:
        row = meant(session, run)
        found = locks(session.ledger, row)
    if not found:
        raise UsageError(
            f"nothing was installed for run {row.run}: nobody asked for packages, and its ranks had what their hosts' "
            "Python has"
        )
    if node is not None and node not in found:
        raise UsageError(f"no lock is kept of node {node} for run {row.run}; give one of {_named(found)}")
    shown = min(found) if node is None else node
    if node is None and (others := [each for each in found if found[each] != found[shown]]):
        console.note(f"this is of node {shown}; node {_named(others)} had other packages: --node shows them")
    if console.as_json:
        console.result({"run": row.run, "node": shown, "lock": found[shown]})
    else:
        for line in found[shown].splitlines():
            console.say(line)
    return exit_status.OK


def _named(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def _catch_up(session: Session, pool: PoolRow, follow: bool, console: Console) -> None:
    """Have what a pool's ranks printed brought here. Where the pool does not answer, what is here is shown.

    Raises:
        PoolError: it does not answer, and its run is to be followed.
    """
    try:
        session.look(pool.key).result()
    except PoolError as error:
        if follow:
            raise
        console.note(f"{words_of(error)}; this is what was kept here")


class _Out:
    """Where log bytes go: to printers, or, for ``--json``, into one object."""

    def __init__(self, console: Console, rank: int | None) -> None:
        self.rank = rank
        self._console = console
        self._kept: dict[int, dict[str, bytearray]] = {}
        self._printers = {
            "out": console.logs(sys.stdout, prefix=rank is None),
            "err": console.logs(sys.stderr, prefix=rank is None),
        }

    def put(self, piece: Printed) -> None:
        """Take bytes of a log file."""
        if self.rank not in (None, piece.rank):
            return
        if self._console.as_json:
            kept = self._kept.setdefault(piece.rank, {"out": bytearray(), "err": bytearray()})
            kept[piece.stream] += piece.data
        else:
            self._printers[piece.stream].feed(piece.rank, piece.file, piece.data)
            self._printers[piece.stream].flush()

    def finish(self, run: str) -> None:
        for printer in self._printers.values():
            printer.finish()
        texts = [
            {"rank": rank} | {stream: bytes(data).decode("utf-8", "replace") for stream, data in kept.items()}
            for rank, kept in sorted(self._kept.items())
        ]
        self._console.result({"run": run, "logs": texts})
