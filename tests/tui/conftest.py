"""Fixtures of the app's tests: an app on a fake session with a stopped clock, and snapshots."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.screen import Screen

from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.launch_form.form import Form, python_script
from skyward_tui.panels.log import LogPanel
from tests.support.app_driver import (
    AS_TEXT,
    ask_who_is_busy,
    cut_anew,
    paint_on_demand,
    parse_once,
    screen_svg,
    screen_text,
    settled,
)
from tests.support.fake_session import FakeSession
from tests.support.quick_styles import match_once

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture(autouse=True)
def _own_world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")
    for name in ("SSH_CONNECTION", "TMUX", "STY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    for module in ("textual.app", "textual.pilot"):
        monkeypatch.setattr(f"{module}.wait_for_idle", settled)
    # The clock of these tests stands still, and what they change the app does not always hear of.
    monkeypatch.setattr("skyward_tui.app.app.LIVELY_SECONDS", 3600.0)
    # What has just changed would stand out in a picture, or not any more.
    if not getattr(request.module, "MOVES", False):
        monkeypatch.setattr("skyward_tui.app.app.SkywardApp.has_motion", False)
    time.tzset()
    parse_once(monkeypatch)
    cut_anew(monkeypatch)
    match_once(monkeypatch)
    ask_who_is_busy(monkeypatch)
    # A worker that fails fails the test, unless the test is about that.
    if not getattr(request.module, "WORKERS_FAIL", False):
        monkeypatch.setattr(SkywardApp, "_handle_exception", App._handle_exception)
    if not getattr(request.module, "PAINTS", False) and "painted" not in request.fixturenames:
        paint_on_demand(monkeypatch)


@pytest.fixture
def painted() -> None:
    """Paint immediately, for tests of widgets that depend on painting, such as scroll positions. Such modules set
    PAINTS.
    """


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def app(session: FakeSession) -> SkywardApp:
    return SkywardApp(lambda: session, clock=lambda: session.now)


def log_of(screen: Screen[Any]) -> LogPanel:
    """Return the log of a run screen."""
    return screen.query_one(LogPanel)


@pytest.fixture
def in_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the text of a launch as if Python did not know the folder of the test."""

    def written(form: Form, pools: Collection[PoolView]) -> str:
        return python_script(form, pools).replace(str(Path.cwd()), "/home/me/llama")

    monkeypatch.setattr("skyward_tui.launch_form.plan_computation_and_text.python_script", written)


@pytest.fixture
def snap() -> Callable[[SkywardApp, str], None]:
    """Compare the screen with ``snapshots/NAME.txt`` and ``.svg``.

    ``UPDATE_SNAPSHOTS=1`` writes them. A difference leaves ``NAME.actual.txt`` and ``.svg`` beside them.
    """

    def check(app: SkywardApp, name: str) -> None:
        actual = {"txt": screen_text(app)}
        if not name.endswith(AS_TEXT):
            actual["svg"] = screen_svg(app)
        if os.environ.get("UPDATE_SNAPSHOTS"):
            SNAPSHOTS.mkdir(exist_ok=True)
            for kind, text in actual.items():
                (SNAPSHOTS / f"{name}.{kind}").write_text(text, "utf-8")
            return
        different = []
        for kind, text in actual.items():
            file, left = SNAPSHOTS / f"{name}.{kind}", SNAPSHOTS / f"{name}.actual.{kind}"
            if file.exists() and file.read_text("utf-8") == text:
                left.unlink(missing_ok=True)
            else:
                left.write_text(text, "utf-8")
                different.append(left.name)
        if different:
            expected = SNAPSHOTS / f"{name}.txt"
            before = expected.read_text("utf-8") if expected.exists() else ""
            assert actual["txt"] == before, f"{name} looks different; see {', '.join(different)}"
            pytest.fail(f"{name} has other colours; see {', '.join(different)}")

    return check
