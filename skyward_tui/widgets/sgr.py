"""User output made safe to show: colours stay, every other escape sequence goes.

A log may hold anything, an OSC 52 that would set the clipboard included. Only SGR (ECMA-48, 8.3.117) is
understood; control characters and direction overrides show as �.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from rich.color import Color
from rich.style import Style

CELL_LIMIT = 2_000  # cells of one line that are ever painted
_RAW_LIMIT = 8 * CELL_LIMIT  # characters looked at to get them; the rest may be escapes

_TOKEN = re.compile(
    r"\x1b\[(?P<sgr>[0-9;:]*)m"
    r"|(?P<drop>\x1b\[[0-?]*[ -/]*[@-~]?"  # any other control sequence
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)?"  # OSC, DCS and their like, with all they carry
    r"|\x1b[ -/]*[0-~]?)"
    r"|(?P<control>[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069])"
)
_SUSPECT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Parsed(NamedTuple):
    """``plain``: what shows. ``spans``: (start, stop, style) over it, in order, without overlap."""

    plain: str
    spans: tuple[tuple[int, int, Style], ...]


@dataclass(frozen=True, slots=True)
class _Pen:
    foreground: Color | None = None
    background: Color | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False
    strike: bool = False


_NO_PEN = _Pen()
_ON = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "reverse", 9: "strike"}
_OFF = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("reverse",), 29: ("strike",)}


def plain(text: str) -> str:
    """The text without escapes, as it would show."""
    return text if _SUSPECT.search(text) is None else parse(text).plain


def parse(text: str) -> Parsed:
    """One line of output, cut to what may be painted."""
    if _SUSPECT.search(text) is None:
        return Parsed(text[:CELL_LIMIT], ())
    text = text[:_RAW_LIMIT].expandtabs(8)
    pieces: list[str] = []
    spans: list[tuple[int, int, Style]] = []
    pen, length, place = _NO_PEN, 0, 0

    def put(piece: str) -> None:
        nonlocal length
        if piece:
            if pen is not _NO_PEN and pen != _NO_PEN:
                spans.append((length, length + len(piece), _style(pen)))
            pieces.append(piece)
            length += len(piece)

    for token in _TOKEN.finditer(text):
        put(text[place : token.start()])
        place = token.end()
        if token["control"]:
            put("�")
        elif token["sgr"] is not None:
            pen = _turn(pen, token["sgr"])
    put(text[place:])
    whole = "".join(pieces)
    if len(whole) <= CELL_LIMIT:
        return Parsed(whole, tuple(spans))
    return Parsed(
        whole[:CELL_LIMIT], tuple((a, min(b, CELL_LIMIT), s) for a, b, s in spans if a < CELL_LIMIT)
    )


@lru_cache(maxsize=1024)
def _turn(pen: _Pen, parameters: str) -> _Pen:
    """The pen after one SGR sequence; parameters it does not know change nothing."""
    state = {name: getattr(pen, name) for name in _Pen.__slots__}
    codes = [int(code) if code else 0 for code in re.split("[;:]", parameters)]
    while codes:
        code = codes.pop(0)
        if code == 0:
            state = {name: getattr(_NO_PEN, name) for name in _Pen.__slots__}
        elif code in _ON:
            state[_ON[code]] = True
        elif code in _OFF:
            state |= dict.fromkeys(_OFF[code], False)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            state["foreground"] = Color.from_ansi(code - 30 if code < 90 else code - 82)
        elif 40 <= code <= 47 or 100 <= code <= 107:
            state["background"] = Color.from_ansi(code - 40 if code < 100 else code - 92)
        elif code in (38, 48):
            color, codes = _extended(codes)
            state["foreground" if code == 38 else "background"] = color
        elif code == 39:
            state["foreground"] = None
        elif code == 49:
            state["background"] = None
    return _Pen(**state)


def _extended(codes: list[int]) -> tuple[Color | None, list[int]]:
    """The colour of ``38;5;N`` or ``38;2;R;G;B``, and the parameters after it."""
    match codes:
        case [5, number, *rest] if number < 256:
            return Color.from_ansi(number), rest
        case [2, red, green, blue, *rest] if max(red, green, blue) < 256:
            return Color.from_rgb(red, green, blue), rest
    return None, []


@lru_cache(maxsize=1024)
def _style(pen: _Pen) -> Style:
    return Style(
        color=pen.foreground,
        bgcolor=pen.background,
        bold=pen.bold or None,
        dim=pen.dim or None,
        italic=pen.italic or None,
        underline=pen.underline or None,
        reverse=pen.reverse or None,
        strike=pen.strike or None,
    )
