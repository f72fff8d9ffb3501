"""Where a command's output goes: what was asked for to stdout, what is said meanwhile to stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import Any, BinaryIO, TextIO

from skyward_core.logs import LINE_LIMIT, prefix_of

_HUES = (36, 33, 35, 32, 34, 96, 93, 95)  # cyan, yellow, magenta, green, blue, and the bright ones
# Any escape sequence but a colour (SGR), and control characters that would move the cursor or ring.
_UNSAFE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*(?!m)[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b(?!\[)[ -/]*[0-~]?"
    rb"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]"
)


class Console:
    """Text for people, an object for programs.

    With ``as_json`` stdout holds nothing but one JSON object, at the end; the rest goes to stderr.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.unread = False  # nobody reads our output any more
        self._main: TextIO = sys.stderr if as_json else sys.stdout

    def say(self, text: str) -> None:
        """A part of what was asked for."""
        self._print(text, self._main)

    def note(self, text: str) -> None:
        """What happens meanwhile."""
        self._print(text, sys.stderr)

    def result(self, value: dict[str, Any]) -> None:
        """The object that a program asked for; nothing without ``as_json``."""
        if self.as_json:
            self._print(json.dumps(value), sys.stdout)

    def fail(self, error: Exception) -> None:
        """What went wrong; as an object too, for a command that has no better one to give after it."""
        self.note(f"error: {error}")
        self.result({"error": {"type": type(error).__name__, "message": str(error)}})

    def paint(self, text: str, *codes: int) -> str:
        """Colour a text where the output is a terminal that wants it."""
        if not codes or not wants_color(self._main):
            return text
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"

    def logs(self, stream: TextIO | None = None, *, prefix: bool = True) -> LogPrinter:
        """What prints ranks' logs, where the rest goes or to another stream."""
        stream = stream or self._main
        return LogPrinter(stream.buffer, wants_color(stream), stream.isatty(), prefix)

    @property
    def width(self) -> int:
        """Cells of a line; without a terminal there is no limit."""
        return shutil.get_terminal_size().columns if self._main.isatty() else sys.maxsize

    @property
    def is_terminal(self) -> bool:
        """Whether a person sits there, who sees what is said and can answer."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def silence(self, stream: TextIO | None = None) -> None:
        """Send what still goes to a stream (the main one if None) nowhere: its reader has left."""
        self.unread = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (stream or self._main).fileno())
        os.close(nowhere)

    def _print(self, text: str, stream: TextIO) -> None:
        try:
            print(text, file=stream, flush=True)
        except OSError:
            self.silence(stream)


class LogPrinter:
    """Prints what ranks print, whole line by whole line, each with its rank before it (unless not ``prefix``).

    To a pipe or a file the bytes go as they came. On a terminal colours stay, other escape sequences go, and
    a line longer than 64 KiB is cut (the log file has it whole).
    """

    def __init__(
        self, sink: BinaryIO, color: bool = False, terminal: bool = False, prefix: bool = True
    ) -> None:
        self._sink = sink
        self._prefixed = prefix
        self._color = color
        self._terminal = terminal
        self._unfinished: dict[tuple[int, str], list[bytes]] = {}

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Take bytes of a rank's stream; print the lines they complete."""
        if not data:
            return
        pieces = self._unfinished.setdefault((rank, stream), [])
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            pieces.append(data)
            return
        self._print(rank, b"".join([*pieces, head]))
        pieces[:] = [tail] if tail else []

    def flush(self) -> None:
        """Pass on what was printed."""
        self._sink.flush()

    def finish(self) -> None:
        """Print last lines that never ended."""
        for (rank, _), pieces in self._unfinished.items():
            if pieces:
                self._print(rank, b"".join(pieces))
        self._unfinished.clear()
        self.flush()

    def _print(self, rank: int, body: bytes) -> None:
        prefix = self._prefix(rank)
        if not self._terminal:
            self._sink.write(prefix + body.replace(b"\n", b"\n" + prefix) + b"\n")
            return
        for line in body.split(b"\n"):
            self._sink.write(prefix + shown(line) + (b"\x1b[0m\n" if b"\x1b" in line else b"\n"))

    def _prefix(self, rank: int) -> bytes:
        if not self._prefixed:
            return b""
        text = prefix_of(rank)
        return (f"\x1b[{_HUES[rank % len(_HUES)]}m{text}\x1b[0m" if self._color else text).encode()


def shown(line: bytes) -> bytes:
    """A line as it may go to a terminal: safe, not endless, and only the last thing that "\\r" left of it."""
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    if len(line) > LINE_LIMIT:
        line = line[:LINE_LIMIT] + f" … [{len(line) - LINE_LIMIT:,} more bytes in the log file]".encode()
    return _UNSAFE.sub(b"", line)


def wants_color(stream: TextIO) -> bool:
    """Whether to colour: on a terminal that can, unless NO_COLOR says no (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
