"""Lines and bars of characters."""

from __future__ import annotations

import math

from skyward_tui.widgets.braille_chart import Canvas, bounds, spark


def rows(canvas: Canvas) -> list[str]:
    return ["".join(text for text, _ in canvas.runs(row)) for row in range(canvas.height)]


def test_a_line_goes_from_corner_to_corner() -> None:
    canvas = Canvas(3, 2, (0.0, 1.0), (0.0, 1.0))
    canvas.draw_line([(0.0, 0.0), (1.0, 1.0)], 1)
    assert rows(canvas) == [" ⡠⠊", "⡔⠁ "]


def test_points_sit_where_they_belong() -> None:
    canvas = Canvas(2, 1, (0.0, 3.0), (0.0, 3.0))
    for x, y in [(0, 3), (1, 2), (2, 1), (3, 0)]:
        canvas.draw_line([(x, y)], 1)
    assert rows(canvas) == ["⠑⢄"]


def test_what_is_no_number_interrupts_the_line() -> None:
    canvas = Canvas(4, 1, (0.0, 7.0), (0.0, 1.0))
    canvas.draw_line([(0, 0), (1, 0), (2, math.nan), (6, 0), (7, math.inf)], 1)
    assert rows(canvas) == ["⣀  ⡀"]


def test_the_greatest_owner_gives_a_cell_its_colour() -> None:
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


def test_numbers_near_the_largest_float_are_drawn() -> None:
    points = [(0.0, -1.7e308), (1.0, 1.7e308)]
    spanned = bounds([points])
    assert spanned is not None
    canvas = Canvas(1, 1, *spanned)
    canvas.draw_line(points, 1)
    assert rows(canvas) == ["⡎"]
    assert spark(points, 2) == "▁█"


def test_a_row_of_bars_ends_with_the_newest() -> None:
    assert spark([(i, float(i)) for i in range(8)], 8) == "▁▂▃▄▅▆▇█"
    assert spark([(i, float(i)) for i in range(800)], 8) == "▁▂▃▄▅▆▇█"
    assert spark([(0, 1.0), (1, math.nan)], 8) == "▄"
    assert spark([], 8) == "" and spark([(0, 1.0)], 0) == ""


def test_what_lies_below_a_line_is_filled_and_stands_behind_it() -> None:
    canvas = Canvas(2, 2, (0.0, 3.0), (0.0, 7.0))
    canvas.draw_line([(0, 7), (1, 3)], 2)
    canvas.fill(1)
    assert rows(canvas) == ["⡇ ", "⣿ "]
    assert [owner for _, owner in canvas.runs(0)] == [2, 0] and canvas.runs(1)[0] == ("⣿", 2)
    other = Canvas(1, 3, (0.0, 1.0), (0.0, 11.0))
    other.draw_line([(0, 11), (1, 11)], 2)
    other.fill(1)
    assert [other.runs(row) for row in range(3)] == [[("⣿", 2)], [("⣿", 1)], [("⣿", 1)]]
