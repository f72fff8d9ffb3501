"""Search in the logs and results of past runs, in steps of limited duration."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from skyward_core.client.run_history import PastRun
from skyward_core.model.errors import UsageError
from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.store.ledger import Ledger
from skyward_core.store.run_log_reader import LineBatch
from skyward_core.store.run_log_reader import RunLogs as RunLogs
from skyward_core.store.state_folder import pool_path
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.log_buffers_and_rank_activity import join_lines

STEP_SECONDS = 0.2  # seconds after which one step of a search ends
MAX_SEARCH_BYTES = 1 << 30  # maximum bytes searched of one run's logs
MAX_MATCH_CHARS = 300  # maximum characters shown of a matching line
CONTEXT_CHARS = 40  # characters shown before the first matching word in a shortened line
_COLOR = re.compile("\x1b\\[[0-9;:]*m")


class _SearchCancelled(Exception):
    """Raised within a search step after another thread has cancelled the search."""


@dataclass(frozen=True, slots=True)
class LineMatch:
    """Matching lines in a run's output or results; all texts are safe to show.

    Attributes:
        rank: First rank with a matching line.
        number: Index of that line in the rank's output, from 0; None for a result or an error.
        line: The line, or its part around the first matching word.
        words: The searched words, casefolded, in the order of their occurrence in the line.
        lines: Number of matching lines.
        whole: Whether the whole run was searched.
    """

    rank: int
    number: int | None
    line: str
    words: tuple[str, ...]
    lines: int = 1
    whole: bool = False

    @property
    def location_text(self) -> str:
        """Location in words, such as "r3 line 1,205, and 12 more lines"."""
        place = f"r{self.rank} result" if self.number is None else f"r{self.rank} line {self.number + 1:,}"
        more = self.lines - 1
        return f"{place}, and {more:,} more{'' if self.whole else ' so far'}" if more else place

    @property
    def note(self) -> str:
        return f"{self.location_text}: {self.line}"


class LogSearch:
    """Search in the logs and results of runs for words that the ledger does not contain. Not thread-safe.

    Args:
        runs: Runs, newest first.
        words: Words that must all occur in one line, regardless of case. Words that occur in the run's ID, pool,
            function, arguments or error need not be in the line. If all of them do, the run is not searched.

    Attributes:
        runs: Number of runs to search.
        searched: Number of runs that have been searched.
        unread: Number of runs that could not be read.
        done: Whether the search is complete.
    """

    def __init__(self, ledger: Ledger, runs: Sequence[PastRun], words: Sequence[str]) -> None:
        folded = list(dict.fromkeys(word.casefold() for word in words))
        missing = ((run, run.unmatched_words(folded)) for run in runs if run.run)
        incomplete = [(run, those) for run, those in missing if those]
        self.runs, self.searched, self.unread, self.done = len(incomplete), 0, 0, not incomplete
        self._cancelled = False
        self._matches = self._search_runs(ledger, incomplete)

    def cancel(self) -> None:
        """Stop a step that another thread is executing, at its next piece or ledger row, and prevent further steps."""
        self._cancelled = True

    def step(self, seconds: float = STEP_SECONDS) -> dict[str, LineMatch]:
        """Search for the given number of seconds, and at least one piece. Return new or changed matches by run ID.

        Raises:
            LedgerError: If the ledger cannot be read.
        """
        end = time.monotonic() + seconds
        found: dict[str, LineMatch] = {}
        with suppress(_SearchCancelled):
            while not (self._cancelled or self.done):
                piece = next(self._matches, None)
                if piece is None:
                    self.done = True
                elif piece[1] is not None:
                    found[piece[0]] = piece[1]
                if time.monotonic() >= end:
                    break
        return found

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise _SearchCancelled

    def _search_runs(
        self, ledger: Ledger, runs: Sequence[tuple[PastRun, Sequence[str]]]
    ) -> Iterator[tuple[str, LineMatch | None]]:
        for run, words in runs:
            try:
                for found in search_run(ledger, run.run, run.key, words, self._check_cancelled):
                    yield run.run, found
            except (OSError, UsageError):
                # The run's files were pruned during the search, or were not written by this library.
                self.unread += 1
            self.searched += 1


def search_run(
    ledger: Ledger, run: str, pool: str, words: Sequence[str], check: Callable[[], None] = lambda: None
) -> Iterator[LineMatch | None]:
    """Search a run for lines with all words. After each piece, yield the matches so far.

    Args:
        pool: Key of the pool.
        words: Casefolded words.
        check: Called while the ledger is read; an exception from it ends the search.

    Raises:
        UsageError: If the run does not exist.
        OSError: If the run's files cannot be read.
        LedgerError: If the ledger cannot be read.
    """
    found: LineMatch | None = None
    read = 0
    for rank, batch in _iter_batches(ledger, run, pool, check):
        if places := matching_lines(batch.texts, words):
            here = _make_match(rank, batch.number + places[0], batch.texts[places[0]], words)
            found = replace(found or here, lines=(found.lines if found else 0) + len(places))
        yield found
        if (read := read + batch.size) >= MAX_SEARCH_BYTES:
            break
    if found is None:
        given = []
        for outcome, _ in ledger.iter_outcomes(run):
            check()
            given += [
                _make_match(outcome.rank, None, text, words)
                for text in _outcome_lines(outcome)
                if matching_lines([text], words)
            ]
        found = replace(given[0], lines=len(given)) if given else None
    yield None if found is None else replace(found, whole=read < MAX_SEARCH_BYTES)


def _iter_batches(ledger: Ledger, run: str, pool: str, check: Callable[[], None]) -> Iterator[tuple[int, LineBatch]]:
    """Yield the stored lines of a run, rank by rank. Do not create the log folder if it is missing."""
    if (pool_path(pool) / "logs").is_dir():
        logs = RunLogs(ledger, run, check)
        for rank in sorted(logs.ranges):
            yield from ((rank, batch) for batch in logs.batches(rank))


def matching_lines(texts: Sequence[str], words: Sequence[str]) -> list[int]:
    """Return the indexes of the lines that contain all words. The words must be casefolded; color codes are ignored."""
    text = join_lines(texts)
    if "\x1b" in text:
        text = _COLOR.sub("", text)
    text = text.casefold()
    if not all(word in text for word in words):
        return []
    return [at for at, line in enumerate(text.split("\n")) if all(word in line for word in words)]


def _outcome_lines(outcome: Outcome) -> Iterator[str]:
    """Yield a rank's result and error, each as one line."""
    if outcome.summary is not None:
        yield sanitize_line(outcome.summary.text)
    if outcome.error is not None:
        yield sanitize_line(f"{outcome.error.type}: {outcome.error.message}")


def _make_match(rank: int, number: int | None, line: str, words: Sequence[str]) -> LineMatch:
    text = sanitize_line(line)
    places = {word: text.casefold().find(word) for word in words}
    first = max(0, min(places.values()) - CONTEXT_CHARS) if len(text) > MAX_MATCH_CHARS else 0
    shown = f"{'… ' if first else ''}{text[first : first + MAX_MATCH_CHARS].strip()}"
    return LineMatch(rank, number, shown, tuple(sorted(places, key=lambda word: places[word])))
