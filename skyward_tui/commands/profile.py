"""``skyward-tui profile``: where a rank spends its time."""

from __future__ import annotations

from pathlib import Path

from skyward_core.front.session import Session
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError
from skyward_core.views.profile import as_json, parsed, table

from ..saving import profile_files, save_all
from .console import Console
from .reach import live_run, opened
from .report import table as laid_out


def profile(word: str, seconds: float, to: str | None, console: Console) -> int:
    """Print the hottest lines, and write a file for speedscope and a flame graph here.

    Args:
        word: ``RUN:RANK`` or ``POOL:RANK``.
        to: the folder of the files; the current one without.

    Raises:
        UsageError: it is neither.
        OSError: the files cannot be written.
    """
    name, colon, number = word.rpartition(":")
    if not (colon and name and number.isascii() and number.isdecimal()):
        raise UsageError(
            f"{word!r} names no rank: write RUN:RANK or POOL:RANK, as in {word.partition(':')[0]}:0"
        )
    rank, folder = int(number), Path(to or ".")
    with opened(console) as session:
        pool, run = live_run(session, name)
        console.note(f"looking at rank {rank} for {seconds:g} s")
        seen = parsed(_taken(session, pool.key, rank, seconds))
    called = f"{pool.name}-{run}-r{rank}" if run else f"{pool.name}-r{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = save_all(folder, {name: [text] for name, text in profile_files(seen, called).items()})
    console.result(as_json(seen) | {"files": [str(path) for path in paths]})
    if not console.as_json:
        for line in laid_out(table(seen)) if seen.samples else ():
            console.say(line)
    if not seen.samples:
        console.note("it was idle each time: it waits for something, and skyward-tui stacks shows where")
    console.note(f"written: {', '.join(map(str, paths))}")
    return exit_status.OK


def _taken(session: Session, pool: str, rank: int, seconds: float) -> str:
    return session.profile(pool, rank, seconds).result()
