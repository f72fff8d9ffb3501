"""Failed runs: selection of the failed rank, its log, and the errors screen."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from textual import events

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, RootCause
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.pool_view import PoolView, RunView
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import Size, on_run_screen, press, running_app, screen_text, until
from tests.support.fake_session import NOW, FakeSession, failed_run
from tests.tui.conftest import log_of

SIZE = (120, 40)


def fail(session: FakeSession, view: PoolView, run: RunView) -> None:
    """Let rank 2 print its own traceback and exit."""
    lines = [f"step {step}" for step in range(60)]
    lines += ["Traceback (most recent call last):", *(f'  File "x.py", line {n}' for n in range(100)), "Boom: no"]
    session.print(view, 2, "\n".join(lines) + "\n")
    session.end_rank(view, run, 2, "exited", error=ErrorInfo("RankExit", "exit status 1"))
    session.end_run(view, run, "failed", RootCause(2, "exited", "RankExit", "exit status 1"))


async def test_failed_rank_is_selected_and_its_log_shows_the_traceback(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    for rank in range(4):
        session.print(view, rank, f"hello of {rank}\n")
    async with running_app(app, SIZE, until="▶ llama-ft") as pilot:
        await press(pilot, "enter", until="hello of 0")
        fail(session, view, run)
        await until(pilot, "2 log  rank 2")
        await until(pilot, "Traceback (most recent call last)")
        assert "step 59" in screen_text(app) and "Boom" not in screen_text(app)
        # The next run is followed again, and leads again.
        session.open_run(view)
        session.print(view, 2, "once more\n")
        await until(pilot, "once more")
        assert log_of(app.screen).is_untouched


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("key", ["right_square_bracket", "a", "1", "slash", "p"])
async def test_selection_of_the_user_is_kept_when_a_run_fails(app: SkywardApp, session: FakeSession, key: str) -> None:
    view, run = session.pool_with_run("llama-ft")
    for rank in range(4):
        session.print(view, rank, "\n".join(f"hello of {rank}: {n}" for n in range(90)) + "\n")
    async with running_app(app, SIZE, until="▶ llama-ft") as pilot:
        await press(pilot, "enter", until="hello of 0: 89")
        await pilot.press(key)
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, RunScreen)
        rank = screen.rank
        await until(pilot, lambda: key != "slash" or log_of(screen).prompt.has_focus)
        fail(session, view, run)
        await until(pilot, "rank 2 exited")
        assert screen.rank == rank


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_exception_is_shown_above_the_panels_of_a_failed_run(
    app: SkywardApp, session: FakeSession, size: Size
) -> None:
    view = session.pool("llama-ft")
    failed_run(session, view)
    session.print(view, 2, "the last line of rank 2\n")
    async with running_app(app, size, until="▶ llama-ft") as pilot:
        await press(pilot, "enter", until="✗ ZeroDivisionError: division by zero  (e: details)")
        assert "    return total / count" in screen_text(app) and "the last line of rank 2" in screen_text(app)
        await press(pilot, "left_square_bracket", until=lambda: "return total / count" not in screen_text(app))


async def test_small_screen_shows_the_frames_of_the_users_code(app: SkywardApp, session: FakeSession) -> None:
    torch = '  File "/x/lib/python3.12/site-packages/torch/c10d.py", line 2572, in get_rank\n    group = default()\n'
    own = '  File "train.py", line 21, in train\n    rank = dist.get_rank()\n           ^^^^^^^^^^^^^^^\n'
    text = f"Traceback (most recent call last):\n{own}{torch}            ~~~~~~~^^\n{torch}ValueError: no group\n"
    view, run = session.pool_with_run("llama-ft", 1)
    session.end_rank(view, run, 0, "raised", error=ErrorInfo("ValueError", "no group", text))
    session.end_run(view, run, "failed", RootCause(0, "raised", "ValueError", "no group"))
    async with on_run_screen(app, (80, 24), until="rank = dist.get_rank()") as (pilot, _):
        assert "^^^" not in screen_text(app) and "site-packages" not in screen_text(app)
        await pilot.resize_terminal(120, 40)
        await until(pilot, "site-packages")
        assert "Traceback (most recent call last)" in screen_text(app) and "^^^" in screen_text(app)


async def test_machine_metrics_are_shown_beside_the_root_cause(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 4)
    view.machines = book = MachineMetrics()
    node = {"memory_used": 97.0, "memory_total": 100.0}
    book.feed(2, json.dumps({"at": NOW - 1, "node": node, "gpus": [{"util": 99}]}).encode() + b"\n")
    failed_run(session, view)
    async with running_app(app, (160, 48), until="▶") as pilot:
        await press(pilot, "enter", until="before     n2 memory 97 % full")
        await press(pilot, "e", until="n2, 1.0 s earlier: memory 97 % full")
        assert "memory of n2  97 %" in screen_text(app) and "utilization of GPU 0  99 %" in screen_text(app)
        # What the kernel's log tells a moment later is of it, too.
        data = {"at": NOW + 1, "node": node, "gpus": [{"util": 0, "xid": 79}]}
        book.feed(2, json.dumps(data).encode() + b"\n")
        await until(pilot, "GPU 0 Xid 79 (the GPU has")


async def test_opened_run_focuses_the_log_only(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure selects its rank only if the user has not focused another panel."""
    session.pool_with_run("llama-ft", 2)
    looked_at: list[str] = []
    focus = RunScreen.on_descendant_focus

    def noted(screen: RunScreen, event: events.DescendantFocus) -> None:
        focus(screen, event)
        looked_at.append(screen.active)

    monkeypatch.setattr(RunScreen, "on_descendant_focus", noted)
    async with running_app(app, (160, 48), until="▶") as pilot:
        await press(pilot, "enter", until=lambda: bool(looked_at))
        assert set(looked_at) == {"log"}


