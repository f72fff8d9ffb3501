"""Panel with the states of ranks, or with a heat map of ranks by a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import var
from textual.widget import Widget

from skyward_core.views.machine_metrics import MetricHistory, memory_share
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.stack_groups_and_profiles import format_ranges
from skyward_tui.panels.panel import RunPanel, RunSelection
from skyward_tui.text.number_and_time_format import duration, next_preempted, number, precise_duration, preemption_text
from skyward_tui.text.state_styles_and_rank_states import (
    SHADE_STYLE,
    STARTUP_TEXTS,
    RankState,
    rank_states,
    state_style,
    tally_parts,
)
from skyward_tui.text.text_width_and_tables import clip, clip_parts
from skyward_tui.ui.actions import first_key
from skyward_tui.ui.panel_registry import PanelSpec
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.ui.time_refresh_rules import refresh_token
from skyward_tui.widgets.metric_charts import sort_names
from skyward_tui.widgets.virtual_list import HIGHLIGHT_STYLE, ChangeHighlight, VirtualList

STATE = "state"
SHADES = "░▒▓█"
_USE, _MEMORY = "use %", "memory %"


class HeatCell(NamedTuple):
    """One rank's cell of the heat map.

    Attributes:
        shade: One of :data:`SHADES`.
        text: The value, formatted.
    """

    shade: str
    text: str


class HeatMap(NamedTuple):
    """Ranks shaded by one metric.

    Attributes:
        of: Cells by rank; ranks without a value are missing.
        legend: Range of values that the shades span.
    """

    of: Mapping[int, HeatCell]
    legend: str


EMPTY_HEAT_MAP = HeatMap({}, "")


def heat_metrics(pool: PoolView, run: RunView | None, now: float) -> list[str]:
    """Return what ranks can be coloured by: the state, then metrics."""
    machines = pool.machines
    fresh = machines is not None and any(each.is_fresh(now) for each in machines.nodes.values())
    names = sort_names(pool.metrics, run.id)[0] if run is not None else []
    return [STATE, *((_USE, _MEMORY) if fresh else ()), *names]


def heat_map(pool: PoolView, run: RunView | None, figure: str, now: float) -> HeatMap:
    """Return the heat map for one of the results of :func:`heat_metrics`.

    Metrics of machines are scaled from 0 to 100 %. Metrics of ranks are scaled from their minimum to their maximum.
    """
    if figure in (_USE, _MEMORY):
        values = _machine_values(pool, figure, now)
        low, high, ends = 0.0, 100.0, ("0", "100 %")
    else:
        values = {} if run is None or figure == STATE else pool.metrics.latest_by_rank(run.id, figure)
        finite = [value for value in values.values() if isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
        ends = (number(low), number(high))
    if not values:
        return EMPTY_HEAT_MAP
    percent = " %" if figure in (_USE, _MEMORY) else ""
    of = {
        rank: HeatCell(_shade(value, low, high), f"{value:.0f}{percent}" if percent else number(value))
        for rank, value in values.items()
    }
    return HeatMap(of, f"{ends[0]} {SHADES} {ends[1]}")


def _shade(value: float, low: float, high: float) -> str:
    if not isfinite(value):
        return "!"
    share = (value - low) / (high - low) if high > low else 0.0
    return SHADES[min(len(SHADES) - 1, int(share * len(SHADES)))]


def _machine_values(pool: PoolView, figure: str, now: float) -> dict[int, float]:
    """Return a metric of machines by rank, as the mean over the rank's GPUs. Nodes without GPUs have one value for all
    ranks."""
    values_by_rank: dict[int, float] = {}
    nodes = {} if pool.machines is None else pool.machines.nodes
    for rank in range(pool.world_size):
        machine = nodes.get(pool.node_of(rank))
        if machine is None or not machine.is_fresh(now):
            continue
        tracks = _rank_gpus(rank % pool.ranks_per_node, pool.ranks_per_node, machine.gpus) or [machine.host]
        values = [value for track in tracks if (value := _value(track, figure)) is not None]
        if values:
            values_by_rank[rank] = sum(values) / len(values)
    return values_by_rank


def _rank_gpus(local: int, ranks: int, gpus: Sequence[MetricHistory]) -> Sequence[MetricHistory]:
    """Return the GPUs of a rank. If the GPUs of the node cannot be divided evenly among its ranks, return all of
    them."""
    each, remainder = divmod(len(gpus), ranks)
    return gpus[local * each : (local + 1) * each] if each and not remainder else gpus


def _value(track: MetricHistory, figure: str) -> float | None:
    if figure == _MEMORY:
        return 100 * memory_share(track.latest) or None
    return track.latest.get("util", track.latest.get("cpu"))


CARDS, TABLE = 8, 64
_LABEL = 6  # cells before a row of the grid
_CURSOR = "$block-cursor-foreground on $block-cursor-background bold"


@dataclass
class RankChosen(Message):
    """Message that a rank was selected. ``opened`` is true if it was selected with enter, to read its log."""

    rank: int
    opened: bool


class RankList(VirtualList[RankState]):
    """States of all ranks, with a cursor. It is a single widget, so that thousands of ranks stay fast."""

    selected: var[int] = var(0, always_update=True)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.states: list[RankState] = []
        self._per_node = 8  # number of ranks in a group of the grid
        self._warning = ("", "")
        self._pulse = ChangeHighlight(self)

    def update(self, states: list[RankState], warning: tuple[str, str] = ("", ""), *, moves: bool = False) -> None:
        """Show new states.

        Args:
            warning: Text after the line of ranks, and its style.
            moves: Whether to highlight changed ranks for a moment.
        """
        if (states, warning) != (self.states, self._warning):
            self._pulse.update({state.rank: state.state for state in states}, moves=moves)
            self.states, self._warning = states, warning
            widest = max(Counter(state.node for state in states).values(), default=1)
            self._per_node = widest if widest > 1 else 8
            self.refresh_if_changed()

    @property
    def mode(self) -> str:
        """Layout that fits the size: line, cards, table or grid."""
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
        """Return the number of ranks per row of the grid. Nodes are not split if at least one node fits."""
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

    def required_range(self) -> range:
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
        mark = state_style(state.state)
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
        mark = state_style(state.state)
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
        per_node, selected, lit = self._per_node, self.selected, self._pulse.highlighted
        parts: list[tuple[str, str]] = [(f"{f'r{start}':<{_LABEL}}", "$muted")]
        # Merge neighbours with equal styles, because the cost of painting depends on the number of parts.
        for place, state in enumerate(states, 1):
            (glyph, its_own), gap = state.glyph, "  " if place % per_node == 0 else " "
            before, style = parts[-1]
            if state.rank == selected or state.rank in lit:
                parts += [(glyph, _CURSOR if state.rank == selected else self._style_of(state)), (gap, "")]
            elif style == its_own:
                parts[-1] = (before + glyph + gap, style)
            else:
                parts.append((glyph + gap, its_own))
        return Content.assemble(*parts)

    def _style_of(self, state: RankState) -> str:
        """Return the style of a rank's state, highlighted for a moment after a change."""
        style = state_style(state.state).style
        return f"{style} {HIGHLIGHT_STYLE}" if state.rank in self._pulse.highlighted else style

    def _chosen(self, width: int) -> Content:
        if not self.states:
            return Content("")
        state = self.states[min(self.selected, len(self.states) - 1)]
        mark = state_style(state.state)
        time = f" {_time(state)}"
        head, figure = f" r{state.rank} n{state.node} ", _figure(state)
        room = max(0, width - len(head) - len(mark.text) - len(time) - len(figure) - 2)
        return Content.assemble(
            (head, _CURSOR), " ", (mark.text, mark.style), time, (figure, SHADE_STYLE),
            (f" {clip(state.note, room)}", "$muted"),
        )  # fmt: skip

    def tally(self) -> Content:
        """Return the number of ranks in each state, failures first."""
        parts = [(f" {text.removesuffix(' ')}", style) for text, style in tally_parts(self.states)]
        if quiet := sum(state.quiet is not None for state in self.states):
            parts += [(f" {quiet} quiet ", "$text-warning")]
        return Content.assemble(*parts)

    def _line(self, width: int) -> Content:
        if len(self.states) * 6 + len(self._warning[0]) > width:
            return Content.assemble(self._chosen(min(width, 24)), " ", self.tally(), self._warning)
        parts: list[tuple[str, str]] = []
        for state in self.states:
            mark = state_style(state.state)
            parts += [(f" r{state.rank} {mark.glyph} ", _CURSOR if state.rank == self.selected else mark.style)]
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
                # Groups are separated by one additional blank column.
                group, column = divmod(event.x - _LABEL, 2 * self._per_node + 1)
                rank = (row - 1) * self._per_row(self.size.width) + group * self._per_node
                self._choose(rank + min(column // 2, self._per_node - 1))


def _figure(state: RankState) -> str:
    return f" {state.shade} {state.figure}" if state.shade else ""


def _time(state: RankState) -> str:
    """Return the duration of a rank's state."""
    if state.seconds is None:
        return ""
    return duration(state.seconds) if state.state in ("running", *STARTUP_TEXTS) else precise_duration(state.seconds)


class RanksPanel(RunPanel[RankList]):
    """Panel with all ranks and a tally in the title. At sizes that show only one panel, a one-line strip shows the
    ranks."""

    DEFAULT_CSS = read_style_sheet(__file__)
    SCOPED_CSS = False  # the style sheet also styles the strip, which is outside the panel
    MAIN = RankList

    def __init__(self, row: PanelSpec, show: Callable[[], None]) -> None:
        super().__init__(row, show)
        self._line = RankList(id="strip")
        self._line.can_focus = False
        self._state: object = None
        self._quiet: tuple[str, frozenset[int]] = ("", frozenset())
        self._heat_metric = STATE
        self._figures = [STATE]  # available colourings at the last update

    def action_heat(self) -> None:
        """Colour ranks by the next available metric, or after the last one by state."""
        place = self._figures.index(self._heat_metric) if self._heat_metric in self._figures else -1
        self._heat_metric, self._state = self._figures[(place + 1) % len(self._figures)], None
        if len(self._figures) == 1:
            self.app.flash("no metrics yet to colour ranks by: call sky.log(...), or wait for machine metrics")

    def offers(self, action: str) -> bool:
        return action != "run.heat" or len(self._figures) > 1

    def saved_state(self) -> Mapping[str, str | bool]:
        return {"ranks_by": self._heat_metric}

    def restore(self, saved: Mapping[str, str | bool]) -> None:
        metric = saved.get("ranks_by")
        self._heat_metric = metric if isinstance(metric, str) else STATE

    def above(self) -> Iterable[Widget]:
        yield self._line

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        is_other_rank = self.main.selected != chosen.rank
        if is_other_rank:
            self.main.selected = self._line.selected = chosen.rank
        # Cards show the last printed line, so they are updated, but at most once a second.
        state = (pool.version, run and (run.id, run.version), refresh_token([pool], now))
        if state == self._state:
            return is_other_rank
        self._state = state
        self._figures = heat_metrics(pool, run, now)
        states = rank_states(pool, run, now)
        heat = heat_map(pool, run, self._heat_metric, now) if self._heat_metric in self._figures else EMPTY_HEAT_MAP
        states = [
            replace(each, shade=found.shade, figure=found.text) if (found := heat.of.get(each.rank)) else each
            for each in states
        ]
        if not self.app.read_only:
            hint = f"{first_key('run.debug', self.app.keys)}: debug"
            states = [
                replace(each, text=f"{each.note} ({hint})") if each.state == "paused" else each for each in states
            ]
        self.main.update(states, moves=self.app.has_motion)
        self._line.update(states, _preemption_warning(pool, now))
        legend = f"{self._heat_metric} {heat.legend} " if heat.legend else ""
        self.set_titles(Content.assemble(f"{self.heading} ", (legend, "$text-accent"), self.main.tally()))
        self._notify_quiet_ranks("" if run is None else run.id, states)
        return True

    def _notify_quiet_ranks(self, run: str, states: list[RankState]) -> None:
        """Show a message about unusually quiet ranks, once per rank, with the key for their stacks."""
        quiet = {state.rank: state.quiet for state in states if state.quiet is not None}
        before = self._quiet[1] if self._quiet[0] == run else frozenset()
        self._quiet = (run, frozenset(quiet))
        if new := quiet.keys() - before:
            ranks, key = format_ranges(new), first_key("run.stacks", self.app.keys)
            named = f"rank {ranks}" if len(new) == 1 else f"ranks {ranks}"
            silence = duration(max(quiet[rank] for rank in new))
            self.app.flash(f"{named}: no output for {silence} ({key}: stacks)")


def _preemption_warning(pool: PoolView, now: float) -> tuple[str, str]:
    """Return a text about the node with the next preemption, and its style, for the strip of ranks."""
    if (node := next_preempted(pool.nodes)) is None:
        return "", ""
    style = "$text-error" if node.is_preempted else "$text-warning"
    return f" ! n{node.index} {preemption_text(node, now)}", style
