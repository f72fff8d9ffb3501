"""Pools that have cost what they may: the app asks what becomes of them."""

from __future__ import annotations

from typing import Any

from textual._context import visible_screen_stack
from textual.pilot import Pilot

from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.confirmations import BudgetScreen
from skyward_tui.dialogs.dialog import AskScreen
from tests.support.app_driver import SMALLEST, Snap, at_every_size, previewed, screen_text, until
from tests.support.fake_session import FakeSession


def spent(session: FakeSession, name: str = "train", ends_in: float = 600.0) -> PoolView:
    view = session.pool(name, price=25.0, age=3600.0)
    told = events.BudgetNews(pool=name, budget=25.0, state="asked", ends_at=session.now + ends_in, at=session.now)
    session.emit(view, told)
    return view


async def asked(app: SkywardApp, pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: isinstance(app.screen, BudgetScreen))


async def test_more_may_be_allowed(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        view = spent(session)
        await asked(app, pilot)
        assert session.asks_about_budgets
        assert "has cost $25.00 of its budget of $25.00" in screen_text(app)
        await pilot.press("right", "enter")
        await until(pilot, lambda: session.raised == [("train", 37.5)])
        assert view.budget == 37.5 and not isinstance(app.screen, BudgetScreen)


async def test_or_it_is_torn_down(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        spent(session)
        await asked(app, pilot)
        await pilot.press("left", "enter")
        await until(pilot, lambda: session.torn_down == ["train"])


async def test_who_says_nothing_is_asked_once_and_what_others_answer_is_not_asked(
    app: SkywardApp, session: FakeSession
) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        first = spent(session, "first")
        await asked(app, pilot)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, BudgetScreen))
        second = spent(session, "second")
        await asked(app, pilot)
        assert "second" in screen_text(app)
        session.emit(second, events.BudgetNews(pool="second", budget=99.0, state="within", at=session.now))
        await until(pilot, lambda: not isinstance(app.screen, BudgetScreen))
        assert session.raised == [] and session.torn_down == [] and first.budget_state == "asked"


async def test_one_that_lies_under_another_dialog_is_taken_back_later(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        view = spent(session)
        await asked(app, pilot)
        above = AskScreen("Something else")
        app.push_screen(above)
        await until(pilot, lambda: app.screen is above)
        session.emit(view, events.BudgetNews(pool="train", budget=99.0, state="within", at=session.now))
        app._refresh_screen()
        assert app.screen is above
        above.dismiss(None)
        await until(pilot, lambda: len(app.screen_stack) == 1)


@at_every_size
async def test_how_it_looks(app: SkywardApp, session: FakeSession, snap: Snap, size: tuple[int, int]) -> None:
    async with app.run_test(size=size) as pilot:
        spent(session)
        await asked(app, pilot)
        # Where there is no room for more, the dialog covers the list.
        shown = ["Tear down", "1 pool up", *([] if size == SMALLEST else ["▶ train"])]
        await until(pilot, lambda: all(each in screen_text(app) for each in shown))
        await until(pilot, lambda: previewed(app))
        snap(app, f"budget-{size[0]}x{size[1]}")


async def test_a_look_finds_what_lies_below_whoever_has_painted_last(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        spent(session)
        await asked(app, pilot)
        visible_screen_stack.set([])  # as it is here where the screen's own timer came before us
        assert "▶ train" in screen_text(app)
