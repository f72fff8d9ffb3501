"""Clients that have been told something, until each of them has said that it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from .connection import Connection

PATIENCE = 2.0  # seconds for one that does not answer: it is of an older release, or stands still


class ToldAll:
    """Those of one piece of news.

    Args:
        clients: who was told.
        then: called once all of them know, are gone, or have had their time.
    """

    def __init__(self, clients: Iterable[Connection], then: Callable[[], None]) -> None:
        self._missing = set(clients)
        self._then = then
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, then)

    def cancel(self) -> None:
        """Nobody waits for them any more."""
        self._missing.clear()
        self._timer.cancel()

    def knows(self, client: Connection) -> None:
        """A client knows, or is gone."""
        if client not in self._missing:
            return
        self._missing.remove(client)
        if not self._missing:
            self._timer.cancel()
            self._then()
