"""``skyward-tui cp``: copy of files and folders between this machine and a node."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path

import click

from skyward_core.client import node_file_copy
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_core.util.format_bytes import format_size
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.cli.commands.hosts_trust_shell_forward import find_node
from skyward_tui.cli.commands.ls_logs_results_files import PROGRESS_SECONDS
from skyward_tui.cli.console import Console
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.text.number_and_time_format import count

_NODE_PATH = re.compile(r"(?P<pool>[^/:]+):(?:(?P<rank>\d+):)?(?P<path>.*)", re.DOTALL)


@command("cp")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
def copy(console: Console, source: str, target: str) -> int:
    """Copy files and folders to or from a node.

    Either SRC or DST is POOL:PATH, or POOL:RANK:PATH for the node of that rank. PATH is relative to the home folder
    on the node.
    """
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
    return errors.OK


class CopyProgress:
    """Periodic notes about the progress of a copy."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_note_at = time.monotonic()

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last_note_at >= PROGRESS_SECONDS:
            self._last_note_at = now
            self._console.note(f"{format_size(done)} of {format_size(total)}")
