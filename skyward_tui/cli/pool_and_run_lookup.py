"""Sessions for commands, and lookup of the pools and runs that the user names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches

from skyward_core.client.run_history import PoolRow, RunRow
from skyward_core.client.session import Session
from skyward_core.client.sweep_launch_and_resumption import gang_runs
from skyward_core.model.errors import PoolError, UsageError
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.text.error_hint_text import format_detail, format_error
from skyward_tui.text.number_time_and_run_state_format import date_time
from skyward_tui.text.queue_trial_and_comparison_rows import queue_rows

SHOWN = 5  # maximum number of matches that the error for an ambiguous word lists, so that it fits one line


@contextmanager
def open_session(console: Console) -> Iterator[Session]:
    """Provide a session for one command; its pools stay up afterwards."""
    session = Session()
    if session.notice:
        console.note(session.notice)
    try:
        yield session
    finally:
        session.detach()


def split_rank(word: str) -> tuple[str, int | None]:
    """Return the run or pool and the rank in ``RUN:RANK``; the rank is None if it is missing."""
    name, colon, number = word.rpartition(":")
    with_rank = colon and name and number.isascii() and number.isdecimal()
    return (name, int(number)) if with_rank else (word, None)


def live_pools(session: Session, pools: Sequence[str]) -> list[PoolRow]:
    """Return the running pools with the given names or keys, without duplicates.

    Raises:
        UsageError: If one of the pools is not running.
    """
    live = {word: row for row in session.ledger.live_pools() for word in (row.name, row.key)}
    for pool in pools:
        if pool not in live:
            ended = session.ledger.find_pool(pool)
            if ended is not None and ended.ended_at is not None:
                when = date_time(ended.ended_at)
                raise UsageError(
                    f"pool {pool} ended at {when}. Show its last run with: skyward-tui logs {pool}, "
                    f"skyward-tui results {pool}"
                )
            names = list(dict.fromkeys(row.name for row in live.values()))
            if not names:
                raise UsageError(f"pool {pool!r} does not exist: no pools are up")
            close = get_close_matches(pool, names, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Running pools: {', '.join(names)}"
            raise UsageError(f"no pool {pool!r} is up. {hint}")
    return list({live[pool].key: live[pool] for pool in pools}.values())


def resolve_run(session: Session, word: str) -> RunRow:
    """Return the run that a word names: the id of a run, or the name or key of a pool, or a unique prefix.

    A pool stands for its running run, or else for its last run; "" for the only running run of all pools.

    Raises:
        UsageError: If nothing matches, or the word is ambiguous.
    """
    ledger = session.ledger
    if not word:
        latest = [run for pool in ledger.live_pools() for run in _runs_of_pool(session, pool)]
        runs = [run for run in latest if run.state == "running"]
        if len(runs) == 1:
            return runs[0]
        listed = _list_names(runs or ledger.latest_runs(0.0, SHOWN))
        fix = f"Name one of them: {listed}" if listed else "Start one with: skyward-tui run"
        raise UsageError(f"{'several runs are' if runs else 'no run is'} running. {fix}")
    if (run := ledger.run(word)) is not None:
        return current_run(session, run)
    if (pool := ledger.find_pool(word)) is not None:
        return _only_run(pool, _runs_of_pool(session, pool))
    runs, names = ledger.runs_with_prefix(word), ledger.pool_names_with_prefix(word)
    if len(runs) + len(names) > 1:
        raise UsageError(f"{word!r} is ambiguous: {_list_names(runs, names)}. Write more characters")
    if runs:
        return current_run(session, runs[0])
    if names and (pool := ledger.find_pool(names[0])) is not None:
        return _only_run(pool, _runs_of_pool(session, pool))
    raise UsageError(f"no run or pool {word!r}. List pools and their runs with: skyward-tui ls --all")


def live_run(session: Session, word: str, *, for_rank: bool = False) -> tuple[PoolRow, str]:
    """Return a running pool and the id of one of its runs, as ``resolve_run`` does.

    Args:
        session: The session.
        word: ID of a run, or name or key of a pool. If the pool has had no run, the returned ID is "".
        for_rank: Whether the caller needs only a rank of the pool. The run is then "" if several are running.

    Raises:
        UsageError: If the pool does not exist or has ended, or the word is ambiguous.
    """
    pool = session.ledger.find_pool(word)
    if pool is not None:
        (pool,) = live_pools(session, [word])
        runs = _runs_of_pool(session, pool)
        return pool, "" if not runs or (for_rank and len(runs) > 1) else _only_run(pool, runs).run
    row = resolve_run(session, word)
    pool = session.ledger.pool(row.token)
    if pool.ended_at is not None:
        raise UsageError(f"pool {pool.name} has ended: its ranks no longer exist")
    return pool, row.run


def current_run(session: Session, row: RunRow) -> RunRow:
    """Return the ledger's row of a run. Before, update the ledger from the run's pool, because the ledger may lack the
    end of the run.
    """
    session.probe_pools([session.ledger.pool(row.token).key]).result()
    return session.ledger.run(row.run) or row


def _runs_of_pool(session: Session, pool: PoolRow) -> list[RunRow]:
    """Return the running runs of a pool; if none is running, its last run. If each trial of a sweep is a run, only the
    latest of these runs is listed.
    """
    session.probe_pools([pool.key]).result()
    runs = session.ledger.runs(pool.token)
    running = [run for run in runs if run.state == "running"] if pool.ended_at is None else []
    if len(running) > 1:
        with suppress(PoolError):  # if the pool does not answer, its queued runs count as running
            queued = {row.run for row in queue_rows(session.observe(pool.key).result()) if row.waits}
            running = [run for run in running if run.run not in queued] or running
        gangs = {run.run for run in gang_runs(session.ledger, running[-1])[0]}
        if gangs.issuperset(run.run for run in running):
            return running[-1:]
    return running or runs[-1:]


def _only_run(pool: PoolRow, runs: Sequence[RunRow]) -> RunRow:
    if not runs:
        reason = (pool.receipt or {}).get("start_error")
        raise UsageError(f"pool {pool.name} did not start: {reason}" if reason else f"pool {pool.name} has had no run")
    if len(runs) > 1:
        raise UsageError(f"pool {pool.name} has several running runs: {_list_names(runs)}. Name one of them")
    return runs[0]


def _list_names(runs: Sequence[RunRow], names: Sequence[str] = ()) -> str:
    found = [*names, *(f"{run.run} ({run.function})" for run in runs)]
    return ", ".join(found[:SHOWN]) + (" …" if len(found) > SHOWN else "")


def note_unreachable(session: Session, console: Console) -> None:
    """Update the states of all pools in the ledger, and report the pools that do not answer."""
    for pool in session.probe_pools().result():
        if pool.state != "starting":
            console.note(f"pool {pool.name} does not answer; showing its last known state: {format_detail(pool)}")


def fetch_run(session: Session, row: RunRow, console: Console) -> RunRow:
    """Fetch retained results of a run, and return its row in the ledger.

    The results are on the nodes of the run's pool, or on the hosts of a pool that has ended. Failures are reported.
    """
    live = session.ledger.pool(row.token).ended_at is None
    if live or any(row.run in results.runs for results in session.ledger.retained_results(row.token)):
        try:
            for line in (session.fetch_run(row.run) if live else session.fetch(row.token)).result():
                console.note(line)
        except PoolError as error:
            console.note(format_error(error))
    return current_run(session, row)


def live_and_retained_pools(session: Session, pools: Sequence[str]) -> tuple[list[PoolRow], list[PoolRow]]:
    """Return the named pools that are running, and the named pools that have ended with results on their hosts.

    A name selects the running pool of that name. If no pool of that name is running, it selects all ended ones.

    Args:
        session: The session.
        pools: Names or keys of pools.

    Raises:
        UsageError: If a pool does not exist.
    """
    retained = {results.token: session.ledger.pool(results.token) for results in session.retained_results()}.values()
    live = {row.name for row in session.ledger.live_pools()}
    ended = [row for row in retained if row.key in pools or (row.name in pools and row.name not in live)]
    found = {word for row in ended for word in (row.name, row.key)} - live
    return live_pools(session, [pool for pool in pools if pool not in found]), ended
