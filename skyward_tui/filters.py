"""What is painted, changed on its way to terminals that show less: no colours (https://no-color.org), plain ASCII."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.filter import LineFilter

if TYPE_CHECKING:
    from textual.color import Color

_GREY = 8  # of the terminal's own colours: what matters less


class Colourless(LineFilter):
    """No colour at all. What has a background of its own, such as a cursor, is reversed, what is grey is dim."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same text in other styles."""
        return [
            Segment(text, None if style is None else _colourless(style), control)
            for text, style, control in segments
        ]


@lru_cache(maxsize=1024)
def _colourless(style: Style) -> Style:
    front, back = style.color, style.bgcolor
    bare = style.without_color
    if back is not None and not back.is_default:
        return bare + Style(reverse=True)
    return bare + Style(dim=True) if front is not None and front.number == _GREY else bare


class PlainAscii(LineFilter):
    """Nothing but what every terminal and font has. A character becomes as many as it had cells."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same styles over other text."""
        return [
            segment if segment.text.isascii() else Segment(plain_ascii(segment.text), *segment[1:])
            for segment in segments
        ]


def plain_ascii(text: str) -> str:
    """A text in ASCII, in as many cells; a letter loses its accent, what has no likeness is a question mark."""
    plain = text.translate(_LIKENESSES)
    cells = cell_len(text)
    return plain if len(plain) == cells else set_cell_size(plain, cells)


class _Likenesses(dict[int, str]):
    def __missing__(self, code: int) -> str:
        found = self[code] = _likeness(chr(code))
        return found


def _likeness(char: str) -> str:
    code = ord(char)
    if code < 0x7F:
        return char
    if 0x2500 <= code < 0x2580:
        return "-" if "HORIZONTAL" in (name := unicodedata.name(char)) and "VERTICAL" not in name else "|"
    if 0x2800 <= code < 0x2900:
        return _of_braille(code)
    letters = "".join(each for each in unicodedata.normalize("NFKD", char) if " " <= each <= "~")
    cells = cell_len(char)
    return letters[:cells].ljust(cells) if letters else "?" * cells


def _of_braille(code: int) -> str:
    """By the rows in which a cell of a chart has dots: upright where a line goes all the way through it, else at the
    height of its middle."""
    rows = [row for row, dots in enumerate((0x09, 0x12, 0x24, 0xC0)) if code & dots]
    if not rows:
        return " "
    return "|" if rows[0] == 0 and rows[-1] == 3 else "''---.."[rows[0] + rows[-1]]


# Signs of states stay apart from one another; the word beside each says the same.
_SIGNS = {
    "✓": "+", "✗": "x", "●": "*", "○": "o", "◌": ".", "◍": "%", "⊘": "/", "·": "-", "◔": ":", "◑": ";", "◕": "#",
    "▶": ">", "▼": "v", "■": "#", "□": "_", "›": ">", "←": "<", "→": ">", "↑": "^", "↓": "v", "↵": "/", "⇥": ">",
    "…": "~", "⋯": "~", "–": "-", "—": "-", "×": "x", "±": "~", "°": "o", "†": "+", "•": "*", "▸": ">", "▾": "v",
    "▁": "_", "▂": ".", "▃": ",", "▄": "-", "▅": "~", "▆": "=", "▇": "*", "█": "#", "▀": '"', "▔": "-",
    "‖": "=", "▲": "^", "◆": "*",
    "▌": "|", "▐": "|", "▏": "|", "▎": "|", "▍": "|", "▋": "|", "▊": "|", "▉": "|", "▕": "|",
    "░": ".", "▒": ":", "▓": "%", "▗": ".", "▖": ".", "▘": "'", "▝": "'",
}  # fmt: skip
_CORNERS = "┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╭╮╯╰"
_LIKENESSES = _Likenesses(
    {ord(char): sign for char, sign in _SIGNS.items()} | dict.fromkeys(map(ord, _CORNERS), "+")
)
