"""The packaged recording of ``--demo``, on a real pseudo-terminal."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from textual.widgets import Input

import skyward_tui
from skyward_core.client.replay_session import Playback, open_recording
from skyward_core.views.problem_alerts_and_stragglers import find_alerts
from skyward_tui import entry
from skyward_tui.app.app import SkywardApp
from skyward_tui.cli.main import cli, has_terminal
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.widgets.screen_frame_and_replay_line import DEMO
from tests.support.app_driver import press, running_app, screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.terminal import Terminal


@pytest.mark.proof("3 s of a processor")
def test_demo_opens_plays_and_quits_on_a_terminal(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "home", cwd=tmp_path, program=("-m", "skyward_tui", "--ascii", "--demo"))
    try:
        terminal.until("pools > demo > warm_up  [replay]")
        terminal.until("32 running")
        terminal.until("real run, simulated machines")
        terminal.until("+- 2 log")
        terminal.press("E", until=lambda text: "paused" in text and "train" in text)
        terminal.press("p", until="rank 13 raised, MemoryError")
        terminal.press("q", until="1 pool")
        terminal.press("q")
        assert terminal.ended() == 0
    finally:
        terminal.close()
    left = {path.name for path in (tmp_path / "home").glob("*")} if (tmp_path / "home").exists() else set()
    assert not left & {"ledger.db", "pools", "local"}, "it makes nothing"


def test_demo_rejects_an_unknown_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_tui.cli.main.has_terminal", lambda: None)
    done = CliRunner().invoke(cli, ["--demo", "--theme", "nope"])
    assert done.exit_code == 2 and "unknown theme 'nope'" in done.output


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_app_refuses_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(sys, stream, Tty())
    monkeypatch.setenv("TERM", "xterm")
    has_terminal()
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(click.UsageError, match="TERM is dumb"):
        has_terminal()
    assert not entry._has_terminal(), "so the command line says it"


def test_demo_recording_has_a_failure_and_all_kinds_of_data() -> None:
    assert DEMO.parent == Path(skyward_tui.__file__).parent and DEMO.stat().st_size < 500_000
    playback = Playback(open_recording(DEMO))
    state = playback.state()
    assert playback.note == "real run, simulated machines" and state.failure is not None
    playback.seek(state.failure - 10)
    playback.advance()
    view = playback.view
    (_, run) = view.runs.values()
    assert view.world_size == 32 and view.state == "up" and run.state == "running"
    assert len(view.logs.for_run(run.id).ranks) == 32 and len(view.metrics.ranks(run.id)) == 32
    assert view.machines is not None and len(view.machines.latest("util")) == 32
    playback.seek(state.failure - 1)
    playback.advance()
    kinds = {alert.kind for alert in find_alerts(playback.view, run, playback.now())}
    assert kinds == {"straggler", "throttled", "memory"}
    playback.seek(state.end)
    playback.advance()
    assert [each.state for each in playback.view.runs.values()] == ["done", "failed", "done"]
    assert playback.view.state == "gone" and playback.skipped_count == 0 and not playback.cut


async def test_empty_home_starts_scripts_examples_and_the_demo(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    decorated = '"""Train \\x1b]0;x\\x07 it."""\nimport skyward_core as sky\n@sky.function\ndef f(): ...\n'
    (tmp_path / "mine.py").write_text(decorated)
    (tmp_path / "ddp.py").write_text('"""Train with ranks."""\nimport os\nos.environ["LOCAL_RANK"]\n')
    (tmp_path / "plain.py").write_text('"""Print."""\n')
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "test_mine.py").write_text("")
    os.mkfifo(tmp_path / "pipe.py")
    async with running_app(app, (80, 24), until="packaged examples") as pilot:
        rows = [line.strip("│ ").split() for line in screen_text(app).splitlines() if ".py " in line]
        assert [row[:3] for row in rows] == [
            ["ddp.py", "torchrun", "Train"], ["mine.py", "function", "Train"], ["plain.py", "plain", "Print."],
        ]  # fmt: skip
        assert "\x1b" not in screen_text(app)
        await until(pilot, "enter launch  n new")
        await pilot.press("down")
        await app.screen.run_action("open")  # as a click on the hint does
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
        await press(pilot, "enter", until=lambda: isinstance(app.screen, LaunchScreen))
        await until(pilot, lambda: app.screen.query_one("#script", Input).value == "mine.py")
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
        await press(pilot, "d", until="[replay]")
        assert app.session is not session and app.read_only
        for seconds, caption in ((0, "1/5 A pool"), (8, "2/5 train()"), (50, "3/5"), (90, "4/5 Rank 13"), (130, "5/5")):
            assert app.replay is not None
            app.replay.seek(app.replay.state().start + seconds)
            await until(pilot, caption)
        await press(pilot, "C", until="not available in a replay")
        await press(pilot, "q", until=lambda: isinstance(app.screen, PoolsScreen))
        await until(pilot, lambda: app.session is session and not app.read_only and app.replay is None)
        await until(pilot, "packaged examples")
        session.pool("started")
        await until(pilot, lambda: "packaged examples" not in screen_text(app))
        assert app.screen.focused is app.screen.query_one("#list") and not app.screen.check_action("demo", ())


async def test_app_that_quits_during_the_demo_detaches_from_its_pools(app: SkywardApp, session: FakeSession) -> None:
    async with running_app(app, (80, 24), until="packaged examples") as pilot:
        await press(pilot, "d", until="[replay]")
        await press(pilot, "ctrl+q", until=lambda: not app.is_running)
    assert session.detached and app.saved_screen_state("last") == {}
