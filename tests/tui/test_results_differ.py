"""Two ranks' results compared, and ranks that disagree, on the run screen, by keys."""

from __future__ import annotations

from skyward_tui.app import SkywardApp
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import screen_text, typed, until
from tests.support.fake_session import FakeSession, value


async def test_who_disagrees_is_named_and_two_are_compared(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 4)
    run = session.open_run(view)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "▶" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        await pilot.press("d")
        await until(pilot, lambda: "no two results yet" in screen_text(app))
        for rank in range(4):
            told = {"loss": 0.5 if rank == 2 else 0.25, "rank": rank}
            session.end_rank(view, run, rank, summary=value(told))
        session.end_run(view, run)
        await until(pilot, lambda: "disagree   loss: r2 0.5; most have 0.25" in screen_text(app))
        await pilot.press("d", "enter")  # one that is as most, and the odd one, are offered
        await until(
            pilot, lambda: "r0 and r2 of train" in screen_text(app) and "2 values differ" in screen_text(app)
        )
        await pilot.press("escape", "d")
        await until(pilot, lambda: "Compare the results of two" in screen_text(app))
        await pilot.press("ctrl+a", "ctrl+k")
        await typed(app, pilot, "7,1")
        await pilot.press("enter")
        await until(pilot, lambda: "name two ranks of 4" in screen_text(app))
