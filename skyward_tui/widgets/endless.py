"""Ends a search whose regular expression would take for ever on a line: ``(a+)+b`` on thirty letters does.

The matcher of Python lets go of nothing while it works, and looks for signals alone, in the main thread alone. So a
timer of the processor's time comes, and an exception ends the match.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

PATIENCE = 0.5  # seconds of the processor between two looks whether another line's turn has come

_watched: list[Callable[[], object]] = []
_before: object = None


class EndlessSearch(Exception):
    """It takes too long on a line."""


def _look(signum: int, frame: Any) -> None:
    global _before
    if not _watched:
        return  # it came as the watch ended
    before, _before = _before, _watched[0]()
    if before == _before:
        raise EndlessSearch


@contextmanager
def ended(line: Callable[[], object]) -> Iterator[None]:
    """Have what is done here end where it takes too long on one line; in another thread it is not watched.

    Args:
        line: which one it is at.

    Raises:
        EndlessSearch: it does.
    """
    global _before
    if current_thread() is not main_thread() or _watched:
        yield
        return
    if (
        signal.getsignal(signal.SIGVTALRM) is not _look
    ):  # which stays: by default this signal ends the process
        signal.signal(signal.SIGVTALRM, _look)
    _before = _watched
    _watched.append(line)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE, PATIENCE)
        yield
    finally:
        _watched.clear()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
