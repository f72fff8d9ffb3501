"""Keys typed ahead go to the screen or field that the previous key opened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual import events
from textual.app import App
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Button, Input, OptionList, Static

from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.basic_dialogs import ChoiceScreen
from skyward_tui.dialogs.pickers import FilesScreen
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.ui import typed_key_queue
from tests.support import waiting
from tests.support.app_driver import open_pool, running_app, screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.terminal import Terminal

SIZE = (120, 40)
SCRIPT = """
import skyward_core as sky

@sky.function
def work(rounds: int = 1) -> int:
    return rounds
"""


def at_once(app: SkywardApp, *keys: str) -> None:
    """Send all keys before the app handles the first one."""
    for key in keys:
        app.post_message(events.Key(key, key if len(key) == 1 else None))


async def opened(app: SkywardApp, pilot: Pilot[None]) -> None:
    await open_pool(app, pilot)


@pytest.mark.proof("1 s of a processor")
async def test_keys_typed_after_tab_go_to_the_next_field(app: SkywardApp, session: FakeSession) -> None:
    Path("work.py").write_text(SCRIPT)
    async with running_app(app, SIZE, until=lambda: app.session is not None) as pilot:
        at_once(app, "n", *"work.py", "tab", "tab", *"3")
        await until(pilot, lambda: "python ▌3" in screen_text(app) and "rounds" in screen_text(app))
        at_once(app, "tab", *"rounds=3", *["tab"] * 3, *"xq")
        await until(pilot, lambda: "rounds=3 " in screen_text(app) and "name ▌xq" in screen_text(app))
        assert isinstance(app.screen, LaunchScreen)
        assert app.screen.query_one("#script", Input).value == "work.py"


async def test_key_typed_after_a_button_goes_to_the_screen_below(app: SkywardApp, session: FakeSession) -> None:
    session.pool("p")
    session.auto = False
    async with app.run_test(size=SIZE) as pilot:
        await opened(app, pilot)
        at_once(app, "X", "tab", "enter")
        await until(pilot, "Tearing down")
        session.finish_down("p")
        await until(pilot, "Close")
        at_once(app, "enter", "q")
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))


class Hangs(Static, can_focus=True):
    def __init__(self) -> None:
        super().__init__()
        self.lets_go = asyncio.Event()

    async def on_key(self, event: events.Key) -> None:
        event.stop()
        await self.lets_go.wait()


async def test_hanging_widget_delays_typed_keys_only_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_key_queue, "PATIENCE", 0.05)
    app = App[None]()
    async with app.run_test() as pilot:
        hangs = Hangs()
        await app.mount(hangs)
        hangs.focus()
        await until(pilot, lambda: hangs.has_focus)
        heard: list[str] = []

        async def hear(event: events.Event) -> None:
            assert isinstance(event, events.Key)
            heard.append(event.key)
            hangs.post_message(event)

        ahead = typed_key_queue.KeyQueue(app, hear)
        for key in "abc":
            await ahead.enqueue(events.Key(key, key))
        assert heard == ["a"]
        await waiting.until(lambda: heard == ["a", "b", "c"])  # the pilot's waits for what hangs
        hangs.lets_go.set()


@pytest.mark.proof("2 s of a processor")
def test_typed_ahead_keys_arrive_on_a_real_terminal(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(SCRIPT)
    terminal = Terminal(tmp_path / "home", cwd=tmp_path)
    try:
        terminal.press("nwork.py\t\t3")  # before the app is there, in one piece
        terminal.until(lambda text: "rounds" in text and "python ▌3" in text)
        terminal.press("\trounds=3\t\t\txq", until=lambda text: "rounds=3 " in text and "name ▌xq" in text)
    finally:
        terminal.close()


# Done twice before the app comes to it (a double click, a key typed ahead), a thing is done once.


ZOOM = "Zoom panel"


@pytest.mark.proof("1 s of a processor")
async def test_repeated_actions_open_and_close_one_screen(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 2)
    answers: list[str | None] = []
    async with running_app(app, (120, 40), until=lambda: bool(app.pools())) as pilot:
        app.show_run(view.key, "")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)

        app.push_screen(ChoiceScreen("Sure?", "It ends.", [("no", "No", False)], "no"), answers.append)
        await until(pilot, lambda: bool(app.screen.query("#no")))
        button = app.screen.query_one("#no", Button)
        for _ in range(2):
            button.post_message(Button.Pressed(button))
        await until(pilot, lambda: bool(answers))
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and answers == ["no"]

        app.action_command_palette()
        await until(pilot, lambda: isinstance(app.screen, CommandPalette) and app.screen.is_mounted)
        app.screen.query_one(Input).value = ZOOM
        listed = app.screen.query_one(OptionList)
        await until(pilot, lambda: listed.option_count == 1)
        listed.highlighted = 0
        for _ in range(2):
            listed.action_select()
        await until(pilot, lambda: app.screen.has_class("-zoom"))
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and app.screen.has_class("-zoom")
        await pilot.press("z")

        screen = app.screen
        for _ in range(2):
            screen.action_leave()
        await until(pilot, lambda: isinstance(app.screen, PoolsScreen))
        await pilot.pause()
        assert app._exception is None and len(app.screen_stack) == 1


async def test_double_click_on_a_folder_opens_it(app: SkywardApp, session: FakeSession) -> None:
    inner = Path.cwd() / "inner"
    inner.mkdir()
    (inner / "deep.py").touch()
    picked: list[str | None] = []
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(FilesScreen(Path.cwd()), picked.append)
        await until(pilot, lambda: bool(app.screen.query(OptionList)))
        listed = app.screen.query_one(OptionList)
        at = next(i for i, each in enumerate(listed.options) if "inner/" in str(each.prompt))
        for _ in range(2):
            listed.post_message(OptionList.OptionSelected(listed, listed.options[at], at))
        await until(pilot, lambda: any("deep.py" in str(each.prompt) for each in listed.options))
        await pilot.pause()
        assert app._exception is None and isinstance(app.screen, FilesScreen) and picked == []
