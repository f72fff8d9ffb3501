"""The way to a screen stands above it, and leads back by a click."""

from __future__ import annotations

from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.errors import ErrorsScreen
from skyward_tui.screens.launch.screen import LaunchScreen
from skyward_tui.screens.pool_list import PoolsScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.widgets.header_and_hints import Breadcrumbs
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession, failed_run


async def test_a_click_on_a_crumb_goes_there(app: SkywardApp, session: FakeSession) -> None:
    failed_run(session, session.pool("llama-ft"))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "▶" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, ErrorsScreen) and "errors" in screen_text(app))
        trail = app.screen.query_one(Breadcrumbs).trail
        await pilot.click(Breadcrumbs, offset=(len(" pools › "), 0))
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, ErrorsScreen) and "errors" in screen_text(app))
        await pilot.click(Breadcrumbs, offset=(len(" " + " › ".join(trail)) - 2, 0))
        await pilot.click(Breadcrumbs, offset=(len(" pools "), 0))
        assert isinstance(app.screen, ErrorsScreen), "here is here, and between two is nowhere"
        await pilot.click(Breadcrumbs, offset=(2, 0))
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen) and len(app.screen_stack) == 1)


async def test_a_launch_that_creates_something_is_not_left(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session is not None)
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and "launch" in screen_text(app))
        app.screen._creating = True  # type: ignore[attr-defined]
        await pilot.click(Breadcrumbs, offset=(2, 0))
        assert isinstance(app.screen, LaunchScreen)
        app.screen._creating = False  # type: ignore[attr-defined]
        await pilot.click(Breadcrumbs, offset=(2, 0))
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))
