"""Random sizes and keys: no crash, and the hint line and the focused widget stay visible."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.binding import Binding
from textual.geometry import Region
from textual.pilot import Pilot
from textual.screen import Screen

from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.help_and_focus_jump import JumpScreen
from skyward_tui.screens.base_screen import BaseScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.screens.settings_and_keys import KeyScreen
from skyward_tui.ui.actions import ACTIONS
from tests.support.app_driver import Size, running_app, screen_text, until
from tests.support.every_screen import every_screen
from tests.support.fake_session import FakeSession, failed_run, logged
from tests.support.machines import measured
from tests.support.some_stacks import hung

SMALLEST, LARGEST = (60, 15), (400, 100)
AT_ONCE = 8  # keys


def complaint(screen: Screen[Any], size: Size) -> str:
    """Return the missing part of the screen, or ""."""
    if screen.size != size:
        return f"it is {screen.size}"
    if isinstance(screen, BaseScreen):
        bar = screen._hint_bar
        if bar.region != Region(0, size[1] - 1, size[0], 1) or not str(bar.content).strip():
            return f"no hint line: {bar.region}, {bar.content}"
    focused = screen.focused
    if focused is None:
        return "nothing has the focus"
    shown = focused.region.intersection(Region(0, 0, *size))
    is_seen = shown.area and focused in screen._compositor.visible_widgets
    return "" if is_seen else f"{focused} has the focus and is out of sight: {focused.region}"


async def well(pilot: Pilot[Any], screen: Screen[Any], size: Size) -> None:
    """Wait until all required parts of the screen are shown."""
    for _ in range(500):
        if not complaint(screen, size):
            return
        await pilot.pause(0.01)
    raise AssertionError(f"{type(screen).__name__} at {size}: {complaint(screen, size)}")


def busy(session: FakeSession) -> PoolView:
    """Pool of 64 ranks with everything that a screen can show."""
    view, run = session.pool_with_run("wide", 8, 8, price=3.0)
    logged(view, run, session, steps=8)
    view.machines = measured(session.now, 8, 8)
    for rank in (1, 9):
        session.end_rank(view, run, rank, "lost")
    session.print(view, 0, "\x1b[32mstep=1\x1b[0m loss=2.3 日本 é\n" * 200)
    return view


@pytest.mark.proof("3 s of a processor")
async def test_hints_and_focus_are_on_screen_at_any_size(app: SkywardApp, session: FakeSession, proofs: bool) -> None:
    sizes = random.Random(7)
    screens = every_screen(session)
    view = busy(session)
    session.taken = hung(next(iter(session.view("llama-ft").runs)), 4)  # a list that is empty has no row to be on
    async with running_app(app, (80, 24), until=lambda: app.session is not None) as pilot:
        for make in (*screens, lambda: RunScreen(view.key)):
            screen = make()
            if isinstance(screen, JumpScreen | KeyScreen):
                continue  # any key ends it
            await app.push_screen(screen)
            await until(pilot, lambda screen=screen: screen.is_mounted and screen.focused is not None)  # type: ignore[misc]
            more = [*(drawn(sizes) for _ in range(4)), LARGEST] if proofs else []  # to paint much takes long
            for size in (SMALLEST, *more):
                await pilot.resize_terminal(*size)
                await well(pilot, screen, size)
                await pilot.press(sizes.choice(["tab", "shift+tab", "down", "up"]))
                await well(pilot, screen, size)
            assert app.screen is screen and screen_text(app).strip()
            app.pop_screen()
    assert app._exception is None


def drawn(sizes: random.Random) -> tuple[int, int]:
    return sizes.randint(SMALLEST[0], LARGEST[0]), sizes.randint(SMALLEST[1], LARGEST[1])


async def test_random_keys_sizes_and_events_cause_no_crash(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch, proofs: bool
) -> None:
    """The sequence mixes keys of all scopes, text, new sizes, events and ends of runs."""
    Path("train.py").write_text("import skyward_core as sky\n\n@sky.function\ndef train(lr: float = 0.1): ...\n")
    monkeypatch.setattr(app, "_quit", lambda status=0: None)  # else it would soon be over
    monkeypatch.setattr(app, "action_suspend_process", lambda: None)
    fate = random.Random(11)
    keys = sorted({key for action in ACTIONS for key in action.keys.split(",")})
    keys += ["tab", "shift+tab", "enter", "escape", "backspace", "ctrl+c", "delete", *"wide0123.*(&!é"]
    view, failed = busy(session), failed_run(session, session.pool("llama-ft"))
    async with running_app(app, (120, 40), until=lambda: app.session is not None) as pilot:
        for number in range((2_000 if proofs else 200) // AT_ONCE):
            pressed = fate.choices(keys, k=AT_ONCE)
            for key in pressed:
                name = next(iter(Binding.make_bindings([(key, "", "")]))).key
                app.post_message(events.Key(name, key if len(key) == 1 else None))
            if number % 10 == 0:
                await pilot.resize_terminal(*drawn(fate))
                session.print(view, fate.randrange(64), f"line {number}\n")
                logged(view, next(iter(view.runs.values())), session, steps=1)
            await pilot.pause()
            assert app.is_running and app._exception is None, pressed
            while len(app.screen_stack) > 6:
                app.pop_screen()
        assert failed.state == "failed"
