"""Sweeps over arguments, in words."""

from __future__ import annotations

from collections.abc import Sequence

from skyward_core.views.trial_sheet import TrialSheet
from skyward_core.views.trials import TrialTable
from skyward_core.wire.safe_text import field

from .words import count

NAMED = 5  # combinations that failed, at the end


def gang_words(nodes: int, has: int) -> str:
    """How the combinations of a sweep by gangs share a pool.

    Args:
        nodes: of each; 0 for all.
        has: how many the pool has, or may get.
    """
    if not nodes or nodes >= has:
        return "each on every rank, one after the other"
    at_once, left = divmod(has, nodes)
    words = f"each on every rank of {count(nodes, 'node')}, {at_once:,} at a time"
    return f"{words} ({count(left, 'node')} of {has} left over)" if left else words


def ranks_cell(ranks: Sequence[int]) -> str:
    """The neighbouring ranks that ran a trial, for a column of a table."""
    return f"{ranks[0]}-{ranks[-1]}" if ranks else ""


def block_words(ranks: int) -> str:
    """How the combinations of a sweep share nodes by gangs of some of their ranks."""
    return f"each on {ranks:,} ranks of a node, as many at a time as nodes have such gangs"


def combination(sheet: TrialSheet, row: int) -> str:
    """A combination of arguments, in words."""
    pairs = zip(sheet.names, sheet.rows[row], strict=True)
    return " ".join(f"{name}={field(text)}" for name, text in pairs)


def outcome_line(found: TrialTable, run: str) -> str:
    """How a sweep by gangs went, and which combinations have no results; "" where all have.

    Args:
        run: any of its runs.
    """
    lack = [row for row in found.rows if row.state != "returned"]
    if not lack:
        return ""
    failed = [row for row in lack if row.task is not None]
    said = [f"{len(found.rows) - len(lack):,} of {count(len(found.rows), 'combination')} have results"]
    for row in failed[:NAMED]:
        pairs = zip(found.names, row.arguments, strict=True)
        said.append(f"{' '.join(map('='.join, pairs))} {row.state} (run {row.run})")
    if len(failed) > NAMED:
        said.append(f"{len(failed) - NAMED:,} more failed")
    if waiting := len(lack) - len(failed):
        said.append(f"{waiting:,} did not begin")
    return f"{'; '.join(said)}: skyward-tui rerun {run} --missing runs what has none"
