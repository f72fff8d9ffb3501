"""Root screen of the app, with the table of runs and the list of pools."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len
from textual import events, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, Static

from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.screens.base_screen import ListScreen
from skyward_tui.shutdown_and_daemon_threads import run_in_daemon_thread
from skyward_tui.text.error_hint_text import format_detail
from skyward_tui.text.number_time_and_run_state_format import (
    ago,
    count,
    duration,
    hourly,
    metric_text,
    money,
    next_preempted,
    number,
    preemption_text,
    run_status,
)
from skyward_tui.text.state_styles import state_style
from skyward_tui.text.teardown_and_leftovers import leftovers_amount
from skyward_tui.text.text_width_tables_and_ascii import clip, one_line
from skyward_tui.ui.actions import Action, bindings, first_key, with_keys
from skyward_tui.ui.saved_state import MAX_CHARACTERS
from skyward_tui.ui.session_futures import wait_shielded
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.ui.time_refresh_rules import refresh_token
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Panel
from skyward_tui.widgets.virtual_list import CURSOR_STYLE, HIGHLIGHT_STYLE, ChangeHighlight, CursorList, Part, fit_cell

if TYPE_CHECKING:
    from skyward_core.client.run_history import PastRun
    from skyward_core.client.session import Session
    from skyward_core.views.pool_view import PoolView, RunView
    from skyward_tui.app import SkywardApp
    from skyward_tui.launch_form.form import Form
    from skyward_tui.panels.rank_metrics import MetricsPane
    from skyward_tui.ui.saved_state import ScreenState
    from skyward_tui.widgets.selected_pool_preview import PoolPreview


def utilization_text(pool: PoolView, now: float) -> str:
    """Return the number of GPUs and their utilization; without GPUs, the CPU utilization. "" without recent data."""
    metrics = pool.machines
    if metrics is None or pool.is_over or not any(each.is_fresh(now) for each in metrics.nodes.values()):
        return ""
    gpus = sum(len(each.gpus) for each in metrics.nodes.values())
    return f"{gpus:,} × {_mean_utilization(pool):.0f} %" if gpus else f"cpu {_mean_utilization(pool):.0f} %"


def _mean_utilization(pool: PoolView) -> float:
    """Return the mean utilization of a pool in percent."""
    if pool.machines is None or pool.is_over:
        return 0.0
    by_device = pool.machines.latest("util") or pool.machines.latest("cpu")
    return sum(by_device.values()) / len(by_device) if by_device else 0.0


_HEAD = 3  # rows of a list's border and column titles
_STRIP = 3  # maximum rows of the strip of pools below the table of runs; a longer strip scrolls
_MOST_RUNS = 500  # maximum number of past runs in the table; the history screen lists all past runs
READ_INTERVAL = 2.0  # seconds; minimum interval between two reads of the ledger
LEDGER_SECONDS = 1.0  # seconds after the end of a run until the ledger is sure to contain the end
_NARROW, _ROOMY, _FULL = 70, 96, 110  # cells; narrower lists leave out some columns
MAX_CACHED, MAX_CACHED_CELLS = 40, 80  # maximum number of rows and maximum cells per text in the saved state
FRESH_SECONDS = 5.0  # seconds after which a row that the ledger has not confirmed shows its age
_OWN = "own:"  # prefix of the IDs of the columns that the user has chosen
METRIC_CELLS = 30  # maximum cells of the column "metric"
_LEAST_BAR, _SPARK = 4, 12  # minimum cells of a progress bar; maximum cells of a metric's sparkline
_BESIDE = 120  # cells; a screen at least this wide can show the preview of the selected run beside the lists
_BELOW, _BELOW_WIDE = 11, 20  # minimum rows below the lists for the preview; the latter if it can be beside the lists
_WELCOME = """
  No pools yet. Press [b $text-accent]{pools.new}[/] to launch a script, [b $text-accent]{pools.demo}[/] to play a demo.
  [$muted]Runs of scripts and of the command line appear here, too.[/]
