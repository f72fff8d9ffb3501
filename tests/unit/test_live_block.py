"""``run --watch``: a few lines below what has been printed, that tell how a run is and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pyte
import pytest
from click.testing import CliRunner

from skyward_tui.cli import follow_run
from skyward_tui.cli.console import Console
from skyward_tui.cli.follow_run import LiveStatus, Row, status_rows
from skyward_tui.cli.main import cli
from tests.support.fake_session import FakeSession, failed_run, logged


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
