"""Processes of this machine, and files of the client."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyward_core.store.ledger import Ledger

FORKS_WORKERS = "forks-workers"  # name of a process in the place of an interpreter, not of an agent's (`quick_workers`)


def descendants(root: int) -> set[int]:
    """Return all processes below ``root``, according to /proc; empty without /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended while we looked
        if f"({FORKS_WORKERS})" in text:
            continue
        fields = text.rpartition(")")[2].split()
        parents[int(text.partition(" ")[0])] = int(fields[1])
    below: set[int] = set()
    grown = {root}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown} - below
        below |= grown
    return below


def exists(pid: int) -> bool:
    """Check whether a process runs. A zombie does not count."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def read_log(ledger: Ledger, run: str, rank: int, stream: str = "out") -> bytes:
    """Return a rank's output during an ended run, from the client's files.

    Args:
        stream: "out" or "err".

    Raises:
        UsageError: If there is no such run.
    """
    from skyward_core.store.run_log_reader import RunLogs  # which ranks do without

    return b"".join(piece.data for piece in RunLogs(ledger, run).pieces(rank) if piece.stream == stream)


def run_command(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with options of :func:`subprocess.run`, and return its output as text."""
    return subprocess.run(command, **{"capture_output": True, "text": True, "check": False, "timeout": 90} | options)
