"""Plugin parameters in the launch form: a collapsible part, driven by keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from skyward_tui.app.app import SkywardApp
from skyward_tui.launch_form.form import Form, build_request, command_line, python_script
from skyward_tui.launch_form.recent_launches import add_recent, recent_forms
from skyward_tui.screens.launch_argument_fields import ArgumentRow
from skyward_tui.screens.launch_field_groups import PluginFields
from tests.support.app_driver import focus_in_section, on_launch_form, press, screen_text, typed, until

SCRIPT = """
import skyward_core as sky

@sky.function
def train(): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def shown(fields: PluginFields) -> list[str]:
    return [each.argument.name for each in fields.query(ArgumentRow)]


async def test_fields_of_chosen_plugins_are_shown(app: SkywardApp) -> None:
    async with on_launch_form(app, (160, 48), "train.py") as (pilot, screen):
        fields = screen.query_one(PluginFields)
        assert not fields.display and "Plugin parameters" not in screen_text(app)
        await focus_in_section(pilot, screen, "plugin-section", "plugins")
        await press(pilot, "space", until="▸ Plugin parameters  defaults")
        await pilot.press("down")  # one stop, however many fields are in it
        title = screen.focused
        await press(pilot, "down", until=lambda: screen.focused is not title)
        assert title is not None and fields in title.ancestors
        await pilot.press("up", "enter")
        await until(pilot, lambda: "torch.backend" in screen_text(app) and "str = 'cu128'" in screen_text(app))
        await pilot.press("down")
        await typed(app, pilot, "gloo", until="torch (backend=gloo)")
        assert screen.form().plugin_settings == {"torch.backend": "gloo"}
        assert "--plugin torch --plugin-set torch.backend=gloo" in command_line(screen.form())
        await press(pilot, "up", "space", until="▸ Plugin parameters  torch.backend=gloo")
        # Of one that is off nothing is said or asked for, and it comes back with it.
        await focus_in_section(pilot, screen, "plugin-section", "plugins")
        await pilot.press("space", "right", "right", "space")
        await until(pilot, lambda: shown(fields) == ["keras.backend", "keras.seed"])
        assert "--plugin-set" not in command_line(screen.form()) and not build_request(screen.form()).plugin_settings
        await pilot.press("left", "left", "space")
        await until(pilot, lambda: "torch.backend" in shown(fields) and "keras.seed" in shown(fields))
        assert build_request(screen.form()).plugin_settings == {"torch.backend": "gloo"}
        fields.fill(spaced := {"torch.backend": "two 'words"})
        assert fields.texts == spaced


@pytest.mark.proof("1 s of a processor")
async def test_plugin_field_error_is_shown_below_the_field_and_on_its_heading(app: SkywardApp) -> None:
    async with on_launch_form(app, (160, 48), "train.py") as (pilot, screen):
        await focus_in_section(pilot, screen, "plugin-section", "plugins")
        await pilot.press("right", "right", "space", "down", "enter", "down")
        # A choice of the backends there are, then a number.
        await pilot.press("enter", "down", "down", "enter", "down")
        await until(pilot, lambda: screen.form().plugin_settings == {"keras.backend": "torch"})
        await typed(app, pilot, "x", until="✗ must be int | None, got 'x'")
        await until(pilot, lambda: "seed of plugin keras must be int" in screen_text(app).replace("\n", " "))
        assert "▾ Plugin parameters  ✗ keras.seed is invalid" in screen_text(app)
        await press(pilot, "backspace", "7", until="keras (backend=torch, seed=7)")


@pytest.mark.proof("1 s of a processor")
async def test_recent_launch_restores_plugin_parameters(app: SkywardApp) -> None:
    async with on_launch_form(app, (160, 48), "train.py") as (pilot, screen):
        await focus_in_section(pilot, screen, "plugin-section", "plugins")
        await pilot.press("space", "down", "enter", "down")
        await typed(app, pilot, "gloo", until=lambda: screen.form().plugin_settings == {"torch.backend": "gloo"})
        add_recent(screen.form())
        (again,) = recent_forms()
        assert again.plugin_settings == {"torch.backend": "gloo"}
        assert "plugins=[sky.plugins.torch(backend='gloo')]" in python_script(again, ())
        screen.query_one("#script", Input).value = ""
        screen._fill(again)
        await until(pilot, "torch.backend=gloo")


@pytest.mark.proof("1 s of a processor")
async def test_refused_launch_opens_the_invalid_plugin_field(app: SkywardApp) -> None:
    form = Form(script="train.py", plugins=("torch",), plugin_settings={"torch.init": "perhaps"})
    async with on_launch_form(app, (160, 48), "train.py") as (pilot, screen):
        screen._fill(form)
        fields = screen.query_one(PluginFields)
        assert fields.collapsed
        await pilot.press("ctrl+r")
        await until(pilot, lambda: not fields.collapsed and "✗ must be bool, got 'perhaps'" in screen_text(app))
        await until(pilot, lambda: screen.focused is not None and fields in screen.focused.ancestors)
