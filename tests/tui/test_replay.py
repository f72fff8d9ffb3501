"""Recordings in the app: the same screens, playback keys, and no changing action."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from skyward_core.client.replay_session import PlaybackState
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause, Summary
from skyward_core.store.recording_file import RecordingWriter
from skyward_core.views import events as ev
from skyward_core.views import recording_entries
from skyward_core.views.problem_alerts_and_stragglers import Alert
from skyward_tui.app.app import ReplayApp, SkywardApp
from skyward_tui.cli.main import cli
from skyward_tui.screens.base_screen import commands
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.run import AlertStrip, RunScreen
from skyward_tui.ui.actions import ACTIONS
from skyward_tui.widgets.screen_frame_and_replay_line import line
from tests.support.app_driver import running_app, screen_text, until

START = 1_800_000_000.0


def recorded(path: Path) -> Path:
    """Recording of two minutes with four ranks on two nodes. Rank 2 fails after 90 s."""
    writer = RecordingWriter(path, {"pool": "llama-ft", "note": "GPU figures are simulated"})
    spec = {"provider": "local", "nodes": 2, "worker": {"ranks_per_node": 2}}

    def put(*events: ev.Event) -> None:
        for event in events:
            writer.put(recording_entries.event_entry(event))

    put(ev.PoolOpened(pool="llama-ft", at=START, spec=spec, created_at=START))
    for node in range(2):
        put(ev.NodePhase(pool="llama-ft", at=START + 0.1, node=node, phase="ready", address="127.0.0.1"))
        put(ev.NodeLink(pool="llama-ft", at=START + 0.1, node=node, up=True))
    put(ev.PoolState(pool="llama-ft", at=START + 0.2, state="up"))
    put(ev.RunOpened(pool="llama-ft", at=START + 0.3, run="r1", function="train", kind="broadcast", total=4))
    for rank in range(4):
        put(ev.RankBegan(pool="llama-ft", at=START + 0.4, run="r1", index=rank, rank=rank, node=rank // 2))
    for second in range(1, 121):
        at = START + second
        for rank in range(4):
            text = f"step {second} of rank {rank}\n".encode()
            writer.put(recording_entries.log_entry(at, f"r{rank:03d}", "out", "r1", text))
        figures = b'{"at":%f,"node":{"cpu":%d},"gpus":[{"util":%d}],"devices":[{"id":"G","model":"H100"}]}\n'
        writer.put(recording_entries.machine_entry(at, 0, figures % (at, second, second), 0.0))
        if second == 90:
            error = ErrorInfo("ValueError", "out of sand", "Traceback …\nValueError: out of sand\n")
            put(ev.RankEnded(pool="llama-ft", at=at, run="r1", outcome=Outcome(2, 2, 1, "raised", 90.0, error=error)))
            cause = RootCause(2, "raised", "ValueError", "out of sand")
            put(ev.RunEnded(pool="llama-ft", at=at, run="r1", state="failed", root_cause=cause))
    writer.close()
    return path


@pytest.fixture
def app(tmp_path: Path) -> ReplayApp:
    return ReplayApp(recorded(tmp_path / "a.skyrec"))


def time_of(app: SkywardApp) -> str:
    """Return the time in the replay's status line."""
    found = re.search(r"x[\d.]+  \S+/2:00", screen_text(app))
    return found[0] if found else ""


async def test_replay_opens_on_the_pool_and_plays(app: ReplayApp) -> None:
    async with running_app(app, (120, 40), until=lambda: "step 2 of rank 0" in screen_text(app)):
        shown = screen_text(app)
        assert isinstance(app.screen, RunScreen)
        assert "pools › llama-ft › train  [replay]" in shown
        assert " REPLAY ▶ x1" in shown and "GPU figures are simulated" in shown and "✗" in shown
        assert "X tear down" not in shown and "C cancel" not in shown


