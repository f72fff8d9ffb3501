"""The launch form's part for image and environment: it folds, and has a field for each kind of thing."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input

from skyward_tui.app.app import SkywardApp
from skyward_tui.launch_form.form import build_request, command_line
from skyward_tui.screens.launch.field_groups import ArgumentFields
from tests.support.app_driver import launch_form, screen_text, typed, until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import skyward_core as sky\n\n@sky.function\ndef train(): ...\n")
    return tmp_path


async def test_what_the_environment_holds(app: SkywardApp) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await launch_form(app, pilot, "train.py")
        await until(pilot, lambda: "▸ Image and environment  as they are by default" in screen_text(app))
        screen.query_one("#image_settings").focus()
        await pilot.press("down")
        await typed(app, pilot, "einops 'rich>=13'")
        await pilot.press("down", "down")
        await typed(app, pilot, "make -C data && echo made")
        await pilot.press("down")
        await typed(app, pilot, "WORD=x HF_TOKEN=y")
        await until(pilot, lambda: "▾ Image and environment  ✗ HF_TOKEN is a secret by" in screen_text(app))
        assert "✗ HF_TOKEN is a secret by its name: write secret=HF_TOKEN" in screen_text(app)
        await pilot.press(*["backspace"] * len(" HF_TOKEN=y"))
        asked = ("pip=einops", "pip=rich>=13", "setup=make -C data && echo made", "env.WORD=x")
        await until(pilot, lambda: build_request(screen.form()).image_settings == asked)
        await until(pilot, lambda: "installs einops, rich>=13" in screen_text(app))
        assert "sets     WORD" in screen_text(app)
        assert "--image-set pip=einops --image-set 'pip=rich>=13'" in command_line(screen.form())
        await typed(app, pilot, " 'half")
        await until(pilot, lambda: "▾ Image and environment  ✗ No closing quotation" in screen_text(app))
        await pilot.press(*["backspace"] * len(" 'half"))


@pytest.mark.proof("1 s of a processor")
async def test_what_a_launch_of_late_held_stays_as_it_was_said_but_for_what_is_edited(
    app: SkywardApp,
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await launch_form(app, pilot, "train.py")
        await until(pilot, lambda: "▸ Image and environment  as they are by default" in screen_text(app))
        screen.query_one("#image_settings").focus()
        await pilot.press("down")
        kept = shlex.join(["setup=make one", "setup=make two", "pip=torch", "env.A="])
        screen._fill(replace(screen.form(), image_settings=kept))
        await until(pilot, lambda: "make one && make two" in screen_text(app))
        assert screen.form().image_settings == kept
        fields = screen.query_one("#image-arguments", ArgumentFields)
        pip = fields.field_of("pip")
        assert isinstance(pip, Input)
        pip.value = "torch jax"
        left = ("setup=make one", "setup=make two", "pip=torch", "pip=jax", "env.A=")
        await until(pilot, lambda: sorted(build_request(screen.form()).image_settings) == sorted(left))
