"""Output of commands: results go to stdout, notes and errors to stderr, logs of ranks to both."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, BinaryIO, TextIO

import click

from skyward_core.util.terminal_safe_text import RESET, reset_colors, sanitize_paragraph
from skyward_core.views.log_buffers_and_rank_activity import LineSplitter, rank_prefix
from skyward_core.views.log_collapsing import LiveLines, partial_lines
from skyward_tui.cli.fault_tolerant_stdio import StandardStream
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.text_width_tables_and_ascii import clip, table

# SGR codes of the ranks' prefixes: cyan, yellow, magenta, green, blue, and bright variants
_HUES = (36, 33, 35, 32, 34, 96, 93, 95)


class Console:
    """Output of a command: text for users, or one JSON object for programs.

    All text is sanitized: control characters of ranks and hosts never reach the terminal.

    Args:
        as_json: Whether stdout gets only one JSON object, at the end. Everything else then goes to stderr.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._main: TextIO = sys.stderr if as_json else sys.stdout
        self._printers: list[LogPrinter] = []
        self._erasers: list[Callable[[], None]] = []

    def print_line(self, text: str, *codes: int) -> None:
        """Print a line of the result, with SGR codes if the terminal has colours."""
        text = sanitize_paragraph(text)
        if codes and is_color_enabled(self._main):
            text = f"\x1b[{';'.join(map(str, codes))}m{text}{RESET}"
        self._print(text, self._main)

    def print_table(
        self, rows: Sequence[Sequence[str]], codes: Sequence[int | None] = (), *, clipped: bool = False
    ) -> None:
        """Print rows with aligned columns.

        Args:
            rows: The cells.
            codes: SGR codes of the first rows; None for a row without a code.
            clipped: Whether to cut rows to the width of the terminal.
        """
        for line, code in zip_longest(table(rows), codes):
            self.print_line(clip(line, self.width) if clipped else line, *([] if code is None else [code]))

    def note(self, text: str) -> None:
        """Print a note for the user to stderr."""
        self._print(sanitize_paragraph(text), sys.stderr)

    def confirm(self, question: str) -> bool:
        """Ask the user at the terminal to confirm."""
        self._erase_live()
        return click.confirm(sanitize_paragraph(question), err=True)

    def ask(self, question: str) -> str:
        """Ask the user at the terminal for a line."""
        self._erase_live()
        return str(click.prompt(sanitize_paragraph(question), err=True, default="", show_default=False))

    def ask_secret(self, question: str) -> str:
        """Ask the user at the terminal for a secret, without showing the input."""
        self._erase_live()
        return str(click.prompt(sanitize_paragraph(question), err=True, hide_input=True))

    def result(self, value: dict[str, Any]) -> None:
        """Print the JSON object; does nothing without ``as_json``."""
        if self.as_json:
            self._print(json.dumps(value), sys.stdout)

    def report_error(self, error: Exception) -> None:
        """Print an error. Also print it as the command's JSON object, if the command ends without a result."""
        text = format_error(error)
        self.note(f"error: {text}")
        self.result({"error": {"type": type(error).__name__, "message": text}})

    def log_printer(self, stream: TextIO | None = None, *, prefix: bool = True) -> LogPrinter:
        """Return a printer of logs of ranks, by default to the stream of :meth:`print_line`."""
        stream = stream or self._main
        live = LiveLines(shutil.get_terminal_size) if stream.isatty() and os.environ.get("TERM") != "dumb" else None
        printer = LogPrinter(
            stream.buffer,
            is_color_enabled(stream),
            stream.isatty(),
            prefix,
            live,
            self._erase_live,
            (stream.encoding, stream.errors or "strict"),
        )
        self._printers.append(printer)
        return printer

    def _erase_live(self, but: LogPrinter | None = None) -> None:
        """Erase temporary lines, such as progress bars, before something is printed, because all streams may share one
        terminal.

        Args:
            but: Printer whose lines stay.
        """
        for printer in self._printers:
            if printer is not but:
                printer.erase()
        for erase in self._erasers:
            erase()

    def share_terminal(self, erase: Callable[[], None]) -> None:
        """Register a function that erases temporary lines from the terminal, to be called before any output."""
        self._erasers.append(erase)

    @property
    def width(self) -> int:
        """Width of the terminal in cells; without a terminal, a number that limits nothing."""
        return shutil.get_terminal_size().columns if self._main.isatty() else sys.maxsize

    @property
    def is_terminal(self) -> bool:
        """Whether a user at a terminal can read notes and answer questions."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    @property
    def has_no_reader(self) -> bool:
        """Whether the terminal is gone, or the program that reads the output's pipe has ended."""
        return any(isinstance(each, StandardStream) and each.has_lost_reader for each in (self._main, sys.stderr))

    @property
    def shows_notes(self) -> bool:
        """Whether all notes so far were written to standard error."""
        return not (isinstance(sys.stderr, StandardStream) and sys.stderr.has_failed)

    @property
    def shows_results(self) -> bool:
        """Whether a JSON object is requested, and stdout accepts it."""
        return self.as_json and not (isinstance(sys.stdout, StandardStream) and sys.stdout.has_failed)

    def _print(self, text: str, stream: TextIO) -> None:
        self._erase_live()
        print(text, file=stream, flush=True)


