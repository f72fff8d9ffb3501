"""Failures of the app itself and of its workers."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Static
from textual.worker import WorkerFailed

from skyward_core.client import ssh_host_groups_and_access
from skyward_core.client.session import Session
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.providers.local.provider import Local
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.basic_dialogs import AskScreen
from skyward_tui.panels.log import LogPanel
from skyward_tui.screens.hosts import HostsScreen
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import press, running_app, screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.shared_hosts import put_groups
from tests.support.terminal import Terminal

# A screen cannot be opened: a module does not fit the others, as where an update has put another one there.
FAILS = """
from skyward_tui.app import crash_and_system_reports as own_failure
from skyward_tui.screens import settings_and_keys as settings
def fails(self, *_):
    token = "hunter" + "2"
    raise ImportError("cannot import name 'fit' \x1b]52;c;b3duZWQ=\x1b\\\\")
settings.SettingsScreen.__init__ = fails
{more}
from skyward_tui.cli.main import main
main()
"""


def crash_output(home: Path, more: str = "") -> str:
    with closing(Terminal(home, (160, 48), program=("-c", FAILS.format(more=more)))) as terminal:
        terminal.until("q quit")
        terminal.press(",")
        assert terminal.ended() == 1
        return terminal.text


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
        session = Session()
        spec = PoolSpec(name="warm", provider=Local(), nodes=1, options=Options(console=False))
        session.create(spec).result(90)
        yield session
        session.tear_down("warm").result(90)
        session.detach()


def test_crash_report_names_pools_that_are_up_and_hides_variables(tmp_path: Path, warm: Session) -> None:
    text = crash_output(tmp_path / "home")
    assert "ImportError: cannot import name 'fit' �]52;c;b3duZWQ=�" in text and "hunter2" not in text
    assert "skyward-tui crashed. This is a bug:" in text
    assert "Pools and their runs are still up: warm. Run skyward-tui to see them again." in text
    assert [pool.state for pool in warm.pools()] == ["up"]


@pytest.mark.proof("1 s of a processor")
def test_crash_report_names_an_update_of_the_package_as_the_cause(tmp_path: Path) -> None:
    folder = tmp_path / "updated"
    folder.mkdir()
    (folder / "module.py").touch()
    os.utime(folder / "module.py", (time.time() + 60,) * 2)
    text = crash_output(tmp_path / "home", f"import pathlib\nown_failure.PACKAGES = (pathlib.Path({str(folder)!r}),)")
    assert "The files of skyward-tui changed while it was open, for example by an update. Start it again." in text
    assert "still up" not in text and "a bug" not in text


WORKERS_FAIL = True
SIZE = (160, 48)
DEFECT = "✗ internal error: KeyError: 'odd'. This is a bug; --debug writes its traceback to the log"


async def fails() -> None:
    raise KeyError("odd")


async def test_failing_gpu_scan_leaves_the_app_open(app: SkywardApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: Any) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(ssh_host_groups_and_access, "list_gpu_use", look)
    put_groups()
    async with running_app(app, SIZE, until=lambda: app.session is not None) as pilot:
        await press(pilot, "at", until=DEFECT)
        assert isinstance(app.screen, HostsScreen) and "probing …" not in screen_text(app)
        await press(pilot, "escape", until=lambda: not isinstance(app.screen, HostsScreen))
    assert not app.return_code


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("where", ["panel", "part of a panel", "screen", "app", "dialog"])
async def test_error_of_a_background_worker_is_shown_on_its_screen(
    app: SkywardApp, session: FakeSession, where: str
) -> None:
    key = session.pool("llama-ft").key
    async with running_app(app, SIZE, until=lambda: app.session is not None) as pilot:
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
        await until(pilot, DEFECT)
        boxes = [each for each in app.screen.query("LogPanel, #dialog") if "✗" in str(each.border_title)]
        assert len(boxes) == (where not in ("screen", "app"))
        assert screen_text(app).count("✗ KeyError: 'odd'") == len(boxes), "although a message covers the last border"
        session.now += 60
        await until(pilot, lambda: "internal error" not in screen_text(app))
        assert screen_text(app).count("✗ KeyError: 'odd'") == len(boxes)
    assert not app.return_code


async def test_app_without_a_session_can_be_quit() -> None:
    def no_session() -> FakeSession:
        raise KeyError("odd")

    app = SkywardApp(no_session)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "q", until=lambda: not app.is_running)
    assert app.return_code == 0 and app.session_error == "KeyError: 'odd'"


async def test_failing_screen_refresh_ends_the_app(app: SkywardApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def pump(self: SkywardApp) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(SkywardApp, "_refresh_screen", pump)
    with pytest.raises(WorkerFailed, match="odd"):
        async with running_app(app, SIZE, until=lambda: not app.is_running):
            pass
    assert app.return_code == 1


async def test_worker_that_is_cancelled_before_its_start_closes_its_coroutine(app: SkywardApp) -> None:
    async def work() -> None:
        raise AssertionError("it was cancelled")

    async with running_app(app, (80, 24), until="No pools yet") as pilot:
        coroutine = work()
        app.run_worker(coroutine).cancel()
        await until(pilot, lambda: inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED)


async def test_internal_error_ends_the_reading_of_stacks(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("train", 2)
    session.taking = Future()
    async with running_app(app, SIZE, until=lambda: app.session is not None) as pilot:
        app.show_stacks(view.key, run.id, lambda _: None)
        await until(pilot, "reading the stacks of all ranks")
        session.taking.set_exception(KeyError("odd"))
        await until(pilot, DEFECT)
        assert "reading the stacks" not in screen_text(app)
