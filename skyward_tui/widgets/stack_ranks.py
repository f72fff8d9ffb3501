"""Every rank beside its stack: its state, in which collective it is, for how long it was quiet, its last line."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from ..theme import look
from ..words import clip, count, duration, fit
from .rank_state import RankState
from .roll import Roll

_WHERE = 34  # cells at most of where a rank is


@dataclass(frozen=True, slots=True)
class StackRank:
    """A row. ``chosen``: it is of the stack that is looked at; ``late``: it is where others are not."""

    state: RankState
    where: str
    line: str
    chosen: bool
    late: bool


class StackRanks(Roll, can_focus=False):
    """Those of the chosen stack first; nothing to go to, the stacks above have the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[StackRank] = []

    def update(self, rows: list[StackRank]) -> None:
        if rows != self._rows:
            if [row.state.rank for row in rows] != [row.state.rank for row in self._rows]:
                self.top = 0
            self.refresh(layout=len(rows) != len(self._rows))
            self._rows = rows

    def get_content_height(self, *_: object) -> int:
        return len(self._rows) + 1

    def head(self, width: int) -> list[Content]:
        more = len(self._rows) + 1 - self.size.height
        names = f" {'rank':<6}{'node':<6}{'state':<14}{'time':>7}  {self._wide('where')}"
        hidden = f"last line  (+{count(more, 'rank')} below)" if more > 0 else "last line"
        return [Content.styled(clip(f"{names}{self._quiet('quiet')}{hidden}", width), "$muted")]

    def row_count(self, width: int) -> int:
        return len(self._rows)

    def row(self, index: int, width: int) -> Content:
        each = self._rows[index]
        state = each.state
        mark = look(state.state)
        time = "" if state.seconds is None else duration(state.seconds)
        quiet = "" if state.quiet is None else duration(state.quiet)
        made = Content.assemble(
            (f" r{state.rank:<5}n{state.node:<5}", "bold" if each.chosen else "$muted"),
            (f"{mark.text:<14}", mark.style),
            f"{time:>7}  ",
            (self._wide(each.where), "$text-warning" if each.late else ""),
            (self._quiet(quiet), "$text-warning"),
        )
        return Content.assemble(made, (clip(each.line, width - made.cell_length), "$muted"))

    def _wide(self, text: str) -> str:
        widest = min(_WHERE, max((len(row.where) for row in self._rows), default=0))
        return f"{fit(text, widest)}  "

    def _quiet(self, text: str) -> str:
        """A column where somebody is quiet, else none."""
        return f"{text:>7}  " if any(row.state.quiet is not None for row in self._rows) else ""
