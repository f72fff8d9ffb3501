"""Nodes that are out of reach, and of which nobody can say that they are gone: suspected, and lost in the end.

A dead host whose address refuses looks like one whose SSH server is started anew; a pool's only host like a client
that is cut off. So such a node has some time to answer, and no run waits for it any longer than that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ..links.link import Link


class Suspicion:
    """Of the nodes of one pool, as one client reaches them.

    Args:
        lost_after: seconds that a node has to answer; None for no limit.
        lose: told of a node that has not, with when it fell silent and when it was taken as lost.
    """

    def __init__(self, lost_after: float | None, lose: Callable[[Link, str], None]) -> None:
        self._lost_after = lost_after
        self._lose = lose
        self._since: dict[Link, tuple[float, asyncio.TimerHandle]] = {}

    @property
    def any(self) -> bool:
        """Whether any node is suspected."""
        return bool(self._since)

    def down(self, link: Link) -> str:
        """A node is out of reach, now or still; says since when, and until when it is waited for."""
        if self._lost_after is None:
            return ""
        if link not in self._since:
            timer = link.loop.call_later(self._lost_after, self._over, link)
            self._since[link] = time.time(), timer
        since, _ = self._since[link]
        return f"suspected since {_clock(since)}, taken as lost at {_clock(since + self._lost_after)}"

    def up(self, link: Link) -> None:
        """It answers, or is known to be gone."""
        if (suspected := self._since.pop(link, None)) is not None:
            suspected[1].cancel()

    def stop(self) -> None:
        """The pool is left."""
        for link in list(self._since):
            self.up(link)

    def _over(self, link: Link) -> None:
        since, _ = self._since.pop(link)
        if not link.up and not link.gone:
            now = time.time()
            words = f"no answer since {_clock(since)}, lost at {_clock(now)}, after {self._lost_after:g} s"
            self._lose(link, words)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