"""


class CachedRun(NamedTuple):
    """Row of the table of runs as it was last shown. It is painted at the start of the app until the ledger is read.

    Attributes:
        words: Arguments of the run.
        progress, metric: Texts of these cells.
        seen_at: Unix time at which the row was last shown.
    """

    key: str
    run: str
    pool: str
    script: str
    function: str
    words: str
    state: str
    error: str
    progress: str
    metric: str
    opened_at: float
    seen_at: float
    ended_at: float | None

    @property
    def arguments(self) -> tuple[str, ...]:
        return (self.words,)

    def unmatched_words(self, words: Iterable[str]) -> tuple[str, ...]:
        text = "\n".join(self[:8]).casefold()
        return tuple(word for word in words if word not in text)

    def dated_progress(self, now: float) -> str:
        """Return the progress, after its age if it may have changed since, such as ``4m ago · 34 %``."""
        is_old = self.ended_at is None and now - self.seen_at >= FRESH_SECONDS
        return " · ".join(filter(None, (ago(now - self.seen_at) if is_old else "", self.progress)))


_CACHED_TYPES = (*[str] * 10, float, float, float | None)


def load_cached_runs(text: object) -> list[CachedRun]:
    """Return the rows in the saved state, without invalid ones, because the ledger soon replaces them in any case."""
    try:
        rows = [CachedRun(*row) for row in json.loads(str(text), parse_constant=str)]
    except (ValueError, TypeError, RecursionError):
        return []
    return [row for row in rows if all(map(isinstance, row, _CACHED_TYPES))]


def cache_text(rows: Sequence[HomeRun], now: float) -> str:
    """Return the first rows as a text for the saved state, whose size is limited."""
    cached = [row.to_cached(now) for row in rows[:MAX_CACHED]]
    while len(json.dumps(text := json.dumps(cached))) > MAX_CHARACTERS // 2:
        cached.pop()
    return text


class HomeRun(NamedTuple):
    """Recorded run as a row of the table of runs. If its pool is live, the row also has the live pool and run views."""

    past: PastRun | CachedRun
    pool: PoolView | None = None
    run: RunView | None = None

    def to_cached(self, now: float) -> CachedRun:
        """Return the row as it is shown now."""
        past, (state, remark) = self.past, self.status(now)
        if isinstance(past, CachedRun) and self.run is None:
            return past
        texts = past.pool, past.script, past.function, " ".join(past.arguments), state, past.error
        cells = _progress_text(self, state, remark, 0, now), _metric_text(self, METRIC_CELLS)
        pool, script, function, words, state, error, progress, metric = (
            clip(one_line(text), MAX_CACHED_CELLS) for text in (*texts, *cells)
        )
        ended_at = past.ended_at if self.run is None else self.run.ended_at
        times = past.opened_at, now, ended_at
        return CachedRun(past.key, past.run, pool, script, function, words, state, error, progress, metric, *times)

    def status(self, now: float) -> tuple[str, str]:
        """Return the run's present state, and a remark such as its progress."""
        if self.pool is None or self.run is None:
            return self.past.state, ""
        return run_status(self.pool, self.run, now)


def home_runs(pools: Sequence[PoolView], past: Sequence[PastRun | CachedRun], now: float) -> list[HomeRun]:
    """Return all known runs: running ones, then queued ones, then the others, each newest first."""
    views = {(pool.key, run.id): (pool, run) for pool in pools for run in reversed(list(pool.runs.values()))}
    rows = [HomeRun(each, *views.pop((each.key, each.run), (None, None))) for each in past]
    rows += [HomeRun(_run_of_view(pool, run), pool, run) for pool, run in views.values()]
    order = {"running": 0, "restarting": 0, "queued": 1}
    return sorted(rows, key=lambda row: (order.get(row.status(now)[0], 2), -row.past.opened_at))


def _run_of_view(pool: PoolView, run: RunView) -> PastRun:
    """Return the row of a run that the pool's view already shows, but that was not read from the ledger yet."""
    # imported late, so that the app paints its first screen earlier
    from skyward_core.client.run_history import PastRun

    cause = run.root_cause
    return PastRun(
        run=run.id, pool=pool.name, key=pool.key, provider=pool.provider, function=run.function, ranks=run.total,
        state=run.state, opened_at=run.opened_at, ended_at=run.ended_at,
        error="" if cause is None else one_line(f"{cause.rank_prefix.replace('rank ', 'r')}{cause.text}"),
    )  # fmt: skip


