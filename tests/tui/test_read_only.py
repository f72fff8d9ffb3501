"""The read-only app: keys and session refuse every change."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.leftover_cleanup import LeftoverScan
from skyward_core.client.session import ReadOnlySession
from skyward_core.model.errors import UsageError
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.local.provider import Local
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_core.views.sweep_argument_combinations import TrialSheet
from skyward_tui.app.app import SkywardApp
from skyward_tui.cli.main import cli
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.ui.actions import ACTIONS
from tests.support.app_driver import on_run_screen, press, running_app, screen_text, until
from tests.support.fake_session import FakeSession

REFUSED = "not available with --read-only"


@pytest.fixture
def app(session: FakeSession) -> SkywardApp:
    return SkywardApp(lambda: session, clock=lambda: session.now, read_only=True)


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("key", ["X", "C", "o"])
async def test_read_only_app_refuses_and_hides_changing_keys(app: SkywardApp, session: FakeSession, key: str) -> None:
    view, _ = session.pool_with_run("train")
    async with on_run_screen(app, (160, 48), view.key, until="z zoom") as (pilot, _):
        shown = screen_text(app)
        assert "pools › train › train  [read-only]" in shown
        assert "X tear down" not in shown and "C cancel" not in shown
        await press(pilot, key, until=REFUSED)
        assert isinstance(app.screen, RunScreen), "no dialog is opened"
        await press(pilot, "a", until=lambda: isinstance(app.screen, RunScreen) and app.screen.merged)
    assert session.torn_down == session.cancelled == []


async def test_read_only_app_shows_the_launch_form_and_launches_nothing(app: SkywardApp, session: FakeSession) -> None:
    async with running_app(app, (160, 48), until=lambda: app.session is not None) as pilot:
        app.show_launch()
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        await press(pilot, "ctrl+r", until=REFUSED)
    assert session.created == []


def test_dangerous_actions_are_not_read_only() -> None:
    assert all(not action.is_read_only for action in ACTIONS if action.dangerous)
    assert {action.id for action in ACTIONS if action.changes} == {
        "history.dismiss", "history.dismiss_all", "history.note", "hosts.trust", "hosts.add", "hosts.group",
        "hosts.rename", "settings.change", "settings.forget", "launch.launch", "launch.save", "run.debug",
        "run.fetch", "run.on_change", "run.shell",
    }  # fmt: skip


@pytest.fixture
def looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    session = ReadOnlySession()
    yield session
    session.detach()


def test_read_only_session_refuses_every_changing_call(looking: ReadOnlySession) -> None:
    begun: Future[PoolView] = Future()
    spec = PoolSpec(name="p", provider=Local())
    asked: list[Future[Any]] = [
        looking.create(spec, begun=begun),
        begun,
        looking.tear_down("p"),
        looking.launch("p", None),  # type: ignore[arg-type]
        looking.cancel("p", "r"),
        looking.launch_sweep("p", [], TrialSheet.new((), [()]), LaunchRequest(script="x.py"), joined=True),
        looking.dismiss(["r"]),
        looking.attach("p"),
        looking.fetch("t"),
        looking.fetch_files("p"),
        looking.raise_budget("p", 1.0),
        looking.remove_leftovers(LeftoverScan()),
        looking.stacks("p", signal=True),
        looking.debug("p", 0, "me"),
    ]
    for future in asked:
        with pytest.raises(UsageError, match="this session is read-only"):
            future.result(10)
    assert looking.ledger.live_pools() == []


def test_commands_reject_the_read_only_option_of_the_app() -> None:
    done = CliRunner().invoke(cli, ["--read-only", "ls"], standalone_mode=False)
    assert isinstance(done.exception, click.UsageError)
    assert "ls does not support --read-only" in str(done.exception)


async def test_read_only_app_debugs_no_rank(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("train")
    session.emit(view, events.RankPhase(pool=view.name, rank=1, phase="paused", at=session.now))
    async with on_run_screen(app, (160, 48), view.key, until="paused") as (pilot, _):
        assert "D debug" not in screen_text(app)
        await press(pilot, "D", until=REFUSED)
