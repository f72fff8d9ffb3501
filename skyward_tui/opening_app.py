"""The part of the app that opens screens: which there is for what. Each is imported when it is first shown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .dressed_app import DressedApp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skyward_core.front.line_search import FoundInLogs
    from skyward_core.views.views import RunView

    from .kept_state import KeptScreen
    from .launch_form import Form


LAST = "last"  # in what is kept, beside the screens' own scopes


class OpeningApp(DressedApp):
    """What one screen calls to have another one opened."""

    def keep_place(self) -> None:
        """Keep which screen is left, for the next start."""
        from .screens.base import BaseScreen

        places = (screen.place for screen in reversed(self.screen_stack) if isinstance(screen, BaseScreen))
        self.keep(LAST, next(filter(None, places), {}))

    async def open_last(self, still: Callable[[], bool]) -> bool:
        """Open the screen that was left last, one step from the list of pools; says whether that is settled. It is not
        while its pool is not listed.

        The place is forgotten first, and kept again on the way out: one that makes the app fail is opened once, and not
        at each start.

        Args:
            still: whether it is still wanted, once the place is forgotten.
        """
        shows = self._shows(self.kept_of(LAST))
        if shows is not None and self.kept_of(LAST) and await self.forget(LAST) and still():
            shows()
        return shows is not None

    def _shows(self, place: KeptScreen) -> Callable[[], None] | None:
        """What opens a place; None while its pool is not listed."""
        if place.get("screen") == "history":
            return partial(self.show_history, inbox=place.get("inbox") is True)
        if place.get("screen") != "run":
            return lambda: None
        pool, run = self.find_pool(str(place.get("pool"))), str(place.get("run", ""))
        if pool is None:
            return None
        if pool.is_over and any(other.is_precious and not other.is_over for other in self.pools()):
            return lambda: None  # what goes on, and may cost money, comes before what is over
        # A run that the pool does not know of any more; one that is over has not been asked yet.
        return partial(self.show_run, pool.key, run if pool.is_over or run in pool.runs else "")

    def show_pool(self, key: str) -> None:
        from .screens.run import RunScreen

        while len(self.screen_stack) > 2:
            self.pop_screen()
        if len(self.screen_stack) == 2:
            self.switch_screen(RunScreen(key))
        else:
            self.push_screen(RunScreen(key))

    def show_run(self, pool: str, run: str, found: FoundInLogs | None = None) -> None:
        from .screens.run import RunScreen

        self.push_screen(RunScreen(pool, run or None, found))

    def show_comparison(self, left: str, right: str) -> None:
        from .screens.compare import CompareScreen

        self.push_screen(CompareScreen(left, right))

    def show_history(self, *, inbox: bool = False) -> None:
        from .screens.history import HistoryScreen

        self.push_screen(HistoryScreen(inbox=inbox))

    def show_launch(self, pool: str = "", form: Form | None = None) -> None:
        from .screens.launch import LaunchScreen

        self.push_screen(LaunchScreen(pool, form))

    def show_leftovers(self) -> None:
        from .screens.sweep import SweepScreen

        self.push_screen(SweepScreen(self.leftovers))

    def show_hosts(self) -> None:
        from .screens.hosts import HostsScreen

        self.push_screen(HostsScreen())

    def show_settings(self) -> None:
        from .screens.settings import SettingsScreen

        self.push_screen(SettingsScreen())

    def show_errors(self, run: RunView, chosen: Callable[[int | None], None]) -> None:
        from .screens.errors import ErrorsScreen

        self.push_screen(ErrorsScreen(run), chosen)

    def show_stacks(self, pool: str, run: str, chosen: Callable[[int | None], None]) -> None:
        from .screens.stacks import StacksScreen

        self.push_screen(StacksScreen(pool, run), chosen)

    def ask(self, question: str, offered: str, answered: Callable[[str | None], None]) -> None:
        from .dialogs.ask import AskScreen

        self.push_screen(AskScreen(question, offered), answered)

    def show_differences(self, title: str, lines: Sequence[str]) -> None:
        from .dialogs.differences import DifferencesScreen

        self.push_screen(DifferencesScreen(title, lines))
