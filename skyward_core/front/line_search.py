"""What past runs printed and gave, looked through for words: newest first, in steps, as far as it is kept here.

Files are read in pieces, and of the lines of a piece none is looked at by itself where the words are not in it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..model.errors import UsageError
from ..model.outcome import Outcome
from ..store.home import pool_path
from ..store.ledger import Ledger
from ..store.run_logs import Batch, RunLogs
from ..views.logs import text_of
from ..wire.safe_text import field
from .past_runs import PastRun
from .session_part import SessionPart

STEP = 0.2  # seconds of one step
MOST = 1 << 30  # bytes of one run's logs that are looked through
SHOWN = 300  # characters of a line that are told
BEFORE = 40  # of them that stand before the first word, where the line is longer
_COLOR = re.compile("\x1b\\[[0-9;:]*m")


class _NotWanted(Exception):
    """Nobody wants to know any more."""


@dataclass(frozen=True, slots=True)
class FoundInLogs:
    """Where some words stand together in what a run printed, or gave; all texts may be shown.

    Attributes:
        rank: whose line it is: of the ranks that printed such a line the first.
        number: of that line among all that the rank printed in the run, from 0; None where it is of a result or an
            error, and no line has the words.
        line: it, or the part of it that has the first word.
        words: in small letters, in the order in which they stand there.
        lines: how many there are.
        whole: whether all of the run was looked through, so that there are no others.
    """

    rank: int
    number: int | None
    line: str
    words: tuple[str, ...]
    lines: int = 1
    whole: bool = False

    @property
    def where(self) -> str:
        """In words: "r3 line 1,205, and 12 more lines"."""
        place = f"r{self.rank} result" if self.number is None else f"r{self.rank} line {self.number + 1:,}"
        more = self.lines - 1
        return f"{place}, and {more:,} more{'' if self.whole else ' so far'}" if more else place

    @property
    def note(self) -> str:
        return f"{self.where}: {self.line}"


class LogSearch:
    """Looks through runs for the words that the ledger does not have of them. For one thread at a time.

    Args:
        runs: newest first.
        words: all of them have to stand in one line, in small or capital letters, but for those that a run has in its
            id, pool, function, arguments or error. A run that has them all there is not looked through.

    Attributes:
        runs: how many are to be looked through.
        looked: how many have been.
        unread: how many of these could not be read.
        done: whether nothing is left to do.
    """

    def __init__(self, ledger: Ledger, runs: Sequence[PastRun], words: Sequence[str]) -> None:
        folded = list(dict.fromkeys(word.casefold() for word in words))
        lacking = ((run, run.lacks(folded)) for run in runs if run.run)
        wanted = [(run, those) for run, those in lacking if those]
        self.runs, self.looked, self.unread, self.done = len(wanted), 0, 0, not wanted
        self._cancelled = False
        self._work = self._through(ledger, wanted)

    def cancel(self) -> None:
        """Have a step that goes on in another thread end at its next piece, or row of the ledger, and none follow."""
        self._cancelled = True

    def step(self, seconds: float = STEP) -> dict[str, FoundInLogs]:
        """Look on for so long; at least one piece. Gives what has been found, or has grown, by the run's id.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        end = time.monotonic() + seconds
        found: dict[str, FoundInLogs] = {}
        with suppress(_NotWanted):
            while not (self._cancelled or self.done):
                piece = next(self._work, None)
                if piece is None:
                    self.done = True
                elif piece[1] is not None:
                    found[piece[0]] = piece[1]
                if time.monotonic() >= end:
                    break
        return found

    def _check(self) -> None:
        if self._cancelled:
            raise _NotWanted

    def _through(
        self, ledger: Ledger, runs: Sequence[tuple[PastRun, Sequence[str]]]
    ) -> Iterator[tuple[str, FoundInLogs | None]]:
        for run, words in runs:
            try:
                for found in in_run(ledger, run.run, run.key, words, self._check):
                    yield run.run, found
            except (OSError, UsageError):  # pruned or forgotten meanwhile, or no file of ours any more
                self.unread += 1
            self.looked += 1


class LogSearches(SessionPart):
    """The part of a session that makes them."""

    ledger: Ledger

    def search_logs(self, runs: Sequence[PastRun], words: Sequence[str]) -> LogSearch:
        """Look through what some runs printed; each step takes time."""
        return LogSearch(self.ledger, runs, words)


def in_run(
    ledger: Ledger, run: str, pool: str, words: Sequence[str], check: Callable[[], None] = lambda: None
) -> Iterator[FoundInLogs | None]:
    """Look through a run for lines that have all of some words; what is found so far, after each piece.

    Args:
        pool: its key.
        words: in small letters.
        check: called while the ledger is read; what it raises ends the search.

    Raises:
        UsageError: no such run.
        OSError: its files cannot be read.
        LedgerError: the ledger cannot be read.
    """
    found: FoundInLogs | None = None
    read = 0
    for rank, batch in _printed(ledger, run, pool, check):
        if places := having(batch.texts, words):
            here = _found(rank, batch.number + places[0], batch.texts[places[0]], words)
            found = replace(found or here, lines=(found.lines if found else 0) + len(places))
        yield found
        if (read := read + batch.size) >= MOST:
            break
    if found is None:
        given = []
        for outcome, _ in ledger.each_outcome(run):
            check()
            given += [
                _found(outcome.rank, None, text, words) for text in _told(outcome) if having([text], words)
            ]
        found = replace(given[0], lines=len(given)) if given else None
    yield None if found is None else replace(found, whole=read < MOST)


def _printed(ledger: Ledger, run: str, pool: str, check: Callable[[], None]) -> Iterator[tuple[int, Batch]]:
    """What is kept of what its ranks printed; where the pool has no folder any more none is made."""
    if (pool_path(pool) / "logs").is_dir():
        logs = RunLogs(ledger, run, check)
        for rank in sorted(logs.parts):
            for batch in logs.batches(rank):
                yield rank, batch


def having(texts: Sequence[str], words: Sequence[str]) -> list[int]:
    """Which of some lines have all of the words, which are in small letters; colours are looked through."""
    text = text_of(texts)
    if "\x1b" in text:
        text = _COLOR.sub("", text)
    text = text.casefold()
    if not all(word in text for word in words):
        return []
    return [at for at, line in enumerate(text.split("\n")) if all(word in line for word in words)]


def _told(outcome: Outcome) -> Iterator[str]:
    """What a rank gave, and what it failed by, a line each."""
    if outcome.summary is not None:
        yield field(outcome.summary.text)
    if outcome.error is not None:
        yield field(f"{outcome.error.type}: {outcome.error.message}")


def _found(rank: int, number: int | None, line: str, words: Sequence[str]) -> FoundInLogs:
    text = field(line)
    places = {word: text.casefold().find(word) for word in words}
    first = max(0, min(places.values()) - BEFORE) if len(text) > SHOWN else 0
    shown = f"{'… ' if first else ''}{text[first : first + SHOWN].strip()}"
    return FoundInLogs(rank, number, shown, tuple(sorted(places, key=lambda word: places[word])))
