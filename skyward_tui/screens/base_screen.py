"""Base classes of all screens, the header's text about a pool, and the entries of the command palette."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual._compositor import ChopsUpdate, Compositor
from textual.app import ComposeResult, SystemCommand
from textual.geometry import Region
from textual.widgets import Input

from skyward_core.util.safe_file_access import current_folder
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.dialogs.basic_dialogs import DismissOnceScreen
from skyward_tui.ui.actions import GLOBAL_HINTS, HINTS, Action, actions_by_id, actions_in, with_partner
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.ui.time_refresh_rules import idle_token
from skyward_tui.widgets.screen_frame_and_replay_line import (
    FLASH_SECONDS,
    Breadcrumbs,
    Hint,
    HintBar,
    MessageLine,
    ReplayLine,
    TextLine,
    TooSmall,
)
from skyward_tui.widgets.virtual_list import CursorList

if TYPE_CHECKING:
    from textual.screen import Screen
    from textual.strip import Strip

    from skyward_tui.app import SkywardApp
    from skyward_tui.ui.saved_state import ScreenState


Result = TypeVar("Result")
Rows = TypeVar("Rows", bound=CursorList[Any])

# keys that a focused text field handles itself, so that hints leave them out while the user types
_EDITING = ("enter", "space", "backspace", "home", "end")


class BaseScreen(DismissOnceScreen[Result]):
    """Screen with breadcrumbs and hints. While the screen is on top, the app calls :meth:`tick` several times a
    second."""

    SCOPE: ClassVar[str] = ""
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self) -> None:
        super().__init__()
        self._compositor = CroppedCompositor()
        self._replay_line: ReplayLine | None = None
        self._hint_bar = HintBar()
        # created here, because messages may arrive before the screen has composed its widgets
        self._message = MessageLine()

    def compose(self) -> ComposeResult:
        yield Breadcrumbs("replay" if self.app.REPLAYS else "read-only" if self.app.read_only else "")
        yield from self.body()
        if self.app.REPLAYS:
            self._replay_line = ReplayLine()
            yield self._replay_line
        self._message.set_class(self.app.REPLAYS, "-replay")
        yield self._message
        yield self._hint_bar
        yield TooSmall()

    def saved_state(self) -> ScreenState:
        """Return the display options to save, with which the next screen of this type starts."""
        return {}

    @property
    def reopen_state(self) -> ScreenState:
        """State from which the next start of the app reopens the screen; empty if the screen is not reopened."""
        return {}

    def body(self) -> ComposeResult:
        raise NotImplementedError

    def on_idle(self) -> None:
        """Repaint immediately after a key, as soon as all messages caused by the key are handled."""
        is_dirty = self._dirty_widgets or self._layout_required or self._repaint_required
        if is_dirty and self.is_current and not self.app._batch_count and self.app.immediate_repaint.consume_paint():
            self._on_timer_update()

    def action_back(self) -> None:
        self.dismiss()

    @property
    def can_leave(self) -> bool:
        """Whether the user may leave the screen now."""
        return True

    def action_go_back(self, crumbs: int) -> None:
        """Return to the screen of a breadcrumb. If that screen is closed, return to the nearest open screen below it.

        Args:
            crumbs: Number of breadcrumbs up to and including the clicked one.
        """
        clicked = self.query_one(Breadcrumbs).trail[:crumbs]
        below = [screen for screen in reversed(self.app.screen_stack[:-1]) if isinstance(screen, BaseScreen)]
        trails = [(screen, screen.query_one(Breadcrumbs).trail) for screen in below]
        exact = [screen for screen, trail in trails if trail == clicked]
        deeper = [screen for screen, trail in trails if trail[:crumbs] == clicked]
        target = next(iter(exact or deeper), None)
        while target is not None and (top := self.app.screen) is not target:
            if not isinstance(top, BaseScreen) or not top.can_leave:
                return
            if state := top.saved_state():
                self.app.save_screen_state(top.SCOPE, state)
            self.app.pop_screen()

    def refresh_token(self, now: float) -> object:
        """Return a value that changes whenever the screen must be updated (:meth:`tick`) for a reason other than events
        of pools. Called very often.
        """
        replay = self.app.replay
        state = None if replay is None else replay.state()
        of_replay = state and (int(state.now), state.playing, state.speed, state.behind)
        return self._message.has_message(self.app.wall_time()), of_replay, self.time_token(now)

    def time_token(self, now: float) -> object:
        """Return a value that changes whenever the content has changed without an event. Must be cheap to compute.

        Some results arrive without an event. A screen that waits for such a result includes the result in the value.
        """
        return idle_token(now)

    def tick(self, now: float) -> None:
        """Update the screen to the current state of pools and runs."""
        self._show_hints()
        if self._replay_line is not None and self.app.replay is not None:
            self._replay_line.show(self.app.replay, self.app.keys)

    @property
    def context(self) -> str:
        """Key in :data:`skyward_tui.ui.actions.HINTS` of the focused part of the screen."""
        return self.SCOPE

    @property
    def first_hints(self) -> Sequence[str]:
        """IDs of the actions that the hint line begins with."""
        return ()

    def _show_hints(self) -> None:
        preferred = self.preferred_actions
        others = [action for action in actions_in(self.SCOPE) if action.label and action not in preferred]
        last = [each for each in actions_by_id(*GLOBAL_HINTS) if each.scope in (self.SCOPE, "app")]
        last = [action for action in last if action.id not in self.first_hints]
        hints = [action for action in (*preferred, *others) if action not in last]
        if self.app.read_only:
            hints, last = ([action for action in each if action.is_read_only] for each in (hints, last))
        self._message.hide_old(self.app.wall_time())
        self._hint_bar.show(self._hints_for(hints), self._hints_for(last))

    @property
    def preferred_actions(self) -> list[Action]:
        """Actions that come first in the hint line and in the help."""
        actions = dict.fromkeys(actions_by_id(*self.first_hints, *HINTS.get(self.context, ())))
        return [each for each in actions if self.can(each.call.partition("(")[0]) and self.is_hint_worthy(each)]

    def can(self, action: str) -> bool:
        """Check whether a Textual action is available now."""
        return self.check_action(action, ()) is True

    def is_hint_worthy(self, action: Action) -> bool:
        """Check whether an available action deserves a hint."""
        return True

    def hint_label(self, action: Action) -> str:
        """Return the label of an action in the hint line."""
        return action.label

    def _hints_for(self, actions: Iterable[Action]) -> list[Hint]:
        """Return the keys and labels of available actions. Keys that the focused field would handle are left out."""
        typing = isinstance(self.focused, Input)
        hints = []
        for action in actions:
            if not self.can(action.call.partition("(")[0]) or not self.is_hint_worthy(action):
                continue
            keys = [
                key for key in action.shown_keys(self.app.keys) if not typing or (len(key) > 1 and key not in _EDITING)
            ]
            if keys:
                hints.append((with_partner(keys[0], action, self.app.keys), self.hint_label(action)))
        return hints

    def flash(self, text: str, kind: str = "info", holds: Callable[[], bool] = lambda: True) -> None:
        """Show a message above the hint line, with control characters replaced.

        Args:
            kind: "info", "done", "warning" or "error".
            holds: Whether the state that the message is about still holds; otherwise, the message is hidden.
        """
        self._message.flash(sanitize_line(text), kind, self.app.wall_time() + FLASH_SECONDS, holds)

    def command_fields(self) -> Mapping[str, str]:
        """Return values for the placeholders in the user's commands, by name; "" for a value without a selection."""
        return {}

    def show_launched(self, pool: str, run: str) -> None:
        """Show a run that was just launched, if this screen shows the pool of the run."""

    async def save_files(self, files: Mapping[str, Iterable[str]], remark: str = "") -> None:
        """Write either all files or none into the current folder. Show the file names, or the error."""
        from skyward_tui.file_export import brace_names, save_all, save_error_text

        folder = current_folder()
        try:
            paths = await asyncio.to_thread(save_all, Path(), files)
        except OSError as error:
            return self.flash(save_error_text(error, folder), "error")
        self.flash(f"saved {brace_names(paths)} in {folder}{remark}", "done")


