"""What terminals that show less are given: plain ASCII in as many cells, and no colours."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

import skyward_core
import skyward_tui
from skyward_tui.text.number_and_time_format import plain_ascii
from skyward_tui.ui.terminal_driver import ColourRemover, PlainAscii
from skyward_tui.ui.themes import _STATE_STYLES, state_style
from skyward_tui.widgets.braille_chart import Canvas, spark

BLACK = Color(0, 0, 0)


@given(st.text())
def test_any_text_keeps_its_cells(text: str) -> None:
    plain = plain_ascii(text)
    assert plain.isascii() and "\x7f" not in plain
    printable = "".join(char for char in text if char.isprintable())
    assert cell_len(plain_ascii(printable)) == cell_len(printable)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("● up", "* up"),
        ("╭─ 2 Log ─╮", "+- 2 Log -+"),
        ("naïve Größe", "naive Gro?e"),
        ("日本 ok", "???? ok"),
        ("85 °C ±2 …", "85 oC ~2 ~"),
        ("Ａ", "A "),
    ],
)
def test_a_text_keeps_what_can_be_told_of_it(text: str, plain: str) -> None:
    assert plain_ascii(text) == plain


def test_all_that_we_paint_has_a_likeness() -> None:
    folders = (Path(skyward_tui.__file__).parent, Path(skyward_core.__file__).parent / "views")
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".tcss")]
    signs = {char for path in files for char in path.read_text("utf-8") if ord(char) > 0x7E}
    assert len(signs) > 30
    assert {char for char in signs if plain_ascii(char) == "?"} == set()


def test_signs_of_states_stay_apart() -> None:
    """Where a sign stands alone, as in the grid of 256 ranks, fine and failed are no matter of colour either."""
    glyphs = {each.glyph for each in _STATE_STYLES.values()}
    assert len({plain_ascii(glyph) for glyph in glyphs}) == len(glyphs)
    ranks = (
        "waiting",
        "importing",
        "joining",
        "running",
        "paused",
        "returned",
        "raised",
        "lost",
        "collateral",
        "idle",
    )
    assert len({state_style(state).glyph for state in ranks}) == len(ranks)
    for state, each in _STATE_STYLES.items():
        assert each.word and each.glyph, state
    for group in (
        ("up", "degraded", "gone", "unreachable", "unfinished"),
        ("done", "failed", "cancelled", "running"),
    ):
        assert len({state_style(state).text for state in group}) == len(group)


def test_a_chart_is_still_one() -> None:
    canvas = Canvas(12, 3, (0, 11), (0, 1))
    canvas.draw_line([(x, x / 11) for x in range(12)], 1)
    rows = [plain_ascii("".join(text for text, _ in canvas.runs(row))) for row in range(3)]
    assert all(row.isascii() and row.strip() for row in rows)
    assert rows[0].strip() and rows[0].index(rows[0].strip()[0]) > rows[2].index(rows[2].strip()[0])
    assert plain_ascii(spark([(x, x) for x in range(8)], 8)) == "_.,-~=*#"


def test_without_colours_a_cursor_is_reversed_and_grey_is_dim() -> None:
    styles = {"plain": "", "state": "red bold", "cursor": "black on white", "muted": "bright_black"}
    segments = [Segment(name, Style.parse(style)) for name, style in styles.items()]
    painted = {text: style for text, style, _ in ColourRemover().apply([*segments, Segment("none")], BLACK)}
    assert painted["plain"] == Style()
    assert painted["state"] == Style(bold=True)
    assert painted["cursor"] == Style(reverse=True)
    assert painted["muted"] == Style(dim=True)
    assert painted["none"] is None


def test_styles_stay_where_characters_change() -> None:
    red = Style.parse("red")
    assert PlainAscii().apply([Segment("✗", red), Segment("x", red)], BLACK) == [Segment("x", red)] * 2
