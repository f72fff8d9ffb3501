"""Sessions for commands, and lookup of the pools and runs that the user names."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from skyward_core.client.run_history import PoolRow, RunRow
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError, UsageError
from skyward_tui.cli.console import Console
from skyward_tui.text.hint_commands import format_detail, format_error

SHOWN = 5  # number of matches listed for an ambiguous word; they fit one line


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
                when = time.strftime("%Y-%m-%d %H:%M", time.localtime(ended.ended_at))
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


def find_run(session: Session, run: str) -> RunRow:
    """Return a run by its id.

    Raises:
        UsageError: If the run does not exist.
    """
    row = _refresh_run(session, session.ledger.run(run))
    if row is None:
        if session.ledger.find_pool(run) is not None:
            raise UsageError(f"{run!r} is a pool, not a run. List the ids of runs with: skyward-tui ls --all")
        raise UsageError(f"no run {run!r}. List pools and their runs with: skyward-tui ls --all")
    return row


def resolve_run(session: Session, word: str) -> RunRow:
    """Return a run by its id, or the latest run of a pool by the pool's name or key; unique prefixes are enough.

    Raises:
        UsageError: If nothing matches, or the prefix is ambiguous.
    """
    ledger = session.ledger
    if (run := _refresh_run(session, ledger.run(word))) is not None:
        return run
    if (pool := ledger.find_pool(word)) is not None:
        return _latest_run(session, pool)
    runs, names = ledger.runs_with_prefix(word), ledger.pool_names_with_prefix(word)
    if len(runs) + len(names) > 1:
        fitting = [*names, *(f"{run.run} ({run.function})" for run in runs)]
        shown = ", ".join(fitting[:SHOWN]) + (" …" if len(fitting) > SHOWN else "")
        raise UsageError(f"{word!r} is ambiguous: {shown}. Write more characters")
    if runs:
        return find_run(session, runs[0].run)
    if names and (pool := ledger.find_pool(names[0])) is not None:
        return _latest_run(session, pool)
    raise UsageError(f"no run or pool {word!r}. List pools and their runs with: skyward-tui ls --all")


def live_run(session: Session, word: str) -> tuple[PoolRow, str]:
    """Return a running pool and the id of one of its runs.

    Args:
        session: The session.
        word: A run; or a pool, which selects its newest run ("" if it has none).

    Raises:
        UsageError: If the pool does not exist, or has ended.
    """
    pool = session.ledger.find_pool(word)
    if pool is not None:
        (pool,) = live_pools(session, [word])
        runs = session.ledger.runs(pool.token)
        return pool, runs[-1].run if runs else ""
    row = resolve_run(session, word)
    pool = session.ledger.pool(row.token)
    if pool.ended_at is not None:
        raise UsageError(f"pool {pool.name} has ended: its ranks no longer exist")
    return pool, row.run


def _refresh_run(session: Session, row: RunRow | None) -> RunRow | None:
    """Return the current row of a run. If its pool answers, update the ledger first, which may lack the end of the
    run."""
    if row is None:
        return None
    session.probe_pools([session.ledger.pool(row.token).key]).result()
    return session.ledger.run(row.run)


def _latest_run(session: Session, pool: PoolRow) -> RunRow:
    session.probe_pools([pool.key]).result()
    runs = session.ledger.runs(pool.token)
    if not runs:
        raise UsageError(f"pool {pool.name} has had no run")
    return runs[-1]


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
    if live or any(row.run in kept.runs for kept in session.ledger.retained_results(row.token)):
        try:
            for line in (session.fetch_run(row.run) if live else session.fetch(row.token)).result():
                console.note(line)
        except PoolError as error:
            console.note(format_error(error))
    return find_run(session, row.run)


def live_and_retained_pools(session: Session, pools: Sequence[str]) -> tuple[list[PoolRow], list[PoolRow]]:
    """Return the named pools that are running, and the named pools that have ended with results on their hosts.

    A name selects the running pool of that name; without one, all ended pools of that name.

    Args:
        session: The session.
        pools: Names or keys of pools.

    Raises:
        UsageError: If a pool does not exist.
    """
    retained = {kept.token: session.ledger.pool(kept.token) for kept in session.retained_results()}.values()
    live = {row.name for row in session.ledger.live_pools()}
    ended = [row for row in retained if row.key in pools or (row.name in pools and row.name not in live)]
    found = {word for row in ended for word in (row.name, row.key)} - live
    return live_pools(session, [pool for pool in pools if pool not in found]), ended