@pytest.mark.proof("0.5 s of a processor")
async def test_replay_keys_control_the_playback(app: ReplayApp) -> None:
    done: set[str] = set()
    replay = [action for action in ACTIONS if action.scope == "replay"]

    async def press(key: str, then: Callable[[], bool]) -> None:
        await pilot.press(key)
        await until(pilot, then)
        done.update(action.id for action in replay if key in action.keys.split(","))

    async with running_app(app, (120, 40), until=lambda: "REPLAY" in screen_text(app)) as pilot:
        await press("p", lambda: "‖ paused" in screen_text(app))
        assert app.replay is not None
        app.replay.seek(START)
        await press("greater_than_sign", lambda: time_of(app) == "x1  0:10/2:00")
        await press("ctrl+right", lambda: time_of(app) == "x1  1:10/2:00")
        await until(pilot, lambda: "step 70 of rank 0" in screen_text(app))
        await press("less_than_sign", lambda: time_of(app) == "x1  1:00/2:00")
        # What came later is not there yet.
        await until(pilot, lambda: "step 60 of" in screen_text(app) and "step 61 of" not in screen_text(app))
        await press("ctrl+left", lambda: time_of(app) == "x1  0:00/2:00")
        await press("equals_sign", lambda: "x2 " in time_of(app))
        await press("minus", lambda: "x1 " in time_of(app))
        await press("E", lambda: time_of(app) == "x1  1:30/2:00")
        await until(pilot, lambda: "FAILED 1/4" in screen_text(app))
        await press("ctrl+right", lambda: "■ end" in screen_text(app))
        await until(pilot, lambda: "FAILED 1/4" in screen_text(app))
        await press("p", lambda: "▶" in screen_text(app) and "x1  0:0" in time_of(app))
    assert done == {action.id for action in replay}


@pytest.mark.proof("1 s of a processor")
async def test_replay_shows_the_same_screen_after_seeking_back(app: ReplayApp) -> None:
    def panels() -> str:
        return "\n".join(screen_text(app).splitlines()[1:-2])

    async with running_app(app, (160, 48), until=lambda: "REPLAY" in screen_text(app)) as pilot:
        await pilot.press("p")
        assert app.replay is not None
        # Who has chosen a rank is led to no other one where the run fails; it does, between the two times.
        await pilot.press("]")
        await until(pilot, lambda: "log  rank 1" in panels())
        app.replay.seek(START + 40.5)
        await until(pilot, lambda: "● 4 running" in panels() and "40 %" in panels() and "0:40" in panels())
        await until(pilot, lambda: "step 40 of rank 0" in panels())
        seen: list[str] = []

        def still() -> bool:
            seen.append(panels())
            return len(seen) > 20 and len(set(seen[-20:])) == 1

        await until(pilot, still)
        before = panels()
        app.replay.seek(START + 110.5)
        await until(pilot, lambda: "step 110 of rank 0" in panels())
        app.replay.seek(START + 40.5)
        await until(pilot, lambda: panels() == before)


