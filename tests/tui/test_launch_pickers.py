"""What is picked in the launch form: examples, files, and folders that are walked."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.pickers import AcceleratorsScreen
from tests.support.app_driver import launch_form, screen_text, typed, until
from tests.support.launch_script import SCRIPT

SIZE = (120, 40)


async def test_examples_are_picked_by_typing(app: SkywardApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "")
        await pilot.press("ctrl+o", "d", "d", "p", "enter")
        await until(pilot, lambda: screen.query_one("#script", Input).value == "example:ddp")
        await until(pilot, lambda: "[x] torch" in screen_text(app))
        await pilot.press("ctrl+o", "escape")
        assert screen.query_one("#script", Input).value == "example:ddp"


@pytest.mark.proof("1 s of a processor")
async def test_pickers_say_that_nothing_fits(app: SkywardApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "")
        await pilot.press("ctrl+o")
        await typed(app, pilot, "nosuch")
        await until(pilot, lambda: "no script or folder has 'nosuch' in its name" in screen_text(app))
        await pilot.press("enter")  # there is nothing to take
        assert app.screen is not screen
        await pilot.press("escape", "ctrl+g")
        await until(pilot, lambda: isinstance(app.screen, AcceleratorsScreen))
        await typed(app, pilot, "nosuch")
        await until(pilot, lambda: "no accelerator of the catalogue fits 'nosuch'" in screen_text(app))


@pytest.mark.proof("1 s of a processor")
async def test_folders_are_walked(app: SkywardApp, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.py").write_text(SCRIPT)
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "")
        await pilot.press("ctrl+o", "j", "o", "enter")
        await until(pilot, lambda: "mine.py" in screen_text(app))
        await pilot.press("m", "i", "n", "e", "enter")
        await until(pilot, lambda: screen.query_one("#script", Input).value == "jobs/mine.py")


@pytest.mark.proof("1 s of a processor")
async def test_in_a_folder_that_was_opened_the_cursor_is_on_what_lies_there(app: SkywardApp, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.py").write_text(SCRIPT)
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "")
        await pilot.press("ctrl+o", "j", "o", "b", "enter")
        await until(pilot, lambda: "mine.py" in screen_text(app))
        assert "packaged examples" not in screen_text(app)  # whoever walks looks for none of these
        await pilot.press("down", "enter")
        await until(pilot, lambda: screen.query_one("#script", Input).value == "jobs/mine.py")


@pytest.mark.proof("1 s of a processor")
async def test_a_home_folder_of_nobody_is_a_path_like_any_other(app: SkywardApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "~nobody-of-that-name/x.py")
        await until(pilot, lambda: "no such script: ~nobody-of-that-name/x.py" in screen_text(app))
        await pilot.press("ctrl+o")
        await typed(app, pilot, "~nobody-of-that-name/")
        await until(pilot, lambda: "No such file" in screen_text(app))
        await pilot.press("enter", "escape")
        assert screen.query_one("#script", Input).value == "~nobody-of-that-name/x.py"
