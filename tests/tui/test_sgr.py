"""User output made safe."""

from __future__ import annotations

import pytest
from rich.color import Color

from skyward_tui.text.ansi_colours import CELL_LIMIT, parse, plain


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m rest", "red rest"),
        ("a\x1b]52;c;aGVsbG8=\x07b", "ab"),  # would set the clipboard
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("a\x1b]52;c;never ended", "a52;c;never ended"),
        ("a\x1bP1;2|dcs\x1b\\b", "ab"),
        ("\x1b[2J\x1b[1;1Hcleared", "cleared"),
        ("\x1b(Bcharset\x1b=", "charset"),
        ("bell\x07 back\x08 null\x00", "bell� back� null�"),
        ("c1 \x9b31mred", "c1 red"),
        ("tab\there", "tab     here"),
        ("\u202egnp.exe", "�gnp.exe"),
        ("cut short \x1b[", "cut short "),
        ("cut short \x1b", "cut short "),
        ("\udc80 lone", "� lone"),
    ],
)
def test_only_colour_survives(raw: str, shown: str) -> None:
    assert plain(raw) == shown
    assert "\x1b" not in parse(raw).plain


def test_colours_cover_what_they_should() -> None:
    parsed = parse("a\x1b[1;31mbc\x1b[22md\x1b[38;5;200me\x1b[48;2;1;2;3mf\x1b[mg")
    assert parsed.plain == "abcdefg"
    spans = [(a, b, style.color, bool(style.bold)) for a, b, style in parsed.spans]
    red = Color.from_ansi(1)
    pink = Color.from_ansi(200)
    assert spans == [(1, 3, red, True), (3, 4, red, False), (4, 5, pink, False), (5, 6, pink, False)]
    assert parsed.spans[-1][2].bgcolor == Color.from_rgb(1, 2, 3)


@pytest.mark.parametrize("codes", ["38", "38;5", "38;5;900", "38;2;1;2", "38;9;1", "999", ";;;", "4:3"])
def test_odd_parameters_do_no_harm(codes: str) -> None:
    assert parse(f"\x1b[{codes}mx").plain == "x"


def test_long_lines_are_cut() -> None:
    parsed = parse("\x1b[31m" + "x" * 1_000_000)
    assert len(parsed.plain) == CELL_LIMIT
    assert parsed.spans[-1][1] == CELL_LIMIT
    assert len(parse("y" * 50_000).plain) == CELL_LIMIT
