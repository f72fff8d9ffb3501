"""The stacks of a run's ranks on the screen."""

from __future__ import annotations

import os
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from skyward_core.model.errors import PoolError
from skyward_core.model.thread_stacks import StackFrame, Stacks
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.run import RunScreen
from skyward_tui.screens.stacks_and_profiles import StacksScreen
from skyward_tui.source_lookup_and_editor import MOST_BYTES, SourceFile, excerpt, find_source
from tests.support.app_driver import on_run_screen, press, screen_text, until
from tests.support.fake_session import NOW, FakeSession
from tests.support.some_stacks import REDUCING, VALIDATING, hung, stack, write_train_py

VERDICT = "ranks 0-4 are in all_reduce (torch)"


async def test_stacks_key_names_the_rank_that_has_not_joined(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 8)
    session.taken = hung(run.id, 8)
    async with on_run_screen(app, (160, 48), view.key) as (pilot, _):
        await press(pilot, "s", until=VERDICT)
        shown = screen_text(app)
        assert "rank 5 is not: validate, train.py:57" in shown
        assert "torch/distributed/distributed_c10d.py:3252" in shown, "the stack of most ranks is shown first"
        assert "read at 07:59:56" in shown
        await press(pilot, "down", until="Queue.get")
        await press(pilot, "a", until="rank 5, process 4005")
        await pilot.press("y")
        assert VERDICT in app.clipboard and "rank 5, process 4005" in app.clipboard
        await press(pilot, "S", until="saved llama-ft-stacks-")
        (saved,) = Path.cwd().glob("llama-ft-stacks-*.txt")
        assert saved.read_text("utf-8").startswith(VERDICT)
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        assert isinstance(app.screen, RunScreen) and app.screen.rank == 5


async def test_stacks_are_read_again_and_failures_are_explained(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    session.taking = Future()
    async with on_run_screen(app, (80, 24), view.key) as (pilot, _):
        await press(pilot, "s", until="reading the stacks of all ranks")
        session.taking.set_exception(PoolError("the pool cannot be reached"))
        await until(pilot, "cannot read stacks: the pool cannot be reached")
        session.taking, session.taken = (None, Stacks(NOW, (stack(0, *VALIDATING), stack(1, *VALIDATING)), run.id))
        await press(pilot, "r", until="no rank is in a known collective")
        assert "cannot read stacks" not in screen_text(app)
        await press(pilot, "escape", until=lambda: isinstance(app.screen, RunScreen))


async def test_signal_is_sent_only_after_confirmation(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    unread = stack(1, why="py-spy is not installed on the node", answers=True)
    session.taken = Stacks(NOW, (stack(0, *REDUCING), unread), run.id)
    session.signalled = Stacks(NOW, (stack(1, *VALIDATING, how="signal"),), run.id)
    async with on_run_screen(app, (80, 24), view.key) as (pilot, _):
        await press(pilot, "s", until="rank 1: py-spy is not")
        await press(pilot, "exclamation_mark", until="EINTR")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, StacksScreen))  # the first answer does no harm
        assert [signal for _, _, signal in session.asked_stacks] == [False]
        await press(pilot, "exclamation_mark", until="EINTR")
        await press(pilot, "right", "enter", until="rank 1 is not: validate, train.py:57")
        assert session.asked_stacks[-1] == (run.id, [1], True), "only who could not be read is sent one"
        await press(pilot, "exclamation_mark", until="no rank has a stack that only a signal can read")


