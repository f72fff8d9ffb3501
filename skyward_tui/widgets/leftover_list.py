"""The things that accounts hold, a row each, with a cursor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content
from textual.message import Message

from ..beat import at_rest
from ..leftovers import LeftoverRow, cells_of, list_of
from ..theme import look
from ..words import clip, fit
from .roll import Roll

if TYPE_CHECKING:
    from skyward_core.front.sweeping import Sweep

_ROOMY = 120  # columns from which every fact of a thing is shown


class LeftoverList(Roll):
    """Things by pool, then what others made, then places that could not be looked at."""

    @dataclass
    class LeftoverOpened(Message):
        """Enter was pressed."""

    def __init__(self) -> None:
        super().__init__(id="list")
        self.rows: list[LeftoverRow] = []
        self.cursor = 0
        self._note = ""
        self._now = 0.0
        self._state: object = None

    @property
    def chosen(self) -> LeftoverRow | None:
        return self.rows[self.cursor] if self.rows else None

    def update(self, sweep: Sweep | None, note: str, now: float) -> None:
        state = (id(sweep), note, at_rest(now), self.size)
        if state == self._state:
            return
        chosen = self.chosen.id if self.chosen else ""
        self._state, self._note, self._now = state, note, now
        self.rows = [] if sweep is None else list_of(sweep)
        places = [index for index, row in enumerate(self.rows) if row.id == chosen]
        self.cursor = places[0] if places else min(self.cursor, max(0, len(self.rows) - 1))
        self.refresh()

    def shown(self) -> list[Content]:
        return super().shown() if self.rows else [self.blank(self._note)]

    def _columns(self, width: int) -> list[tuple[str, int]]:
        """Name and width of each that fits; below 0 is right-aligned, 0 takes what is left."""
        pools = [len(row.found.thing.pool) for row in self.rows if row.found is not None]
        name = max(4, min(max(pools, default=4), 24 if width >= _ROOMY else 14))
        if width >= _ROOMY:
            return [
                ("POOL", name), ("WHAT", 15), ("ID", 26), ("WHERE", 15),
                ("AGE", -10), ("COST", -9), ("SO FAR", -10), ("EXPIRES", -13), ("STATE", 0),
            ]  # fmt: skip
        return [("POOL", name), ("WHAT", 15), ("WHERE", 15), ("AGE", -9), ("COST", -9), ("STATE", 0)]

    def head(self, width: int) -> list[Content]:
        cells = {name: name for name, _ in self._columns(width)}
        return [Content.styled(clip("  " + self._line(cells, width), width), "$muted")]

    def _line(self, cells: dict[str, str], width: int) -> str:
        parts = []
        for name, room in self._columns(width):
            text = cells.get(name, "")
            shown = fit(text, room) if room else f" {text}"
            parts.append(f"{shown} " if room < 0 else shown)
        return " ".join(parts)

    def row_count(self, width: int) -> int:
        return len(self.rows)

    def keep_in_view(self) -> range:
        return range(self.cursor, self.cursor + 1)

    def row(self, index: int, width: int) -> Content:
        row = self.rows[index]
        here = index == self.cursor
        mark = ("▶ " if here else "  ", "$text-accent")
        if row.found is None:
            style = "$muted" if row.ledger else "$text-warning"
            line = Content.assemble(mark, (clip(row.text, width - 2), style))
        else:
            cells = cells_of(row.found, self._now)
            state = look(row.found.verdict)
            cells["STATE"] = ""
            words = f"{state.text}{row.text if width >= _ROOMY else ''}"
            line = Content.assemble(mark, self._line(cells, width), (words, state.style))
        if here:
            line = line.pad_right(max(0, width - line.cell_length)).stylize_before(
                "on $block-cursor-background"
            )
        return line

    def action_step(self, rows: int) -> None:
        self.cursor = min(max(0, self.cursor + rows), max(0, len(self.rows) - 1))
        self.refresh()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.rows) if end else -len(self.rows))

    def action_open(self) -> None:
        self.post_message(self.LeftoverOpened())
