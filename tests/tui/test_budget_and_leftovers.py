"""Budget dialogs of pools, and leftovers of cloud accounts."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from textual._context import visible_screen_stack
from textual.pilot import Pilot

from skyward_core.client.leftover_cleanup import JudgedLeftover, LeftoverScan
from skyward_core.model.errors import PoolError
from skyward_core.model.leftovers import Leftover
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.app.host_key_and_budget_questions import BudgetScreen
from skyward_tui.dialogs.basic_dialogs import AskScreen
from skyward_tui.dialogs.confirmations import TeardownScreen
from skyward_tui.screens.leftovers import DeleteLeftoversScreen, LeftoversScreen
from tests.support.app_driver import (
    SMALLEST,
    Size,
    Snap,
    at_every_size,
    press,
    previewed,
    running_app,
    screen_text,
    until,
)
from tests.support.fake_session import FakeSession, done
from tests.support.leftovers import leftovers


def spent(session: FakeSession, name: str = "train", ends_in: float = 600.0) -> PoolView:
    view = session.pool(name, price=25.0, age=3600.0)
    event = events.BudgetNews(pool=name, budget=25.0, state="asked", ends_at=session.now + ends_in, at=session.now)
    session.emit(view, event)
    return view


async def asked(app: SkywardApp, pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: isinstance(app.screen, BudgetScreen))


async def test_budget_can_be_raised_in_the_dialog(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        view = spent(session)
        await asked(app, pilot)
        assert session.asks_about_budgets
        assert "has cost $25.00 of its budget of $25.00" in screen_text(app)
        await press(pilot, "right", "enter", until=lambda: session.raised == [("train", 37.5)])
        assert view.budget == 37.5 and not isinstance(app.screen, BudgetScreen)


async def test_pool_is_torn_down_from_the_budget_dialog(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        spent(session)
        await asked(app, pilot)
        await press(pilot, "left", "enter", until=lambda: session.torn_down == ["train"])


async def test_budget_dialog_opens_once_per_pool_and_closes_when_answered_elsewhere(
    app: SkywardApp, session: FakeSession
) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        first = spent(session, "first")
        await asked(app, pilot)
        await press(pilot, "escape", until=lambda: not isinstance(app.screen, BudgetScreen))
        second = spent(session, "second")
        await asked(app, pilot)
        assert "second" in screen_text(app)
        session.emit(second, events.BudgetNews(pool="second", budget=99.0, state="within", at=session.now))
        await until(pilot, lambda: not isinstance(app.screen, BudgetScreen))
        assert session.raised == [] and session.torn_down == [] and first.budget_state == "asked"


async def test_budget_dialog_under_another_dialog_closes_later(app: SkywardApp, session: FakeSession) -> None:
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
async def test_budget_dialog_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    async with app.run_test(size=size) as pilot:
        spent(session)
        await asked(app, pilot)
        # Where there is no room for more, the dialog covers the list.
        shown = ["Tear down", "1 pool up", *([] if size == SMALLEST else ["▶ train"])]
        await until(pilot, lambda: all(each in screen_text(app) for each in shown))
        await until(pilot, lambda: previewed(app))
        snap(app, f"budget-{size[0]}x{size[1]}")


async def test_screen_text_includes_the_screen_below_a_dialog(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        spent(session)
        await asked(app, pilot)
        visible_screen_stack.set([])  # as it is here where the screen's own timer came before us
        assert "▶ train" in screen_text(app)


# The app says what accounts hold that nobody needs: when it starts, and after rented machines have ended.


MACHINE = Leftover("instance", "i-1", "us-east-1", "p", "t", "l", True, "me", is_machine=True, hourly=1.5)
SIZE = (100, 30)


async def test_leftovers_are_reported_at_the_start_without_delaying_it(app: SkywardApp, session: FakeSession) -> None:
    answer: Future[LeftoverScan] = Future()
    session.scan_leftovers = lambda *_, **__: answer  # type: ignore[method-assign]
    session.pool("p", 2)
    async with running_app(app, SIZE, until="▶ ") as pilot:
        answer.set_result(LeftoverScan((), [JudgedLeftover(MACHINE, "left", 0)]))
        await until(pilot, "leftovers of ended pools: 1 machine ($1.50/h); J in the list of pools: show them")


async def test_failing_leftover_scan_is_a_warning(app: SkywardApp, session: FakeSession) -> None:
    failed: Future[LeftoverScan] = Future()
    failed.set_exception(PoolError("no such profile"))
    session.scan_leftovers = lambda *_, **__: failed  # type: ignore[method-assign]
    async with running_app(app, SIZE, until="could not check for leftovers: no such profile"):
        pass


@pytest.mark.parametrize("price", [1.0, 0.0])
async def test_leftovers_are_scanned_again_after_cloud_machines_ended(
    app: SkywardApp, session: FakeSession, price: float
) -> None:
    session.pool("p", 1, price=price)
    async with running_app(app, SIZE, until=lambda: "▶ " in screen_text(app) and session.sweeps == 1) as pilot:
        session.swept = LeftoverScan((), [], {}, {"us-east-1": "no answer"})
        await press(pilot, "X", until=lambda: isinstance(app.screen, TeardownScreen))
        await press(pilot, "tab", "enter", until="Torn down")
        assert session.torn_down == ["p"] and session.sweeps == (2 if price else 1)


async def test_leftovers_of_a_pool_are_deleted_after_confirmation(app: SkywardApp, session: FakeSession) -> None:
    session.swept = leftovers()
    session.pool("llama-ft", 2)
    async with running_app(app, SIZE, until="! 2 machines ($34.27/h) and 1 other resource left") as pilot:
        await press(pilot, "J", until="could not check ap-south-1")
        await until(pilot, lambda: session.looks[-1] == ({"aws": (), "slurm": ()}, False, ()))
        await pilot.press("X")  # on the first, whose pool is up
        assert isinstance(app.screen, LeftoversScreen)
        await pilot.press("down", "X")
        await until(pilot, lambda: isinstance(app.screen, DeleteLeftoversScreen) and "choose" in screen_text(app))
        shown = screen_text(app)
        assert "pool lost: its pool is not in this ledger" in shown and "$39.00 so far" in shown
        await press(pilot, "enter", until="nothing was deleted")
        assert session.ended_left == []
        await press(pilot, "X", "right", "enter", until="Waiting for the account's confirmation")
        assert session.ended_left == [["i-0aaaaaaaaaaaaaaaa", "sg-0aaaaaaaaaaaaaaaa"]]
        looked = session.sweeps
        session.ending_left.set_result(["instance i-0aaaaaaaaaaaaaaaa (eu-west-1): no answer"])
        await until(pilot, "not deleted: instance i-0aaaaaaaaaaaaaaaa")
        assert app.screen.query_one("#dialog").border_title == "Some leftovers may remain"
        await until(pilot, lambda: session.sweeps == looked + 2)  # the screen's look, and the app's


async def test_leftovers_of_other_ledgers_are_listed_on_request(app: SkywardApp, session: FakeSession) -> None:
    session.swept = leftovers()
    async with running_app(app, SIZE, until=lambda: session.sweeps == 1) as pilot:
        await press(pilot, "J", until=lambda: session.sweeps == 2 and "of ledger 0123" in screen_text(app))
        await press(pilot, "r", until=lambda: session.sweeps == 3)
        await press(pilot, "a", until=lambda: session.looks[-1] == ({"aws": (), "slurm": ()}, True, ()))
        await pilot.press("G", "k", "enter")
        await until(pilot, lambda: session.looks[-1] == ({"aws": (), "slurm": ()}, True, ("0123456789abcdef",)))


async def test_leftover_scan_without_answer_blocks_no_key(app: SkywardApp, session: FakeSession) -> None:
    async with running_app(app, SIZE, until=lambda: session.sweeps == 1) as pilot:
        silent: Future[LeftoverScan] = Future()
        session.scan_leftovers = lambda *_, **__: silent  # type: ignore[method-assign]
        await press(pilot, "J", until="scanning accounts … 0:00")
        session.now += 7
        await until(pilot, "scanning accounts … 0:07")
        await press(pilot, "escape", until=lambda: not isinstance(app.screen, LeftoversScreen))
        session.scan_leftovers = lambda *_, **__: done(leftovers())  # type: ignore[method-assign]
        await press(pilot, "J", until="sweep-7")
        silent.set_result(LeftoverScan())
        await pilot.pause()
        assert "sweep-7" in screen_text(app)
