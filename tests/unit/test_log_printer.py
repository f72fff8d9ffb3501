"""What ranks print as a command shows it: whole lines, on a terminal and in a pipe."""

from __future__ import annotations

import io
import os
from typing import Any

import pyte
import pytest

from skyward_core.views.log_collapsing import LiveLines
from skyward_tui.cli.console import LogPrinter


def printed(*chunks: tuple[int, str, bytes], **options: Any) -> bytes:
    sink = io.BytesIO()
    printer = LogPrinter(sink, **options)
    for chunk in chunks:
        printer.feed(*chunk)
    printer.finish()
    return sink.getvalue()


def test_a_progress_bar_is_drawn_in_place_on_a_terminal() -> None:
    screen, sink = pyte.Screen(24, 6), io.BytesIO()
    terminal = pyte.ByteStream(screen)
    printer = LogPrinter(sink, terminal=True, live=LiveLines(lambda: os.terminal_size((24, 6))))

    def shown() -> list[str]:
        printer.flush()
        terminal.feed(sink.getvalue().replace(b"\n", b"\r\n"))
        sink.seek(0)
        sink.truncate()
        return [line.rstrip() for line in screen.display if line.strip()]

    printer.feed(0, "err", b"\r 10% |#         |")
    assert shown() == ["r000|  10% |#         |"]
    printer.feed(0, "err", b"\r 50% \x1b[32m|#####     | and what does not fit")
    assert shown() == ["r000|  50% |#####…"]
    printer.feed(1, "out", b"a line\nnext")
    assert shown() == ["r001| a line", "r000|  50% |#####…", "r001| next"], "a line for each rank"
    printer.feed(1, "out", b" one")
    assert shown() == ["r001| a line", "r000|  50% |#####…", "r001| next one"]
    for rank in range(2, 9):
        printer.feed(rank, "err", b"\r  0%")
    assert shown() == ["r001| a line", "r000|  50% |#####…", "r001| next one", "… and 7 more ranks"]
    for rank in range(2, 9):
        printer.feed(rank, "err", b"\r    \r")
    printer.feed(0, "err", b"\r100%\n")
    assert shown() == ["r001| a line", "r000| 100%", "r001| next one"]
    printer.finish()
    assert shown() == ["r001| a line", "r000| 100%", "r001| next one"]


def test_lines_are_whole_whatever_the_chunks() -> None:
    chunks = [
        (0, "out", b"a"),
        (1, "out", b"x\ny"),
        (0, "err", b"e\n"),
        (0, "out", b"b\n\nc"),
        (0, "out", b""),
    ]
    assert printed(*chunks) == b"r001| x\nr000| e\nr000| ab\nr000| \nr000| c\nr001| y\n"


@pytest.mark.parametrize("cut", range(1, 12))
def test_no_byte_is_lost_or_changed_on_the_way_to_a_pipe(cut: int) -> None:
    data = b"\x1b]0;t\x07\r\x00\xff\n\n" + bytes(range(256)) + b"\ntail"
    chunks = [(7, "out", data[i : i + cut]) for i in range(0, len(data), cut)]
    assert printed(*chunks) == b"".join(b"r007| " + line + b"\n" for line in data.split(b"\n"))


def test_prefixes_are_coloured_by_rank_and_can_be_left_out() -> None:
    assert printed((1, "out", b"x\n"), color=True) == b"\x1b[33mr001| \x1b[0mx\n"
    assert printed((1, "out", b"x\ny"), prefix=False) == b"x\ny\n"


@pytest.mark.parametrize(
    "line, safe",
    [
        (b"plain \xc3\xa9\t.", b"plain \xc3\xa9\t."),
        (b"\x1b[1;31mred\x1b[0m", b"\x1b[1;31mred\x1b[0m"),
        (b"a\x1b[2Jb\x1b[10;3Hc\x1b[?25ld", b"abcd"),
        (b"a\x1b]52;c;aGk=\x07b\x1b]0;title\x1b\\c", b"abc"),
        (b"a\x1bcb\x1b(0c", b"abc"),
        (b"a\x1b[\x002Jb\x1b\x00]0;title\x07c\x1b[>4;1md", b"abcd"),
        (b"c1 \xc2\x9b2J\xc2\x9d52;c;aGk=\xc2\x9cend", b"c1 end"),
        ("bell\x07back\x08nul\x00\u202e".encode(), "bell�back�nul��".encode()),
        (b" 10%\r 50%\r100%", b"100%"),
        (b"done\r", b"done"),
    ],
)
def test_what_reaches_a_terminal_is_safe(line: bytes, safe: bytes) -> None:
    expected = b"r000| " + safe + (b"\x1b[0m\n" if b"\x1b" in safe else b"\n")
    assert printed((0, "out", line + b"\n"), terminal=True) == expected
    assert printed((0, "out", line), terminal=True) == expected


def test_an_endless_line_is_cut_on_a_terminal_only() -> None:
    cut = printed((0, "out", b"x" * 70_000), terminal=True)
    assert cut.endswith(" … [4,464 more bytes in the log file]\n".encode())
    assert len(printed((0, "out", b"x" * 70_000))) == 70_007
