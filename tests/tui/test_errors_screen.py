"""Why a run failed: the code where, and what others printed before."""

from __future__ import annotations

import os
from pathlib import Path

from skyward_core.model.outcomes import ErrorInfo, RootCause
from skyward_tui.app.app import SkywardApp
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession

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


async def test_the_code_around_each_frame_stands_below_the_traceback(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    os.utime(tmp_path / "train.py", (session.now + 60, session.now + 60))
    view = session.pool("llama-ft", 2)
    run = session.open_run(view)
    session.print(view, 0, "rank 0 was here\n")
    session.end_rank(view, run, 1, "raised", error=ErrorInfo("ZeroDivisionError", "by zero", TRACEBACK))
    session.end_rank(view, run, 0, "collateral", error=ErrorInfo("Stopped", "stopped"))
    session.end_run(view, run, "failed", RootCause(1, "raised", "ZeroDivisionError", "by zero"))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: "✗ FAILED" in screen_text(app))
        await pilot.press("e")
        await until(pilot, lambda: "▶ 3" in screen_text(app) and "▶ 7" in screen_text(app))
        shown = screen_text(app)
        assert "total, count = sum(batch), len(batch)" in shown and shown.index("▶ 3") < shown.index("▶ 7")
        assert sum("long long" in line for line in shown.splitlines()) == 2, "a line of the code is one line"
        assert "! changed since the run began" in shown, "the file is newer than the run"
        assert "last lines of all ranks" in shown and "rank 0 was here" in shown
        await pilot.press("down")
        await until(pilot, lambda: "▶ 3" not in screen_text(app))
        assert "stopped" in screen_text(app), "who was stopped has no traceback, and no code"


async def test_how_far_a_bar_had_come_stands_among_the_last_lines(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 1)
    run = session.open_run(view)
    session.print(view, 0, "epoch 3\n 12%|#\r 57%|#####")
    session.end_rank(view, run, 0, "raised", error=ErrorInfo("ZeroDivisionError", "by zero", TRACEBACK))
    session.end_run(view, run, "failed", RootCause(0, "raised", "ZeroDivisionError", "by zero"))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "57%|#####" in screen_text(app).partition("last lines of rank 0")[2])
        await pilot.press("enter")
        await until(pilot, lambda: "✗ FAILED" in screen_text(app))
        await pilot.press("e")
        await until(pilot, lambda: "57%|#####" in screen_text(app).partition("last lines of rank 0")[2])


async def test_without_its_files_the_traceback_has_all_the_room(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 2)
    run = session.open_run(view)
    session.end_rank(view, run, 1, "raised", error=ErrorInfo("ZeroDivisionError", "by zero", TRACEBACK))
    session.end_run(view, run, "failed", RootCause(1, "raised", "ZeroDivisionError", "by zero"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: "✗ FAILED" in screen_text(app))
        await pilot.press("e")
        await until(pilot, lambda: "line 3, in step" in screen_text(app))
        await pilot.pause()
        assert "▶" not in screen_text(app)
