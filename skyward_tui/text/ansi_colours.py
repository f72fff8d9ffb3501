"""Conversion of log lines with SGR colours (ECMA-48, 8.3.117) to plain text with styles.

Other control sequences are removed by :mod:`skyward_core.util.terminal_safe_text`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from rich.color import Color
from rich.style import Style

from skyward_core.util.terminal_safe_text import sanitize_colored

CELL_LIMIT = 2_000  # maximum cells of a displayed line, to limit the cost of very long lines
_RAW_LIMIT = 8 * CELL_LIMIT  # maximum characters of a line that are parsed, including escape sequences

_SGR = re.compile("\x1b\\[([0-9;:]*)m")


class ParsedLine(NamedTuple):
    """Log line without escape sequences, with the styles of its parts.

    Attributes:
        plain: Visible text.
        spans: Styles of the text as (start, stop, style), in order and without overlap.
    """

    plain: str
    spans: tuple[tuple[int, int, Style], ...]


# Arguments of the current style.
_Pen = tuple[tuple[str, Any], ...]
_ON = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "reverse", 9: "strike"}
_OFF = {
    22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("reverse",), 29: ("strike",),
    39: ("color",), 49: ("bgcolor",),
}  # fmt: skip


def plain(text: str) -> str:
    """Return the text of a line that a terminal would show, without escape sequences."""
    return text if text.isprintable() else parse(text).plain


def parse(text: str) -> ParsedLine:
    """Parse one line of output. The result is cut to ``CELL_LIMIT`` cells."""
    if text.isprintable():
        return ParsedLine(text[:CELL_LIMIT], ())
    pieces: list[str] = []
    spans: list[tuple[int, int, Style]] = []
    pen: _Pen = ()
    length = 0
    # ``_SGR.split`` returns texts at even positions, and the parameters of SGR sequences at odd positions.
    for place, part in enumerate(_SGR.split(sanitize_colored(text[:_RAW_LIMIT]).expandtabs(8))):
        if place % 2:
            pen = _apply_sgr(pen, part)
        elif part:
            if pen:
                spans.append((length, length + len(part), _style(pen)))
            pieces.append(part)
            length += len(part)
    whole = "".join(pieces)
    if len(whole) <= CELL_LIMIT:
        return ParsedLine(whole, tuple(spans))
    return ParsedLine(whole[:CELL_LIMIT], tuple((a, min(b, CELL_LIMIT), s) for a, b, s in spans if a < CELL_LIMIT))


@lru_cache(maxsize=1024)
def _apply_sgr(pen: _Pen, parameters: str) -> _Pen:
    """Return the style after one SGR sequence. Unknown parameters are ignored."""
    state = dict(pen)
    codes = [int(code) if code else 0 for code in re.split("[;:]", parameters)]
    while codes:
        code = codes.pop(0)
        if code == 0:
            state.clear()
        elif code in _ON:
            state[_ON[code]] = True
        elif code in _OFF:
            for name in _OFF[code]:
                state.pop(name, None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            state["color"] = Color.from_ansi(code - 30 if code < 90 else code - 82)
        elif 40 <= code <= 47 or 100 <= code <= 107:
            state["bgcolor"] = Color.from_ansi(code - 40 if code < 100 else code - 92)
        elif code in (38, 48):
            state["color" if code == 38 else "bgcolor"], codes = _parse_extended_colour(codes)
    return tuple(item for item in state.items() if item[1])


def _parse_extended_colour(codes: list[int]) -> tuple[Color | None, list[int]]:
    """Return the colour of ``38;5;N`` or ``38;2;R;G;B``, and the remaining parameters."""
    match codes:
        case [5, number, *rest] if number < 256:
            return Color.from_ansi(number), rest
        case [2, red, green, blue, *rest] if max(red, green, blue) < 256:
            return Color.from_rgb(red, green, blue), rest
    return None, []


@lru_cache(maxsize=1024)
def _style(pen: _Pen) -> Style:
    return Style(**dict(pen))