async def test_collectives_of_unreadable_ranks_are_not_judged(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    unread = (stack(rank, why="py-spy is not installed on the node", answers=True) for rank in (0, 1))
    session.taken = Stacks(NOW, tuple(unread), run.id)
    async with on_run_screen(app, (80, 24), view.key) as (pilot, _):
        await press(pilot, "s", until="ranks 0-1: py-spy is not")
        assert "no rank is in a known collective" not in screen_text(app)


async def test_hostile_stack_names_are_shown_as_text(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 1)
    hostile = stack(0, ("f\x1b]0;owned\x07[b]x", "/w/\x1b[2Ja\n.py", 3))
    session.taken = Stacks(NOW, (hostile, replace(stack(1, why="[red]no\x1b[31m"), at="silent")), run.id)
    async with on_run_screen(app, (80, 24), view.key) as (pilot, _):
        await press(pilot, "s", until="f[b]x")
        assert "[red]no" in screen_text(app) and "owned" not in screen_text(app) and "\x1b" not in screen_text(app)


async def test_silent_rank_is_marked(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft", 4)
    start = session.now
    for step in range(20):
        session.now = start + 5 * step
        for rank in range(4):
            session.print(view, rank, f"step {step}\n")
    async with on_run_screen(app, (160, 48), view.key, until="step 19") as (pilot, _):
        assert "quiet" not in screen_text(app)
        session.now += 250
        for rank in (0, 2, 3):
            session.print(view, rank, "step 20\n")
        await until(pilot, "rank 1: no output for 4:10 (s: stacks)")
        assert "no output for 4:10 · last: " in screen_text(app) and "1 quiet" in screen_text(app)
        session.print(view, 1, "step 20\n")
        session.now += 1
        await until(pilot, lambda: "1 quiet" not in screen_text(app))


async def test_time_profile_of_a_rank_is_shown(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 8)
    session.taken = hung(run.id, 8)
    async with on_run_screen(app, (120, 40), view.key) as (pilot, _):
        await press(pilot, "s", until=VERDICT)
        await press(pilot, "down", "percent_sign", until="profiling rank 5 for 10 s")
        assert session.profiled == [(5, 10.0)]
        session.profiling.set_result("train (/w/a.py:4);tokenize\x1b[2J (/w/a.py:9) 30\ntrain (/w/a.py:4) 10\n")
        await until(pilot, "rank 5: profile")
        assert "75.0%" in screen_text(app) and "tokenize  /w/a.py:9" in screen_text(app)
        names = {path.name for path in Path.cwd().glob("profile-*")}
        assert names == {f"profile-llama-ft-{run.id}-r5.speedscope.json"}
        session.profiling = Future()
        session.profiling.set_exception(PoolError("Cannot profile rank 5: py-spy is not installed on the node"))
        await press(pilot, "percent_sign", until="py-spy is not installed on the node")


async def test_stacks_show_source_code_and_last_line_of_each_rank(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 8)
    for rank in range(8):
        session.print(view, rank, f"step {100 + rank}\n")
    session.taken = hung(run.id, 8)
    write_train_py()
    async with on_run_screen(app, (160, 48), view.key) as (pilot, _):
        await press(pilot, "s", until="▶ 31      dist.all_reduce(loss)")
        shown = screen_text(app)
        assert "▶ 57      for batch in held_out:" in shown, "the code of the late rank is there, too"
        assert "changed since the run began" not in shown
        board = [line for line in shown.splitlines() if "step 10" in line]
        assert [line.split()[1] for line in board] == ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"]
        assert "in all_reduce (torch)" in board[0] and "validate, train.py:57" in board[5]
        await press(pilot, "down", until=lambda: screen_text(app).index("▶ 57") < screen_text(app).index("▶ 31"))
        board = [line for line in screen_text(app).splitlines() if "step 10" in line]
        assert board[0].split()[1] == "r5", "the ranks of the chosen stack come first"
        session.print(view, 5, "step 999\n")
        session.now += 1
        await until(pilot, "step 999")


async def test_missing_or_changed_source_code_is_reported(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    elsewhere = stack(1, ("wait", "/srv/other/other.py", 7))
    session.taken = Stacks(NOW, (stack(0, *VALIDATING), elsewhere), run.id)
    write_train_py(session.now + 5)
    async with on_run_screen(app, (120, 40), view.key) as (pilot, _):
        await press(pilot, "s", until="▶ 57")
        assert "changed since the run began" in screen_text(app)
        assert "the file is not on this machine" in screen_text(app)


def test_files_named_by_ranks_are_read_only_if_they_are_source_code(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("secret\n", "utf-8")
    (tmp_path / "train.py").write_text("one\n\x1b]0;owned\x07two\n", "utf-8")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_bytes(b"#" * (MOST_BYTES + 1))

    def found(file: str, line: int = 1) -> SourceFile | None:
        return find_source(StackFrame("f", file, line), [tmp_path])

    assert found("keys.txt") is found("pipe.py") is found("large.py") is found("train.py", 9) is None
    source = found("/elsewhere/train.py", 2)
    assert source is not None and "\x1b" not in "".join(source.lines)
    assert [line.plain for line in excerpt(source, 5)] == ["  1  one", "▶ 2  two"]