class ListScreen(BaseScreen[None], Generic[Rows]):
    """Base class of screens that consist of one list, which has the focus.

    Attributes:
        listed: The list.
        WORDS: Placeholder of the filter field; "" without a filter.
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
        """Close the filter field and show all rows. Return whether the field was open."""
        if finding := self.has_class("-finding"):
            self.remove_class("-finding")
            self.query_one("#words", Input).value = ""
            self.listed.focus()
        return finding

    def action_mark(self) -> None:
        self._change_list(self.listed.toggle_mark)

    def action_sort(self) -> None:
        self._change_list(partial(self.listed.action_sideways, 1))

    def action_turn(self) -> None:
        self._change_list(self.listed.reverse_sort)

    def _change_list(self, change: Callable[[], None]) -> None:
        change()
        self.tick(self.app.clock())


def commands(app: SkywardApp, screen: Screen[Any]) -> Iterator[SystemCommand]:
    """Yield a palette entry for each action that the screen currently accepts."""
    scopes = (screen.SCOPE, "app") if isinstance(screen, BaseScreen) else ("app",)
    if app.REPLAYS:
        scopes = ("replay", *scopes)
    for action in (*actions_in(*scopes), *app.own_commands):
        if action.call == "app.command_palette":
            continue
        # keys are part of the text, because a help text would occupy a row of its own
        text = f"{action.help}  {' '.join(action.shown_keys(app.keys))}"
        yield SystemCommand(text, "", partial(app.run_action, action.call, screen))


class CroppedCompositor(Compositor):
    """Compositor that renders only the rows of widgets that are repainted and not covered by a widget in front.

    Textual's compositor renders all widgets of each container that touches a repainted region, which doubles the CPU
    time of a typed character.
    """

    _repainted: Sequence[Region] = ()  # regions of the partial update that is being rendered; empty otherwise

    def render_partial_update(self) -> ChopsUpdate | None:
        self._repainted = list(self._dirty_regions)
        update = super().render_partial_update()
        self._repainted = ()
        return update

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        crop = crop or self.size.region
        in_front: list[Region] = []
        for widget, (region, clip) in self.visible_widgets.items():
            visible = region.intersection(clip)
            if not visible.overlaps(crop):
                continue
            parts = [part for each in self._repainted or [crop] if (part := visible.intersection(each))]
            if shown := [part for part in parts if not any(front.contains_region(part) for front in in_front)]:
                _, top, _, height = Region.from_union(shown)
                rows = Region(visible.x, top, visible.width, height)
                yield region, rows, widget.render_lines(rows.translate(-region.offset))
            in_front.append(visible)
