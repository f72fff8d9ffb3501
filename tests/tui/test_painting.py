"""Painting: changed rows only, one pulse for a change, and form messages that move lines below."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from math import inf
from random import Random
from typing import Any

import pytest
from textual import events
from textual._compositor import Compositor
from textual.app import App, ComposeResult
from textual.content import Content
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Label, Static

from skyward_core.views import events as ev
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels.rank_states_and_heat_map import RankList
from skyward_tui.screens.home_runs_and_pools import PoolList
from skyward_tui.screens.run import RunScreen
from skyward_tui.text import rank_states_from_views
from skyward_tui.widgets.form_fields import update_label
from skyward_tui.widgets.virtual_list import HIGHLIGHT_STYLE, changed_keys
from tests.support.app_driver import press, until
from tests.support.fake_session import FakeSession
from tests.support.own_home import set_own

PAINTS = True


async def board_of(app: SkywardApp, session: FakeSession, pilot: Any) -> RankList:
    view, _ = session.pool_with_run("llama-ft", 12)
    await until(pilot, lambda: app.session is not None)
    app.show_pool(view.key)
    await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
    board = app.screen.query_one("RanksPanel RankList", RankList)
    await until(pilot, lambda: len(board.states) == 12 and board.mode == "table")
    painted(board)
    return board


def painted(board: RankList) -> list[list[Any]]:
    board.render_lines(board.size.region)
    return [list(board.render_line(y)) for y in range(len(board._lines_now()))]


async def test_incremental_rows_equal_a_full_paint(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        board = await board_of(app, session, pilot)
        for about in ("as it is", "another row chosen", "another state", "another theme", "no row"):
            if about == "another row chosen":
                board.selected = 3
            elif about == "another state":
                board.update([state._replace(state="raised") for state in board.states[:5]])
            elif about == "another theme":
                app.theme = "skyward-light"
                await pilot.pause()
            elif about == "no row":
                board.update([])
            ours = painted(board)
            Widget._render_content(board)
            assert ours == [list(line) for line in board._render_cache.lines if board.states], about


async def test_unchanged_rank_rows_are_not_formatted_again(
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
            board.update([state._replace(state="raised") for state in board.states])
            board.update([state._replace(state="running") for state in board.states])
            if chosen:
                board.selected = chosen
            ours = painted(board)
            assert len(made) == 13 + (12 if chosen else 0), "failed ranks share a row"
            Widget._render_content(board)
            assert ours == [list(line) for line in board._render_cache.lines]
        board.update([state._replace(state="raised") for state in board.states])
        board.update([state._replace(state="lost") for state in board.states])
        assert "lost" in str(painted(board))


def test_notes_are_formatted_for_visible_ranks_only(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    view, run = session.pool_with_run("wide", 64)
    view.metrics.add_values(run.id, 5, session.now, {"step": 1234})
    lines: list[object] = []

    def noted(numbers: Any) -> str:
        lines.append(numbers)
        return "told"

    monkeypatch.setattr(rank_states_from_views, "format_metrics", noted)
    states = rank_states_from_views.rank_states(view, run, session.now)
    assert not lines
    assert states[5].note == "told" and lines == [{"step": 1234.0}]


async def test_unchanged_row_is_not_painted(
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


async def test_key_press_is_painted_at_once(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        board = await board_of(app, session, pilot)
        # Textual's next turn to paint never comes, and a busy machine does not make the key old.
        monkeypatch.setattr("skyward_tui.app.app.REPAINT_SECONDS", inf)
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
            # No turn of the screen comes between: it would use up the repaints of the key.
            monkeypatch.setattr(app, "_refresh_screen", lambda: None)
            app.post_message(events.Key("right_square_bracket", "]"))
            while 1 not in shown:
                await asyncio.sleep(0.01)


MOVES = True


def test_changed_keys_exclude_added_and_removed_ones() -> None:
    assert changed_keys({1: "running", 2: "idle"}, {1: "raised", 2: "idle", 3: "running"}) == {1}
    assert changed_keys({}, {1: "running"}) == changed_keys({1: "running"}, {}) == frozenset()


def stands_out(widget: PoolList | RankList) -> bool:
    return any(HIGHLIGHT_STYLE in str(span.style) for span in widget.render().spans)


async def test_changed_pool_and_rank_are_highlighted_briefly(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    async with app.run_test(size=(120, 40)) as pilot:
        listed = app.screen.query_one(PoolList)
        await until(pilot, lambda: bool(listed.rows))
        assert not stands_out(listed), "what is new has not changed"
        session.emit(view, ev.PoolState(pool=view.name, state="degraded", detail="", at=session.now))
        await until(pilot, lambda: stands_out(listed))
        await until(pilot, lambda: not stands_out(listed))
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        board = app.screen.query_one("RanksPanel RankList", RankList)
        await until(pilot, lambda: bool(board.states))
        session.end_rank(view, run, 1)
        await until(pilot, lambda: stands_out(board))
        await until(pilot, lambda: not stands_out(board))


@pytest.mark.parametrize("why", ["motion = false", "NO_COLOR"])
async def test_highlights_are_off_without_motion_or_colour(
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
        session.emit(view, ev.PoolState(pool=view.name, state="degraded", detail="", at=session.now))
        await until(pilot, lambda: "degraded" in listed.render().plain)
        assert not stands_out(listed)


class Form(App[None]):
    CSS = "Static { width: 1fr; height: auto; }"

    def compose(self) -> ComposeResult:
        yield Static(id="line", markup=False)
        yield Label("below")


async def test_layout_is_computed_only_if_a_label_changes_its_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out = []
    refresh = Screen._refresh_layout

    def counted(self: Screen[None], *given: Any, **more: Any) -> None:
        laid_out.append(self)
        refresh(self, *given, **more)

    monkeypatch.setattr(Screen, "_refresh_layout", counted)
    app = Form()
    async with app.run_test(size=(20, 10)) as pilot:
        line, below = app.query_one("#line", Static), app.query_one(Label)

        async def paint(text: Content) -> tuple[str, int, bool]:
            laid_out.clear()
            update_label(line, text)
            await pilot.pause()
            shown = "\n".join(strip.text.rstrip() for strip in line.render_lines(line.size.region))
            return shown, below.region.y, bool(laid_out)

        assert await paint(Content("wants int")) == ("wants int", 1, True)
        assert await paint(Content("wants int")) == ("wants int", 1, False)
        assert await paint(Content("wants float")) == ("wants float", 1, False)
        wrapped = "wants a number of\nseconds, minutes or\nhours"
        assert await paint(Content(wrapped.replace("\n", " "))) == (wrapped, 3, True)
        assert await paint(Content("1\n2")) == ("1\n2", 2, True)
        coloured = Content.styled("1\n2", "red")
        assert await paint(coloured) == ("1\n2", 2, False)
        assert line.content is coloured, "other colours are no other rows, but are shown"
        await pilot.resize_terminal(10, 10)
        await until(pilot, lambda: line.size.width == 10)
        assert await paint(Content("wants float")) == ("wants\nfloat", 2, False)


@pytest.mark.proof("0.8 s of a processor")
async def test_partial_update_equals_the_one_of_textual(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await board_of(app, session, pilot)
        ours = app.screen._compositor
        random = Random(45)
        for _ in range(60):
            parts = set()
            for _ in range(random.randint(1, 4)):
                x, y = random.randrange(120), random.randrange(40)
                parts.add(Region(x, y, random.randint(1, 120 - x), random.randint(1, min(3, 40 - y))))
            texts = []
            for renders in (ours._get_renders, partial(Compositor._get_renders, ours)):
                ours._dirty_regions = set(parts)
                ours._get_renders = renders  # type: ignore[method-assign]
                update = ours.render_partial_update()
                assert update is not None
                # Textual also moves the cursor to widgets beside a region, and writes nothing there.
                texts.append(re.sub(r"\x1b\[\d+;\d+H(?=\n|\x1b\[\d+;\d+H|$)", "", update.render_segments(app.console)))
            del ours._get_renders
            assert texts[0] == texts[1]


async def test_covered_widget_is_not_rendered(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        board = await board_of(app, session, pilot)
        compositor, region = app.screen._compositor, board.region
        compositor._dirty_regions = {Region(region.x, region.y + 1, region.width, 2)}
        rendered: list[tuple[Widget, Region]] = []
        for widget in compositor.visible_widgets:
            widget.render_lines = partial(record_lines, rendered, widget, widget.render_lines)  # type: ignore[method-assign]
        compositor.render_partial_update()
        for widget in compositor.visible_widgets:
            del widget.render_lines
        assert rendered == [(board, Region(0, 1, region.width, 2))]


def record_lines(rendered: list[tuple[Widget, Region]], widget: Widget, render: Any, crop: Region) -> Any:
    rendered.append((widget, crop))
    return render(crop)
