"""What has changed stands out once, and not for those who want no motion."""

from __future__ import annotations

import pytest

from skyward_core.views import events
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels.ranks import RankList
from skyward_tui.screens.pool_list import PoolList
from skyward_tui.screens.run import RunScreen
from skyward_tui.widgets.virtual_list import HIGHLIGHT_STYLE, changed_keys
from tests.support.app_driver import until
from tests.support.fake_session import FakeSession
from tests.support.own_home import set_own

MOVES = True


def test_only_what_was_there_before_can_have_changed() -> None:
    assert changed_keys({1: "running", 2: "idle"}, {1: "raised", 2: "idle", 3: "running"}) == {1}
    assert changed_keys({}, {1: "running"}) == changed_keys({1: "running"}, {}) == frozenset()


def stands_out(widget: PoolList | RankList) -> bool:
    return any(HIGHLIGHT_STYLE in str(span.style) for span in widget.render().spans)


async def test_a_pool_and_a_rank_that_change_stand_out_for_a_moment(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 2)
    run = session.open_run(view)
    async with app.run_test(size=(120, 40)) as pilot:
        listed = app.screen.query_one(PoolList)
        await until(pilot, lambda: bool(listed.rows))
        assert not stands_out(listed), "what is new has not changed"
        session.emit(view, events.PoolState(pool=view.name, state="degraded", detail="", at=session.now))
        await until(pilot, lambda: stands_out(listed))
        await until(pilot, lambda: not stands_out(listed))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        board = app.screen.query_one("RanksPanel RankList", RankList)
        await until(pilot, lambda: bool(board.states))
        session.end_rank(view, run, 1)
        await until(pilot, lambda: stands_out(board))
        await until(pilot, lambda: not stands_out(board))


@pytest.mark.parametrize("why", ["motion = false", "NO_COLOR"])
async def test_who_wants_no_motion_sees_none(
    app: SkywardApp, session: FakeSession, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        set_own("[app]\nmotion = false\n")
    view = session.pool("llama-ft", 2)
    async with app.run_test(size=(120, 40)) as pilot:
        listed = app.screen.query_one(PoolList)
        await until(pilot, lambda: bool(listed.rows))
        session.emit(view, events.PoolState(pool=view.name, state="degraded", detail="", at=session.now))
        await until(pilot, lambda: "degraded" in listed.render().plain)
        assert not stands_out(listed)
