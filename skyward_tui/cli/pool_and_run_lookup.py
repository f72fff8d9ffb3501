"""How commands come by a session, and by the pools and runs that a person names."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from skyward_core.client.run_history import PoolRow, RunRow
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError, UsageError
from skyward_tui.cli.console import Console
from skyward_tui.text.error_hints import format_detail, format_error

SHOWN = 5  # of things that a word may mean


@contextmanager
def open_session(console: Console) -> Iterator[Session]:
    """A session for one command; all pools go on when it ends."""
    session = Session()
    if session.notice:
        console.note(session.notice)
    try:
        yield session
    finally:
        session.detach()


def live_pools(session: Session, pools: Sequence[str]) -> list[PoolRow]:
    """The pools of those names or keys, each once; all of them are up.

    Raises:
        UsageError: one of them is not.
    """
    live = {word: row for row in session.ledger.live_pools() for word in (row.name, row.key)}
    for pool in pools:
        if pool not in live:
            over = session.ledger.find_pool(pool)
            if over is not None and over.ended_at is not None:
                when = time.strftime("%Y-%m-%d %H:%M", time.localtime(over.ended_at))
                raise UsageError(
                    f"pool {pool} is not up any more, it ended at {when}; skyward-tui logs {pool} and "
                    f"skyward-tui results {pool} show what its last run left"
                )
            names = list(dict.fromkeys(row.name for row in live.values()))
            if not names:
                raise UsageError(f"no pool {pool!r} is up, and no other is")
            close = get_close_matches(pool, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"up are: {', '.join(names)}"
            raise UsageError(f"no pool {pool!r} is up; {hint}")
    return list({live[pool].key: live[pool] for pool in pools}.values())


def find_run(session: Session, run: str) -> RunRow:
    """A run as the ledger has it.

    Raises:
        UsageError: it has none of that name.
    """
    row = _refresh_run(session, session.ledger.run(run))
    if row is None:
        if session.ledger.find_pool(run) is not None:
            raise UsageError(f"{run!r} is a pool; write the run's id, which skyward-tui ls --all shows")
        raise UsageError(f"no run {run!r}; skyward-tui ls --all shows pools and their runs")
    return row


def resolve_run(session: Session, word: str) -> RunRow:
    """The run that a person means: by its id, or the latest one of a pool, by its name or key; either may be shortened
    as far as it stays the only one.

    Raises:
        UsageError: nothing fits, or more than one thing does.
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
        raise UsageError(f"{word!r} may mean {shown}: write more of it")
    if runs:
        return find_run(session, runs[0].run)
    if names and (pool := ledger.find_pool(names[0])) is not None:
        return _latest_run(session, pool)
    raise UsageError(f"no run or pool {word!r}; skyward-tui ls --all shows pools and their runs")


def live_run(session: Session, word: str) -> tuple[PoolRow, str]:
    """The pool that is meant, and the run: the one named, or the pool's newest.

    Raises:
        UsageError: there is none such, or it has ended.
    """
    pool = session.ledger.find_pool(word)
    if pool is not None:
        (pool,) = live_pools(session, [word])
        runs = session.ledger.runs(pool.token)
        return pool, runs[-1].run if runs else ""
    row = resolve_run(session, word)
    pool = session.ledger.pool(row.token)
    if pool.ended_at is not None:
        raise UsageError(f"pool {pool.name} has ended, and its ranks with it")
    return pool, row.run


def _refresh_run(session: Session, row: RunRow | None) -> RunRow | None:
    """Return a run as it is now, if its pool answers: the ledger may not have recorded its end yet."""
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
    """Record in the ledger what has become of all pools, and name those that do not answer."""
    for pool in session.probe_pools().result():
        if pool.state != "starting":
            console.note(f"pool {pool.name} does not answer, and is shown as it was last seen: {format_detail(pool)}")


def fetch_run(session: Session, row: RunRow, console: Console) -> RunRow:
    """A run as the ledger has it once what waits for it is brought here: on the nodes of its pool, where it is over and
    has no client, or on the hosts of one that has ended; what cannot be had now is told of."""
    live = session.ledger.pool(row.token).ended_at is None
    if live or any(row.run in kept.runs for kept in session.ledger.retained_results(row.token)):
        try:
            for line in (session.fetch_run(row.run) if live else session.fetch(row.token)).result():
                console.note(line)
        except PoolError as error:
            console.note(format_error(error))
    return find_run(session, row.run)


def live_and_retained_pools(session: Session, pools: Sequence[str]) -> tuple[list[PoolRow], list[PoolRow]]:
    """The pools of those names or keys that are up, and those that have ended and left something on their hosts.

    A name means the pool that is up; where none is, all that had it.

    Raises:
        UsageError: there is no such pool.
    """
    left = {kept.token: session.ledger.pool(kept.token) for kept in session.retained_results()}.values()
    live = {row.name for row in session.ledger.live_pools()}
    ended = [row for row in left if row.key in pools or (row.name in pools and row.name not in live)]
    found = {word for row in ended for word in (row.name, row.key)} - live
    return live_pools(session, [pool for pool in pools if pool not in found]), ended
