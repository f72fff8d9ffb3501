"""``skyward-tui files`` and ``fetch``: what ranks wrote on their nodes, named and brought here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from skyward_core.front import hosts
from skyward_core.front.history import PoolRow
from skyward_core.front.session import Session
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError
from skyward_core.model.sizes import size_in_words
from skyward_core.model.written_file import not_fetched
from skyward_core.wire.safe_text import field

from ..as_json import fetched_json, written_json
from ..words import ago, count
from .console import Console
from .reach import meant, opened
from .report import table

T = TypeVar("T")
WORD = 3.0  # seconds between two words on how far it is


def files(word: str, patterns: Sequence[str], console: Console) -> int:
    """The files that the ranks of a run, or of a pool, wrote; exit status 1 where a node could not be asked.

    Args:
        word: the run's id, or the pool's name.
    """
    with opened(console) as session:
        pool, run = _meant(session, word)
        here = session.works_here(pool)
        if here:
            console.note(f"pool {pool.name} runs on this machine: {_here(pool)}")
        found = session.files(pool.key, run, patterns, whole=True).result()
    rows = [("node", "size", "changed", "file")]
    rows += [
        (str(each.node), size_in_words(each.size), ago(each.age), field(each.path)) for each in found.files
    ]
    console.result({"files": [written_json(each) for each in found.files], "untold": found.untold})
    if not console.as_json:
        for line in table(rows) if found.files else ():
            console.say(line)
    if not found.files and not found.failures and not here:
        console.note("its ranks have written no such file" if patterns else "its ranks have written no files")
    if found.untold:
        console.note(f"{count(found.untold, 'more file')}: say which, by patterns")
    for node, why in found.failures.items():
        console.note(f"node {node} cannot be asked: {field(why)}")
    return exit_status.FAILED if found.failures else exit_status.OK


def fetch(word: str, patterns: Sequence[str], to: str | None, console: Console) -> int:
    """Bring them here; exit status 1 where not all have come."""
    with opened(console) as session:
        pool, run = _meant(session, word)
        if session.works_here(pool):
            console.note(f"pool {pool.name} runs on this machine: {_here(pool)}")
        far = _Far()
        target = Path(to) if to is not None else None
        haul = _told(session.fetch_files(pool.key, run, patterns, target, far.is_at), far, console)
    console.result({"files": [fetched_json(each) for each in haul.files], "notes": haul.notes})
    failed = [each for each in haul.files if each.error]
    for each in haul.files:
        if not console.as_json and not each.error:
            console.say(field(str(each.target)))
    new = [each for each in haul.files if each.is_new]
    there = len(haul.files) - len(new) - len(failed)
    size = size_in_words(sum(each.file.size for each in new))
    console.note(
        f"{count(len(new), 'file')} fetched, {size}" + (f"; {there:,} here already" if there else "")
    )
    for names, node, why in not_fetched(failed):
        console.note(f"not fetched: {field(names)} of node {node}: {field(why)}")
    for note in haul.notes:
        console.note(field(note))
    return exit_status.FAILED if failed or haul.notes else exit_status.OK


def _here(pool: PoolRow) -> str:
    return f"what its ranks write is here already, in {field(str(pool.spec.get('cwd') or 'your own folder'))}"


def _meant(session: Session, word: str) -> tuple[PoolRow, str | None]:
    """The pool that is meant, and the run, unless all of the pool is.

    Raises:
        UsageError: there is none such, or it has ended.
    """
    pool, run = session.ledger.find(word), None
    if pool is None:
        row = meant(session, word)
        pool, run = session.ledger.pool(row.token), row.run
    if pool.ended_at is None:
        return pool, run
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(pool.ended_at))
    if session.works_here(pool):
        raise UsageError(f"pool {pool.name} ended at {when}, and ran on this machine: {_here(pool)}")
    receipt = pool.receipt or {}
    left = [field(str(each)) for part in ("notes", "lost") for each in receipt.get(part, ())]
    said = f"; its receipt says: {'; '.join(left)}" if left else ""
    copies = [f"\n  {each}" for each in _copies(session, pool, receipt.get("stays", ()))]
    how = f"\nto copy its ranks' working folders:{''.join(copies)}" if copies else ""
    raise UsageError(f"pool {pool.name} ended at {when}, and nobody gives out its files any more{said}{how}")


def _copies(session: Session, pool: PoolRow, places: Sequence[tuple[int, str]]) -> Iterator[str]:
    """The commands that bring folders which stay on hosts here."""
    for node, folder in places:
        with suppress(UsageError, OSError):  # the receipt says where they lie
            yield field(hosts.copy_command(session.ledger, pool, node, folder))


class _Far:
    """How far it is, told by another thread."""

    done = total = 0

    def is_at(self, done: int, total: int) -> None:
        self.done, self.total = done, total


def _told(future: Future[T], far: _Far, console: Console) -> T:
    """Wait, with a word now and then."""
    while True:
        try:
            return future.result(WORD)
        except TimeoutError:
            if future.done():
                raise
            console.note(f"{size_in_words(far.done)} of {size_in_words(far.total)}")
