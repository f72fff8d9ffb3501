"""The part of the app that opens screens: which there is for what. Each is imported when it is first shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .dressed_app import DressedApp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skyward_core.front.log_search import FoundInLogs
    from skyward_core.views.views import RunView

    from .launch_form import Form


class OpeningApp(DressedApp):
    """What one screen calls to have another one opened."""

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
