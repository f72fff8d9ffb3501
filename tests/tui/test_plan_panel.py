"""Plan, command line and Python script of a launch: side by side, or switched by a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from skyward_tui.app.app import SkywardApp
from tests.support.app_driver import on_launch_form, press, screen_text, until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import skyward_core as sky\n\n@sky.function\ndef train(epochs: int): ...\n")
    return tmp_path


@pytest.mark.proof("1 s of a processor")
async def test_plan_command_and_python_are_shown_together_if_there_is_room(app: SkywardApp) -> None:
    async with on_launch_form(app, (160, 48), "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=3"
        await until(pilot, "for value in train(epochs=3) @ pool:")
        assert "runs     train(epochs=3)" in screen_text(app) and "as a command" in screen_text(app)
        assert "next view" not in screen_text(app)
        screen.query_one("#arguments", Input).value = "epochs=x"
        await until(pilot, lambda: "as Python" not in screen_text(app) and "epochs=x" in screen_text(app))


@pytest.mark.proof("0.5 s of a processor")
async def test_plan_views_are_switched_by_key_on_a_small_terminal(app: SkywardApp) -> None:
    async with on_launch_form(app, (80, 24), "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=3"
        await until(pilot, "─ plan (f2: command) ─")
        assert "runs     train(epochs=3)" in screen_text(app)
        await press(pilot, "f2", until="─ command (f2: Python) ─")
        assert "skyward-tui run train.py:train --arg epochs=3" in screen_text(app)
        assert "runs     train" not in screen_text(app)
        await press(pilot, "f2", until="─ Python (f2: plan) ─")
        assert "import skyward_core as sky" in screen_text(app)
        await press(pilot, "f2", until="runs     train(epochs=3)")