class RunTable(CursorList[HomeRun]):
    """Table of runs with their progress and main metric."""

    app: SkywardApp
    TITLES: Mapping[str, str] = MappingProxyType({"when": "STARTED"})
    HIGHLIGHTS_ALWAYS = False
    note = "no matching run; change or clear the filter"

    def __init__(self) -> None:
        super().__init__(id="table")
        self._now = 0.0
        self._longest = 0, 0  # cells of the longest script name and of the longest pool name

    def row_id(self, row: HomeRun) -> tuple[str, str]:
        return row.past.key, row.past.run

    def update(self, rows: Sequence[HomeRun], now: float) -> None:
        self._now = now
        scripts = max((cell_len(row.past.script or row.past.function) for row in rows), default=0)
        self._longest = scripts, max((cell_len(row.past.pool) for row in rows), default=0)
        self.set_rows(rows)
        self.refresh_if_changed()

    def columns(self, width: int) -> Sequence[tuple[str, int | None]]:
        roomy = width >= _ROOMY
        script, pool = (max(6, min(longest, 14 if roomy else 10)) for longest in self._longest)
        columns = {"state": 11, "script": script, "arguments": 8, "progress": 10, "time": -8}
        columns |= {"metric": 14} if width >= _NARROW else {}
        columns |= {"when": -8} if width >= _FULL else {}
        columns |= {"pool": pool} if roomy else {}
        free = width - self.MARGIN - sum(abs(cells) + 1 for cells in columns.values())
        own = {f"{_OWN}{name}": -max(9, cell_len(name) + 1) for name in self.app.user_settings.columns}
        fitting = max(
            (n for n in range(len(own) + 1) if sum(1 - each for each in [*own.values()][:n]) <= free), default=0
        )
        own = dict([*own.items()][:fitting])
        self.TITLES = {**RunTable.TITLES, **{column: sanitize_line(column.removeprefix(_OWN)) for column in own}}
        columns |= own
        room = width - self.MARGIN - sum(abs(cells) + 1 for cells in columns.values())
        for name, most in (
            ("arguments", 14),
            ("progress", 16),
            ("metric", 20),
            ("arguments", 24),
            ("metric", METRIC_CELLS),
        ):
            more = max(0, min(room, most - columns.get(name, most)))
            if more:
                columns[name] += more
                room -= more
        order = ("state", "script", "arguments", "progress", *own, "metric", "time", "when", "pool")
        return [(name, columns[name]) for name in order if name in columns]

    def parts(self, row: HomeRun, width: int) -> Iterator[Part]:
        past, now, columns = row.past, self._now, dict(self.columns(width))
        state, remark = row.status(now)
        mark, ended_at = state_style(state), past.ended_at if row.run is None else row.run.ended_at
        if row.run is None and isinstance(past, CachedRun) and ended_at is None:
            ended_at = past.seen_at
        error = one_line(past.error)
        if error:  # the text of an error occupies the columns "progress" and "metric"
            columns["progress"] = (columns["progress"] or 0) + (columns.pop("metric", None) or -1) + 1
        progress = error or _progress_text(row, state, remark, columns["progress"] or 0, now)
        cells = {
            "state": (mark.text, mark.style),
            "script": (past.script or past.function or "(no run)", "bold"),
            "arguments": (one_line(" ".join(past.arguments)), ""),
            "progress": (progress, "$text-error" if error else "" if state == "running" else "$muted"),
            "metric": (_metric_text(row, columns.get("metric") or 0), ""),
            "time": (duration((now if ended_at is None else ended_at) - past.opened_at), ""),
            "when": (ago(now - past.opened_at), "$muted"),
            "pool": (past.pool, "$muted"),
        }
        cells |= {each: (_own_text(row, each.removeprefix(_OWN)), "") for each in columns if each.startswith(_OWN)}
        yield " ", ""
        yield from ((fit_cell(cells[name][0], room), cells[name][1]) for name, room in columns.items())


def _progress_text(row: HomeRun, state: str, remark: str, width: int, now: float) -> str:
    if row.run is None and isinstance(row.past, CachedRun):
        return row.past.dated_progress(now)
    if row.pool is None or row.run is None or state not in ("running", "queued", "restarting"):
        return ""
    if state == "queued":
        from skyward_tui.text.queue_trial_and_comparison_rows import queue_reason

        return queue_reason(row.pool, row.run, now).removeprefix("queued: ") or remark
    if state == "restarting" or (found := row.pool.metrics.progress(row.run.id)) is None:
        step = row.pool.metrics.max_step(row.run.id) if state == "running" and not row.run.ended else None
        return remark if step is None else f"step {step:,.0f}"
    left = found.seconds_left(now)
    text = f"{int(found.fraction * 100)} %" + ("" if left is None else f" {duration(left)}")
    if (bar := width - len(text) - 1) < _LEAST_BAR:
        return text
    filled = round(found.fraction * bar)
    return f"{'━' * filled}{'─' * (bar - filled)} {text}"


def _own_text(row: HomeRun, name: str) -> str:
    """Return the text for a column that the user has added by name: the run's value of the metric of this name, else
    the argument's value, else "".
    """
    if isinstance(row.past, CachedRun):
        return ""
    last = None if row.pool is None or row.run is None else row.pool.metrics.run_value(row.run.id, name)
    last = row.past.metrics[name].last if last is None and name in row.past.metrics else last
    return one_line(row.past.named_arguments().get(name, "")) if last is None else number(last)


def _metric_text(row: HomeRun, width: int) -> str:
    """Return the last value of a run's main metric. During the run, a sparkline follows; afterwards, the best value.
    A column too narrow for both values shows the best one.
    """
    from skyward_core.views.metric_kinds_and_order import main_metric

    if row.pool is not None and row.run is not None and row.run.state == "running":
        metrics = row.pool.metrics
        if not (name := main_metric(metrics.names(row.run.id))):
            return ""
        from skyward_tui.widgets.metric_charts import spark

        trace, last = metrics.first_trace(row.run.id, name), metrics.run_value(row.run.id, name)
        text = metric_text(name, last)
        room = min(_SPARK, width - len(text) - 1)
        return text if room < _LEAST_BAR else f"{text} {spark(list(zip(*trace, strict=True)), room)}".rstrip()
    if isinstance(row.past, CachedRun):
        return row.past.metric
    if not (name := main_metric(row.past.metrics)):
        return ""
    found = row.past.metrics[name]
    best, text = found.best(name), metric_text(name, found.last)
    if best is None or best == found.last:
        return text
    fitting = (f"{text} best {number(best)}", f"best {metric_text(name, best)}")
    return next((each for each in fitting if len(each) <= width), text)


