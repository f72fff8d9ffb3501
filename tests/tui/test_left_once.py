"""Done twice before the app comes to it (a double click, a key typed ahead), a thing is done once."""

from __future__ import annotations

from pathlib import Path

from textual.command import CommandPalette
from textual.widgets import Button, Input, OptionList

from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.dialog import ChoiceScreen
from skyward_tui.dialogs.pickers import FilesScreen
from skyward_tui.screens.pool_list import PoolsScreen
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import until
from tests.support.fake_session import FakeSession

ZOOM = "Give the panel the whole screen, or take it back"


async def test_what_is_done_twice_leaves_one_screen(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 2)
    answers: list[str | None] = []
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: bool(app.pools()))
        app.show_run(view.key, "")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)

        app.push_screen(ChoiceScreen("Sure?", "It ends.", [("no", "No", False)], "no"), answers.append)
        await until(pilot, lambda: bool(app.screen.query("#no")))
        button = app.screen.query_one("#no", Button)
        for _ in range(2):
            button.post_message(Button.Pressed(button))
        await until(pilot, lambda: bool(answers))
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and answers == ["no"]

        app.action_command_palette()
        await until(pilot, lambda: isinstance(app.screen, CommandPalette) and app.screen.is_mounted)
        app.screen.query_one(Input).value = ZOOM
        listed = app.screen.query_one(OptionList)
        await until(pilot, lambda: listed.option_count == 1)
        listed.highlighted = 0
        for _ in range(2):
            listed.action_select()
        await until(pilot, lambda: app.screen.has_class("-zoom"))
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and app.screen.has_class("-zoom")
        await pilot.press("z")

        screen = app.screen
        for _ in range(2):
            screen.action_leave()
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))
        await pilot.pause()
        assert app._exception is None and len(app.screen_stack) == 1


async def test_a_double_click_on_a_folder_opens_it(app: SkywardApp, session: FakeSession) -> None:
    inner = Path.cwd() / "inner"
    inner.mkdir()
    (inner / "deep.py").touch()
    picked: list[str | None] = []
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(FilesScreen(Path.cwd()), picked.append)
        await until(pilot, lambda: bool(app.screen.query(OptionList)))
        listed = app.screen.query_one(OptionList)
        at = next(i for i, each in enumerate(listed.options) if "inner/" in str(each.prompt))
        for _ in range(2):
            listed.post_message(OptionList.OptionSelected(listed, listed.options[at], at))
        await until(pilot, lambda: any("deep.py" in str(each.prompt) for each in listed.options))
        await pilot.pause()
        assert app._exception is None and isinstance(app.screen, FilesScreen) and picked == []
