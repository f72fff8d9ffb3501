"""Navigation between widgets and screens: jump letters and breadcrumbs."""

from __future__ import annotations

import re

import pytest

from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.confirmations import TeardownScreen
from skyward_tui.dialogs.help_and_focus_jump import JumpScreen
from skyward_tui.screens.errors import ErrorsScreen
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs
from tests.support.app_driver import on_launch_form, on_run_screen, press, running_app, screen_text, until
from tests.support.fake_session import FakeSession, failed_run


@pytest.mark.parametrize("width", [80, 120])
async def test_jump_letter_focuses_a_panel(app: SkywardApp, session: FakeSession, width: int) -> None:
    failed_run(session, session.pool("llama-ft"))
    async with on_run_screen(app, (width, 40)) as (pilot, _):
        run = app.screen
        assert isinstance(run, RunScreen)
        await press(pilot, "apostrophe", until=lambda: isinstance(app.screen, JumpScreen))
        jump = app.screen
        assert isinstance(jump, JumpScreen)
        assert len(jump._targets) == (4 if width > 100 else 1)
        for letter, widget in jump._targets.items():
            assert re.match(f".{{{widget.region.x}}} {letter} ", screen_text(app).splitlines()[widget.region.y])
        await press(pilot, "f" if width > 100 else "a", until=lambda: app.screen is run)
        await until(pilot, lambda: run.active == ("phases" if width > 100 else "log"))


async def test_jump_closes_without_effect_on_other_keys_and_resize(app: SkywardApp, session: FakeSession) -> None:
    failed_run(session, session.pool("llama-ft"))
    async with running_app(app, (120, 40), until="▶ llama-ft") as pilot:
        below, focused = app.screen, app.screen.focused
        for leave in ("escape", "X", "question_mark", "f1"):
            await press(pilot, "apostrophe", until=lambda: isinstance(app.screen, JumpScreen))
            await press(pilot, leave, until=lambda: app.screen is below)
            assert below.focused is focused
        await press(pilot, "apostrophe", until=lambda: isinstance(app.screen, JumpScreen))
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: app.screen is below)


@pytest.mark.proof("2 s of a processor")
async def test_ctrl_l_opens_jump_while_text_is_typed(app: SkywardApp, session: FakeSession) -> None:
    async with on_launch_form(app, (120, 40), "a'b") as (pilot, form):
        assert isinstance(form, LaunchScreen)
        await pilot.press("apostrophe")
        assert form.query_one("#script").value == "a'b'"  # type: ignore[attr-defined]
        await press(pilot, "ctrl+l", until=lambda: isinstance(app.screen, JumpScreen))
        jump = app.screen
        assert isinstance(jump, JumpScreen)
        letter = next(key for key, widget in jump._targets.items() if widget.id == "nodes")
        await press(pilot, letter, until=lambda: form.focused is not None and form.focused.id == "nodes")


async def test_jump_reaches_buttons_of_a_dialog(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    async with running_app(app, (120, 40), until=lambda: app.session is not None) as pilot:
        await app.push_screen(TeardownScreen([view.key]))
        dialog = app.screen
        await until(pilot, lambda: dialog.focused is not None)
        await press(pilot, "ctrl+l", until=lambda: isinstance(app.screen, JumpScreen))
        assert " a " in screen_text(app)
        await press(pilot, "a", until=lambda: app.screen is dialog)
        assert not session.torn_down


# The way to a screen stands above it, and leads back by a click.


async def test_click_on_a_breadcrumb_opens_its_screen(app: SkywardApp, session: FakeSession) -> None:
    failed_run(session, session.pool("llama-ft"))
    async with on_run_screen(app, (120, 40)) as (pilot, _):
        await press(pilot, "e", until=lambda: isinstance(app.screen, ErrorsScreen) and "errors" in screen_text(app))
        trail = app.screen.query_one(Breadcrumbs).trail
        await pilot.click(Breadcrumbs, offset=(len(" pools › "), 0))
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await press(pilot, "e", until=lambda: isinstance(app.screen, ErrorsScreen) and "errors" in screen_text(app))
        await pilot.click(Breadcrumbs, offset=(len(" " + " › ".join(trail)) - 2, 0))
        await pilot.click(Breadcrumbs, offset=(len(" pools "), 0))
        assert isinstance(app.screen, ErrorsScreen), "here is here, and between two is nowhere"
        await pilot.click(Breadcrumbs, offset=(2, 0))
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen) and len(app.screen_stack) == 1)


@pytest.mark.proof("1 s of a processor")
async def test_breadcrumb_does_not_leave_a_launch_that_creates_a_pool(app: SkywardApp, session: FakeSession) -> None:
    async with running_app(app, (120, 40), until=lambda: app.session is not None) as pilot:
        await press(pilot, "n", until=lambda: isinstance(app.screen, LaunchScreen) and "launch" in screen_text(app))
        app.screen._creating = True  # type: ignore[attr-defined]
        await pilot.click(Breadcrumbs, offset=(2, 0))
        assert isinstance(app.screen, LaunchScreen)
        app.screen._creating = False  # type: ignore[attr-defined]
        await pilot.click(Breadcrumbs, offset=(2, 0))
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))
