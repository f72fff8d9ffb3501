"""A pool and one of its runs: ranks, log, nodes, results, numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.reactive import var
from textual.widget import Widget

from skyward_core.front.history import StoredLines
from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.views.views import PoolView, RunView

from ..actions import Action, bindings
from ..app_face import settled
from ..hints import detail_of, words_of
from ..styles import beside
from ..theme import look
from ..widgets.chrome import Crumbs, Panel
from ..widgets.log_pane import Files
from ..widgets.log_panel import LogPanel
from ..widgets.numbers import NumbersPane
from ..widgets.phase_board import PhaseBoard
from ..widgets.rank_panel import RankPanel
from ..widgets.rank_state import FAILURES, link_note, nothing_yet, rank_states
from ..widgets.results import ResultsPane
from ..words import count, one_line
from .base import BaseScreen, newest_run, pool_status

PANELS = {
    "ranks": "1 ranks", "log": "2 log", "phases": "3 nodes", "results": "4 results", "numbers": "5 numbers"
}  # fmt: skip


class RunScreen(BaseScreen[None]):
    """Watch a pool. Without a run named it shows the newest one, and moves on to the next when that opens.

    Args:
        pool: key of the pool.
        run: id of a run of it.
    """

    SCOPE = "run"
    BINDINGS = bindings("run")
    DEFAULT_CSS = beside(__file__)

    rank: var[int] = var(0, init=False)
    merged: var[bool] = var(False, init=False)
    active: var[str] = var("log", init=False)

    def __init__(self, pool: str, run: str | None = None) -> None:
        super().__init__()
        self.key = pool
        self.run_id = run
        self._view: PoolView | None = None
        self._awaits_run = False
        self._told = ""  # the failed run whose root cause was flashed
        self._ranks_state: object = None

    def body(self) -> ComposeResult:
        strip = RankPanel(id="strip")
        strip.can_focus = False
        yield strip
        with Container(id="grid"):
            for name, content in (
                ("ranks", [RankPanel(id="ranks")]),
                ("log", []),
                ("phases", [PhaseBoard(id="phases")]),
                ("numbers", [NumbersPane(id="numbers")]),
                ("results", [ResultsPane(id="results")]),
            ):
                panel: Panel = (
                    LogPanel(id="panel-log") if name == "log" else Panel(*content, id=f"panel-{name}")
                )
                panel.add_class("panel")
                panel.set_class(name == self.active, "-active")
                panel.border_title = PANELS[name]
                yield panel

    def on_mount(self) -> None:
        self.log_panel.pane.focus()
        self._share_place()
        self._awaits_run = self.pool is not None and self.pool.state == "starting" and self.run is None
        if self._awaits_run:
            self.active = "phases"
        self.pulse(self.app.clock())
        if self.pool is not None and self.pool.is_over:
            self.run_worker(self._recall(), group="recall")

    async def _recall(self) -> None:
        """Have a pool that is over read from what was kept of it; :attr:`pool` finds it."""
        if self.app.session is None:
            return
        try:
            await settled(self.app.session.recall(self.key))
        except (SkywardError, OSError) as error:
            self.flash(f"what was kept of this pool cannot be read: {words_of(error)}", "error")

    # What it looks at

    @property
    def log_panel(self) -> LogPanel:
        return self.query_one(LogPanel)

    @property
    def pool(self) -> PoolView | None:
        """The view of the pool; the last one known once the session has dropped it."""
        self._view = self.app.find_pool(self.key) or self._view
        return self._view

    @property
    def run(self) -> RunView | None:
        pool = self.pool
        if pool is None:
            return None
        return pool.runs.get(self.run_id) if self.run_id else newest_run(pool)

    @property
    def context(self) -> str:
        return "run.prompt" if self.focused is self.log_panel.prompt else f"run.{self.active}"

    def is_useful(self, action: Action) -> bool:
        run = self.run
        if action.id == "run.cancel":
            return run is not None and run.state == "running"
        if action.id == "run.back":
            return self.context == "run.prompt"
        if action.id == "run.errors":
            return run is not None and any(run.counts.get(kind) for kind in FAILURES)
        return True

    def pulse(self, now: float) -> None:
        pool = self.pool
        if pool is None:
            self.query_one(Crumbs).show(
                ["pools", self.key.partition(".")[0]], [Content("no such pool (any more)")]
            )
            return super().pulse(now)
        run = self.run
        name = run.function if run else "no run yet"
        self.query_one(Crumbs).show(["pools", pool.name, name], pool_status(pool, run, now))
        self._update_ranks(pool, run, now)
        self.query_one(PhaseBoard).update(pool, now)
        self._update_results(run)
        self._update_numbers(pool, run)
        self._update_log(pool, run)
        if self._awaits_run and run is not None:
            # What came up is watched first, then what it prints; the focus was on the log all along.
            self._awaits_run = False
            self.active = "log"
        return super().pulse(now)

    def _update_ranks(self, pool: PoolView, run: RunView | None, now: float) -> None:
        # What a rank printed last shows in its card: once a second is enough to read it.
        state = (pool.version, run and run.version, int(now))
        if state == self._ranks_state:
            return
        self._ranks_state = state
        states = rank_states(pool, run, now)
        for panel in self.query(RankPanel):
            panel.update(states)
        tally = self.query_one("#ranks", RankPanel).tally()
        self.query_one("#panel-ranks", Panel).retitle(Content.assemble("1 ranks ", tally))

    def _update_results(self, run: RunView | None) -> None:
        if self.query_one(ResultsPane).update(run) and run is not None:
            failed = sum(run.counts.get(kind, 0) for kind in FAILURES)
            parts: list[tuple[str, str]] = [(f"4 results  {run.ended:,}/{run.total:,}", "")]
            if failed:
                parts.append((f"  ✗ {failed}, e shows why", "$text-error"))
            self.query_one("#panel-results", Panel).retitle(Content.assemble(*parts))
            if run.root_cause is not None and self._told != run.id:
                self._told = run.id
                cause = run.root_cause
                said = f"{cause.type}: {one_line(cause.message)}"
                self.flash(f"rank {cause.rank} {cause.outcome}, {said} (e shows all)", "error")

    def _update_numbers(self, pool: PoolView, run: RunView | None) -> None:
        pane = self.query_one(NumbersPane)
        there = run is not None and pane.update(pool.metrics, run.id, None if self.merged else self.rank)
        if there != self.has_class("-numbers"):
            self.set_class(there, "-numbers")
            self._share_place()
        if there:
            self.query_one("#panel-numbers", Panel).retitle(Content(f"5 numbers  {pane.subject}"))
        elif self.active == "numbers":
            self.active = "log"

    def _share_place(self) -> None:
        """Where there is one place for numbers and nodes, the nodes have it while they are looked at."""
        there = self.has_class("-numbers")
        numbers_spare = there and self.active == "phases"
        self.query_one("#panel-numbers").set_class(not there, "-away").set_class(numbers_spare, "-spare")
        self.query_one("#panel-phases").set_class(there and not numbers_spare, "-spare")

    def _update_log(self, pool: PoolView, run: RunView | None) -> None:
        panel = self.log_panel
        self.rank = min(self.rank, max(0, pool.world_size - 1))
        book = pool.logs if run is None else pool.logs.of(run.id)
        ring = book.merged if self.merged else book.rank(self.rank)
        panel.pane.gap_hint = "[ and ] show each rank from its first line, S saves all" if self.merged else ""
        panel.pane.show(ring, merged=self.merged, files=None if run is None else self._files_of(run))
        panel.pane.pump()
        subject = "2 log  all ranks"
        if not self.merged:
            node = pool.nodes[self.rank // pool.ranks_per_node] if pool.nodes else None
            subject = f"2 log  rank {self.rank}"
            if node is not None and (note := link_note(node)):
                subject += f"  ! {note}"
        if not pool.is_live:
            subject += f"  pool {look(pool.state).word}"
        panel.subject = subject
        panel.describe()
        states = self.query_one("#ranks", RankPanel).states
        chosen = states if self.merged else states[self.rank : self.rank + 1]
        waiting = (
            nothing_yet(chosen, run)
            if run
            else one_line(detail_of(pool)) or "no run yet: L launches one here"
        )
        panel.pane.empty_text = waiting

    def _files_of(self, run: RunView) -> Files | None:
        """What reads the rank's lines in that run from the files; all ranks merged are not in one."""
        session, rank = self.app.session, self.rank
        if session is None or self.merged:
            return None
        return lambda: StoredLines.of(session.run_logs(run.id), rank, whole=run.state != "running")

    # Choosing

    def watch_rank(self) -> None:
        for panel in self.query(RankPanel):
            panel.selected = self.rank

    def watch_active(self, active: str) -> None:
        for name in PANELS:
            self.query_one(f"#panel-{name}").set_class(name == active, "-active")
        self._share_place()

    @on(RankPanel.Selected)
    def _rank_selected(self, event: RankPanel.Selected) -> None:
        self.rank, self.merged = event.rank, False
        if event.opened:
            self.action_panel("log")
        self.pulse(self.app.clock())

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if self._awaits_run and event.widget is self.log_panel.pane:
            return
        for ancestor in event.widget.ancestors_with_self:
            if isinstance(ancestor, Panel) and ancestor.id:
                self.active = ancestor.id.removeprefix("panel-")

    def action_panel(self, name: str) -> None:
        if name == "numbers" and not self.has_class("-numbers"):
            return self.flash(
                "no numbers so far: ranks send them with sky.log(loss=...), or yield dicts of them"
            )
        self._awaits_run = False
        self.active = name
        widget: Widget = self.log_panel.pane if name == "log" else self.query_one(f"#{name}")
        # A panel that was hidden can take the focus only once it is displayed.
        self.call_after_refresh(widget.focus)
        return None

    def action_step_rank(self, step: int) -> None:
        pool = self.pool
        if pool is None or not pool.world_size:
            return
        if self.merged:
            self.merged = False
        else:
            self.rank = (self.rank + step) % pool.world_size
        self.pulse(self.app.clock())

    def action_ask_rank(self) -> None:
        from ..dialogs.ask import AskScreen

        pool = self.pool
        if pool is None or not pool.world_size:
            return
        last = pool.world_size - 1

        def go(answer: str | None) -> None:
            if answer is None:
                return
            if not answer.isdigit() or int(answer) > last:
                return self.flash(f"no rank {answer}: there are ranks 0 to {last}", "error")
            self.rank, self.merged = int(answer), False

        self.app.push_screen(AskScreen(f"Go to rank (0 to {last})"), go)

    def action_step_run(self, step: int) -> None:
        pool, run = self.pool, self.run
        if pool is None or run is None:
            return
        ids = list(pool.runs)
        place = min(max(0, ids.index(run.id) + step), len(ids) - 1)
        # The newest one is not pinned, so that the next run shows when it opens.
        self.run_id = ids[place] if place < len(ids) - 1 else None
        self.flash(f"run {place + 1} of {len(ids)}")
        self.pulse(self.app.clock())

    def action_merge(self) -> None:
        self.merged = not self.merged
        self.pulse(self.app.clock())

    # The log

    def action_find(self) -> None:
        self._ask("find")

    def action_filter(self) -> None:
        self._ask("filter")

    def _ask(self, what: str) -> None:
        self.active = "log"
        self.call_after_refresh(self.log_panel.ask, what)

    def action_next_hit(self, step: int) -> None:
        pane = self.log_panel.pane
        if pane.window.search is None:
            return self.flash("nothing searched yet: / finds")
        if not pane.hit_count:
            return self.flash("no line matches", "error")
        return pane.action_next_hit() if step > 0 else pane.action_previous_hit()

    def action_follow(self) -> None:
        self.log_panel.pane.action_follow()

    def action_pause(self) -> None:
        self.log_panel.pane.action_toggle_pause()

    def action_wrap(self) -> None:
        self.log_panel.pane.action_wrap()

    def action_times(self) -> None:
        pane = self.log_panel.pane
        pane.times = not pane.times

    def action_zoom(self) -> None:
        self.toggle_class("-zoom")

    def action_copy(self) -> None:
        if selected := self.get_selected_text():
            self.app.copy(selected, "selection")
        elif self.active == "results" and self.run is not None:
            from ..saving import results_text

            self.app.copy(results_text(self.run), "results")
        else:
            self.app.copy(self.log_panel.pane.visible_text(), "log lines")

    def action_save(self) -> None:
        self.run_worker(self._save(), exclusive=True, group="save")

    async def _save(self) -> None:
        from ..saving import log_lines, results_csv, results_json, save

        pool, run = self.pool, self.run
        if pool is None:
            return
        stem = pool.name if run is None else f"{pool.name}-{run.id}"
        ring = self.log_panel.pane.window.ring
        lines: Iterable[str] = (f"{line}\n" for line in ring.lines(0, ring.end))
        held = f" (the last {count(ring.end - ring.first, 'line')})" if ring.first else ""
        if run is not None and self.app.session is not None:
            with suppress(UsageError):  # the ledger has not heard of it yet; then the ring has it all
                found = await asyncio.to_thread(self.app.session.run_logs, run.id)
                lines, held = log_lines(found, None if self.merged else self.rank), ""
        wanted: dict[str, Iterable[str]] = {
            f"{stem}-{'all' if self.merged else f'r{self.rank:03d}'}.log": lines
        }
        if run is not None:
            wanted |= {f"{stem}-results.json": [results_json(run)], f"{stem}-results.csv": [results_csv(run)]}
        try:
            files = [await asyncio.to_thread(save, Path(name), text) for name, text in wanted.items()]
        except OSError as error:
            return self.flash(f"could not save: {error}", "error")
        self.flash(f"saved in {Path.cwd()}: {', '.join(map(str, files))}{held}", "done")

    # Acting on the run and the pool

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "down":
            return self._view is None or not self._view.is_over
        if action == "launch_here":
            return self._view is None or self._view.is_live
        return True

    def action_errors(self) -> None:
        run = self.run
        if run is None or not any(outcome.kind != "returned" for outcome in run.outcomes()):
            return self.flash("no rank has failed")

        def go(rank: int | None) -> None:
            if rank is not None:
                self.rank, self.merged = rank, False
                self.action_panel("log")

        self.app.show_errors(run, go)
        return None

    def action_cancel(self) -> None:
        from ..dialogs.ask import ChoiceScreen

        run = self.run
        if run is None:
            return self.flash("no run to cancel")
        if run.state != "running":
            return self.flash(f"run {run.id} has ended ({run.state}): there is nothing to cancel")

        def go(choice: str | None) -> None:
            if choice == "cancel-run":
                self.run_worker(self._cancel(run), group="cancel")

        text = f"Cancel {run.function} ({run.id})? Its ranks are stopped; the pool stays up."
        choices = [("keep", "Let it go on", False), ("cancel-run", "Cancel the run", True)]
        self.app.push_screen(ChoiceScreen("Cancel the run?", text, choices, escape="keep"), go)
        return None

    async def _cancel(self, run: RunView) -> None:
        if self.app.session is None:
            return
        try:
            await settled(self.app.session.cancel(self.key, run.id))
        except SkywardError as error:
            return self.flash(words_of(error), "error")
        if run.state == "running":
            self.flash(f"run {run.id} is being cancelled: its ranks are told to stop")
        elif run.state == "cancelled":
            self.flash(f"run {run.id} is cancelled", "done")
        else:
            self.flash(f"run {run.id} had ended ({run.state}) before it could be cancelled")

    def action_down(self) -> None:
        from ..dialogs.teardown import TeardownScreen

        self.app.push_screen(TeardownScreen([self.key]))

    def action_launch_here(self) -> None:
        self.app.show_launch("" if self._view is None else self._view.name)

    def action_back(self) -> None:
        """One thing at a time: prompt, search, filter, zoom, then the screen."""
        if self.log_panel.dismiss_one():
            self.log_panel.describe()
        elif self.has_class("-zoom"):
            self.remove_class("-zoom")
        else:
            self.action_leave()

    def action_leave(self) -> None:
        self.app.pop_screen()
