"""Screen of a pool and one of its runs, with panels in a grid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.geometry import NULL_OFFSET, Region, Size, Spacing
from textual.layout import Layout, WidgetPlacement
from textual.reactive import var
from textual.widget import Widget

from skyward_core.model.errors import ScriptError, UsageError
from skyward_core.model.outcomes_states_and_alerts import AlertKind
from skyward_core.views.metric_kinds_and_order import TOTAL_NAMES
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.problem_alerts_and_stragglers import Alert, AlertWatch, alerts_cache_key
from skyward_core.views.rank_metrics_and_progress import format_metrics
from skyward_core.views.stack_groups_and_profiles import format_ranges
from skyward_tui.notifications import Notification
from skyward_tui.panels.panel import InstantChosen, RunPanel, RunSelection
from skyward_tui.panels.rank_states_and_heat_map import RankChosen
from skyward_tui.screens.base_screen import BaseScreen
from skyward_tui.text.number_time_and_run_state_format import (
    clock,
    count,
    duration,
    failure,
    hourly,
    money,
    preemption_text,
    rate_text,
    run_status,
)
from skyward_tui.text.rank_states_from_views import find_paused
from skyward_tui.text.state_styles import FAILURES, state_style
from skyward_tui.text.text_width_tables_and_ascii import clip, one_line
from skyward_tui.ui.actions import Action, actions_by_id, bindings, first_key, with_keys
from skyward_tui.ui.run_screen_panel_list_and_layout import HOME_PANEL, PANELS, STARTUP_PANEL, Box, place_panels
from skyward_tui.ui.session_futures import flash_errors, wait_shielded
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.ui.time_refresh_rules import refresh_token
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Chrome

if TYPE_CHECKING:
    from skyward_core.client.log_search import LineMatch
    from skyward_tui.app import SkywardApp


_SEVERE: tuple[AlertKind, ...] = ("gpu", "nan", "stall", "memory", "restarts")


NUMBERS = 3  # maximum number of metrics that the header shows


MUCH_WORK = 900.0  # seconds; if the newest copied checkpoint is older, the header shows its age as a warning


def pool_status(pool: PoolView, run: RunView | None, now: float) -> list[Content]:
    """Return the parts of the header about a pool, a run and the costs, the most important part first."""
    parts: list[Content] = []
    if run is not None:
        run_state, remark = run_status(pool, run, now, unit=True)
        mark = state_style(run_state)
        parts.append(Content.styled(f"{mark.glyph} {mark.word.upper()} {remark}".rstrip(), f"bold {mark.style}"))
        if run.attempt > 1 and run_state != "restarting":
            nodes = f" on {len(run.nodes)} of {count(len(pool.nodes), 'node')}" if run.nodes else ""
            parts.append(Content.styled(f"attempt {run.attempt}{nodes}", "$text-warning"))
        if run.state == "running" and (safe_until := pool.safe_until(run)) is not None:
            at_risk = max(0.0, now - safe_until)
            style = "$text-warning" if at_risk > MUCH_WORK else "$muted"
            parts.append(Content.styled(f"work at risk {duration(at_risk)}", style))
    if preempted := [node for node in pool.nodes if node.is_preempted and now < (node.notice_ends_at or now + 1)]:
        # The preemption notice comes before less urgent parts of the header, which may not fit.
        notice = preemption_text(preempted[0], now).partition(" (")[0]
        more = f" +{len(preempted) - 1}" if preempted[1:] else ""
        parts.append(Content.styled(f"! n{preempted[0].index} {notice}{more}", "$text-error"))
    elif noticed := next((node for node in pool.nodes if node.notice == "rebalance"), None):
        parts.append(Content.styled(f"! n{noticed.index} {preemption_text(noticed, now)}", "$text-warning"))
    if run is not None and pool.saving:
        left = duration(max(0.0, max(pool.saving.values()) - now))
        parts.append(Content.styled(f"{len(pool.saving)} saving, killed in {left}", "$text-warning"))
    if run is not None:
        failed = [(many, kind, state_style(kind)) for kind in FAILURES if (many := run.counts.get(kind))]
        parts += [Content.styled(f"{mark.glyph} {many} {kind}", mark.style) for many, kind, mark in failed]
        if run_state != "queued" and (run.ended_at or run.state == "running"):
            seconds = (run.ended_at or now) - run.opened_at
            parts.append(Content(f"took {duration(seconds)}" if run.ended_at else f"{duration(seconds)} elapsed"))
        if ranks := pool.metrics.ranks(run.id):
            rank = cause.rank if (cause := run.root_cause) is not None and cause.rank in ranks else 0
            numbers = pool.metrics.latest(run.id, rank) or pool.metrics.run_values(run.id)
            shown = [name for name in numbers if name not in TOTAL_NAMES][:NUMBERS]
            rate = pool.metrics.step_rate(run.id, rank) if run.state == "running" else None
            if rate is not None and not remark.endswith(("it/s", "s/it")):
                parts.append(Content(rate_text(rate)))
            who = f"r{rank}" if rank in ranks else "median"
            parts.append(Content(f"{who}: {format_metrics({name: numbers[name] for name in shown})}"))
    mark = state_style(pool.shown_state)
    if cost := hourly(pool):
        if pool.price_hourly:
            cost = "" if pool.is_over else f"{cost} "
            cost += f"spent {money(pool.spent(now))}"
            cost += f" of {money(pool.budget)}" if pool.budget is not None else ""
            cost += f", {money(end)} by its end" if (end := pool.planned_cost()) is not None else ""
        parts.append(Content.styled(cost, "$muted"))
    state = Content.styled(f"pool {mark.text}", mark.style)
    parts += [state, Content.styled(f"{pool.nodes_ready}/{count(pool.node_count, 'node')}", "$muted")]
    if (lease_left := pool.lease_left(now)) is not None:
        parts.append(Content.styled(f"ends in {duration(lease_left)}", "$text-warning"))
    if pool.shown_state not in ("up", "gone"):
        # If the pool has a problem, its state matters more than the costs, so move the state to the front.
        parts.insert(0, parts.pop(parts.index(state)))
    return parts


class AlertStrip(Chrome):
    """Line with the most severe kind of alert and the number of others. Hidden without alerts. A click shows the next
    alert.
    """

    app: SkywardApp
    DEFAULT_CSS = read_style_sheet(__file__, "alert_strip")

    def __init__(self) -> None:
        super().__init__()
        self._alerts: Sequence[Alert] = ()

    def show(self, alerts: Sequence[Alert]) -> None:
        """Show alerts, which are sorted so that the most severe one comes first."""
        self._alerts = alerts
        self.set_class(bool(alerts), "-there")
        keys = "  {run.errors}: go there " + ("" if self.app.REPLAYS else " {run.stacks}: stacks ")
        self.show_line(alert_line(alerts, self.app.size.width, self.app.clock(), with_keys(keys, self.app.keys)))

    def on_resize(self) -> None:
        self.show(self._alerts)

    async def on_click(self) -> None:
        await self.run_action("screen.next_alert")


class AttemptStrip(Chrome):
    """Line with the attempts of a run that was restarted. Hidden during the first attempt."""

    DEFAULT_CSS = read_style_sheet(__file__, "alert_strip")

    def show(self, pool: PoolView, run: RunView | None, now: float) -> None:
        """Show the attempts of a run."""
        self.set_class(run is not None and bool(run.ended_attempts), "-there")
        self.show_line(Content("") if run is None else attempt_line(pool, run, now, self.app.size.width))


MARKS = 12  # maximum number of attempts that are each shown by a mark of their own


def attempt_line(pool: PoolView, run: RunView, now: float, width: int) -> Content:
    """Return a line such as ``✗● attempt 2 of 4 · rank 1 ended by SIGKILL · 12 steps, 0:41 lost``."""
    ended = run.ended_attempts
    if not ended:
        return Content("")
    last = ended[-1]
    of = f" of {last.number + 1 + last.left}" if last.restarts and last.left is not None else ""
    pause = 0.0 if run.restart_at is None else run.restart_at - now
    waits = f" in {pause:.0f} s" if pause >= 1 else ""
    lost = [pool.metrics.repeated_work(run.id, each.at) for each in ended if each.restarts]
    steps, seconds = (sum(each[part] for each in lost) for part in (0, 1))
    work = f" · {steps:,.0f} steps, {duration(seconds)} lost" if steps else ""
    mark = state_style("restarting" if run.restart_at is not None else run.state)
    current = f"{mark.glyph} " if last.restarts else " "
    head = f" {state_style('failed').glyph * min(len(ended), MARKS)}"
    number = f"attempt {run.attempt}{of}{waits}"
    cause = clip(f" · {last.short_message}", max(0, width - len(head) - len(current) - len(number) - len(work) - 1))
    return Content.assemble(
        (head, "$text-error"), (current, mark.style), (number, "bold $text-warning"), cause, (work, "$text-warning")
    )


def alert_line(alerts: Sequence[Alert], width: int, now: float, keys: str = "") -> Content:
    """Return a line such as ``✗ NaN  ranks 1,5 since 12:01:07: loss is NaN from step 103 on  +2 more``, or, for silent
    ranks, ``◌ stall  ranks 1,5 silent 5:04: no output for longer than usual``.

    Args:
        keys: Text about keys, shown if there is room.
    """
    if not alerts:
        return Content("")
    worst = alerts[0]
    mark = state_style(worst.kind)
    others = sum(alert.kind != worst.kind for alert in alerts)
    more = f"  +{others:,} more" if others else ""
    time = f"silent {duration(now - worst.since)}" if worst.kind == "stall" else f"since {clock(worst.since)}"
    head = clip(f" {mark.text}  {_subjects(alerts)} {time}", width - len(more) - 1)
    words = clip(f": {worst.words}", max(0, width - len(head) - len(more) - 1))
    keys = keys if len(head) + len(words) + len(more) + len(keys) <= width else " "
    return Content.assemble((head, f"bold {mark.style}"), (words, mark.style), (more, "bold"), (keys, "$muted"))


def _subjects(alerts: Sequence[Alert]) -> str:
    """Return the subjects of all alerts whose kind is that of the first alert, such as ``ranks 1,5``."""
    same = list(dict.fromkeys(alert.who for alert in alerts if alert.kind == alerts[0].kind))
    ranks = {alert.rank for alert in alerts if alert.kind == alerts[0].kind and alert.rank is not None}
    return f"ranks {format_ranges(ranks)}" if len(ranks) > 1 else ", ".join(same)


def alert_messages(new: Sequence[Alert]) -> Iterator[tuple[str, str, str]]:
    """Yield title, text and severity of a message for each kind of new alert, regardless of the number of ranks.

    Stalls are left out, because the panel of ranks reports them, with the key for stacks.
    """
    for kind in dict.fromkeys(alert.kind for alert in new if alert.kind != "stall"):
        first, *others = (alert for alert in new if alert.kind == kind)
        more = f" (+{len(others):,} more)" if others else ""
        yield (
            state_style(kind).text,
            f"{first.who}: {first.words}{more}",
            "error" if kind in _SEVERE else "info",
        )


class PanelStrip(Chrome):
    """Line with the names of all panels, for screens that show one panel at a time. A click shows a panel."""

    SCOPED_CSS = False
    DEFAULT_CSS = read_style_sheet(__file__, "panel_strip")

    def __init__(self) -> None:
        super().__init__()
        # for each panel's title in the line: the column after its end, and the panel's ID
        self._ends: list[tuple[int, str]] = []

    def show(self, panels: Iterable[RunPanel[Any]], active: str) -> None:
        """Show all panels by number. Panels without content are dim."""
        titles = [
            (panel.row.id, panel.heading, "bold $text-accent" if panel.row.id == active else style)
            for panel in sorted(panels, key=lambda panel: panel.row.number)
            for style in ("" if panel.has_content else "$muted dim",)
        ]
        width = self.app.size.width
        gap = " │ " if sum(len(title) + 3 for _, title, _ in titles) <= width else " "
        if sum(len(title) + len(gap) for _, title, _ in titles) > width:
            titles = [each for each in titles if "dim" not in each[2]]
        parts: list[tuple[str, str]] = [(" ", "")]
        self._ends, end = [], 1
        for name, title, style in titles:
            parts += [(title, style), (gap, "$muted")]
            end += len(title) + len(gap)
            self._ends.append((end, name))
        self.show_line(Content.assemble(*parts[:-1]).truncate(width, ellipsis=True))

    def on_resize(self) -> None:
        if isinstance(self.screen, RunScreen):
            self.show(self.screen.panels.values(), self.screen.active)

    async def on_click(self, event: events.Click) -> None:
        name = next((name for end, name in self._ends if event.x < end), None)
        if name is not None:
            await self.run_action(f"screen.panel({name!r})")


STEP_COLUMNS, STEP_ROWS = 4, 2


class BorderOffsets(NamedTuple):
    """Distances in cells by which the user has moved the borders between panels.

    Attributes:
        left: Distance by which the border after the left column was moved to the right.
        below: Distance by which the border below the first row was moved upwards.
    """

    left: int = 0
    below: int = 0


class PanelLayout(Layout):
    """Layout of the panels that are shown, by :func:`~skyward_tui.ui.run_screen_panel_list_and_layout.place_panels`."""

    name = "panels"

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> list[WidgetPlacement]:
        boxes = parent.boxes(size) if isinstance(parent, PanelGrid) else {}
        return [
            WidgetPlacement(Region(*boxes[child.row.id]), NULL_OFFSET, Spacing(), child)
            for child in children
            if isinstance(child, RunPanel) and child.row.id in boxes
        ]


class PanelGrid(Container):
    """Grid of panels, whose borders the user can move.

    Attributes:
        active: ID of the panel with the focus.
        moved: Offsets of the borders.
    """

    def __init__(self, *panels: RunPanel[Any], id: str) -> None:
        super().__init__(*panels, id=id)
        self.active = HOME_PANEL
        self.moved = BorderOffsets()
        self._panels = panels
        self._layout_of_panels = PanelLayout()
        # places of the panels in the last layout, to detect whether a new layout would differ
        self._shown: object = None
        self._dragged = ""  # border that the user is dragging with the mouse; "" for none
        self._drag_start = (0, 0)
        self._before = BorderOffsets()

    @property
    def layout(self) -> Layout:
        return self._layout_of_panels

    def boxes(self, size: Size) -> dict[str, Box]:
        """Return the place of each panel that is shown."""
        rows = {panel.row.id: panel.preferred_rows for panel in self._panels if panel.display}
        self._shown = found = place_panels(rows, self.active, *size, *self.moved, alone=self._alone)
        return found

    @property
    def _alone(self) -> str:
        """Reason why only the active panel and its details are shown: "zoom", "narrow" or "short"; "" without one."""
        return next((each for each in ("zoom", "narrow", "short") if self.screen.has_class(f"-{each}")), "")

    def lay_out(self) -> None:
        """Lay out the panels again if they now need another number of rows."""
        if (before := self._shown) is not None and self.boxes(self.content_region.size) != before:
            self._arrange_again()

    def on_log_pane_status_changed(self) -> None:
        self.lay_out()

    def _arrange_again(self) -> None:
        # ``refresh`` clears the arrangement caches of ancestors only, so clear the cache of this widget here
        self._clear_arrangement_cache()
        self.refresh(layout=True)

    def grow(self, panel: Widget, steps: int) -> None:
        """Enlarge a panel by a number of steps in both directions; a negative number shrinks it."""
        region = panel.region
        right = 1 if region.x > self.content_region.x else -1
        low = 1 if region.y > self.content_region.y else -1
        left, below = self.moved
        self.move_borders(BorderOffsets(left - right * steps * STEP_COLUMNS, below + low * steps * STEP_ROWS))

    def move_borders(self, moved: BorderOffsets) -> None:
        """Set the distances by which the user has moved the borders, and lay out the panels again."""
        self.moved = moved
        self._arrange_again()

    # Mouse events

    def _border_at(self, x: int, y: int) -> str:
        """Return the border at a position on the screen: "left", "below", or "" if there is none."""
        area = self.content_region
        shown = [child.region for child in self.children if child.display and child.region.area]
        across = {region.right for region in shown if region.x == area.x and region.right < area.right}
        down = {region.bottom for region in shown if region.y == area.y and region.bottom < area.bottom}
        if any(y in (edge - 1, edge) for edge in down):
            return "below"
        return "left" if any(x in (edge - 1, edge) for edge in across) else ""

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._dragged = "" if self._alone else self._border_at(event.screen_x, event.screen_y)
        if self._dragged:
            self._drag_start, self._before = (event.screen_x, event.screen_y), self.moved
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragged == "left":
            self.move_borders(self._before._replace(left=self._before.left + event.screen_x - self._drag_start[0]))
        elif self._dragged == "below":
            self.move_borders(self._before._replace(below=self._before.below + self._drag_start[1] - event.screen_y))

    def on_mouse_up(self) -> None:
        if self._dragged:
            self._dragged = ""
            self.release_mouse()


def _number(text: str | bool | None) -> int:
    return int(text) if isinstance(text, str) and text.removeprefix("-").isdecimal() and len(text) < 5 else 0


# seconds after the screen has selected a failed rank during which the rank's last lines may still arrive
FAILURE_SECONDS = 5.0
CALM_SECONDS = 3  # seconds between updates of a panel with ``CALM`` while the pool is idle
EDIT_CHECK_SECONDS = 1.0  # seconds between two checks of a script that runs again after each edit
ALERT_SECONDS = 0.5  # seconds between two checks for new alerts


class RunScreen(BaseScreen[None]):
    """Screen of a pool. Shows the given run; without one, the current run until it has ended and a later one begins.

    Args:
        pool: Key of the pool.
        run: ID of a run of the pool.
        found: Log line to scroll to.
    """

    SCOPE = "run"
    # Textual's default would focus the first panel for a moment before this screen focuses another panel
    AUTO_FOCUS = ""
    BINDINGS = bindings("run")
    DEFAULT_CSS = read_style_sheet(__file__)

    rank: var[int] = var(0, init=False)
    merged: var[bool] = var(False, init=False)
    active: var[str] = var(HOME_PANEL, init=False)

    def __init__(self, pool: str, run: str | None = None, found: LineMatch | None = None) -> None:
        super().__init__()
        self.key, self.run_id, self._found_match = pool, run, found
        self._shown_run = ""  # ID of the run that was shown last
        # IDs of the runs that were running or queued when ``_shown_run`` was set; a later run is a new one
        self._known_runs: set[str] = set()
        # options of the merged log: collapse equal lines; show only failed ranks
        self.collapsed = self.only_failed = False
        self._view: PoolView | None = None
        self._is_pulsing = False
        self._awaits_run = False
        self._notified_run = ""  # ID of the failed run whose root cause was last shown in a message
        # ID of the shown run, and the number of its ended attempts, at the last update
        self._ended_attempts = ("", 0)
        self._auto_rank = 0  # rank that this screen has selected by itself, not the user
        # monotonic time until which the screen keeps scrolling to the failure in the rank's log
        self._scroll_until = 0.0
        self.panels: dict[str, RunPanel[Any]] = {}
        self._crumbs: Breadcrumbs | None = None
        self._alerts, self._strip, self._attempts = AlertWatch(), AlertStrip(), AttemptStrip()
        self._panel_strip = PanelStrip()
        self._alerts_of: PoolView | None = None
        self._shown_alerts: Sequence[Alert] = ()
        self._alert_turn = -1  # index of the alert that ``action_next_alert`` showed last
        # version of the data at the last check for alerts, and monotonic time of this check
        self._alerts_checked: tuple[object, float] = (None, 0.0)

    def body(self) -> ComposeResult:
        yield self._strip
        yield self._attempts
        for row in PANELS:
            make: Callable[..., RunPanel[Any]] = resolve_name(row.made_by)
            panel = make(row, partial(setattr, self, "active", row.id))
            panel.set_class(row.id == self.active, "-active")
            self.panels[row.id] = panel
        for panel in self.panels.values():
            yield from panel.above()
        yield self._panel_strip
        self._grid = PanelGrid(*self.panels.values(), id="grid")
        yield self._grid

    def on_mount(self) -> None:
        saved = self.app.saved_screen_state(self.SCOPE)
        self.merged, self.collapsed = saved.get("merged") is True, saved.get("collapsed") is True
        self.only_failed = saved.get("only_failed") is True
        self.set_class(saved.get("zoom") is True, "-zoom")
        self._grid.move_borders(BorderOffsets(*(_number(saved.get(name)) for name in BorderOffsets._fields)))
        for panel in self.panels.values():
            panel.restore(saved)
        if self._found_match is not None:
            self.rank, self.merged = self._found_match.rank, False
            self.panels[HOME_PANEL].scroll_to_match(self._found_match)
        self._arrange_panels()
        self._awaits_run = self.pool is not None and self.pool.state == "starting" and self.run is None
        if self._awaits_run:
            self.active = STARTUP_PANEL
        self.tick(self.app.clock())
        last = self.panels.get(str(saved.get("panel", HOME_PANEL)), self.panels[HOME_PANEL])
        if self._awaits_run or not last.has_content or last is self.panels[HOME_PANEL]:
            self.panels[HOME_PANEL].main.focus()
        else:  # focus this panel directly: a zoomed grid hides the other panels, which cannot take the focus
            self.action_panel(last.row.id)
        if self.pool.is_over if self.pool is not None else self.app.session is not None:
            self.run_worker(self._load_recorded_pool(), group="recall")

    def saved_state(self) -> Mapping[str, str | bool]:
        state: dict[str, str | bool] = {"panel": self.active, "zoom": self.has_class("-zoom")}
        state |= {"merged": self.merged, "collapsed": self.collapsed, "only_failed": self.only_failed}
        for panel in self.panels.values():
            state |= panel.saved_state()
        return state | {name: str(offset) for name, offset in self._grid.moved._asdict().items()}

    @property
    def reopen_state(self) -> Mapping[str, str | bool]:
        return {"screen": self.SCOPE, "pool": self.key, "run": self.run_id or ""}

    async def _load_recorded_pool(self) -> None:
        """Load an ended pool from its stored data."""
        with flash_errors(self.app, "cannot read the recording of this pool: "):
            await wait_shielded(self.app.required_session.load_ended_pool(self.key))
            if self.run_id and self.pool is not None and self.run is None:
                text = f"run {self.run_id} is not in the recording: use skyward-tui results {self.run_id}"
                self.flash(text, "error")

    # State of the screen

    @property
    def pool(self) -> PoolView | None:
        """View of the pool. After the session has dropped the pool, its last known view."""
        if not self._is_pulsing:
            self._view = self.app.find_pool(self.key) or self._view
        return self._view

    @property
    def run(self) -> RunView | None:
        pool = self.pool
        if pool is None:
            return None
        return pool.runs.get(self.run_id) if self.run_id else pool.current_run(self._shown_run, self._known_runs)

    def _stay_with(self, pool: PoolView, run: str) -> None:
        """Show a run. Once it has ended, switch to the first run that starts and is not known at this time."""
        self._shown_run, self._known_runs = run, {*pool.runs, *(each.run for each in pool.waiting)}

    def command_fields(self) -> Mapping[str, str]:
        pool, run = self.pool, "" if self.run is None else self.run.id
        rank = "" if self.rank is None else str(self.rank)
        return {"pool": pool.name if pool else "", "run": run, "rank": rank, "script": self.app.script_of(run)}

    def show_launched(self, pool: str, run: str) -> None:
        if pool == self.key and not self.run_id:
            self._shown_run = run

    @property
    def _chosen(self) -> RunSelection:
        collapsed = self.merged and self.collapsed
        return RunSelection(self.rank, self.merged, collapsed, self.merged and self.only_failed and not collapsed)

    @property
    def context(self) -> str:
        return self.panels[self.active].context

    @property
    def first_hints(self) -> Sequence[str]:
        is_over = self.run is not None and self.run.state != "running" and self.context != "run.prompt"
        return ("run.again", "run.launch", "run.down") if is_over else ()

    def is_hint_worthy(self, action: Action) -> bool:
        run = self.run
        if action.id in ("run.again", "run.launch"):
            return action.id in self.first_hints
        if action.id == "run.cancel":
            return bool(self.panels[self.active].run_to_cancel) or (run is not None and run.state == "running")
        if action.id == "run.stacks":
            return run is not None and run.state == "running" and not self.app.REPLAYS
        if action.id == "run.debug":
            return self.pool is not None and bool(find_paused(self.pool))
        if action.id == "run.back":
            return self.context == "run.prompt"
        if action.id == "run.errors":
            return run is not None and (bool(self._shown_alerts) or any(map(run.counts.get, FAILURES)))
        return all(panel.offers(action.id) for panel in self.panels.values())

    def hint_label(self, action: Action) -> str:
        return self.panels[HOME_PANEL].hint_label(action)

    def time_token(self, now: float) -> object:
        pool = self.pool
        if pool is None:
            return super().time_token(now)
        heartbeat = refresh_token([pool], now)
        if heartbeat > 0:  # a displayed timer runs, so all panels are updated every second anyway
            return heartbeat
        polled = [panel.CALM for panel in self.panels.values() if panel.needs_polling]
        return int(now) // (CALM_SECONDS if all(polled) else 1) if polled else heartbeat

    def tick(self, now: float) -> None:
        self._view = self.app.find_pool(self.key) or self._view
        # during a tick, ``pool`` returns the stored view, because a lookup of the pool for each hint would be slow
        self._is_pulsing = True
        try:
            self._tick(now)
        finally:
            self._is_pulsing = False

    def _tick(self, now: float) -> None:
        # The widget is cached, because the query would be the most expensive part of a tick without changes.
        if (crumbs := self._crumbs) is None or not crumbs.is_attached:
            crumbs = self._crumbs = next(iter(self.query(Breadcrumbs)), None)
        if crumbs is None:  # the screen has not composed its widgets yet, or is already closed
            return
        pool = self.pool
        if pool is None:
            crumbs.update_trail(["pools", self.key.partition(".")[0]], [Content("this pool does not exist")])
            super().tick(now)
            return
        run = self.run
        if run is not None and (run.id != self._shown_run or run.state == "running"):
            self._stay_with(pool, run.id)
        missing = "no run" if pool.is_over else "starting run" if self.app.is_launching(pool.key) else "no run yet"
        name = run.function if run else missing
        status = pool_status(pool, run, now)
        if self.key in self.app.rerunning_pools:
            status.insert(1, Content.styled("reruns on change", "$text-accent"))
        crumbs.update_trail(["pools", pool.name, name], status)
        failed = run if run is not None and run.root_cause is not None and self._notified_run != run.id else None
        if failed is not None:
            self._show_failed_rank(failed)
        self.rank = min(self.rank, max(0, pool.world_size - 1))
        chosen = self._chosen
        if any([panel.update_view(pool, run, now, chosen) for panel in self.panels.values()]):
            self._arrange_panels()
        self._check_alerts(pool, run, now)
        self._attempts.show(pool, run, now)
        if time.monotonic() < self._scroll_until and (
            not self._is_untouched or self.panels[HOME_PANEL].scroll_to_failure()
        ):
            self._scroll_until = 0.0
        if failed is not None and (cause := failed.root_cause) is not None:
            text = failure(cause.outcome, cause.type, one_line(cause.message))
            key = first_key("run.errors", self.app.keys)
            self.flash(f"{cause.rank_prefix}{cause.outcome}, {text} ({key}: details)", "error")
        if run is not None:
            self._show_ended_attempt(run)
        if self._awaits_run and run is not None:
            # The first run has started: show the log, which already has the focus, instead of the panel with startup
            # phases.
            self._awaits_run = False
            self.active = HOME_PANEL
        super().tick(now)

    @property
    def _is_untouched(self) -> bool:
        """Whether the user has changed nothing since the screen itself selected a rank and a panel."""
        here = self.rank == self._auto_rank and not self.merged and self.active in (HOME_PANEL, STARTUP_PANEL)
        return here and all(panel.is_untouched for panel in self.panels.values())

    def _show_failed_rank(self, run: RunView) -> None:
        """Select the rank of the root cause, unless the user has selected another rank and sees only its log."""
        self._notified_run = run.id
        rank = -1 if run.root_cause is None else run.root_cause.rank
        if rank >= 0 and (self._is_untouched or self.panels[HOME_PANEL].shows_beside(rank)):
            self.rank = self._auto_rank = rank
            self._scroll_until = time.monotonic() + FAILURE_SECONDS

    def _show_ended_attempt(self, run: RunView) -> None:
        """Notify about an attempt that has just ended, if another one follows."""
        known, self._ended_attempts = self._ended_attempts, (run.id, len(run.ended_attempts))
        if known[0] == run.id and known[1] < len(run.ended_attempts) and run.ended_attempts[-1].restarts:
            self.flash(one_line(run.ended_attempts[-1].short_text), "warning")

    def _check_alerts(self, pool: PoolView, run: RunView | None, now: float) -> None:
        """Check for alerts after events, and every second during a run, because a silent rank produces no event."""
        if run is None:
            self._shown_alerts = ()
            return self._strip.show([])
        if pool is not self._alerts_of:
            # Start a new watch, because after a seek in a replay the pool's view is a new object, and its time may be
            # earlier.
            self._alerts_of, self._alerts = pool, AlertWatch()
        state, checked_at = alerts_cache_key(pool, run, now), time.monotonic()
        if state == self._alerts_checked[0] or checked_at - self._alerts_checked[1] < ALERT_SECONDS:
            return
        self._alerts_checked = state, checked_at
        alerts, new = self._alerts.check(pool, run, now)
        self._shown_alerts = alerts
        self._strip.show(alerts)
        for panel in self.panels.values():
            panel.show_alerts(alerts, pool)
        if run.state == "running":
            for title, text, severity in alert_messages(new):
                self.flash(f"{title}  {text}", severity)
            # For each kind of severe alert, send one notification, about the first alert of that kind.
            for alert in {each.kind: each for each in reversed(new) if each.kind in _SEVERE}.values():
                self.app.notify_user(Notification("alert", pool.name, run.id, alert.who, alert.words))

    def _arrange_panels(self) -> None:
        """Show panels that have content, in the places that they need now."""
        for name, panel in self.panels.items():
            if panel.row.hides:
                self.set_class(panel.has_content, f"-{name}")
                panel.set_class(not panel.has_content, "-away")
        if not self.panels[self.active].has_content:
            self.active = HOME_PANEL
        for name, panel in self.panels.items():
            panel.set_class(name == self.active, "-active")
            panel.set_class(name in self.panels[self.active].row.details, "-detail")
        self._grid.active = self.active
        self._grid.lay_out()
        self._panel_strip.show(self.panels.values(), self.active)

    # Selection of ranks, panels and runs

    def watch_active(self, active: str) -> None:
        self._arrange_panels()
        # Update the panels, because a panel may show more content while it has the focus.
        self.call_later(lambda: self.tick(self.app.clock()))

    @on(RankChosen)
    def _rank_chosen(self, event: RankChosen) -> None:
        self._choose(event.rank)
        if event.opened:
            self.action_panel(HOME_PANEL)

    @on(InstantChosen)
    def _instant_chosen(self, event: InstantChosen) -> None:
        for panel in self.panels.values():
            panel.show_instant(event.at)

    def _choose(self, rank: int) -> None:
        self.rank, self.merged = rank, False
        self.tick(self.app.clock())

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if self._awaits_run and event.widget is self.panels[HOME_PANEL].main:
            return
        for ancestor in event.widget.ancestors_with_self:
            if isinstance(ancestor, RunPanel):
                self.active = ancestor.row.id

    def action_panel(self, name: str) -> None:
        panel = self.panels[name]
        if not panel.has_content:
            if (run := self.run) is not None and run.state != "running" and " yet" in panel.row.empty:
                return self.flash(f"no {name}: run {run.id} has ended")
            state = (run and run.id, run and run.state)
            text = with_keys(panel.row.empty, self.app.keys, self.can)
            return self.flash(text, holds=lambda: state == (self.run and self.run.id, self.run and self.run.state))
        self._awaits_run = False
        self.active = name
        if panel.main.focusable:
            panel.main.focus()
        else:  # a hidden panel cannot take the focus before the next refresh
            self.call_after_refresh(panel.main.focus)

    def action_step_rank(self, step: int) -> None:
        pool = self.pool
        if pool is None or not pool.world_size:
            return
        if self.merged:
            self.merged = False
        else:
            self.rank = (self.rank + step) % pool.world_size
        self.tick(self.app.clock())

    @work(group="ask", exclusive=True)
    async def action_ask_rank(self) -> None:
        pool = self.pool
        if pool is None or not pool.world_size:
            return
        last = pool.world_size - 1
        if (answer := await self.app.ask(f"Go to rank (0 to {last})")) is None:
            return
        if not answer.isdigit() or int(answer) > last:
            return self.flash(f"rank {answer} does not exist. Enter 0 to {last}", "error")
        self._choose(int(answer))

    def action_step_run(self, step: int) -> None:
        pool, run = self.pool, self.run
        if pool is None or run is None:
            return
        ids = list(pool.runs)
        place = min(max(0, ids.index(run.id) + step), len(ids) - 1)
        # If the newest run is selected, the ID is None, so that the screen switches to the next run after this one.
        self.run_id = ids[place] if place < len(ids) - 1 else None
        self._stay_with(pool, ids[place])
        self.flash(f"run {place + 1} of {len(ids)}")
        self.tick(self.app.clock())

    def action_merge(self) -> None:
        self.merged = not self.merged
        self.tick(self.app.clock())

    def action_collapse(self) -> None:
        self.collapsed = not (self.merged and self.collapsed)
        self.merged = True
        self.tick(self.app.clock())

    def action_only_failed(self) -> None:
        self.only_failed = not (self.merged and self.only_failed and not self.collapsed)
        self.merged, self.collapsed = True, False
        self.tick(self.app.clock())

    # Layout, and export of files

    def action_zoom(self) -> None:
        self.toggle_class("-zoom")

    def action_grow(self, steps: int) -> None:
        self._grid.grow(self.panels[self.active], steps)

    def action_even(self) -> None:
        self._grid.move_borders(BorderOffsets())

    def action_copy(self) -> None:
        if selected := self.get_selected_text():
            self.app.copy(selected, "selection")
        elif content := self.panels[self.active].clipboard_text() or self.panels[HOME_PANEL].clipboard_text():
            self.app.copy(*content)

    @work(exclusive=True, group="save")
    async def action_save(self) -> None:
        pool, run, chosen = self.pool, self.run, self._chosen
        if pool is None:
            return
        stem = pool.name if run is None else f"{pool.name}-{run.id}"
        files, remarks = dict[str, Iterable[str]](), ""
        for panel in self.panels.values():
            export = await panel.exported_files(run, chosen)
            files |= {f"{stem}-{suffix}": text for suffix, text in export.files.items()}
            remarks += export.remark
        await self.save_files(files, remarks)

    # Actions on the run and its pool

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "down":
            return self._view is None or not self._view.is_over
        if action == "launch_here":
            return self._view is None or self._view.is_live
        return action != "pause" or not self.app.REPLAYS  # in a replay, the key pauses the playback

    def action_fetch(self) -> None:
        pool, run = self.pool, self.run
        if pool is None or run is None:
            return self.flash("no run to fetch files from")
        if pool.provider == "local":
            from skyward_tui.file_export import local_files_text

            return self.flash(f"pool {pool.name} runs on this machine: {local_files_text(pool.spec)}")
        self.flash(f"fetching the files of run {run.id} …")
        # The worker belongs to the app, so that the download continues if the user leaves this screen.
        self.app.run_worker(self._fetch(pool.key, run.id), name="fetch", exclusive=False)

    async def _fetch(self, pool: str, run: str) -> None:
        from skyward_tui.file_export import fetch_summary

        with flash_errors(self.app, f"run {run}: "):
            future = self.app.required_session.fetch_files(pool, run)
            summary, is_complete = fetch_summary(await wait_shielded(future))
            self.app.flash(f"run {run}: {summary}", "done" if is_complete else "error")

    def action_errors(self) -> None:
        run = self.run
        if run is None or not any(outcome.kind != "returned" for outcome in run.outcomes()):
            return self.action_next_alert() if self._shown_alerts else self.flash("no rank has failed")
        self.app.show_errors(run, self._go_to_rank)

    def action_next_alert(self) -> None:
        """Go to the subject of the next alert, the worst first."""
        pool, alerts = self.pool, self._shown_alerts
        if pool is None or not alerts:
            return
        self._alert_turn = (self._alert_turn + 1) % len(alerts)
        for name, panel in self.panels.items():
            if (rank := panel.alert_rank(alerts[self._alert_turn], pool)) is not None:
                self._choose(rank)
                return self.action_panel(name)

    def _go_to_rank(self, rank: int | None) -> None:
        if rank is not None:
            self._choose(rank)
            self.action_panel(HOME_PANEL)

    def action_stacks(self) -> None:
        pool, run = self.pool, self.run
        if self.app.REPLAYS or pool is None or not pool.is_live:
            return self.flash(f"no stacks: {'a recording has none' if self.app.REPLAYS else 'the pool is not running'}")
        self.app.show_stacks(pool.key, run.id if run is not None else "", self._go_to_rank)

    def action_debug(self) -> None:
        pool = self.pool
        paused = [] if pool is None else find_paused(pool)
        if pool is None or not paused:
            return self.flash("no rank is at a breakpoint")
        rank = self.rank if self.rank in paused else paused[0]
        self._run_in_terminal("debug", f"{pool.name}:{rank}")

    def action_shell(self) -> None:
        pool = self.pool
        if pool is None or not pool.is_live:
            return self.flash("no node to log in to: the pool is not running")
        self._run_in_terminal("ssh", f"{pool.name}:{self.rank or 0}")

    def action_dashboard(self) -> None:
        from skyward_tui.dialogs.pickers import open_dashboard

        self.run_worker(open_dashboard(self.app, self.pool), group="pages", exclusive=True)

    @work(group="terminal", exclusive=True)
    async def _run_in_terminal(self, *words: str) -> None:
        """Run a skyward-tui command in the terminal. The app is suspended until the command ends."""
        from skyward_tui.ui.suspend_for_programs import SuspendNotSupported, own_command, run_in_terminal

        command = own_command(*words)
        try:
            await run_in_terminal(self.app, *command)
        except SuspendNotSupported:
            self.flash(f"cannot suspend the app here: run skyward-tui {' '.join(words)} in a terminal", "error")
        except OSError as error:
            self.flash(f"cannot start skyward-tui {words[0]}: {error}", "error")

    @work(group="cancel")
    async def action_cancel(self) -> None:
        from skyward_tui.dialogs.basic_dialogs import ChoiceScreen

        run, pool = self.run, self.pool
        if pool is not None and (other := self.panels[self.active].run_to_cancel):
            run = pool.runs.get(other)
        if run is None:
            return self.flash("no run to cancel")
        if run.state != "running":
            return self.flash(f"run {run.id} has already ended ({run.state})")
        is_queued = pool is not None and any(each.run == run.id for each in pool.waiting)
        effect = "The run is queued and will not start" if is_queued else "Its ranks are stopped"
        more = "".join(f"{text}. " for panel in self.panels.values() if (text := panel.cancel_side_effects(run)))
        text = f"Cancel {run.function} ({run.id})? {more}{effect}. The pool stays up."
        choices = [("keep", "Keep queued" if is_queued else "Keep running", False), ("cancel-run", "Cancel run", True)]
        if not is_queued:
            choices.insert(1, ("save-run", "Save and cancel", False))
            text += " Save and cancel: ranks get SIGTERM first, and time to write a checkpoint."
        question = ChoiceScreen("Cancel the run?", text, choices, escape="keep")
        choice = await self.app.push_screen_wait(question)
        if choice in ("cancel-run", "save-run"):
            with flash_errors(self.app):
                await wait_shielded(self.app.required_session.cancel(self.key, run.id, save=choice == "save-run"))
                if run.state == "running":
                    self.flash(f"cancelling run {run.id} …", holds=lambda: run.state == "running")
                elif run.state == "cancelled":
                    self.flash(f"run {run.id} was cancelled", "done")
                else:
                    self.flash(f"run {run.id} ended ({run.state}) before the cancellation")

    def action_down(self) -> None:
        from skyward_tui.dialogs.confirmations import TeardownScreen

        self.app.push_screen(TeardownScreen([self.key]))

    def action_launch_here(self) -> None:
        self.app.show_launch("" if self._view is None else self._view.key)

    def action_launch_again(self) -> None:
        self.app.launch_again(self.key, "" if self.run is None else self.run.id)

    def action_on_change(self) -> None:
        """Start or stop running the shown run's script again after each edit."""
        pool, run = self.pool, self.run
        if self.key in self.app.rerunning_pools:
            self.app.rerunning_pools.discard(self.key)
            self.workers.cancel_group(self, "on-change")
            self.flash("edits of the script no longer start a run")
        elif pool is None or run is None or not pool.is_live:
            self.flash("nothing to run again: the pool has no run, or has ended")
        else:
            self._rerun_after_edits(run)

    @work(group="on-change", exclusive=True)
    async def _rerun_after_edits(self, run: RunView) -> None:
        """Cancel a run and launch it again on the same pool whenever its script was edited, while the pool is up."""
        from skyward_core.client.launch.launch_records_and_script_state import LaunchRecord
        from skyward_core.client.launch.plugin_and_provider_catalog import ScriptWatch
        from skyward_tui.launch_form.form import FieldError, form_from_request

        app, session = self.app, self.app.required_session
        with flash_errors(app, "edits of the script no longer start a run: "):
            app.rerunning_pools.add(self.key)
            try:
                record = await wait_shielded(session.load_launch(run.id, self.key))
                if not isinstance(record, LaunchRecord):
                    raise UsageError(f"run {run.id} executed {record.label}, not a script")
                form = replace(form_from_request(record.absolute_request()), pool=self.key)
                path = Path(form.script)
                script = await asyncio.to_thread(ScriptWatch, path)
                app.flash(f"runs again whenever {path.name} changes; the pool stays up")
                while (pool := self.pool) is not None and pool.is_live:
                    await asyncio.sleep(EDIT_CHECK_SECONDS)
                    if not (edited := await asyncio.to_thread(script.edited_file)):
                        continue
                    app.flash(f"{edited} changed; running {path.name} again")
                    script = await asyncio.to_thread(ScriptWatch, path)
                    if run.state == "running":
                        await wait_shielded(session.cancel(self.key, run.id))
                        await wait_shielded(session.wait(self.key, run.id))
                    self.run_id = None
                    try:
                        run = await app.launch_on_live_pool(form)
                    except (FieldError, ScriptError) as error:
                        app.flash(f"{one_line(str(error))}. Correct the script", "error")
            finally:
                app.rerunning_pools.discard(self.key)

    def action_back(self) -> None:
        """Close one temporary element of a panel; without one, end the zoom; without a zoom, leave the screen."""
        if any(panel.close_one() for panel in self.panels.values()):
            return
        if self.has_class("-zoom"):
            self.remove_class("-zoom")
        else:
            self.action_leave()

    def action_leave(self) -> None:
        self.app.save_screen_state(self.SCOPE, self.saved_state())
        self.app.last_pool, self.app.last_run = self.key, "" if self.run is None else self.run.id
        self.leave()


def _delegate_to_panel(row: str, call: str) -> Callable[..., object]:
    """Return a function for an action of the screen that calls a method of a panel."""

    def action(screen: RunScreen, *arguments: object) -> object:
        return getattr(screen.panels[row], call)(*arguments)

    return action


for _row in PANELS:
    for _call in {f"action_{each.call.partition('(')[0]}" for each in actions_by_id(*_row.actions)}:
        setattr(RunScreen, _call, _delegate_to_panel(_row.id, _call))
