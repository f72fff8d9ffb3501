"""The run screen looks as it was left: after leaving it, after a restart; a file that makes no sense is told."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from skyward_core.front import settings
from skyward_core.views.views import PoolView
from skyward_tui.app import SkywardApp
from skyward_tui.screens.run import RunScreen
from skyward_tui.widgets.numbers import NumbersPane
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession, logged
from tests.tui.conftest import log_of


def made(session: FakeSession) -> SkywardApp:
    return SkywardApp(lambda: session, clock=lambda: session.now)


@pytest.fixture
def view(session: FakeSession) -> PoolView:
    view = session.pool("llama-ft")
    session.open_run(view)
    session.print(view, 0, "step=1\nnoise\nstep=2\n")
    return view


async def opened(app: SkywardApp, pilot: Pilot[Any]) -> RunScreen:
    await until(pilot, lambda: "▶ llama-ft" in screen_text(app))
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
    assert isinstance(app.screen, RunScreen)
    return app.screen


async def test_what_was_chosen_is_there_again(session: FakeSession, view: PoolView) -> None:
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("w", "t", "ampersand", *"step", "enter", "1", "a", "z")
        await until(pilot, lambda: screen.active == "ranks" and screen.has_class("-zoom"))
        await pilot.press("q")
        screen = await opened(app, pilot)
        await until(pilot, lambda: screen.active == "ranks" and screen.merged and screen.has_class("-zoom"))
        await pilot.press("ctrl+q")
        await until(pilot, lambda: "keep" in screen_text(app).lower())
        app._quit_as("keep")
        await until(pilot, lambda: not app.is_running)
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await until(pilot, lambda: screen.active == "ranks" and screen.merged and screen.has_class("-zoom"))
        pane = log_of(screen).pane
        assert pane.wrap and pane.times and pane.window.filter is not None
        assert "the log is filtered as you left it: step" in screen_text(app)
        await pilot.press("z", "2", "escape", "a")  # the filter, and back
        await until(pilot, lambda: pane.window.filter is None)
        assert not screen.has_class("-zoom")


async def test_charts_are_drawn_as_they_were_left(session: FakeSession, view: PoolView) -> None:
    logged(view, view.runs["llama-ft-1"], session)
    app = made(session)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await opened(app, pilot)
        await until(pilot, lambda: "tokens/s" in screen_text(app))
        await pilot.press("5", "b", "x", "c")
        pane = screen.query_one(NumbersPane)
        await until(pilot, lambda: pane.log_scale and pane.smooth and pane.all)
        await pilot.press("q")
        await until(pilot, lambda: not isinstance(app.screen, RunScreen))
        pane = (await opened(app, pilot)).query_one(NumbersPane)
        await until(pilot, lambda: "log scale  smo" in screen_text(app))
        assert pane.log_scale and pane.smooth and pane.all
        await pilot.press("b")
        await until(pilot, lambda: not pane.log_scale)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"version": 1, "screens": {"run": {"panel": "no-such", "filter": "", "zoom": "yes"}}}', False),
        ('{"version": 1, "screens": {"run": {"panel": "numbers"}}}', False),  # there are none yet
        ('{"version": 7}', True),
        ("{", True),
    ],
)
async def test_what_makes_no_sense_is_not_used(
    session: FakeSession, view: PoolView, text: str, told: bool
) -> None:
    settings.remember("app", text)
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session is not None and "llama-ft" in screen_text(app))
        assert ("how the app was left is not known" in screen_text(app)) is told
        screen = await opened(app, pilot)
        await until(pilot, lambda: screen.active == "log")
        assert not screen.has_class("-zoom") and not screen.merged


async def test_what_cannot_be_kept_is_told(
    session: FakeSession, view: PoolView, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(settings, "remember", full)
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        await pilot.press("w", "q")
        await until(pilot, lambda: "how the app looks is not kept: No space left" in screen_text(app))
