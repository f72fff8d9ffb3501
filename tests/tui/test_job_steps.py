"""The steps of a job on the board of the nodes."""

from __future__ import annotations

from skyward_core.model.outcomes import ErrorInfo, RootCause
from skyward_core.views import events
from skyward_tui.app.app import SkywardApp
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession


def row_of(app: SkywardApp, node: int) -> str:
    return next((line for line in screen_text(app).splitlines() if f" n{node} " in line and "■" in line), "")


async def test_each_node_shows_its_steps_and_who_is_late(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("wide", 4)
    files = session.open_run(view, "workdir", job="j1")
    for rank in range(4):
        session.end_rank(view, files, rank, seconds=0.25)
    session.end_run(view, files)
    session.now += 1  # steps are in the order in which they were opened
    setup = session.open_run(view, "setup", job="j1")
    for rank in (0, 1, 3):
        session.end_rank(view, setup, rank, seconds=12.0)
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("enter", "3", "z")
        await until(pilot, lambda: "✓ setup 12.0 s" in row_of(app, 0))
        assert "✓ workdir 250 ms" in row_of(app, 2)
        assert "● setup 0:40 ! others wait for it" in row_of(app, 2), row_of(app, 2)
        # The others of the pool's runs are of no job: nodes are what they were.
        session.open_run(view, "train")
        await until(pilot, lambda: "setup" not in row_of(app, 2) and "127.0.0.1" in row_of(app, 2))
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: "! others wait for it" in row_of(app, 2))


async def test_where_there_is_little_room_the_step_that_goes_on_is_seen(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("wide", 2)
    for name in ("workdir", "setup", "a-job-of-mine"):
        session.now += 1
        run = session.open_run(view, name, job="j1")
        for rank in range(2 if name != "a-job-of-mine" else 0):
            session.end_rank(view, run, rank, seconds=12.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "3")
        await until(
            pilot,
            lambda: "n1    ● a-job-of-mine 0:40  ✓ setup 12.0" in screen_text(app),
        )


async def test_a_setup_that_fails_has_its_last_lines_on_top(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("pair", 2)
    setup = session.open_run(view, "setup", job="j1")
    view.logs.feed(1, "out", b"Collecting tensorboard\nERROR: no such version\n", session.now, setup.id, "r001")
    error = ErrorInfo("Exit", "ended with status 1")
    session.end_rank(view, setup, 1, "exited", error=error)
    session.end_rank(view, setup, 0, "collateral")
    cause = RootCause(1, "exited", "Exit", "ended with status 1")
    session.emit(view, events.RunEnded(pool=view.name, run=setup.id, state="failed", root_cause=cause, at=session.now))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "3", "z")
        await until(pilot, lambda: "n1 setup: ended with status 1" in screen_text(app))
        lines = [line.strip("│ ") for line in screen_text(app).splitlines()]
        at = lines.index("n1 setup: ended with status 1")
        assert lines[at + 1 : at + 3] == ["Collecting tensorboard", "ERROR: no such version"]
        await until(pilot, lambda: "✗ setup" in row_of(app, 1))
