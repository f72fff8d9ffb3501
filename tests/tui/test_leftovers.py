"""The app says what accounts hold that nobody needs: when it starts, and after rented machines have ended."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from skyward_core.front.sweeping import Found, Sweep
from skyward_core.model.errors import PoolError
from skyward_core.model.leftover import Leftover
from skyward_tui.app import SkywardApp
from skyward_tui.dialogs.teardown import TeardownScreen
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession

MACHINE = Leftover("instance", "i-1", "us-east-1", "p", "t", "l", True, "me", is_machine=True, hourly=1.5)
SIZE = (100, 30)


async def test_what_is_left_is_said_at_the_start_and_nothing_else_waits_for_it(
    app: SkywardApp, session: FakeSession
) -> None:
    answer: Future[Sweep] = Future()
    session.sweep = lambda: answer  # type: ignore[method-assign]
    session.pool("p", 2)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "▶ " in screen_text(app))
        answer.set_result(Sweep((), [Found(MACHINE, "left", 0)]))
        await until(
            pilot,
            lambda: (
                "1 machine ($1.50/h) of pools that are over is left: skyward-tui sweep" in screen_text(app)
            ),
        )


async def test_accounts_that_cannot_be_asked_are_no_alarm(app: SkywardApp, session: FakeSession) -> None:
    failed: Future[Sweep] = Future()
    failed.set_exception(PoolError("no such profile"))
    session.sweep = lambda: failed  # type: ignore[method-assign]
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "could not look for what is left: no such profile" in screen_text(app))


@pytest.mark.parametrize("price", [1.0, 0.0])
async def test_it_looks_again_after_rented_machines_have_ended(
    app: SkywardApp, session: FakeSession, price: float
) -> None:
    session.pool("p", 1, price=price)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "▶ " in screen_text(app) and session.sweeps == 1)
        session.swept = Sweep((), [], {}, {"us-east-1": "no answer"})
        await pilot.press("X")
        await until(pilot, lambda: isinstance(app.screen, TeardownScreen))
        await pilot.press(*("p", "enter") if price else ("tab", "enter"))
        await until(pilot, lambda: "Torn down" in screen_text(app))
        assert session.torn_down == ["p"] and session.sweeps == (2 if price else 1)
