"""The ranks of a pool: cards to 8, a table to 64, one grid beyond; a single line where there is no room."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import var

from ..theme import look
from ..words import clip, clip_parts, duration, took
from .pulse_once import PULSE_STYLE, PulseOnce
from .rank_state import BEFORE, FAILURES, SHADE_STYLE, RankState
from .roll import Roll

CARDS, TABLE = 8, 64
_LABEL = 6  # cells before a row of the grid
_CURSOR = "$block-cursor-foreground on $block-cursor-background bold"


@dataclass
class RankChosen(Message):
    """A rank was chosen; ``opened`` with enter, to read its log."""

    rank: int
    opened: bool


class RankPanel(Roll):
    """Every rank's state, and a cursor on the chosen one. All of it is one widget, however many ranks."""

    selected: var[int] = var(0, always_update=True)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.states: list[RankState] = []
        self._per_node = 8  # ranks of a node that stand together in the grid
        self._warning = ("", "")
        self._pulse = PulseOnce(self)

    def update(
        self, states: list[RankState], warning: tuple[str, str] = ("", ""), *, moves: bool = False
    ) -> None:
        """Other states; and what the line says behind them, with its style; with ``moves`` what has changed stands
        out for a moment."""
        if (states, warning) != (self.states, self._warning):
            self._pulse.look({state.rank: state.state for state in states}, moves=moves)
            self.states, self._warning = states, warning
            widest = max(Counter(state.node for state in states).values(), default=1)
            self._per_node = widest if widest > 1 else 8
            self.refresh_if_changed()

    @property
    def mode(self) -> str:
        """line, cards, table or grid: what fits."""
        many, height = len(self.states), self.size.height
        if height < 2:
            return "line"
        if many <= CARDS and height >= 2 * many:
            return "cards"
        return "table" if many <= TABLE else "grid"

    # Rows

    @property
    def _card_rows(self) -> int:
        return 3 if self.size.height >= 3 * len(self.states) - 1 else 2

    def _per_row(self, width: int) -> int:
        """Ranks in one row of the grid: as many nodes as fit, or as many ranks where one does not."""
        nodes = (width - _LABEL + 1) // (2 * self._per_node + 1)
        return self._per_node * nodes if nodes else max(1, (width - _LABEL) // 2)

    def row_count(self, width: int) -> int:
        match self.mode:
            case "line":
                return 1
            case "cards":
                return self._card_rows * len(self.states)
            case "table":
                return len(self.states)
        return -(-len(self.states) // self._per_row(width))

    def head(self, width: int) -> list[Content]:
        return [self._chosen(width)] if self.mode == "grid" else []

    def keep_in_view(self) -> range:
        match self.mode:
            case "cards":
                start = self._card_rows * self.selected
                return range(start, start + 2)
            case "table":
                return range(self.selected, self.selected + 1)
            case "grid":
                row = self.selected // self._per_row(self.size.width)
                return range(row, row + 1)
        return range(1)

    def row(self, index: int, width: int) -> Content:
        match self.mode:
            case "line":
                return self._line(width)
            case "cards":
                return self._card(*divmod(index, self._card_rows), width)
            case "table":
                return self._table_row(self.states[index], width)
        return self._grid_row(index, width)

    def _card(self, rank: int, part: int, width: int) -> Content:
        state = self.states[rank]
        mark = look(state.state)
        if part == 2:
            return Content("")
        bar = ("▌", mark.style)
        if part == 1:
            style = "$muted" if state.quiet is None else "$text-warning"
            figure = _figure(state)
            return Content.assemble(
                bar, (figure, SHADE_STYLE), (" " + clip(state.note, max(0, width - 2 - len(figure))), style)
            )
        time = _time(state)
        head = f" r{state.rank}  n{state.node}  "
        if rank == self.selected:
            text = f"{head}{mark.text}".ljust(max(0, width - 2 - len(time))) + time + " "
            return Content.assemble(bar, (text[: max(0, width - 1)], _CURSOR))
        gap = " " * max(1, width - 2 - len(head) - len(mark.text) - len(time))
        return Content.assemble(bar, (head, "bold"), (mark.text, self._style_of(state)), gap, time)

    def _table_row(self, state: RankState, width: int) -> Content:
        mark = look(state.state)
        time = _time(state)
        name, what = f" r{state.rank:<3} n{state.node:<3}", f"{mark.text:<12}"
        figure = f"{_figure(state):<11}" if state.shade else ""
        note = clip_parts(state.note, max(0, width - 31 - len(figure)))
        if state.rank == self.selected:
            return Content.styled(f"{name}{what}{time:>7} {figure} {note}".ljust(width), _CURSOR)
        return Content.assemble(
            (name, "bold"),
            (what, self._style_of(state)),
            *((f"{time:>7} ", (figure, SHADE_STYLE), " ") if figure else (f"{time:>7}  ",)),
            (note, "$muted"),
        )

    def _grid_row(self, index: int, width: int) -> Content:
        per_row = self._per_row(width)
        start = index * per_row
        states = self.states[start : start + per_row]
        per_node, selected, lit = self._per_node, self.selected, self._pulse.lit
        parts: list[tuple[str, str]] = [(f"{f'r{start}':<{_LABEL}}", "$muted")]
        # Neighbours that look alike are one part: each costs as much to paint, however long it is.
        for place, state in enumerate(states, 1):
            (glyph, its_own), gap = state.glyph, "  " if place % per_node == 0 else " "
            before, style = parts[-1]
            if state.rank == selected or state.rank in lit:
                shown = _CURSOR if state.rank == selected else self._style_of(state)
                parts += [(glyph, shown), (gap, "")]
            elif style == its_own:
                parts[-1] = (before + glyph + gap, style)
            else:
                parts.append((glyph + gap, its_own))
        return Content.assemble(*parts)

    def _style_of(self, state: RankState) -> str:
        """Its state's, which stands out where it has just changed."""
        style = look(state.state).style
        return f"{style} {PULSE_STYLE}" if state.rank in self._pulse.lit else style

    def _chosen(self, width: int) -> Content:
        if not self.states:
            return Content("")
        state = self.states[min(self.selected, len(self.states) - 1)]
        mark = look(state.state)
        time = f" {_time(state)}"
        head, figure = f" r{state.rank} n{state.node} ", _figure(state)
        room = max(0, width - len(head) - len(mark.text) - len(time) - len(figure) - 2)
        return Content.assemble(
            (head, _CURSOR), " ", (mark.text, mark.style), time, (figure, SHADE_STYLE),
            (f" {clip(state.note, room)}", "$muted"),
        )  # fmt: skip

    def tally(self) -> Content:
        """How many ranks are in which state, failures first."""
        counts = Counter(state.state for state in self.states)
        order = sorted(counts, key=lambda name: (name not in FAILURES, -counts[name]))
        parts: list[tuple[str, str]] = []
        for name in order:
            parts += [(f" {look(name).glyph} {counts[name]} {look(name).word} ", look(name).style)]
        if quiet := sum(state.quiet is not None for state in self.states):
            parts += [(f" {quiet} quiet ", "$text-warning")]
        return Content.assemble(*parts)

    def _line(self, width: int) -> Content:
        if len(self.states) * 6 + len(self._warning[0]) > width:
            chosen = self._chosen(min(width, 24))
            return Content.assemble(chosen, " ", self.tally(), self._warning)
        parts: list[tuple[str, str]] = []
        for state in self.states:
            mark = look(state.state)
            style = _CURSOR if state.rank == self.selected else mark.style
            parts += [(f" r{state.rank} {mark.glyph} ", style)]
        return Content.assemble(*parts, self._warning)

    # Moving

    def watch_selected(self) -> None:
        self.refresh_if_changed()

    def _choose(self, rank: int, *, opened: bool = False) -> None:
        if self.states:
            rank = min(max(0, rank), len(self.states) - 1)
            self.post_message(RankChosen(rank, opened))

    def action_step(self, rows: int) -> None:
        per_row = self._per_row(self.size.width) if self.mode == "grid" else 1
        self._choose(self.selected + rows * per_row)

    def action_sideways(self, steps: int) -> None:
        if self.mode in ("grid", "line"):
            self._choose(self.selected + steps)

    def action_edge(self, end: int) -> None:
        self._choose(len(self.states) - 1 if end else 0)

    def action_open(self) -> None:
        self._choose(self.selected, opened=True)

    def on_click(self, event: events.Click) -> None:
        row = self.top + event.y
        match self.mode:
            case "cards":
                self._choose(row // self._card_rows)
            case "table":
                self._choose(row)
            case "grid" if event.y >= 1 and event.x >= _LABEL:
                # Between two nodes there is a blank column more.
                group, column = divmod(event.x - _LABEL, 2 * self._per_node + 1)
                rank = (row - 1) * self._per_row(self.size.width) + group * self._per_node
                self._choose(rank + min(column // 2, self._per_node - 1))


def _figure(state: RankState) -> str:
    return f" {state.shade} {state.figure}" if state.shade else ""


def _time(state: RankState) -> str:
    """How long it ran, or has been running."""
    if state.seconds is None:
        return ""
    return duration(state.seconds) if state.state in ("running", *BEFORE) else took(state.seconds)
