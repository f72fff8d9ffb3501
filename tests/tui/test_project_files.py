"""The launch form and files of a project from a stranger: they run nothing, and break nothing, before the launch."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from textual.widgets import Input

from skyward_tui.app import SkywardApp
from skyward_tui.dialogs.presets import PresetsScreen
from skyward_tui.dialogs.pythons import PythonsScreen
from tests.support.app_driver import launch_form, screen_text, until
from tests.support.hostile_project import JOB, PRESET, SCRIPT, hostile_project

SIZE = (160, 48)


async def test_the_form_runs_no_file_of_a_project(
    app: SkywardApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, project = tmp_path / "mark", tmp_path / "theirs"
    hostile_project(project, mark)
    monkeypatch.chdir(project)
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, SCRIPT)
        await until(pilot, lambda: ".venv of project theirs" in screen_text(app))
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, PresetsScreen) and PRESET in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: screen.form().python == str(project / "evil.sh"))
        await until(pilot, lambda: "a Python at" in screen_text(app))
        await pilot.press("ctrl+n")
        await until(pilot, lambda: isinstance(app.screen, PythonsScreen))
        rows = [
            f"{sys.version.split()[0]} +{source}" for source in (".venv of project", "this program's own")
        ]
        await until(pilot, lambda: all(re.search(row, screen_text(app)) for row in rows))
        await pilot.press("escape")
        screen.query_one("#script", Input).value = JOB
        await until(pilot, lambda: "1 line, on all nodes" in screen_text(app))
    assert not mark.exists(), mark.read_text()