class PoolList(CursorList["PoolView"]):
    """Table of pools, or strip with all pools one after the other, in which pools can be marked.

    Attributes:
        marked: Keys of pools to tear down together.
        is_strip: Whether the pools are shown as a strip.
    """

    app: SkywardApp
    TITLES = MappingProxyType({"run": " RUN"})
    HIGHLIGHTS_ALWAYS = False

    def __init__(self) -> None:
        super().__init__(id="list")
        self.is_strip = False
        self.marked: set[str] = set()
        self._now = 0.0
        self._costs = False  # whether any pool has a price; otherwise, there is no price column
        self._state: object = None
        self._pulse = ChangeHighlight(self)

    def row_id(self, row: PoolView) -> str:
        return row.key

    def update(self, pools: list[PoolView], note: str, now: float) -> None:
        versions = [(id(pool), pool.version, utilization_text(pool, now)) for pool in pools]
        state = (versions, note, refresh_token(pools, now), self.size, self.is_strip)
        if state == self._state:
            return
        self._pulse.update({pool.key: pool.state for pool in pools}, moves=self.app.has_motion)
        self._state, self.note, self._now = state, note, now
        self._costs = any(map(hourly, pools))
        self.marked &= {pool.key for pool in pools}
        self.set_rows(pools)
        self.refresh_if_changed()

    def toggle_mark(self) -> None:
        """Toggle the mark of the selected pool, and move to the next pool."""
        if self.chosen is not None:
            self.marked ^= {self.chosen.key}
            self.action_step(1)

    def unmark(self) -> None:
        self.marked = set()
        self.refresh()

    @property
    def marked_pools(self) -> list[PoolView]:
        return [pool for pool in self.rows if pool.key in self.marked]

    # The strip: pools one after the other, in as many lines as needed

    def _strip_lines(self, width: int) -> list[list[tuple[int, Content]]]:
        """Return index and text of the pools in each line of the strip."""
        lines: list[list[tuple[int, Content]]] = []
        room = 0
        for index, pool in enumerate(self.rows):
            item = Content.assemble(("▶" if index == self.cursor else " ", "$text-accent"), *self._strip_parts(pool))
            if index == self.cursor and self.has_focus:
                item = item.stylize(CURSOR_STYLE)
            item += Content.styled(" ·" if pool is not self.rows[-1] else "", "$muted")
            if item.cell_length > room:
                lines.append([])
                room = width
            lines[-1].append((index, item))
            room -= item.cell_length
        return lines

    def _strip_parts(self, pool: PoolView) -> Iterator[Part]:
        mark, runs = state_style(pool.shown_state), [run for run in pool.runs.values() if run.state == "running"]
        ended = max((run.ended_at or run.opened_at for run in pool.runs.values()), default=pool.created_at)
        yield "◆" if pool.key in self.marked else " ", "$text-accent"
        yield f"{pool.name} ", "bold"
        ready = f"{pool.nodes_ready}/" if pool.nodes_ready != pool.node_count else ""
        facts = f"{ready}{pool.node_count} {pool.provider}", utilization_text(pool, self._now), hourly(pool)
        yield " ".join(filter(None, facts)), "$muted"
        if pool.shown_state != "up":
            yield f" {mark.text}", self._state_style(pool)
        else:
            idle = f" idle {duration(self._now - ended)}"
            yield (f" ● {count(len(runs), 'run')}", mark.style) if runs else (idle, "")
        yield from ((f" {text.rstrip()}", style) for text, style in self._news(pool))

    def row_count(self, width: int) -> int:
        return len(self._strip_lines(width)) if self.is_strip else super().row_count(width)

    def required_range(self) -> range:
        if not self.is_strip:
            return super().required_range()
        lines = self._strip_lines(self.size.width)
        return next((range(at, at + 1) for at, line in enumerate(lines) if self.cursor in dict(line)), range(1))

    def row(self, index: int, width: int) -> Content:
        if not self.is_strip:
            return super().row(index, width)
        return Content.assemble(*(item for _, item in self._strip_lines(width)[index])).truncate(width, ellipsis=True)

    def index_at(self, x: int, y: int) -> int | None:
        if not self.is_strip:
            return super().index_at(x, y)
        line = dict(enumerate(self._strip_lines(self.size.width))).get(self.top + y, [])
        ends = accumulate(item.cell_length for _, item in line)
        return next((index for (index, _), end in zip(line, ends, strict=True) if x < end), None)

    def action_sideways(self, steps: int) -> None:
        self.action_step(steps)

    # The table: a line per pool

    def columns(self, width: int) -> Sequence[tuple[str, int | None]]:
        if self.is_strip:
            return ()
        roomy = width >= _ROOMY
        longest = max([len("POOL"), *(cell_len(pool.name) for pool in self.rows)])
        state = max([13, *(cell_len(state_style(pool.shown_state).text) for pool in self.rows)])
        # If not both fit, the column with the pool's name is kept, and the column with the last run is cut.
        name = max(min(longest, 12), min(longest, width - state - (53 if roomy else 45)))
        columns: list[tuple[str, int | None]] = [("pool", name), ("state", state), ("nodes", 7)]
        columns += [("ranks", 6), ("provider", 9), ("use", 10)] if roomy else []
        return [*columns, ("age", -10), ("$/h", -8) if self._costs else ("", 0), ("run", None)]

    def parts(self, row: PoolView, width: int) -> Iterator[Part]:
        pool, now, mark = row, self._now, state_style(row.shown_state)
        lived = duration(now - pool.created_at)
        if pool.is_over:
            lived = "" if pool.ended_at is None else ago(now - pool.ended_at)
        nodes = f"{pool.node_count}" if pool.is_over else f"{pool.nodes_ready}/{pool.node_count}"
        cells = {
            "pool": (pool.name, "" if pool.is_over else "bold"),
            "state": (mark.text, self._state_style(pool)),
            "nodes": (nodes, "$muted" if pool.is_over else ""),
            "ranks": (f"{pool.node_count * pool.ranks_per_node:,}", ""),
            "provider": (pool.provider, "$muted"),
            "use": (utilization_text(pool, now), ""),
            "age": (lived, "$muted"),
            "$/h": (hourly(pool).removesuffix("/h"), "$muted"),
            "run": (" ", ""),
        }
        yield "◆" if pool.key in self.marked else " ", "$text-accent"
        yield from self.cells(cells, width)
        yield from self._news(pool)
        if (run := pool.current_run()) is not None:
            run_state, remark = run_status(pool, run, now)
            run_mark = state_style(run_state)
            yield f"{run_mark.text} {run.function} {remark}".rstrip(), "$muted" if pool.is_over else run_mark.style

    def _state_style(self, pool: PoolView) -> str:
        style = state_style(pool.shown_state).style
        return f"{style} {HIGHLIGHT_STYLE}" if pool.key in self._pulse.highlighted else style

    def _news(self, pool: PoolView) -> Iterator[Part]:
        """Yield texts about the pool's end and its preempted nodes; without any run, the pool's last message."""
        lease_left = pool.lease_left(self._now)
        if lease_left is not None:  # the end of the lease comes first, because the end of the text may be cut off
            yield f"ends in {duration(lease_left)}  ", "$text-warning"
        if node := next_preempted(pool.nodes):
            style = "$text-error" if node.is_preempted else "$text-warning"
            yield f"n{node.index} {preemption_text(node, self._now)}  ", style
        if lease_left is None and not pool.runs and pool.detail:
            # Omit the pool's name from the message, because the row already shows the name.
            yield clip(one_line(format_detail(pool)).removeprefix(f"pool {pool.name} "), 160), "$muted"


