"""The script's own standard output while its ranks' lines go there too: neither cuts the other's lines in two."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from skyward_core.views.log_collapsing import LiveLines

# Seconds that others wait for the end of a line that the script has begun; a prompt's never comes.
LOCK_TIMEOUT = 1.0

# One for all: a process has one standard output.
_turn = threading.Condition()


def _renew_lock() -> None:
    global _turn
    _turn = threading.Condition()


# A child may be forked while a thread that it does not have holds the lock.
os.register_at_fork(after_in_child=_renew_lock)


class SharedStdout:
    """A text stream that passes on what it is given, and lets others write between its lines.

    ``print("a", "b")`` writes four pieces; a rank's line may stand only after the last of them.

    Args:
        out: where everything goes; whatever else is asked of a stream is asked of it.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._has_partial_line = False
        self._users = 0
        self._live_block: tuple[LiveLines, TextIO] | None = None  # what is drawn below the last line, and where

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
        """Write whole ``lines`` of somebody else and flush; after ``PATIENCE``, on a new line where one is unfinished.

        Args:
            to: another stream that they go to, which may show on the same terminal.

        Raises:
            OSError, ValueError: nobody reads any more, or the stream is closed.
        """
        out = to or self._out
        with _turn:
            if lines and not _turn.wait_for(lambda: not self._has_partial_line, LOCK_TIMEOUT):
                lines = f"\n{lines}"
                self._has_partial_line = False
            self._erase_live_block()
            write_escaped(out, lines)

    def draw_below(self, live: LiveLines, lines: Callable[[], list[str]], to: TextIO) -> None:
        """Draw lines that have not ended below all others, until something is written or they are taken away; not where
        the script has begun a line.

        Args:
            lines: gives them, once nobody else writes.
            to: a stream that shows on the same terminal.

        Raises:
            OSError, ValueError: nobody reads any more, or the stream is closed.
        """
        with _turn:
            if self._live_block is not None and self._live_block[0] is not live:
                self._erase_live_block()  # of another pool
            if not self._has_partial_line and (drawn := live.render(lines())):
                self._live_block = live, to
                write_escaped(to, drawn)

    def clear_live_block(self) -> None:
        """Draw nothing below any more. If the terminal takes nothing for ``PATIENCE``, the next write removes it."""
        if _turn.acquire(timeout=LOCK_TIMEOUT):
            try:
                self._erase_live_block()
            finally:
                _turn.release()

    def _erase_live_block(self) -> None:
        if self._live_block is not None:
            (live, to), self._live_block = self._live_block, None
            if away := live.render_erase():
                with suppress(OSError, ValueError):  # the script may be printing, to another stream
                    write_escaped(to, away)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (sys, "stdout")  # on a node, it stands for the node's

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def write_escaped(out: TextIO, text: str) -> None:
    """Write and flush; characters that the stream's encoding lacks are escaped.

    Raises:
        OSError, ValueError: nobody reads any more, or the stream is closed.
    """
    try:
        out.write(text)
    except UnicodeEncodeError as error:
        # The error calls every code page "charmap".
        encoding = getattr(out, "encoding", None) or error.encoding
        out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def is_stdout(file: object) -> bool:
    """Whether a file is the script's own ``sys.stdout``, behind a stand-in or not."""
    out = sys.stdout
    return file is (out._out if isinstance(out, SharedStdout) else out)


def install() -> SharedStdout:
    """Put a ``SharedStdout`` in the place of ``sys.stdout``, or find the one that is there; ``release`` it "
    "after use."""
    with _turn:
        out = sys.stdout
        if not isinstance(out, SharedStdout):
            out = SharedStdout(out)
            sys.stdout = cast(TextIO, out)
        out._users += 1
        return out


def uninstall(out: SharedStdout) -> None:
    """Undo one ``stand_in``; the last one puts the script's own ``sys.stdout`` back, unless another is there now."""
    with _turn:
        out._users -= 1
        if not out._users and sys.stdout is cast(TextIO, out):
            sys.stdout = out._out
