"""``skyward-tui cp``: files and folders between this machine and a pool's node."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path

from skyward_core.client import ssh_hosts
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_core.util.byte_sizes import size_in_words
from skyward_core.util.terminal_safe_text import field
from skyward_tui.cli.commands.hosts import node_of
from skyward_tui.cli.commands.pools_and_logs import WORD
from skyward_tui.cli.console import Console
from skyward_tui.cli.pool_and_run_lookup import opened, up
from skyward_tui.text.number_format import count

_THERE = re.compile(r"(?P<pool>[^/:]+):(?:(?P<rank>\d+):)?(?P<path>.*)", re.DOTALL)


def copy(source: str, target: str, console: Console) -> int:
    """Copy a file or a folder to a node, or from it.

    Args:
        source: a path here, or ``POOL[:RANK]:PATH``.
        target: the other of the two.

    Raises:
        UsageError: both are here, or both there; or as :func:`skyward_core.client.ssh_hosts.copy_to_node`.
        PoolError: the node refuses, or the connection was lost.
    """
    to, of = _THERE.fullmatch(target), _THERE.fullmatch(source)
    there = to or of
    if there is None or (to and of):
        raise UsageError(
            "one of the two is on a node, POOL:PATH or POOL:RANK:PATH, and one is here (./a:b is a file here)"
        )
    node = node_of(there["pool"], int(there["rank"] or 0), console)
    far = FarSaid(console)
    with opened(console) as session:
        (row,) = up(session, (there["pool"],))
        if to:
            done = ssh_hosts.copy_to_node(session.ledger, row, node, Path(source), to["path"], far.is_at)
        else:
            done = ssh_hosts.copy_from_node(session.ledger, row, node, there["path"], Path(target), far.is_at)
    where = f" on node {node}" if to else ""
    console.note(f"{count(done.files, 'file')}, {size_in_words(done.size)}: {field(done.target)}{where}")
    console.result({"node": node} | asdict(done))
    return errors.OK


class FarSaid:
    """How far it is, said now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = time.monotonic()

    def is_at(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said >= WORD:
            self._said = now
            self._console.note(f"{size_in_words(done)} of {size_in_words(total)}")
