"""Lists paint the rows that have changed and no others, and the screen shows a key's doing without delay."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from textual import events
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget

from skyward_core.views import events as ev
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels.ranks import RankList
from skyward_tui.screens.run import RunScreen
from skyward_tui.widgets import rank_state
from tests.support.app_driver import until
from tests.support.fake_session import FakeSession

PAINTS = True


async def board_of(app: SkywardApp, session: FakeSession, pilot: Any) -> RankList:
    view = session.pool("llama-ft", 12)
    session.open_run(view)
    await until(pilot, lambda: app.session is not None)
    app.show_pool(view.key)
    await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
    board = app.screen.query_one("RanksPanel RankList", RankList)
    await until(pilot, lambda: len(board.states) == 12 and board.mode == "table")
    return board


def painted(board: RankList) -> list[list[Any]]:
    board.render_lines(board.size.region)
    return [list(board.render_line(y)) for y in range(len(board._lines or ()))]


async def test_rows_are_painted_as_the_whole_would_be(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        board = await board_of(app, session, pilot)
        for about in ("as it is", "another row chosen", "another state", "another theme", "no row"):
            if about == "another row chosen":
                board.selected = 3
            elif about == "another state":
                board.update([replace(state, state="raised") for state in board.states[:5]])
            elif about == "another theme":
                app.theme = "skyward-light"
                await pilot.pause()
            elif about == "no row":
                board.update([])
            ours = painted(board)
            Widget._render_content(board)
            assert ours == [list(line) for line in board._render_cache.lines if board.states], about


async def test_rows_that_were_compared_are_painted_as_they_are_unless_something_changes(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    row = RankList.row

    def noted(board: RankList, index: int, width: int) -> Any:
        made.append(index)
        return row(board, index, width)

    async with app.run_test(size=(160, 48)) as pilot:
        board = await board_of(app, session, pilot)
        monkeypatch.setattr(RankList, "row", noted)
        for chosen in (0, 3):
            made.clear()
            board.update([replace(state, state="raised") for state in board.states])
            board.update([replace(state, state="running") for state in board.states])
            if chosen:
                board.selected = chosen
            ours = painted(board)
            assert len(made) == 12 * (3 if chosen else 2), "once for each change, and to paint what a key has done"
            Widget._render_content(board)
            assert ours == [list(line) for line in board._render_cache.lines]
        board.update([replace(state, state="raised") for state in board.states])
        board.states = [replace(state, state="lost") for state in board.states]
        board.refresh()
        assert "lost" in str(painted(board))


def test_what_ranks_say_is_made_for_those_that_are_shown(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    view = session.pool("wide", 64)
    run = session.open_run(view)
    view.metrics.add_values(run.id, 5, session.now, {"step": 1234})
    lines: list[object] = []

    def noted(numbers: Any) -> str:
        lines.append(numbers)
        return "told"

    monkeypatch.setattr(rank_state, "format_metrics", noted)
    states = rank_state.rank_states(view, run, session.now)
    assert not lines
    assert states[5].note == "told" and lines == [{"step": 1234.0}]


async def test_a_row_that_is_as_it_was_is_not_painted(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        board = await board_of(app, session, pilot)
        asked: list[tuple[Region, ...]] = []
        monkeypatch.setattr(board, "refresh", lambda *regions, **_: asked.append(regions))
        board.selected = 1  # from here on the screen has no turn, which would choose its own row
        asked.clear()
        board.selected = 1
        assert not asked
        board.selected = 4
        assert [{region.y for region in regions} for regions in asked] == [{1, 4}]
        board.update(board.states[:5])
        assert asked[1:] == [()], "where rows come or go, all are"


async def test_what_a_key_does_is_painted_at_once(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        board = await board_of(app, session, pilot)
        # Textual's next turn to paint never comes.
        monkeypatch.setattr(Screen, "_update_timer", type("Never", (), {"resume": str, "pause": str})())
        shown: list[int] = []
        display = app._display

        def noted(*what: Any) -> None:
            shown.append(board.selected)
            display(*what)

        monkeypatch.setattr(app, "_display", noted)
        session.emit(session.pools()[0], ev.PoolState(pool="llama-ft", state="degraded", detail="", at=session.now))
        async with asyncio.timeout(15):
            while not app.screen._dirty_widgets:
                await asyncio.sleep(0.01)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not shown, "what comes of itself waits"
            app.post_message(events.Key("right_square_bracket", "]"))
            while 1 not in shown:
                await asyncio.sleep(0.01)
