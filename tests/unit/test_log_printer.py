"""What ranks print as a command shows it: whole lines, on a terminal and in a pipe."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyte
import pytest
from click.testing import CliRunner

from skyward_core.node.agent.agent_state import LAST_LINE_BYTES, last_line
from skyward_core.views.log_collapsing import LiveLines
from skyward_tui.cli import follow_run
from skyward_tui.cli.console import Console, LogPrinter
from skyward_tui.cli.follow_run import LiveStatus, Row, status_rows
from skyward_tui.cli.main import cli
from tests.support.fake_session import FakeSession, failed_run, logged


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


# ``run --watch``: a few lines below what has been printed, that tell how a run is and leave nothing behind.


def texts(found: list[Row]) -> list[str]:
    return [text for text, _ in found]


def test_it_tells_of_a_start_a_run_and_a_failure() -> None:
    session = FakeSession()
    starting = session.pool("fresh", 4, state="starting", phase="requested", price=2.0)
    assert texts(status_rows(starting, None, "", session.now)) == [
        "◌ pool fresh starting  0/4 nodes  $2.00/h spent $0.04  1:04",
        "  4 requested",
    ]
    view = session.pool("llama-ft")
    run = session.open_run(view)
    logged(view, run, session, steps=3)
    session.end_rank(view, run, 1)
    assert texts(status_rows(view, run, "r002| hello", session.now)) == [
        "● train (llama-ft-1)  1/4 ended  0:41  pool llama-ft up  4/4 nodes",
        "  ● 3 running  ✓ 1 returned",
        "  r000| step 2  loss 2.117  lr 0.003333  tokens/s 14,400",
        "  r002| hello",
    ]
    failed = status_rows(view, failed_run(session, view), "", session.now)
    assert failed[1] == ("  ✗ 1 raised  ✗ 1 exited  ⊘ 1 collateral  ✓ 1 returned", 31)


def terminal_in_place(monkeypatch: pytest.MonkeyPatch) -> pyte.Screen:
    """A terminal of 40 by 10 in the place of standard error."""
    terminal = pyte.Screen(40, 10)
    stream = pyte.Stream(terminal)

    class Stderr:
        def write(self, text: str) -> None:
            stream.feed(text.replace("\n", "\r\n"))

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Stderr())
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((40, 10)))
    monkeypatch.setattr(follow_run, "PERIOD", 0.0)
    return terminal


def shown(screen: pyte.Screen) -> list[str]:
    return [line.rstrip() for line in screen.display if line.strip()]


def test_what_is_printed_stands_above_it_and_nothing_of_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal_in_place(monkeypatch)
    console = Console()
    told: list[Row] = [("one", 1), ("x" * 60, None)]
    block = LiveStatus(console, lambda said: [*told, (said, 2)] if said else told)
    block.draw()
    assert shown(screen) == ["one", "x" * 38 + "…"]
    console.note("a note")
    assert shown(screen) == ["a note"]
    block.on_output(3, b"\x1b[31mred\x1b[0m\x1b]0;t\x07\nlast \x1b[2J\n\n")
    block.draw()
    assert shown(screen) == ["a note", "one", "x" * 38 + "…", "r003| last"]
    told[:] = [("two", None)]
    block.draw()
    assert shown(screen) == ["a note", "two", "r003| last"]
    block.close()
    block.draw()
    assert shown(screen) == ["a note"]
    block.open()  # of a job's next step
    block.draw()
    assert shown(screen) == ["a note", "two"]


def test_more_than_fits_is_cut_and_a_narrower_terminal_leaves_no_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = terminal_in_place(monkeypatch)
    block = LiveStatus(Console(), lambda said: [(f"line {number}", None) for number in range(20)])
    block.draw()
    assert shown(screen) == [f"line {number}" for number in range(9)]
    block.erase()
    assert shown(screen) == []
    block = LiveStatus(Console(), lambda said: [("y" * 39, None)])
    block.draw()
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((20, 10)))
    assert block._erase_sequence() == "\x1b[2F\x1b[J"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["run", "example:hello", "--json"], "--watch stays and draws: leave it out, or --json"),
        (["run", "example:hello", "--detach"], "--watch stays and draws: leave it out, or --detach"),
        (["run", "example:hello"], "--watch draws on a terminal, and standard error is none"),
        (["attach", "p", "--json"], "--watch stays and draws: leave it out, or --json"),
        (["attach", "p"], "--watch draws on a terminal, and standard error is none"),
        (["rerun", "r", "--detach"], "--watch stays and draws: leave it out, or --detach"),
        (["launch", "t.yaml", "--detach"], "--watch stays and draws: leave it out, or --detach"),
        (["exec", "--json", "p", "t.yaml"], "--watch stays and draws: leave it out, or --json"),
        (["torchrun", "t.py"], "--watch draws on a terminal, and standard error is none"),
    ],
)
def test_where_it_cannot_be_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", f"{tmp_path}/home")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.yaml").write_text("run: echo hello\n")
    (tmp_path / "t.py").write_text("")
    command, *rest = options
    done = CliRunner().invoke(cli, [command, "--watch", *rest])
    assert done.exit_code and said in done.output


# last_line


@pytest.mark.parametrize(
    "text, line",
    [
        ("", ""),
        ("\n \n", ""),
        ("only", "only"),
        ("a\nb\n\n", "b"),
        ("x" * 9000, "x" * LAST_LINE_BYTES),
        ("é" * LAST_LINE_BYTES + "z", "é" * (LAST_LINE_BYTES // 2 - 1) + "z"),
    ],
)
def test_it_is_the_last_with_something_in_it(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert last_line(path).lstrip("\N{REPLACEMENT CHARACTER}") == line


def test_a_large_log_is_not_read_for_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        log.truncate(1 << 30)
        log.seek(0, 2)
        log.write(b"\nsegmentation fault\n")
    tracemalloc.start()
    try:
        assert last_line(path) == "segmentation fault"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
