"""One instance of each screen of the app."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.screen import Screen

from skyward_core.client.launch.presets import Preset
from skyward_tui.app.host_key_and_budget_questions import BudgetScreen
from skyward_tui.dialogs.basic_dialogs import AskScreen, ChoiceScreen, DifferencesScreen
from skyward_tui.dialogs.confirmations import QuitScreen, TeardownScreen
from skyward_tui.dialogs.help_and_focus_jump import HelpScreen, JumpScreen
from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen, SecretsScreen
from skyward_tui.dialogs.pickers import AcceleratorsScreen, FilesScreen, PresetsScreen, PythonsScreen, ThemePicker
from skyward_tui.screens.compare import CompareScreen
from skyward_tui.screens.errors import ErrorsScreen
from skyward_tui.screens.history import HistoryScreen
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.hosts import HostsScreen
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.leftovers import DeleteLeftoversScreen, LeftoversScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.screens.settings_and_keys import KeyScreen, SettingsScreen
from skyward_tui.screens.stacks_and_profiles import StacksScreen
from tests.support.fake_session import FakeSession, failed_run, logged
from tests.support.host_key import shown
from tests.support.leftovers import leftovers


def every_screen(session: FakeSession) -> list[Callable[[], Screen[Any]]]:
    """Return a factory for each screen. A check below proves that all screen classes are included."""
    view = session.pool("llama-ft", price=1.0)
    run = failed_run(session, view)
    logged(view, run, session, steps=8)
    session.print(view, 0, "\x1b[31mred\x1b[0m plain\n")
    return [
        PoolsScreen,
        lambda: RunScreen(view.key),
        lambda: ErrorsScreen(run),
        lambda: StacksScreen(view.key, run.id),
        HistoryScreen,
        lambda: CompareScreen(run.id, "another"),
        HostsScreen,
        SettingsScreen,
        lambda: ThemePicker(["nord", "skyward"], "nord"),
        lambda: KeyScreen("Show every key"),
        LaunchScreen,
        lambda: TeardownScreen([view.key]),
        lambda: QuitScreen([view.name]),
        lambda: BudgetScreen(view, session.now),
        LeftoversScreen,
        lambda: DeleteLeftoversScreen(leftovers(), lambda: None),
        HelpScreen,
        AcceleratorsScreen,
        lambda: AskScreen("Go to rank"),
        lambda: ChoiceScreen("Sure?", "It ends.", [("no", "No", False), ("yes", "Yes", True)], "no"),
        lambda: FilesScreen(Path.cwd()),
        lambda: PythonsScreen(None),
        lambda: PresetsScreen([Preset("small", Path("skyward.toml"), {"script": "train.py"})]),
        lambda: HostKeyScreen(shown()),
        lambda: DifferencesScreen("results of ranks 0 and 3", ["         rank 0  rank 3", "loss     0.21    0.34"]),
        lambda: SecretsScreen(["HF_TOKEN", "WANDB_API_KEY"]),
        lambda: JumpScreen([]),
    ]
