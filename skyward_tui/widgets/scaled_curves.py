"""Curves in one chart with its scales, as rows of text: over the time since each began."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from ..words import clip, duration
from .braille import Canvas, Points, bounds

SCALE = 9  # cells of the scale on the left


def scaled(curves: Sequence[Points], styles: Sequence[str], width: int, height: int) -> list[Content]:
    """As many rows as there are to be; none where there is nothing to draw, or no room.

    Args:
        styles: of each curve; where two meet, the later one's is shown.
    """
    spanned = bounds(curves)
    if spanned is None or height < 3 or width < 3 * SCALE:
        return []
    (first, last), (low, high) = spanned
    canvas = Canvas(width - SCALE - 1, height - 1, (first, last), (low, high))
    for owner, points in enumerate(curves, 1):
        canvas.line(points, owner)
    worn = ("", *styles)
    rows = []
    for at in range(canvas.height):
        mark = f"{high:.3g}" if at == 0 else f"{low:.3g}" if at == canvas.height - 1 else ""
        scale = f"{clip(mark, SCALE - 1):>{SCALE - 1}} ┤" if mark else f"{'':{SCALE}}│"
        rows.append(
            Content.assemble((scale, "$muted"), *((text, worn[who]) for text, who in canvas.runs(at)))
        )
    begin, end = duration(first), duration(last)
    axis = f"{'':{SCALE}}└ {begin} {'─' * max(0, canvas.width - len(begin) - len(end) - 3)} {end}"
    return [*rows, Content.styled(axis, "$muted")]