# Why a run failed: the code where, and what others printed before.


SCRIPT = f"""\
def step(batch):
    total, count = sum(batch), len(batch)
    return total / count  # {"long " * 40}


def train():
    return step([])
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/runner/copy-1f/train.py", line 7, in train
    return step([])
  File "/home/runner/copy-1f/train.py", line 3, in step
    return total / count
ZeroDivisionError: division by zero
"""


async def test_source_code_of_each_frame_is_shown_below_the_traceback(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    os.utime(tmp_path / "train.py", (session.now + 60, session.now + 60))
    view, run = session.pool_with_run("llama-ft", 2)
    session.print(view, 0, "rank 0 was here\n")
    session.end_rank(view, run, 1, "raised", error=ErrorInfo("ZeroDivisionError", "by zero", TRACEBACK))
    session.end_rank(view, run, 0, "collateral", error=ErrorInfo("Stopped", "stopped"))
    session.end_run(view, run, "failed", RootCause(1, "raised", "ZeroDivisionError", "by zero"))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "enter", until="✗ FAILED")
        await press(pilot, "e", until=lambda: "▶ 3" in screen_text(app) and "▶ 7" in screen_text(app))
        shown = screen_text(app)
        assert "total, count = sum(batch), len(batch)" in shown and shown.index("▶ 3") < shown.index("▶ 7")
        assert sum("long long" in line for line in shown.splitlines()) == 2, "a line of the code is one line"
        assert "! file changed since the run began" in shown, "the file is newer than the run"
        assert "last lines of all ranks" in shown and "rank 0 was here" in shown
        await press(pilot, "down", until=lambda: "▶ 3" not in screen_text(app))
        assert "stopped" in screen_text(app), "who was stopped has no traceback, and no code"


async def test_last_progress_bar_is_shown_among_the_last_lines(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 1)
    session.print(view, 0, "epoch 3\n 12%|#\r 57%|#####")
    session.end_rank(view, run, 0, "raised", error=ErrorInfo("ZeroDivisionError", "by zero", TRACEBACK))
    session.end_run(view, run, "failed", RootCause(0, "raised", "ZeroDivisionError", "by zero"))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "57%|#####" in screen_text(app).partition("last lines of rank 0")[2])
        await press(pilot, "enter", until="✗ FAILED")
        await press(pilot, "e", until=lambda: "57%|#####" in screen_text(app).partition("last lines of rank 0")[2])


@pytest.mark.proof("0.5 s of a processor")
async def test_traceback_fills_the_errors_screen_without_source_files(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    session.end_rank(view, run, 1, "raised", error=ErrorInfo("ZeroDivisionError", "by zero", TRACEBACK))
    session.end_run(view, run, "failed", RootCause(1, "raised", "ZeroDivisionError", "by zero"))
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "enter", until="✗ FAILED")
        await press(pilot, "e", until="line 3, in step")
        await pilot.pause()
        assert "▶" not in screen_text(app)


async def test_ranks_that_failed_equally_share_a_row_of_errors(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("p", 32)
    for rank in range(32):
        stopped = ErrorInfo("Stopped", "stopped because another rank failed")
        kind, error = ("raised", ErrorInfo("ValueError", "loss is nan")) if rank == 13 else ("collateral", stopped)
        session.end_rank(view, run, rank, kind, error=error)
    session.end_run(view, run, "failed", RootCause(13, "raised", "ValueError", "loss is nan"))
    async with on_run_screen(app, SIZE) as (pilot, _):
        await press(pilot, "e", until="ROOT CAUSE")
        rows = [" ".join(line.strip(" │").split()) for line in screen_text(app).splitlines() if " n13 " in line]
        assert rows == ["ROOT CAUSE r13 n13 ✗ raised ValueError: loss is nan"]
        assert "r0-12, r14-31 n0-12, n14-31 ⊘ stopped" in screen_text(app)
