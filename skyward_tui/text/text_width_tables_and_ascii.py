"""Functions that cut, pad and align text to terminal cells, lay it out as tables, and replace it by ASCII."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

PATH_CELLS = 8  # minimum cells of a shortened path; a shorter rest of the path would not be recognizable


def clip(text: str, width: int) -> str:
    """Cut a text to a number of cells. A shortened text ends with an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…" if width > 0 else ""


def fit_width(text: str, cells: int) -> str:
    """Cut or pad a text to a number of cells. A negative number aligns the text to the right.

    Format strings count characters instead of cells, so they would misalign columns with wide characters.
    """
    shown = clip(text, abs(cells))
    room = " " * (abs(cells) - cell_len(shown))
    return f"{room}{shown}" if cells < 0 else f"{shown}{room}"


def clip_parts(text: str, width: int) -> str:
    """Cut a text to a number of cells. Parts, which are separated by two blanks, are kept or dropped as a whole."""
    shown = ""
    for part in text.split("  "):
        longer = f"{shown}  {part}" if shown else part
        if cell_len(longer) > width:
            break
        shown = longer
    return shown or clip(text, width)


def clip_start(text: str, width: int) -> str:
    """Cut a text to a number of cells at its beginning, because the end of a path matters most."""
    if cell_len(text) <= width:
        return text
    end = text
    while end and cell_len(end) > width - 1:
        end = end[1:]
    return f"…{end}" if width > 0 else ""


def clip_path(text: str, width: int) -> str:
    """Cut a text to a number of cells. If the last word is a path, cut the beginning of the path."""
    words, _, path = text.rpartition(" ")
    room = width - cell_len(words) - 1
    if "/" in path and words and room >= PATH_CELLS:
        return f"{words} {clip_start(path, room)}"
    return clip_start(text, width) if "/" in path and not words else clip(text, width)


def one_line(text: str) -> str:
    """Return the first line of a text that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


class Columns:
    """Alignment of the cells of lines that are printed one by one. Each column is as wide as its widest cell so far.

    Args:
        widths: Initial widths of the first columns.
    """

    def __init__(self, *widths: int) -> None:
        self._widths = list(widths)

    def line(self, cells: Sequence[str]) -> str:
        """Return the next line. The width of the last cell is not limited."""
        known = [*self._widths, *[0] * len(cells)]
        self._widths = [max(width, cell_len(cell)) for width, cell in zip(known, cells, strict=False)]
        return "  ".join(fit_width(cell, width) for cell, width in zip(cells, self._widths, strict=True)).rstrip()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns. The width of the last column is not limited."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(fit_width(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def plain_ascii(text: str) -> str:
    """Return a text in ASCII with the same number of cells. Letters lose their accents, and unknown characters become
    "?"."""
    plain = text.translate(_ASCII_MAP)
    cells = cell_len(text)
    return plain if len(plain) == cells else set_cell_size(plain, cells)


class _AsciiMap(dict[int, str]):
    def __missing__(self, code: int) -> str:
        found = self[code] = _closest_ascii(chr(code))
        return found


def _closest_ascii(char: str) -> str:
    code = ord(char)
    if code < 0x7F:
        return char
    if 0x2500 <= code < 0x2580:
        return "-" if "HORIZONTAL" in (name := unicodedata.name(char)) and "VERTICAL" not in name else "|"
    if 0x2800 <= code < 0x2900:
        return _braille_ascii(code)
    letters = "".join(each for each in unicodedata.normalize("NFKD", char) if " " <= each <= "~")
    cells = cell_len(char)
    return letters[:cells].ljust(cells) if letters else "?" * cells


def _braille_ascii(code: int) -> str:
    """Return the ASCII character for a Braille cell: a bar for a full column, otherwise a sign at the middle height of
    the dots."""
    rows = [row for row, dots in enumerate((0x09, 0x12, 0x24, 0xC0)) if code & dots]
    if not rows:
        return " "
    return "|" if rows[0] == 0 and rows[-1] == 3 else "''---.."[rows[0] + rows[-1]]


# Each state's sign has an ASCII sign of its own. The word beside the sign explains the meaning.
_SIGNS = {
    "✓": "+", "✗": "x", "●": "*", "○": "o", "◌": ".", "◍": "%", "⊘": "/", "·": "-", "◔": ":", "◑": ";", "◕": "#",
    "▶": ">", "▼": "v", "■": "#", "□": "_", "›": ">", "←": "<", "→": ">", "↑": "^", "↓": "v", "↵": "/", "⇥": ">",
    "…": "~", "⋯": "~", "–": "-", "—": "-", "×": "x", "±": "~", "°": "o", "†": "+", "•": "*", "▸": ">", "▾": "v",
    "▁": "_", "▂": ".", "▃": ",", "▄": "-", "▅": "~", "▆": "=", "▇": "*", "█": "#", "▀": '"', "▔": "-",
    "‖": "=", "▲": "^", "◆": "*", "★": "*",
    "▌": "|", "▐": "|", "▏": "|", "▎": "|", "▍": "|", "▋": "|", "▊": "|", "▉": "|", "▕": "|",
    "░": ".", "▒": ":", "▓": "%", "▗": ".", "▖": ".", "▘": "'", "▝": "'",
}  # fmt: skip
_CORNERS = "┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╭╮╯╰"
_ASCII_MAP = _AsciiMap({ord(char): sign for char, sign in _SIGNS.items()} | dict.fromkeys(map(ord, _CORNERS), "+"))