class PoolsScreen(ListScreen[CursorList[Any]]):
    """Root screen of the app: the table of runs, and the pools that are up below it. Without runs, all pools.

    Attributes:
        listed: The list that had the focus last.
    """

    SCOPE = "pools"
    BINDINGS = bindings("pools")
    DEFAULT_CSS = read_style_sheet(__file__)
    WORDS = "words: pool, provider, state, function, script, argument, outcome"

    def __init__(self) -> None:
        self.pool_list, self.run_table = PoolList(), RunTable()
        super().__init__(self.pool_list)
        self._words: tuple[str, ...] = ()
        self._rows: Sequence[HomeRun] = ()  # all known runs; the table leaves out runs that do not match the filter
        self._shows_all = False  # whether to show the table of all pools instead of the strip of live pools
        self._runs_state: object = None  # value of ``state`` in :meth:`_show_runs` when the table was last filled
        self._preview: PoolPreview | None = None
        self._charts: MetricsPane | None = None  # charts of the run in the preview
        self._starts: Panel | None = None  # list of scripts and examples; None as soon as there are runs or pools
        # keys of the pools for which this screen has started the sampling of machine metrics
        self._measured_pools: set[str] = set()
        self._cost_today = self._cost_read_at = 0.0  # cost of all pools since midnight, as last read from the ledger
        self._recent: Sequence[PastRun | CachedRun] = ()
        self._recent_read_at: float | None = None
        self._recent_token: object = None  # value that identified the list of known runs at the last read of the ledger

    def body(self) -> ComposeResult:
        if not self.app.REPLAYS:
            self._recent = load_cached_runs(self.app.saved_screen_state(self.SCOPE).get("runs", "[]"))
        runs = Panel(self.run_table, id="runs", title="runs")
        runs.display = False  # the table stays hidden until the first run appears
        yield Horizontal(Vertical(runs, Panel(self.pool_list, id="pools", title="pools"), id="left"), id="sides")
        yield self.words_line()

    def saved_state(self) -> ScreenState:
        if self.app.REPLAYS or self._recent_read_at in (None, math.inf):
            return {}
        return {"runs": cache_text(self._rows, self.app.clock())}

    def time_token(self, now: float) -> object:
        return self.app.failures, refresh_token(self.app.pools(), now)

    def tick(self, now: float) -> None:
        app = self.app
        pools = app.pools()
        live = [pool for pool in pools if pool.is_live]
        status = [Content.styled(count(len(live), "pool") + " up", "$text-success" if live else "$muted")]
        if costing := [pool for pool in live if hourly(pool)]:
            unknown = " + $?" if any(pool.has_unknown_price for pool in costing) else ""
            status += [
                Content.styled(f"{money(sum(pool.price_hourly for pool in costing))}/h{unknown}", "$muted"),
                Content.styled(f"spent {money(sum(pool.spent(now) for pool in costing))}", "$muted"),
            ]
        if self._cost_today:
            rising = sum(pool.price_hourly for pool in costing) * (now - self._cost_read_at) / 3600
            status.append(Content.styled(f"{money(self._cost_today + rising)} today", "$muted"))
        if app.failures:
            text = f"✗ {count(app.failures, 'failure')} ({first_key('pools.failures', app.keys)})"
            status.insert(0, Content.styled(text, "$text-error"))
        if app.leftovers is not None and app.leftovers.removable:
            status.insert(0, Content.styled(f"! {leftovers_amount(app.leftovers.removable)} left", "$text-error"))
        if marked := self.pool_list.marked:
            status.append(Content.styled(f"{len(marked):,} marked", "$text-warning"))
        if self._words:
            status.append(Content.styled(f"with: {' '.join(self._words)}", "$text-warning"))
        note = f"✗ {app.session_error}" if app.session_error else "" if app.session else "loading runs and pools …"
        if app.session_error:
            self._recent = ()
        self._read_recent_if_due(pools)
        self._show_runs(pools, now)
        has_runs = bool(self._rows)
        self.query_one(Breadcrumbs).update_trail(
            ["pools"], [*status, Content.styled(note, "$muted")] if has_runs and note else status
        )
        shown = [pool for pool in pools if not pool.is_over] if has_runs and not self._shows_all else pools
        self.pool_list.is_strip = has_runs and not self._shows_all
        self.pool_list.update(shown, note, now)
        strip = self.query_one("#pools", Panel)
        has_starts = self._starts is not None and self._starts.is_attached
        strip.display = bool(shown) or not (has_runs or has_starts)
        width = self.pool_list.size.width or self.size.width
        low = min(self.pool_list.row_count(width), _STRIP) + 2 if self.pool_list.is_strip else 0
        strip.styles.height = low or "1fr"
        self._show_starts(is_empty=not (has_runs or pools or note))
        if app.last_pool:
            self.pool_list.select(app.last_pool)
            self.run_table.select((app.last_pool, app.last_run))
            if (row := self.run_table.chosen) is None or row.past.key != app.last_pool:
                ids = map(self.run_table.row_id, self.run_table.rows)
                self.run_table.select(next((each for each in ids if each[0] == app.last_pool), ""))
            app.last_pool = app.last_run = ""
        self._follow_run()
        free = self.size.height - len(self._rows) - _HEAD - low * strip.display
        self._show_preview(self.chosen_pool, now, free if low else 0)
        super().tick(now)

    @property
    def chosen_run(self) -> HomeRun | None:
        """The selected run, if the table of runs had the focus last."""
        return self.run_table.chosen if self.listed is self.run_table else None

    @property
    def chosen_pool(self) -> PoolView | None:
        """The selected pool, or the pool of the selected run."""
        if self.listed is self.pool_list:
            return self.pool_list.chosen
        row = self.run_table.chosen
        return None if row is None else row.pool or self.app.find_pool(row.past.key)

    def command_fields(self) -> Mapping[str, str]:
        pool, row = self.chosen_pool, self.chosen_run
        run = None if pool is None or row is not None else pool.current_run()
        id = row.past.run if row is not None else "" if run is None else run.id
        name = row.past.pool if row is not None else "" if pool is None else pool.name
        return {"pool": name, "run": id, "script": self.app.script_of(id)}

    @property
    def _teardown_pools(self) -> list[PoolView]:
        """The marked pools; without marks, the selected one. Pools that have ended are left out."""
        pools: Sequence[PoolView | None] = self.pool_list.marked_pools or [self.chosen_pool]
        return [pool for pool in pools if pool is not None and not pool.is_over]

    def _show_runs(self, pools: Sequence[PoolView], now: float) -> None:
        """Fill the table of runs. When the first run appears, the table takes the focus from the list of pools."""
        state = (
            id(self._recent), self._words, refresh_token(pools, now), self.size,
            [(pool.key, pool.version, pool.metrics.version) for pool in pools],
        )  # fmt: skip
        if state == self._runs_state:
            return
        self._runs_state = state
        rows = home_runs(pools, self._recent, now)
        folded = [word.casefold() for word in self._words]
        self.run_table.update([row for row in rows if not row.past.unmatched_words(folded)] if folded else rows, now)
        had_runs, self._rows = bool(self._rows), rows
        if bool(rows) != had_runs:
            self.query_one("#runs").display = bool(rows)
            if self.focused in (None, self.listed) or self._start_list_has_focus:
                self.listed = self.run_table if rows else self.pool_list
                self.listed.focus()

    @property
    def _start_list_has_focus(self) -> bool:
        return self._starts is not None and self.focused is not None and self._starts in self.focused.ancestors

    def _show_starts(self, *, is_empty: bool) -> None:
        """Show scripts and examples to start with while there are neither runs nor pools."""
        if not is_empty and self._starts is not None:
            had_focus = self._start_list_has_focus
            self._starts.remove()
            self._starts = None
            if had_focus:
                self.listed.focus()
        elif is_empty and self._starts is None and self._recent_read_at not in (None, math.inf):
            self._starts = Panel(Static(with_keys(_WELCOME, self.app.keys)), id="first", title="start")
            self._list_starts(self._starts)

    @work(group="starts", exclusive=True)
    async def _list_starts(self, panel: Panel) -> None:
        # imported late, so that the app paints its first screen earlier
        from skyward_tui.launch_form.recent_launches import folder_scripts
        from skyward_tui.screens.launch_sidebar import StartList

        scripts = await run_in_daemon_thread(folder_scripts)
        if self.is_attached and panel is self._starts:
            panel.compose_add_child(starts := StartList((), self._start, scripts))
            await self.query_one("#left").mount(panel)  # once, because the app may exit during the mount
            if self.focused in (None, self.listed):
                starts.focus()

    def _start(self, start: Form | Path) -> None:
        """Open the launch form with a script."""
        from skyward_tui.launch_form.form import Form, relative_path, script_argument

        if isinstance(start, Path):
            self.app.show_launch(form=Form(script=relative_path(script_argument(str(start)))))

    def on_screen_resume(self) -> None:
        self.app.end_demo()
        if self.is_mounted:
            self.tick(self.app.clock())  # moves the cursor to the run that was left, before the next key moves it

    def action_demo(self) -> None:
        self.app.play_demo()

    def _follow_run(self) -> None:
        """Select the pool of the selected run in the list of pools."""
        if self.listed is self.run_table and (row := self.run_table.chosen) is not None:
            chosen = self.pool_list.chosen
            if chosen is not None and chosen.key != row.past.key:
                self.pool_list.select(row.past.key)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, RunTable | PoolList):
            self.listed = event.widget
        self.tick(self.app.clock())

    def _show_preview(self, chosen: PoolView | None, now: float, free: int) -> None:
        """Show a preview of the selected run or pool: below the lists if they are short, otherwise beside them.

        Args:
            free: Rows that the lists leave free.
        """
        is_wide = self.size.width >= _BESIDE
        is_below = chosen is not None and free >= (_BELOW_WIDE if is_wide else _BELOW)
        self.query_one("#runs").styles.height = len(self._rows) + _HEAD if is_below else "1fr"
        self.set_class(is_below, "-below")
        self.set_class(is_below or (chosen is not None and is_wide), "-preview")
        if chosen is None or not self.has_class("-preview"):
            return
        # imported late, so that the app paints its first screen earlier
        from skyward_tui.panels.rank_metrics import MetricsPane
        from skyward_tui.widgets.selected_pool_preview import PoolPreview

        if self._preview is None or self._charts is None:
            self._preview, self._charts = PoolPreview(), MetricsPane(id="charts")
            self._charts.disabled = True  # the run screen has the hairline
            self.query_one("#sides").mount(Panel(self._preview, self._charts, id="preview"))
        self.query_one("#preview", Panel).set_titles(Content(chosen.name))
        row = self.chosen_run
        run = chosen.current_run() if row is None or row.run is None else row.run
        if run is not None:
            self._charts.update(chosen.metrics, run.id, 0 if 0 in chosen.metrics.ranks(run.id) else None)
        self._charts.display = run is not None and bool(self._charts.names)
        self._preview.update(chosen, run, now)
        self._measure(chosen)

    def _read_recent_if_due(self, pools: Sequence[PoolView]) -> None:
        """Read the ledger after a run has started or ended, or a pool has failed to start."""
        token = (
            [(pool.key, bool(pool.start_error)) for pool in pools],
            [(run.id, run_status(pool, run)[0]) for pool in pools for run in list(pool.runs.values())],
        )
        due = self._recent_read_at is None or time.monotonic() - self._recent_read_at > READ_INTERVAL
        if due and token != self._recent_token and self.app.session is not None:
            self._recent_token, self._recent_read_at = token, math.inf
            self._read_recent(self.app.session)
            self.app.count_failures()
            self.set_timer(LEDGER_SECONDS, self.app.count_failures)

    @work(group="recent")
    async def _read_recent(self, session: Session) -> None:
        from skyward_core.client.pool_costs import cost_today
        from skyward_core.client.run_history import RunSearch

        try:
            found = await wait_shielded(session.past_runs(RunSearch()))
            # A past pool without a run is listed only if its start failed.
            self._recent = [run for run in found if run.run or run.error][:_MOST_RUNS]
            if not self.app.REPLAYS:
                self._cost_today = await run_in_daemon_thread(cost_today)
                self._cost_read_at = self.app.clock()
        except (SkywardError, OSError):
            self._recent = self._recent or ()  # no error here, because the history screen reports the same error
        finally:
            self._recent_read_at = time.monotonic()
        if self.has_widgets and self.is_current:
            self.tick(self.app.clock())

    def _measure(self, chosen: PoolView) -> None:
        """Start sampling the machines of the selected pool if one of its runs is active."""
        session = self.app.session
        is_busy = chosen.state == "up" and any(run.state == "running" for run in chosen.runs.values())
        if session is not None and is_busy and chosen.machines is None and chosen.key not in self._measured_pools:
            self._measured_pools.add(chosen.key)
            # the future is ignored, because samples and errors arrive through the pool's view
            session.start_sampling(chosen.key)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen, pools, has_session = self.chosen_pool, self.app.pools(), self.app.session is not None
        is_live = chosen is not None and chosen.is_live
        return {
            "open": self._start_list_has_focus or (has_session and self.listed.chosen is not None),
            "demo": self._starts is not None,
            "launch_again": self.chosen_run is not None and has_session,
            "down": bool(self._teardown_pools),
            "find": bool(self._rows),
            "all": bool(self._rows and pools),
            "mark": self.listed is self.pool_list and bool(pools),
            **dict.fromkeys(("launch_here", "dashboard"), is_live),
            **dict.fromkeys(("new", "failures"), has_session),
            "show": has_session or parameters == ("settings",),
        }.get(action, True)

    def action_open(self) -> None:
        if self._start_list_has_focus:  # after a click on the hint, because the list itself handles the key
            from skyward_tui.screens.launch_sidebar import StartList

            return self.query_one(StartList).action_select()
        row, pool = self.chosen_run, self.chosen_pool
        if row is not None and (row.run is None or row.pool is None or row.pool.current_run() is not row.run):
            self.app.show_run(row.past.key, row.past.run)
        elif pool is not None:
            # no run ID is passed, so that the pool's screen switches to the pool's next run
            self.app.show_pool(pool.key)
        # cleared, so that the cursor is not moved on the return from the pool, whose row it is already on
        self.app.last_pool = ""

    def action_launch_again(self) -> None:
        if (row := self.chosen_run) is not None:
            self.app.launch_again(row.past.key, row.past.run)

    def action_all(self) -> None:
        """Switch between the strip of live pools and the table of all pools."""
        self._shows_all = not self._shows_all
        self.tick(self.app.clock())

    def action_new(self) -> None:
        self.app.show_launch()

    def action_launch_here(self) -> None:
        if (chosen := self.chosen_pool) is not None:
            self.app.show_launch(chosen.key)

    def action_dashboard(self) -> None:
        from skyward_tui.dialogs.pickers import open_dashboard

        self.run_worker(open_dashboard(self.app, self.chosen_pool), group="pages", exclusive=True)

    def action_down(self) -> None:
        from skyward_tui.dialogs.confirmations import TeardownScreen

        if pools := self._teardown_pools:
            self.app.push_screen(TeardownScreen([pool.key for pool in pools]))

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = tuple(event.value.split())
        self.tick(self.app.clock())

    def action_back(self) -> None:
        """Clear the filter; without a filter, clear the marks."""
        if not self.stop_finding():
            self._change_list(self.pool_list.unmark)

    def action_failures(self) -> None:
        self.app.show_history(inbox=True)

    def action_show(self, screen: str) -> None:
        getattr(self.app, f"show_{screen}")()

    def hint_label(self, action: Action) -> str:
        return "launch" if action.call == "open" and self._start_list_has_focus else action.label

    def is_hint_worthy(self, action: Action) -> bool:
        left, has_several = self.app.leftovers, len(self.app.pools()) > 1
        worthy = {"leftovers": bool(left and left.removable), "failures": self.app.failures > 0, "mark": has_several}
        return worthy.get(action.id.removeprefix("pools."), True)

    def action_refresh(self) -> None:
        self.app.refresh_pools()
        self.flash("refreshing pools …")
