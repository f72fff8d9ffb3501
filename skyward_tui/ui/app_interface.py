"""What screens and panels may ask of the app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual import events
from textual.app import App

if TYPE_CHECKING:
    from skyward_core.client.leftover_cleanup import LeftoverScan
    from skyward_core.client.replay_session import Playback
    from skyward_core.client.run_history import LineMatch
    from skyward_core.client.session_interface import SessionInterface
    from skyward_core.client.settings import UserSettings
    from skyward_core.views.notification_rules import Notification
    from skyward_core.views.pool_view import PoolView, RunView
    from skyward_tui.launch_form.form import Form
    from skyward_tui.ui.host_key_questions import HostKeyQuestions
    from skyward_tui.ui.saved_state import ScreenState


T = TypeVar("T")


async def wait_shielded(future: Future[T]) -> T:
    """Wait for a verb of the session. Not to wait any longer, as when the app quits, does not cancel it."""
    waiting = asyncio.wrap_future(future)
    # A shield that is left forgets what it shields: how that ends nobody would ask any more, and asyncio complains.
    waiting.add_done_callback(lambda over: over.cancelled() or over.exception())
    return await asyncio.shield(waiting)


class AppInterface(App[None]):
    """The app, as screens see it.

    Attributes:
        REPLAYS: whether a record is played in place of pools.
        clock: Unix time in seconds.
        read_only: whether it only looks, and changes nothing.
        session: the core; None until the ledger is read.
        session_error: why there is no session, where there is none to come.
        unlaunched: what was entered for the last pool, until that is up.
        keys: the person's own keys, by the action's id.
        own: what the person has set.
        host_keys: questions about unknown hosts.
        failures: how many runs have failed of late that nobody has dismissed.
        replay: that record; None until it is read.
        at_once: says when a screen is to paint without waiting for Textual's next turn.
        leftovers: what accounts were found to hold, when the app looked last; None before.
    """

    REPLAYS: ClassVar[bool] = False

    clock: Callable[[], float]
    read_only: bool
    session: SessionInterface | None
    session_error: str
    unlaunched: Form | None
    keys: Mapping[str, str]
    user_settings: UserSettings
    host_keys: HostKeyQuestions
    failures: int
    immediate_repaint: ImmediateRepaint
    leftovers: LeftoverScan | None
    replay: Playback | None

    def pools(self) -> list[PoolView]:
        """Every pool that is known of, in the order in which they are listed."""
        raise NotImplementedError

    def wall_time(self) -> float:
        """The time in which the person lives, which a record's is not; for what is shown for a while."""
        raise NotImplementedError

    def find_pool(self, key: str) -> PoolView | None:
        """The pool with that key."""
        raise NotImplementedError

    @property
    def has_motion(self) -> bool:
        """Whether what changes may stand out for a moment."""
        raise NotImplementedError

    def refresh_pools(self) -> object:
        """Look for pools that others made, and for those that are over; returns at once."""
        raise NotImplementedError

    def count_failures(self) -> object:
        """Count the failures that nobody has dismissed; returns at once."""
        raise NotImplementedError

    def scan_leftovers(self) -> object:
        """Say so where accounts hold what nobody needs any more; returns at once."""
        raise NotImplementedError

    def on_terminal_lost(self) -> None:
        """Have the app end, as there is no terminal any more; from any thread, and as often as one likes."""
        raise NotImplementedError

    def flash(self, text: str, kind: str = "info") -> None:
        """Show a message on whatever full screen is there: "info", "done" or "error"."""
        raise NotImplementedError

    def ask(self, question: str, offered: str, answered: Callable[[str | None], None]) -> None:
        """Ask for a line of text; what is ``offered`` stands there. None is the answer of who goes back."""
        raise NotImplementedError

    def show_differences(self, title: str, lines: Sequence[str]) -> None:
        """Show a table of what differs."""
        raise NotImplementedError

    def notify_user(self, told: Notification) -> None:
        """Call a person who looks elsewhere, in the ways that they have set."""
        raise NotImplementedError

    def copy(self, text: str, what: str) -> None:
        """Put text on the person's clipboard, and say so, or that it could not be done."""
        raise NotImplementedError

    def saved_screen_state(self, scope: str) -> ScreenState:
        """How a screen of that scope was left last, here or at an earlier start; empty where nobody knows."""
        raise NotImplementedError

    def save_screen_state(self, scope: str, screen: ScreenState) -> None:
        """Keep how a screen is left."""
        raise NotImplementedError

    # Other screens

    def show_pool(self, key: str) -> None:
        """Watch a pool, one step from the list of pools, whatever was open."""
        raise NotImplementedError

    def show_run(self, pool: str, run: str, found: LineMatch | None = None) -> None:
        """Look at a run, or with "" at a pool, by its key, on top of what is open; at a line that was found in its log
        first."""
        raise NotImplementedError

    def show_comparison(self, left: str, right: str) -> None:
        """Show two runs side by side, by their ids."""
        raise NotImplementedError

    def show_history(self, *, inbox: bool = False) -> None:
        """Show every past run, or the failures that nobody has dismissed."""
        raise NotImplementedError

    def show_launch(self, pool: str = "", form: Form | None = None) -> None:
        """Open the launch form, for a live pool, by its key, or, without one, for a new pool; filled in where ``form``
        says how."""
        raise NotImplementedError

    def show_leftovers(self) -> None:
        """Show what cloud accounts hold."""
        raise NotImplementedError

    def show_hosts(self) -> None:
        """Show groups of hosts, and who uses their GPUs."""
        raise NotImplementedError

    def show_settings(self) -> None:
        """Show what the person can set."""
        raise NotImplementedError

    def apply_settings(self, own: UserSettings) -> None:
        """Do as the person's settings say now, which have changed."""
        raise NotImplementedError

    def show_errors(self, run: RunView, chosen: Callable[[int | None], None]) -> None:
        """Show why a run failed; ``chosen`` hears of which rank the log is to be read, or None."""
        raise NotImplementedError

    def show_stacks(self, pool: str, run: str, chosen: Callable[[int | None], None]) -> None:
        """Show where the ranks of a pool are, by its key, in a run; ``chosen`` as above."""
        raise NotImplementedError


MIN_KEY_INTERVAL = 1 / 60  # between two keys of which both are painted for: pasted ones, or one that is held down
REPAINT_SECONDS = 0.1  # in which a key shows what it does, or waits like all else
PAINTS_PER_KEY = 2  # for one key: of what it did, and of what followed from that


class ImmediateRepaint:
    """Keeps when a key came, and how often was painted for it."""

    def __init__(self) -> None:
        self._last_key_at = 0.0
        self._paints_left = 0

    def on_input(self, event: events.Event) -> None:
        """Something has come from the terminal."""
        now = monotonic()
        if isinstance(event, events.Key) and now - self._last_key_at >= MIN_KEY_INTERVAL:
            self._last_key_at, self._paints_left = now, PAINTS_PER_KEY

    def consume_paint(self) -> bool:
        """Whether to paint now what there is to paint."""
        if self._paints_left and monotonic() - self._last_key_at < REPAINT_SECONDS:
            self._paints_left -= 1
            return True
        return False
