"""What all screens share; the command palette."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import getters
from textual.app import ComposeResult, SystemCommand
from textual.content import Content
from textual.widgets import Input

from skyward_core.views.rank_metrics import numbers_line
from skyward_tui.text.number_format import count, hourly, money, taken_back, time_left
from skyward_tui.ui.actions import ALWAYS, HINTS, Action, first_key, named, of
from skyward_tui.ui.app_interface import AppFace
from skyward_tui.ui.refresh_timer import at_rest
from skyward_tui.ui.style_sheets import beside
from skyward_tui.ui.themes import look
from skyward_tui.ui.type_ahead import LeftOnce
from skyward_tui.widgets.header_and_hints import FLASH_SECONDS, Crumbs, Hint, HintBar, TooSmall

if TYPE_CHECKING:
    from textual.screen import Screen

    from skyward_core.views.pool_view import PoolView, RunView
    from skyward_tui.ui.saved_state import KeptScreen
    from skyward_tui.widgets.replay_position import ReplayLine


Result = TypeVar("Result")

_EDITING = ("enter", "space", "backspace", "home", "end")  # keys that a field takes for itself
NUMBERS = 3  # of what the first rank logged, in the header


class BaseScreen(LeftOnce[Result]):
    """A screen with breadcrumbs and hints; the app calls :meth:`pulse` a few times a second while on top."""

    SCOPE: ClassVar[str] = ""
    DEFAULT_CSS = beside(__file__, "base")
    app = getters.app(AppFace)

    def __init__(self) -> None:
        super().__init__()
        self._replay_line: ReplayLine | None = None
        self._hint_bar = HintBar()  # what is said before the screen is there stands in it then

    def compose(self) -> ComposeResult:
        yield Crumbs("replay" if self.app.REPLAYS else "read-only" if self.app.read_only else "")
        yield from self.body()
        if self.app.REPLAYS:
            from skyward_tui.widgets.replay_position import ReplayLine

            self._replay_line = ReplayLine()
            yield self._replay_line
        yield self._hint_bar
        yield TooSmall()

    def kept(self) -> KeptScreen:
        """What of how it looks is kept for the next one of its kind."""
        return {}

    @property
    def place(self) -> KeptScreen:
        """What the next start needs to open it again where the app is left here; empty where it does not."""
        return {}

    def body(self) -> ComposeResult:
        raise NotImplementedError

    def on_idle(self) -> None:
        """All that was asked to be painted is known."""
        asked = self._dirty_widgets or self._layout_required or self._repaint_required
        if asked and self.is_current and not self.app._batch_count and self.app.at_once.take():
            self._on_timer_update()

    def on_resize(self) -> None:
        """What has the focus stays in sight."""
        if self.focused is not None:
            self.call_after_refresh(self.focused.scroll_visible, animate=False)

    @property
    def may_leave(self) -> bool:
        """Whether one may go elsewhere from here just now."""
        return True

    def on_crumbs_crumb_chosen(self, event: Crumbs.CrumbChosen) -> None:
        """Go back to the nearest screen that stands where the way leads, or is on it."""
        below = [screen for screen in reversed(self.app.screen_stack[:-1]) if isinstance(screen, BaseScreen)]
        trails = [screen.query_one(Crumbs).trail for screen in below]
        there = [at for at, trail in enumerate(trails) if trail == event.trail]
        near = [at for at, trail in enumerate(trails) if trail[: len(event.trail)] == event.trail]
        target = below[(there or near)[0]] if there or near else None
        while target is not None and (top := self.app.screen) is not target:
            if not isinstance(top, BaseScreen) or not top.may_leave:
                return
            if kept := top.kept():
                self.app.keep(top.SCOPE, kept)
            self.app.pop_screen()

    def beat(self, now: float) -> object:
        """Another value whenever the screen wants its pulse although no pool has news. Asked ten times a second."""
        replay = self.app.replay
        state = None if replay is None else replay.state()
        of_replay = state and (int(state.now), state.playing, state.speed, state.behind)
        return self._hint_bar.is_talking(self.app.own_time()), of_replay, self.shown_time(now)

    def shown_time(self, now: float) -> object:
        """Another value whenever time alone changes what is shown, or something that is awaited may have come of which
        nobody is told. It must cost nothing."""
        return at_rest(now)

    def pulse(self, now: float) -> None:
        """Show what has changed."""
        self._show_hints()
        if self._replay_line is not None and self.app.replay is not None:
            self._replay_line.show(self.app.replay, self.app.keys)

    @property
    def context(self) -> str:
        """What has the focus, as ``actions.HINTS`` calls it."""
        return self.SCOPE

    def _show_hints(self) -> None:
        wanted = list(named(*HINTS.get(self.context, ())))
        others = [action for action in of(self.SCOPE) if action.label and action not in wanted]
        last = [action for action in named(*ALWAYS) if action.scope in (self.SCOPE, "app")]
        hints = [action for action in (*wanted, *others) if action not in last]
        if self.app.read_only:
            hints, last = ([action for action in each if action.looks] for each in (hints, last))
        self._hint_bar.show(self._keys_of(hints), self._keys_of(last), self.app.own_time())

    def is_useful(self, action: Action) -> bool:
        """Whether an action that can be done is worth a hint now."""
        return True

    def _keys_of(self, actions: Iterable[Action]) -> list[Hint]:
        """Keys and labels of what can be done now; no key that would be typed into a field instead."""
        typing = isinstance(self.focused, Input)
        hints = []
        for action in actions:
            if self.check_action(action.call.partition("(")[0], ()) is not True or not self.is_useful(action):
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
        from skyward_core.util.terminal_safe_text import field  # late: the app is starting

        now = self.app.own_time()
        self._hint_bar.flash(field(text), kind, now + FLASH_SECONDS)
        if self._hint_bar.is_attached:
            self._hint_bar.show((), (), now)


def newest_run(pool: PoolView) -> RunView | None:
    """The run opened last."""
    runs = list(pool.runs.values())
    return runs[-1] if runs else None


def pool_status(pool: PoolView, run: RunView | None, now: float) -> list[Content]:
    """State of a run and of its pool, and the money: parts for the header, what matters most first."""
    parts: list[Content] = []
    if run is not None:
        mark = look(run.state)
        parts.append(
            Content.styled(f"{mark.glyph} {mark.word.upper()} {run.ended:,}/{run.total:,}", f"bold {mark.style}")
        )
    if going := [node for node in pool.nodes if node.is_taken_back and now < (node.notice_ends_at or now + 1)]:
        # Seconds count: before what may leave no room for it.
        said = taken_back(going[0], now).partition(" (")[0]
        more = f" +{len(going) - 1}" if going[1:] else ""
        parts.append(Content.styled(f"! n{going[0].index} {said}{more}", "$text-error"))
    if run is not None:
        for kind in ("raised", "exited", "lost"):
            if many := run.counts.get(kind):
                parts.append(Content.styled(f"{look(kind).glyph} {many} {kind}", look(kind).style))
        if ranks := pool.metrics.ranks(run.id):
            numbers = pool.metrics.latest(run.id, ranks[0])
            parts.append(Content(numbers_line(dict(list(numbers.items())[:NUMBERS]))))
    mark = look(pool.state)
    if cost := hourly(pool):
        if pool.price_hourly:
            cost += f" spent {money(pool.spent(now))}"
            cost += f" of {money(pool.budget)}" if pool.budget is not None else ""
            cost += f", {money(end)} by its end" if (end := pool.will_cost()) is not None else ""
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


def commands(app: AppFace, screen: Screen[Any]) -> Iterator[SystemCommand]:
    """Every action that the screen would take now, with its keys."""
    scopes = (screen.SCOPE, "app") if isinstance(screen, BaseScreen) else ("app",)
    if app.REPLAYS:
        scopes = ("replay", *scopes)
    for action in of(*scopes):
        if action.call == "app.command_palette":
            continue
        keys = " ".join(action.shown_keys(app.keys))
        call = partial(app.run_action, action.call, screen)
        yield SystemCommand(action.help, f"{keys}   {action.id}", call)
