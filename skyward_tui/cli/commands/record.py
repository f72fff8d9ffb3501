"""``skyward-tui record``: what happened to a pool or one of its runs, in one file that can be played again."""

from __future__ import annotations

import json
import os
from pathlib import Path

from skyward_core.client.recording import export_recording
from skyward_core.client.replay_session import open_recording as read
from skyward_core.client.run_history import PoolRow, follow_output
from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.util.byte_sizes import format_size
from skyward_tui.cli.console import Console
from skyward_tui.cli.pool_and_run_lookup import open_session, resolve_run
from skyward_tui.text.error_hints import format_error

ENDING = ".skyrec"


def record(word: str, output: str | None, console: Console) -> int:
    """Write the record of a pool or of a run, and say what is in it.

    Args:
        word: a pool's name or key, or a run's id.
        output: the file; None for one of its name in the current folder.

    Raises:
        UsageError: there is no such pool or run, nothing is kept of it, or something is at that place already.
        OSError: it cannot be written.
    """
    with open_session(console) as session:
        pool, run = _resolve_recording(session, word)
        target = Path(output or f"{run or pool.name}{ENDING}")
        if os.path.lexists(target):
            raise UsageError(f"{target} is there already and is left as it is; name another file with -o")
        if pool.ended_at is None:
            _fetch_recording(session, pool, console)
        packed = export_recording(session.ledger, session.ledger.pool(pool.token), run, target)
    what = f"run {run}" if run else f"pool {pool.name}"
    console.print_line(
        f"{target} holds {what}: {packed.entries:,} events, lines and figures in {format_size(packed.size)}; "
        f"skyward-tui replay {target} plays it"
    )
    if packed.left_out:
        console.print_line(
            f"of long logs it has the beginning and the end: {format_size(packed.left_out)} are left out"
        )
    console.print_line(
        "Look at it before you send it. Secrets that are known as such are blanked; what ranks printed, names of "
        "hosts, users, folders and functions, and messages of errors, are in it."
    )
    console.result(
        {
            "path": str(target),
            "pool": pool.name,
            "run": run,
            "bytes": packed.size,
            "left_out": packed.left_out,
        }
    )
    return errors.OK


def dump(record: Path, console: Console) -> int:
    """Print a record's entries, in their order, each as a line of JSON, in which no character acts on a terminal.

    Raises:
        UsageError: it is none, or of a newer release.
        OSError: it cannot be read.
    """
    found = read(record)
    for entry in found.entries():
        console.print_line(json.dumps(entry))
    if found.is_truncated:
        console.note(f"{record} was cut off: what came after is not in it")
    return errors.OK


def _resolve_recording(session: Session, word: str) -> tuple[PoolRow, str]:
    """The pool that is meant, and the run of it; "" for all runs."""
    pool = session.ledger.find_pool(word)
    if pool is not None:
        return pool, ""
    row = resolve_run(session, word)
    pool = session.ledger.pool(row.token)
    return pool, row.run if row.run.startswith(word) else ""


def _fetch_recording(session: Session, pool: PoolRow, console: Console) -> None:
    """Have what a pool that is up has told since brought here, as far as it answers."""
    try:
        session.observe(pool.key).result()
    except PoolError as error:
        console.note(f"{format_error(error)}; this is what was kept here")
        return
    for run in session.ledger.runs(pool.token)[-1:]:
        for _ in follow_output(session.ledger, run.run, None):  # until nothing more of it comes here
            pass
