"""Ways out of the app that only look like the end: a teardown that failed, one that goes on behind its dialog."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input

from skyward_core.store.ledger_rows import Receipt
from skyward_tui.app.app import FRAMES, FRAMES_OVER_SSH, SkywardApp
from skyward_tui.dialogs.confirmations import QuitScreen, TeardownScreen
from skyward_tui.screens.pool_list import PoolsScreen
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession

SIZE = (100, 30)
LEFT = Receipt("paid", 1, (), ("i-0123",), 9.0)


async def asked(app: SkywardApp, pilot: Pilot[None], *keys: str) -> None:
    """Come to the dialog by keys."""
    await until(pilot, lambda: "▶ " in screen_text(app))
    await pilot.press(*keys)
    await until(pilot, lambda: isinstance(app.screen, TeardownScreen))


async def quit_by_tearing_down(app: SkywardApp, pilot: Pilot[None], word: str) -> None:
    await until(pilot, lambda: "▶ " in screen_text(app))
    await pilot.press("q")
    await until(pilot, lambda: isinstance(app.screen, QuitScreen))
    app.screen.dismiss("down")
    await until(pilot, lambda: isinstance(app.screen, TeardownScreen))
    app.screen.query_one("#answer", Input).focus()
    await pilot.press(*word, "enter")


async def test_a_pool_that_costs_money_wants_its_name_though_it_has_one_node(
    app: SkywardApp, session: FakeSession
) -> None:
    session.pool("paid", 1, price=4.0)
    async with app.run_test(size=SIZE) as pilot:
        await asked(app, pilot, "X")
        assert app.screen.query_one("#down", Button).disabled
        assert app.screen.query_one("#answer", Input).display
        assert "Type the pool's name" in screen_text(app)


async def test_the_app_stays_where_a_teardown_on_the_way_out_failed(app: SkywardApp, session: FakeSession) -> None:
    session.auto = False
    session.pool("paid", 1, price=4.0)
    session.downing["paid"] = future = Future[Any]()
    async with app.run_test(size=SIZE) as pilot:
        await quit_by_tearing_down(app, pilot, "paid")
        await until(pilot, lambda: session.torn_down == ["paid"])
        future.set_result(LEFT)
        await until(pilot, lambda: "unaccounted 1: i-0123" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))
        assert app.is_running and not session.detached


async def test_who_chose_to_tear_down_on_the_way_out_is_not_asked_again(app: SkywardApp, session: FakeSession) -> None:
    session.pool("free", 1)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "▶ " in screen_text(app))
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        app.screen.dismiss("down")
        await until(pilot, lambda: session.torn_down == ["free"])


async def test_hiding_a_teardown_on_the_way_out_is_no_way_out(app: SkywardApp, session: FakeSession) -> None:
    session.auto = False
    session.pool("paid", 1, price=4.0)
    async with app.run_test(size=SIZE) as pilot:
        await quit_by_tearing_down(app, pilot, "paid")
        await until(pilot, lambda: session.torn_down == ["paid"])
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))
        session.finish_down("paid")
        await until(pilot, lambda: "paid: created 1, verified gone 1" in screen_text(app))
        assert app.is_running and not session.detached


@pytest.mark.parametrize(("connection", "frames"), [("", FRAMES), ("10.0.0.1 1 10.0.0.2 22", FRAMES_OVER_SSH)])
def test_over_ssh_and_at_rest_the_app_paints_less_often(
    app: SkywardApp, connection: str, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection:
        monkeypatch.setenv("SSH_CONNECTION", connection)
    assert app._refresh_interval == 1 / frames, "it has just begun"
    app._lively_until = 0.0
    assert app._refresh_interval == 1 / FRAMES_OVER_SSH, "nobody is there, and nothing comes"
    app._last_refresh = (None, time.monotonic())
    assert app._refresh_interval == 1 / frames, "something has come"
    assert FRAMES_OVER_SSH < FRAMES
