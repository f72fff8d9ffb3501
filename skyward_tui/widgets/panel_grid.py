"""The grid that panels stand in, whose borders can be moved: by the mouse, or by growing what is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from textual import events
from textual.containers import Container
from textual.css.scalar import Scalar, Unit
from textual.widget import Widget

LEAST_COLUMNS, LEAST_ROWS = 16, 4  # that any panel keeps
STEP_COLUMNS, STEP_ROWS = 4, 2


class MovedBorders(NamedTuple):
    """By how many cells borders stand elsewhere than usual.

    Attributes:
        left: the one right of the first column, to the right.
        below: the one above the second row, upwards.
    """

    left: int = 0
    below: int = 0


def sizes(usual: Sequence[Scalar], place: int, by: int, room: int, least: int) -> tuple[Scalar, ...]:
    """Columns or rows, of which one has other cells than usual; all as usual where none is counted in cells.

    Args:
        place: of the one.
        room: cells of all together.
        least: cells that it, and what is beside it, keep.
    """
    if len(usual) <= place or usual[place].unit != Unit.CELLS:
        return tuple(usual)
    fixed = sum(int(each.value) for at, each in enumerate(usual) if at != place and each.unit == Unit.CELLS)
    others = least * sum(each.unit != Unit.CELLS for at, each in enumerate(usual) if at != place)
    cells = max(least, min(int(usual[place].value) + by, room - fixed - others))
    return (*usual[:place], usual[place]._replace(value=float(cells)), *usual[place + 1 :])


class PanelGrid(Container):
    """Its style sheet says how it is divided at each size; who uses it moves that."""

    def __init__(self, *panels: Widget, id: str) -> None:
        super().__init__(*panels, id=id)
        self.moved = MovedBorders()
        self._drags = ""
        self._from = (0, 0)
        self._before = MovedBorders()

    def kept(self) -> Mapping[str, str]:
        """How borders were moved, to be kept."""
        return {"left": str(self.moved.left), "below": str(self.moved.below)}

    def restore(self, kept: Mapping[str, str | bool]) -> None:
        """Have borders where they were; what is no number is nothing."""
        left, below = (_number(kept.get(name)) for name in ("left", "below"))
        self.move(MovedBorders(left, below))

    def grow(self, panel: Widget, steps: int) -> None:
        """Give a panel more cells, or fewer, in both directions."""
        region = panel.region
        right = 1 if region.x > self.content_region.x else -1
        low = 1 if region.y > self.content_region.y else -1
        left, below = self.moved
        self.move(MovedBorders(left - right * steps * STEP_COLUMNS, below + low * steps * STEP_ROWS))

    def move(self, moved: MovedBorders) -> None:
        """Have the borders elsewhere."""
        self.moved = moved
        self.lay_out()

    def lay_out(self) -> None:
        """Divide the room as the style sheet says, and as the borders were moved."""
        base, inline, room = self.styles.base, self.styles.inline, self.content_region.size
        columns, rows = tuple(base.grid_columns or ()), tuple(base.grid_rows or ())
        wide = sizes(columns, 0, self.moved.left, room.width, LEAST_COLUMNS)
        high = sizes(self._as_needed(rows, len(columns)), 1, self.moved.below, room.height, LEAST_ROWS)
        if not room.width or (inline.grid_columns or columns, inline.grid_rows or rows) == (wide, high):
            return
        inline.grid_columns = None if columns == wide else " ".join(map(str, wide))
        inline.grid_rows = None if rows == high else " ".join(map(str, high))

    def _as_needed(self, usual: Sequence[Scalar], across: int) -> tuple[Scalar, ...]:
        """Rows without the cells that no panel in them has a use for: what is not counted in cells gets these."""
        needs: list[list[int | None]] = [[] for _ in usual]
        row = column = 0
        for panel in self.children:
            if not panel.display or row >= len(needs):
                continue
            span = panel.styles.column_span
            if column + span > across:
                row, column = row + 1, 0
            if row < len(needs):
                needs[row].append(getattr(panel, "wanted", None))
            column += span
        found = list(usual)
        for at, (size, wanted) in enumerate(zip(usual, needs, strict=True)):
            known = [each for each in wanted if each is not None]
            if size.unit == Unit.CELLS and known and len(known) == len(wanted):
                found[at] = size._replace(value=min(size.value, float(max(LEAST_ROWS, *known))))
        return tuple(found)

    def on_resize(self) -> None:
        self.lay_out()

    # The mouse

    def _border_at(self, x: int, y: int) -> str:
        """Which border is there, of the screen's cells: left, below, or none."""
        area = self.content_region
        shown = [child.region for child in self.children if child.display and child.region.area]
        across = {region.right for region in shown if region.x == area.x and region.right < area.right}
        down = {region.bottom for region in shown if region.y == area.y and region.bottom < area.bottom}
        if any(y in (edge - 1, edge) for edge in down):
            return "below"
        return "left" if any(x in (edge - 1, edge) for edge in across) else ""

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._drags = self._border_at(event.screen_x, event.screen_y)
        if self._drags:
            self._from, self._before = (event.screen_x, event.screen_y), self.moved
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._drags == "left":
            self.move(self._before._replace(left=self._before.left + event.screen_x - self._from[0]))
        elif self._drags == "below":
            self.move(self._before._replace(below=self._before.below + self._from[1] - event.screen_y))

    def on_mouse_up(self) -> None:
        if self._drags:
            self._drags = ""
            self.release_mouse()


def _number(text: str | bool | None) -> int:
    known = isinstance(text, str) and text.removeprefix("-").isdecimal() and len(text) < 5
    return int(text) if known and isinstance(text, str) else 0
