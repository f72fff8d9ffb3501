"""Prints a pool's logs as they come, each line with its rank; what a script shows while it runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from .logs import Lines, prefix_of
from .loop import submit

if TYPE_CHECKING:
    from .pool.lifecycle import Pool


class Console:
    """Writes whole lines from a thread of its own: a slow terminal must not hold up the pool."""

    def __init__(self, pool: Pool, out: TextIO) -> None:
        self._out = out
        self._lines: dict[tuple[int, str], Lines] = {}
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()
        self._stop = submit(self._hear(pool)).result()

    def _take(self, rank: int, stream: str, at: int, data: bytes) -> None:
        lines = self._lines.setdefault((rank, stream), Lines()).split(data)
        if lines and self._thread.is_alive():
            prefix = prefix_of(rank)
            self._queue.put("".join(f"{prefix}{line}\n" for line in lines))

    def _write(self) -> None:
        while (text := self._queue.get()) is not None:
            try:
                try:
                    self._out.write(text)
                except UnicodeEncodeError as error:  # a terminal that cannot show all characters
                    self._out.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
                self._out.flush()
            except (OSError, ValueError):
                return  # nobody reads any more; the logs are in their files

    async def _hear(self, pool: Pool) -> Callable[[], None]:
        # What ranks printed while they were set up, or before a connection was whole, has come already.
        return pool.subscribe(None, self._take, missed=True)

    async def _hear_no_more(self) -> None:
        self._stop()

    def close(self) -> None:
        """Write what is left, unfinished lines too. Not to be called on the pools' thread."""
        submit(self._hear_no_more()).result()
        for (rank, _), lines in self._lines.items():
            if rest := lines.preview():
                self._queue.put(f"{prefix_of(rank)}{rest}\n")
        self._queue.put(None)
        self._thread.join(timeout=10)
