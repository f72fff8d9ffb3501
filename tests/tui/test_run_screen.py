"""The pool and run screen, driven by keys."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.screen import Screen

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, RankPhase, RootCause
from skyward_core.pool.dashboards import Dashboard
from skyward_core.views import events
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.errors import ErrorsScreen, failure_report, failures
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import on_run_screen, open_pool, press, running_app, screen_text, until
from tests.support.fake_session import FakeSession, failed_run, logged, value
from tests.tui.conftest import log_of

SIZE = (120, 40)


def title(screen: RunScreen) -> str:
    return str(log_of(screen).border_title)


async def test_rank_keys_change_the_log_and_merge_shows_all(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft")
    for rank in range(4):
        session.print(view, rank, f"hello from {rank}\n")
    async with on_run_screen(app, SIZE, until="hello from 0") as (pilot, screen):
        await press(pilot, "]", until=lambda: "rank 1" in title(screen))
        await press(pilot, "[", "[", until=lambda: "rank 3" in title(screen))
        await press(pilot, "a", until="r003| hello from 3")
        assert "all ranks" in title(screen)
        await press(pilot, "number_sign", "2", "enter", until=lambda: "rank 2" in title(screen))
        await press(pilot, "number_sign", "9", "enter", until="rank 9 does not exist. Enter 0 to 3")


async def test_equal_lines_of_ranks_collapse_on_a_key(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft")
    for rank in (0, 1, 3):
        session.print(view, rank, "epoch done\n")
    session.print(view, 2, "loss is nan\nstep 7\n")
    async with on_run_screen(app, SIZE) as (pilot, screen):
        await press(pilot, "u", until="x3, not r2| epoch done")
        assert "all ranks, collapsed" in title(screen)
        assert "r2| loss is nan" in screen_text(app)
        pane = log_of(screen).pane
        await press(pilot, "/", *"epoch", "enter", until=lambda: "/epoch 1/1" in str(log_of(screen).border_subtitle))
        await press(pilot, "escape", "f", "p", until=lambda: not pane.is_following)
        # A label grows where the reader stands still, and new rows are counted.
        session.print(view, 2, "epoch done\n")
        for rank in range(4):
            session.print(view, rank, "saved\n")
        await until(pilot, lambda: "PAUSED +2 lines" in title(screen))
        await press(pilot, "f", until="x4| saved")
        await press(pilot, "u", until="r001| epoch done")
        assert "collapsed" not in title(screen)
        # It is remembered where one rank is looked at between.
        await press(pilot, "u", "a", until=lambda: "rank 0" in title(screen))
        await press(pilot, "a", until=lambda: "collapsed" in title(screen))


@pytest.mark.proof("1 s of a processor")
async def test_slow_log_filter_is_given_up_with_a_message(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft", 1)
    session.print(view, 0, "fine\n")
    session.print(view, 0, "m" * 3000 + "\n")
    async with on_run_screen(app, (120, 40), view.key, until="fine") as (pilot, _):
        await press(pilot, "&", *"(m+m+)+y", "enter", until="search stopped: (m+m+)+y is too slow")
        assert "fine" in screen_text(app)


async def test_find_and_filter_are_cleared_by_escape(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft")
    session.print(view, 0, "".join(f"step {i}\n" for i in range(500)))
    async with on_run_screen(app, SIZE) as (pilot, screen):
        await press(pilot, "/", *"step 5", until=lambda: "/step 5 11/11" in str(log_of(screen).border_subtitle))
        await press(pilot, "escape", until=lambda: not str(log_of(screen).border_subtitle))
        await press(pilot, "/", *"step 50", until=lambda: "/step 50 1/1" in str(log_of(screen).border_subtitle))
        await press(pilot, "backspace", "enter", until="n N match 11/11")
        pane = log_of(screen).pane
        assert pane.current_hit is not None
        first = pane.current_hit
        await press(pilot, "N", until="n N match 10/11")
        assert pane.current_hit < first
        await pilot.press("n")
        assert pane.current_hit == first
        await press(pilot, "&", *"!5", "enter", until=lambda: "&!5" in str(log_of(screen).border_subtitle))
        await pilot.press("z")
        assert screen.has_class("-zoom")
        await pilot.press("escape")
        assert log_of(screen).pane.window.search is None
        await pilot.press("escape")
        assert log_of(screen).pane.window.filter is None
        await pilot.press("escape")
        assert not screen.has_class("-zoom")
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))


async def test_log_can_be_paused_and_followed_again(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    session.print(view, 0, "".join(f"step {i}\n" for i in range(500)))
    async with on_run_screen(app, SIZE, until="step 499") as (pilot, screen):
        await pilot.press("p")
        session.print(view, 0, "".join(f"step {i}\n" for i in range(500, 600)))
        await until(pilot, lambda: "PAUSED +100 lines" in title(screen))
        assert "step 500" not in screen_text(app)
        await press(pilot, "f", until="step 599")
        assert "FOLLOW" in title(screen)


async def test_results_appear_with_their_aggregate(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    async with on_run_screen(app, SIZE) as (pilot, _):
        item = events.ItemYielded(pool=view.name, run=run.id, index=3, rank=3, seq=6, summary=value({"loss": 0.5}))
        session.emit(view, item)
        await until(pilot, "#7 loss 0.5")
        for rank in range(4):
            session.end_rank(view, run, rank, summary=value({"loss": 0.2 + rank}))
        session.end_run(view, run)
        await until(pilot, "mean 1.7 ± 1.118   min 0.2   max")
        assert "✓ DONE 4/4" in screen_text(app)


async def test_errors_screen_begins_with_the_root_cause(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    run = failed_run(session, view)
    session.print(view, 3, "the last words of rank 3\n")
    async with on_run_screen(app, SIZE) as (pilot, screen):
        await until(pilot, lambda: "root cause r2 raised: ZeroDivisionError" in " ".join(screen_text(app).split()))
        await press(pilot, "e", until=lambda: isinstance(app.screen, ErrorsScreen) and "ROOT CAUSE" in screen_text(app))
        rows = re.findall(r"│ +(ROOT CAUSE)? +r(\d+) +n\d+ ", screen_text(app))
        assert rows == [("ROOT CAUSE", "2"), ("", "3"), ("", "0")], "the first, what else failed, what was stopped"
        assert re.search(r"r0 .*⊘ stopped +stopped \(rank 2 failed\)", screen_text(app))
        report = failure_report(failures(run)[-1])
        assert report.startswith("rank 0 on node 0 stopped after 3.2 s\n\nstopped (")
        assert 'File "/home/me/train.py", line 17, in step' in screen_text(app)
        await pilot.press("y")
        assert "ZeroDivisionError: division by zero" in app.clipboard
        await press(pilot, "down", "enter", until="the last words of rank 3")
        assert screen.rank == 3


async def test_errors_screen_names_ranks_that_returned_before_their_peers(
    app: SkywardApp, session: FakeSession
) -> None:
    view = session.pool("llama-ft", 2)
    run = session.open_run(view)
    session.end_rank(view, run, 0)
    closed = ErrorInfo("RuntimeError", "[gloo/transport/tcp/pair.cc:598] Connection closed by peer", "")
    session.end_rank(view, run, 1, "raised", error=closed)
    session.end_run(view, run, "failed", RootCause(1, "raised", closed.type, closed.message))
    async with on_run_screen(app, SIZE) as (pilot, _):
        await press(pilot, "e", until="rank 0 had already returned, so the")


async def test_broken_link_shows_since_when_it_is_down(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft")
    down = events.NodeLink(pool=view.name, node=2, up=False, detail="no route to host", at=session.now - 30)
    session.emit(view, down)
    async with on_run_screen(app, (160, 48), until="link down since 07:59:30 (no") as (pilot, screen):
        await press(pilot, "]", "]", until=lambda: "! link down since 07:59:30" in title(screen))
        session.emit(view, events.NodeLink(pool=view.name, node=2, up=True, at=session.now))
        await until(pilot, lambda: "link down" not in screen_text(app))


async def test_ranks_show_their_phase_before_the_function_runs(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")

    def enter(rank: int, phase: RankPhase, ago: float) -> None:
        session.emit(view, events.RankPhase(pool=view.name, rank=rank, phase=phase, at=session.now - ago))

    phases: tuple[RankPhase, ...] = ("starting", "importing", "joining")
    for rank, phase in enumerate(phases):
        enter(rank, phase, 10 * rank + 12)
    enter(3, "running", 7)  # the call was given to it 40 s ago
    async with on_run_screen(app, (160, 48), until="nothing printed yet: 1 rank starting for 0:12") as (pilot, _):
        rows = [line[:56] for line in screen_text(app).splitlines()]
        for words, time, note in (
            ("r1 n1 ◔ importing", "0:22", "importing"),
            ("r2 n2 ◑ joining", "0:32", "waiting for the other ranks"),
            ("r3 n3 ● running", "0:07", ""),
        ):
            row = next(line for line in rows if words in line)
            assert time in row and note in row.partition(time)[2]
        enter(3, "paused", 3)
        await until(pilot, "at a breakpoint (D: debug)")
        assert "r3 n3 ◍ paused" in screen_text(app)
        enter(3, "running", 7)
        await press(pilot, "a", until="1 rank importing for 0:22, 1 rank joining for 0:32")
        enter(2, "running", 0)
        enter(1, "", 0)
        session.end_rank(view, run, 0)
        await until(pilot, lambda: "importing" not in screen_text(app) and "joining" not in screen_text(app))
        assert "starting" not in screen_text(app)  # rank 0 has returned


async def test_log_is_copied_and_results_are_saved(app: SkywardApp, session: FakeSession, tmp_path: Path) -> None:
    view, run = session.pool_with_run("llama-ft")
    session.print(view, 0, "\x1b[31mone\x1b[0m\ntwo\n")
    session.end_rank(view, run, 0, summary=value(0.1234567890123))
    async with on_run_screen(app, SIZE, until="two") as (pilot, _):
        await pilot.press("y")
        assert app.clipboard == "one\ntwo"
        await until(pilot, "copied log lines")
        await press(pilot, "4", until=lambda: app.focused is not None and app.focused.id == "results")
        await pilot.press("y")
        assert "0\t0\t0\treturned\t3.25\t\t\t0.1234567890123" in app.clipboard
        Path("llama-ft-llama-ft-1-r000.log").write_text("mine")
        for again in ("", "-2"):
            await pilot.press("S")
            await until(pilot, lambda end=again: Path(f"llama-ft-llama-ft-1-results{end}.csv").exists())  # type: ignore[misc]
        assert Path("llama-ft-llama-ft-1-r000.log").read_text() == "mine"
        assert Path("llama-ft-llama-ft-1-r000-2.log").read_text() == "\x1b[31mone\x1b[0m\ntwo\n"
        await until(pilot, "saved llama-ft-llama-ft-1-")
        saved = json.loads(Path("llama-ft-llama-ft-1-results.json").read_text())
        assert saved["ranks"][0]["value"] == 0.1234567890123


async def test_saved_files_are_named_on_a_small_terminal(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    session.end_run(view, run)
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        await pilot.press("S")
        message = "saved llama-ft-llama-ft-1-{r000.log,results.json,results.csv} in"
        await until(pilot, lambda: message in screen_text(app))


async def test_run_is_cancelled_only_after_confirmation(app: SkywardApp, session: FakeSession) -> None:
    _, run = session.pool_with_run("llama-ft")
    async with on_run_screen(app, SIZE) as (pilot, _):
        await press(pilot, "C", until="Save and cancel: ranks get SIGTERM first")
        await pilot.press("enter")
        assert session.cancelled == []
        await press(pilot, "C", "tab", "enter", until=lambda: session.cancelled == [("llama-ft", run.id)])
        await until(pilot, "⊘ CANCELLED")


async def test_run_keys_move_through_the_runs_of_a_pool(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    for function in ("first", "second", "third"):
        session.open_run(view, function)
    async with on_run_screen(app, SIZE) as (pilot, screen):
        assert screen.run is not None and screen.run.function == "third"
        await pilot.press("{", "{")
        assert screen.run.function == "first"
        await pilot.press("}", "}")
        assert screen.run.function == "third" and screen.run_id is None
        session.open_run(view, "fourth")
        await press(pilot, "}", until="pools › llama-ft › fourth")


async def test_run_screen_follows_a_queued_run_only_after_its_own_run_ends(
    app: SkywardApp, session: FakeSession
) -> None:
    view, run = session.pool_with_run("llama-ft", function="first")
    session.open_run(view, "beside", kind="single")
    async with on_run_screen(app, (80, 24)) as (pilot, screen):
        await pilot.press("{")
        screen.run_id = None  # not pinned: the screen follows the pool
        opened = events.RunOpened(pool="llama-ft", run="q", function="later", kind="broadcast", total=4, at=session.now)
        session.emit(view, opened)
        session.end_rank(view, run, 0)
        await until(pilot, "RUNNING 1/4 ranks ended")
        assert "pools › llama-ft › first" in screen_text(app)
        for rank in range(1, 4):
            session.end_rank(view, run, rank)
        session.end_run(view, run)
        session.emit(view, events.RankBegan(pool="llama-ft", run="q", index=0, rank=0, node=0, at=session.now))
        await until(pilot, "DONE 4/4")
        assert "› first" in screen_text(app), "runs that were there before its end do not take its place"
        session.open_run(view, "next")
        await until(pilot, "› next")


async def test_queued_run_shows_its_place_and_reason_on_each_screen(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft", function="first")
    opened = events.RunOpened(pool="llama-ft", run="q", function="later", kind="broadcast", total=4, at=session.now)
    session.emit(view, opened)
    line = [events.QueuedRun(run=each, name=each, nodes=4, only=[], since=session.now) for each in ("other", "q")]
    session.emit(view, events.QueueNews(pool="llama-ft", waiting=line))
    async with running_app(app, (160, 48), until="● running first 0/4") as pilot:
        assert "◌ queued" in screen_text(app) and "needs 4 nodes" in screen_text(app), "the table lists both runs"
        await open_pool(app, pilot)
        await press(pilot, "}", until="QUEUED place 2 of 2")
        await until(pilot, "queued: needs 4 nodes, 0 free; behind other (other); first")
        assert "RUNNING" not in screen_text(app)
        await press(pilot, "C", until="Keep queued")
        await pilot.press("escape", "q")
        session.end_run(view, view.runs["llama-ft-1"])
        await until(pilot, "◌ queued later place 2 of 2")


async def test_small_run_screen_shows_when_saving_ranks_are_killed(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft")
    for rank, seconds in ((0, 20), (3, 24)):
        until_then = {"until": session.now + seconds, "at": session.now}
        session.emit(view, events.RankPhase(pool="llama-ft", rank=rank, phase="saving", **until_then))
    async with on_run_screen(app, (80, 24), until="RUNNING 4 ranks  2 saving, killed in 0:24"):
        pass


async def test_launched_run_is_shown_although_it_is_queued(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft", function="first")
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        opened = events.RunOpened(pool="llama-ft", run="q", function="later", kind="broadcast", total=4, at=session.now)
        session.emit(view, opened)
        app.show_launched(view.key, "q")
        await until(pilot, "QUEUED place 1 of 1")


@pytest.mark.proof("0.5 s of a processor", after=2)
@pytest.mark.parametrize(("ranks", "mode"), [(8, "table"), (64, "grid"), (1, "table")])
async def test_rank_list_has_the_form_that_fits_its_number_of_ranks(
    app: SkywardApp, session: FakeSession, ranks: int, mode: str
) -> None:
    from skyward_tui.panels.rank_states_and_heat_map import RankList

    session.pool_with_run("wide", ranks)
    async with on_run_screen(app, (160, 48)) as (pilot, screen):
        panel = screen.query_one("#ranks", RankList)
        await until(pilot, lambda: panel.size.height > 10)
        assert panel.mode == mode
        await press(pilot, "1", until=lambda: app.focused is panel)
        await pilot.press("end")
        assert screen.rank == ranks - 1
        await press(pilot, "enter", until=lambda: app.focused is log_of(screen).pane)
        assert f"rank {ranks - 1}" in title(screen)


async def test_rank_grid_cursor_moves_by_cell_and_row(app: SkywardApp, session: FakeSession) -> None:
    session.pool_with_run("wide", 32, 8)
    async with on_run_screen(app, (160, 48)) as (pilot, screen):
        await press(pilot, "1", until=lambda: app.focused is not None and app.focused.id == "ranks")
        await pilot.press("down", "right", "right")
        assert screen.rank == 26  # three nodes of eight ranks to a row
        await pilot.press("up", "left")
        assert screen.rank == 1


async def test_run_of_an_ended_pool_remains_readable(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    session.print(view, 0, "last words\n")
    async with on_run_screen(app, SIZE) as (pilot, _):
        session.end_run(view, run)
        session.tear_down("llama-ft")
        session.views.clear()
        await until(pilot, "pool ○ gone")
        assert "last words" in screen_text(app)
        assert app.screen.check_action("down", ()) is False


async def test_saved_log_with_missing_lines_says_so(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft")
    async with on_run_screen(app, (280, 40)) as (pilot, screen):
        session.print(view, 0, "line\n" * 5)
        await until(pilot, lambda: log_of(screen).pane.window.ring.end == 5)
        await press(pilot, "S", until="saved llama-ft-")
        assert "the last" not in screen_text(app)
        session.print(view, 0, "line\n" * 12_000)
        await until(pilot, lambda: log_of(screen).pane.window.ring.first > 0)
        await pilot.press("S")
        held = log_of(screen).pane.window.ring
        await until(pilot, f"the last {held.end - held.first:,} lines")


async def test_screen_tick_paints_nothing_immediately(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, run = session.pool_with_run("llama-ft")
    async with on_run_screen(app, (160, 48), until="RUN") as (pilot, screen):
        updates: list[str] = []
        display = app._display

        def noted(of: Screen[Any], renderable: Any) -> None:
            updates.append(type(renderable).__name__)
            display(of, renderable)

        monkeypatch.setattr(app, "_display", noted)
        for step in range(3):  # the numbers get their place at the first, so the layout is another one
            logged(view, run, session, steps=step + 1)
            session.print(view, 0, f"line {step}\n")
            session.end_rank(view, run, step, "returned", summary=value({"loss": step}))
            session.emit(view, events.NodePhase(pool=view.name, node=3, phase="ready", detail=f"seen {step}"))
            session.now += 1
            updates.clear()  # nobody else has a turn from here to the pulse's end
            screen.tick(session.now)
            assert updates == []
            await until(pilot, lambda step=step: f"{step + 1}/4" in screen_text(app) and bool(updates))  # type: ignore[misc]


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("nodes", [12, 4])
async def test_small_run_screen_shows_the_preemption_countdown(
    app: SkywardApp, session: FakeSession, nodes: int
) -> None:
    view, _ = session.pool_with_run("llama-ft", nodes)
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        session.emit(view, events.NodeNotice(pool=view.name, node=2, kind="rebalance"))
        await until(pilot, "! n2 may soon be preempted")
        session.emit(view, events.NodeNotice(pool=view.name, node=1, kind="terminate", ends_at=session.now + 103))
        await until(pilot, "! n1 preempted in 1:43")
        session.now += 3
        await until(pilot, "! n1 preempted in 1:40")


async def test_debug_key_without_a_paused_rank_names_alternatives(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("train", 3)
    async with on_run_screen(app, (80, 24), view.key) as (pilot, _):
        await press(pilot, "D", until="no rank is at a breakpoint")
        for rank in (1, 2):
            session.emit(view, events.RankPhase(pool=view.name, rank=rank, phase="paused", at=session.now))
        await press(pilot, "D", until="skyward-tui debug train:1")  # no terminal here that could be given away
        await press(pilot, "right_square_bracket", "right_square_bracket", "D", until="skyward-tui debug train:2")


async def test_shell_key_without_a_terminal_names_the_ssh_command(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("train", 3)
    async with on_run_screen(app, (80, 24), view.key) as (pilot, _):
        await press(pilot, "dollar_sign", until="skyward-tui ssh train:0")  # no terminal here that could be given away
        await pilot.press("right_square_bracket", "right_square_bracket", "dollar_sign")
        await until(pilot, "skyward-tui ssh train:2")
        session.emit(view, events.PoolState(pool=view.name, state="gone"))
        await press(pilot, "dollar_sign", until="no node to log in to")


async def test_dashboard_key_opens_the_only_page_or_shows_a_choice(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = session.pool("train", 3)
    opened: list[str] = []
    monkeypatch.setattr(app, "open_url", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    ray, board = (Dashboard(name, f"http://127.0.0.1:{port}/") for name, port in (("ray", 4001), ("tensorboard", 4002)))
    async with on_run_screen(app, (100, 24), view.key) as (pilot, _):
        await press(pilot, "P", until="no dashboard found on the head node of pool train")
        session.pages = [board]
        await press(pilot, "P", until="tensorboard: http://127.0.0.1:4002/")
        assert opened == [board.address]
        session.pages = [ray, board]
        await press(pilot, "P", until="Open a dashboard")
        await press(pilot, "enter", until="ray: http://127.0.0.1:4001/")
        assert opened == [board.address, ray.address]
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(name, raising=False)
        session.pages = [board]
        await pilot.press("P")  # by a browser of text this terminal would be taken
        await until(pilot, "tensorboard: http://127.0.0.1:4002/")
        assert opened == [board.address, ray.address]
        session.emit(view, events.PoolState(pool=view.name, state="gone"))
        await press(pilot, "P", until="the pool has ended: it has no dashboards")


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_run_screen_shows_attempts_their_cost_and_the_last_restart(
    app: SkywardApp, session: FakeSession, size: tuple[int, int]
) -> None:
    view, run = session.pool_with_run("llama-ft")
    killed = "rank 2 exited: its process was ended by SIGKILL (the kernel does this when memory runs out; see dmesg)"
    ended = events.AttemptEnded(
        pool=view.name, at=session.now, run=run.id, number=1, cause="loss", message=killed, restarts=True,
        reason="restart 1 of 3 after a lost rank", step=120.0, pause=4.0, left=2,
    )  # fmt: skip
    for step in range(100, 121):
        view.metrics.add_values(run.id, 0, session.now - (121 - step) * 2, {"step": step, "loss": 1 / step})
    async with on_run_screen(app, size) as (pilot, _):
        assert "attempt" not in screen_text(app)
        session.emit(view, ended)
        await until(pilot, lambda: "✗◌ attempt 2 of 4 in 4 s · rank 2 ended by SIGKILL" in screen_text(app))
        assert "restart 1 of 3 after a lost rank, in 4 s: rank 2 ended by SIGKILL" in screen_text(app)
        assert "RESTARTING attempt 2 in 4 s" in screen_text(app)
        session.now += 10
        view.metrics.add_values(run.id, 0, session.now, {"step": 109, "loss": 0.1})
        session.emit(view, events.RankBegan(pool=view.name, run=run.id, index=0, rank=0, node=0))
        line = "✗● attempt 2 of 4 · rank 2 ended by SIGKILL · 12 steps, 0:36 lost"
        await until(pilot, lambda: line in screen_text(app))
        if size[0] == 160:  # a vertical line marks the restart in the chart
            await until(pilot, lambda: screen_text(app).count("⡇") >= 4)
        session.emit(view, replace(ended, at=session.now, number=2, reason="restart 2 of 3", pause=0.0, left=1))
        await until(pilot, lambda: "! restarts  run since" in screen_text(app))
        assert "one restart left: restart 2 of 3" in screen_text(app)


async def test_header_shows_the_time_since_the_newest_copied_checkpoint(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    async with on_run_screen(app, SIZE) as (pilot, _):
        assert "at risk" not in screen_text(app)
        # While a run that may restart has no copy elsewhere, its whole work is at risk.
        view.spec["options"], run.opened_at = {"on_loss": "restart"}, app.clock() - 1000
        view.provider = "ssh"
        saved = events.CheckpointSaved(
            pool=view.name, run=run.id, name="step-3", size=9, saved_at=app.clock(), place=events.THIS_MACHINE
        )
        session.emit(view, saved)
        await until(pilot, lambda: "work at risk 16:4" in screen_text(app))
        for name, before in (("step-2", 372.0), ("step-1", 900.0)):
            at = app.clock() - before
            session.emit(view, replace(saved, name=name, saved_at=at, place="this client"))
        await until(pilot, lambda: "work at risk 6:1" in screen_text(app))


@pytest.mark.proof("0.8 s of a processor")
async def test_messages_about_a_state_end_with_that_state(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    async with on_run_screen(app, SIZE) as (pilot, _):
        await press(pilot, "4", until="no result yet")
        for rank in range(4):
            session.end_rank(view, run, rank, summary=value(1))
        session.end_run(view, run)
        await until(pilot, "✓ DONE 4/4")
        assert "no result yet" not in screen_text(app)
