"""``skyward-tui cp``: files and folders between this machine and a pool's node."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path

from skyward_core.front import copying
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError
from skyward_core.model.sizes import size_in_words
from skyward_core.wire.safe_text import field

from ..words import count
from .console import Console
from .files import WORD
from .hosts import node_of
from .reach import opened, up

_THERE = re.compile(r"(?P<pool>[^/:]+):(?:(?P<rank>\d+):)?(?P<path>.*)", re.DOTALL)


def copy(source: str, target: str, console: Console) -> int:
    """Copy a file or a folder to a node, or from it.

    Args:
        source: a path here, or ``POOL[:RANK]:PATH``.
        target: the other of the two.

    Raises:
        UsageError: both are here, or both there; or as :func:`skyward_core.front.copying.copy_to_node`.
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
            done = copying.copy_to_node(session.ledger, row, node, Path(source), to["path"], far.is_at)
        else:
            done = copying.copy_from_node(session.ledger, row, node, there["path"], Path(target), far.is_at)
    where = f" on node {node}" if to else ""
    console.note(f"{count(done.files, 'file')}, {size_in_words(done.size)}: {field(done.target)}{where}")
    console.result({"node": node} | asdict(done))
    return exit_status.OK


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
