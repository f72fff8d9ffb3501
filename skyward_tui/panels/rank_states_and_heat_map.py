"""Panel with the states of ranks, or with a heat map of ranks by a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import isfinite
from typing import Any, NamedTuple

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import var

from skyward_core.views import group_pairs
from skyward_core.views.machine_metrics import MetricHistory, memory_share
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.problem_alerts_and_stragglers import Alert
from skyward_core.views.stack_groups_and_profiles import format_ranges, name_ranks
from skyward_tui.panels.panel import BORDER, RunPanel, RunSelection
from skyward_tui.text.number_time_and_run_state_format import duration, number
from skyward_tui.text.rank_states_from_views import SHADE_STYLE, STARTUP_TEXTS, RankState, rank_states, tally_parts
from skyward_tui.text.state_styles import FAILURES, state_style
from skyward_tui.text.text_width_tables_and_ascii import clip, clip_parts, fit_width
from skyward_tui.ui.actions import first_key
from skyward_tui.ui.run_screen_panel_list_and_layout import PanelSpec
from skyward_tui.ui.themes import rank_style
from skyward_tui.ui.time_refresh_rules import refresh_token
from skyward_tui.widgets.metric_charts import RANKS_DRAWN
from skyward_tui.widgets.virtual_list import CURSOR_STYLE, HIGHLIGHT_STYLE, ChangeHighlight, VirtualList

STATE = "state"
SHADES = "░▒▓█"
_USE, _MEMORY = "use %", "memory %"
_MEM = " mem "
_WIDTH_FOR_MEMORY = 64  # cells; rows of this width or more also show the GPU memory in use


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
    """Return the names of everything that ranks can be coloured by: their state, then metrics."""
    machines = pool.machines
    fresh = machines is not None and any(each.is_fresh(now) for each in machines.nodes.values())
    names = pool.metrics.sorted_names(run.id)[0] if run is not None else []
    return [STATE, *((_USE, _MEMORY) if fresh else ()), *names]


def heat_map(pool: PoolView, run: RunView | None, figure: str, now: float) -> HeatMap:
    """Return the heat map by a metric, named as in the result of :func:`heat_metrics`.

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


def _alerted_ranks(alert: Alert, pool: PoolView) -> Sequence[int]:
    """Return the ranks that an alert is about: one rank, all ranks of a node, or all ranks that use a GPU."""
    if alert.rank is not None or alert.node is None:
        return () if alert.rank is None else (alert.rank,)
    many, machines = pool.ranks_per_node, pool.machines
    gpus = [] if machines is None or alert.gpu is None else list(machines.nodes[alert.node].gpus)[alert.gpu :][:1]
    return [
        alert.node * many + local
        for local in range(many)
        if not gpus or machines is None or gpus[0] in _rank_gpus(local, many, machines.nodes[alert.node].gpus)
    ]


def _value(track: MetricHistory, figure: str) -> float | None:
    if figure == _MEMORY:
        return 100 * memory_share(track.latest) or None
    return track.latest.get("util", track.latest.get("cpu"))


# if there are more ranks, healthy ranks have no rows of their own, because painting so many rows takes too long
MANY_RANKS = 64
LEAST_BAR, MOST_BAR = 5, 24  # minimum and maximum width in cells of a progress bar
BESIDE_BAR = 34  # cells of a row beside the bar that are needed before the bar grows; it takes half of the others
VALUE = 10  # width in cells of a metric's value, so that the metrics of all ranks are in the same columns
_MOSAIC = 8  # number of ranks per group of the mosaic, if each node has only one rank


@dataclass
class RankChosen(Message):
    """Message that a rank was selected. ``opened`` is true if it was selected with enter, to read its log."""

    rank: int
    opened: bool


class RankRow(NamedTuple):
    """Row of one rank, or of several ranks in the same state.

    Attributes:
        ranks: The ranks, in order.
        group: States of the ranks.
    """

    ranks: Sequence[int]
    group: Sequence[RankState]

    @property
    def state(self) -> RankState:
        """State of the first rank; the other ranks of the row are in a state of the same name."""
        return self.group[0]

    @property
    def note(self) -> str:
        """Text beside the state, formatted on demand."""
        return _note(self.group)

    @property
    def name(self) -> str:
        return format_ranges(self.ranks, "r")


