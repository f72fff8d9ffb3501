"""Charts drawn with characters, and the filter for output of ranks."""

from __future__ import annotations

import math

import pytest
from rich.color import Color

from skyward_tui.text.ansi_colours import CELL_LIMIT, parse, plain
from skyward_tui.widgets.metric_charts import Canvas, bounds, spark


def rows(canvas: Canvas) -> list[str]:
    return ["".join(text for text, _ in canvas.runs(row)) for row in range(canvas.height)]


def test_line_is_drawn_between_opposite_corners() -> None:
    canvas = Canvas(3, 2, (0.0, 1.0), (0.0, 1.0))
    canvas.draw_line([(0.0, 0.0), (1.0, 1.0)], 1)
    assert rows(canvas) == [" ⡠⠊", "⡔⠁ "]


def test_points_are_drawn_at_their_coordinates() -> None:
    canvas = Canvas(2, 1, (0.0, 3.0), (0.0, 3.0))
    for x, y in [(0, 3), (1, 2), (2, 1), (3, 0)]:
        canvas.draw_line([(x, y)], 1)
    assert rows(canvas) == ["⠑⢄"]


def test_non_finite_value_interrupts_the_line() -> None:
    canvas = Canvas(4, 1, (0.0, 7.0), (0.0, 1.0))
    canvas.draw_line([(0, 0), (1, 0), (2, math.nan), (6, 0), (7, math.inf)], 1)
    assert rows(canvas) == ["⣀  ⡀"]


def test_most_frequent_owner_determines_the_colour_of_a_cell() -> None:
    canvas = Canvas(2, 1, (0.0, 3.0), (0.0, 1.0))
    canvas.draw_line([(0, 0), (1, 0)], 2)
    canvas.draw_line([(0, 1), (3, 1)], 1)
    assert canvas.runs(0) == [("⣉", 2), ("⠉", 1)]


def test_bounds_leave_room_around_a_flat_line() -> None:
    assert bounds([]) is None
    assert bounds([[(0, math.nan)]]) is None
    assert bounds([[(1, 4.0), (3, 4.0)]]) == ((1, 3), (2.0, 6.0))
    assert bounds([[(1, 0.0)]]) == ((1, 1), (-1.0, 1.0))
    assert bounds([[(0, 1.0), (2, math.inf)], [(5, -1.0)]]) == ((0, 5), (-1.0, 1.0))


def test_values_near_the_largest_float_are_drawn() -> None:
    points = [(0.0, -1.7e308), (1.0, 1.7e308)]
    spanned = bounds([points])
    assert spanned is not None
    canvas = Canvas(1, 1, *spanned)
    canvas.draw_line(points, 1)
    assert rows(canvas) == ["⡎"]
    assert spark(points, 2) == "▁█"


def test_sparkline_ends_with_the_newest_value() -> None:
    assert spark([(i, float(i)) for i in range(8)], 8) == "▁▂▃▄▅▆▇█"
    assert spark([(i, float(i)) for i in range(800)], 8) == "▁▂▃▄▅▆▇█"
    assert spark([(0, 1.0), (1, math.nan)], 8) == "▄"
    assert spark([], 8) == "" and spark([(0, 1.0)], 0) == ""


def test_area_below_a_line_is_filled_behind_it() -> None:
    canvas = Canvas(2, 2, (0.0, 3.0), (0.0, 7.0))
    canvas.draw_line([(0, 7), (1, 3)], 2)
    canvas.fill(1)
    assert rows(canvas) == ["⡇ ", "⣿ "]
    assert [owner for _, owner in canvas.runs(0)] == [2, 0] and canvas.runs(1)[0] == ("⣿", 2)
    other = Canvas(1, 3, (0.0, 1.0), (0.0, 11.0))
    other.draw_line([(0, 11), (1, 11)], 2)
    other.fill(1)
    assert [other.runs(row) for row in range(3)] == [[("⣿", 2)], [("⣿", 1)], [("⣿", 1)]]


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
def test_parsed_text_keeps_colours_and_drops_other_escapes(raw: str, shown: str) -> None:
    assert plain(raw) == shown
    assert "\x1b" not in parse(raw).plain


def test_colour_spans_cover_their_text() -> None:
    parsed = parse("a\x1b[1;31mbc\x1b[22md\x1b[38;5;200me\x1b[48;2;1;2;3mf\x1b[mg")
    assert parsed.plain == "abcdefg"
    spans = [(a, b, style.color, bool(style.bold)) for a, b, style in parsed.spans]
    red = Color.from_ansi(1)
    pink = Color.from_ansi(200)
    assert spans == [(1, 3, red, True), (3, 4, red, False), (4, 5, pink, False), (5, 6, pink, False)]
    assert parsed.spans[-1][2].bgcolor == Color.from_rgb(1, 2, 3)


@pytest.mark.parametrize("codes", ["38", "38;5", "38;5;900", "38;2;1;2", "38;9;1", "999", ";;;", "4:3"])
def test_invalid_colour_codes_are_ignored(codes: str) -> None:
    assert parse(f"\x1b[{codes}mx").plain == "x"


def test_long_lines_are_clipped() -> None:
    parsed = parse("\x1b[31m" + "x" * 1_000_000)
    assert len(parsed.plain) == CELL_LIMIT
    assert parsed.spans[-1][1] == CELL_LIMIT
    assert len(parse("y" * 50_000).plain) == CELL_LIMIT
