"""The panel of nodes: a cursor among them, and what was said of each on its way."""

from __future__ import annotations

import pytest

from skyward_core.views import events
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels.node_phases import MAX_DETAIL_LINES, PhaseBoard
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession


@pytest.mark.usefixtures("painted")
async def test_enter_shows_what_the_installer_printed_last(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 3, state="starting", phase="requested")
    at = session.now - 60
    for number in range(30):
        line = f"Downloading part-{number:02}.whl"
        session.emit(view, events.NodePhase(pool="llama-ft", node=1, phase="installed", detail=line, at=at + number))
    late = events.NodePhase(
        pool="llama-ft", node=2, phase="running", detail="connection refused", at=at, retry_at=session.now + 7
    )
    session.emit(view, late)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "▶" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("3")
        await until(pilot, lambda: isinstance(app.focused, PhaseBoard))
        await until(pilot, lambda: "retry 0:07" in screen_text(app) and "part-29" in screen_text(app))
        assert "part-28" not in screen_text(app)
        await pilot.press("down", "enter")
        await until(pilot, lambda: "part-28" in screen_text(app))
        await pilot.press("z")
        await until(pilot, lambda: f"part-{30 - MAX_DETAIL_LINES}" in screen_text(app))
        assert "part-28" in screen_text(app) and f"part-{29 - MAX_DETAIL_LINES}" not in screen_text(app)
        session.emit(view, events.NodePhase(pool="llama-ft", node=1, phase="ready", at=session.now))
        await until(pilot, lambda: "● ready" in screen_text(app))
        assert "part-29" in screen_text(app), "it stays to be read"
        await pilot.press("enter")
        await until(pilot, lambda: "part-28" not in screen_text(app))
        await pilot.press("up", "enter")
        await until(pilot, lambda: "nothing was said of it so far" in screen_text(app))
        session.emit(view, events.NodePhase(pool="llama-ft", node=0, phase="ready", at=session.now))
        await until(pilot, lambda: "or only where the pool was started" in screen_text(app))
        rows = screen_text(app).splitlines()
        place = next(y for y, row in enumerate(rows) if " n2 " in row)
        await pilot.click(offset=(6, place))
        await until(pilot, lambda: screen_text(app).count("connection refused") == 2)
