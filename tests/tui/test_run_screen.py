"""The pool and run screen, driven by keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from textual.screen import Screen

from skyward_core.model.outcomes import RankPhase
from skyward_core.pool.dashboards import Dashboard
from skyward_core.views import events
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.errors import ErrorsScreen
from skyward_tui.screens.pool_list import PoolsScreen
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import open_pool, screen_text, until
from tests.support.fake_session import FakeSession, failed_run, logged, value
from tests.tui.conftest import log_of

SIZE = (120, 40)


def title(screen: RunScreen) -> str:
    return str(log_of(screen).border_title)


async def test_rank_keys_change_the_log_and_merge_shows_all(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    session.open_run(view)
    for rank in range(4):
        session.print(view, rank, f"hello from {rank}\n")
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_pool(app, pilot)
        await until(pilot, lambda: "hello from 0" in screen_text(app))
        await pilot.press("]")
        await until(pilot, lambda: "rank 1" in title(screen))
        await pilot.press("[", "[")
        await until(pilot, lambda: "rank 3" in title(screen))
        await pilot.press("a")
        await until(pilot, lambda: "r003| hello from 3" in screen_text(app))
        assert "all ranks" in title(screen)
        await pilot.press("r", "2", "enter")
        await until(pilot, lambda: "rank 2" in title(screen))
        await pilot.press("r", "9", "enter")
        await until(pilot, lambda: "rank 9 does not exist: give 0 to 3" in screen_text(app))


async def test_equal_lines_of_ranks_collapse_on_a_key(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    session.open_run(view)
    for rank in (0, 1, 3):
        session.print(view, rank, "epoch done\n")
    session.print(view, 2, "loss is nan\nstep 7\n")
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_pool(app, pilot)
        await pilot.press("u")
        await until(pilot, lambda: "x3, not r2| epoch done" in screen_text(app))
        assert "all ranks, collapsed" in title(screen)
        assert "r2| loss is nan" in screen_text(app)
        pane = log_of(screen).pane
        await pilot.press("/", *"epoch", "enter")
        await until(pilot, lambda: "/epoch 1 hit" in str(log_of(screen).border_subtitle))
        await pilot.press("escape", "f", "space")
        await until(pilot, lambda: not pane.is_following)
        # A label grows where the reader stands still, and new rows are counted.
        session.print(view, 2, "epoch done\n")
        for rank in range(4):
            session.print(view, rank, "saved\n")
        await until(pilot, lambda: "PAUSED +2 lines" in title(screen))
        await pilot.press("f")
        await until(pilot, lambda: "x4| saved" in screen_text(app))
        await pilot.press("u")
        await until(pilot, lambda: "r001| epoch done" in screen_text(app))
        assert "collapsed" not in title(screen)
        # It is remembered where one rank is looked at between.
        await pilot.press("u", "a")
        await until(pilot, lambda: "rank 0" in title(screen))
        await pilot.press("a")
        await until(pilot, lambda: "collapsed" in title(screen))


@pytest.mark.proof("1 s of a processor")
async def test_slow_log_filter_is_given_up_with_a_message(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 1)
    session.open_run(view)
    session.print(view, 0, "fine\n")
    session.print(view, 0, "m" * 3000 + "\n")
    async with app.run_test(size=(120, 40)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: "fine" in screen_text(app))
        await pilot.press("&", *"(m+m+)+y", "enter")
        await until(pilot, lambda: "search stopped: (m+m+)+y is too slow" in screen_text(app))
        assert "fine" in screen_text(app)


async def test_find_and_filter_are_cleared_by_escape(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    session.open_run(view)
    session.print(view, 0, "".join(f"step {i}\n" for i in range(500)))
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_pool(app, pilot)
        await pilot.press("/", *"step 5", "enter")
        await until(pilot, lambda: "/step 5 11 hits" in str(log_of(screen).border_subtitle))
        pane = log_of(screen).pane
        assert pane.current_hit is not None
        first = pane.current_hit
        await pilot.press("N")
        assert pane.current_hit < first
        await pilot.press("n")
        assert pane.current_hit == first
        await pilot.press("&", *"!5", "enter")
        await until(pilot, lambda: "&!5" in str(log_of(screen).border_subtitle))
        await pilot.press("z")
        assert screen.has_class("-zoom")
        await pilot.press("escape")
        assert log_of(screen).pane.window.search is None
        await pilot.press("escape")
        assert log_of(screen).pane.window.filter is None
        await pilot.press("escape")
        assert not screen.has_class("-zoom")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))


async def test_log_can_be_paused_and_followed_again(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    session.print(view, 0, "".join(f"step {i}\n" for i in range(500)))
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_pool(app, pilot)
        await until(pilot, lambda: "step 499" in screen_text(app))
        await pilot.press("space")
        session.print(view, 0, "".join(f"step {i}\n" for i in range(500, 600)))
        await until(pilot, lambda: "PAUSED +100 lines" in title(screen))
        assert "step 500" not in screen_text(app)
        await pilot.press("f")
        await until(pilot, lambda: "step 599" in screen_text(app))
        assert "FOLLOW" in title(screen)


async def test_results_appear_with_their_aggregate(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    run = session.open_run(view)
    async with app.run_test(size=SIZE) as pilot:
        await open_pool(app, pilot)
        item = events.ItemYielded(pool=view.name, run=run.id, index=3, rank=3, seq=6, summary=value({"loss": 0.5}))
        session.emit(view, item)
        await until(pilot, lambda: "#7 loss 0.5" in screen_text(app))
        for rank in range(4):
            session.end_rank(view, run, rank, summary=value({"loss": 0.2 + rank}))
        session.end_run(view, run)
        await until(pilot, lambda: "mean 1.7 ± 1.118   min 0.2   max 3.2" in screen_text(app))
        assert "✓ DONE 4/4" in screen_text(app)


async def test_errors_screen_begins_with_the_root_cause(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    failed_run(session, view)
    session.print(view, 3, "the last words of rank 3\n")
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_pool(app, pilot)
        await until(pilot, lambda: "root cause r2 raised: ZeroDivisionError" in " ".join(screen_text(app).split()))
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, ErrorsScreen) and "ROOT CAUSE" in screen_text(app))
        rows = re.findall(r"│ +(ROOT CAUSE)? +r(\d+) +n\d+ ", screen_text(app))
        assert rows == [("ROOT CAUSE", "2"), ("", "3"), ("", "0")], "the first, what else failed, what was stopped"
        assert re.search(r"r0 .*⊘ stopped +stopped because another rank failed", screen_text(app))
        assert 'File "/home/me/train.py", line 17, in step' in screen_text(app)
        await pilot.press("y")
        assert "ZeroDivisionError: division by zero" in app.clipboard
        await pilot.press("down", "enter")
        await until(pilot, lambda: "the last words of rank 3" in screen_text(app))
        assert screen.rank == 3


async def test_broken_link_shows_since_when_it_is_down(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    session.open_run(view)
    down = events.NodeLink(pool=view.name, node=2, up=False, detail="no route to host", at=session.now - 30)
    session.emit(view, down)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await open_pool(app, pilot)
        await until(pilot, lambda: "link down since 07:59:30 (no route to host)" in screen_text(app))
        await pilot.press("]", "]")
        await until(pilot, lambda: "! link down since 07:59:30" in title(screen))
        session.emit(view, events.NodeLink(pool=view.name, node=2, up=True, at=session.now))
        await until(pilot, lambda: "link down" not in screen_text(app))


async def test_ranks_show_their_phase_before_the_function_runs(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    run = session.open_run(view)

    def enter(rank: int, phase: RankPhase, ago: float) -> None:
        session.emit(view, events.RankPhase(pool=view.name, rank=rank, phase=phase, at=session.now - ago))

    phases: tuple[RankPhase, ...] = ("starting", "importing", "joining")
    for rank, phase in enumerate(phases):
        enter(rank, phase, 10 * rank + 12)
    enter(3, "running", 7)  # the call was given to it 40 s ago
    async with app.run_test(size=(160, 48)) as pilot:
        await open_pool(app, pilot)
        await until(pilot, lambda: "nothing printed yet: 1 rank starting for 0:12" in screen_text(app))
        cards = [line[:56] for line in screen_text(app).splitlines()]
        for words, time, note in (
            ("r1  n1  ◔ importing", "0:22", "importing"),
            ("r2  n2  ◑ joining", "0:32", "waiting for the other ranks"),
            ("r3  n3  ● running", "0:07", ""),
        ):
            place = next(i for i, line in enumerate(cards) if words in line)
            assert time in cards[place] and note in cards[place + 1]
        enter(3, "paused", 3)
        await until(pilot, lambda: "at a breakpoint (D: debug)" in screen_text(app))
        assert "r3  n3  ◍ paused" in screen_text(app)
        enter(3, "running", 7)
        await pilot.press("a")
        await until(pilot, lambda: "1 rank importing for 0:22, 1 rank joining for 0:32" in screen_text(app))
        enter(2, "running", 0)
        enter(1, "", 0)
        session.end_rank(view, run, 0)
        await until(pilot, lambda: "importing" not in screen_text(app) and "joining" not in screen_text(app))
        assert "starting" not in screen_text(app)  # rank 0 has returned


async def test_log_is_copied_and_results_are_saved(app: SkywardApp, session: FakeSession, tmp_path: Path) -> None:
    view = session.pool("llama-ft")
    run = session.open_run(view)
    session.print(view, 0, "\x1b[31mone\x1b[0m\ntwo\n")
    session.end_rank(view, run, 0, summary=value(0.1234567890123))
    async with app.run_test(size=SIZE) as pilot:
        await open_pool(app, pilot)
        await until(pilot, lambda: "two" in screen_text(app))
        await pilot.press("y")
        assert app.clipboard == "one\ntwo"
        await until(pilot, lambda: "copied log lines" in screen_text(app))
        await pilot.press("4")
        await until(pilot, lambda: app.focused is not None and app.focused.id == "results")
        await pilot.press("y")
        assert "0\t0\t0\treturned\t3.25\t\t\t0.1234567890123" in app.clipboard
        Path("llama-ft-llama-ft-1-r000.log").write_text("mine")
        for again in ("", "-2"):
            await pilot.press("S")
            await until(pilot, lambda end=again: Path(f"llama-ft-llama-ft-1-results{end}.csv").exists())  # type: ignore[misc]
        assert Path("llama-ft-llama-ft-1-r000.log").read_text() == "mine"
        assert Path("llama-ft-llama-ft-1-r000-2.log").read_text() == "\x1b[31mone\x1b[0m\ntwo\n"
        await until(pilot, lambda: "saved llama-ft-llama-ft-1-" in screen_text(app))
        saved = json.loads(Path("llama-ft-llama-ft-1-results.json").read_text())
        assert saved["ranks"][0]["value"] == 0.1234567890123


async def test_saved_files_are_named_on_a_small_terminal(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    run = session.open_run(view)
    session.end_run(view, run)
    async with app.run_test(size=(80, 24)) as pilot:
        await open_pool(app, pilot)
        await pilot.press("S")
        said = "saved llama-ft-llama-ft-1-{r000.log,results.json,results.csv} in"
        await until(pilot, lambda: said in screen_text(app))


async def test_run_is_cancelled_only_after_confirmation(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    run = session.open_run(view)
    async with app.run_test(size=SIZE) as pilot:
        await open_pool(app, pilot)
        await pilot.press("C", "enter")
        assert session.cancelled == []
        await pilot.press("C", "tab", "enter")
        await until(pilot, lambda: session.cancelled == [("llama-ft", run.id)])
        await until(pilot, lambda: "⊘ CANCELLED" in screen_text(app))


async def test_run_keys_move_through_the_runs_of_a_pool(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    for function in ("first", "second", "third"):
        session.open_run(view, function)
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_pool(app, pilot)
        assert screen.run is not None and screen.run.function == "third"
        await pilot.press("{", "{")
        assert screen.run.function == "first"
        await pilot.press("}", "}")
        assert screen.run.function == "third" and screen.run_id is None
        session.open_run(view, "fourth")
        await pilot.press("}")
        await until(pilot, lambda: "pools › llama-ft › fourth" in screen_text(app))


async def test_run_screen_follows_a_queued_run_only_after_its_own_run_ends(
    app: SkywardApp, session: FakeSession
) -> None:
    view = session.pool("llama-ft")
    run = session.open_run(view, "first")
    session.open_run(view, "beside", kind="single")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_pool(app, pilot)
        await pilot.press("{")
        screen.run_id = None  # not pinned: the screen follows the pool
        opened = events.RunOpened(pool="llama-ft", run="q", function="later", kind="broadcast", total=4, at=session.now)
        session.emit(view, opened)
        session.end_rank(view, run, 0)
        await until(pilot, lambda: "RUNNING 1/4" in screen_text(app))
        assert "pools › llama-ft › first" in screen_text(app)
        for rank in range(1, 4):
            session.end_rank(view, run, rank)
        session.end_run(view, run)
        session.emit(view, events.RankBegan(pool="llama-ft", run="q", index=0, rank=0, node=0, at=session.now))
        await until(pilot, lambda: "DONE 4/4" in screen_text(app))
        assert "› first" in screen_text(app), "runs that were there before its end do not take its place"
        session.open_run(view, "next")
        await until(pilot, lambda: "› next" in screen_text(app))


async def test_queued_run_shows_its_place_and_reason_on_each_screen(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    session.open_run(view, "first")
    opened = events.RunOpened(pool="llama-ft", run="q", function="later", kind="broadcast", total=4, at=session.now)
    session.emit(view, opened)
    line = [events.QueuedRun(run=each, name=each, nodes=4, only=[], since=session.now) for each in ("other", "q")]
    session.emit(view, events.QueueNews(pool="llama-ft", waiting=line))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "● running first 0/4" in screen_text(app))
        assert "later" not in screen_text(app), "list and preview show the running run"
        await open_pool(app, pilot)
        await pilot.press("}")
        await until(pilot, lambda: "QUEUED place 2 of 2" in screen_text(app))
        await until(pilot, lambda: "queued: needs 4 nodes, 0 free; behind other (other); first" in screen_text(app))
        assert "RUNNING" not in screen_text(app)
        await pilot.press("q")
        session.end_run(view, view.runs["llama-ft-1"])
        await until(pilot, lambda: "◌ queued later place 2 of 2" in screen_text(app))


async def test_launched_run_is_shown_although_it_is_queued(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    session.open_run(view, "first")
    async with app.run_test(size=(80, 24)) as pilot:
        await open_pool(app, pilot)
        opened = events.RunOpened(pool="llama-ft", run="q", function="later", kind="broadcast", total=4, at=session.now)
        session.emit(view, opened)
        app.show_launched(view.key, "q")
        await until(pilot, lambda: "QUEUED place 1 of 1" in screen_text(app))


@pytest.mark.parametrize(("ranks", "mode"), [(1, "cards"), (8, "cards"), (9, "table"), (64, "table"), (65, "grid")])
async def test_rank_list_has_the_form_that_fits_its_number_of_ranks(
    app: SkywardApp, session: FakeSession, ranks: int, mode: str
) -> None:
    from skyward_tui.panels.ranks import RankList

    view = session.pool("wide", ranks)
    session.open_run(view)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await open_pool(app, pilot)
        panel = screen.query_one("#ranks", RankList)
        await until(pilot, lambda: panel.size.height > 10)
        assert panel.mode == mode
        await pilot.press("1")
        await until(pilot, lambda: app.focused is panel)
        await pilot.press("end")
        assert screen.rank == ranks - 1
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is log_of(screen).pane)
        assert f"rank {ranks - 1}" in title(screen)


async def test_rank_grid_cursor_moves_by_cell_and_row(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("wide", 32, 8)
    session.open_run(view)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await open_pool(app, pilot)
        await pilot.press("1")
        await until(pilot, lambda: app.focused is not None and app.focused.id == "ranks")
        await pilot.press("down", "right", "right")
        assert screen.rank == 18  # two nodes of eight ranks to a row
        await pilot.press("up", "left")
        assert screen.rank == 1


async def test_run_of_an_ended_pool_remains_readable(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    run = session.open_run(view)
    session.print(view, 0, "last words\n")
    async with app.run_test(size=SIZE) as pilot:
        await open_pool(app, pilot)
        session.end_run(view, run)
        session.tear_down("llama-ft")
        session.views.clear()
        await until(pilot, lambda: "pool ○ gone" in screen_text(app))
        assert "last words" in screen_text(app)
        assert app.screen.check_action("down", ()) is False


async def test_saved_log_with_missing_lines_says_so(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft")
    session.open_run(view)
    async with app.run_test(size=(280, 40)) as pilot:
        screen = await open_pool(app, pilot)
        session.print(view, 0, "line\n" * 5)
        await until(pilot, lambda: log_of(screen).pane.window.ring.end == 5)
        await pilot.press("S")
        await until(pilot, lambda: "saved llama-ft-" in screen_text(app))
        assert "the last" not in screen_text(app)
        session.print(view, 0, "line\n" * 12_000)
        await until(pilot, lambda: log_of(screen).pane.window.ring.first > 0)
        await pilot.press("S")
        held = log_of(screen).pane.window.ring
        await until(pilot, lambda: f"the last {held.end - held.first:,} lines" in screen_text(app))


async def test_screen_tick_paints_nothing_immediately(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = session.pool("llama-ft")
    run = session.open_run(view)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await open_pool(app, pilot)
        await until(pilot, lambda: "RUN" in screen_text(app))
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


@pytest.mark.parametrize("nodes", [4, 12])
async def test_small_run_screen_shows_the_preemption_countdown(
    app: SkywardApp, session: FakeSession, nodes: int
) -> None:
    view = session.pool("llama-ft", nodes)
    session.open_run(view)
    async with app.run_test(size=(80, 24)) as pilot:
        await open_pool(app, pilot)
        session.emit(view, events.NodeNotice(pool=view.name, node=2, kind="rebalance"))
        await until(pilot, lambda: "! n2 may soon be preempted" in screen_text(app))
        session.emit(view, events.NodeNotice(pool=view.name, node=1, kind="terminate", ends_at=session.now + 103))
        await until(pilot, lambda: "! n1 preempted in 1:43" in screen_text(app))
        session.now += 3
        await until(pilot, lambda: "! n1 preempted in 1:40" in screen_text(app))


async def test_debug_key_without_a_paused_rank_names_alternatives(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("train", 3)
    session.open_run(view)
    async with app.run_test(size=(80, 24)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        await pilot.press("D")
        await until(pilot, lambda: "no rank is at a breakpoint" in screen_text(app))
        for rank in (1, 2):
            session.emit(view, events.RankPhase(pool=view.name, rank=rank, phase="paused", at=session.now))
        await pilot.press("D")  # no terminal here that could be given away
        await until(pilot, lambda: "skyward-tui debug train:1" in screen_text(app))
        await pilot.press("right_square_bracket", "right_square_bracket", "D")
        await until(pilot, lambda: "skyward-tui debug train:2" in screen_text(app))


async def test_shell_key_without_a_terminal_names_the_ssh_command(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("train", 3)
    session.open_run(view)
    async with app.run_test(size=(80, 24)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        await pilot.press("dollar_sign")  # no terminal here that could be given away
        await until(pilot, lambda: "skyward-tui ssh train 0" in screen_text(app))
        await pilot.press("right_square_bracket", "right_square_bracket", "dollar_sign")
        await until(pilot, lambda: "skyward-tui ssh train 2" in screen_text(app))
        session.emit(view, events.PoolState(pool=view.name, state="gone"))
        await pilot.press("dollar_sign")
        await until(pilot, lambda: "no node to log in to" in screen_text(app))


async def test_dashboard_key_opens_the_only_page_or_shows_a_choice(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = session.pool("train", 3)
    opened: list[str] = []
    monkeypatch.setattr(app, "open_url", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    ray, board = (Dashboard(name, f"http://127.0.0.1:{port}/") for name, port in (("ray", 4001), ("tensorboard", 4002)))
    async with app.run_test(size=(100, 24)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        await pilot.press("P")
        await until(pilot, lambda: "no dashboard found on the head node of pool train" in screen_text(app))
        session.pages = [board]
        await pilot.press("P")
        await until(pilot, lambda: "tensorboard: http://127.0.0.1:4002/" in screen_text(app))
        assert opened == [board.address]
        session.pages = [ray, board]
        await pilot.press("P")
        await until(pilot, lambda: "Open a dashboard" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: "ray: http://127.0.0.1:4001/" in screen_text(app))
        assert opened == [board.address, ray.address]
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(name, raising=False)
        session.pages = [board]
        await pilot.press("P")  # by a browser of text this terminal would be taken
        await until(pilot, lambda: "tensorboard: http://127.0.0.1:4002/" in screen_text(app))
        assert opened == [board.address, ray.address]
        session.emit(view, events.PoolState(pool=view.name, state="gone"))
        await pilot.press("P")
        await until(pilot, lambda: "the pool has ended: it has no dashboards" in screen_text(app))
