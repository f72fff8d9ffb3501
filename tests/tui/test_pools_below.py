"""Below a short list of pools stand the runs of late."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from skyward_core.client.run_history import PastRun
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.pool_list import PoolList
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import NOW, FakeSession
from tests.support.past import past_run


async def test_runs_of_late_stand_where_the_list_leaves_room(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_tui.screens.pool_list.LOOK", 0.0)
    view = session.pool("llama-ft", 2)
    session.past = [
        past_run(1, function="first_of_all"),
        past_run(2, state="failed", error="r3 OSError: disk full"),
        past_run(3, run="", function="", state="gone"),
    ]
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "recent runs  H shows all" in screen_text(app))
        shown = screen_text(app).split("recent runs")[1]
        assert "first_of_all" in shown and "disk full" in shown and "(no run)" not in shown
        assert "gone" not in shown, "a pool that had no run is none"
        session.past = [past_run(0, function="newest"), *session.past]
        session.open_run(view)
        await until(pilot, lambda: "newest" in screen_text(app))
        await pilot.resize_terminal(100, 48)
        await until(pilot, lambda: "recent runs" not in screen_text(app))
        await pilot.resize_terminal(160, 48)
        await until(pilot, lambda: "recent runs" in screen_text(app))
        for number in range(40):
            session.pool(f"many-{number}", 1)
        await until(pilot, lambda: "recent runs" not in screen_text(app))
        assert screen_text(app).count("● up") > 35, "pools come first"


async def test_who_leaves_while_they_are_read_leaves_an_app_that_has_not_failed(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: Future[list[PastRun]] = Future()
    asked: list[object] = []

    def past_runs(search: object) -> Future[list[PastRun]]:
        asked.append(search)
        return reading

    monkeypatch.setattr(session, "past_runs", past_runs)
    # A screen that goes loses its list first.
    monkeypatch.setattr(PoolList, "on_unmount", lambda *event: reading.set_result([]), raising=False)
    session.pool("llama-ft", 2)
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: bool(asked))
    assert reading.done() and app._exception is None


async def test_without_a_past_the_list_has_all_the_room(app: SkywardApp, session: FakeSession) -> None:
    session.pool("llama-ft", 2)
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "▶ llama-ft" in screen_text(app))
        await pilot.pause()
        assert "recent runs" not in screen_text(app)


async def test_the_time_of_a_run_that_goes_on_does_not_stand_still(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = session.pool("llama-ft", 2)
    session.open_run(view)
    session.past = [past_run(1, state="running", opened_at=session.now, ended_at=None)]
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "recent runs" in screen_text(app))
        for seconds in (5, 11):
            session.now += seconds
            await until(pilot, lambda: f"0:{session.now - NOW:02.0f}" in screen_text(app).split("recent runs")[1])
