"""Ending work that goes on in another thread, and the processes that it has started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..model.errors import Cancelled


class Stop:
    """A wish that can be uttered once, from any thread: the work ends as soon as it can."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._asked = False

    def ask(self) -> None:
        """Have the work end."""
        with self._lock:
            self._asked = True
            for end in self._ends:
                end()

    @contextmanager
    def ends(self, end: Callable[[], None]) -> Iterator[None]:
        """While in it, the wish is fulfilled by ``end``; at once where it was uttered before.

        Raises:
            Cancelled: it was uttered.
        """
        with self._lock:
            self._ends.append(end)
            if self._asked:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)
        if self._asked:
            raise Cancelled("The loading of the script was given up")
