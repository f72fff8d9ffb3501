"""A run: its panels in a grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.css.scalar import Scalar, Unit
from textual.reactive import var
from textual.widget import Widget

from skyward_core.model.outcomes import AlertKind
from skyward_core.views.alert_rules import Alert, AlertWatch, alerts_cache_key
from skyward_core.views.notification_rules import Notification
from skyward_core.views.pool_view import PoolView, RunView
from skyward_tui.panels.panel import RunPanel, RunSelection
from skyward_tui.panels.ranks import RankChosen
from skyward_tui.screens.base_screen import BaseScreen, newest_run, pool_status
from skyward_tui.text.number_and_time_format import clip, clock, failure, one_line
from skyward_tui.ui.actions import Action, actions_by_id, bindings, first_key, with_keys
from skyward_tui.ui.panel_table import HOME_PANEL, PANELS, STARTUP_PANEL
from skyward_tui.ui.refresh_and_repaint import refresh_token
from skyward_tui.ui.session_futures import flash_errors, wait_shielded
from skyward_tui.ui.themes import read_style_sheet, state_style
from skyward_tui.widgets.header_and_hints import Breadcrumbs, Chrome
from skyward_tui.widgets.rank_state import FAILURES, find_paused

if TYPE_CHECKING:
    from skyward_core.client.run_history import LineMatch
    from skyward_core.client.session_interface import SessionInterface


_SEVERE: tuple[AlertKind, ...] = ("gpu", "nan", "stall", "memory")


class AlertStrip(Chrome):
    """The worst one with its rank or machine and since when, and how many more there are; away while there is none."""

    DEFAULT_CSS = read_style_sheet(__file__, "alert_strip")

    def __init__(self) -> None:
        super().__init__()
        self._alerts: Sequence[Alert] = ()

    def show(self, alerts: Sequence[Alert]) -> None:
        """Show them, the worst first."""
        self._alerts = alerts
        self.set_class(bool(alerts), "-there")
        self.show_line(alert_line(alerts, self.app.size.width))

    def on_resize(self) -> None:
        self.show(self._alerts)


def alert_line(alerts: Sequence[Alert], width: int) -> Content:
    """``✗ NaN  rank 5 since 12:01:07: loss is NaN from step 103 on  +2 more``; of little room the words take what is
    left."""
    if not alerts:
        return Content("")
    worst = alerts[0]
    mark = state_style(worst.kind)
    more = f"  +{len(alerts) - 1:,} more " if alerts[1:] else " "
    head = f" {mark.text}  {worst.who} since {clock(worst.since)}"
    words = clip(f": {worst.words}", max(0, width - len(head) - len(more)))
    return Content.assemble((head, f"bold {mark.style}"), (words, mark.style), (more, "bold"))


def alert_messages(new: Sequence[Alert]) -> Iterator[tuple[str, str, str]]:
    """Title, text, and the kind of message: one for each kind, so that 256 ranks with the same trouble are one.

    A stall is told by the panel of ranks, with the key that shows where they are.
    """
    for kind in dict.fromkeys(alert.kind for alert in new if alert.kind != "stall"):
        first, *others = (alert for alert in new if alert.kind == kind)
        more = f" (+{len(others):,} more)" if others else ""
        yield (
            state_style(kind).text,
            f"{first.who}: {first.words}{more}",
            "error" if kind in _SEVERE else "info",
        )


def severe_alerts(new: Sequence[Alert]) -> Iterator[Alert]:
    """Those for which somebody should be called: the first of each kind."""
    firsts = {alert.kind: alert for alert in reversed(new) if alert.kind in _SEVERE}
    yield from firsts.values()


LEAST_COLUMNS, LEAST_ROWS = 16, 4  # that any panel keeps
STEP_COLUMNS, STEP_ROWS = 4, 2


class BorderOffsets(NamedTuple):
    """By how many cells borders stand elsewhere than usual.

    Attributes:
        left: the one right of the first column, to the right.
        below: the one above the second row, upwards.
    """

    left: int = 0
    below: int = 0


def resize_tracks(usual: Sequence[Scalar], place: int, by: int, room: int, least: int) -> tuple[Scalar, ...]:
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
        self.moved = BorderOffsets()
        self._drags = ""
        self._from = (0, 0)
        self._before = BorderOffsets()

    def saved_borders(self) -> Mapping[str, str]:
        """How borders were moved, to be kept."""
        return {"left": str(self.moved.left), "below": str(self.moved.below)}

    def restore_borders(self, kept: Mapping[str, str | bool]) -> None:
        """Have borders where they were; what is no number is nothing."""
        left, below = (_number(kept.get(name)) for name in ("left", "below"))
        self.move_borders(BorderOffsets(left, below))

    def grow(self, panel: Widget, steps: int) -> None:
        """Give a panel more cells, or fewer, in both directions."""
        region = panel.region
        right = 1 if region.x > self.content_region.x else -1
        low = 1 if region.y > self.content_region.y else -1
        left, below = self.moved
        self.move_borders(BorderOffsets(left - right * steps * STEP_COLUMNS, below + low * steps * STEP_ROWS))

    def move_borders(self, moved: BorderOffsets) -> None:
        """Have the borders elsewhere."""
        self.moved = moved
        self.lay_out()

    def lay_out(self) -> None:
        """Divide the room as the style sheet says, and as the borders were moved."""
        base, inline, room = self.styles.base, self.styles.inline, self.content_region.size
        columns, rows = tuple(base.grid_columns or ()), tuple(base.grid_rows or ())
        wide = resize_tracks(columns, 0, self.moved.left, room.width, LEAST_COLUMNS)
        high = resize_tracks(self._shrink_rows(rows, len(columns)), 1, self.moved.below, room.height, LEAST_ROWS)
        if not room.width or (inline.grid_columns or columns, inline.grid_rows or rows) == (wide, high):
            return
        inline.grid_columns = None if columns == wide else " ".join(map(str, wide))
        inline.grid_rows = None if rows == high else " ".join(map(str, high))

    def _shrink_rows(self, usual: Sequence[Scalar], across: int) -> tuple[Scalar, ...]:
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
                needs[row].append(getattr(panel, "preferred_rows", None))
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
            self.move_borders(self._before._replace(left=self._before.left + event.screen_x - self._from[0]))
        elif self._drags == "below":
            self.move_borders(self._before._replace(below=self._before.below + self._from[1] - event.screen_y))

    def on_mouse_up(self) -> None:
        if self._drags:
            self._drags = ""
            self.release_mouse()


def _number(text: str | bool | None) -> int:
    known = isinstance(text, str) and text.removeprefix("-").isdecimal() and len(text) < 5
    return int(text) if known and isinstance(text, str) else 0


FAILURE_SECONDS = 5.0  # in which the last lines of a rank that failed may still come
CALM_SECONDS = 3  # seconds between two looks at what comes of itself, where nothing goes on
LOOK_SECONDS = 0.5  # between two looks for what is amiss


class RunScreen(BaseScreen[None]):
    """Watch a pool. Without a run named it shows the newest one, and moves on to the next when that opens.

    Args:
        pool: key of the pool.
        run: id of a run of it.
        found: a line of its log, to be in view first.
    """

    SCOPE = "run"
    AUTO_FOCUS = ""  # the first panel would have it for a moment, and seem to be looked at
    BINDINGS = bindings("run")
    DEFAULT_CSS = read_style_sheet(__file__, "run")

    rank: var[int] = var(0, init=False)
    merged: var[bool] = var(False, init=False)
    active: var[str] = var(HOME_PANEL, init=False)

    def __init__(self, pool: str, run: str | None = None, found: LineMatch | None = None) -> None:
        super().__init__()
        self.key, self.run_id, self._found_match = pool, run, found
        self.collapsed = self.only_failed = False  # where all ranks are shown
        self._view: PoolView | None = None
        self._is_pulsing = False
        self._awaits_run = False
        self._notified_run = ""  # the failed run whose root cause was flashed
        self._led = 0  # the rank that nobody but we chose
        self._leads_until = 0.0  # by when its log is to be shown where it failed
        self.panels: dict[str, RunPanel[Any]] = {}
        self._crumbs: Breadcrumbs | None = None
        self._alerts, self._strip = AlertWatch(), AlertStrip()
        self._alerts_of: PoolView | None = None
        self._looked: tuple[object, float] = (None, 0.0)
        self._needs: object = None  # of the panels, when they were laid out

    def body(self) -> ComposeResult:
        yield self._strip
        for row in PANELS:
            make: Callable[..., RunPanel[Any]] = resolve_name(row.made_by)
            panel = make(row, partial(setattr, self, "active", row.id))
            panel.set_class(row.id == self.active, "-active")
            self.panels[row.id] = panel
            yield from panel.above()
        self._grid = PanelGrid(*self.panels.values(), id="grid")
        yield self._grid

    def on_mount(self) -> None:
        kept = self.app.saved_screen_state(self.SCOPE)
        self.merged, self.collapsed = kept.get("merged") is True, kept.get("collapsed") is True
        self.only_failed = kept.get("only_failed") is True
        self.set_class(kept.get("zoom") is True, "-zoom")
        self._grid.restore_borders(kept)
        for panel in self.panels.values():
            panel.restore(kept)
        if self._found_match is not None:
            self.rank, self.merged = self._found_match.rank, False
            self.panels[HOME_PANEL].scroll_to_match(self._found_match)
        self._arrange_panels()
        self._awaits_run = self.pool is not None and self.pool.state == "starting" and self.run is None
        if self._awaits_run:
            self.active = STARTUP_PANEL
        self.tick(self.app.clock())
        left_at = self.panels.get(str(kept.get("panel", HOME_PANEL)), self.panels[HOME_PANEL])
        if self._awaits_run or not left_at.has_content or left_at is self.panels[HOME_PANEL]:
            self.panels[HOME_PANEL].main.focus()
        else:  # and nothing else before: of a grid that is zoomed all but the one that has the focus are hidden
            self.action_panel(left_at.row.id)
        if self.pool.is_over if self.pool is not None else self.app.session is not None:
            self.run_worker(self._load_recorded_pool(), group="recall")

    def saved_state(self) -> Mapping[str, str | bool]:
        found: dict[str, str | bool] = {"panel": self.active, "zoom": self.has_class("-zoom")}
        found |= {"merged": self.merged, "collapsed": self.collapsed, "only_failed": self.only_failed}
        for panel in self.panels.values():
            found |= panel.saved_state()
        return {**found, **self._grid.saved_borders()}

    @property
    def reopen_state(self) -> Mapping[str, str | bool]:
        return {"screen": self.SCOPE, "pool": self.key, "run": self.run_id or ""}

    async def _load_recorded_pool(self) -> None:
        """Have a pool that is over read from what was kept of it; :attr:`pool` finds it."""
        if self.app.session is None:
            return
        with flash_errors(self.app, "what was kept of this pool cannot be read: "):
            await wait_shielded(self.app.session.load_ended_pool(self.key))
            if self.run_id and self.pool is not None and self.run is None:
                said = f"run {self.run_id} is older than what is shown of its pool: skyward-tui results {self.run_id}"
                self.flash(said, "error")

    # What it looks at

    @property
    def pool(self) -> PoolView | None:
        """The view of the pool; the last one known once the session has dropped it."""
        if not self._is_pulsing:
            self._view = self.app.find_pool(self.key) or self._view
        return self._view

    @property
    def run(self) -> RunView | None:
        pool = self.pool
        if pool is None:
            return None
        return pool.runs.get(self.run_id) if self.run_id else newest_run(pool)

    @property
    def _chosen(self) -> RunSelection:
        collapsed = self.merged and self.collapsed
        return RunSelection(self.rank, self.merged, collapsed, self.merged and self.only_failed and not collapsed)

    @property
    def context(self) -> str:
        return self.panels[self.active].context

    def is_hint_worthy(self, action: Action) -> bool:
        run = self.run
        if action.id == "run.cancel":
            return bool(self.panels[self.active].run_to_cancel) or (run is not None and run.state == "running")
        if action.id == "run.stacks":
            return run is not None and run.state == "running"
        if action.id == "run.debug":
            return self.pool is not None and bool(find_paused(self.pool))
        if action.id == "run.back":
            return self.context == "run.prompt"
        if action.id == "run.errors":
            return run is not None and any(run.counts.get(kind) for kind in FAILURES)
        return all(panel.offers(action.id) for panel in self.panels.values())

    def time_token(self, now: float) -> object:
        pool = self.pool
        if pool is None:
            return super().time_token(now)
        heartbeat = refresh_token([pool], now)
        if heartbeat > 0:  # by the second, whatever is awaited
            return heartbeat
        for panel in self.panels.values():
            if panel.needs_polling:
                heartbeat = int(now) // CALM_SECONDS if panel.CALM else int(now)
                if not panel.CALM:
                    break
        return heartbeat

    def tick(self, now: float) -> None:
        self._view = self.app.find_pool(self.key) or self._view
        self._is_pulsing = True  # each hint asks for the pool: among many it is looked for once
        try:
            self._tick(now)
        finally:
            self._is_pulsing = False

    def _tick(self, now: float) -> None:
        # To look for it each time costs an idle app more than anything else here.
        if (crumbs := self._crumbs) is None or not crumbs.is_attached:
            crumbs = self._crumbs = next(iter(self.query(Breadcrumbs)), None)
        if crumbs is None:  # a key came before what it is to show, or after that has gone
            return
        pool = self.pool
        if pool is None:
            crumbs.update_trail(["pools", self.key.partition(".")[0]], [Content("no such pool (any more)")])
            super().tick(now)
            return
        run = self.run
        name = run.function if run else "no run yet"
        crumbs.update_trail(["pools", pool.name, name], pool_status(pool, run, now))
        failed = run if run is not None and run.root_cause is not None and self._notified_run != run.id else None
        if failed is not None:
            self._show_failed_rank(failed)
        self.rank = min(self.rank, max(0, pool.world_size - 1))
        chosen = self._chosen
        if any([panel.update_view(pool, run, now, chosen) for panel in self.panels.values()]):
            self._arrange_panels()
        self._check_alerts(pool, run, now)
        if time.monotonic() < self._leads_until and (
            not self._is_untouched or self.panels[HOME_PANEL].scroll_to_failure()
        ):
            self._leads_until = 0.0
        if failed is not None and (cause := failed.root_cause) is not None:
            said = failure(cause.outcome, cause.type, one_line(cause.message))
            key = first_key("run.errors", self.app.keys)
            self.flash(f"{cause.rank_prefix}{cause.outcome}, {said} ({key} shows all)", "error")
        if self._awaits_run and run is not None:
            # What came up is watched first, then what it prints; the focus was there all along.
            self._awaits_run = False
            self.active = HOME_PANEL
        super().tick(now)

    @property
    def _is_untouched(self) -> bool:
        """Whether the person is where the screen has put them."""
        here = self.rank == self._led and not self.merged and self.active in (HOME_PANEL, STARTUP_PANEL)
        return here and all(panel.is_untouched for panel in self.panels.values())

    def _show_failed_rank(self, run: RunView) -> None:
        """A run that fails shows the rank that it failed by, unless the person looks at something else."""
        self._notified_run = run.id
        if self._is_untouched and run.root_cause is not None and run.root_cause.rank >= 0:
            self.rank = self._led = run.root_cause.rank
            self._leads_until = time.monotonic() + FAILURE_SECONDS

    def _check_alerts(self, pool: PoolView, run: RunView | None, now: float) -> None:
        """Once a second while a run goes on, for silence is no news; else only where something has come."""
        if run is None:
            return self._strip.show([])
        if pool is not self._alerts_of:
            # Another view of the same pool may be of an earlier time, in a replay, or of a later one.
            self._alerts_of, self._alerts = pool, AlertWatch()
        state, since = alerts_cache_key(pool, run, now), time.monotonic()
        before, looked = self._looked
        if state == before or since - looked < LOOK_SECONDS:
            return
        self._looked = state, since
        found, new = self._alerts.check(pool, run, now)
        self._strip.show(found)
        if run.state == "running":
            for title, text, severity in alert_messages(new):
                self.flash(f"{title}  {text}", severity)
            for alert in severe_alerts(new):
                self.app.notify_user(Notification("alert", pool.name, run.id, alert.who, alert.words))

    def _arrange_panels(self) -> None:
        """Only what has something to show has a place; of two that have one place, the one that is looked at."""
        for name, panel in self.panels.items():
            row, there = panel.row, panel.has_content
            if row.hides:
                self.set_class(there, f"-{name}")
                panel.set_class(not there, "-away")
        for place in {panel.row.instead_of for panel in self.panels.values()} - {""}:
            others = [each for each in self.panels.values() if each.row.instead_of == place and each.has_content]
            sharing = [*others, self.panels[place]]
            shown = next((each for each in sharing if each.row.id == self.active), sharing[0])
            for panel in sharing:
                panel.set_class(panel is not shown, "-spare")
        if not self.panels[self.active].has_content:
            self.active = HOME_PANEL
        needs = [(panel.preferred_rows, panel.has_content, panel.has_class("-spare")) for panel in self.panels.values()]
        if needs != self._needs or self._grid.moved != BorderOffsets():
            self._needs = needs
            self.call_after_refresh(self._grid.lay_out)  # by other classes it is divided otherwise

    # Choosing

    def watch_active(self, active: str) -> None:
        for name, panel in self.panels.items():
            panel.set_class(name == active, "-active")
        self._arrange_panels()

    @on(RankChosen)
    def _rank_chosen(self, event: RankChosen) -> None:
        self._choose(event.rank)
        if event.opened:
            self.action_panel(HOME_PANEL)

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
            return self.flash(with_keys(panel.row.empty, self.app.keys))
        self._awaits_run = False
        self.active = name
        if panel.main.focusable:
            panel.main.focus()
        else:  # it was hidden, and can take the focus only once it is displayed
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
            return self.flash(f"no rank {answer}: there are ranks 0 to {last}", "error")
        self._choose(int(answer))

    def action_step_run(self, step: int) -> None:
        pool, run = self.pool, self.run
        if pool is None or run is None:
            return
        ids = list(pool.runs)
        place = min(max(0, ids.index(run.id) + step), len(ids) - 1)
        # The newest one is not pinned, so that the next run shows when it opens.
        self.run_id = ids[place] if place < len(ids) - 1 else None
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

    # What is shown

    def action_zoom(self) -> None:
        self.toggle_class("-zoom")
        self.call_after_refresh(self._grid.lay_out)

    def action_grow(self, steps: int) -> None:
        self._grid.grow(self.panels[self.active], steps)

    def action_even(self) -> None:
        self._grid.move_borders(BorderOffsets())

    def action_copy(self) -> None:
        if selected := self.get_selected_text():
            self.app.copy(selected, "selection")
        elif taken := self.panels[self.active].clipboard_text() or self.panels[HOME_PANEL].clipboard_text():
            self.app.copy(*taken)

    @work(exclusive=True, group="save")
    async def action_save(self) -> None:
        pool, run, chosen = self.pool, self.run, self._chosen
        if pool is None:
            return
        stem = pool.name if run is None else f"{pool.name}-{run.id}"
        files, remarks = dict[str, Iterable[str]](), ""
        for panel in self.panels.values():
            kept = await panel.exported_files(run, chosen)
            files |= {f"{stem}-{end}": text for end, text in kept.files.items()}
            remarks += kept.remark
        await self.save_files(files, remarks)

    # Acting on the run and the pool

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "down":
            return self._view is None or not self._view.is_over
        if action == "launch_here":
            return self._view is None or self._view.is_live
        return True

    def action_fetch(self) -> None:
        pool, run, session = self.pool, self.run, self.app.session
        if pool is None or run is None or session is None:
            return self.flash("no run whose files could be fetched")
        self.flash(f"fetching the files of run {run.id}")
        # The app's worker and not this screen's: what is under way comes although the screen is left.
        self.app.run_worker(self._fetch(session, pool.key, run.id), name="fetch", exclusive=False)

    async def _fetch(self, session: SessionInterface, pool: str, run: str) -> None:
        from skyward_tui.file_export import fetch_summary

        with flash_errors(self.app, f"run {run}: "):
            said, good = fetch_summary(await wait_shielded(session.fetch_files(pool, run)))
            self.app.flash(f"run {run}: {said}", "done" if good else "error")

    def action_errors(self) -> None:
        run = self.run
        if run is None or not any(outcome.kind != "returned" for outcome in run.outcomes()):
            return self.flash("no rank has failed")
        self.app.show_errors(run, self._go_to_rank)

    def _go_to_rank(self, rank: int | None) -> None:
        if rank is not None:
            self._choose(rank)
            self.action_panel(HOME_PANEL)

    def action_stacks(self) -> None:
        pool, run = self.pool, self.run
        if pool is None or not pool.is_live:
            return self.flash("there are no ranks any more whose stacks could be taken")
        self.app.show_stacks(pool.key, run.id if run is not None else "", self._go_to_rank)

    def action_debug(self) -> None:
        pool = self.pool
        waiting = [] if pool is None else find_paused(pool)
        if pool is None or not waiting:
            return self.flash("no rank waits at a breakpoint")
        rank = self.rank if self.rank in waiting else waiting[0]
        self._run_in_terminal("debug", f"{pool.name}:{rank}")

    def action_shell(self) -> None:
        pool = self.pool
        if pool is None or not pool.is_live:
            return self.flash("the pool is not up any more: there is no node to log in to")
        self._run_in_terminal("ssh", pool.name, str(pool.node_of(self.rank or 0)))

    def action_dashboard(self) -> None:
        from skyward_tui.dialogs.pickers import open_dashboard

        self.run_worker(open_dashboard(self.app, self.pool), group="pages", exclusive=True)

    @work(group="terminal", exclusive=True)
    async def _run_in_terminal(self, *words: str) -> None:
        """Have a command of ours in place of the app, until it ends."""
        from skyward_tui.ui.suspend_for_programs import SuspendNotSupported, own_command, run_in_terminal

        command = own_command(*words)
        try:
            await run_in_terminal(self.app, *command)
        except SuspendNotSupported:
            self.flash(f"this terminal cannot be given away: skyward-tui {' '.join(words)}", "error")
        except OSError as error:
            self.flash(f"skyward-tui {words[0]} cannot be started: {error}", "error")

    @work(group="cancel")
    async def action_cancel(self) -> None:
        from skyward_tui.dialogs.dialog import ChoiceScreen

        run, pool = self.run, self.pool
        if pool is not None and (other := self.panels[self.active].run_to_cancel):
            run = pool.runs.get(other)
        if run is None:
            return self.flash("no run to cancel")
        if run.state != "running":
            return self.flash(f"run {run.id} has ended ({run.state}): there is nothing to cancel")
        waits = pool is not None and any(each.run == run.id for each in pool.waiting)
        what = "It waits for nodes, and is not begun" if waits else "Its ranks are stopped"
        more = "".join(f"{said}. " for panel in self.panels.values() if (said := panel.cancel_side_effects(run)))
        text = f"Cancel {run.function} ({run.id})? {more}{what}; the pool stays up."
        choices = [("keep", "Let it go on", False), ("cancel-run", "Cancel the run", True)]
        question = ChoiceScreen("Cancel the run?", text, choices, escape="keep")
        if await self.app.push_screen_wait(question) == "cancel-run" and self.app.session is not None:
            with flash_errors(self.app):
                await wait_shielded(self.app.session.cancel(self.key, run.id))
                if run.state == "running":
                    self.flash(f"run {run.id} is being cancelled: its ranks are told to stop")
                elif run.state == "cancelled":
                    self.flash(f"run {run.id} is cancelled", "done")
                else:
                    self.flash(f"run {run.id} had ended ({run.state}) before it could be cancelled")

    def action_down(self) -> None:
        from skyward_tui.dialogs.confirmations import TeardownScreen

        self.app.push_screen(TeardownScreen([self.key]))

    def action_launch_here(self) -> None:
        self.app.show_launch("" if self._view is None else self._view.key)

    @work(group="again")
    async def action_launch_again(self) -> None:
        from skyward_core.client.launch.launch_records import LaunchRecord
        from skyward_tui.launch_form.form import form_from_request

        run, session = self.run, self.app.session
        if run is None or session is None:
            return self.flash("no run that could be launched again")
        with flash_errors(self.app):
            found = await wait_shielded(session.load_launch(run.id))
            if isinstance(found, LaunchRecord):
                form = form_from_request(found.absolute_request())
            else:
                from skyward_tui.launch_form.job_form import form_from_shell

                form = form_from_shell(found, run.id)
            live = self._view is not None and self._view.is_live
            self.app.show_launch(self.key if live else "", form)
            if found.joined and not live:
                self.app.flash("its pool was made by another launch, and is over: say what the new one is like")

    def action_back(self) -> None:
        """One thing at a time: what is open in a panel, zoom, then the screen."""
        if any(panel.close_one() for panel in self.panels.values()):
            return
        if self.has_class("-zoom"):
            self.remove_class("-zoom")
            self.call_after_refresh(self._grid.lay_out)
        else:
            self.action_leave()

    def action_leave(self) -> None:
        self.app.save_screen_state(self.SCOPE, self.saved_state())
        self.leave()


def _delegate_to_panel(row: str, call: str) -> Callable[..., object]:
    """An action of the screen that a panel does, wherever the focus is."""

    def action(screen: RunScreen, *arguments: object) -> object:
        return getattr(screen.panels[row], call)(*arguments)

    return action


for _row in PANELS:
    for _call in {f"action_{each.call.partition('(')[0]}" for each in actions_by_id(*_row.actions)}:
        setattr(RunScreen, _call, _delegate_to_panel(_row.id, _call))
