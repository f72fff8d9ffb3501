"""Questions about host keys: they arrive from another thread, open one at a time, and close if they are cancelled."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest
from textual.pilot import Pilot

from skyward_core.transport import background_loop
from skyward_core.transport.ssh import known_hosts
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.confirmations import QuitScreen
from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen
from tests.support.app_driver import Size, Snap, at_every_size, press, previewed, running_app, screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.host_key import shown


# A fixed key, so that its fingerprint is the same in every picture.
@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")


def ask(app: SkywardApp, key: known_hosts.ServerKey) -> Future[bool]:
    """Ask as the core does: on its own thread."""
    return background_loop.submit(app.host_keys.ask(key))


async def asking(app: SkywardApp, pilot: Pilot[None], host: str) -> None:
    await until(pilot, lambda: isinstance(app.screen, HostKeyScreen) and app.screen.key.host == host)
    await until(pilot, f"host         {host}")


async def test_host_key_questions_open_one_after_another(app: SkywardApp) -> None:
    async with app.run_test() as pilot:
        first, second, third = (ask(app, shown(host, 2200 + i)) for i, host in enumerate(("a", "b", "c")))
        await asking(app, pilot, "a")
        await pilot.press("K")
        await asking(app, pilot, "b")
        await pilot.press("enter")  # Refuse has the focus
        await asking(app, pilot, "c")
        await pilot.press("right", "enter")
        answers = [await asyncio.wrap_future(future) for future in (first, second, third)]
        assert answers == [True, False, True]
        await until(pilot, lambda: not isinstance(app.screen, HostKeyScreen))


async def test_refused_host_key_is_refused_until_the_next_launch(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test() as pilot:
        first, twin = ask(app, shown()), ask(app, shown())
        await asking(app, pilot, "gpu1")
        await pilot.press("escape")
        assert not await asyncio.wrap_future(first)
        assert not await asyncio.wrap_future(twin)  # two connections, one question
        assert not await asyncio.wrap_future(ask(app, shown()))
        app.host_keys.attach(session)
        assert session.ask == app.host_keys.ask
        again = ask(app, shown())
        await asking(app, pilot, "gpu1")
        await pilot.press("K")
        assert await asyncio.wrap_future(again)


async def test_cancelled_host_key_question_closes(app: SkywardApp, session: FakeSession) -> None:
    session.pool("train")
    async with app.run_test() as pilot:
        await until(pilot, "▶ train")
        first, second = ask(app, shown("a", 2201)), ask(app, shown("b", 2202))
        await asking(app, pilot, "a")
        first.cancel()
        await asking(app, pilot, "b")
        await press(pilot, "ctrl+q", until=lambda: isinstance(app.screen, QuitScreen))
        second.cancel()
        await until(pilot, lambda: not app.host_keys._open)
        await press(pilot, "escape", until=lambda: len(app.screen_stack) == 1)


async def test_host_key_dialog_does_not_open_while_screens_change(app: SkywardApp) -> None:
    async with app.run_test() as pilot:
        with app.host_keys.paused():
            answer = ask(app, shown())
            await until(pilot, lambda: bool(app.host_keys._open))
            await pilot.pause()
            assert not isinstance(app.screen, HostKeyScreen)
        await asking(app, pilot, "gpu1")
        await pilot.press("K")
        assert await asyncio.wrap_future(answer)


async def test_host_keys_are_refused_when_the_app_ends(app: SkywardApp) -> None:
    async with app.run_test() as pilot:
        left = ask(app, shown())
        await asking(app, pilot, "gpu1")
        await press(pilot, "ctrl+q", until=lambda: not app.is_running)
    assert not await asyncio.wrap_future(left)
    assert not await asyncio.wrap_future(ask(app, shown()))


@at_every_size
async def test_host_key_dialog_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    session.pool("train", 2, state="starting", phase="requested", age=2)
    async with running_app(app, size, until=lambda: "▶ train" in screen_text(app) and previewed(app)) as pilot:
        answers = [ask(app, shown()), ask(app, shown("gpu2", 2222))]
        await asking(app, pilot, "gpu1")
        await until(pilot, "1 more host")
        snap(app, f"host-key-{size[0]}x{size[1]}")
        await pilot.press("K")
        await asking(app, pilot, "gpu2")
        await pilot.press("K")
        assert [await asyncio.wrap_future(answer) for answer in answers] == [True, True]
