"""The borders between panels can be moved: by keys, by the mouse, and they stay where they were left."""

from __future__ import annotations

import pytest
from textual.css.scalar import Scalar
from textual.pilot import Pilot

from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.run import LEAST_COLUMNS, BorderOffsets, PanelGrid, RunScreen, resize_tracks
from skyward_tui.ui.saved_state import load_state
from tests.support.app_driver import until
from tests.support.fake_session import FakeSession, value


def scalars(*texts: str) -> tuple[Scalar, ...]:
    return tuple(Scalar.parse(text) for text in texts)


@pytest.mark.parametrize(("by", "cells"), [(0, 46), (4, 50), (-4, 42), (-99, LEAST_COLUMNS), (99, 100 - LEAST_COLUMNS)])
def test_a_border_moves_until_a_panel_would_have_too_little(by: int, cells: int) -> None:
    found = resize_tracks(scalars("46", "1fr"), 0, by, 100, LEAST_COLUMNS)
    assert [(each.value, str(each.unit)) for each in found] == [
        (each.value, str(each.unit)) for each in scalars(f"{cells}", "1fr")
    ]


def test_one_panel_that_has_all_the_room_keeps_it() -> None:
    assert resize_tracks(scalars("1fr"), 0, 5, 100, 4) == scalars("1fr")
    assert resize_tracks(scalars("1fr"), 1, 5, 100, 4) == scalars("1fr")


async def opened(app: SkywardApp, session: FakeSession, pilot: Pilot[None]) -> RunScreen:
    view = session.views[0] if session.views else session.pool("llama-ft", 12)
    await until(pilot, lambda: app.session is not None)
    app.show_pool(view.key)
    await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
    assert isinstance(app.screen, RunScreen)
    await pilot.pause()
    return app.screen


def widths(screen: RunScreen) -> tuple[int, int]:
    """Columns of the ranks, rows of the nodes."""
    return screen.panels["ranks"].size.width, screen.panels["phases"].size.height


async def test_the_panel_that_is_looked_at_grows_and_shrinks_by_keys(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, session, pilot)
        ranks, nodes = widths(screen)
        await pilot.press("1", "right_parenthesis")
        await until(pilot, lambda: widths(screen) == (ranks + 4, nodes - 2))
        await pilot.press("z")
        await until(pilot, lambda: screen.panels["ranks"].size.width > 100)
        await pilot.press("z")
        await until(pilot, lambda: widths(screen) == (ranks + 4, nodes - 2))
        await pilot.press("left_parenthesis", "left_parenthesis")
        await until(pilot, lambda: widths(screen) == (ranks - 4, nodes + 2))
        await pilot.press("B")
        await until(pilot, lambda: widths(screen) == (ranks, nodes))


async def test_a_border_is_dragged_and_stands_there_the_next_time(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, session, pilot)
        ranks, nodes = widths(screen)
        edge = screen.panels["ranks"].region
        await pilot.mouse_down(offset=(edge.right - 1, edge.y + 5))
        await pilot.hover(offset=(edge.right + 9, edge.y + 5))
        await pilot.mouse_up(offset=(edge.right + 9, edge.y + 5))
        await until(pilot, lambda: widths(screen) == (ranks + 10, nodes))
        await pilot.mouse_down(offset=(5, edge.bottom - 1))
        await pilot.hover(offset=(5, edge.bottom - 5))
        await pilot.mouse_up(offset=(5, edge.bottom - 5))
        await until(pilot, lambda: widths(screen) == (ranks + 10, nodes + 4))
        await pilot.hover(offset=(50, 3))  # let go, it stays
        assert screen.query_one(PanelGrid).moved == BorderOffsets(10, 4)
        await pilot.press("q")
        await app.save_state()
    assert dict(load_state().screens["run"])["left"] == "10"
    again = SkywardApp(lambda: session, clock=lambda: session.now)
    async with again.run_test(size=(120, 40)) as pilot:
        screen = await opened(again, session, pilot)
        await until(pilot, lambda: widths(screen) == (ranks + 10, nodes + 4))


async def test_panels_take_the_rows_that_they_need_and_the_log_the_rest(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 2)
    run = session.open_run(view)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await opened(app, session, pilot)
        await until(pilot, lambda: screen.panels["phases"].size.height == 2)
        before = screen.panels["log"].size.height
        session.end_rank(view, run, 0, summary=value({"loss": 0.1, "accuracy": 0.9}))
        await until(pilot, lambda: screen.panels["results"].size.height == 5)  # two ranks, two means, names
        assert screen.panels["log"].size.height == before - 3
        await pilot.press("4", "right_parenthesis")
        await until(pilot, lambda: screen.panels["results"].size.height == 7)
