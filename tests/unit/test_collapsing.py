"""``logs --collapse``: rows go out as soon as no rank can join them."""

from __future__ import annotations

import pytest

from skyward_core.client.run_history import OutputChunk
from skyward_core.views.log_collapsing import JOIN_SECONDS
from skyward_tui.cli.commands.ls_logs_results_files import CollapsedPrinter
from skyward_tui.cli.console import Console


def piece(rank: int, data: bytes, at: float, stream: str = "out") -> OutputChunk:
    return OutputChunk(rank, f"r{rank:03d}.{stream}", stream, data, at)


def test_rows_go_out_once_they_are_settled(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    out = CollapsedPrinter(Console(), 3)
    for rank in range(3):
        out.feed(piece(rank, b"epoch done\nsav", 100.0))
    assert capfdbinary.readouterr() == (b"", b"")
    out.feed(piece(0, b"ed\n", 101.0 + 2 * JOIN_SECONDS))
    assert capfdbinary.readouterr() == (b"x3| epoch done\n", b"")
    out.feed(piece(1, b"ed", 101.0 + 2 * JOIN_SECONDS))
    out.feed(piece(2, b"oh\n", 101.0 + 2 * JOIN_SECONDS, "err"))
    out.finish("r1")
    assert capfdbinary.readouterr() == (b"x2, not r2| saved\nr2| sav\n", b"r2| oh\n")


def test_ranks_whose_clocks_differ_fold_though_they_say_something_of_their_own(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    out = CollapsedPrinter(Console(), 2)
    for step in range(3):
        for rank in range(2):
            out.feed(piece(rank, b"own %d.%d\nstep %d\n" % (rank, step, step), 100.0 + step + 4 * rank))
    out.finish("r1")
    rows = capfdbinary.readouterr().out.splitlines()
    assert [row for row in rows if b"step" in row] == [b"x2| step 0", b"x2| step 1", b"x2| step 2"]
    assert len(rows) == 9
