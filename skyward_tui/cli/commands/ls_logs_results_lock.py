"""``skyward-tui ls``, ``logs``, ``results`` and ``lock``: pools, and the output of their runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TextIO

import click

from skyward_core.client.run_history import (
    OutputChunk,
    PoolRow,
    follow_output,
    installed_packages,
    merged_output,
    rank_output,
    run_view,
)
from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.util.terminal_safe_text import reset_colors
from skyward_core.views.log_buffers_and_rank_activity import LineInfo, LineSplitter
from skyward_core.views.log_collapsing import (
    JOIN_SECONDS,
    FoldedLine,
    HeldLine,
    HeldLines,
    LineFolder,
    format_row,
    list_ranks,
)
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.sweep_trials import TrialTableSource
from skyward_tui.cli.commands.launched_and_attached_runs import show_trials, sorted_rows
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import fetch_run, open_session, resolve_run, split_rank
from skyward_tui.cli.result_tables_failures_and_receipts import (
    drop_receipts,
    exit_status,
    show_difference,
    show_run,
    unfetched_text,
)
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.text.error_hint_text import format_detail, format_error
from skyward_tui.text.json_output import (
    pool_json,
    retained_json,
    run_json,
    trials_json,
)
from skyward_tui.text.number_time_and_run_state_format import (
    BROKEN_OFF,
    START_FAILED,
    count,
    date_time,
    duration,
    hourly,
    run_status,
)


class CollapsedPrinter:
    """Printer of the logs of all ranks. If ranks print lines that differ only in times and numbers, prints them once.

    Standard output of the ranks goes to stdout, standard error to stderr.

    Args:
        console: Console for the JSON object.
        world: Number of ranks.
    """

    def __init__(self, console: Console, world: int) -> None:
        self._console = console
        self._world = world
        # no limit on the number of lines, because printed lines are removed from the folder
        self._fold = LineFolder(sys.maxsize, similar=True)
        self._held_lines = HeldLines(similar=True)
        self._unfinished_lines: dict[tuple[int, str, str], LineSplitter] = {}
        self._latest = 0.0
        self._rows: list[dict[str, Any]] = []

    def feed(self, piece: OutputChunk) -> None:
        """Add bytes of a log file, and print the lines that no later line can be merged with. Must be called in the
        order of the lines' times.
        """
        lines = self._unfinished_lines.setdefault((piece.rank, piece.file, piece.stream), LineSplitter())
        self._hold(piece.rank, piece.stream, lines.split_lazily(piece.data), piece.at)
        if piece.at is not None:
            self._latest = piece.at
        # Print lines that are more than JOIN_SECONDS older than the newest line. The clocks of nodes differ by less, so
        # no line that is still to arrive can be merged with these lines.
        self._fold_lines(self._held_lines.release_until(self._latest - JOIN_SECONDS))
        self._print_rows(self._fold.release_settled(self._latest - JOIN_SECONDS))

    def finish(self, run: str) -> None:
        """Print the remaining lines, including a last line without a newline."""
        for (rank, _, stream), lines in self._unfinished_lines.items():
            self._hold(rank, stream, lines.end(), self._latest or None)
        self._fold_lines(self._held_lines.release_all())
        self._print_rows(self._fold.release_all())
        self._console.result({"run": run, "rows": self._rows})

    def _hold(self, rank: int, stream: str, texts: Iterable[str], at: float | None) -> None:
        for text in texts:
            self._held_lines.put(rank, text, LineInfo(stream, at), self._latest if at is None else at)

    def _fold_lines(self, lines: Iterable[HeldLine]) -> None:
        for line in lines:
            self._fold.add(line.rank, line.text, line.about)

    def _print_rows(self, rows: Iterable[FoldedLine]) -> None:
        for row in rows:
            if self._console.as_json:
                ranks = list_ranks(row.ranks)
                self._rows.append({"ranks": ranks, "stream": row.about.stream, "text": row.span_text})
            else:
                stream: TextIO = sys.stderr if row.about.stream == "err" else sys.stdout
                stream.write(f"{reset_colors(format_row(row, self._world))}\n")
        if not self._console.as_json:
            sys.stdout.flush()
            sys.stderr.flush()


@command("ls")
@click.option("--all", "everything", is_flag=True, help="Also list pools that have ended.")
def list_pools(console: Console, everything: bool) -> None:
    """List the pools that are up, with their runs."""
    with open_session(console) as session:
        found = session.refresh(over=everything).result()
        results = [(session.ledger.pool(each.token).name, each) for each in session.retained_results()]
        # Print each receipt once, if it could not be printed when its pool ended.
        unshown = session.ledger.unprinted_receipts()
        for text in unshown.values():
            console.note(f"receipt that could not be printed before: {text}")
        if unshown and console.shows_notes:
            drop_receipts(session, unshown)
    pools = found if everything else [pool for pool in found if pool.is_live]
    for pool in found:
        is_bad = pool.state in ("unreachable", "unfinished") or bool(pool.start_error)
        if is_bad or (not pool.is_live and not everything):
            detail = format_detail(pool) or "ended: the process that created it exited. No resources remain"
            console.note(f"pool {pool.name}: {detail}")
    when = "ends" if all(pool.ended_at is None for pool in pools) else "ends, or ended"
    rows = [("pool", "state", "provider", "nodes", "price", when, "run", "function", "run state")]
    for pool in pools:
        ready = f"{pool.nodes_ready}/{pool.node_count}"
        remaining = pool.lease_left(time.time())
        ends = "" if remaining is None else f"in {duration(remaining)}"
        if pool.ended_at is not None:
            ready, ends = str(pool.node_count), date_time(pool.ended_at)
        price = hourly(pool) or "-"
        state = {"unfinished": BROKEN_OFF, "unstarted": START_FAILED}.get(pool.shown_state, pool.shown_state)
        runs = [(run.id, run.function, _state_text(pool, run)) for run in pool.runs.values()]
        rows += [(pool.name, state, pool.provider, ready, price, ends, *run) for run in runs or [("-", "-", "-")]]
    if console.as_json:
        retained = [retained_json(*each) for each in results]
        console.result({"pools": [pool_json(pool) for pool in pools], "kept": retained})
    else:
        console.print_table(rows if pools else [("no pools are up",)])
        for name, each in results:
            fetch = f"skyward-tui results {next(iter(each.runs))}"
            console.print_line(f"pool {name} has ended with unfetched {each}. Fetch with: {fetch}")


def _state_text(pool: PoolView, run: RunView) -> str:
    state, remark = run_status(pool, run)
    return (f"{state} ({remark})" if state == "restarting" else state) + unfetched_text(pool, run.id)


@command()
@click.argument("run", default="")
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Sort the trials of a sweep by this column; -COLUMN for descending order.",
)
@click.option("--diff", metavar="R,R", help="Show only the differences between the results of two ranks or tasks.")
@click.option("-o", "--output", metavar="FILE", help="Write the results to FILE: .csv, .json, .parquet or .pickle.")
def results(console: Console, run: str, sort: str | None, diff: str | None, output: str | None) -> int:
    """Show the outcomes of a run, and exit with its status.

    Ranks whose numbers or arrays differ from those of most ranks are named.

    RUN is the id of a run or the name of a pool (its running run, else its last), or a unique prefix. By default, it
    is the only running run.
    """
    if diff is not None and (sort is not None or output is not None):
        raise UsageError("--diff cannot be combined with --sort or --output. Remove them")
    if output is not None:
        from skyward_tui.file_export import check_output

        check_output(output)
    with open_session(console) as session:
        row = fetch_run(session, resolve_run(session, run), console)
        pool = session.ledger.pool(row.token)
        view, metrics = run_view(session.ledger, row), MetricStore()
        runs: Mapping[str, RunView] = {}
        if row.state == "running" and pool.ended_at is None:
            # The run may have ended since the ledger was updated, so ask the pool. If the pool does not answer, show
            # the state in the ledger.
            with suppress(PoolError):
                live = session.observe(pool.key).result()
                view, metrics, runs = live.runs.get(row.run, view), live.metrics, live.runs
        board = _trial_board(session, pool.key, view, sort)
        # The shown run may have ended while other runs of its sweep are still active on the pool.
        if board is not None and board.sheet.gang and not runs:
            with suppress(PoolError):
                runs = session.view(pool.key).runs
        trials = None if board is None else board.table(view.id, view.tasks, metrics, runs)
        if output is not None:
            from skyward_tui.file_export import write_results

            remark = write_results(view, output, session.result_values)
            console.note(f"{output}: {count(len(view.tasks), 'result')}" + (f" ({remark})" if remark else ""))
    if diff is not None:
        show_difference(view, diff, console)
    elif console.as_json:
        console.result(run_json(view) | ({} if trials is None else trials_json(trials, sorted_rows(trials, sort))))
    else:
        console.note(f"run {view.id}: {view.function} on pool {view.pool}, {view.state}")
        # in a sweep by gangs, each run has results of its own, which are shown above the table of trials
        if row.kind != "sweep":
            show_run(view, console)
        if trials is not None:
            show_trials(view, trials, console, sort)
    return errors.OK if view.state == "running" else exit_status(view)


def _trial_board(session: Session, pool: str, run: RunView, sort: str | None) -> TrialTableSource | None:
    """Return the data for a sweep's table of trials; None if the run is not a sweep.

    Raises:
        UsageError: If a sort column is given, but the run is not a sweep.
    """
    try:
        return session.trials(pool, run).result()
    except UsageError:
        if sort is not None or run.kind == "sweep":
            raise
        return None


@command()
@click.argument("run", metavar="[RUN[:RANK]]", default="")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new output until the run ends.")
@click.option("--collapse", is_flag=True, help="Merge lines that differ only in their rank, times and numbers.")
def logs(console: Console, run: str, follow: bool, collapse: bool) -> None:
    """Print the output of a run's ranks, even of ended pools.

    RUN is the id of a run or the name of a pool (its running run, else its last), or a unique prefix. By default, it
    is the only running run. With RUN:RANK, only that rank's output is printed, without a prefix.

    Standard output of the ranks goes to standard output, and standard error of the ranks to standard error.
    """
    run, rank = split_rank(run)
    if collapse and (follow or rank is not None):
        raise UsageError("--collapse cannot be combined with a rank or --follow. Remove them")
    with open_session(console) as session:
        ledger, row = session.ledger, fetch_run(session, resolve_run(session, run), console)
        if rank is not None and row.kind == "broadcast" and row.nodes is None and rank >= row.total:
            raise UsageError(f"run {row.run} has no rank {rank}. Choose a rank from 0 to {row.total - 1}")
        out: _LogOutput | CollapsedPrinter = _LogOutput(console, rank)
        pool = ledger.pool(row.token)
        if row.state == "running" and pool.ended_at is None:
            _fetch_logs(session, pool, follow, console)
            pieces = follow_output(ledger, row.run, session.wait(pool.key, row.run) if follow else None)
        else:
            pieces = rank_output(ledger, row.run)
        if collapse:
            for _ in pieces:  # iterating saves all new output in the archive, from which ``merged_output`` reads
                pass
            pieces = merged_output(ledger, row.run)
            ranks = 1 + max(session.run_logs(row.run).ranges, default=0)
            out = CollapsedPrinter(console, row.total if row.kind == "broadcast" and row.nodes is None else ranks)
        for piece in pieces:
            out.feed(piece)
            if console.has_no_reader:
                break
    out.finish(row.run)


@command()
@click.argument("run")
@click.option(
    "--node", metavar="N", type=click.IntRange(min=0), help="Print the lock file of node N.  [default: the first node]"
)
def lock(console: Console, run: str, node: int | None) -> None:
    """Print a lock file of the packages installed for a run.

    Install the same packages again with "run --lock FILE".

    RUN is the id of a run or the name of a pool (its running run, else its last), or a unique prefix.
    """
    with open_session(console) as session:
        row = resolve_run(session, run)
        found = installed_packages(session.ledger, row)
    if not found:
        raise UsageError(
            f"nothing was installed for run {row.run}: no packages were requested, so its ranks used those of their "
            "hosts' Python"
        )
    if node is not None and node not in found:
        raise UsageError(f"no lock file of node {node} for run {row.run}. Choose one of {_nodes_text(found)}")
    shown = min(found) if node is None else node
    if node is None and (others := [each for each in found if found[each] != found[shown]]):
        console.note(
            f"showing node {shown}; node {_nodes_text(others)} had different packages. Select a node with --node"
        )
    console.result({"run": row.run, "node": shown, "lock": found[shown]})
    if not console.as_json:
        console.print_line(found[shown].rstrip("\n"))


def _nodes_text(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def _fetch_logs(session: Session, pool: PoolRow, follow: bool, console: Console) -> None:
    """Fetch the logs of a pool. If the pool does not answer, report that only the logs on this machine are shown.

    Raises:
        PoolError: If the pool does not answer, and ``follow`` is true.
    """
    try:
        session.observe(pool.key).result()
    except PoolError as error:
        if follow:
            raise
        console.note(f"{format_error(error)}; showing the logs saved on this machine")
    else:
        if session.ledger.read_only_reason:
            console.note("new output cannot be saved; showing the logs saved on this machine")


class _LogOutput:
    """Output for the logs of ranks: printers, or one object for ``--json``."""

    def __init__(self, console: Console, rank: int | None) -> None:
        self.rank = rank
        self._console = console
        self._buffers: dict[int, dict[str, bytearray]] = {}
        self._printers = {
            "out": console.log_printer(sys.stdout, prefix=rank is None),
            "err": console.log_printer(sys.stderr, prefix=rank is None),
        }

    def feed(self, piece: OutputChunk) -> None:
        """Add bytes of a log file."""
        if self.rank not in (None, piece.rank):
            return
        if self._console.as_json:
            buffers = self._buffers.setdefault(piece.rank, {"out": bytearray(), "err": bytearray()})
            buffers[piece.stream] += piece.data
        else:
            self._printers[piece.stream].feed(piece.rank, piece.file, piece.data)
            self._printers[piece.stream].flush()

    def finish(self, run: str) -> None:
        for printer in self._printers.values():
            printer.finish()
        texts = [
            {"rank": rank} | {stream: bytes(data).decode("utf-8", "replace") for stream, data in buffers.items()}
            for rank, buffers in sorted(self._buffers.items())
        ]
        self._console.result({"run": run, "logs": texts})