async def test_hostile_recording_does_no_harm(tmp_path: Path) -> None:
    """All values have valid types and hostile contents."""
    bad, far = "[red]\x1b[2J\x07\u202e]52[/red]", 9e15
    writer = RecordingWriter(tmp_path / "b", {"pool": bad * 20, "note": bad * 40})
    spec = {"provider": bad, "nodes": 40, "worker": {"ranks_per_node": 8}, "options": {"ttl": -far}, "rents": [1]}

    def put(*events: ev.Event) -> None:
        for event in events:
            writer.put(recording_entries.event_entry(event))

    put(
        ev.PoolOpened(pool=bad, at=START, spec=spec, created_at=-1e15),
        ev.PriceNews(pool=bad, at=START, hourly=1e15),
        ev.BudgetNews(pool=bad, at=START, budget=-far, state="asked", ends_at=-far),
        ev.LeaseNews(pool=bad, at=START, ends_at=far),
        ev.UnfetchedNews(pool=bad, at=START, runs={bad: -5}),
        ev.NodePhase(pool=bad, at=START, node=0, phase="ready", detail=bad, retry_at=far, address=bad),
        ev.NodeNotice(pool=bad, at=START, node=1, kind="terminate", ends_at=far),
        ev.PoolState(pool=bad, at=START, state="up", detail=bad * 100),
        ev.RunOpened(pool=bad, at=START, run="r", function=bad, kind="broadcast", total=2**52),
    )
    for rank in range(300):
        outcome = Outcome(
            rank, -1, -1, "raised", -far, Summary(bad, bad, {bad: float("nan")}, True, -5),
            ErrorInfo(bad, bad, bad), exit_code=-(2**52), signal=2**50, items=2**52, last=Summary(bad, bad),
        )  # fmt: skip
        put(ev.RankBegan(pool=bad, at=START, run="r", index=rank, rank=2**20 - 1, node=2**20 - 1))
        put(ev.RankEnded(pool=bad, at=START, run="r", outcome=outcome))
    put(ev.RunEnded(pool=bad, at=START, run="r", state="failed", root_cause=RootCause(-9, "exited", bad, bad, -9)))
    gpu = '{"util":1e300,"throttle":1e200,"temp":-1e200,"mem_used":1e300,"mem_total":1}'
    sample = f'{{"at":{START},"node":{{"cpu":1e308,"memory_used":-1e300,"memory_total":1e-300}},"gpus":[{gpu}]}}\n'
    writer.put(recording_entries.machine_entry(START, 0, sample.encode() * 3, -9e6))
    writer.put(recording_entries.machine_entry(START, 1, sample.encode() * 3, 0.0))
    writer.put(recording_entries.log_entry(START, "r9999999", "out", "r", bad.encode("utf-8") * 50 + b"\n"))
    numbers = f'{{"run":"r","at":{START},"values":{{"loss":1e308,"step":-1e308,"\\u001b[2J":NaN}}}}\n'
    writer.put(recording_entries.metrics_entry(START, "r000.metrics", numbers.encode() * 40))
    writer.put({"at": 6e10, "k": "end"})
    writer.close()
    app = ReplayApp(tmp_path / "b")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "REPLAY" in screen_text(app) and "results  300/" in screen_text(app))
        for key in ("1", "3", "4", "5", "6", "a", "u", "e", "escape", "s", "escape", "greater_than_sign", "E", "q"):
            await pilot.press(key)
            await until(pilot, lambda: "\x1b" not in screen_text(app))
        assert isinstance(app.screen, PoolsScreen), "no dialog asks about a budget"


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("key", ["X", "C", "o"])
async def test_replay_refuses_changing_keys(app: ReplayApp, key: str) -> None:
    async with running_app(app, (120, 40), until=lambda: "REPLAY" in screen_text(app)) as pilot:
        await pilot.press("p", key)
        await until(pilot, lambda: "not available in a replay" in screen_text(app))


async def test_replay_offers_no_stacks(app: ReplayApp) -> None:
    async with running_app(app, (160, 40), until=lambda: "REPLAY" in screen_text(app)) as pilot:
        await pilot.press("p")
        app.screen.query_one(AlertStrip).show([Alert("throttled", None, 1, 4, "", START, "slowed")])
        await until(pilot, "e: go there")
        assert "stacks" not in screen_text(app)
        await pilot.press("s")
        await until(pilot, "no stacks: a recording has none")
        assert isinstance(app.screen, RunScreen)


async def test_help_and_palette_list_the_replay_keys(app: ReplayApp) -> None:
    async with running_app(app, (120, 40), until=lambda: "REPLAY" in screen_text(app)) as pilot:
        titles = [command.title.rpartition("  ")[0] for command in commands(app, app.screen)]
        assert {action.help for action in ACTIONS if action.scope == "replay"} <= set(titles)
        await pilot.press("question_mark")
        await until(pilot, lambda: "Seek to the next failure" in screen_text(app))


async def test_replay_quits_without_confirmation(app: ReplayApp) -> None:
    async with running_app(app, (80, 24), until=lambda: "REPLAY" in screen_text(app)) as pilot:
        await pilot.press("q")
        await until(pilot, lambda: "llama-ft" in screen_text(app) and "REPLAY" in screen_text(app))
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert app.return_code == 0


@pytest.mark.parametrize("width", [60, 80, 120, 160, 400])
def test_replay_line_fits_the_width(width: int) -> None:
    state = PlaybackState(START + 67, START, START + 150, 4.0, True, START + 120, False)
    shown = line(state, "GPU figures are simulated", {}, width)
    assert shown.cell_length <= width
    assert " REPLAY ▶ x4  1:07/2:30" in shown.plain
    assert ("p pause" in shown.plain) is (width >= 80)


def test_invalid_recording_is_refused_before_the_app_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_tui.cli.main.has_terminal", lambda: None)
    (tmp_path / "a").write_text("hello")
    done = CliRunner().invoke(cli, ["replay", "a"])
    assert done.exit_code and "a is not a recording of a pool" in done.stderr
    done = CliRunner().invoke(cli, ["replay", "b"])
    assert done.exit_code and "does not exist" in done.stderr
    done = CliRunner().invoke(cli, ["--demo", "ls"])
    assert "ls does not support --demo" in done.stderr
