"""The launch form with a hostile project: no file of the project is executed before the launch."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.pickers import FilesScreen, PresetsScreen, PythonsScreen
from skyward_tui.screens.launch import LaunchScreen
from tests.support.app_driver import on_launch_form, press, screen_text, until
from tests.support.hostile_project import JOB, PRESET, SCRIPT, hostile_project

SIZE = (160, 48)
SCRIPT_TEXT = "import skyward_core as sky\n\n\n@sky.function\ndef train(lr: float = 0.1) -> None: ...\n"


async def test_launch_form_executes_no_file_of_a_project(
    app: SkywardApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, project = tmp_path / "mark", tmp_path / "theirs"
    hostile_project(project, mark)
    monkeypatch.chdir(project)
    async with on_launch_form(app, SIZE, SCRIPT) as (pilot, screen):
        await until(pilot, lambda: ".venvofprojecttheirs" in plan_text(screen))
        await press(pilot, "f4", until=lambda: isinstance(app.screen, PresetsScreen) and PRESET in screen_text(app))
        await press(pilot, "enter", until=lambda: screen.form().python == str(project / "evil.sh"))
        await until(pilot, lambda: f"Python?at{project}/evil.sh" in plan_text(screen))
        await press(pilot, "ctrl+n", until=lambda: isinstance(app.screen, PythonsScreen))
        rows = [f"{sys.version.split()[0]} +{source}" for source in (".venv of project", "this program's own")]
        await until(pilot, lambda: all(re.search(row, screen_text(app)) for row in rows))
        await pilot.press("escape")
        screen.query_one("#script", Input).value = JOB
        await until(pilot, "1 line, on all nodes")
    assert not mark.exists(), mark.read_text()


@pytest.mark.proof("1 s of a processor")
async def test_pasted_invalid_path_is_reported_below_its_field(app: SkywardApp, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT_TEXT)
    async with on_launch_form(app, SIZE, "a" * 256) as (pilot, screen):
        await until(pilot, lambda: "cannot be read: File name too long" in " ".join(screen_text(app).split()))
        for text in ("a/" * 3000, "loop", "~nobody-of-that-name", "a\udcff.py"):
            screen.query_one("#script", Input).value = text
            await until(pilot, lambda: bool(message(screen)))
        for key, dialog in (("ctrl+o", FilesScreen), ("ctrl+n", PythonsScreen)):
            await pilot.press(key)
            await until(pilot, lambda dialog=dialog: isinstance(app.screen, dialog))  # type: ignore[misc]
            for text in ("a" * 256, "~nobody-of-that-name/", "loop/", "a" * 5000 + "/"):
                app.screen.query_one(Input).value = text
                await pilot.press("enter")
                if app.screen is screen:  # it was taken as it is
                    await pilot.press(key)
            await press(pilot, "escape", until=lambda: app.screen is screen)
        screen.query_one("#script", Input).value = "train.py"
        await until(pilot, lambda: screen.form().function == "train")
        for field in screen.query("#form Input"):
            if not field.disabled and field.display and field.id != "script":
                before, field.value = field.value, "a" * 256  # type: ignore[attr-defined]
                await until(pilot, lambda: screen.is_current)
                field.value = before  # type: ignore[attr-defined]
        await until(pilot, "train(")
    assert app.return_code in (0, None)


def plan_text(screen: LaunchScreen) -> str:
    """Return the plan without spaces: a path may stand on several lines."""
    return "".join(screen.query_one("#why", Static).visual.plain.split())  # type: ignore[attr-defined]


def message(screen: LaunchScreen) -> str:
    return str(screen.query_one("#message", Static).content)
