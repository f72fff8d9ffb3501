"""The app's main class: keys, screens, polling of pools, appearance, and internal errors.

For a fast start, screens are imported when first shown, and the core's session is created in a thread after the first
paint.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on, work
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.command import Command, CommandPalette
from textual.filter import LineFilter, Monochrome, NoColor
from textual.reactive import Reactive
from textual.screen import Screen
from textual.worker import NoActiveWorker, Worker, WorkerFailed, get_current_worker
from textual.worker_manager import WorkerManager

from skyward_core.client import user_settings_and_app_state as settings
from skyward_core.client.user_settings_and_app_state import NotifySettings, UserSettings
from skyward_core.model.errors import PoolError, SkywardError
from skyward_core.util.terminal_safe_text import sanitize_line, sanitize_paragraph
from skyward_tui.app import collect_if_due
from skyward_tui.app.host_key_and_budget_questions import BudgetQuestions, HostKeyQuestions
from skyward_tui.dialogs.basic_dialogs import AskScreen, ChoiceScreen, Dialog, DifferencesScreen, Palette
from skyward_tui.notifications import Notification, NotificationWatch, Notifier
from skyward_tui.screens.base_screen import BaseScreen, commands
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.shutdown_and_daemon_threads import ShutdownSignals, run_in_daemon_thread
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.number_time_and_run_state_format import run_progress
from skyward_tui.ui.actions import Action, actions_in, bindings, first_key, resolve_commands, resolve_keymap, with_keys
from skyward_tui.ui.saved_state import InvalidStateFile, SavedState, ScreenState, load_state, save_state
from skyward_tui.ui.session_futures import flash_errors, wait_shielded
from skyward_tui.ui.suspend_for_programs import remove_stale_logs, run_user_command
from skyward_tui.ui.themes import OWN_THEMES, SKYWARD, UNCOLOURED, ColourRemover, PlainAscii, ensure_contrast, muted
from skyward_tui.ui.typed_key_queue import KeyQueue
from skyward_tui.widgets.screen_frame_and_replay_line import DEMO, DEMO_CAPTIONS, MIN_HEIGHT, MIN_WIDTH, Panel

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.actions import ActionParseResult
    from textual.dom import DOMNode
    from textual.driver import Driver
    from textual.theme import Theme
    from textual.widget import Widget

    from skyward_core.client.leftover_cleanup import LeftoverScan
    from skyward_core.client.log_search import LineMatch
    from skyward_core.client.replay_session import Playback
    from skyward_core.client.session import Session
    from skyward_core.client.session_interface import ServerKey
    from skyward_core.views.pool_view import PoolView, RunView
    from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen
    from skyward_tui.launch_form.form import Form


PATIENCE = 5.0  # seconds for saving the app's state on exit; a slow disk must not delay quitting
LAST = "last"  # key of the last screen in the file with the saved state; all other keys are scopes of screens
VITAL_WORKERS = ("paint", "leave")  # groups of Textual workers whose failure ends the app: painting and quitting
FRAMES, FRAMES_OVER_SSH = 10, 5  # maximum paints per second, for a terminal of this machine and for a terminal over SSH
REFRESH_SECONDS = 1.0
# seconds after a key press or a finished worker during which the screen is refreshed at the full rate
LIVELY_SECONDS = 1.0
# seconds after a change at which the screen is refreshed again, because panels defer some updates
REPEAT_SECONDS = (0.6, 1.6)
# seconds without events or keys after which the screen is checked for changes at the lower rate of SSH
REST_SECONDS = 0.3
STILL_SECONDS = 10.0  # seconds; longest time without a refresh of the screen, even if no displayed time changes
FIRST_LOOK_SECONDS = 10.0  # seconds; longest wait at the start for the first list of pools
DETACH_SECONDS = 5.0
SIGNAL_SECONDS = 0.5  # seconds for each step of the exit after SIGTERM or SIGHUP; the sender may soon send SIGKILL
# seconds; Python's thread switch interval while the app runs (reason in ``SkywardApp.__init__``)
SWITCH_INTERVAL = 0.0005


def _new_session(read_only: bool) -> Session:
    from skyward_core.client.session import ReadOnlySession, Session

    return ReadOnlySession() if read_only else Session()


class SkywardApp(App[None]):
    """App to launch, watch and tear down pools.

    Args:
        session_factory: Creates the session; None for a session of this machine's pools. Called once in a thread; may
            be slow and may raise.
        clock: Returns the Unix time in seconds.
        read_only: Whether the app only watches pools, and rejects actions that change something.
        theme: Theme for this start, which overrides the user's settings; "" for the theme in the settings.
        plain: Whether to paint only ASCII characters, whatever the settings say.

    Attributes:
        REPLAYS: Whether the app plays a recording instead of showing live pools.
        session: The core's session; None until the ledger is read.
        session_error: Reason why the session could not be created.
        user_settings: The user's settings; the defaults before :meth:`apply_appearance`.
        rerunning_pools: Keys of the pools on which a run starts again whenever its script changes. They are not torn
            down after a run.
        unlaunched: Launch form of the last launch, to fill the form again if the pool does not start; None once the
            pool is up.
        keys: The user's own keys, by action ID.
        leftovers: Result of the last scan of cloud accounts for leftovers; None before the first scan.
        failures: Number of recent failures that are not dismissed.
        last_pool: Key of the pool that was opened last, until the list of pools has moved its cursor there.
        last_run: ID of the run whose screen was left last, until the table of runs has moved its cursor there.
        replay: Playback of the recording; None without a recording or until the recording is read.
        host_keys: Asks the user about unknown host keys.
        immediate_repaint: Decides whether a screen paints at once instead of in Textual's next cycle.
    """

    TITLE = "skyward"
    REPLAYS = False
    BINDINGS: ClassVar[list[BindingType]] = bindings("app") + bindings("replay")
    ENABLE_COMMAND_PALETTE = True
    ESCAPE_TO_MINIMIZE = False
    # CSS classes of screens by minimum width and height. A -narrow screen shows only the log; a -slim or -flat screen
    # shows only "terminal too small".
    HORIZONTAL_BREAKPOINTS = [(0, "-slim"), (MIN_WIDTH, "-narrow"), (100, "-normal"), (140, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (MIN_HEIGHT, "-short"), (30, "-tall")]  # noqa: RUF012
    CSS_PATH = Path(__file__).with_suffix(".tcss")

    # The theme is the default of the reactive, because Textual would compute all styles twice if the theme changed
    # before the first paint.
    theme: Reactive[str] = Reactive(SKYWARD.name)
    _current: Theme | None = None

    def __init__(
        self,
        session_factory: Callable[[], Session] | None = None,
        clock: Callable[[], float] = time.time,
        *,
        read_only: bool = False,
        theme: str = "",
        plain: bool = False,
    ) -> None:
        super().__init__()
        self.read_only = read_only
        # The session runs on another thread. With Python's default switch interval of 5 ms, a flood of logs on that
        # thread would delay each key press by several intervals.
        sys.setswitchinterval(SWITCH_INTERVAL)
        self.wall_time = clock  # Unix time even in a replay, for messages that disappear after some seconds
        self.session: Session | None = None
        self.session_error = ""
        self.user_settings = UserSettings()
        self.unlaunched: Form | None = None
        self.rerunning_pools: set[str] = set()
        self.keys: Mapping[str, str] = {}
        self.own_commands: Sequence[Action] = ()
        # bindings of the app before the keys of the user's own commands are added
        self._default_bindings = self._bindings
        self.leftovers: LeftoverScan | None = None
        self.failures = 0
        self.last_pool = self.last_run = ""
        self.replay: Playback | None = None
        # (live session, whether the app was read-only) from before the demo; None without a demo
        self._before_demo: tuple[Session | None, bool] | None = None
        self.host_keys = HostKeyQuestions(self)
        self.budgets = BudgetQuestions(self)
        self.immediate_repaint = ImmediateRepaint()
        self._started_at = time.time()
        self._version = ""  # installed version at the last change of the screen; "" before the first change
        # messages about invalid values in the settings and in the saved state, which are ignored
        self._problems: list[str] = []
        self._asked_theme, self._plain = theme, plain
        self._saved_state = SavedState()
        self._changed: dict[str, str] = {}
        self._changed_screens: dict[str, ScreenState] = {}
        self._write_lock = asyncio.Lock()
        self._line_filters: list[LineFilter] = []
        self._current_theme_name = SKYWARD.name
        self._previewed_theme = ""
        # Textual sets the theme's CSS class only when the theme changes, so set the class of the first theme here
        self.add_class(f"-theme-{SKYWARD.name}", update=False)
        self._session_factory = session_factory or partial(_new_session, read_only)
        self._refresh_error = ""
        self._shutdown_signals = ShutdownSignals()
        self._leaving = False
        # whether to open the last screen of the previous start; false as soon as the user presses a key or clicks
        self._reopens_last = not self.REPLAYS
        self._reopen_lock = asyncio.Lock()
        self._lively_until = time.monotonic() + LIVELY_SECONDS
        self._last_refresh: tuple[tuple[object, ...] | None, float] = (None, 0.0)
        self._terminal_title = ""  # title that the app has set; "" while the terminal has its title from before the app
        self._refresh_times: list[float] = []  # monotonic times of scheduled refreshes of the screen, the latest first
        self._last_input_at = time.monotonic()  # monotonic time of the last key press or mouse event
        self._notification_watch = NotificationWatch()
        # The error of a notification command arrives on a thread of the notifier.
        report = partial(self.call_later, partial(self.flash, kind="error"))
        self._notifier = Notifier(NotifySettings(), self._write_to_terminal, report)
        self._key_queue = KeyQueue(self, self._dispatch_event)
        self._workers = ClosingWorkers(self)
        # input events that arrive before the session is open, to be handled afterwards; None once the session is open
        self._early_events: list[events.Event] | None = []
        if "SSH_CONNECTION" in os.environ:
            self.animation_level = "none"

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action, unless the app is read-only and the action changes something."""
        scope = getattr(default_namespace, "SCOPE", "") or getattr(self.screen, "SCOPE", "")
        if self.read_only and any(each.call == action and not each.is_read_only for each in actions_in(scope)):
            self.flash(f"not available {'in a replay' if self.REPLAYS else 'with --read-only'}", "error")
            return True
        return await super().run_action(action, default_namespace, namespaces)

    def get_driver_class(self) -> type[Driver]:
        """Return the class of the terminal driver: on Linux our own, because Textual's driver fails if the terminal
        disappears.
        """
        if (found := super().get_driver_class()).__name__ != "LinuxDriver":
            return found
        from skyward_tui.ui.terminal_driver import TerminalDriver

        return TerminalDriver

    # Start of the app, and dispatch of events

    def on_load(self) -> None:
        self._shutdown_signals.install(self._quit, self._end_output)
        self.apply_appearance()

    def get_default_screen(self) -> Screen[Any]:
        return PoolsScreen()

    def on_mount(self) -> None:
        # Later changes of the theme are saved as the user's choice, unless ``_current_theme_name`` is set before.
        self._current_theme_name = self.theme
        self.theme_changed_signal.subscribe(self, self._save_theme_choice)
        self.run_worker(self._refresh_loop(), group="paint")
        self.run_worker(self._poll_pools(), group="refresh")
        # When the user returns from the shell, the terminal is empty. By default, Textual would paint only what has
        # changed since.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))

    def on_ready(self) -> None:
        """Open the session after the first paint."""
        self.run_worker(self._open_session(), name="session")

    async def on_event(self, event: events.Event) -> None:
        """Dispatch an event; input that arrives before the session is open is queued."""
        is_typed = isinstance(event, events.Key | events.Paste) and not event.is_forwarded
        if is_typed or isinstance(event, events.MouseDown):
            self._reopens_last = False
        if is_typed and self._early_events is not None:
            self._early_events.append(event)
        elif is_typed:
            await self._key_queue.enqueue(event)
        else:
            await self._dispatch_event(event)

    async def _dispatch_event(self, event: events.Event) -> None:
        if isinstance(event, events.InputEvent | events.Resize):
            self._last_input_at = time.monotonic()
            self._mark_active()
            self.immediate_repaint.on_input(event)
        await super().on_event(event)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        # Workers of these groups poll pools or refresh the screen. Their end alone does not justify a refresh, because
        # the version of a pool differs if a worker has changed it.
        if event.worker.group not in ("refresh", "paint"):
            self._mark_active()

    def _mark_active(self) -> None:
        self._lively_until = time.monotonic() + LIVELY_SECONDS

    def _replay_early_keys(self) -> None:
        early, self._early_events = self._early_events or [], None
        for event in early:
            # While the app starts, the terminal still translates the enter key to a newline, which Textual reads as
            # ctrl+j.
            is_enter = isinstance(event, events.Key) and event.key == "ctrl+j"
            self.post_message(events.Key("enter", "\r") if is_enter else event)

    async def _open_session(self) -> None:
        defect: Exception | None = None
        try:
            self.session = await asyncio.to_thread(self._session_factory)
            refused = self._apply_other_settings()
            self.session.enable_budget_prompts()
            if problems := "; ".join(filter(None, (self.session.notice, *self._problems, *refused))):
                self.flash(problems, "error")
            await self._list_pools()
        except (SkywardError, OSError) as error:
            self.session_error = sanitize_paragraph(format_error(error))
        except Exception as error:  # noqa: BLE001  raised again below
            self.session_error = sanitize_paragraph(f"{type(error).__name__}: {error}")
            defect = error
        self._refresh_screen()
        await self._reopen_last_screen()
        self._replay_early_keys()
        if defect is not None:
            raise defect
        self.refresh_pools()
        self.count_failures()
        self.scan_leftovers()
        await remove_stale_logs()

    async def _refresh_loop(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_interval)
            self._refresh_screen()

    @property
    def _refresh_interval(self) -> float:
        """Seconds until the next check for changes of the screen; longer if there was no event recently."""
        rests = time.monotonic() > max(self._lively_until, self._last_refresh[1] + REST_SECONDS)
        return 1 / (FRAMES_OVER_SSH if rests or "SSH_CONNECTION" in os.environ else FRAMES)

    async def _list_pools(self) -> None:
        """Wait for the first list of pools, because keys that the user has typed during the start apply to this list.
        Do not wait for pools that do not answer.
        """
        if self.session is None:
            return
        # Errors of this first refresh are ignored, because the next refresh follows at once and reports them.
        refresh = asyncio.gather(wait_shielded(self.session.refresh()), return_exceptions=True)
        until = time.monotonic() + FIRST_LOOK_SECONDS
        while not (refresh.done() or self.pools() or time.monotonic() > until):
            await asyncio.wait({refresh}, timeout=0.02)

    def _refresh_screen(self) -> None:
        """Refresh the current screen if the pools, the screen or displayed times have changed; otherwise do almost
        nothing.
        """
        screen, pools, clock = self._front_screen, self.pools(), self.clock()
        beat = None if screen is None else screen.refresh_token(clock)
        state = [(pool.key, pool.state, pool.changes) for pool in pools], id(screen), beat
        now, (before, since) = time.monotonic(), self._last_refresh
        if before is not None and state[1] != before[1]:
            self._warn_if_updated()
        if state != before:
            if before is None or state[0] != before[0]:
                self._refresh_times = [now + after for after in reversed(REPEAT_SECONDS)]
        elif self._refresh_times and now > self._refresh_times[-1]:
            self._refresh_times.pop()
        elif self._lively_until < now < since + STILL_SECONDS:
            return
        self._last_refresh = state, now
        if screen is not None and screen.is_mounted and screen.has_widgets:
            screen.tick(clock)
            self._show_title(pools, clock)
            if not self.read_only:
                self.budgets.update(pools)
        for notification in () if self.REPLAYS else self._notification_watch.check(pools, clock):
            self.notify_user(notification)

    def _warn_if_updated(self) -> None:
        """Show a message if the installed version has changed, because modules of both versions would be imported."""
        from importlib.metadata import PackageNotFoundError, version

        with suppress(PackageNotFoundError):  # during an installation, or in a checkout that is not installed
            installed = version("skyward-tui")
            if self._version and installed != self._version:
                self.flash("skyward-tui was updated: restart it", "warning")
            self._version = installed

    @property
    def _front_screen(self) -> BaseScreen[Any] | None:
        """The topmost screen of the app that is not a dialog; dialogs may cover it."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, BaseScreen)), None)

    async def _poll_pools(self) -> None:
        """Poll the pools once a second. Polls may overlap, so that a pool that does not answer does not delay the
        others.
        """
        polls: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(REFRESH_SECONDS)
                collect_if_due(time.monotonic() - self._last_input_at)
                polls.add(poll := asyncio.create_task(self._fetch_pools(patient=True)))
                poll.add_done_callback(polls.discard)
        finally:
            for poll in polls:
                poll.cancel()

    @work(group="refresh")
    async def refresh_pools(self) -> None:
        """Poll all pools now, including ended pools and pools of other clients."""
        await self._fetch_pools(patient=False)
        # the last screen may belong to an ended pool, and ended pools are listed only now
        await self._reopen_last_screen()

    async def _reopen_last_screen(self) -> None:
        """Open the last screen of the previous start, unless the user has opened another one."""
        async with self._reopen_lock:
            if self._can_reopen():
                self._reopens_last = not await self.open_last_screen(self._can_reopen)

    def _can_reopen(self) -> bool:
        return self._reopens_last and self.session is not None and len(self.screen_stack) == 1

    async def _fetch_pools(self, *, patient: bool) -> None:
        """Poll the pools. If ``patient`` is true, skip pools that recently did not answer until their next retry."""
        if self.session is None:
            return
        failed = ""
        try:
            await wait_shielded(self.session.refresh(over=True, patient=patient))
        except (SkywardError, OSError) as error:
            failed = format_error(error)
        if failed and failed != self._refresh_error:
            self.flash(f"could not list pools: {failed}", "error")
        self._refresh_error = failed

    @work(group="failures", exclusive=True)
    async def count_failures(self) -> None:
        """Count the undismissed failures in the background. An unreadable ledger is not reported here, because other
        actions report it.
        """
        if self.session is not None:
            with suppress(SkywardError, OSError):
                found = await wait_shielded(self.session.failures())
                self.failures = len(found)

    @work(group="leftovers", exclusive=True)
    async def scan_leftovers(self) -> None:
        """Scan accounts for leftovers in the background, without removing anything."""
        from skyward_tui.text.teardown_and_leftovers import leftovers_line, unchecked_line

        if self.session is None:
            return
        try:
            found = await wait_shielded(self.session.scan_leftovers())
        except (SkywardError, OSError) as error:
            return self.flash(f"could not check for leftovers: {format_error(error)}")
        self.leftovers = found
        if line := leftovers_line(found, f"{first_key('pools.leftovers', self.keys)} in the list of pools: show them"):
            self.flash(line, "error")
        elif (doubts := unchecked_line(found)) and not found.is_unconfigured:
            self.flash(doubts)

    # Methods that screens call

    @property
    def required_session(self) -> Session:
        """The session.

        Raises:
            PoolError: If the session is not created yet or could not be created.
        """
        if self.session is None:
            raise PoolError(self.session_error or "the list of pools is still loading; try again in a moment")
        return self.session

    def pools(self) -> list[PoolView]:
        """Return all known pools, in the order in which they are listed."""
        return [] if self.session is None else self.session.pools()

    def is_launching(self, pool: str) -> bool:
        """Check whether a launch of this app is in progress on the pool with a key."""
        return any((worker.name, worker.group) == ("launch", pool) for worker in self.workers)

    def clock(self) -> float:
        """Return the time that screens show: the Unix time, or in a replay the time in the recording."""
        return self.wall_time() if self.replay is None else self.replay.displayed_time()

    def start_replay(self, record: Path) -> Session:
        """Open a recording, and return a session that plays it. From now on, :meth:`clock` returns the time in the
        recording.
        """
        from skyward_core.client.replay_session import Playback, Replay, open_recording

        self.replay = Playback(open_recording(record), captions=DEMO_CAPTIONS if record == DEMO else ())
        return Replay(self.replay)

    def play_demo(self) -> None:
        """Play the packaged recording until the user returns to the list of pools."""
        self._before_demo = self.session, self.read_only
        self.session = self.start_replay(DEMO)
        self.REPLAYS = self.read_only = True
        self.show_pool(self.pools()[0].key)

    def end_demo(self) -> None:
        """End the demo, and show the live pools again. Does nothing if no demo is played."""
        if self._before_demo is not None and self.session is not None:
            self.session.detach()
            (self.session, self.read_only), self._before_demo = self._before_demo, None
            self.replay, self.REPLAYS = None, False

    def find_pool(self, key: str) -> PoolView | None:
        """Return the pool with a key; None if there is none."""
        return next((pool for pool in self.pools() if pool.key == key), None)

    def apply_settings(self, own: UserSettings) -> None:
        """Apply the user's settings again, after a change."""
        before, self.user_settings = self.user_settings, own
        self._move_and_paint()
        if own.ascii != before.ascii:
            for screen in self.screen_stack:
                for each in (screen, *screen.walk_children()):
                    each.refresh()
        if own.theme != before.theme and not (self._asked_theme or self.no_color):
            name = own.theme or SKYWARD.name
            if name in self.available_themes:
                # the name equals the current theme, so ``_save_theme_choice`` does not save this change as the user's
                # choice
                self._current_theme_name = name
                self.theme = name
        self._apply_other_settings()

    def _apply_other_settings(self) -> list[str]:
        """Apply the user's keys and other settings. Return the problems with the keys."""
        self.keys, refused = resolve_keymap(self.user_settings.keys)
        self.own_commands, unbound = resolve_commands(self.user_settings.commands, self.keys)
        self._bindings = self._default_bindings.copy()
        for each in self.own_commands:
            self.bind(each.keys, each.call, description=each.help, show=False)
        self.set_keymap(self.keys)
        self._notifier.ways = self.user_settings.notify
        settings.limit_log_memory(self.user_settings.memory_of_logs)
        return refused + unbound

    def flash(self, text: str, kind: str = "info") -> None:
        """Show a message on the topmost full screen. ``kind`` is "info", "done" or "error"."""
        if (screen := self._front_screen) is not None:
            screen.flash(text, kind)

    def copy(self, text: str, what: str) -> None:
        """Copy text to the user's clipboard, and show whether that worked."""
        if not text:
            return self.flash(f"no {what} to copy")
        # Textual's method sends OSC 52. Terminals do not reply, so its success is unknown.
        super().copy_to_clipboard(text)
        self._copy_to_clipboard_manager(text, what)
        return None

    def copy_to_clipboard(self, text: str) -> None:
        self.copy(text, "text")

    @work(exclusive=True, group="copy")
    async def _copy_to_clipboard_manager(self, text: str, what: str) -> None:
        from skyward_tui.terminal_kind_and_tmux_clipboard import CopyError, copy_to_multiplexer

        try:
            remark = await asyncio.to_thread(copy_to_multiplexer, text)
        except CopyError as error:
            return self.flash(with_keys(f"could not copy {what}: {error}", self.keys), "error")
        done = f"copied {what} ({len(text):,} characters)"
        return self.flash(f"{done}, {remark}" if remark else done, "done")

    def notify_user(self, notification: Notification) -> None:
        """Notify the user in the ways that the settings enable, unless the user is watching the app."""
        self._notifier.notify_unless_seen(notification, self.app_focus, time.monotonic() - self._last_input_at)

    def _show_title(self, pools: Sequence[PoolView], now: float) -> None:
        """Show the progress of the first running run in the terminal's title. If no run has a progress, restore the
        title that the terminal had before.
        """
        runs = [(pool, run) for pool in pools if not pool.is_over and (run := pool.current_run()) is not None]
        title = next(filter(None, (run_progress(pool, run, now) for pool, run in runs)), "")
        if title != self._terminal_title:
            push, pop = "" if self._terminal_title else "\x1b[22;2t", "\x1b[23;2t"
            self._write_to_terminal(f"{push}\x1b]2;{title} · skyward-tui\x07" if title else pop)
            self._terminal_title = title

    def _write_to_terminal(self, text: str) -> None:
        if self._driver is not None and not self.is_headless:
            self._driver.write(text)

    @on(HostKeyQuestions.QuestionsChanged)
    def _ask_about_host_keys(self) -> None:
        self.host_keys.update_dialog()

    def ask_about_host_key(self, key: ServerKey, judged: Callable[[bool | None], None]) -> HostKeyScreen:
        """Open a dialog about an unknown host key."""
        from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen

        screen = HostKeyScreen(key)
        self.push_screen(screen, judged)
        self.notify_user(Notification("hostkey", "", what=key.pattern))
        return screen

    @work(group="budget")
    async def apply_budget(self, pool: PoolView, budget: float | None) -> None:
        """Raise the budget of a pool; without a budget, tear the pool down."""
        with flash_errors(self):
            if budget is None:
                await wait_shielded(self.required_session.tear_down(pool.key))
            else:
                await wait_shielded(self.required_session.raise_budget(pool.key, budget))

    def on_unmount(self) -> None:
        self.host_keys.close()
        self._shutdown_signals.restore()

    # Methods that open screens

    async def open_last_screen(self, still: Callable[[], bool]) -> bool:
        """Open the last screen of the previous start on top of the list of pools.

        The saved screen is deleted first, and saved again on exit. A screen that crashes the app is therefore opened
        only once.

        Args:
            still: Called after the saved screen is deleted; returns whether the screen must still be opened.

        Returns:
            False if the screen's pool is not listed yet, so that the caller must try again.
        """
        state = self.saved_screen_state(LAST)
        if (opener := self._opener_for(state)) is None:
            return False
        if state:
            self._set_screen_state(LAST, {})
            if await self.save_state() and still():
                opener()
        return True

    def _opener_for(self, place: ScreenState) -> Callable[[], None] | None:
        """Return a function that opens a saved screen; None until the screen's pool is listed."""
        if place.get("screen") == "history":
            return partial(self.show_history, inbox=place.get("inbox") is True)
        if place.get("screen") != "run":
            return lambda: None
        pool, run = self.find_pool(str(place.get("pool"))), str(place.get("run", ""))
        if pool is None:
            return None
        if pool.is_over and any(other.needs_confirmation and not other.is_over for other in self.pools()):
            # Opens nothing: a running pool may cost money, so an ended pool must not be shown in its place.
            return lambda: None
        # If a running pool no longer lists the saved run, show the pool's current run. The runs of an ended pool are
        # loaded only when its screen opens.
        return partial(self.show_run, pool.key, run if pool.is_over or run in pool.runs else "")

    def show_pool(self, key: str) -> None:
        """Show a pool directly above the list of pools, closing all other screens."""
        from skyward_tui.screens.run import RunScreen

        self.last_pool = key
        while len(self.screen_stack) > 2:
            self.pop_screen()
        if len(self.screen_stack) == 2:
            self.switch_screen(RunScreen(key))
        else:
            self.push_screen(RunScreen(key))

    def show_run(self, pool: str, run: str, found: LineMatch | None = None) -> None:
        """Show a run of a pool on top of the current screen. If ``found`` is given, scroll to that line, which a search
        found.
        """
        from skyward_tui.screens.run import RunScreen

        self.last_pool = pool
        self.push_screen(RunScreen(pool, run or None, found))

    def show_launched(self, pool: str, run: str) -> None:
        """Show a run that was just launched, if the current screen shows its pool."""
        if (screen := self._front_screen) is not None:
            screen.show_launched(pool, run)

    def show_comparison(self, left: str, right: str) -> None:
        """Show two runs side by side, by their IDs."""
        from skyward_tui.screens.compare import CompareScreen

        self.push_screen(CompareScreen(left, right))

    def show_history(self, *, inbox: bool = False) -> None:
        """Show every past run, or the failures that are not dismissed."""
        from skyward_tui.screens.history import HistoryScreen

        self.push_screen(HistoryScreen(inbox=inbox))

    def show_launch(self, pool: str = "", form: Form | None = None) -> None:
        """Open the launch form for a live pool, given its key, or for a new pool."""
        from skyward_tui.screens.launch import LaunchScreen

        self.push_screen(LaunchScreen(pool, form))

    @work(group="again")
    async def launch_again(self, pool: str, run: str) -> None:
        """Open the launch form with the values of a run. Without a run, the form gets the values of the launch that
        created the pool, for example because the pool did not start.
        """
        from skyward_core.client.launch.launch_records_and_script_state import LaunchRecord
        from skyward_tui.launch_form.form import form_from_request

        with flash_errors(self):
            record = await wait_shielded(self.required_session.load_launch(run, pool))
            if isinstance(record, LaunchRecord):
                form = form_from_request(record.absolute_request())
            else:
                from skyward_tui.launch_form.job_file_plan import form_from_shell

                form = form_from_shell(record, run or pool)
            view = self.find_pool(pool)
            is_live = view is not None and view.is_live
            self.show_launch(pool if is_live else "", form)
            if record.joined and not is_live:
                self.flash("the pool of this run no longer exists, so the form creates a new pool with its settings")

    async def launch_on_live_pool(self, form: Form) -> RunView:
        """Launch a form again on its live pool, and return the run; see ``launch.launch_on_live_pool``."""
        from skyward_tui.screens.launch import launch_on_live_pool

        return await launch_on_live_pool(self, form)

    def show_leftovers(self) -> None:
        """Show the leftovers in cloud accounts."""
        from skyward_tui.screens.leftovers import LeftoversScreen

        self.push_screen(LeftoversScreen(self.leftovers))

    def show_hosts(self) -> None:
        """Show the groups of hosts, and who uses the GPUs of each host."""
        from skyward_tui.screens.hosts import HostsScreen

        self.push_screen(HostsScreen())

    def show_settings(self) -> None:
        """Show the user's settings."""
        from skyward_tui.screens.settings_and_keys import SettingsScreen

        self.push_screen(SettingsScreen())

    def show_errors(self, run: RunView, chosen: Callable[[int | None], None]) -> None:
        """Show why a run failed. When the screen closes, call ``chosen`` with the rank whose log the user wants to see,
        or None.
        """
        from skyward_tui.screens.errors import ErrorsScreen

        self.push_screen(ErrorsScreen(run), chosen)

    def show_stacks(self, pool: str, run: str, chosen: Callable[[int | None], None]) -> None:
        """Show the stacks of the ranks of a pool, given its key. When the screen closes, call ``chosen`` as
        :meth:`show_errors` does.
        """
        from skyward_tui.screens.stacks_and_profiles import StacksScreen

        self.push_screen(StacksScreen(pool, run), chosen)

    async def ask(self, question: str, offered: str = "", completions: Sequence[str] = ()) -> str | None:
        """Ask the user for a line of text, with ``offered`` as initial text. Return None if the user cancels. Must be
        called from a Textual worker.
        """

        return await self.push_screen_wait(AskScreen(question, offered, completions))

    def show_differences(self, title: str, lines: Sequence[str], styles: Mapping[str, str] | None = None) -> None:
        """Show the lines of a table of differences in a dialog; see ``DifferencesScreen``."""

        self.push_screen(DifferencesScreen(title, lines, styles))

    # Settings and appearance of the app

    @property
    def available_themes(self) -> dict[str, Theme]:
        """The themes of Textual, and ours."""
        return {**super().available_themes, **{each.name: each for each in OWN_THEMES}}

    @property
    def current_theme(self) -> Theme:
        """The current theme, cached because each painted widget reads it several times."""
        if self._current is None or self._current.name != self.theme:
            self._current = super().current_theme
        return self._current

    def apply_appearance(self) -> None:
        """Load and apply the user's appearance settings before the first paint."""
        try:
            self.user_settings = settings.load_user_settings()
            self._saved_state = load_state()
        except SkywardError:
            pass  # When the session opens, it reports the same error, for example a missing home folder.
        except InvalidStateFile as unusable:
            self._problems.append(str(unusable))
        self._problems += self.user_settings.refused
        self._level = self.animation_level
        self._move_and_paint()
        if os.environ.get("NO_COLOR") and not self._asked_theme:
            self._line_filters.append(ColourRemover())
            self.theme = UNCOLOURED
        self.no_color = self.theme == UNCOLOURED
        if self.no_color:
            return
        name, wrong = self._saved_state.resolve_theme(
            self.user_settings.theme, self._asked_theme, self.available_themes
        )
        self._problems += [wrong] if wrong else []
        self.theme = name or SKYWARD.name

    def _move_and_paint(self) -> None:
        self.animation_level = self._level if self.user_settings.motion else "none"
        is_plain = self._plain or self.user_settings.ascii
        if is_plain or self._line_filters:
            self._line_filters = [each for each in self._line_filters if not isinstance(each, PlainAscii)]
            self._line_filters += [PlainAscii()] if is_plain else []

    @property
    def has_motion(self) -> bool:
        """Whether to highlight changes briefly; false without colours, or if the settings disable it."""
        return self.user_settings.motion and not self.no_color

    def on_command_palette_option_highlighted(self, event: CommandPalette.OptionHighlighted) -> None:
        """Show the app in the theme that is highlighted in the command palette."""
        option = event.highlighted_event.option
        name = str(option.hit.text) if isinstance(option, Command) else ""
        if name in self.available_themes and not self.no_color:
            self._previewed_theme = self.theme = name

    def on_command_palette_closed(self) -> None:
        """End the preview. The command of a chosen theme runs after this."""
        self._previewed_theme, self.theme = "", self._current_theme_name

    def _save_theme_choice(self, theme: Theme) -> None:
        """Save the chosen theme for the next start."""
        if theme.name in (self._current_theme_name, self._previewed_theme):
            return
        if self.no_color:
            self.theme = self._current_theme_name
            return self.flash("NO_COLOR is set, so themes have no effect. Start with --theme NAME to use one")
        self._current_theme_name = theme.name
        self._changed |= {"theme": theme.name, "over": self.user_settings.theme}
        self.run_worker(self.save_state(), group="keep")
        return None

    def saved_screen_state(self, scope: str) -> ScreenState:
        """Return the last saved state of a screen with the given scope."""
        return self._saved_state.screens.get(scope, {})

    def save_screen_state(self, scope: str, screen: ScreenState) -> None:
        """Save the state of a screen for the next start."""
        if screen != self.saved_screen_state(scope):
            self._set_screen_state(scope, screen)
            self.run_worker(self.save_state(), group="keep", exclusive=False)

    def _set_screen_state(self, scope: str, screen: ScreenState) -> None:
        self._saved_state = self._saved_state._replace(screens={**self._saved_state.screens, scope: screen})
        self._changed_screens[scope] = screen

    async def save_state(self, patience: float = PATIENCE) -> bool:
        """Write changed state to the state file for the next start, without overwriting changes that another app has
        saved. Return whether the state was written within ``patience`` seconds.
        """
        async with self._write_lock:
            changed, screens = self._changed, self._changed_screens
            if not (changed or screens):
                return True
            self._changed, self._changed_screens = {}, {}
            try:
                await asyncio.wait_for(run_in_daemon_thread(partial(save_state, changed, screens)), patience)
            except (OSError, TimeoutError, SkywardError) as error:
                self.flash(f"could not save the state of the app: {format_error(error)}", "error")
                return False
            return True

    def get_css_variables(self) -> dict[str, str]:
        """Return the theme's CSS variables, with state colors adjusted for sufficient contrast."""
        self.theme_variables = ensure_contrast(super().get_css_variables(), ansi=self.current_theme.ansi)
        return self.theme_variables

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's and our own line filters. Textual's filter for NO_COLOR is left out, because it keeps greys
        or hides the cursor.
        """
        own = [each for each in super().get_line_filters() if not isinstance(each, Monochrome | NoColor)]
        return [*own, *self._line_filters]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return default values of the CSS variables that our screens need in addition to Textual's."""
        theme = self.current_theme
        return {} if "muted" in theme.variables else {"muted": muted(theme)}

    # Internal errors of the app

    def _handle_exception(self, error: Exception) -> None:
        """If a worker has failed, show the error in the worker's panel. Let any other error end the app."""
        try:
            worker = get_current_worker()
        except NoActiveWorker:
            worker = None
        if worker is None or worker.group in VITAL_WORKERS or not isinstance(error, WorkerFailed):
            super()._handle_exception(error)
        else:
            self._show_failure(worker, error.error)

    def _show_failure(self, worker: Worker[object], error: BaseException) -> None:
        from textual.content import Content

        from skyward_core.client import doctor_and_bug_report

        doctor_and_bug_report.log_failure(worker.name, error)
        what = sanitize_line(f"{type(error).__name__}: {error}")
        if (box := _box_of(worker.node)) is not None:
            # The error is shown in the title of the box, because messages cover the bottom border.
            failure = Content.styled(f"  ✗ {what}", "$text-error")
            title = Content.from_markup(box.border_title or "")
            box.border_title = title if failure.plain in title.plain else title + failure
            if isinstance(box, Panel):
                box.failure = failure
        screen = next((each for each in worker.node.ancestors_with_self if isinstance(each, BaseScreen)), self)
        screen.flash(f"internal error: {what}. This is a bug; --debug writes its traceback to the log", "error")

    def _fatal_error(self) -> None:  # overrides Textual's hook for unhandled errors
        if (error := sys.exception()) is not None:
            from skyward_tui.app.crash_and_system_reports import render_crash

            self.panic(render_crash(error, self.pools(), self._started_at))

    def panic(self, *renderables: RenderableType) -> None:
        """Exit, and print a report without control characters, because an error may quote the output of a rank."""
        from skyward_tui.app.crash_and_system_reports import SanitizedRenderable

        super().panic(*map(SanitizedRenderable, renderables))

    # Actions of the app

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.replay is not None if action.startswith("replay_") else super().check_action(action, parameters)

    def action_replay_pause(self) -> None:
        if self.replay is not None:
            self.replay.toggle()

    def action_replay_speed(self, factor: float) -> None:
        if self.replay is not None:
            self.replay.multiply_speed(factor)

    def action_replay_skip(self, seconds: int) -> None:
        if self.replay is not None:
            self.replay.skip(seconds)

    def action_replay_failure(self) -> None:
        if self.replay is not None and not self.replay.seek_failure():
            self.flash("no run fails in this recording")

    def action_help(self) -> None:
        from skyward_tui.dialogs.help_and_focus_jump import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            below = self._front_screen
            self.push_screen(HelpScreen() if below is None else HelpScreen(below.SCOPE, below.preferred_actions))

    @work(group="commands")
    async def action_own_command(self, number: int) -> None:
        """Run a command from the user's settings. Values of the current screen, such as the selected pool, replace its
        placeholders.
        """
        if (front := self._front_screen) is None or self.read_only:
            return self.flash(f"not available {'in a replay' if self.REPLAYS else 'with --read-only'}", "error")
        fields = {name: text for name, text in front.command_fields().items() if text}
        await run_user_command(self, self.user_settings.commands[number], fields)

    def script_of(self, run: str) -> str:
        """Return the script of a run in the list of runs; "" if unknown."""
        screens = (screen for screen in self.screen_stack if isinstance(screen, PoolsScreen))
        return next((row.past.script for screen in screens for row in screen.run_table.rows if row.past.run == run), "")

    def action_about(self) -> None:
        from skyward_tui.app.crash_and_system_reports import system_report

        text = system_report(self)
        dialog = ChoiceScreen("about", text, [("close", "Close", False), ("copy", "Copy", False)], escape="close")
        self.push_screen(dialog, lambda chosen: self.copy(text, "report") if chosen == "copy" else None)

    def action_command_palette(self) -> None:  # the name is fixed: Textual's binding for the palette calls this action
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(Palette(id="--command-palette"))

    def action_jump(self) -> None:
        from skyward_tui.dialogs.help_and_focus_jump import JumpScreen, jump_targets

        below = self.screen
        if isinstance(below, JumpScreen | CommandPalette):
            return
        if not (there := jump_targets(below)):
            return self.flash("no widget to jump to")
        self.push_screen(JumpScreen(there), lambda chosen: below.set_focus(chosen) if chosen else None)
        return None

    def action_help_quit(self) -> None:
        """Explain how to quit, because ctrl+c does not quit."""
        self.flash(f"ctrl+c does not quit. {first_key('app.quit', self.keys)}: quit (asks first while pools are up)")

    async def action_quit(self) -> None:
        self.action_ask_quit()

    def action_ask_quit(self) -> None:
        """Quit at once if no pools are up, or in a replay; otherwise ask whether to keep the pools."""
        live = [] if self.REPLAYS else [pool.name for pool in self.pools() if not pool.is_over]
        if not live:
            self._quit()
            return
        from skyward_tui.dialogs.confirmations import QuitScreen

        if not isinstance(self.screen, QuitScreen):
            self.push_screen(QuitScreen(live), self._quit_as)

    def _quit_as(self, choice: str | None) -> None:
        if choice == "keep":
            self._quit()
        elif choice == "down":
            from skyward_tui.dialogs.confirmations import TeardownScreen

            keys = [pool.key for pool in self.pools() if not pool.is_over]
            self.push_screen(TeardownScreen(keys, asked=True), lambda all_gone: self._quit() if all_gone else None)

    def _end_output(self) -> None:
        from skyward_tui.ui.terminal_driver import TerminalDriver

        if isinstance(self._driver, TerminalDriver):
            self._driver.end_output()

    def on_terminal_restored(self) -> None:
        """If a signal has caused the exit, limit the time for the rest of the exit."""
        self._shutdown_signals.limit_exit()

    def on_terminal_lost(self) -> None:
        """Quit because the terminal is gone. May be called from any thread, and repeatedly."""
        self._shutdown_signals.trigger(signal.SIGHUP)

    def _quit(self, status: int = 0) -> None:
        """Quit the app; further calls have no effect."""
        if not self._leaving:
            self._leaving = True
            self._show_title((), 0.0)
            self._detach_and_exit(status)

    @work(group="leave")
    async def _detach_and_exit(self, status: int) -> None:
        """Detach from the pools within a time limit, save the state, and exit."""
        detaching, saving = (SIGNAL_SECONDS, SIGNAL_SECONDS) if status else (DETACH_SECONDS, PATIENCE)
        is_replay = self.REPLAYS  # read now, because ``end_demo`` changes it
        self.end_demo()
        if self.session is not None:
            if self.host_keys.close():
                # A pool's start fails if its pending host key question was just rejected. Wait until the ledger has
                # recorded this failure.
                deadline = time.monotonic() + detaching
                while time.monotonic() < deadline and any(p.state in ("starting", "stopping") for p in self.pools()):
                    await asyncio.sleep(0.02)
            with suppress(TimeoutError):
                await asyncio.wait_for(run_in_daemon_thread(self.session.detach), detaching)
        screens = [screen for screen in self.screen_stack if isinstance(screen, BaseScreen)]
        for screen in screens:
            if screen.is_mounted and (state := screen.saved_state()):
                self.save_screen_state(screen.SCOPE, state)
        if not is_replay:
            places = (screen.reopen_state for screen in reversed(screens))
            self.save_screen_state(LAST, next(filter(None, places), {}))
        await self.save_state(saving)
        # Textual composes no widgets while the app exits. Wait for a screen that is just opening, because it would fail
        # without its widgets.
        while not (self.screen_stack and self.screen.is_mounted):
            await asyncio.sleep(0.01)
        self.exit(return_code=status)

    # overrides the method that supplies the entries of Textual's palette
    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Yield the commands of the palette: the actions of the current screen, then the themes."""
        yield from commands(self, screen)
        yield SystemCommand("Theme", "Change the colours", self.action_change_theme)


class ClosingWorkers(WorkerManager):
    """Textual's workers. If a worker is cancelled before it starts, its coroutine is closed; otherwise Python would
    warn that the coroutine was never awaited.
    """

    def _new_worker(self, work: Any, *args: Any, **options: Any) -> Worker[Any]:
        worker = super()._new_worker(work, *args, **options)
        if asyncio.iscoroutine(work) and worker._task is not None:
            worker._task.add_done_callback(lambda _: work.close())
        return worker


class ReplayApp(SkywardApp):
    """App that plays a recording.

    Args:
        record: File of the recording.
        theme: As in :class:`SkywardApp`.
        plain: As in :class:`SkywardApp`.
    """

    REPLAYS = True

    def __init__(self, record: Path, theme: str = "", plain: bool = False) -> None:
        super().__init__(partial(self.start_replay, record), read_only=True, theme=theme, plain=plain)

    async def _open_session(self) -> None:
        await super()._open_session()
        if self.replay is not None:
            self.show_pool(self.replay.view.key)


def _box_of(node: DOMNode) -> Widget | None:
    """Return the panel or the dialog box that contains a node."""

    for each in node.ancestors_with_self:
        if isinstance(each, Panel):
            return each
        if isinstance(each, Dialog):
            return next(iter(each.query("#dialog")), None)  # None if the dialog has not composed its box yet
    return None


# seconds; keys at shorter intervals are pasted or auto-repeated, so the app does not repaint for each of them
MIN_KEY_INTERVAL = 1 / 60
REPAINT_SECONDS = 0.1  # seconds after a key press during which the app repaints at once
# immediate repaints per key press: one for the direct effect of the key, one for a message that this effect may post
PAINTS_PER_KEY = 2


class ImmediateRepaint:
    """Counter of the repaints after a key press that may happen at once instead of in Textual's next cycle."""

    def __init__(self) -> None:
        self._last_key_at = 0.0
        self._paints_left = 0

    def on_input(self, event: events.Event) -> None:
        """Allow the next repaints to happen at once, because the user has pressed a key."""
        now = monotonic()
        if isinstance(event, events.Key) and now - self._last_key_at >= MIN_KEY_INTERVAL:
            self._last_key_at, self._paints_left = now, PAINTS_PER_KEY

    def consume_paint(self) -> bool:
        """Return whether to paint now. If so, one of the allowed repaints is used up."""
        if self._paints_left and monotonic() - self._last_key_at < REPAINT_SECONDS:
            self._paints_left -= 1
            return True
        return False
