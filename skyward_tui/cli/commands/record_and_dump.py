"""``skyward-tui record``: what happened to a pool or one of its runs, in one file that can be played again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from skyward_core.client.recording_export import export_recording
from skyward_core.client.replay_session import open_recording
from skyward_core.client.run_history import PoolRow, follow_output
from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.util.byte_sizes import format_size
from skyward_tui.cli.console import Console
from skyward_tui.cli.pool_and_run_lookup import open_session, resolve_run
from skyward_tui.cli.shared_options import command
from skyward_tui.text.error_hints import format_error

ENDING = ".skyrec"


@command()
@click.argument("run", metavar="RUN|POOL")
@click.option("-o", "--output", metavar="FILE", help="The file to write; overwrites nothing.  [default: NAME.skyrec]")
def record(console: Console, run: str, output: str | None) -> int:
    """Pack the record of a pool or a run into one file.

    "replay FILE" plays it, on any machine. Secrets that are known as such are blanked; look at it before you send it.

    RUN is a run's id or a pool's name, or as much of one as tells it from others.
    """
    with open_session(console) as session:
        pool, run = _resolve_recording(session, run)
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
    about = {"pool": pool.name, "run": run, "bytes": packed.size, "left_out": packed.left_out}
    console.result({"path": str(target)} | about)
    return errors.OK


def dump(record: Path, console: Console) -> int:
    """Print a record's entries, in their order, each as a line of JSON, in which no character acts on a terminal.

    Raises:
        UsageError: it is none, or of a newer release.
        OSError: it cannot be read.
    """
    found = open_recording(record)
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
