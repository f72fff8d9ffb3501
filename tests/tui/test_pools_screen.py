"""The list of pools: teardown, quitting, and the preview of the pool under the cursor."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any

import pytest
from textual import events
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Input

from skyward_core.client.run_history import MetricSummary, PastRun
from skyward_core.client.user_settings_and_app_state import settings_path
from skyward_core.model.errors import LedgerError
from skyward_core.pool.dashboards import Dashboard
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.views import events as ev
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.confirmations import QuitScreen, TeardownScreen
from skyward_tui.dialogs.help_and_focus_jump import HelpScreen
from skyward_tui.screens.home_runs_and_pools import (
    MAX_CACHED,
    HomeRun,
    PoolList,
    PoolsScreen,
    RunTable,
    cache_text,
    load_cached_runs,
)
from skyward_tui.screens.launch_sidebar import StartList
from skyward_tui.screens.run import RunScreen
from skyward_tui.ui.saved_state import MAX_CHARACTERS
from skyward_tui.widgets.selected_pool_preview import PoolPreview
from tests.support.app_driver import Size, press, running_app, screen_text, until
from tests.support.fake_session import NOW, FakeSession, failed_run, logged
from tests.support.past import past_run

SIZE = (100, 30)


async def test_empty_pool_list_names_the_launch_key(app: SkywardApp) -> None:
    async with running_app(app, SIZE, until="No pools yet") as pilot:
        assert "Press n to launch a script" in screen_text(app)
        await pilot.press("X", "L")
        assert isinstance(app.screen, PoolsScreen)


async def test_app_can_exit_while_the_start_list_is_mounted(app: SkywardApp, monkeypatch: pytest.MonkeyPatch) -> None:
    mount, exited = Vertical.mount, []

    def mount_then_exit(parent: Vertical, *widgets: Widget, **more: Any) -> Any:
        mounted = mount(parent, *widgets, **more)
        return exit_after(mounted) if widgets and widgets[0].id == "first" else mounted

    async def exit_after(mounted: Awaitable[None]) -> None:
        await mounted
        app.exit()
        exited.append(app)

    monkeypatch.setattr(Vertical, "mount", mount_then_exit)
    async with running_app(app, SIZE, until=lambda: exited == [app]):
        pass  # a fault of the worker fails the test here


async def test_pools_of_other_clients_appear_and_the_cursor_keeps_its_pool(
    app: SkywardApp, session: FakeSession
) -> None:
    session.pool("mine")
    async with running_app(app, SIZE, until="▶ mine") as pilot:
        session.pool("theirs", 2, price=3.5, provider="aws")
        await until(pilot, "theirs")
        assert "▶ mine" in screen_text(app)
        assert "2 pools up  $3.50/h" in screen_text(app)
        await press(pilot, "k", "enter", until="pools › theirs")
        await press(pilot, "q", until=lambda: isinstance(app.screen, PoolsScreen))


async def test_unreadable_ledger_is_reported() -> None:
    def refuse() -> FakeSession:
        raise LedgerError("the ledger was written by a newer version; update skyward-tui")

    app = SkywardApp(refuse)  # type: ignore[arg-type]
    async with running_app(app, SIZE, until="✗ the ledger was written by a newer version") as pilot:
        await pilot.press("n")
        assert isinstance(app.screen, PoolsScreen)
        await press(pilot, "q", until=lambda: not app.is_running)


@pytest.mark.proof("1 s of a processor", after=8)
@pytest.mark.parametrize(
    ("seconds", "message"),
    [(0, "now"), (59, "now"), (60, "1m ago"), (3599, "59m ago"), (7200, "2h ago"), (86_400, "1d ago"),
     (364 * 86_400, "364d ago")],
)  # fmt: skip
@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_ended_pool_shows_the_time_since_its_end(
    app: SkywardApp, session: FakeSession, size: Size, seconds: float, message: str
) -> None:
    over = session.pool("over", state="gone", age=seconds + 60)
    over.ended_at = session.now - seconds
    session.pool("up", age=7200)
    async with running_app(app, size, until="○ gone"):
        lines = screen_text(app).splitlines()
        (head,) = (line for line in lines if "AGE" in line)
        end = head.index("AGE") + len("AGE")
        shown = {line.split()[1]: line[:end] for line in lines if "●" in line or "○" in line}
        assert shown["over"].endswith(f" {message}") and shown["up"].endswith(" 2h00")


async def test_idle_pool_shows_the_time_until_its_end(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    session.emit(view, ev.RunEnded(pool="llama-ft", run=run.id, state="failed", at=session.now))
    view.ends_at = app.clock() + 75.5
    async with running_app(app, (80, 24), until="ends in 1:1") as pilot:
        assert "✗ failed" in screen_text(app)
        view.ends_at = None
        view.version += 1
        await until(pilot, lambda: "ends in" not in screen_text(app))


@pytest.mark.parametrize("price", [12.5, 0.0])
async def test_teardown_states_cost_and_runs_and_starts_on_cancel(
    app: SkywardApp, session: FakeSession, price: float
) -> None:
    session.auto = False
    view = session.pool("llama-ft", 4, price=price, age=3600.0)
    if price:
        session.open_run(view)
    async with running_app(app, SIZE, until="▶ llama-ft") as pilot:
        await press(pilot, "X", until="← →: choose, enter: confirm, esc: close")
        assert app.focused is app.screen.query_one("#cancel") and not app.screen.query(Input)
        stated = "is active and will be stopped" in screen_text(app), "$12.50/h, spent $12.50" in screen_text(app)
        assert stated == (bool(price), bool(price))
        await press(pilot, "enter", until="not torn down: llama-ft")
        assert session.torn_down == []
        await press(pilot, "X", "right", "enter", until=lambda: session.torn_down == ["llama-ft"])
        await until(pilot, "◍ stopping")
        session.finish_down("llama-ft")
        await until(pilot, "created 4, verified gone 4, unaccounted 0")
        assert "✓ gone" in screen_text(app) and "choose" not in screen_text(app)
        await press(pilot, "enter", until=lambda: isinstance(app.screen, PoolsScreen))


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("key", ["q", "escape", "enter"])
async def test_receipt_is_closed_by_the_same_keys_as_other_screens(
    app: SkywardApp, session: FakeSession, key: str
) -> None:
    view = session.pool("free", 8, price=1.0)
    session.end_run(view, session.open_run(view))
    async with running_app(app, SIZE, until="▶ free") as pilot:
        await press(pilot, "X", until=lambda: isinstance(app.screen, TeardownScreen))
        await press(pilot, "right", "enter", until="verified gone 8")
        await press(pilot, key, until=lambda: isinstance(app.screen, PoolsScreen))


async def test_keys_in_one_burst_go_to_the_current_screen(app: SkywardApp, session: FakeSession) -> None:
    session.pool("over", state="gone")
    async with running_app(app, SIZE, until="▶ over") as pilot:
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        await press(pilot, "question_mark", until=lambda: isinstance(app.screen, HelpScreen))
        for _ in range(3):  # as a terminal tells of them when they come in one piece
            app.post_message(events.Key("q", "q"))
        await until(pilot, lambda: not app.is_running)


async def test_teardown_names_unfetched_results_and_requires_confirmation(
    app: SkywardApp, session: FakeSession
) -> None:
    view, run = session.pool_with_run("free", 1)
    session.end_run(view, run)
    view.unfetched = {run.id: 12_345}
    async with running_app(app, SIZE, until="▶ free") as pilot:
        await press(pilot, "X", until=f"run {run.id} (train): downloads 12,345 unfetched bytes")
        await press(pilot, "tab", "enter", until=lambda: session.torn_down == ["free"])


async def test_hidden_teardown_continues_and_names_its_leftovers(app: SkywardApp, session: FakeSession) -> None:
    session.auto = False
    session.pool("paid", 1, price=4.0)
    session.downing["paid"] = future = Future[Any]()
    async with running_app(app, SIZE, until="▶ paid") as pilot:
        await press(pilot, "X", "tab", "enter", until=lambda: session.torn_down == ["paid"])
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
        future.set_result(Receipt("paid", 1, (), ("i-0123",), 9.0))
        await until(pilot, "✗ paid: created 1, verified gone 0, unaccounted 1: i-0123")


async def test_quit_without_live_pools_needs_no_confirmation(app: SkywardApp, session: FakeSession) -> None:
    session.pool("old", state="gone")
    async with running_app(app, SIZE, until="▶ old") as pilot:
        await press(pilot, "q", until=lambda: not app.is_running)
    assert session.detached and app.return_code == 0


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("key", ["q", "ctrl+q"])
async def test_quit_with_live_pools_asks_and_keeps_them_by_default(
    app: SkywardApp, session: FakeSession, key: str
) -> None:
    session.pool("llama-ft")
    async with running_app(app, SIZE, until="▶ llama-ft") as pilot:
        await press(pilot, key, until=lambda: isinstance(app.screen, QuitScreen))
        assert "1 pool still up: llama-ft" in screen_text(app)
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
        await press(pilot, key, "enter", until=lambda: not app.is_running)
    assert session.detached and session.torn_down == []


async def test_quit_can_tear_down_all_pools(app: SkywardApp, session: FakeSession) -> None:
    session.pool("one")
    session.pool("two")
    async with running_app(app, SIZE, until="▶ ") as pilot:
        await pilot.press("q", "right", "enter")  # asks no second time: nothing of them is precious
        await until(pilot, lambda: isinstance(app.screen, TeardownScreen))
        await until(pilot, lambda: screen_text(app).count("unaccounted 0") >= 2)
        await press(pilot, "enter", until=lambda: not app.is_running)
    assert sorted(session.torn_down) == ["one", "two"]


async def test_ctrl_c_neither_quits_nor_cancels(app: SkywardApp, session: FakeSession) -> None:
    session.pool("llama-ft")
    async with running_app(app, SIZE, until="▶ llama-ft") as pilot:
        await press(pilot, "ctrl+c", "ctrl+c", until="ctrl+c does not quit")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        await pilot.press("ctrl+c")
        assert app.is_running and session.torn_down == [] and session.cancelled == []


async def test_selected_pool_opens_although_another_has_its_name(app: SkywardApp, session: FakeSession) -> None:
    for words in ("of the first", "of the second"):
        view, _ = session.pool_with_run("twice", 1, state="gone", age=3600)
        session.print(view, 0, f"last words {words}\n")
        view.created_at += 60 * len(session.views)
    first = session.views[0]
    async with running_app(app, SIZE, until="─ runs") as pilot:
        await press(pilot, "down", "enter", until="last words of the first")
        assert session.recalled == [first.key]
        await press(pilot, "q", "up", "enter", until="last words of the second")


async def test_teardown_of_a_live_pool_ignores_an_ended_namesake(app: SkywardApp, session: FakeSession) -> None:
    session.pool("twice", 1, state="gone")
    live = session.pool("twice", 1)
    session.views.reverse()
    async with running_app(app, SIZE, until=lambda: screen_text(app).count("twice") == 2) as pilot:
        await press(pilot, "down", "X", until=lambda: isinstance(app.screen, TeardownScreen))
        await press(pilot, "tab", "enter", until=lambda: live.state == "gone")


async def test_pool_whose_teardown_failed_can_be_torn_down_again(app: SkywardApp, session: FakeSession) -> None:
    """Machines of the pool may still run, so quitting asks about the pool, too."""
    session.pool("stuck", 1, state="failed")
    async with running_app(app, SIZE, until="▶ stuck") as pilot:
        await press(pilot, "q", until=lambda: isinstance(app.screen, QuitScreen))
        await press(pilot, "escape", "X", "tab", "enter", until=lambda: session.torn_down == ["stuck"])


@pytest.mark.proof("0.5 s of a processor")
async def test_preemption_countdown_is_shown_on_every_screen(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("spot", 2)
    session.open_run(view, total=2)
    session.emit(view, ev.NodeNotice(pool="spot", node=1, kind="terminate", ends_at=session.now + 102, at=session.now))
    async with running_app(app, (160, 48), until="n1 preempted in 1:42 (terminate)") as pilot:
        session.now += 10
        await until(pilot, "n1 preempted in 1:32 (terminate)")
        await press(pilot, "enter", until=lambda: screen_text(app).count("preempted in 1:32") == 3)
        # Where nodes have no room the header has it, before numbers and money.
        await pilot.resize_terminal(80, 24)
        await until(
            pilot,
            lambda: (
                len(screen_text(app).splitlines()[0]) <= 80
                and "! n1 preempted in 1:32" in screen_text(app).splitlines()[0]
            ),
        )
        session.now += 100  # what became of it is shown then
        await until(pilot, lambda: "preempted in" not in screen_text(app).splitlines()[0])


async def test_pool_name_is_shown_on_the_smallest_terminal(app: SkywardApp, session: FakeSession) -> None:
    session.open_run(session.pool("llama-ft"))
    async with running_app(app, (60, 15), until="llama-ft"):
        pass


async def test_dashboard_key_opens_a_page_of_the_selected_pool(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.pool("train", 2)
    over = session.pool("over", 2)
    session.emit(over, ev.PoolState(pool=over.name, state="gone"))
    opened: list[str] = []
    monkeypatch.setattr(app, "open_url", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    async with running_app(app, SIZE, until=lambda: "▶" in screen_text(app) and "train" in screen_text(app)) as pilot:
        listed = app.screen.query_one(PoolList)
        while listed.chosen is None or listed.chosen.name != "train":
            await pilot.press("down" if listed.cursor == 0 else "up")
        await press(pilot, "P", until="no dashboard found on the head node of pool train")
        session.pages = [Dashboard("ray", "http://127.0.0.1:4001/")]
        await press(pilot, "P", until="ray: http://127.0.0.1:4001/")
        assert opened == ["http://127.0.0.1:4001/"]
        while listed.chosen is None or listed.chosen.name != "over":
            await pilot.press("down" if listed.cursor == 0 else "up")
        await pilot.press("P")
        await pilot.pause()
        assert opened == ["http://127.0.0.1:4001/"], "of a pool that is over there is no head"


def listed(app: SkywardApp) -> list[str]:
    return [pool.name for pool in app.screen.query_one(PoolList).rows]


async def test_column_headings_fit_although_names_are_short(app: SkywardApp, session: FakeSession) -> None:
    session.pool("a")
    async with running_app(app, SIZE, until="▶ a"):
        heading, row, *_ = [line for line in screen_text(app).splitlines() if "STATE" in line or "▶ a" in line]
        assert "POOL STATE" in heading and row.index("● up") == heading.index("STATE")


def strip_lines(app: SkywardApp) -> list[str]:
    region = app.screen.query_one("#list").content_region
    return [line[region.x : region.right].rstrip() for line in screen_text(app).splitlines()[region.y : region.bottom]]


async def test_live_pools_are_a_strip_below_the_runs(app: SkywardApp, session: FakeSession) -> None:
    chatty = session.pool("chatty", 4, age=7200.0)
    session.end_run(chatty, session.open_run(chatty))
    grid = session.pool("grid", 8, price=4.1, provider="ssh")
    session.open_run(grid), session.open_run(grid)
    session.pool("over", state="gone")
    session.now += 571
    async with running_app(app, (120, 40), until="● 2 runs") as pilot:
        assert strip_lines(app) == ["▶ grid 8 ssh $4.10/h ● 2 runs ·  chatty 4 local idle 9:31"]
        await press(pilot, "tab", "right", until="▶ chatty")
        assert isinstance(app.screen, PoolsScreen) and app.screen.command_fields()["pool"] == "chatty"
        await press(pilot, "left", "space", until="◆grid")
        region = app.screen.query_one("#list").content_region
        await pilot.click(offset=(region.x + 40, region.y))
        await until(pilot, "▶ chatty")
        await press(pilot, "X", until="Tear down grid?")
        await press(pilot, "escape", "a", until="NODES")
        assert set(listed(app)) == {"grid", "chatty", "over"}
        await press(pilot, "a", "enter", until="pools › chatty")


async def test_long_strip_of_pools_scrolls(app: SkywardApp, session: FakeSession) -> None:
    for number in range(9):
        session.pool(f"pool-number-{number}", age=90.0 + number)
    session.past = [past_run(1)]
    async with running_app(app, (90, 24), until="local idle") as pilot:
        await pilot.press("tab")
        assert len(strip_lines(app)) == 3 and strip_lines(app)[0].startswith("▶ ") and len(listed(app)) == 9
        await press(pilot, *["down"] * 8, until=lambda: strip_lines(app)[-1].strip().startswith("▶"))
        assert all(line.count("pool-number") == 2 or line == strip_lines(app)[-1] for line in strip_lines(app))


async def test_marked_pools_are_torn_down_together(app: SkywardApp, session: FakeSession) -> None:
    for name in ("one", "two", "three", "over"):
        session.pool(name, 1, state="gone" if name == "over" else "up")
    async with running_app(app, SIZE, until="three") as pilot:
        await press(pilot, "home", "space", "space", "down", "space", until="3 marked")  # over, three, one
        assert screen_text(app).count("◆") == 3
        await press(pilot, "escape", until=lambda: "marked" not in screen_text(app))
        await pilot.press("home", "space", "space", "down", "space")
        await press(pilot, "X", until=lambda: isinstance(app.screen, TeardownScreen))
        await until(pilot, "Tear down 2 pools?")
        await press(pilot, "tab", "enter", until=lambda: len(session.torn_down) == 2)
        assert {key.partition(".")[0] for key in session.torn_down} == {"one", "three"}


async def test_pool_preview_shows_utilization_and_cost(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("dear", 2, price=9.0, provider="aws", age=3600.0)
    idle = session.pool("idle", 2)
    session.open_run(view)
    async with running_app(app, (160, 48), until="▶ dear") as pilot:
        await until(pilot, lambda: session.measured == ["dear.0"])
        await press(pilot, "tab", until="$9.00/h, $9.00 spent")
        view.machines, idle.machines = MachineMetrics(), MachineMetrics()
        for node in range(2):
            gpus = [{"util": 90 + node}, {"util": 98}]
            sample = {"at": session.now, "node": {"cpu": 4}, "gpus": gpus}
            view.machines.feed(node, json.dumps(sample).encode())
        idle.machines.feed(0, json.dumps({"at": session.now, "node": {"cpu": 7}}).encode())
        session.now += 1
        await until(pilot, lambda: "4 × 94 %" in screen_text(app) and "cpu 7 %" in screen_text(app))
        await press(pilot, "a", until="USE")


def runs(app: SkywardApp) -> list[str]:
    return [row.past.run for row in app.screen.query_one(RunTable).rows]


async def test_runs_of_the_ledger_and_of_pools_are_in_one_table(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_tui.screens.home_runs_and_pools.READ_INTERVAL", 0.0)
    session.pool("over", 1, state="gone", age=90.0)
    view, run = session.pool_with_run("llama-ft", 2)
    logged(view, run, session, ranks=2, steps=30)
    session.print(view, 0, "")
    session.past = [
        past_run(
            1,
            function="first_of_all",
            metrics={"loss": MetricSummary(0.5, 0.25, 2.0), "acc": MetricSummary(1.0, 0.0, 1.0)},
        ),
        past_run(2, state="failed", error="r3 OSError: disk full"),
        past_run(3, run="", function="", state="gone"),
    ]
    async with running_app(app, (160, 48), until="loss 0.5 best 0.25") as pilot:
        assert runs(app) == [run.id, session.past[0].run, session.past[1].run], "a pool that had no run is none"
        lines = screen_text(app).splitlines()
        (row,) = (line for line in lines if "▶ ● running" in line)
        assert "train" in row and "llama-ft" in row and "▁" in row, "with the course of its loss"
        (row,) = (line for line in lines if "✗ failed" in line)
        assert "lr=0.2 epochs=5" in row and "r3 OSError: disk full" in row
        assert listed(app) == ["llama-ft"] and "▶ llama-ft" in screen_text(app), "pools that are up are below"
        await press(pilot, "a", until=lambda: listed(app) == ["llama-ft", "over"])
        await press(pilot, "a", "slash", *"lr=0.2", until=lambda: runs(app) == [session.past[1].run])
        await press(pilot, "escape", until=lambda: len(runs(app)) == 3)
        session.past = [past_run(0, script="newest.py"), *session.past]
        later = session.open_run(view)
        await until(pilot, "newest.py")
        assert set(runs(app)[:2]) == {run.id, later.id}
        assert app.screen.query_one(RunTable).cursor == runs(app).index(session.past[2].run), "it stays on its run"


async def test_narrow_list_of_runs_shows_the_best_value_of_an_ended_run(app: SkywardApp, session: FakeSession) -> None:
    session.past = [past_run(1, metrics={"loss": MetricSummary(0.7565, 0.2731, 1.14)})]
    async with running_app(app, (88, 24), until="best loss 0.2731"):
        assert "loss 0.7565" not in screen_text(app).split("─ runs")[1].split("╰")[0], "it is the value of one rank"


async def test_cursor_moved_right_after_a_run_was_left_stays(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, _ = session.pool_with_run("llama-ft", 2)
    session.past = [past_run(number, run=f"r{number}", key=view.key) for number in range(3)]
    async with running_app(app, (160, 48), until=lambda: len(runs(app)) == 4) as pilot:
        table = app.screen.query_one(RunTable)
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        with monkeypatch.context() as patch:
            patch.setattr(app, "_refresh_screen", lambda: None)
            await press(pilot, "q", "down", "down", until=lambda: table.cursor == 2)
        app._refresh_screen()
        assert table.cursor == 2


async def test_runs_and_pools_are_opened_by_keys_and_by_mouse(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    session.past = [past_run(number, run=f"r{number}", key=view.key) for number in range(3)]
    async with running_app(app, (160, 48), until="● running") as pilot:
        table = app.screen.query_one(RunTable)
        assert app.focused is table
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        assert isinstance(app.screen, RunScreen) and app.screen.run is run
        await press(pilot, "q", until=lambda: isinstance(app.screen, PoolsScreen))
        await press(pilot, "down", "down", "enter", until=lambda: isinstance(app.screen, RunScreen))
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == "r1"
        app.screen.action_leave()
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))
        await pilot.click(table, offset=(5, 4), times=2)
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == "r2"
        app.screen.action_leave()
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))
        await pilot.press("tab")
        assert app.focused is app.screen.query_one(PoolList)
        await press(pilot, "space", until="1 marked")
        await press(pilot, "X", until=lambda: isinstance(app.screen, TeardownScreen))


async def test_teardown_of_a_run_never_takes_another_pool(app: SkywardApp, session: FakeSession) -> None:
    session.pool("other", 1)
    view, _ = session.pool_with_run("train", 1)
    over, _ = session.pool_with_run("over", 1, state="gone", age=900.0)
    for run in over.runs.values():
        session.end_run(over, run)
    async with running_app(app, (120, 40), until="● running") as pilot:
        assert app.screen.query_one(RunTable).chosen.past.key == view.key  # type: ignore[union-attr]
        await press(pilot, "down", "X", "L", "enter", until=lambda: isinstance(app.screen, RunScreen))
        await press(pilot, "q", until=lambda: isinstance(app.screen, PoolsScreen))
        await press(pilot, "up", "X", until=lambda: isinstance(app.screen, TeardownScreen))
        await press(pilot, "tab", "enter", until=lambda: session.torn_down == ["train"])


async def test_cursor_is_on_the_pool_that_was_opened_last(app: SkywardApp, session: FakeSession) -> None:
    session.pool("first", 2)
    async with running_app(app, SIZE, until="▶ first") as pilot:
        app.show_pool(session.pool("second", 2).key)
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await press(pilot, "q", until="▶ second")
        await press(pilot, "down", until="▶ first")
        await pilot.click(app.screen.query_one(PoolList), offset=(5, 1))
        await until(pilot, "▶ second")


async def test_app_quits_without_error_while_recent_runs_load(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: Future[list[PastRun]] = Future()
    asked: list[object] = []

    def past_runs(search: object) -> Future[list[PastRun]]:
        asked.append(search)
        return reading

    monkeypatch.setattr(session, "past_runs", past_runs)
    # A screen that goes loses its list first.
    monkeypatch.setattr(PoolList, "on_unmount", lambda *event: reading.set_result([]), raising=False)
    session.pool("llama-ft", 2)
    async with running_app(app, (160, 48), until=lambda: bool(asked)):
        pass
    assert reading.done() and app._exception is None


async def test_home_without_runs_lists_pools_only(app: SkywardApp, session: FakeSession) -> None:
    session.pool("llama-ft", 2)
    session.pool("over", 1, state="gone")
    async with running_app(app, (160, 48), until="▶ over") as pilot:
        await pilot.pause()
        assert "─ runs ─" not in screen_text(app) and listed(app) == ["over", "llama-ft"]


async def test_duration_of_a_running_run_is_updated(app: SkywardApp, session: FakeSession) -> None:
    session.pool_with_run("llama-ft", 2)
    async with running_app(app, (160, 48), until="● running") as pilot:
        for seconds in (5, 11):
            session.now += seconds
            await until(pilot, lambda: f"0:{41 + session.now - NOW:02.0f}" in screen_text(app).split("─ runs")[1])


# What the pool under the cursor is at, beside the list; it is not painted again where nothing changes.


def training(session: FakeSession, name: str = "llama-ft", nodes: int = 4) -> PoolView:
    view, run = session.pool_with_run(name, nodes)
    for rank in range(nodes):
        session.print(view, rank, f"\x1b[31mstep {rank}\x1b[0m done \x1b]0;title\x07\n")
    logged(view, run, session, ranks=nodes, steps=30)
    return view


async def test_pool_preview_shows_ranks_metrics_and_last_lines(app: SkywardApp, session: FakeSession) -> None:
    session.pool("idle", 2)
    training(session)
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "▶ llama-ft" in screen_text(app) and "last lines" in screen_text(app))
        text = screen_text(app)
        assert "4 ranks: ● 4 running" in text and "●●●●" in text
        assert " loss 0." in text and " lr 0." in text and "┤" in text, "charts with axes"
        assert "r003| step 3 done" in text and "title" not in text
        await press(pilot, "tab", "down", until="no run on this pool yet")
        assert "last lines" not in screen_text(app)


async def test_preview_charts_show_the_value_of_rank_0(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 4)
    for step in range(9):
        for rank in range(4):  # one after the other, as they do
            view.metrics.add_values(run.id, rank, session.now + step + rank / 5, {"loss": 8.0 - step + rank})
    async with running_app(app, (160, 48), until="loss 0  r0-3 0…3") as pilot:
        before = app.screen.query_one("#pools").region
        await pilot.click("#charts")
        assert app.focused is app.screen.query_one(RunTable) and app.screen.query_one("#pools").region == before


def past_of(view: PoolView, many: int) -> list[PastRun]:
    return [past_run(number, run=f"r{number}", key=view.key) for number in range(many)]


@pytest.mark.proof("0.2 s of a processor", after=3)
@pytest.mark.parametrize(
    ("size", "past", "place"),
    [
        ((160, 48), 0, "below"), ((160, 48), 15, "below"), ((160, 48), 40, "beside"), ((120, 24), 0, "beside"),
        ((80, 24), 0, "below"), ((80, 24), 9, "none"), ((119, 15), 0, "none"),
    ],
)  # fmt: skip
async def test_preview_uses_the_rows_that_short_lists_leave(
    app: SkywardApp, session: FakeSession, size: Size, past: int, place: str
) -> None:
    view = training(session)
    session.past = past_of(view, past)
    async with running_app(app, size, until=lambda: len(runs(app)) == past + 1) as pilot:
        await until(pilot, lambda: any(each.display for each in app.screen.query("#preview")) == (place != "none"))
        table, pools = (app.screen.query_one(each).region for each in ("#runs", "#pools"))
        shown = [each for each in app.screen.query("#preview") if each.display]
        if place == "below":
            assert table.height == past + 4 and (table.width, table.bottom) == (size[0], pools.y)
            assert (shown[0].region.y, shown[0].region.bottom) == (pools.bottom, size[1] - 1)
            assert shown[0].region.width == size[0]
        else:
            assert pools.bottom == size[1] - 1 and table.bottom == pools.y
        if place == "beside":
            assert (shown[0].region.x, shown[0].region.y) == (table.right, table.y)


async def test_filter_of_the_table_does_not_move_the_preview(app: SkywardApp, session: FakeSession) -> None:
    view = training(session)
    session.past = past_of(view, 40)
    async with running_app(app, (160, 48), until=lambda: len(runs(app)) == 41) as pilot:
        await press(pilot, "slash", *"lr=0.25", until=lambda: len(runs(app)) == 1)
        preview, table = app.screen.query_one("#preview").region, app.screen.query_one("#runs").region
        assert preview.x == table.right, "it is still beside the table"


async def test_first_run_takes_the_focus_from_the_start_list(app: SkywardApp, session: FakeSession) -> None:
    async with running_app(app, (160, 48), until=lambda: isinstance(app.focused, StartList)) as pilot:
        session.pool_with_run("llama-ft", 2)
        await until(pilot, "▶ ● running")
        assert app.focused is app.screen.query_one(RunTable)


async def test_pool_preview_shows_pending_startup_and_root_cause(app: SkywardApp, session: FakeSession) -> None:
    failed_run(session, session.pool("sweep-7"))
    view = session.pool("fresh", 8, state="starting", phase="requested")
    news = ev.NodePhase(
        pool="fresh", node=0, phase="running", detail="waiting for sshd", at=session.now, retry_at=session.now + 3
    )
    session.emit(view, news)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(
            pilot, lambda: "▶ sweep-7" in screen_text(app) and "rank 2 raised, ZeroDivisionError" in screen_text(app)
        )
        assert "r2 ZeroDivisionError" in screen_text(app)
        await pilot.press("tab", "up")
        await until(pilot, lambda: "▶ fresh" in screen_text(app) and "n0" in screen_text(app))
        assert "waiting for sshd" in screen_text(app) and "0:03" in screen_text(app)
        assert "and 4 other nodes" in screen_text(app)


async def test_unchanged_pool_preview_is_not_painted(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = training(session)
    session.end_run(view, next(iter(view.runs.values())))
    painted = []
    monkeypatch.setattr(PoolPreview, "refresh", lambda self, *_, **__: painted.append(1))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: bool(app.query(PoolPreview)) and app.session is not None)
        preview = app.screen.query_one(PoolPreview)
        await until(pilot, lambda: preview._seen is not None)
        run = next(iter(view.runs.values()))
        preview.update(view, run, session.now)
        before = len(painted)
        for second in range(50):
            preview.update(view, run, session.now + second)
        assert len(painted) == before


@pytest.mark.parametrize("size", [(160, 30), (60, 20)])
async def test_list_of_runs_has_the_columns_of_the_user(app: SkywardApp, session: FakeSession, size: Size) -> None:
    settings_path().write_text('[columns]\nruns = "lr, acc"\n')
    view, run = session.pool_with_run("p", 1)
    view.metrics.add_values(run.id, 0, NOW, {"acc": 0.75})
    metrics = {"acc": MetricSummary(0.625, 0.1, 0.7), "loss": MetricSummary(3.0, 2.0, 4.0)}
    session.past = [past_run(1, arguments=("lr=0.125",), metrics=metrics)]
    async with running_app(app, size, until="train") as pilot:
        await until(pilot, "SCRIPT")
        (head,) = (line for line in screen_text(app).splitlines() if "SCRIPT" in line)
        assert ("lr" in head.split(), "acc" in head.split()) == (size[0] > 60, size[0] > 60)
        cells = ("0.75", "0.625", "0.125") if size[0] > 60 else ()
        await until(pilot, lambda: all(text in screen_text(app) for text in cells))


async def test_list_of_pools_shows_the_cost_of_today(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.client.pool_costs.cost_today", lambda: 12.5)
    session.pool("p", price=3600.0)
    async with running_app(app, SIZE, until="$12.50 today") as pilot:
        session.now += 2
        await until(pilot, "$14.50 today")


@pytest.mark.proof("0.8 s of a processor")
async def test_cursor_is_on_the_run_that_was_left(app: SkywardApp, session: FakeSession) -> None:
    view, first = session.pool_with_run("train", 2)
    session.end_run(view, first)
    async with running_app(app, (120, 40), until="▶") as pilot:
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        later = session.open_run(view)
        app.show_pool(view.key)
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.run is later)
        session.end_run(view, later)
        await press(pilot, "q", until=lambda: isinstance(app.screen, PoolsScreen))
        await until(pilot, lambda: app.last_pool == "")
        assert app.screen.query_one(RunTable).chosen.past.run == later.id  # type: ignore[union-attr]


async def test_progress_of_a_run_without_a_total_is_its_step(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("train", 4)
    view.metrics.add_values(run.id, 0, session.now, {"step": 86.0})
    async with running_app(app, (120, 40), until="step 86"):
        table = app.screen.query_one(RunTable)
        shown = "".join(text for text, _ in table.parts(table.rows[0], 110))
        assert "step 86" in shown and "0/4" not in shown


async def test_last_known_runs_are_in_the_first_paint_with_their_age(session: FakeSession) -> None:
    opened, answered = threading.Event(), threading.Event()
    view, run = session.pool_with_run("llama-ft", 2)
    logged(view, run, session, ranks=2, steps=30)
    session.past = [past_run(2, state="failed", error="r3 OSError: disk full")]
    app = SkywardApp(lambda: session, clock=lambda: session.now)
    async with running_app(app, (160, 48), until="disk full") as pilot:
        await press(pilot, "ctrl+q", until=lambda: "keep" in screen_text(app).lower())
        app._quit_as("keep")
        await until(pilot, lambda: not app.is_running)

    def open_late() -> FakeSession:
        opened.set()
        assert answered.wait(60)
        return session

    session.now += 245
    app = SkywardApp(open_late, clock=lambda: session.now)
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, opened.is_set)
        active, ended = (line for line in screen_text(app).splitlines() if " lr=" in line or "train " in line)
        assert "● running" in active and "4m ago" in active and "loss" in active and "llama-ft" in active
        assert "✗ failed" in ended and "r3 OSError: disk full" in ended and "ago" not in ended.split("full")[1][:9]
        await pilot.press("enter")  # typed ahead: opens the run as soon as the session is open
        assert isinstance(app.screen, PoolsScreen)
        answered.set()
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        assert "4m ago" not in screen_text(app)


@pytest.mark.parametrize("saved", ["", "[", '[["key"]]', "{}", "[[" + "0," * 12 + "0]]", "[" * 9999])
def test_invalid_cached_runs_are_left_out(saved: str) -> None:
    assert load_cached_runs(saved) == []


def test_cached_runs_fit_into_the_saved_state() -> None:
    rows = [HomeRun(past_run(1, run=f"{number}", error="ü" * 999, script="ü" * 99)) for number in range(99)]
    text = cache_text(rows, NOW)
    assert 9 < len(load_cached_runs(text)) <= MAX_CACHED and len(text) < MAX_CHARACTERS
    assert load_cached_runs(text)[0].run == "0"
