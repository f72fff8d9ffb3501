"""Compression of terminal casts for the tour."""

from __future__ import annotations

import pytest

pyte = pytest.importorskip("pyte")
recording = pytest.importorskip("tests.tui.recording")


def _screen(painted: list[tuple[float, str]]) -> list[list[tuple[object, ...]]]:
    wide, high = recording.SIZE
    screen = pyte.Screen(wide, high)
    stream = pyte.Stream(screen)
    for _, text in painted:
        stream.feed(text)
    return [[tuple(screen.buffer[row][column]) for column in range(wide)] for row in range(high)]


def test_compressed_terminal_cast_shows_the_same_screen() -> None:
    red, plain = "\x1b[1;38;2;200;10;10;48;2;1;2;3m", "\x1b[0m"
    painted = [(0.0, "\x1b[2J\x1b[?25l")]
    for step in range(40):
        whole = "".join(f"\x1b[{row};1H{red}row {row}{plain} step {step:>3} ─日本" for row in range(1, 30))
        painted.append((0.05 * step, whole))
    painted.append((2.1, "\x1b[5;3H\x1b[7mback to front\x1b[0m\x1b[2K"))
    answer = recording.redrawn(painted)
    assert _screen(answer) == _screen(painted)
    assert [at for at, _ in answer] == sorted(at for at, _ in answer) and len(answer) < len(painted)
    assert sum(len(text) for _, text in answer) < 0.2 * sum(len(text) for _, text in painted)
