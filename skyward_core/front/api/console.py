"""Prints a pool's logs as they come, each line with its rank; what a script shows while it runs.

Of what ranks print, text and colours are shown, and nothing else that a terminal acts on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...tasks.stdout_lines import release, stand_in
from ...transport.background_loop import submit
from ...views.logs import Lines, prefix_of
from ...wire.safe_text import closed

if TYPE_CHECKING:
    from ...pool.news import News


class ScriptConsole:
    """Writes to ``sys.stdout`` from a thread of its own: a slow terminal must not hold up the pool."""

    def __init__(self, news: News) -> None:
        self._out = stand_in()
        self._lines: dict[tuple[int, str], Lines] = {}
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()
        self._stop = submit(self._hear(news)).result()

    def _take(self, rank: int, stream: str, at: int, data: bytes) -> None:
        lines = self._lines.setdefault((rank, stream), Lines()).split(data)
        if lines and self._thread.is_alive():
            self._queue.put("".join([_printed(rank, line) for line in lines]))

    def _write(self) -> None:
        last = False
        while not last:
            texts = [self._queue.get()]
            while not self._queue.empty():  # one write for all that came while the last one took its time
                texts.append(self._queue.get())
            last = texts[-1] is None
            try:
                self._out.write_between("".join(filter(None, texts)))
            except (OSError, ValueError):
                return  # nobody reads any more; the logs are in their files

    async def _hear(self, news: News) -> Callable[[], None]:
        # What ranks printed while they were set up, or before a connection was whole, has come already.
        return news.subscribe(None, self._take, missed=True)

    async def _hear_no_more(self) -> None:
        self._stop()

    def close(self) -> None:
        """Write what is left, unfinished lines too. Not to be called on the pools' thread."""
        submit(self._hear_no_more()).result()
        for (rank, _), lines in self._lines.items():
            if rest := lines.preview():
                self._queue.put(_printed(rank, rest))
        self._queue.put(None)
        self._thread.join(timeout=10)
        release(self._out)


def _printed(rank: int, line: str) -> str:
    return f"{prefix_of(rank)}{closed(line)}\n"