class LogPrinter:
    """Printer of the output of ranks, line by line.

    A pipe or a file receives the original bytes, except text that is overwritten: only the last state of a progress bar
    is written. A terminal receives text and colours, with lines cut at 64 KiB. The log file contains the
    complete lines.

    Args:
        sink: Stream for the output.
        color: Whether to colour the prefix.
        terminal: Whether the sink is a terminal.
        prefix: Whether each line begins with its rank.
        live: Redraws unfinished lines, such as progress bars, one for each rank; None prints only whole lines.
        erase: Erases the unfinished lines of all printers of the same terminal, except those of the given printer.
        encoding: Encoding of the terminal and its error handler.
    """

    def __init__(
        self,
        sink: BinaryIO,
        color: bool = False,
        terminal: bool = False,
        prefix: bool = True,
        live: LiveLines | None = None,
        erase: Callable[[LogPrinter | None], None] | None = None,
        encoding: tuple[str, str] = ("utf-8", "strict"),
    ) -> None:
        self._encoding = encoding
        self._live = live
        self._erase_all = erase or self._erase_own
        # by rank: line splitter of the stream (stdout or stderr) that had the rank's latest output
        self._newest: dict[int, LineSplitter] = {}
        self._sink = sink
        self._prefixed = prefix
        self._color = color
        self._terminal = terminal
        self._shown: dict[tuple[int, str], LineSplitter] = {}
        self._unfinished: dict[tuple[int, str], list[bytes]] = {}
        self._bars: dict[tuple[int, str], BarRows] = {}

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Add bytes of a rank's stream, and print the completed lines."""
        if self._terminal:
            self._newest[rank] = lines = self._shown.setdefault((rank, stream), LineSplitter())
            self._print_lines(rank, lines.split(data))
            return
        if not data:
            return
        pieces = self._unfinished.setdefault((rank, stream), [])
        if self._feed_bars(rank, stream, pieces, data):
            return
        if b"\r" in data or (pieces and pieces[-1].endswith(b"\r")):
            data = _drop_overwritten(b"".join([*pieces, data]))
            pieces.clear()
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            pieces.append(data)
            return
        self._write(rank, b"".join([*pieces, head]))
        pieces[:] = [tail] if tail else []

    def _feed_bars(self, rank: int, stream: str, pieces: list[bytes], data: bytes) -> bool:
        """Add bytes to the rows of the stream's nested progress bars. Return False if the stream has no nested bars."""
        bars = self._bars.get((rank, stream))
        if bars is None:
            recent = b"".join([piece[-MAX_SEQUENCE:] for piece in pieces[-MAX_SEQUENCE:]]) + data
            if b"\x1b[" not in recent or not _UP.search(recent):
                return False
            bars = self._bars[rank, stream] = BarRows()
            data = b"".join([*pieces, data])
            pieces.clear()
        if lines := bars.feed(data):
            self._write(rank, b"\n".join(lines))
        if not bars.are_redrawn:
            pieces[:] = filter(None, bars.unfinished())
            del self._bars[rank, stream]
        return True

    def flush(self) -> None:
        """Flush the output, and draw unfinished lines such as progress bars."""
        self._draw()
        self._sink.flush()

    def _draw(self) -> None:
        if self._live is None:
            return
        if drawn := self._live.render(partial_lines(self._newest.items(), prefixed=self._prefixed)):
            self._erase_all(self)
            self._sink.write(drawn.encode(*self._encoding))

    def erase(self) -> None:
        """Erase the unfinished lines that are drawn below the output."""
        if self._live is not None and (away := self._live.render_erase()):
            self._sink.write(away.encode(*self._encoding))
            self._sink.flush()

    def _erase_own(self, but: LogPrinter | None) -> None:
        if but is not self:
            self.erase()

    def finish(self) -> None:
        """Print unfinished last lines, which have no newline."""
        self._newest.clear()
        for (rank, _), lines in self._shown.items():
            if lines.preview().strip():  # an unfinished line is blank if it was a progress bar that has erased itself
                self._print_lines(rank, lines.split(b"\n"))
        for (rank, _), bars in self._bars.items():
            for row in filter(bytes.strip, bars.unfinished()):
                self._write(rank, row)
        self._bars.clear()
        for (rank, _), pieces in self._unfinished.items():
            if (rest := b"".join(pieces).rstrip(b"\r")).strip():
                self._write(rank, rest)
        self._unfinished.clear()
        self.flush()

    def _print_lines(self, rank: int, lines: list[str]) -> None:
        if not lines:
            return
        self._erase_all(None)
        prefix = self._prefix(rank)
        text = "".join([f"{prefix}{reset_colors(line)}\n" for line in lines])
        self._sink.write(text.encode(*self._encoding))

    def _write(self, rank: int, body: bytes) -> None:
        prefix = self._prefix(rank).encode()
        self._sink.write(prefix + body.replace(b"\n", b"\n" + prefix) + b"\n")

    def _prefix(self, rank: int) -> str:
        if not self._prefixed:
            return ""
        text = rank_prefix(rank)
        return f"\x1b[{_HUES[rank % len(_HUES)]}m{text}{RESET}" if self._color else text


