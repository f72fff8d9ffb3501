"""``skyward-tui debug``: the debugger of a rank that waits at a breakpoint."""

from __future__ import annotations

import codecs
import os
import select
import sys
from uuid import uuid4

from skyward_core.front.session import Session
from skyward_core.model import exit_status
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.wire.safe_text import paragraph

from .console import Console
from .reach import live_run, opened

LOOK = 0.05  # seconds
QUIET = 3  # answers without a word after which nothing more comes of what was typed last


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
    with opened(console) as session:
        pool, _ = live_run(session, name if with_rank else word)
        visit = _Line(session, pool.key)
        rank, said = visit.begin(int(number) if with_rank else None)
        console.note(
            f"debugging rank {rank}; Ctrl-D leaves until its next breakpoint, q for good: it goes on"
        )
        try:
            visit.go_on(said)
        except KeyboardInterrupt:
            visit.leave()
        console.note(f"\nrank {rank} goes on")
    return exit_status.OK


class _Line:
    def __init__(self, session: Session, pool: str) -> None:
        self._session, self._pool, self._who = session, pool, uuid4().hex
        self._rank = 0
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self, rank: int | None) -> tuple[int, bytes]:
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

    def go_on(self, said: bytes) -> None:
        """Pass on both ways until it is over."""
        self._print(said)
        asked, quiet, typing = None, 0, True
        while typing or quiet < QUIET:
            if asked is None:
                asked = self._session.debug(self._pool, self._rank, self._who)
            if typing and select.select([0], [], [], LOOK)[0]:
                typed = os.read(0, 1 << 16)
                typing = bool(typed)
                quiet = 0
                self._type(typed)
            if typing and not asked.done():
                continue
            said, over = asked.result()
            asked = None
            self._print(said)
            if over:
                return
            quiet = 0 if said else quiet + 1

    def _type(self, typed: bytes) -> None:
        text = typed.decode(errors="replace")
        self._session.debug(self._pool, self._rank, self._who, text=text, eof=not typed).result()

    def leave(self) -> None:
        """Have the rank go on now."""
        self._type(b"")

    def _print(self, said: bytes) -> None:
        sys.stdout.write(paragraph(self._text.decode(said)))
        sys.stdout.flush()
