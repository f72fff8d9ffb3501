"""Printer of the ranks' output in a script: each line with its rank, standard output and standard error apart.

On a terminal the lines that ranks have begun (progress bars) are drawn below, while the script waits for a call. At
other times the terminal's last line is the script's own: it may ask there for something.

Of what ranks print, text and colours are shown, and nothing else that a terminal acts on.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NamedTuple, TextIO

from skyward_core.tasks.stdout_whole_lines import SharedStdout, install, uninstall
from skyward_core.transport.background_loop import submit
from skyward_core.util.terminal_safe_text import reset_colors
from skyward_core.views.log_buffer import LineSplitter, rank_prefix

if TYPE_CHECKING:
    from skyward_core.pool.event_log import EventPublisher
    from skyward_core.views.log_collapsing import LiveLines

FLUSH_TIMEOUT = 1.0  # seconds that a call which has ended waits for a slow terminal


class RankText(NamedTuple):
    """Whole lines of a rank's "out" or "err"."""

    stream: str
    lines: str


_DRAW = RankText("", "")  # nothing to print: what is drawn below has changed


class ScriptConsole:
    """Writes to the script's streams from a thread of its own: a slow terminal must not hold up the pool.

    The streams are those that ``sys`` has at that moment, so that whatever catches what the script prints (a test's
    ``capsys``, ``redirect_stdout``) catches what its ranks print.
    """

    def __init__(self, news: EventPublisher) -> None:
        self._out = install()
        self._lines: dict[tuple[int, str], LineSplitter] = {}
        self._queue: queue.SimpleQueue[RankText | None] = queue.SimpleQueue()
        self._queued_count = self._written_count = 0  # texts
        self._progress = threading.Condition()
        self._newest: dict[int, LineSplitter] = {}  # of each rank the stream that said something last
        self._waiting = 0  # calls that the script waits for
        self._live: LiveLines | None = None
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()
        self._stop = submit(self._subscribe(news)).result()

    def _on_output(self, rank: int, stream: str, at: int, data: bytes, run: str) -> None:
        self._newest[rank] = newest = self._lines.setdefault((rank, stream), LineSplitter())
        lines = newest.split(data)
        if lines and self._thread.is_alive():
            self._enqueue(RankText(stream, "".join([_format_line(rank, line) for line in lines])))
        elif self._waiting:
            self._request_draw()

    def _enqueue(self, text: RankText) -> None:
        self._queued_count += 1
        self._queue.put(text)

    def _request_draw(self) -> None:
        if self._thread.is_alive():
            self._queue.put(_DRAW)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Draw, on a terminal, the lines that ranks have begun, for as long as the script waits in this block."""
        if not _is_on_terminal():
            yield
            return
        with self._progress:
            if self._live is None:
                from skyward_core.views.log_collapsing import LiveLines

                self._live = LiveLines(get_terminal_size)
            self._waiting += 1
        try:
            self._request_draw()  # what has come already
            yield
        finally:
            with self._progress:
                self._waiting -= 1
            if not self._waiting:
                self._out.clear_live_block()

    def _draw(self) -> None:
        live = self._live
        if live is not None and self._waiting and sys.stderr is not None:
            with suppress(OSError, ValueError):  # gone, perhaps; what is whole is written elsewhere
                self._out.draw_below(live, self._partial_lines, sys.stderr)

    def _partial_lines(self) -> list[str]:
        from skyward_core.views.log_collapsing import partial_lines

        return partial_lines(list(self._newest.items())) if self._waiting else []

    def flush(self) -> None:
        """Wait until all that has come is written: a call's lines are there when its value is."""
        heard = self._queued_count
        if self._written_count < heard and self._thread.is_alive():
            with self._progress:
                self._progress.wait_for(lambda: self._written_count >= heard, FLUSH_TIMEOUT)

    def _write(self) -> None:
        last = False
        while not last:
            texts = [self._queue.get()]
            while not self._queue.empty():  # one write for all that came while the last one took its time
                texts.append(self._queue.get())
            last = texts[-1] is None
            whole = [text for text in texts if text is not None and text is not _DRAW]
            try:
                for stream, some in groupby(whole, key=lambda text: text.stream):
                    self._write_lines(stream, "".join([text.lines for text in some]))
                self._draw()
            except (OSError, ValueError):
                return  # nobody reads any more; the logs are in their files
            with self._progress:
                self._written_count += len(whole)
                self._progress.notify_all()

    def _write_lines(self, stream: str, lines: str) -> None:
        to = _output_stream(stream)
        if to is None and stream == "err":
            return
        try:
            self._out.write_between(lines, to)
        except Exception:  # a stream in the place of the script's own may be closed by now, or be no real one
            if to is None:
                raise

    async def _subscribe(self, news: EventPublisher) -> Callable[[], None]:
        # What ranks printed while they were set up, or before a connection was whole, has come already.
        return news.subscribe(None, self._on_output, missed=True)

    async def _unsubscribe(self) -> None:
        self._stop()

    def close(self) -> None:
        """Write what is left, unfinished lines too. Not to be called on the pools' thread."""
        submit(self._unsubscribe()).result()
        for (rank, stream), lines in self._lines.items():
            if (rest := lines.preview()).strip():  # else a bar that was taken away
                self._enqueue(RankText(stream, _format_line(rank, rest)))
        self._queue.put(None)
        self._thread.join(timeout=10)
        uninstall(self._out)


def _is_on_terminal() -> bool:
    """Whether both streams are a terminal that can take lines away."""
    return os.environ.get("TERM") != "dumb" and all(map(_is_terminal, (sys.stdout, sys.stderr)))


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # the script closed it, or put something else in its place
        return False


def _output_stream(name: str) -> TextIO | None:
    """Where lines go now; None for where ``sys.stdout`` went when the pool came up, and for no standard error."""
    if name == "err":
        return sys.stderr
    here = sys.stdout
    return None if here is None or isinstance(here, SharedStdout) else here


def _format_line(rank: int, line: str) -> str:
    return f"{rank_prefix(rank)}{reset_colors(line)}\n"
