"""Log bytes as they come from the nodes: on disk here, and on to what shows them.

What the disk does not take (it is full for a moment) is shown all the same, and stays where the nodes have it: the
file's cursor does not move, and once there is room the nodes are asked for it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..store.archive import Archive

AGAIN = 1.0  # seconds between looks at whether there is room


class Intake:
    """Of one pool's logs, as one client has them.

    Args:
        show: given what has not been shown yet: name, offset, bytes.
        ask: has the nodes send again from the cursors on.
        cannot: told when something cannot be written.

    Attributes:
        shown: log file -> bytes of it that were given to ``show``, or were here before.
    """

    def __init__(
        self,
        archive: Archive,
        show: Callable[[str, int, bytes], None],
        ask: Callable[[], None],
        cannot: Callable[[str, Exception], None],
    ) -> None:
        self._archive = archive
        self._show = show
        self._ask = ask
        self._cannot = cannot
        self.shown = dict(archive.cursors)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def behind(self) -> bool:
        """Whether bytes have come that are not on disk."""
        cursors = self._archive.cursors
        return any(cursors.get(name, 0) < shown for name, shown in self.shown.items())

    def take(self, name: str, at: int, data: bytes) -> None:
        """A piece of a log file; perhaps once more, by another connection or because it was asked for."""
        have, end = self._archive.cursors.get(name, 0), at + len(data)
        if at <= have < end:
            try:
                self._archive.write(name, have, data[have - at :])
            except OSError as error:
                self._cannot("logs", error)
        shown = self.shown.get(name, 0)
        if end > shown:
            self.shown[name] = end
            begin = max(at, shown)
            self._show(name, begin, data[begin - at :])
        if self._timer is None and self._archive.cursors.get(name, 0) < end:
            self._timer = asyncio.get_running_loop().call_later(AGAIN, self._look)

    def stop(self) -> None:
        """The pool is left."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if not self.behind:
            return
        if self._archive.has_room():
            self._ask()
        self._timer = asyncio.get_running_loop().call_later(AGAIN, self._look)
