"""Properties of the whole app: actions, help, palette, sizes, colours, imports, log floods."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widget import Widget

from skyward_core.model.errors import Hint, PoolError
from skyward_core.views.events import PoolState
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.basic_dialogs import ChoiceScreen
from skyward_tui.dialogs.help_and_focus_jump import HelpScreen
from skyward_tui.screens.base_screen import BaseScreen
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.ui.actions import ACTIONS, SCOPES, actions_in, keys_page
from tests.support.app_driver import Size, on_run_screen, press, running_app, screen_svg, screen_text, until
from tests.support.every_screen import every_screen
from tests.support.fake_session import FakeSession, failed_run, logged
from tests.support.own_home import set_own

ROOT = Path(__file__).parents[2]


def test_action_ids_and_keys_are_unique_per_scope() -> None:
    assert max(Counter(action.id for action in ACTIONS).values()) == 1
    assert [scope for scope, _ in groupby(action.scope for action in ACTIONS)] == list(SCOPES)
    for scope in SCOPES:
        keys = [key for action in ACTIONS if action.scope == scope for key in action.keys.split(",")]
        assert max(Counter(keys).values()) == 1, scope
    keys_of = {scope: {key for each in actions_in(scope) for key in each.keys.split(",")} for scope in SCOPES}
    for scope in ("run", "panel", "log", "metrics"):  # which are there in a replay, too
        assert keys_of["replay"] & keys_of[scope] <= {"p"}, scope  # pauses the replay, or the log of a live run
    taken = {"ctrl+a", "ctrl+b", "ctrl+s", "ctrl+j", "ctrl+m", "ctrl+i", "ctrl+c"}
    assert not taken & {key for action in ACTIONS for key in action.keys.split(",")}


async def test_screen_without_changes_is_not_updated(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    pulses: list[float] = []
    plain = RunScreen.tick

    def noted(screen: RunScreen, now: float) -> None:
        pulses.append(now)
        plain(screen, now)

    monkeypatch.setattr(RunScreen, "tick", noted)
    monkeypatch.setattr("skyward_tui.app.app.STILL_SECONDS", 3600.0)
    monkeypatch.setattr("skyward_tui.app.app.REPEAT_SECONDS", ())  # which a slow machine reaches between two changes
    async with running_app(app, (100, 30), until=lambda: app.session is not None) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        app._lively_until = 0.0  # as it is a second after the last key
        app._refresh_screen()
        for what in (
            lambda: session.print(view, 0, "a line\n"),
            lambda: view.metrics.add_values(run.id, 0, 1.0, {"loss": 1.0}),
            lambda: session.end_rank(view, run, 0),
            lambda: setattr(session, "now", session.now + 1.0),
        ):
            before = len(pulses)
            app._refresh_screen()
            assert len(pulses) == before
            what()
            app._refresh_screen()
            assert len(pulses) == before + 1
        await pilot.press("2")  # which may change anything, for a while
        before = len(pulses)
        app._refresh_screen()
        assert len(pulses) == before + 1
        app._lively_until = 0.0
        monkeypatch.setattr("skyward_tui.app.app.STILL_SECONDS", 0.0)
        app._refresh_screen()
        assert len(pulses) == before + 2, "what came unheard shows in the end"


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("keys", ["", "enter", "enter 3", "enter s", "n", "H", "J"])
async def test_app_with_an_ended_run_does_no_work(
    app: SkywardApp, session: FakeSession, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    for rank in (0, 1):
        session.end_rank(view, run, rank)
    session.end_run(view, run)
    monkeypatch.setattr("skyward_tui.app.app.STILL_SECONDS", 3600.0)
    async with running_app(app, (160, 48), until="llama-ft") as pilot:
        await pilot.press(*keys.split())
        waits = {"n": "_wait", "J": "_scan_started_at"}.get(keys, "")
        await until(pilot, lambda: not waits or getattr(app.screen, waits, 1) is None)
        await pilot.pause()
        app._lively_until, app._refresh_times = 0.0, []
        app._refresh_screen()
        app._refresh_times = []
        # What panels have asked for meanwhile has come, and is shown.
        panels = getattr(app.screen, "panels", {})
        while any(panel.needs_polling for panel in panels.values()):
            await pilot.pause(0.05)
            session.now += 1
            app._refresh_screen()
        app._refresh_times = []
        done: list[str] = []
        monkeypatch.setattr(type(app.screen), "tick", lambda screen, now: done.append("pulse"))
        monkeypatch.setattr(Widget, "refresh", lambda widget, *_, **__: done.append(str(widget)))
        begun = session.now - session.now % 10
        for second in range(10):
            session.now = begun + second
            app._refresh_screen()
        assert len(done) <= 1, "it did more than to look whether ten seconds are over"


def test_keys_page_of_the_documentation_is_current() -> None:
    assert (ROOT / "docs" / "reference" / "keys.md").read_text("utf-8") == keys_page(), (
        "run: python -m skyward_tui.ui.actions > docs/reference/keys.md"
    )


async def test_help_shows_every_key(app: SkywardApp) -> None:
    async with running_app(app, (100, 30), until="No pools yet") as pilot:
        await press(pilot, "?", until=lambda: isinstance(app.screen, HelpScreen))
        assert isinstance(app.screen, HelpScreen)
        text = app.screen._text(200).plain
        for action in ACTIONS:
            if action.id.partition(".")[0] != "replay":  # a replay's own: test_replay.py
                assert action.help in text, action.id
        assert text.index("Pools") < text.index("Launch form")
        await press(pilot, "f1", until=lambda: isinstance(app.screen, PoolsScreen))


@pytest.mark.proof("0.7 s of a processor")
async def test_help_filters_keys_by_words_and_uses_the_width(app: SkywardApp) -> None:
    async with running_app(app, (160, 48), until="No pools yet") as pilot:
        await press(pilot, "?", until=lambda: screen_text(app).count("Most used here") == 1)
        rows = screen_text(app).splitlines()
        assert any(row.find("Everywhere") > 100 for row in rows), "in the third column"
        await press(pilot, "/", *"breakpoint", until=lambda: "Debug the rank" in screen_text(app))
        assert "Launch a script" not in screen_text(app)
        await press(pilot, "escape", "/", *"theme", until="Settings: theme")
        await press(pilot, *"zz", until="No key matches this filter")
        await press(pilot, "enter", "escape", until="Launch a script")
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))


async def test_help_begins_with_the_keys_of_the_hint_line(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        for first in ("f", "A"):
            await press(pilot, "?", until=lambda: isinstance(app.screen, HelpScreen))
            assert isinstance(app.screen, HelpScreen)
            assert app.screen._text(200).plain.splitlines()[2].split()[0] == first
            await press(pilot, "escape", until=lambda: not isinstance(app.screen, HelpScreen))
            if first == "f":
                session.end_run(view, run)
                await until(pilot, "A run again")


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize(
    ("panel", "first"),
    [
        ("2", ["Log pane", "Pool and run"]),
        ("1", ["Pool and run", "Log pane", "Metrics panel", "Panels (ranks, nodes, metrics)"]),
        ("5", ["Pool and run", "Log pane", "Panels (ranks, nodes, metrics)"]),  # all keys of metrics are most used
    ],
)
async def test_help_begins_with_the_focused_panel(
    app: SkywardApp, session: FakeSession, panel: str, first: list[str]
) -> None:
    view = session.pool("llama-ft")
    logged(view, session.open_run(view), session, steps=4)
    async with running_app(app, (160, 48), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", panel, "?", until=lambda: isinstance(app.screen, HelpScreen))
        assert isinstance(app.screen, HelpScreen)
        lines = app.screen._text(200).plain.splitlines()
        assert lines[1] == "Most used here"
        titles = [line for line in lines if line in SCOPES.values()]
        assert titles[: len(first)] == first and sorted(titles) == sorted(set(titles))


async def test_help_omits_unavailable_keys_from_the_most_used_ones(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    async with running_app(app, (160, 48), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        session.end_run(view, run)
        for offered in (True, False):
            if not offered:
                session.emit(view, PoolState(pool=view.name, state="gone"))
            await press(pilot, "?", until=lambda: isinstance(app.screen, HelpScreen))
            assert isinstance(app.screen, HelpScreen)
            most_used = app.screen._text(200).plain.split("\n\n")[0]
            assert "run it again" in most_used
            assert ("Tear the pool down" in most_used) == ("Launch another run" in most_used) == offered
            await press(pilot, "escape", until=lambda: isinstance(app.screen, RunScreen))


async def test_debug_information_is_shown_and_copied_without_secrets(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM_PROGRAM", "some-terminal")
    monkeypatch.setenv("MY_API_KEY", "abcdefgh-secret")
    monkeypatch.setenv("TERM", "abcdefgh-secret")
    session.pool("llama-ft")
    async with running_app(app, (120, 30), until="▶ llama-ft") as pilot:
        await press(pilot, "f12", until="TERM_PROGRAM=some-terminal")
        for text in ("Textual ", "120x30", "1 up, 0 others listed", "debug-dump"):
            assert text in screen_text(app), text
        assert "abcdefgh" not in screen_text(app)
        await press(pilot, "right", "enter", until="copied report (")
        assert app.clipboard.startswith("skyward-tui:") and os.environ["SKYWARD_HOME"] in app.clipboard


async def test_palette_runs_actions_of_the_screen_below(app: SkywardApp, session: FakeSession) -> None:
    session.pool_with_run("llama-ft")
    async with running_app(app, (100, 30), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", ":", until=lambda: isinstance(app.screen, CommandPalette))
        await press(pilot, *"merge the", until="Merge the logs of all ranks")
        await press(pilot, "down", "enter", until=lambda: isinstance(app.screen, RunScreen) and app.screen.merged)


@pytest.mark.proof("0.6 s of a processor")
async def test_palette_lists_each_command_with_its_keys_in_one_row(app: SkywardApp, session: FakeSession) -> None:
    session.pool_with_run("llama-ft")
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        await press(pilot, ":", until=lambda: isinstance(app.screen, CommandPalette))
        await until(pilot, "Cancel the run; the pool stays  C")
        rows = screen_text(app).splitlines()
        compare, copy = "Compare two ranks' results, value by value  c", "Copy the selection, or the panel's content  y"
        assert any(compare in row and copy in after for row, after in pairwise(rows))


async def test_keys_are_remapped_by_the_settings(app: SkywardApp, session: FakeSession) -> None:
    set_own('[keys]\n"run.merge" = "Q"\n')
    session.pool("llama-ft")
    async with on_run_screen(app, (100, 30)) as (pilot, _):
        screen = app.screen
        assert isinstance(screen, RunScreen)
        await pilot.press("a")
        assert not screen.merged
        await pilot.press("Q")
        assert screen.merged


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.usefixtures("painted")
@pytest.mark.parametrize("size", [(59, 24), (80, 14), (1, 1)])
async def test_too_small_terminal_is_reported(app: SkywardApp, session: FakeSession, size: Size) -> None:
    session.pool("llama-ft")
    async with running_app(app, (100, 30), until="▶ llama-ft") as pilot:
        await pilot.press("enter")
        await pilot.resize_terminal(*size)
        await pilot.pause()
        if size != (1, 1):
            await until(pilot, "terminal too small")
        await pilot.resize_terminal(100, 30)
        await until(pilot, "2 log")


@pytest.mark.proof("1 s of a processor")
@pytest.mark.usefixtures("painted")
async def test_screens_are_painted_at_any_size(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("wide", 10, 8)
    failed_run(session, view)
    sizes = random.Random(7)
    async with running_app(app, (80, 24), until="▶ wide") as pilot:
        for opens in ([], ["enter"], ["1"], ["z"], ["e"], ["escape", "X"], ["escape", "q", "n"]):
            await pilot.press(*opens)
            for _ in range(4):
                await pilot.resize_terminal(sizes.randint(1, 300), sizes.randint(1, 90))
                await pilot.pause()
        assert isinstance(app.screen, LaunchScreen)


async def test_states_are_named_without_colour(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = SkywardApp(lambda: session, clock=lambda: session.now)
    view = session.pool("llama-ft")
    failed_run(session, view)
    session.print(view, 0, "\x1b[31mred\x1b[0m\n")
    async with running_app(app, (120, 40), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", until="✗ raised")
        for state in ("✓ returned", "✗ raised", "✗ exited", "⊘ stopped", "✗ FAILED", "● ready"):
            await until(pilot, lambda state=state: state in screen_text(app))  # type: ignore[misc]
        colours = set(re.findall(r"fill: (#[0-9a-fA-F]{6})", screen_svg(app)))
        colours -= {"#c5c8c6", "#292929", "#868887"}  # of the terminal that the export draws; the last is its dim
        assert colours == set()


@pytest.mark.usefixtures("painted")
async def test_log_flood_loses_no_line_and_leaves_the_app_responsive(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft", 8)
    lines_each = 40_000
    block = "".join(f"step={i} loss={i * 0.001:.3f} \x1b[32mok\x1b[0m\n" for i in range(1000))

    def print_all() -> None:
        for _ in range(lines_each // 1000):
            for rank in range(8):
                session.print(view, rank, block)

    async with running_app(app, (160, 48), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", "a", until=lambda: isinstance(app.screen, RunScreen))
        flood = threading.Thread(target=print_all)
        flood.start()
        while flood.is_alive():
            await pilot.press("]")
            await asyncio.sleep(0)
        flood.join()
        assert [view.logs.rank(rank).end for rank in range(8)] == [lines_each] * 8
        await press(pilot, "f", "/", *"step=999 ", "enter", until="/step=999  10/10")
        assert view.logs.merged.end == 8 * lines_each


async def test_unreachable_session_is_reported_without_a_crash(app: SkywardApp, session: FakeSession) -> None:
    _, run = session.pool_with_run("llama-ft", 1)

    def fail(*_: object, **__: object) -> object:
        future: Future[None] = Future()
        future.set_exception(PoolError(f"run {run.id} cannot be reached"))
        return future

    session.cancel = session.tear_down = fail  # type: ignore[assignment,method-assign]
    async with running_app(app, (120, 30), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", "C", "tab", "enter", until=f"✗ run {run.id} cannot be reached")
        await pilot.press("X", "tab", "enter")
        await until(
            pilot, lambda: "✗ run" in screen_text(app) and "Not verified: machines may remain" in screen_text(app)
        )


async def test_unreachable_pool_is_listed_with_its_reason(app: SkywardApp, session: FakeSession) -> None:
    lost = PoolView("lost", "ssh", "unreachable", "10.0.0.7 does not answer", session.now - 60)
    lost.hint, lost.spec = Hint("trust-host-key", "10.0.0.7"), {"nodes": 2, "worker": {"ranks_per_node": 3}}
    session.views.append(lost)
    async with running_app(app, (120, 40), until="! unreachable") as pilot:
        assert re.search("lost +! unreachable +0/2 ", screen_text(app))
        lost.detail, reason = "pool lost is incomplete", lost.detail
        lost.version += 1
        await until(pilot, lambda: re.search(r"lost +! unreach.*  is incomplete", screen_text(app)) is not None)
        lost.detail = reason
        lost.version += 1
        await pilot.press("enter")
        message = "10.0.0.7 does not answer; accept it with: "
        await until(pilot, lambda: screen_text(app).count(message) == 2)  # the board of phases has room for no more
        assert f"{message}skyward-tui trust 10.0.0.7" in screen_text(app)
        await pilot.press("]", "number_sign", "1", "down", "enter", "a", "e", "S", "{")
        for size in ((80, 24), (160, 48)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        lost.detail, lost.hint = f"{'its machines cost money ' * 5}until somebody ends them", None
        lost.version += 1
        await until(pilot, lambda: screen_text(app).count("until somebody ends them") == 1)  # in a line of its own
        await pilot.resize_terminal(80, 24)
        await press(pilot, "3", until=lambda: "somebody ends them" in " ".join(screen_text(app).split()))
        await press(pilot, "X", until="lost: 2 nodes, 6 ranks, up")


async def test_teardown_continues_when_the_app_quits(app: SkywardApp, session: FakeSession) -> None:
    session.auto = False
    session.pool("small", 1)
    async with running_app(app, (100, 30), until="▶ small") as pilot:
        await press(pilot, "X", "tab", "enter", until=lambda: session.torn_down == ["small"])
        await press(pilot, "escape", "q", "enter", until=lambda: not app.is_running)
    assert not session.downing["small"].cancelled()


async def test_session_opens_although_a_dialog_covers_the_first_screen(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asking(SkywardApp):
        def on_mount(self) -> None:  # beside that of the app
            self.push_screen(ChoiceScreen("Sure?", "Before the first paint.", [("no", "No", False)], "no"))

    # What waits for a screen's next paint waits as long as another lies over it, if both come in the wrong order.
    monkeypatch.setattr(PoolsScreen, "_invoke_later", lambda *_: None)
    monkeypatch.setattr(ChoiceScreen, "_invoke_later", lambda *_: None)
    app = Asking(lambda: session, clock=lambda: session.now)
    session.pool("llama-ft")
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session is not None and isinstance(app.screen, ChoiceScreen))
        await press(pilot, "escape", until="▶ llama-ft")


async def test_failing_pool_scan_is_reported_once(app: SkywardApp, session: FakeSession) -> None:
    def fail(**asked: bool) -> Future[object]:
        future: Future[object] = Future()
        future.set_exception(OSError("disk full"))
        return future

    session.refresh = fail  # type: ignore[assignment,method-assign]
    async with running_app(app, (100, 30), until="✗ could not list pools: disk full"):
        pass


@pytest.mark.proof("0.5 s of a processor")
async def test_tab_cycles_through_the_panels(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    session.end_rank(view, run, 0)
    async with running_app(app, (160, 48), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", until=lambda: app.focused is not None and app.focused.id == "pane")
        await until(pilot, "4 results")
        seen = []
        for _ in range(4):
            await pilot.press("tab")
            seen.append(app.focused.id if app.focused else None)
        assert seen == ["phases", "results", "ranks", "pane"]
        await pilot.resize_terminal(80, 24)
        await press(pilot, "4", until=lambda: app.focused is not None and app.focused.id == "results")
        await until(pilot, lambda: "╭─ 4 results" in screen_text(app) and "╭─ 2 log" not in screen_text(app))


def test_app_start_imports_no_heavy_module() -> None:
    code = (
        "import sys; import skyward_tui.app.app, skyward_tui.screens.home_runs_and_pools;"
        "print([m for m in ('torch','numpy','jax','boto3','asyncssh','pydantic','cloudpickle',"
        "'skyward_core.client.session','skyward_core.views.pool_view','textual.widgets._data_table')"
        " if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"


def hints(app: SkywardApp) -> str:
    return "\n".join(screen_text(app).splitlines()[-2:])


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("width", [60, 80, 120, 160])
async def test_tear_down_quit_and_help_are_hinted_at_any_width(
    app: SkywardApp, session: FakeSession, width: int
) -> None:
    view = session.pool("fit")
    session.end_rank(view, session.open_run(view), 0)
    async with running_app(app, (width, 24), until="▶ fit") as pilot:
        await until(pilot, lambda: hints(app).endswith("X tear down  q quit  ? keys"))
        await pilot.press("enter")
        for panel, first in (("1", "enter open"), ("2", "f follow"), ("3", "z zoom"), ("4", "S save")):
            await pilot.press(panel)
            await until(pilot, lambda first=first: f"\n {first}" in hints(app))  # type: ignore[misc]
            assert hints(app).endswith("X tear down  q back  ? keys")


@pytest.mark.proof("0.5 s of a processor")
async def test_hints_show_remapped_keys(app: SkywardApp, session: FakeSession) -> None:
    set_own('[keys]\n"run.follow" = "F"\n"run.next_rank" = "tab"\n"app.help" = "f9"\n')
    session.open_run(session.pool("llama-ft"))
    async with running_app(app, (160, 24), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", "2", until=lambda: "F follow" in hints(app))
        assert "[ tab rank" in hints(app) and hints(app).endswith("f9 keys")
        await press(pilot, "f9", until=lambda: isinstance(app.screen, HelpScreen))
        assert isinstance(app.screen, HelpScreen)
        assert re.search(r"^  F +Go to the newest line", app.screen._text(200).plain, re.M)


@pytest.mark.proof("1 s of a processor")
async def test_hints_omit_letter_keys_while_text_is_typed(app: SkywardApp, session: FakeSession) -> None:
    session.open_run(session.pool("llama-ft"))
    async with running_app(app, (120, 24), until="▶ llama-ft") as pilot:
        await press(pilot, "n", until=lambda: "ctrl+r launch" in hints(app))
        assert hints(app).endswith("esc back  f1 keys") and "?" not in hints(app)
        await press(pilot, "escape", "enter", "/", until=lambda: hints(app).endswith("\n esc close  f1 keys"))


async def test_cancel_of_an_ended_run_is_refused_with_a_message(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    async with running_app(app, (120, 24), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", until=lambda: "C cancel" in hints(app))
        await press(pilot, "C", until=lambda: not isinstance(app.screen, RunScreen))
        session.cancel = lambda *_, **__: session.load_ended_pool(view.key)  # type: ignore[assignment,method-assign]
        session.end_run(view, run)
        await press(pilot, "tab", "enter", until=lambda: "ended (done) before the cancellation" in hints(app))
        await press(pilot, "C", until=lambda: "has already ended (done)" in hints(app))
        assert isinstance(app.screen, RunScreen)


async def test_message_is_shown_while_a_screen_opens_or_closes(app: SkywardApp, session: FakeSession) -> None:
    """Background work, such as a copy, a launch or a teardown, can end at any time."""
    screen = RunScreen(session.pool("llama-ft").key)
    async with running_app(app, (120, 24), until="▶ llama-ft") as pilot:
        coming = app.push_screen(screen)
        app.flash("said early")
        await coming
        await until(pilot, lambda: "said early" in hints(app))
        await app.pop_screen()
        screen.flash("said late")


@pytest.mark.proof("2 s of a processor")
async def test_breadcrumbs_begin_with_pools_on_every_screen(app: SkywardApp, session: FakeSession) -> None:
    screens = every_screen(session)
    async with running_app(app, (100, 30), until=lambda: app.session is not None) as pilot:
        trails = set()
        for screen in (make() for make in screens):
            if isinstance(screen, BaseScreen):
                await app.push_screen(screen)
                await until(pilot, lambda: screen_text(app).startswith(" pools"))
                trails.add(screen_text(app).splitlines()[0].partition("  ")[0].strip())
                app.pop_screen()
        assert trails == {
            "pools", "pools › llama-ft › train", "pools › llama-ft › train › errors",
            "pools › llama-ft › train › stacks", "pools › launch", "pools › leftovers",
            "pools › history", "pools › history › compare", "pools › hosts", "pools › settings",
        }  # fmt: skip


async def test_progress_is_shown_in_the_header_beside_a_long_name(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("a-pool-with-a-long-name", 4)
    run = session.open_run(view, "finetune_a_language_model_on_our_corpus")
    for step in range(1, 35):
        view.metrics.add_values(run.id, 0, session.now, {"step": step, "total": 100})
        session.now += 1
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        await until(pilot, lambda: "34 % · 1:05 left · 1 it/s\n" in screen_text(app))
        assert screen_text(app).startswith(" finetune_a_language")


async def test_installed_update_is_reported_once_when_a_screen_opens(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_app(app, (80, 24), until=lambda: app.session is not None) as pilot:
        await press(pilot, "H", until=lambda: bool(app._version))
        assert "restart" not in screen_text(app)
        update = tmp_path / "skyward_tui-9.9.dist-info"
        update.mkdir()
        (update / "METADATA").write_text("Metadata-Version: 2.1\nName: skyward-tui\nVersion: 9.9\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        updated = "skyward-tui was updated: restart it"
        await press(pilot, "escape", until=updated)
        session.now += 60
        await until(pilot, lambda: updated not in screen_text(app))
        await press(pilot, "H", until="history")
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
        assert updated not in screen_text(app)
