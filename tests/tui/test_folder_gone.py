"""The folder that the app was started in is removed while it is open: a worktree, a scratch folder of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.dialog import AskScreen
from skyward_tui.dialogs.pickers import FilesScreen, PresetsScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.screens.stacks import StacksScreen
from tests.support.app_driver import launch_form, screen_text, typed, until
from tests.support.fake_session import FakeSession
from tests.support.some_stacks import hung

GONE = "is not there any more"


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is to go."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PWD", str(folder))
    return folder


async def test_the_app_goes_on_and_says_what_it_cannot_do(app: SkywardApp, session: FakeSession, gone: Path) -> None:
    view = session.pool("llama-ft", 8)
    run = session.open_run(view)
    session.print(view, 0, "hello\n")
    session.taken = hung(run.id, 8)
    async with app.run_test(size=(160, 48)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and "hello" in screen_text(app))
        gone.rmdir()
        await pilot.press("S")
        await until(pilot, lambda: f"could not save: {gone}, which the app was started in, {GONE}" in screen_text(app))
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, StacksScreen) and "rank 5 not" in screen_text(app))
        await pilot.press("S")
        await until(pilot, lambda: GONE in screen_text(app))
        await pilot.press("escape", "T", "escape", "O", "o", "W")
        await typed(app, pilot, "all.csv")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        assert app.is_running


async def test_a_script_named_by_its_whole_path_can_be_launched_all_the_same(
    app: SkywardApp, session: FakeSession, gone: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import skyward_core as sky\n\n@sky.function\ndef train(): ...\n")
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "No pools" in screen_text(app))
        gone.rmdir()
        screen = await launch_form(app, pilot, str(script))
        for keys, opened in ((["ctrl+o"], FilesScreen), (["escape", "f4"], PresetsScreen)):
            await pilot.press(*keys)
            await until(pilot, lambda opened=opened: isinstance(app.screen, opened))  # type: ignore[misc]
        await pilot.press("escape", "ctrl+y", "ctrl+t", "f2", "f3")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        await typed(app, pilot, "mine")
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is screen and GONE in screen_text(app))
        assert "creates  pool train" in screen_text(app)  # a script's whole path is enough