def rank_rows(states: Sequence[RankState], room: int, apart: Collection[int] = ()) -> list[RankRow]:
    """Return the rows of ranks, those that need attention first.

    Ranks with equal outcomes or equal problems share a row. If the rows do not fit, healthy ranks in the same state
    share a row too, and if they still do not fit, all ranks in the same state.

    Args:
        room: Number of rows that fit.
        apart: Healthy ranks that keep separate rows even if other healthy ranks must share rows.
    """
    keys: tuple[Callable[[RankState], Hashable], ...] = (
        lambda each: (each.state, each.text, each.alert[0]) if each.has_ended or each.is_troubled else each.rank,
        lambda each: (
            each.rank
            if each.rank in apart
            else (each.state, each.alert[0], (odd := each.is_troubled), each.text if odd or each.has_ended else "")
        ),
        lambda each: each.rank if each.rank in apart else (each.state, each.alert[0], each.is_troubled),
    )
    groups: dict[Hashable, list[RankState]] = {}
    for key in keys:
        groups = {}
        for state in states:
            groups.setdefault(key(state), []).append(state)
            if len(groups) > room and key is not keys[-1]:
                break
        else:
            break
    rows = [RankRow([each.rank for each in group], group) for group in groups.values()]
    return sorted(rows, key=lambda row: (row.state.state not in FAILURES, not row.state.is_troubled))


def _note(group: Sequence[RankState]) -> str:
    """Return the note of a row: for one rank the rank's note, for several ranks the span of their first metric."""
    first = group[0]
    if len(group) == 1 or first.alert[0] or (first.text and all(each.text == first.text for each in group)):
        return first.note
    name = next(iter(first.ordered_numbers), "")
    values = [value for each in group if (value := (each.numbers or {}).get(name)) is not None and isfinite(value)]
    return f"{name} {number(min(values))} to {number(max(values))}" if values else ""


