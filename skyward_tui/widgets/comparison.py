"""Two runs side by side: rows of what they are, and one number's curves of both in one chart."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from skyward_core.front.charts import COUNTERS

from ..compared import ComparedLine
from ..styles import beside
from ..words import clip, fit
from .braille import Points
from .roll import Roll
from .scaled_curves import scaled

LEFT, RIGHT = 1, 2  # who owns a cell of the chart
STYLES = ("", "$text-accent", "$text-warning")


class ComparedList(Roll):
    """The rows; what differs is marked. Which number is drawn goes by ``name_shown``."""

    def __init__(self) -> None:
        super().__init__(id="rows")
        self.lines: list[ComparedLine] = []
        self.names: list[str] = []
        self.name_shown = ""

    def update(self, lines: Sequence[ComparedLine], names: Sequence[str]) -> None:
        """Take rows, and the numbers that there are curves of."""
        self.lines, self.names = list(lines), list(names)
        if self.name_shown not in self.names:
            curves = (name for name in self.names if name.lower() not in COUNTERS)
            self.name_shown = next(curves, next(iter(names), ""))
        self.refresh()

    def choose(self, steps: int) -> None:
        """Have another number drawn."""
        if self.names:
            at = (self.names.index(self.name_shown) + steps) % len(self.names)
            self.name_shown = self.names[at]
            self.refresh()

    def row_count(self, width: int) -> int:
        return len(self.lines)

    def row(self, index: int, width: int) -> Content:
        line = self.lines[index]
        if line.is_heading:
            return Content.styled(clip(f" {line.name}", width), "bold $text-accent")
        name = min(18, max(cell_len(each.name) for each in self.lines if not each.is_heading))
        side = max(8, (width - name - 6) // 2)
        mark = "≠" if line.differs and line.name else " "
        drawn = line.name == self.name_shown and line.name in self.names
        left, right = (f"{fit(text, side - 1)} " for text in (line.left, line.right))
        plain = "bold" if line.differs else "$muted"
        styles = (plain, plain) if line.name else (f"bold {STYLES[LEFT]}", f"bold {STYLES[RIGHT]}")
        return Content.assemble(
            (f" {fit(line.name, name)} ", "bold $text-accent" if drawn else ""),
            (f"{mark} ", "$text-warning"),
            (left, styles[0]),
            (clip(right.rstrip(), max(0, width - name - 4 - side)), styles[1]),
        )


class TwoCurves(Widget):
    """One number of both over the time since each began."""

    DEFAULT_CSS = beside(__file__)

    def __init__(self) -> None:
        super().__init__(id="curves")
        self._curves: tuple[Points, Points] = ((), ())
        self._note = ""

    def show(self, left: Points, right: Points, note: str) -> None:
        """Draw these.

        Args:
            note: what stands there where there is nothing to draw.
        """
        self._curves, self._note = (left, right), note
        self.refresh()

    def render(self) -> Content:
        width, height = self.size
        drawn = scaled(self._curves, STYLES[LEFT:], width, height)
        return Content("\n").join(drawn) if drawn else Content(clip(f" {self._note}", max(0, width)))
