"""Presets of the launch form: saved, picked and deleted by keys, with missing values reported."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from textual.widgets import Input

from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.basic_dialogs import AskScreen, ChoiceScreen
from skyward_tui.dialogs.pickers import PresetsScreen
from skyward_tui.screens.launch import LaunchScreen
from tests.support.app_driver import on_launch_form, press, screen_text, typed, until
from tests.support.fake_session import FakeSession

SCRIPT = "import skyward_core as sky\n\n@sky.function\ndef train(epochs: int, lr: float = 0.1): ...\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "skyward.toml").write_text('# mine\n[hosts]\nlab = "gpu1"\n')
    return tmp_path


async def test_preset_is_saved_loaded_and_deleted_by_keys(app: SkywardApp, session: FakeSession, folder: Path) -> None:
    file = folder / "skyward.toml"
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        screen.query_one("#nodes", Input).value = "2"
        screen.query_one("#name", Input).value = "mine"
        await press(pilot, "f3", until=lambda: isinstance(app.screen, AskScreen))
        await typed(app, pilot, "small run")
        await press(pilot, "enter", until="saved preset small run in skyward.toml")
        saved = tomllib.loads(file.read_text())
        assert saved["hosts"] == {"lab": "gpu1"} and file.read_text().startswith("# mine\n")
        assert saved["presets"] == {
            "small run": {
                "script": "train.py", "function": "train", "provider": "local", "nodes": 2,
                "pool": "mine", "keep": True,
            }
        }  # fmt: skip
        # Saved once more under its name: asked, unless it was filled from that.
        await press(pilot, "f3", until=lambda: isinstance(app.screen, AskScreen))
        await typed(app, pilot, "small run")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, ChoiceScreen))
        await press(pilot, "enter", until=lambda: isinstance(app.screen, LaunchScreen))
        screen.query_one("#nodes", Input).value = "7"
        screen.query_one("#name", Input).value = ""
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, PresetsScreen) and "small run" in screen_text(app))
        assert "train.py:train  provider local  nodes 2" in screen_text(app)
        await press(pilot, "s", "m", "enter", until="filled from preset small run")
        form = screen.form()
        assert (form.nodes, form.name, form.script, form.function) == ("2", "mine", "train.py", "train")
        await press(pilot, "f4", until=lambda: isinstance(app.screen, PresetsScreen))
        await press(pilot, "ctrl+x", until="Delete preset small run of")
        await press(pilot, "right", "enter", until="no presets yet. f3 in the form: save a preset")
        await press(pilot, "escape", until=lambda: app.screen is screen)
        assert tomllib.loads(file.read_text()) == {"hosts": {"lab": "gpu1"}}


@pytest.mark.proof("1 s of a processor")
async def test_missing_preset_values_are_reported_and_the_rest_is_filled(app: SkywardApp, folder: Path) -> None:
    with (folder / "skyward.toml").open("a") as file:
        file.write(
            '[presets.old]\nscript = "train.py"\nfunction = "train"\narguments = ["epochs=3", "warmup=1"]\n'
            'provider = "cupboard"\nnodes = 3\ntimeout = 5\ncolour = "red"\n'
        )
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        await press(pilot, "f4", until=lambda: isinstance(app.screen, PresetsScreen) and "old" in screen_text(app))
        await press(pilot, "enter", until="runs     train(epochs=3) on all 3 ranks")
        form = screen.form()
        assert (form.provider, form.nodes, form.arguments) == ("local", "3", "epochs=3")
        shown = " ".join(str(screen.query_one("#why").content).split())  # type: ignore[attr-defined]
        for each in (
            "provider cupboard does not exist", "train no longer has argument warmup",
            "launch option colour no longer exists",
        ):  # fmt: skip
            assert each in shown, each


@pytest.mark.proof("1 s of a processor")
async def test_invalid_preset_file_is_reported(app: SkywardApp, folder: Path) -> None:
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        (folder / "skyward.toml").write_text("[hosts\n")
        for key in ("f4", "f3"):
            await press(pilot, key, until="skyward.toml does not parse")
            assert app.screen is screen


@pytest.mark.proof("1 s of a processor")
async def test_preset_of_an_example_keeps_the_name_of_the_example(app: SkywardApp, folder: Path) -> None:
    async with on_launch_form(app, (120, 40), "example:hello") as (pilot, screen):
        await press(pilot, "f3", until=lambda: isinstance(app.screen, AskScreen))
        await typed(app, pilot, "hi")
        await press(pilot, "enter", until="saved preset hi")
        assert 'script = "example:hello"' in (folder / "skyward.toml").read_text()
        screen.query_one("#script", Input).value = ""
        await press(pilot, "f4", until=lambda: isinstance(app.screen, PresetsScreen) and "hi" in screen_text(app))
        await press(pilot, "enter", until=lambda: screen.form().script == "example:hello")


@pytest.mark.proof("1 s of a processor")
async def test_form_without_a_script_can_be_saved_as_a_preset(app: SkywardApp, folder: Path) -> None:
    async with on_launch_form(app, (120, 40), "") as (pilot, screen):
        screen.query_one("#nodes", Input).value = "6"
        await press(pilot, "f3", until=lambda: isinstance(app.screen, AskScreen))
        await typed(app, pilot, "six")
        await press(pilot, "enter", until="saved preset six")
        screen.query_one("#nodes", Input).value = "1"
        await press(pilot, "f4", until=lambda: isinstance(app.screen, PresetsScreen) and "six" in screen_text(app))
        await press(pilot, "enter", until=lambda: screen.form().nodes == "6")
        assert screen.form().script == ""
