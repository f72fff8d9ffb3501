"""What ranks print, received and stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from skyward_core.protocol.node_paths import ERR, OUT
from skyward_core.store.past_pools import show, show_logs
from skyward_core.store.pool_folder import Archive, rank_of
from skyward_core.views.log_buffer import Clocks
from skyward_core.views.output_merge import Piece, Weaver, weave

if TYPE_CHECKING:
    from skyward_core.views.pool_view import PoolView


PATIENCE = 0.3  # seconds that bytes wait for what tells their place among others

LogSink = Callable[[int, str, int, bytes, str], None]


class LiveLogs:
    """The logs of one pool on one client. Everything here runs on the pool's loop.

    Args:
        ahead: seconds by which our clock is ahead of that of a rank's node.

    Attributes:
        sinks: hear of every piece: rank, stream ("out" or "err"), offset in the stream's file, bytes, and whose run's
            they are; "" where nothing tells for sure.
    """

    def __init__(self, archive: Archive, view: PoolView, ahead: Callable[[int], float]) -> None:
        self._ahead = ahead
        view.rhythms.clocks = Clocks(time.time, ahead)
        self.sinks: list[LogSink] = []
        self._archive = archive
        self._view = view
        self._came_at = dict(archive.cursors)
        self._weavers: dict[str, Weaver] = {}
        self._waiting: asyncio.TimerHandle | None = None

    def prime(self) -> None:
        """Show the end of what was printed before we came."""
        self._weavers = {stem: Weaver(end) for stem, end in show_logs(self._view, self._archive.logs).items()}

    def take(self, name: str, at: int, data: bytes) -> None:
        """Bytes of a file of logs that are new, in the order in which they stand there."""
        stem, _, ending = name.rpartition(".")
        if ending == "metrics":
            self._view.metrics.feed(name, rank_of(name), data)
            return
        weaver = self._weavers.get(stem)
        if weaver is None:
            weaver = self._weavers[stem] = Weaver(_place(self._came_at, stem))
        if ending == "marks":
            weaver.learn(data)
        else:
            weaver.take(ending, at, data)
        for piece in weaver.ready():
            self._give(stem, piece)
        if weaver.holds and self._waiting is None:
            self._waiting = asyncio.get_running_loop().call_later(PATIENCE, self.give_up)

    def give_up(self) -> None:
        """Show what has waited for long enough; what tells its place may not come, or not now."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        for stem, weaver in self._weavers.items():
            for piece in weaver.ready():
                self._give(stem, piece)
            for piece in weaver.rest():
                self._give(stem, piece, sure=False)

    def missed(self, sink: LogSink) -> None:
        """Tell a sink what has come since this client came to the pool, and was shown."""
        for stem, weaver in self._weavers.items():
            for piece in weave(self._archive.logs, stem, _place(self._came_at, stem), weaver.place):
                sink(rank_of(stem), piece.stream, piece.offset, piece.data, piece.run)

    def _give(self, stem: str, piece: Piece, *, sure: bool = True) -> None:
        at = time.time() - self._ahead(rank_of(stem)) if piece.at is None else piece.at
        show(self._view, stem, piece._replace(at=at, run=piece.run or self._view.only_run))
        for sink in tuple(self.sinks):
            sink(rank_of(stem), piece.stream, piece.offset, piece.data, piece.run if sure else "")


def _place(cursors: Mapping[str, int], stem: str) -> tuple[int, int]:
    return cursors.get(stem + OUT, 0), cursors.get(stem + ERR, 0)


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
