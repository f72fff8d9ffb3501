"""A worker of the app that fails shows its error where it belongs, and the app goes on."""

from __future__ import annotations

from typing import Any

import pytest
from textual.widgets import Static
from textual.worker import WorkerFailed

from skyward_core.client import ssh_hosts
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.dialog import AskScreen
from skyward_tui.panels.log import LogPanel
from skyward_tui.screens.hosts import HostsScreen
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.shared_hosts import put_groups

WORKERS_FAIL = True
SIZE = (160, 48)
DEFECT = "✗ internal error: KeyError: 'odd'. This is a bug; --debug writes its traceback to the log"


async def fails() -> None:
    raise KeyError("odd")


async def test_a_look_at_hosts_that_fails_leaves_the_app_open(app: SkywardApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: Any) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(ssh_hosts, "list_gpu_use", look)
    put_groups()
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.session is not None)
        await pilot.press("s")
        await until(pilot, lambda: DEFECT in screen_text(app))
        assert isinstance(app.screen, HostsScreen) and "probing …" not in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, HostsScreen))
    assert not app.return_code


@pytest.mark.parametrize("where", ["panel", "part of a panel", "screen", "app", "dialog"])
async def test_an_error_stands_where_its_worker_belongs(app: SkywardApp, session: FakeSession, where: str) -> None:
    key = session.pool("llama-ft").key
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.session is not None)
        app.show_run(key, "")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        panel = app.screen.query_one(LogPanel)
        if where == "dialog":
            app.push_screen(AskScreen("a question"))
            await until(pilot, lambda: isinstance(app.screen, AskScreen))
        nodes = {
            "panel": panel, "part of a panel": next(iter(panel.query(Static))), "screen": app.screen, "app": app,
            "dialog": app.screen,
        }  # fmt: skip
        nodes[where].run_worker(fails())
        await until(pilot, lambda: DEFECT in screen_text(app))
        boxes = [each for each in app.screen.query("LogPanel, #dialog") if "✗" in str(each.border_subtitle)]
        assert len(boxes) == (where not in ("screen", "app"))
        assert ("─ ✗ KeyError: 'odd' ─" in screen_text(app)) == bool(boxes)
    assert not app.return_code


async def test_an_app_without_a_session_can_be_left() -> None:
    def no_session() -> FakeSession:
        raise KeyError("odd")

    app = SkywardApp(no_session)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert app.return_code == 0 and app.session_error == "KeyError: 'odd'"


async def test_a_failing_paint_ends_the_app(app: SkywardApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def pump(self: SkywardApp) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(SkywardApp, "_refresh_screen", pump)
    with pytest.raises(WorkerFailed, match="odd"):
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: not app.is_running)
    assert app.return_code == 1
