"""Additional panel of the run screen: a file, and a row in the table of panels.

Screens, keys and help are built from the table on import, so this runs in its own process: ``python -m
tests.tui.sixth_panel``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from textual.widgets import Static

from skyward_tui.ui import run_screen_panel_list_and_layout

ROW = run_screen_panel_list_and_layout.PanelSpec(
    id="weather",
    number=8,
    title="weather",
    help="Go to the weather",
    made_by="tests.tui.sixth_panel:WeatherPanel",
    hints=("run.merge", "run.zoom"),
    empty="no weather so far: it comes with the first run",
    hides=True,
)
if __name__ == "__main__":  # before the imports of modules that read the table
    run_screen_panel_list_and_layout.PANELS = (*run_screen_panel_list_and_layout.PANELS, ROW)

from skyward_core.views.pool_view import PoolView, RunView  # noqa: E402
from skyward_tui.panels.panel import RunPanel, RunSelection  # noqa: E402


class WeatherPanel(RunPanel):
    """Panel that shows "sunny" while a run is active."""

    def __init__(self, row: run_screen_panel_list_and_layout.PanelSpec, show: Callable[[], None]) -> None:
        sky = Static(id=row.id)
        sky.can_focus = True
        super().__init__(row, show, sky)
        self._sky, self._seen = sky, ""

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        seen = "" if run is None else f"{'sunny' if run.state == 'running' else 'grey'} over rank {chosen.rank}"
        changed, self._seen, self.has_content = seen != self._seen, seen, run is not None
        if changed:
            self._sky.update(seen)
        return changed

    def clipboard_text(self) -> tuple[str, str]:
        return self._seen, "weather"


async def watch() -> None:
    """Check the panel in every place that shows panels."""
    from skyward_tui.app.app import SkywardApp
    from skyward_tui.dialogs.help_and_focus_jump import HelpScreen
    from skyward_tui.screens.run import RunScreen
    from tests.support.app_driver import press, running_app, screen_text, until
    from tests.support.fake_session import FakeSession

    session = FakeSession()
    view = session.pool("llama-ft")
    app = SkywardApp(lambda: session, clock=lambda: session.now)  # type: ignore[arg-type,return-value]
    async with running_app(app, (120, 40), until=lambda: app.session is not None and bool(app.pools())) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and "3 nodes" in screen_text(app))
        screen = app.screen
        assert isinstance(screen, RunScreen)
        await press(pilot, "8", until=lambda: ROW.empty in screen_text(app))
        assert "8 weather" not in screen_text(app) and screen.active != ROW.id

        session.open_run(view)
        await until(pilot, lambda: "╭─ 8 weather" in screen_text(app) and "sunny over rank 0" in screen_text(app))
        await press(pilot, "8", until=lambda: app.focused is screen.query_one("#weather") and screen.active == ROW.id)
        await press(pilot, "]", until="sunny over rank 1")
        await pilot.press("y")
        assert app.clipboard == "sunny over rank 1"
        await until(pilot, "copied weather")
        session.now += 60  # that message is over
        await until(pilot, lambda: screen_text(app).splitlines()[-1].startswith(" a all ranks  z zoom "))
        await pilot.press("z")
        await until(pilot, lambda: "╭─ 2 log" not in screen_text(app) and "sunny over rank 1" in screen_text(app))
        await press(pilot, "?", until=lambda: isinstance(app.screen, HelpScreen))
        assert isinstance(app.screen, HelpScreen)
        assert re.search(rf"7 +Go to the queue[^\n]*\n +8 +{ROW.help}\n", app.screen._text(200).plain)


if __name__ == "__main__":
    asyncio.run(watch())
