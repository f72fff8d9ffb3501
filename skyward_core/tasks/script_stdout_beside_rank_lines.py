"""Standard output that the script shares with the logs of its ranks, without interleaving inside a line."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from skyward_core.views.log_collapsing import LiveLines

# seconds to wait for the end of a line that the script has begun; a prompt's line never ends
LOCK_TIMEOUT = 1.0

# One lock for all streams, because a process has one standard output.
_turn = threading.Condition()


def _renew_lock() -> None:
    global _turn
    _turn = threading.Condition()


# Make a new lock in a forked child, because a thread of the parent, which the child does not have, may hold the old
# one.
os.register_at_fork(after_in_child=_renew_lock)


class SharedStdout:
    """Text stream that forwards writes, and lets other writers insert text between its lines.

    ``print("a", "b")`` writes four pieces. A line of a rank may only follow the last piece.

    Args:
        out: Stream that receives all text. All other attributes are forwarded to it.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._has_partial_line = False
        self._users = 0
        # The block that is drawn below the last line, and the stream that shows it; None if nothing is drawn.
        self._live_block: tuple[LiveLines, TextIO] | None = None

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
        """Write whole lines of another writer, and flush. After ``LOCK_TIMEOUT``, an unfinished line is ended first.

        Args:
            to: Stream that receives the lines, such as standard error. None for the stream of the script.

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
        """Draw a block of unfinished lines below all other lines, until the next write or :meth:`clear_live_block`.

        Nothing is drawn while a line of the script is unfinished.

        Args:
            lines: Returns the lines; called when no other thread writes.
            to: Stream that receives the block. It must be shown on the same terminal as the script's output.

        Raises:
            OSError, ValueError: If the reader is gone, or the stream is closed.
        """
        with _turn:
            if self._live_block is not None and self._live_block[0] is not live:
                self._erase_live_block()  # first erase the drawn block of another pool
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
                # A failure of the block's stream must not become a failure of the script's own write.
                with suppress(OSError, ValueError):
                    write_escaped(to, erase)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (sys, "stdout")  # a node unpickles the stream as its own sys.stdout

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
        # Prefer the stream's own attribute, because ``error.encoding`` is "charmap" for every code page.
        encoding = getattr(out, "encoding", None) or error.encoding
        out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def is_stdout(file: object) -> bool:
    """Check whether a file is the script's own ``sys.stdout``, possibly wrapped by a ``SharedStdout``."""
    out = sys.stdout
    return file is (out._out if isinstance(out, SharedStdout) else out)


def install() -> SharedStdout:
    """Replace ``sys.stdout`` by a ``SharedStdout``, or return the one in use. Call ``uninstall`` after use."""
    with _turn:
        out = sys.stdout
        if not isinstance(out, SharedStdout):
            out = SharedStdout(out)
            sys.stdout = cast(TextIO, out)
        out._users += 1
        return out


def uninstall(out: SharedStdout) -> None:
    """Undo one ``install``. The last call restores the script's ``sys.stdout``, unless something replaced it again."""
    with _turn:
        out._users -= 1
        if not out._users and sys.stdout is cast(TextIO, out):
            sys.stdout = out._out
