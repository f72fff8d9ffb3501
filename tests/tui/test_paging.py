"""A log in the person's pager: what is left of it where the app is killed meanwhile."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from skyward_tui.app.app import SkywardApp
from tests.support.app_driver import until
from tests.support.fake_session import FakeSession
from tests.support.terminal import Terminal

READS = """
import os, sys
sys.path.insert(0, {tests!r})
os.environ["PAGER"] = "sh -c 'echo the pager has it; read x'"
from tests.support.fake_session import FakeSession
import pytest

from skyward_tui.app.app import SkywardApp
session = FakeSession()
view = session.pool("warm")
session.open_run(view)
session.print(view, 0, "a secret\\n")
SkywardApp(lambda: session, clock=lambda: session.now).run()
"""


async def test_the_next_start_removes_a_log_that_the_app_was_killed_over(
    session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    program = ("-c", READS.format(tests=str(Path(__file__).parents[2])))
    with closing(Terminal(home, cwd=tmp_path, program=program)) as terminal:
        terminal.until("▶ warm")
        terminal.press("enter")
        terminal.until("a secret")
        terminal.press("|")
        terminal.until(lambda text: "the pager has it" in text)
        os.kill(terminal.child.pid, signal.SIGKILL)
        terminal.ended_alone()
    assert [each.read_text() for each in home.glob("paged/*/*")] == ["a secret\n"]
    monkeypatch.setenv("SKYWARD_HOME", str(home))
    app = SkywardApp(lambda: session, clock=lambda: session.now)
    async with app.run_test() as pilot:
        await until(pilot, lambda: not list(home.glob("paged/*")))
