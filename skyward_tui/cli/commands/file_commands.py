"""``skyward-tui files``, ``fetch`` and ``cp``: files that ranks wrote, and copies between this machine and a node."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from skyward_core.client.run_history import REMAINS, PoolRow
from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_core.model.output_files import list_failed_files
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session, resolve_run
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.file_export import local_files_text
from skyward_tui.text.json_output import fetch_json, file_json
from skyward_tui.text.number_time_and_run_state_format import ago, count, date_time

PROGRESS_SECONDS = 3.0  # seconds between notes about the progress of a download


@command()
@click.argument("run", metavar="RUN|POOL")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
def files(console: Console, run: str, patterns: Sequence[str]) -> int:
    """List the files that ranks wrote on their nodes.

    Lists the files of one run, or of a pool's whole lifetime. PATTERN is a path below the working folder, or a pattern
    such as "out/**" or "*.pt".
    """
    with open_session(console) as session:
        pool, of_run = _resolve_pool(session, run, patterns)
        here = session.is_working_locally(pool)
        if here:
            console.note(f"pool {pool.name} runs on this machine: {local_files_text(pool.spec)}")
        found = session.files(pool.key, of_run, patterns, whole=True).result()
    rows = [("node", "size", "changed", "file")]
    rows += [(str(each.node), format_size(each.size), ago(each.age), sanitize_line(each.path)) for each in found.files]
    console.result({"files": [file_json(each) for each in found.files], "untold": found.omitted_count})
    if found.files and not console.as_json:
        console.print_table(rows)
    if not found.files and not found.failures and not here:
        console.note("the ranks wrote no matching files" if patterns else "the ranks wrote no files")
    if found.omitted_count:
        console.note(f"{count(found.omitted_count, 'more file')} not listed. Narrow the list with patterns")
    for node, reason in found.failures.items():
        console.note(f"cannot list the files of node {node}: {sanitize_line(reason)}")
    return errors.FAILED if found.failures else errors.OK


@command()
@click.argument("run", metavar="RUN|POOL")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--to", metavar="DIR", help="Download to DIR.  [default: outputs/RUN, or outputs/POOL]")
def fetch(console: Console, run: str, patterns: Sequence[str], to: str | None) -> int:
    """Download files that ranks wrote on their nodes.

    Files that were already downloaded are skipped, and interrupted downloads are resumed. Other local files are never
    overwritten.
    """
    with open_session(console) as session:
        pool, of_run = _resolve_pool(session, run, patterns)
        if session.is_working_locally(pool):
            console.note(f"nothing to fetch: pool {pool.name} runs on this machine, and {local_files_text(pool.spec)}")
            console.result({"files": [], "notes": []})
            return errors.OK
        target = Path(to) if to is not None else None
        fetched = session.fetch_files(pool.key, of_run, patterns, target, CopyProgress(console).update).result()
    console.result({"files": [fetch_json(each) for each in fetched.files], "notes": fetched.notes})
    failed = [each for each in fetched.files if each.error]
    for each in fetched.files:
        if not console.as_json and not each.error:
            console.print_line(sanitize_line(str(each.target)))
    new = [each for each in fetched.files if each.is_new]
    skipped = len(fetched.files) - len(new) - len(failed)
    size = format_size(sum(each.file.size for each in new))
    console.note(f"{count(len(new), 'file')} fetched, {size}" + (f"; {skipped:,} already fetched" if skipped else ""))
    for names, node, reason in list_failed_files(failed):
        console.note(f"not fetched: {sanitize_line(names)} of node {node}: {sanitize_line(reason)}")
    for note in fetched.notes:
        console.note(sanitize_line(note))
    return errors.FAILED if failed or fetched.notes else errors.OK


@command()
@click.argument("run", metavar="RUN")
def checkpoints(console: Console, run: str) -> int:
    """List the checkpoints of a run and their copies.

    A checkpoint is complete if it has all files that its manifest, its framework or the previous checkpoint names.
    """
    with open_session(console) as session:
        listing = session.checkpoints(resolve_run(session, run).run).result()
    console.result({"checkpoints": [each.to_json() for each in listing.copies], "problems": listing.problems})
    rows = [("checkpoint", "size", "age", "copies", "state")]
    for each in listing.copies:
        age, state = ago(max(0.0, time.time() - each.set.changed_at)), each.set.problem or "complete"
        name, places = sanitize_line(each.set.name), ", ".join(each.places) or "in parts"
        rows.append((name, format_size(each.set.size), age, places, sanitize_line(state)))
    if rows[1:] and not console.as_json:
        console.print_table(rows)
    for folder in dict.fromkeys(each.folder for each in listing.copies if each.folder):
        console.note(f"on this client: {sanitize_line(folder)}")
    if not rows[1:]:
        console.note("no checkpoints are known: save them in sky.checkpoint_dir(), or name them with --checkpoints")
    for problem in listing.problems:
        console.note(sanitize_line(problem))
    return errors.FAILED if listing.problems else errors.OK


def _resolve_pool(session: Session, word: str, patterns: Sequence[str]) -> tuple[PoolRow, str | None]:
    """Return the pool that the user has named, and the ID of the named run; None instead of the ID means all runs of
    the pool.

    Args:
        session: The session.
        word: A run or a pool.
        patterns: Requested files. If the pool has ended, the error shows how to copy them from the hosts.

    Raises:
        UsageError: If nothing matches, or the pool has ended.
    """
    pool, run = session.ledger.find_pool(word), None
    if pool is None:
        row = resolve_run(session, word)
        pool, run = session.ledger.pool(row.token), row.run
    if pool.ended_at is None:
        return pool, run
    when = date_time(pool.ended_at)
    if session.is_working_locally(pool):
        raise UsageError(f"pool {pool.name} ended at {when}, and ran on this machine: {local_files_text(pool.spec)}")
    receipt = pool.receipt or {}
    notes = [sanitize_line(str(each)) for part in ("notes", "lost") for each in receipt.get(part, ())]
    copies = [f"\n  {each}" for each in _copy_commands(session, pool, receipt.get("stays", ()), patterns)]
    if copies:
        remaining = "; ".join(each.removeprefix(REMAINS) for each in notes if each.startswith(REMAINS))
        other_notes = "".join(f". {each}" for each in notes if not each.startswith(REMAINS))
        what = "these files" if patterns else "the working folders of its ranks"
        raise UsageError(
            f"pool {pool.name} ended at {when}. Remaining on its host: {remaining}{other_notes}. Copy {what} with:"
            f"{''.join(copies)}"
        )
    about = f"; notes of its receipt: {'; '.join(notes)}" if notes else ""
    raise UsageError(f"pool {pool.name} ended at {when}. No further files can be fetched from it{about}")


def _copy_commands(
    session: Session, pool: PoolRow, places: Sequence[tuple[int, str]], patterns: Sequence[str]
) -> Iterator[str]:
    """Yield shell commands that copy the folders that a teardown has left on hosts, or only the requested files in
    these folders.
    """
    from skyward_core.client import ssh_host_groups_and_access  # imported late, because this module imports asyncssh

    for node, folder in places:
        # If the copy commands cannot be built, the receipt still names the folders.
        with suppress(UsageError, OSError):
            # The SSH configuration is named after the pool's unique key, because a new pool may have the name of an
            # ended pool.
            file = ssh_host_groups_and_access.ssh_config(session.ledger, pool, node, pool.key)
            yield sanitize_line(copy_command(file, pool.key, node, folder, patterns))


def copy_command(file: Path, key: str, node: int, folder: str, patterns: Sequence[str]) -> str:
    """Return the shell command that copies a folder from a node to this machine. The pool may have ended.

    Args:
        file: SSH configuration of the nodes.
        key: Key of the pool.
        node: Number of the node.
        folder: The folder on the node.
        patterns: Files and patterns below the folder; empty for the whole folder. scp does not support "**", so a
            pattern with "**" copies the folder before the "**".
    """
    target, into = f"outputs/{key}", f"n{node}"
    if patterns:
        target, into = f"{target}/{into}", ""
    wanted = dict.fromkeys(f"{folder}/{each.partition('**')[0]}".rstrip("/") for each in patterns) or [folder]
    words = ["scp", "-r", "-F", str(file), *(f"{key}-{node}:{each}" for each in wanted), f"{target}/{into}"]
    return f"mkdir -p {shlex.quote(target)} && {shlex.join(words)}"


_NODE_PATH = re.compile(r"(?P<pool>[^/:]+):(?:(?P<rank>\d+):)?(?P<path>.*)", re.DOTALL)


@command("cp")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
def copy(console: Console, source: str, target: str) -> None:
    """Copy files and folders to or from a node.

    Either SRC or DST is POOL:PATH, or POOL:RANK:PATH for the node of that rank. PATH is relative to the home folder
    on the node.
    """
    from skyward_core.client import node_file_copy  # imported late, because these modules import asyncssh
    from skyward_tui.cli.commands.hosts_trust_shell_forward import find_node

    to, of = _NODE_PATH.fullmatch(target), _NODE_PATH.fullmatch(source)
    there = to or of
    if there is None or (to and of):
        raise UsageError(
            "exactly one of SRC and DST must be on a node. Write it as POOL:PATH or POOL:RANK:PATH (./a:b is a local "
            "file)"
        )
    node = find_node(there["pool"], int(there["rank"] or 0), console)
    far = CopyProgress(console)
    with open_session(console) as session:
        (row,) = live_pools(session, (there["pool"],))
        if to:
            done = node_file_copy.copy_to_node(session.ledger, row, node, Path(source), to["path"], far.update)
        else:
            done = node_file_copy.copy_from_node(session.ledger, row, node, there["path"], Path(target), far.update)
    where = f" on node {node}" if to else ""
    console.note(f"{count(done.files, 'file')}, {format_size(done.size)}: {sanitize_line(done.target)}{where}")
    console.result({"node": node} | asdict(done))


class CopyProgress:
    """Periodic notes about the progress of a copy or a download."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_note_at = time.monotonic()

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last_note_at >= PROGRESS_SECONDS:
            self._last_note_at = now
            self._console.note(f"{format_size(done)} of {format_size(total)}")
