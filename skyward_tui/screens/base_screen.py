"""What all screens share; the command palette."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual.app import ComposeResult, SystemCommand
from textual.content import Content
from textual.widgets import Input

from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.rank_metrics import format_metrics
from skyward_tui.terminal_info import current_folder
from skyward_tui.text.number_and_time_format import count, hourly, money, preemption_text, time_left
from skyward_tui.ui.actions import GLOBAL_HINTS, HINTS, Action, actions_by_id, actions_in, first_key
from skyward_tui.ui.refresh_and_repaint import idle_token
from skyward_tui.ui.themes import read_style_sheet, state_style
from skyward_tui.ui.type_ahead import DismissOnceScreen
from skyward_tui.widgets.header_and_hints import FLASH_SECONDS, Breadcrumbs, Hint, HintBar, TextLine, TooSmall
from skyward_tui.widgets.virtual_list import CursorList

if TYPE_CHECKING:
    from textual.screen import Screen

    from skyward_core.views.pool_view import PoolView, RunView
    from skyward_tui.app import SkywardApp
    from skyward_tui.ui.saved_state import ScreenState
    from skyward_tui.widgets.replay_position import ReplayLine


Result = TypeVar("Result")
Rows = TypeVar("Rows", bound=CursorList[Any])

_EDITING = ("enter", "space", "backspace", "home", "end")  # keys that a field takes for itself
NUMBERS = 3  # of what the first rank logged, in the header


class BaseScreen(DismissOnceScreen[Result]):
    """A screen with breadcrumbs and hints; the app calls :meth:`tick` a few times a second while on top."""

    SCOPE: ClassVar[str] = ""
    DEFAULT_CSS = read_style_sheet(__file__, "base")

    def __init__(self) -> None:
        super().__init__()
        self._replay_line: ReplayLine | None = None
        self._hint_bar = HintBar()  # what is said before the screen is there stands in it then

    def compose(self) -> ComposeResult:
        yield Breadcrumbs("replay" if self.app.REPLAYS else "read-only" if self.app.read_only else "")
        yield from self.body()
        if self.app.REPLAYS:
            from skyward_tui.widgets.replay_position import ReplayLine

            self._replay_line = ReplayLine()
            yield self._replay_line
        yield self._hint_bar
        yield TooSmall()

    def saved_state(self) -> ScreenState:
        """What of how it looks is kept for the next one of its kind."""
        return {}

    @property
    def reopen_state(self) -> ScreenState:
        """What the next start needs to open it again where the app is left here; empty where it does not."""
        return {}

    def body(self) -> ComposeResult:
        raise NotImplementedError

    def on_idle(self) -> None:
        """All that was asked to be painted is known."""
        asked = self._dirty_widgets or self._layout_required or self._repaint_required
        if asked and self.is_current and not self.app._batch_count and self.app.immediate_repaint.consume_paint():
            self._on_timer_update()

    def on_resize(self) -> None:
        """What has the focus stays in sight."""
        if self.focused is not None:
            self.call_after_refresh(self.focused.scroll_visible, animate=False)

    def action_back(self) -> None:
        """Go back to the screen below."""
        self.dismiss()

    @property
    def can_leave(self) -> bool:
        """Whether one may go elsewhere from here just now."""
        return True

    def action_go_back(self, crumbs: int) -> None:
        """Go back to the nearest screen that stands where the way of so many crumbs leads, or is on it."""
        way = self.query_one(Breadcrumbs).trail[:crumbs]
        below = [screen for screen in reversed(self.app.screen_stack[:-1]) if isinstance(screen, BaseScreen)]
        trails = [screen.query_one(Breadcrumbs).trail for screen in below]
        there = [at for at, trail in enumerate(trails) if trail == way]
        near = [at for at, trail in enumerate(trails) if trail[:crumbs] == way]
        target = below[(there or near)[0]] if there or near else None
        while target is not None and (top := self.app.screen) is not target:
            if not isinstance(top, BaseScreen) or not top.can_leave:
                return
            if kept := top.saved_state():
                self.app.save_screen_state(top.SCOPE, kept)
            self.app.pop_screen()

    def refresh_token(self, now: float) -> object:
        """Another value whenever the screen wants its pulse although no pool has news. Asked ten times a second."""
        replay = self.app.replay
        state = None if replay is None else replay.state()
        of_replay = state and (int(state.now), state.playing, state.speed, state.behind)
        return self._hint_bar.has_message(self.app.wall_time()), of_replay, self.time_token(now)

    def time_token(self, now: float) -> object:
        """Another value whenever time alone changes what is shown, or something that is awaited may have come of which
        nobody is told. It must cost nothing."""
        return idle_token(now)

    def tick(self, now: float) -> None:
        """Show what has changed."""
        self._show_hints()
        if self._replay_line is not None and self.app.replay is not None:
            self._replay_line.show(self.app.replay, self.app.keys)

    @property
    def context(self) -> str:
        """What has the focus, as ``actions.HINTS`` calls it."""
        return self.SCOPE

    def _show_hints(self) -> None:
        wanted = list(actions_by_id(*HINTS.get(self.context, ())))
        others = [action for action in actions_in(self.SCOPE) if action.label and action not in wanted]
        last = [action for action in actions_by_id(*GLOBAL_HINTS) if action.scope in (self.SCOPE, "app")]
        hints = [action for action in (*wanted, *others) if action not in last]
        if self.app.read_only:
            hints, last = ([action for action in each if action.is_read_only] for each in (hints, last))
        self._hint_bar.show(self._hints_for(hints), self._hints_for(last), self.app.wall_time())

    def is_hint_worthy(self, action: Action) -> bool:
        """Whether an action that can be done is worth a hint now."""
        return True

    def _hints_for(self, actions: Iterable[Action]) -> list[Hint]:
        """Keys and labels of what can be done now; no key that would be typed into a field instead."""
        typing = isinstance(self.focused, Input)
        hints = []
        for action in actions:
            if self.check_action(action.call.partition("(")[0], ()) is not True or not self.is_hint_worthy(action):
                continue
            keys = [
                key for key in action.shown_keys(self.app.keys) if not typing or (len(key) > 1 and key not in _EDITING)
            ]
            if not keys:
                continue
            beside = f" {first_key(action.partner, self.app.keys)}" if action.partner else ""
            hints.append((keys[0] + beside, action.label))
        return hints

    def flash(self, text: str, kind: str = "info") -> None:
        """Show a message in the hint line, safe to show whatever is in it: "info", "done" or "error"."""
        now = self.app.wall_time()
        self._hint_bar.flash(sanitize_line(text), kind, now + FLASH_SECONDS)
        if self._hint_bar.is_attached:
            self._hint_bar.show((), (), now)

    async def save_files(self, files: Mapping[str, Iterable[str]], remark: str = "") -> None:
        """Write files into the current folder, all or none; show their names, or why they cannot be written."""
        from skyward_tui.file_export import brace_names, save_all, save_error_text

        folder = current_folder()
        try:
            paths = await asyncio.to_thread(save_all, Path(), files)
        except OSError as error:
            return self.flash(save_error_text(error, folder), "error")
        self.flash(f"saved {brace_names(paths)} in {folder}{remark}", "done")


class ListScreen(BaseScreen[None], Generic[Rows]):
    """A screen about the rows of one list, which has the focus.

    Attributes:
        listed: The list.
        WORDS: Placeholder of the line whose words filter the list; "" for none.
    """

    WORDS: ClassVar[str] = ""

    def __init__(self, listed: Rows) -> None:
        super().__init__()
        self.listed = listed

    def words_line(self) -> Input:
        return TextLine(id="words", compact=True, placeholder=self.WORDS)

    @property
    def context(self) -> str:
        return f"{self.SCOPE}.words" if self.WORDS and isinstance(self.focused, Input) else self.SCOPE

    def on_mount(self) -> None:
        self.listed.focus()
        self.tick(self.app.clock())

    def action_find(self) -> object:
        self.add_class("-finding")
        return self.query_one("#words", Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.listed.focus()
        self.set_class(bool(event.value.strip()), "-finding")

    def stop_finding(self) -> bool:
        """Close the line of words, and show all rows again; return whether it was open."""
        if finding := self.has_class("-finding"):
            self.remove_class("-finding")
            self.query_one("#words", Input).value = ""
            self.listed.focus()
        return finding

    def action_mark(self) -> None:
        self._change_list(self.listed.toggle_mark)

    def action_turn(self) -> None:
        self._change_list(self.listed.reverse_sort)

    def _change_list(self, change: Callable[[], None]) -> None:
        change()
        self.tick(self.app.clock())


def newest_run(pool: PoolView) -> RunView | None:
    """The run opened last."""
    return next(reversed(list(pool.runs.values())), None)


def pool_status(pool: PoolView, run: RunView | None, now: float) -> list[Content]:
    """State of a run and of its pool, and the money: parts for the header, what matters most first."""
    parts: list[Content] = []
    if run is not None:
        mark = state_style(run.state)
        parts.append(
            Content.styled(f"{mark.glyph} {mark.word.upper()} {run.ended:,}/{run.total:,}", f"bold {mark.style}")
        )
    if going := [node for node in pool.nodes if node.is_preempted and now < (node.notice_ends_at or now + 1)]:
        # Seconds count: before what may leave no room for it.
        said = preemption_text(going[0], now).partition(" (")[0]
        more = f" +{len(going) - 1}" if going[1:] else ""
        parts.append(Content.styled(f"! n{going[0].index} {said}{more}", "$text-error"))
    if run is not None:
        for kind in ("raised", "exited", "lost"):
            if many := run.counts.get(kind):
                parts.append(Content.styled(f"{state_style(kind).glyph} {many} {kind}", state_style(kind).style))
        if ranks := pool.metrics.ranks(run.id):
            numbers = pool.metrics.latest(run.id, ranks[0])
            parts.append(Content(format_metrics(dict(list(numbers.items())[:NUMBERS]))))
    mark = state_style(pool.state)
    if cost := hourly(pool):
        if pool.price_hourly:
            cost += f" spent {money(pool.spent(now))}"
            cost += f" of {money(pool.budget)}" if pool.budget is not None else ""
            cost += f", {money(end)} by its end" if (end := pool.planned_cost()) is not None else ""
        parts.append(Content.styled(cost, "$muted"))
    state = Content.styled(f"pool {mark.text}", mark.style)
    parts.append(state)
    parts.append(Content.styled(f"{pool.nodes_ready}/{count(pool.node_count, 'node')}", "$muted"))
    if (left := pool.lease_left(now)) is not None:
        parts.append(Content.styled(f"ends in {time_left(left)}", "$text-warning"))
    if pool.state not in ("up", "gone"):
        # A pool that is not as it should be matters more than its money.
        parts.insert(0, parts.pop(parts.index(state)))
    return parts


def commands(app: SkywardApp, screen: Screen[Any]) -> Iterator[SystemCommand]:
    """Every action that the screen would take now, with its keys."""
    scopes = (screen.SCOPE, "app") if isinstance(screen, BaseScreen) else ("app",)
    if app.REPLAYS:
        scopes = ("replay", *scopes)
    for action in actions_in(*scopes):
        if action.call == "app.command_palette":
            continue
        keys = " ".join(action.shown_keys(app.keys))
        call = partial(app.run_action, action.call, screen)
        yield SystemCommand(action.help, f"{keys}   {action.id}", call)
