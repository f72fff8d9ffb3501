"""The packaged recording of ``--demo``, on a real pseudo-terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import skyward_tui
from skyward_core.client.replay_session import Playback, open_recording
from skyward_core.views.problem_alerts_and_stragglers import find_alerts
from skyward_tui import entry
from skyward_tui.cli.main import DEMO, cli, has_terminal
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
