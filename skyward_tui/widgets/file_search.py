"""Looks through a log's files beside the app: they are read in a thread, and matched in the main one, piece by piece.

Who matches holds up all threads of a process anyway, and only in the main one can a match be ended that would take for
ever (``endless``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TypeVar

from skyward_core.front.history import StoredLines
from skyward_core.views.logs import Line

from .endless import EndlessSearch, ended
from .log_window import Hits, LogWindow, Matcher

T = TypeVar("T")

SLICES = 8_192, 524_288  # lines that are searched before what was found is shown: at first, and at most
PIECE = 32_768  # lines that are read at once, at most, where each of them is looked at
AT_ONCE = 1_024  # lines that are looked at before a key is heard again


async def search_earlier(window: LogWindow, hits: Hits) -> AsyncIterator[list[int]]:
    """Look through the files for a filter or a search of a window, as long as it is wanted, the newest lines first;
    gives what has been found, piece by piece. What would take for ever is given up."""
    stored = window.stored
    size, most = SLICES
    while stored is not None and hits.begin and hits in (window.filter, window.search):
        begin = max(0, hits.begin - size)
        try:
            numbers = await search_files(stored, hits.matcher, begin, hits.begin)
        except EndlessSearch:
            window.give_up(hits)
            return
        if hits in (window.filter, window.search):
            hits.add_earlier(numbers, begin)
            yield numbers
        size = min(2 * size, most)


async def search_files(stored: StoredLines, matcher: Matcher, start: int, stop: int) -> list[int]:
    """The numbers of the lines that match from ``start`` until below ``stop``; may take long. Who waits no longer ends
    it.

    Raises:
        EndlessSearch: it would take for ever on a line.
    """
    in_front = _InFront()
    try:
        return await asyncio.to_thread(
            _numbers, stored, matcher, range(start, min(stop, stored.count)), in_front
        )
    finally:
        in_front.close()


class _InFront:
    """Has something done on the loop that runs now, for a thread that waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def close(self) -> None:
        """Do nothing more."""
        self._is_closed = True

    def do(self, work: Callable[[], T]) -> T:
        """Raises what the work does.

        Raises:
            CancelledError: it is closed.
        """
        done: Future[T] = Future()

        def act() -> None:
            if self._is_closed:
                done.cancel()
                return
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001  whoever waits gets it
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        return done.result()


def _numbers(stored: StoredLines, matcher: Matcher, wanted: range, in_front: _InFront) -> list[int]:
    def may(text: str) -> bool:
        return in_front.do(partial(_may, matcher, text))

    found: list[int] = []
    try:
        for at in range(wanted.start, wanted.stop, PIECE):
            lines = stored.read(at, min(at + PIECE, wanted.stop), may)
            for first in range(0, len(lines), AT_ONCE):
                found += in_front.do(partial(_hits, matcher, lines[first : first + AT_ONCE]))
    except CancelledError:
        return []
    return found


def _may(matcher: Matcher, text: str) -> bool:
    with ended(lambda: text):
        return matcher.may(text)


def _hits(matcher: Matcher, lines: list[Line]) -> list[int]:
    seen = 0
    found = []
    with ended(lambda: seen):
        for seen, line in enumerate(lines):  # noqa: B007  the watch looks at it
            if matcher.hits(line.text):
                found.append(line.number)
    return found
