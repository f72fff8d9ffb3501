"""``skyward-tui debug`` and ``stacks``: the debugger of a rank at a breakpoint, stacks and profiles of ranks."""

from __future__ import annotations

import codecs
import os
import select
import sys
from pathlib import Path
from uuid import uuid4

from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.stack_values import Stacks
from skyward_core.util.terminal_safe_text import sanitize_paragraph
from skyward_core.views.stack_groups import (
    SIGNAL,
    as_text,
    format_ranges,
    merge_stacks,
    parse_profile,
    profile_table,
)
from skyward_core.views.stack_groups import as_json as profile_as_json
from skyward_core.views.stack_groups import stack_as_json as as_json
from skyward_tui.cli.console import Console
from skyward_tui.cli.pool_and_run_lookup import live_run, open_session
from skyward_tui.cli.run_report import table as laid_out
from skyward_tui.file_export import profile_files, save_all

POLL_SECONDS = 0.05  # seconds
MAX_EMPTY_REPLIES = 3  # answers without a word after which nothing more comes of what was typed last


def debug(word: str, console: Console) -> int:
    """Have this terminal, or what is piped here, type to the rank's pdb, and print what that says.

    Args:
        word: ``RUN``, or ``RUN:RANK``; a pool's name does for its newest run.

    Raises:
        UsageError: there is no such run or rank.
        PoolError: no rank waits.
    """
    name, colon, number = word.rpartition(":")
    with_rank = bool(colon and name and number.isascii() and number.isdecimal())
    with open_session(console) as session:
        pool, _ = live_run(session, name if with_rank else word)
        visit = _DebugSession(session, pool.key)
        rank, said = visit.attach(int(number) if with_rank else None)
        console.note(f"debugging rank {rank}; Ctrl-D leaves until its next breakpoint, q for good: it goes on")
        try:
            visit.run(said)
        except KeyboardInterrupt:
            visit.resume_rank()
        console.note(f"\nrank {rank} goes on")
    return errors.OK


class _DebugSession:
    def __init__(self, session: Session, pool: str) -> None:
        self._session, self._pool, self._who = session, pool, uuid4().hex
        self._rank = 0
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    def attach(self, rank: int | None) -> tuple[int, bytes]:
        """The rank, the first that waits where none is named, and what its debugger says."""
        number = 0 if rank is None else rank
        while True:
            try:
                said, _ = self._session.debug(self._pool, number, self._who).result()
            except PoolError as error:
                if rank is not None:
                    raise
                last = error
            except UsageError:
                if rank is not None or not number:
                    raise
                raise PoolError(f"no rank waits at a breakpoint; rank {number - 1}: {last}") from None
            else:
                self._rank = number
                return number, said
            number += 1

    def run(self, said: bytes) -> None:
        """Pass on both ways until it is over."""
        self._print(said)
        asked, quiet, typing = None, 0, True
        while typing or quiet < MAX_EMPTY_REPLIES:
            if asked is None:
                asked = self._session.debug(self._pool, self._rank, self._who)
            if typing and select.select([0], [], [], POLL_SECONDS)[0]:
                typed = os.read(0, 1 << 16)
                typing = bool(typed)
                quiet = 0
                self._send(typed)
            if typing and not asked.done():
                continue
            said, over = asked.result()
            asked = None
            self._print(said)
            if over:
                return
            quiet = 0 if said else quiet + 1

    def _send(self, typed: bytes) -> None:
        text = typed.decode(errors="replace")
        self._session.debug(self._pool, self._rank, self._who, text=text, eof=not typed).result()

    def resume_rank(self) -> None:
        """Have the rank go on now."""
        self._send(b"")

    def _print(self, said: bytes) -> None:
        sys.stdout.write(sanitize_paragraph(self._text.decode(said)))
        sys.stdout.flush()


def stacks(word: str, console: Console, *, signal: bool, threads: bool) -> int:
    """Print them, equal ones together; exit status 1 where not all are known.

    Args:
        word: the run's id, or the pool's name.
        signal: ranks that cannot be read may be sent a signal.
        threads: all threads, not only the one that runs the function.
    """
    with open_session(console) as session:
        pool, run = live_run(session, word)
        found = session.stacks(pool.key, run, signal=signal).result()
        if (ranks := found.askable) and not signal and _ask_signal(found, console):
            found = merge_stacks(found, session.stacks(pool.key, run, ranks, signal=True).result())
        folder = str(pool.spec.get("cwd") or "")
    console.result(as_json(found))
    if not console.as_json:
        for line in as_text(found, (folder,), threads=threads):
            console.print_line(line)
    return errors.FAILED if found.unknown else errors.OK


def _ask_signal(found: Stacks, console: Console) -> bool:
    """Whether the person lets ranks be sent a signal."""
    ranks = found.askable
    why = next(each.why for each in found.ranks if each.rank in ranks)
    console.note(f"{_ranks_text(ranks)} cannot be read: {why}.\n{SIGNAL}.")
    if not console.is_terminal:
        console.note("--signal allows it.")
        return False
    return console.ask("Send it? (yes)").strip().lower() == "yes"


def _ranks_text(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ranges(ranks)}"


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
        raise UsageError(f"{word!r} names no rank: write RUN:RANK or POOL:RANK, as in {word.partition(':')[0]}:0")
    rank, folder = int(number), Path(to or ".")
    with open_session(console) as session:
        pool, run = live_run(session, name)
        console.note(f"looking at rank {rank} for {seconds:g} s")
        seen = parse_profile(_take_profile(session, pool.key, rank, seconds))
    called = f"{pool.name}-{run}-r{rank}" if run else f"{pool.name}-r{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = save_all(folder, {name: [text] for name, text in profile_files(seen, called).items()})
    console.result(profile_as_json(seen) | {"files": [str(path) for path in paths]})
    if not console.as_json:
        for line in laid_out(profile_table(seen)) if seen.samples else ():
            console.print_line(line)
    if not seen.samples:
        console.note("it was idle each time: it waits for something, and skyward-tui stacks shows where")
    console.note(f"written: {', '.join(map(str, paths))}")
    return errors.OK


def _take_profile(session: Session, pool: str, rank: int, seconds: float) -> str:
    return session.profile(pool, rank, seconds).result()