MAX_BAR_ROWS = 100
ERASED = b" "  # content of an unknown row, or of a row whose bar has erased itself; an empty line of output is b""
MAX_SEQUENCE = 6  # maximum bytes of a control sequence that moves the cursor or erases text
_UP = re.compile(rb"\x1b\[\d{0,3}[AF]")
_CONTROL = re.compile(rb"(\n|\r|\x1b\[\??\d{0,3}[AFJKhl])")
_INCOMPLETE = re.compile(rb"\x1b(?:\[\??\d{0,3})?\Z")


class BarRows:
    """Rows of one stream that nested progress bars (tqdm, rich) redraw by moving the cursor up.

    The bars move the cursor up by at most their height, so a row that is further above the cursor is complete.
    """

    def __init__(self) -> None:
        self._rows = [b""]
        self._at = 0  # index of the row that contains the cursor
        # whether the cursor is at the start of its row, so that the next text overwrites the row
        self._at_start = False
        self._incomplete = b""  # first bytes of a control sequence whose rest has not arrived
        self._height = 1  # number of rows, counted from the last one, to which the bars may move the cursor
        self._left = 1  # number of further lines of output after which the bars count as finished

    @property
    def are_redrawn(self) -> bool:
        """Whether the bars may still change these rows."""
        return self._left > 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes of the stream. Return the rows that the bars can no longer change."""
        data = self._incomplete + data
        cut = _INCOMPLETE.search(data)
        self._incomplete = cut[0] if cut else b""
        complete: list[bytes] = []
        for part in _CONTROL.split(data[: cut.start()] if cut else data):
            if part == b"\n":
                complete += self._move_down()
            elif part == b"\r":
                self._at_start = True
            elif _CONTROL.fullmatch(part):
                self._obey(part[-1:], int(part[2:-1].lstrip(b"?") or b"0"))
            elif part:
                self._rows[self._at] = part if self._at_start else self._rows[self._at] + part
                self._at_start = False
        return complete

    def unfinished(self) -> list[bytes]:
        """Return the rows that the bars may still change."""
        return [*self._rows[:-1], self._rows[-1] + self._incomplete]

    def _move_down(self) -> list[bytes]:
        self._at += 1
        self._at_start = self._at < len(self._rows)
        if self._at_start:
            return []
        self._rows.append(b"")
        self._left -= 1
        over = max(0, len(self._rows) - (1 if self._left <= 0 else self._height))
        complete, self._rows = self._rows[:over], self._rows[over:]
        self._at -= over
        if self._left <= 0:
            self._height = 1
        return [row for row in complete if row.strip() or not row]  # omit the rows of bars that have erased themselves

    def _obey(self, command: bytes, number: int) -> None:
        if command in b"AF":
            self._at -= min(number or 1, MAX_BAR_ROWS)
            # The bars may move the cursor above the first known row, because rows printed before the detection of the
            # bars are unknown. Add such rows, up to the limit.
            self._rows[:0] = [ERASED] * min(-self._at, MAX_BAR_ROWS - len(self._rows))
            self._at, self._at_start = max(0, self._at), self._at_start or command == b"F"
            self._height = self._left = len(self._rows)
        elif command == b"K" and (number == 2 or self._at_start):
            self._rows[self._at], self._at_start = ERASED, True
        elif command == b"J" and not number:
            self._rows[self._at + 1 :] = []
            if self._at_start:
                self._rows[self._at] = ERASED


def _drop_overwritten(data: bytes) -> bytes:
    """Remove text that a carriage return overwrites from each line, such as the earlier states of a progress bar."""
    return b"\n".join(map(_visible_part, data.split(b"\n")))


def _visible_part(line: bytes) -> bytes:
    text = line.rstrip(b"\r")
    return text.rpartition(b"\r")[2] + line[len(text) :][:1]


def is_color_enabled(stream: TextIO) -> bool:
    """Check whether a stream is a terminal with colours, and ``NO_COLOR`` (https://no-color.org) is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
