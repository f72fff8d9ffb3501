"""What is painted, changed on its way to terminals that show less: no colours (https://no-color.org), plain ASCII."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.filter import LineFilter

from .words import plain_ascii

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
