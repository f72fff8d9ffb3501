"""Plan, command line and Python script of a launch: side by side, or switched by a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from skyward_tui.app.app import SkywardApp
from tests.support.app_driver import launch_form, screen_text, until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import skyward_core as sky\n\n@sky.function\ndef train(epochs: int): ...\n")
    return tmp_path


@pytest.mark.proof("1 s of a processor")
async def test_plan_command_and_python_are_shown_together_if_there_is_room(app: SkywardApp) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await launch_form(app, pilot, "train.py")
        screen.query_one("#arguments", Input).value = "epochs=3"
        await until(pilot, lambda: "for value in train(epochs=3) @ pool:" in screen_text(app))
        assert "runs     train(epochs=3)" in screen_text(app) and "as a command" in screen_text(app)
        assert "next view" not in screen_text(app)
        screen.query_one("#arguments", Input).value = "epochs=x"
        await until(pilot, lambda: "as Python" not in screen_text(app) and "epochs=x" in screen_text(app))


async def test_plan_views_are_switched_by_key_on_a_small_terminal(app: SkywardApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await launch_form(app, pilot, "train.py")
        screen.query_one("#arguments", Input).value = "epochs=3"
        await until(pilot, lambda: "─ plan (f2: command) ─" in screen_text(app))
        assert "runs     train(epochs=3)" in screen_text(app)
        await pilot.press("f2")
        await until(pilot, lambda: "─ command (f2: Python) ─" in screen_text(app))
        assert "skyward-tui run train.py:train --arg epochs=3" in screen_text(app)
        assert "runs     train" not in screen_text(app)
        await pilot.press("f2")
        await until(pilot, lambda: "─ Python (f2: plan) ─" in screen_text(app))
        assert "import skyward_core as sky" in screen_text(app)
        await pilot.press("f2")
        await until(pilot, lambda: "runs     train(epochs=3)" in screen_text(app))
