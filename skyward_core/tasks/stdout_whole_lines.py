"""Standard output shared by the script and the logs of its ranks, without interleaving inside a line."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from skyward_core.views.log_collapsing import LiveLines

# seconds to wait for the end of a line that the script has begun; the line of a prompt never ends
LOCK_TIMEOUT = 1.0

# A process has one standard output, so one lock.
_turn = threading.Condition()


def _renew_lock() -> None:
    global _turn
    _turn = threading.Condition()


# A child process may be forked while a thread that it lacks holds the lock.
os.register_at_fork(after_in_child=_renew_lock)


class SharedStdout:
    """Text stream that forwards writes, and lets other writers insert text between its lines.

    ``print("a", "b")`` writes four pieces; a line of a rank may follow only after the last one.

    Args:
        out: Stream that receives all text. All other attributes are forwarded to it.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._has_partial_line = False
        self._users = 0
        self._live_block: tuple[LiveLines, TextIO] | None = None  # block drawn below the last line, and its stream

    def write(self, text: str) -> int:
        with _turn:
            self._erase_live_block()
            if text:
                self._has_partial_line = not text.endswith("\n")
            written = self._out.write(text)
            _turn.notify_all()
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def write_between(self, lines: str, to: TextIO | None = None) -> None:
        """Write whole lines of another writer, and flush. After ``LOCK_TIMEOUT``, end an unfinished line first.

        Args:
            to: Another stream for the lines, which may show on the same terminal.

        Raises:
            OSError, ValueError: If the reader is gone, or the stream is closed.
        """
        out = to or self._out
        with _turn:
            if lines and not _turn.wait_for(lambda: not self._has_partial_line, LOCK_TIMEOUT):
                lines = f"\n{lines}"
                self._has_partial_line = False
            self._erase_live_block()
            write_escaped(out, lines)

    def draw_below(self, live: LiveLines, lines: Callable[[], list[str]], to: TextIO) -> None:
        """Draw a block of unfinished lines below all others, until the next write or :meth:`clear_live_block`.

        Nothing is drawn while a line of the script is unfinished.

        Args:
            lines: Returns the lines; called when no other thread writes.
            to: Stream that shows on the same terminal.

        Raises:
            OSError, ValueError: If the reader is gone, or the stream is closed.
        """
        with _turn:
            if self._live_block is not None and self._live_block[0] is not live:
                self._erase_live_block()  # a block of another pool
            if not self._has_partial_line and (drawn := live.render(lines())):
                self._live_block = live, to
                write_escaped(to, drawn)

    def clear_live_block(self) -> None:
        """Remove the drawn block. If the terminal blocks for ``LOCK_TIMEOUT``, the next write removes it."""
        if _turn.acquire(timeout=LOCK_TIMEOUT):
            try:
                self._erase_live_block()
            finally:
                _turn.release()

    def _erase_live_block(self) -> None:
        if self._live_block is not None:
            (live, to), self._live_block = self._live_block, None
            if erase := live.render_erase():
                with suppress(OSError, ValueError):  # the script may be writing to another stream
                    write_escaped(to, erase)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (sys, "stdout")  # on a node, it becomes the node's stdout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def write_escaped(out: TextIO, text: str) -> None:
    """Write text and flush. Characters that the stream's encoding lacks are escaped.

    Raises:
        OSError, ValueError: If the reader is gone, or the stream is closed.
    """
    try:
        out.write(text)
    except UnicodeEncodeError as error:
        # The exception names every code page "charmap".
        encoding = getattr(out, "encoding", None) or error.encoding
        out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def is_stdout(file: object) -> bool:
    """Check whether a file is the script's own ``sys.stdout``, possibly behind a ``SharedStdout``."""
    out = sys.stdout
    return file is (out._out if isinstance(out, SharedStdout) else out)


def install() -> SharedStdout:
    """Replace ``sys.stdout`` by a ``SharedStdout``, or return the present one. Call ``uninstall`` after use."""
    with _turn:
        out = sys.stdout
        if not isinstance(out, SharedStdout):
            out = SharedStdout(out)
            sys.stdout = cast(TextIO, out)
        out._users += 1
        return out


def uninstall(out: SharedStdout) -> None:
    """Undo one ``install``. The last call restores the script's own ``sys.stdout``, unless it was replaced again."""
    with _turn:
        out._users -= 1
        if not out._users and sys.stdout is cast(TextIO, out):
            sys.stdout = out._out