class RankList(VirtualList[RankState]):
    """List of ranks with a cursor. If not each rank has a row, a mosaic with one cell per rank, grouped by node,
    follows. The list is a single widget, so that thousands of ranks stay fast.
    """

    selected: var[int] = var(0, always_update=True)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.states: list[RankState] = []
        self._ranks: list[RankRow] = []
        self._arranged_for = -1  # height in rows for which ``_ranks`` was computed; -1 after a change of the states
        self._digits = (1, 1)  # number of digits of the greatest rank, and of the greatest node index
        self._widest = 1  # maximum number of ranks of a node
        self._mosaics: dict[int, tuple[list[list[RankState]], int, int]] = {}  # by width: cached result of ``_blocks``
        self._has_hues = False
        self._pulse = ChangeHighlight(self)

    def update(self, states: list[RankState], *, hues: bool = False, moves: bool = False) -> None:
        """Show new states of the ranks.

        Args:
            hues: Whether the names of ranks have the colours of their lines in charts.
            moves: Whether to highlight changed ranks for a moment.
        """
        if (states, hues) != (self.states, self._has_hues):
            self._pulse.update({state.rank: state.state for state in states}, moves=moves)
            self.states, self._has_hues, self._arranged_for = states, hues, -1
            sizes = Counter([state.node for state in states])
            self._digits = len(str(max(0, len(states) - 1))), len(str(max(sizes, default=0)))
            self._widest, self._mosaics = max(sizes.values(), default=1), {}
            self.refresh_if_changed()

    @property
    def rank_rows(self) -> list[RankRow]:
        """Rows of ranks above the mosaic."""
        if self._arranged_for != (height := self.size.height):
            self._arranged_for, self._ranks = height, rank_rows(self.states, max(1, height))
            if 0 < len(self.states) <= MANY_RANKS and self.mode == "grid":
                blocks, across, _ = self._blocks(self.size.width)
                free = max(0, height - 1 - len(self._ranks) + len(blocks) // -across)
                healthy = [each.rank for each in self.states if not each.has_ended and not each.is_troubled]
                self._ranks = rank_rows(self.states, height, set(healthy[:free]))
        return self._ranks

    @property
    def preferred(self) -> int:
        """Number of rows if only ranks with equal outcomes or equal problems share a row."""
        return len(rank_rows(self.states, len(self.states)))

    @property
    def mode(self) -> str:
        """``table`` if all rows fit and no row stands for several healthy ranks, otherwise ``grid``."""
        rows = self.rank_rows
        grouped = any(len(row.ranks) > 1 and not (row.state.has_ended or row.state.is_troubled) for row in rows)
        return "grid" if grouped or len(rows) > self.size.height else "table"

    # Rows of ranks

    def _blocks(self, width: int) -> tuple[list[list[RankState]], int, int]:
        """Return the groups of ranks in the mosaic, the number of groups per row, and the width in cells of a group's
        label.
        """
        if (found := self._mosaics.get(width)) is not None:
            return found
        label = 2 + len(str(len(self.states)))
        size = max(1, min(self._widest if self._widest > 1 else _MOSAIC, width - label))
        by_node = group_pairs((state.node if self._widest > 1 else 0, state) for state in self.states)
        blocks = [ranks[at : at + size] for ranks in by_node.values() for at in range(0, len(ranks), size)]
        self._mosaics[width] = found = blocks, max(1, (width + 1) // (label + size + 1)), label
        return found

    def row_count(self, width: int) -> int:
        rows = len(self.rank_rows)
        if self.mode == "table":
            return rows
        blocks, across, _ = self._blocks(width)
        return rows + -(-len(blocks) // across)

    def head(self, width: int) -> list[Content]:
        return [self._chosen(width)] if self.mode == "grid" and self.states else []

    def _row_of(self, rank: int) -> int:
        return next((at for at, row in enumerate(self.rank_rows) if rank in row.ranks), 0)

    def required_range(self) -> range:
        row = self._row_of(self.selected)
        if self.mode == "grid":
            blocks, across, _ = self._blocks(self.size.width)
            place = next((at for at, block in enumerate(blocks) if self.selected <= block[-1].rank), 0)
            row = len(self.rank_rows) + place // across
        return range(row, row + 1)

    def row(self, index: int, width: int) -> Content:
        rows = self.rank_rows
        return self._rank_row(rows[index], width) if index < len(rows) else self._mosaic_row(index - len(rows), width)

    def _rank_row(self, row: RankRow, width: int) -> Content:
        state = row.state
        mark = state_style(state.state)
        (digits, nodes), single = self._digits, len(row.ranks) == 1
        name = f" r{state.rank:<{digits}} n{state.node:<{nodes}} " if single else f" {clip(row.name, width // 2)} "
        time = f"{_time(state):>6} " if single and state.seconds is not None and not state.alert[0] else ""
        what, rest = f"{mark.text} ".ljust(11), ""
        parts = [each.progress for each in row.group if each.progress is not None]
        if state.state == "running" and len(parts) == len(row.group):
            bar = max(LEAST_BAR, min(MOST_BAR, (width - BESIDE_BAR) // 2))
            done, time = int(min(parts) * bar), ""
            what, rest = f"{mark.glyph} {'━' * done}", f"{'─' * (bar - done)} {100 * min(parts):3.0f} % "
        use = state.use if width >= _WIDTH_FOR_MEMORY else state.use.partition(_MEM)[0]
        tail = f" {use}" if single and use else ""
        figure = f"{_figure(state):<11} " if single and state.shade else ""
        room = max(0, width - len(name) - len(what) - len(rest) - len(time) - len(figure) - len(tail))
        if single and state.silent is not None and state.quiet is None and not state.alert[0]:
            silent = f" silent {duration(state.silent)}"
            if not state.text or cell_len(row.note) + len(silent) <= room:
                room, tail = room - len(silent), f"{silent}{tail}"
        note = fit_width(_metric_cells(row.note, room) if single else clip_parts(row.note, room), room)
        if self.selected in row.ranks and (single or self.mode == "table"):
            return Content.styled(f"{name}{what}{rest}{time}{figure}{note}{tail}", CURSOR_STYLE)
        hue = rank_style(state.rank) if single and self._has_hues else "bold"
        note_style = "$text-warning" if state.quiet is not None or state.alert[0] else "$muted" if state.text else ""
        return Content.assemble(
            (name, hue), (what, self._style_of(state)), (f"{rest}{time}", "$muted"), (figure, SHADE_STYLE),
            (note, note_style), (tail, "$muted"),
        )  # fmt: skip

    def _mosaic_row(self, index: int, width: int) -> Content:
        blocks, across, label = self._blocks(width)
        parts: list[tuple[str, str]] = []
        selected, highlighted = self.selected, self._pulse.highlighted
        for block in blocks[index * across : (index + 1) * across]:
            first = block[0]
            parts.append((f" {f'n{first.node}' if self._widest > 1 else f'r{first.rank}':<{label - 1}}", "$muted"))
            for state in block:
                glyph, style = state.glyph
                if state.rank == selected:
                    style = CURSOR_STYLE
                elif state.rank in highlighted:
                    style = self._style_of(state)
                parts.append((glyph, style))
        # Merge neighbouring cells with equal styles into one segment, because painting takes time for each segment.
        groups = groupby(parts, lambda part: part[1])
        return Content.assemble(*(("".join([text for text, _ in group]), style) for style, group in groups))

    def _style_of(self, state: RankState) -> str:
        """Return the style of a rank's state, highlighted for a moment after a change."""
        style = state_style(state.state).style
        return f"{style} {HIGHLIGHT_STYLE}" if state.rank in self._pulse.highlighted else style

    def _chosen(self, width: int) -> Content:
        state = self.states[min(self.selected, len(self.states) - 1)]
        mark = state_style(state.state)
        time = f" {_time(state)}"
        head, figure = f" r{state.rank} n{state.node} ", _figure(state)
        room = max(0, width - len(head) - len(mark.text) - len(time) - len(figure) - 2)
        return Content.assemble(
            (head, CURSOR_STYLE), " ", (mark.text, mark.style), time, (figure, SHADE_STYLE),
            (f" {clip_parts(state.note, room)}", "$muted"),
        )  # fmt: skip

    def tally(self) -> Content:
        """Return the number of ranks in each state, failures first."""
        parts = [(f" {text.removesuffix(' ')}", style) for text, style in tally_parts(self.states)]
        if quiet := sum(state.quiet is not None for state in self.states):
            parts += [(f" {quiet} quiet ", "$text-warning")]
        return Content.assemble(*parts)

    # Movement of the cursor

    def watch_selected(self) -> None:
        self.refresh_if_changed()

    def _choose(self, rank: int, *, opened: bool = False) -> None:
        if self.states:
            rank = min(max(0, rank), len(self.states) - 1)
            self.post_message(RankChosen(rank, opened))

    def action_step(self, rows: int) -> None:
        if self.mode == "grid":
            blocks, across, _ = self._blocks(self.size.width)
            return self._choose(self.selected + rows * across * len(blocks[0]))
        if found := self.rank_rows:
            self._choose(found[min(max(0, self._row_of(self.selected) + rows), len(found) - 1)].ranks[0])

    def action_sideways(self, steps: int) -> None:
        if self.mode == "grid":
            self._choose(self.selected + steps)

    def action_edge(self, end: int) -> None:
        if self.mode == "grid":
            self._choose(len(self.states) - 1 if end else 0)
        else:
            self.action_step(len(self.states) if end else -len(self.states))

    def action_open(self) -> None:
        self._choose(self.selected, opened=True)

    def on_click(self, event: events.Click) -> None:
        rows = self.rank_rows
        index = self.top + event.y - len(self.head(self.size.width))
        if 0 <= index < len(rows):
            return self._choose(rows[index].ranks[0])
        if self.mode == "grid" and index >= len(rows):
            blocks, across, label = self._blocks(self.size.width)
            group, column = divmod(event.x, label + len(blocks[0]))
            place = (index - len(rows)) * across + group
            if group < across and place < len(blocks) and label <= column < label + len(blocks[place]):
                self._choose(blocks[place][column - label].rank)


def _metric_cells(note: str, room: int) -> str:
    """Return the note of a rank. Metrics are in columns, and those without enough room are left out."""
    parts = note.split("  ")
    if any(part.count(" ") != 1 for part in parts):
        return clip_parts(note, room)
    cells = [f"{part}{' ' * (VALUE + cell_len(part.split()[0]) - cell_len(part))}" for part in parts]
    fits = sum(end <= room + len("  ") for end in accumulate(cell_len(cell) + len("  ") for cell in cells))
    return "  ".join(cells[:fits]) or clip_parts(note, room)


def _figure(state: RankState) -> str:
    return f" {state.shade} {state.figure}" if state.shade else ""


def _time(state: RankState) -> str:
    """Return a rank's time as text: since its state began, or the duration of its call that has ended."""
    if state.seconds is None:
        return ""
    return duration(state.seconds, precise=state.state not in ("running", *STARTUP_TEXTS))


class RanksPanel(RunPanel[RankList]):
    """Panel with all ranks and a tally in the title."""

    MAIN = RankList

    def __init__(self, row: PanelSpec, show: Callable[[], None]) -> None:
        super().__init__(row, show)
        self._state: object = None
        self._quiet: tuple[str, frozenset[int]] = ("", frozenset())
        self._heat_metric = STATE
        self._alerts: dict[int, tuple[str, str]] = {}  # by rank: kind and text of the worst alert about the rank
        # what ranks can be coloured by, as of the last update: the state, then names of metrics
        self._figures = [STATE]

    def action_heat(self) -> None:
        """Colour ranks by the next available metric, or after the last one by state."""
        place = self._figures.index(self._heat_metric) if self._heat_metric in self._figures else -1
        self._heat_metric, self._state = self._figures[(place + 1) % len(self._figures)], None
        if len(self._figures) == 1:
            self.app.flash("no metrics yet to colour ranks by: call sky.log(...), or wait for machine metrics")

    def offers(self, action: str) -> bool:
        return action != "run.heat" or len(self._figures) > 1

    def alert_rank(self, alert: Alert, pool: PoolView) -> int | None:
        return alert.rank

    def show_alerts(self, alerts: Sequence[Alert], pool: PoolView) -> None:
        found: dict[int, tuple[str, str]] = {}
        for each in alerts:
            # Skip alerts about stalls, because each row already shows for how long its rank has been quiet.
            for rank in _alerted_ranks(each, pool) if each.kind != "stall" else ():
                found.setdefault(rank, (each.kind, each.words))
        if found != self._alerts:
            self._alerts, self._state = found, None

    def saved_state(self) -> Mapping[str, str | bool]:
        return {"ranks_by": self._heat_metric}

    def restore(self, saved: Mapping[str, str | bool]) -> None:
        metric = saved.get("ranks_by")
        self._heat_metric = metric if isinstance(metric, str) else STATE

    @property
    def preferred_rows(self) -> int:
        return self.main.preferred + BORDER

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        is_other_rank = self.main.selected != chosen.rank
        if is_other_rank:
            self.main.selected = chosen.rank
        # Rows show the last line that a rank printed, which changes often, so they are updated at most once a second.
        state = (pool.version, run and (run.id, run.version), refresh_token([pool], now))
        if state == self._state:
            return is_other_rank
        self._state = state
        self._figures = heat_metrics(pool, run, now)
        heat = heat_map(pool, run, self._heat_metric, now) if self._heat_metric in self._figures else EMPTY_HEAT_MAP
        has_gpus = pool.machines is not None and any(each.gpus for each in pool.machines.nodes.values())
        use, memory = (_machine_values(pool, name, now) if has_gpus else {} for name in (_USE, _MEMORY))
        states = []
        for each in rank_states(pool, run, now):
            more: dict[str, Any] = {}
            if found := heat.of.get(each.rank):
                more |= {"shade": found.shade, "figure": found.text}
            if each.state == "paused" and not self.app.read_only:
                more["text"] = f"{each.note} ({first_key('run.debug', self.app.keys)}: debug)"
            if each.rank in use:
                used = f"{_MEM}{memory[each.rank]:3.0f} %" if each.rank in memory else ""
                more["use"] = f"gpu {use[each.rank]:3.0f} %{used}"
            if each.rank in self._alerts and not each.has_ended:
                more["alert"] = self._alerts[each.rank]
            states.append(each._replace(**more) if more else each)
        hues = run is not None and 1 < len(pool.metrics.ranks(run.id)) <= RANKS_DRAWN
        self.main.update(states, hues=hues, moves=self.app.has_motion)
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
            hint = "" if self.app.REPLAYS else f" ({first_key('run.stacks', self.app.keys)}: stacks)"
            silence = duration(max(quiet[rank] for rank in new))
            self.app.flash(f"{name_ranks(format_ranges(new))}: no output for {silence}{hint}")
