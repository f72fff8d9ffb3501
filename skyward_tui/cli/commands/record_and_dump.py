"""``skyward-tui record`` and ``replay --dump``: saving of a pool's or run's recording to a file, and its conversion to
text.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from skyward_core.client.replay_session import open_recording
from skyward_core.client.replayable_recording_export import export_recording
from skyward_core.client.run_history import PoolRow, follow_output
from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.util.format_bytes import format_size
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import open_session, resolve_run
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.text.error_advice import format_error

ENDING = ".skyrec"


@command()
@click.argument("run", metavar="RUN|POOL")
@click.option("-o", "--output", metavar="FILE", help="Write to FILE; overwrites nothing.  [default: NAME.skyrec]")
def record(console: Console, run: str, output: str | None) -> int:
    """Save a recording of a pool or a run to one file.

    Play the recording on any machine with "replay FILE". Known secrets are masked. Check the file before you send it.

    RUN is the id of a run or the name of a pool, or a unique prefix.
    """
    with open_session(console) as session:
        pool, run = _resolve_recording(session, run)
        target = Path(output or f"{run or pool.name}{ENDING}")
        if os.path.lexists(target):
            raise UsageError(f"{target} already exists and was not changed. Name another file with -o")
        if pool.ended_at is None:
            _fetch_recording(session, pool, console)
        packed = export_recording(session.ledger, session.ledger.pool(pool.token), run, target)
    what = f"run {run}" if run else f"pool {pool.name}"
    console.print_line(
        f"saved {what} to {target}: {packed.entries:,} events, lines and metrics in {format_size(packed.size)}; "
        f"play it with: skyward-tui replay {target}"
    )
    if packed.left_out:
        console.print_line(f"long logs were shortened in the middle: {format_size(packed.left_out)} omitted")
    console.print_line(
        "Check the file before you send it. Known secrets are masked. The file contains the output of ranks, names of "
        "hosts, users, folders and functions, and error messages."
    )
    about = {"pool": pool.name, "run": run, "bytes": packed.size, "left_out": packed.left_out}
    console.result({"path": str(target)} | about)
    return errors.OK


def dump(record: Path, console: Console) -> int:
    """Print the entries of a recording in order, each as a line of JSON without control characters.

    Args:
        record: File of the recording.
        console: Console for the output.

    Raises:
        UsageError: If the file is not a recording, or belongs to a newer release.
        OSError: If the file cannot be read.
    """
    found = open_recording(record)
    for entry in found.entries():
        console.print_line(json.dumps(entry))
    if found.is_truncated:
        console.note(f"{record} is truncated: later entries are missing")
    return errors.OK


def _resolve_recording(session: Session, word: str) -> tuple[PoolRow, str]:
    """Return the pool that a word names and the ID of its run; "" instead of a run stands for all runs."""
    pool = session.ledger.find_pool(word)
    if pool is not None:
        return pool, ""
    row = resolve_run(session, word)
    pool = session.ledger.pool(row.token)
    return pool, row.run if row.run.startswith(word) else ""


def _fetch_recording(session: Session, pool: PoolRow, console: Console) -> None:
    """Fetch the latest events and logs of a running pool. Does nothing if the pool does not answer."""
    try:
        session.observe(pool.key).result()
    except PoolError as error:
        console.note(f"{format_error(error)}; saving the data on this machine")
        return
    for run in session.ledger.runs(pool.token)[-1:]:
        for _ in follow_output(session.ledger, run.run, None):  # the loop ends when everything is fetched
            pass
