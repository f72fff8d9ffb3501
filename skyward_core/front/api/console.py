"""Prints a pool's logs as they come, each line with its rank; what a script shows while it runs: ranks' standard output
on its own, and their standard error on that.

Of what ranks print, text and colours are shown, and nothing else that a terminal acts on.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TextIO

from ...tasks.stdout_lines import WholeLines, release, stand_in
from ...transport.background_loop import submit
from ...views.logs import Lines, prefix_of
from ...wire.safe_text import closed

if TYPE_CHECKING:
    from ...pool.news import News


PATIENCE = 1.0  # seconds that a call which has ended waits for a slow terminal


class RankText(NamedTuple):
    """Whole lines of a rank's "out" or "err"."""

    stream: str
    lines: str


class ScriptConsole:
    """Writes to the script's streams from a thread of its own: a slow terminal must not hold up the pool.

    The streams are those that ``sys`` has at that moment, so that whatever catches what the script prints (a test's
    ``capsys``, ``redirect_stdout``) catches what its ranks print.
    """

    def __init__(self, news: News) -> None:
        self._out = stand_in()
        self._lines: dict[tuple[int, str], Lines] = {}
        self._queue: queue.SimpleQueue[RankText | None] = queue.SimpleQueue()
        self._heard = self._written = 0  # texts
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()
        self._stop = submit(self._hear(news)).result()

    def _take(self, rank: int, stream: str, at: int, data: bytes) -> None:
        lines = self._lines.setdefault((rank, stream), Lines()).split(data)
        if lines and self._thread.is_alive():
            self._put(RankText(stream, "".join([_printed(rank, line) for line in lines])))

    def _put(self, text: RankText) -> None:
        self._heard += 1
        self._queue.put(text)

    def catch_up(self) -> None:
        """Wait until all that has come is written: a call's lines are there when its value is."""
        heard = self._heard
        if self._written < heard and self._thread.is_alive():
            with self._progress:
                self._progress.wait_for(lambda: self._written >= heard, PATIENCE)

    def _write(self) -> None:
        last = False
        while not last:
            texts = [self._queue.get()]
            while not self._queue.empty():  # one write for all that came while the last one took its time
                texts.append(self._queue.get())
            last = texts[-1] is None
            whole = [text for text in texts if text is not None]
            try:
                for stream, some in groupby(whole, key=lambda text: text.stream):
                    self._show(stream, "".join([text.lines for text in some]))
            except (OSError, ValueError):
                return  # nobody reads any more; the logs are in their files
            with self._progress:
                self._written += len(whole)
                self._progress.notify_all()

    def _show(self, stream: str, lines: str) -> None:
        to = _stream_of(stream, self._out)
        try:
            self._out.write_between(lines, to)
        except Exception:  # a stream in the place of the script's own may be closed by now, or be no real one
            if to is None:
                raise

    async def _hear(self, news: News) -> Callable[[], None]:
        # What ranks printed while they were set up, or before a connection was whole, has come already.
        return news.subscribe(None, self._take, missed=True)

    async def _hear_no_more(self) -> None:
        self._stop()

    def close(self) -> None:
        """Write what is left, unfinished lines too. Not to be called on the pools' thread."""
        submit(self._hear_no_more()).result()
        for (rank, stream), lines in self._lines.items():
            if rest := lines.preview():
                self._put(RankText(stream, _printed(rank, rest)))
        self._queue.put(None)
        self._thread.join(timeout=10)
        release(self._out)


def _stream_of(name: str, stand_in: WholeLines) -> TextIO | None:
    """Where lines go now; None for where ``sys.stdout`` went when the pool came up."""
    if name == "err":
        return sys.stderr
    here = sys.stdout
    return None if here is None or isinstance(here, WholeLines) else here


def _printed(rank: int, line: str) -> str:
    return f"{prefix_of(rank)}{closed(line)}\n"
