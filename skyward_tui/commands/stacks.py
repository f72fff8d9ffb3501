"""``skyward-tui stacks``: where every rank is."""

from __future__ import annotations

from skyward_core.front.stacks import SIGNAL, as_json, as_text, in_ranges, merged
from skyward_core.model import exit_status
from skyward_core.model.stacks import Stacks

from .console import Console
from .reach import live_run, opened


def stacks(word: str, console: Console, *, signal: bool, threads: bool) -> int:
    """Print them, equal ones together; exit status 1 where not all are known.

    Args:
        word: the run's id, or the pool's name.
        signal: ranks that cannot be read may be sent a signal.
        threads: all threads, not only the one that runs the function.
    """
    with opened(console) as session:
        pool, run = live_run(session, word)
        found = session.stacks(pool.key, run, signal=signal).result()
        if (ranks := found.askable) and not signal and _allowed(found, console):
            found = merged(found, session.stacks(pool.key, run, ranks, signal=True).result())
        folder = str(pool.spec.get("cwd") or "")
    console.result(as_json(found))
    if not console.as_json:
        for line in as_text(found, (folder,), threads=threads):
            console.say(line)
    return exit_status.FAILED if found.unknown else exit_status.OK


def _allowed(found: Stacks, console: Console) -> bool:
    """Whether the person lets ranks be sent a signal."""
    ranks = found.askable
    why = next(each.why for each in found.ranks if each.rank in ranks)
    console.note(f"{_called(ranks)} cannot be read: {why}.\n{SIGNAL}.")
    if not console.is_terminal:
        console.note("--signal allows it.")
        return False
    return console.ask("Send it? (yes)").strip().lower() == "yes"


def _called(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {in_ranges(ranks)}"
