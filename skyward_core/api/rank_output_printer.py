"""Printer of the ranks' output in a script: prefixes each line with its rank, and keeps stdout and stderr separate.

On a terminal, unfinished lines of ranks (progress bars) are drawn below the output while the script waits for a call.
At other times the last line of the terminal belongs to the script, which may show a prompt there. Only text and colors
from ranks are shown. All other terminal control sequences are removed.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NamedTuple, TextIO

from skyward_core.tasks.script_stdout_beside_rank_lines import SharedStdout, install, uninstall
from skyward_core.transport.background_loop import call_on_loop
from skyward_core.util.terminal_safe_text import reset_colors
from skyward_core.views.log_buffers_and_rank_activity import LineSplitter, rank_prefix

if TYPE_CHECKING:
    from skyward_core.pool.event_publisher import EventPublisher
    from skyward_core.views.log_collapsing import LiveLines

FLUSH_TIMEOUT = 1.0  # maximum seconds that an ended call waits for its output on a slow terminal


class RankText(NamedTuple):
    """Complete lines of a rank's stream, "out" or "err"."""

    stream: str
    lines: str


_DRAW = RankText("", "")  # queue entry that requests a redraw of the unfinished lines


class ScriptConsole:
    """Writer to the script's streams with its own thread, because a slow terminal must not block the pool.

    The writer uses the current ``sys.stdout`` and ``sys.stderr``, so that a redirection (a test's ``capsys``,
    ``redirect_stdout``) also captures the output of ranks.
    """

    def __init__(self, news: EventPublisher) -> None:
        self._out = install()
        self._lines: dict[tuple[int, str], LineSplitter] = {}
        self._queue: queue.SimpleQueue[RankText | None] = queue.SimpleQueue()
        # Numbers of texts that were put into the queue and that the thread has written.
        self._queued_count = self._written_count = 0
        self._progress = threading.Condition()
        # Rank -> splitter of the stream (stdout or stderr) on which the rank printed last.
        self._newest: dict[int, LineSplitter] = {}
        self._waiting = 0  # number of calls for which the script's threads wait now
        self._live: LiveLines | None = None
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()
        # With `missed`, the subscription begins with the output that has arrived already.
        self._stop = call_on_loop(lambda: news.subscribe(None, self._on_output, missed=True))

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
        """Draw unfinished lines of ranks on a terminal while the script waits inside this block."""
        # Both streams must be terminals that can erase lines.
        if not (_is_terminal(sys.stdout) and _is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"):
            yield
            return
        with self._progress:
            if self._live is None:
                from skyward_core.views.log_collapsing import LiveLines

                self._live = LiveLines(get_terminal_size)
            self._waiting += 1
        try:
            self._request_draw()  # draw the unfinished lines that are already there
            yield
        finally:
            with self._progress:
                self._waiting -= 1
            if not self._waiting:
                self._out.clear_live_block()

    def _draw(self) -> None:
        live = self._live
        if live is not None and self._waiting and sys.stderr is not None:
            # A closed stream must not fail the call, because the drawing is optional.
            with suppress(OSError, ValueError):
                self._out.draw_below(live, self._partial_lines, sys.stderr)

    def _partial_lines(self) -> list[str]:
        from skyward_core.views.log_collapsing import partial_lines

        return partial_lines(list(self._newest.items())) if self._waiting else []

    def flush(self) -> None:
        """Wait until all output that has arrived is written, so that a call's lines precede its value."""
        queued = self._queued_count
        if self._written_count < queued and self._thread.is_alive():
            with self._progress:
                self._progress.wait_for(lambda: self._written_count >= queued, FLUSH_TIMEOUT)

    def _write(self) -> None:
        last = False
        while not last:
            texts = [self._queue.get()]
            while not self._queue.empty():  # write all texts at once that arrived during the previous write
                texts.append(self._queue.get())
            last = texts[-1] is None
            whole = [text for text in texts if text is not None and text is not _DRAW]
            try:
                for stream, some in groupby(whole, key=lambda text: text.stream):
                    self._write_lines(stream, "".join([text.lines for text in some]))
                self._draw()
            except (OSError, ValueError):
                return  # stop writing to a closed terminal or pipe; the log files contain the output
            with self._progress:
                self._written_count += len(whole)
                self._progress.notify_all()

    def _write_lines(self, stream: str, lines: str) -> None:
        to: TextIO | None = sys.stderr if stream == "err" else sys.stdout
        if to is None and stream == "err":
            return
        if isinstance(to, SharedStdout):  # `write_between` writes to the script's own stdout if the argument is None
            to = None
        try:
            self._out.write_between(lines, to)
        except Exception:
            # Ignore errors of sys.stderr, and of a stream with which the script has replaced sys.stdout: they may be
            # closed or lack methods.
            if to is None:
                raise

    def close(self) -> None:
        """Write the remaining output, including unfinished lines. Do not call on the thread of the pools' event
        loop.
        """
        call_on_loop(self._stop)
        for (rank, stream), lines in self._lines.items():
            # The rest of a stream is blank if the rank has cleared its progress bar.
            if (rest := lines.preview()).strip():
                self._enqueue(RankText(stream, _format_line(rank, rest)))
        self._queue.put(None)
        self._thread.join(timeout=10)
        uninstall(self._out)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # the script has closed the stream, or replaced it by an object without isatty
        return False


def _format_line(rank: int, line: str) -> str:
    return f"{rank_prefix(rank)}{reset_colors(line)}\n"
