"""What every rank is at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from textual.content import Content
from textual.widget import Widget

from skyward_core.views.stacks import in_ranges
from skyward_core.views.views import PoolView, RunView

from ..actions import first_key
from ..beat import beat_of
from ..rank_heat import NOTHING, STATE, figures, heat_map
from ..styles import beside
from ..widgets.rank_panel import RankPanel
from ..widgets.rank_state import RankState, rank_states
from ..words import duration, next_to_go, taken_back
from .base import Chosen, RunPanel
from .table import Row


class RanksPanel(RunPanel):
    """All ranks, with how many are in which state, by that or by a figure; one line of them above, where one panel has
    the whole screen."""

    DEFAULT_CSS = beside(__file__)
    SCOPED_CSS = False  # the line above is not within this panel

    def __init__(self, row: Row, show: Callable[[], None]) -> None:
        board = RankPanel(id=row.id)
        super().__init__(row, show, board)
        self._board = board
        self._line = RankPanel(id="strip")
        self._line.can_focus = False
        self._state: object = None
        self._quiet: tuple[str, frozenset[int]] = ("", frozenset())
        self._by = STATE
        self._figures = [STATE]  # what there was to show them by when they were looked at last

    def action_heat(self) -> None:
        """Show them by the next figure that there is, and by their state again."""
        place = self._figures.index(self._by) if self._by in self._figures else -1
        self._by, self._state = self._figures[(place + 1) % len(self._figures)], None
        if len(self._figures) == 1:
            self.app.flash(
                "ranks have no figures yet: they come of sky.log(...), and of machines once measured"
            )

    def offers(self, action: str) -> bool:
        return action != "run.heat" or len(self._figures) > 1

    def kept(self) -> Mapping[str, str | bool]:
        return {"ranks_by": self._by}

    def restore(self, kept: Mapping[str, str | bool]) -> None:
        by = kept.get("ranks_by")
        self._by = by if isinstance(by, str) else STATE

    def above(self) -> Iterable[Widget]:
        yield self._line

    def look(self, pool: PoolView, run: RunView | None, now: float, chosen: Chosen) -> bool:
        turned = self._board.selected != chosen.rank
        if turned:
            self._board.selected = self._line.selected = chosen.rank
        # What a rank printed last shows in its card: once a second, while it prints, is enough to read it.
        state = (pool.version, run and (run.id, run.version), beat_of([pool], now))
        if state == self._state:
            return turned
        self._state = state
        self._figures = figures(pool, run, now)
        states = rank_states(pool, run, now)
        heat = heat_map(pool, run, self._by, now) if self._by in self._figures else NOTHING
        states = [
            replace(each, shade=found.shade, figure=found.text) if (found := heat.of.get(each.rank)) else each
            for each in states
        ]
        if not self.app.read_only:
            states = [self._with_key(each) if each.state == "paused" else each for each in states]
        self._board.update(states, moves=self.app.moves)
        self._line.update(states, _warning(pool, now))
        legend = f"{self._by} {heat.legend} " if heat.legend else ""
        self.retitle(Content.assemble(f"{self.heading} ", (legend, "$text-accent"), self._board.tally()))
        self._tell_quiet("" if run is None else run.id, states)
        return True

    def _with_key(self, state: RankState) -> RankState:
        """One that waits at a breakpoint, with how to get there from here."""
        return replace(state, said=f"{state.note}: {first_key('run.debug', self.app.keys)} debugs it")

    def _tell_quiet(self, run: str, states: list[RankState]) -> None:
        """Say once which ranks have not been heard for longer than usual, and what to do about it."""
        quiet = {state.rank: state.quiet for state in states if state.quiet is not None}
        before = self._quiet[1] if self._quiet[0] == run else frozenset()
        self._quiet = (run, frozenset(quiet))
        if new := quiet.keys() - before:
            ranks, key = in_ranges(new), first_key("run.stacks", self.app.keys)
            named = f"rank {ranks} has" if len(new) == 1 else f"ranks {ranks} have"
            since = duration(max(quiet[rank] for rank in new))
            self.app.flash(f"{named} been quiet for {since}: {key} shows where each rank is")


def _warning(pool: PoolView, now: float) -> tuple[str, str]:
    """Which machine goes next, with its style; the line has no other place for that."""
    if (node := next_to_go(pool.nodes)) is None:
        return "", ""
    style = "$text-error" if node.is_taken_back else "$text-warning"
    return f" ! n{node.index} {taken_back(node, now)}", style
