"""Lines that ranks have begun and not ended (progress bars, prompts), on a terminal: one for each rank, below all that
has been printed, drawn anew in their place.

The cursor stays where the first of them begins. So whatever others print meanwhile, without a word to us, goes over
them, and to take them away takes nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from unicodedata import east_asian_width

from ..wire.safe_text import paragraph
from .logs import Lines, prefix_of

AWAY = "\r\x1b[J"


def begun(ranks: Iterable[tuple[int, Lines]], *, prefixed: bool = True) -> list[str]:
    """The lines that show now, by rank: text, without colours.

    Args:
        ranks: of each rank the stream that said something last.
    """
    found = []
    for rank, lines in sorted(ranks, key=lambda each: each[0]):
        if text := paragraph(lines.preview()).rstrip():
            found.append(f"{prefix_of(rank)}{text}" if prefixed else text)
    return found


class LiveLines:
    """What is drawn of them. It writes nothing: whoever has the terminal does, with what it is given.

    Args:
        size: tells how large the terminal is; they take half of its lines at most.
    """

    def __init__(self, size: Callable[[], os.terminal_size]) -> None:
        self._size = size
        self._shown: list[str] = []

    def drawn(self, lines: list[str]) -> str:
        """What to write so that these are shown in place of those before; "" where they are already."""
        columns, rows = self._size()
        room = max(1, rows // 2)
        if len(lines) > room:
            kept = lines[: room - 1]
            lines = [*kept, f"… and {len(lines) - len(kept)} more ranks"]
        lines = [clipped(line, columns - 1) for line in lines]
        if lines == self._shown:
            return ""
        away = self.erased()
        self._shown = lines
        back = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        return f"{away}{chr(10).join(lines)}\r{back}" if lines else away

    def erased(self) -> str:
        """What to write so that none is shown; "" where none is."""
        if not self._shown:
            return ""
        self._shown = []
        return AWAY


def clipped(text: str, cells: int) -> str:
    """Cut to a number of cells of a terminal, with an ellipsis where something went."""
    taken = 0
    for at, character in enumerate(text):
        taken += 2 if character > "\u10ff" and east_asian_width(character) in "WF" else 1
        if taken >= cells and (taken > cells or at < len(text) - 1):
            return text[:at].rstrip() + "…"
    return text
