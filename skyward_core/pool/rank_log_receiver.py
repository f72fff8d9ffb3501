"""Reception of the ranks' log bytes: storage in the pool folder and ordered publication of stdout and stderr."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from skyward_core.protocol.node_paths import ERR, OUT
from skyward_core.store.past_pool_views import add_logs, add_output
from skyward_core.store.pool_folder import PoolFolder, parse_rank
from skyward_core.views.log_buffers_and_rank_activity import Clocks
from skyward_core.views.stdout_stderr_order import ORDER_TIMEOUT, Piece, StreamMerger, merge_streams

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext


LogSink = Callable[[int, str, int, bytes, str], None]


class LiveLogs:
    """Publisher of one pool's log output to the view and to other listeners of this client. Runs on the pool's loop.

    Attributes:
        sinks: Called with each piece: rank, stream ("out" or "err"), offset in the stream's file, bytes and run. The
            run is "" if it is uncertain.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._archive, self._view = context.archive, context.view
        self._view.activity.clocks = Clocks(time.time, context.clock_ahead_of)
        self.sinks: list[LogSink] = []
        self._attach_cursors = dict(self._archive.cursors)
        self._weavers: dict[str, StreamMerger] = {}
        self._flush_timer: asyncio.TimerHandle | None = None

    def show_earlier(self) -> None:
        """Add the last lines of the logs to the pool's view, as far as they were stored before this client attached."""
        self._weavers = {stem: StreamMerger(end) for stem, end in add_logs(self._view, self._archive.logs).items()}

    def receive(self, name: str, at: int, data: bytes) -> None:
        """Publish new bytes of a log file as soon as the order of stdout and stderr is known."""
        stem, _, ending = name.rpartition(".")
        if ending == "metrics":
            self._view.metrics.feed(name, parse_rank(name), data)
            return
        weaver = self._weavers.get(stem)
        if weaver is None:
            weaver = self._weavers[stem] = StreamMerger(_start_offsets(self._attach_cursors, stem))
        if ending == "marks":
            weaver.add_marks(data)
        else:
            weaver.add_bytes(ending, at, data)
        for piece in weaver.pop_ready():
            self._publish(stem, piece)
        if weaver.has_held_bytes and self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(ORDER_TIMEOUT, self.flush_pending)

    def flush_pending(self) -> None:
        """Publish the pieces that still wait for marks, which state the order of stdout and stderr."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        for stem, weaver in self._weavers.items():
            for piece in weaver.pop_ready():
                self._publish(stem, piece)
            for piece in weaver.pop_all():
                self._publish(stem, piece, sure=False)

    def replay(self, sink: LogSink) -> None:
        """Call a sink with all pieces that were published since this client attached."""
        for stem, weaver in self._weavers.items():
            for piece in merge_streams(
                self._archive.logs, stem, _start_offsets(self._attach_cursors, stem), weaver.place
            ):
                sink(parse_rank(stem), piece.stream, piece.offset, piece.data, piece.run)

    def _publish(self, stem: str, piece: Piece, *, sure: bool = True) -> None:
        at = time.time() - self._context.clock_ahead_of(parse_rank(stem)) if piece.at is None else piece.at
        add_output(self._view, stem, piece._replace(at=at, run=piece.run or self._view.only_run))
        for sink in tuple(self.sinks):
            sink(parse_rank(stem), piece.stream, piece.offset, piece.data, piece.run if sure else "")


def _start_offsets(cursors: Mapping[str, int], stem: str) -> tuple[int, int]:
    return cursors.get(stem + OUT, 0), cursors.get(stem + ERR, 0)


RETRY_INTERVAL = 1.0  # seconds between checks for free disk space


class LogReceiver:
    """Receiver of one pool's log bytes. Writes them to disk and retries after a full disk.

    Args:
        archive: Folder of the pool.
        show: Called with new bytes: name, offset, bytes.
        ask: Requests all logs from the nodes again, beginning at the cursors.
        cannot: Called with each write error.

    Attributes:
        shown: Log file -> number of bytes that were passed to ``show`` or were stored before this client attached.
    """

    def __init__(
        self,
        archive: PoolFolder,
        show: Callable[[str, int, bytes], None],
        ask: Callable[[], None],
        cannot: Callable[[str, Exception], None],
    ) -> None:
        self._archive = archive
        self._show = show
        self._request_logs = ask
        self._on_write_failed = cannot
        self.shown = dict(archive.cursors)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_unwritten(self) -> bool:
        """Whether received bytes are missing on disk."""
        cursors = self._archive.cursors
        return any(cursors.get(name, 0) < shown for name, shown in self.shown.items())

    def receive(self, name: str, at: int, data: bytes) -> None:
        """Store and publish a piece of a log file. Pieces may repeat after a reconnection or a request."""
        have, end = self._archive.cursors.get(name, 0), at + len(data)
        if at <= have < end:
            try:
                self._archive.write_log(name, have, data[have - at :])
            except OSError as error:
                self._on_write_failed("logs", error)
        shown = self.shown.get(name, 0)
        if end > shown:
            self.shown[name] = end
            begin = max(at, shown)
            self._show(name, begin, data[begin - at :])
        if self._timer is None and self._archive.cursors.get(name, 0) < end:
            self._timer = asyncio.get_running_loop().call_later(RETRY_INTERVAL, self._retry_writes)

    def stop(self) -> None:
        """Stop retrying to write the bytes that did not fit on the disk."""
        if self._timer is not None:
            self._timer.cancel()

    def _retry_writes(self) -> None:
        self._timer = None
        if not self.has_unwritten:
            return
        if self._archive.has_room():
            self._request_logs()
        self._timer = asyncio.get_running_loop().call_later(RETRY_INTERVAL, self._retry_writes)
