"""The app calls a person who looks elsewhere, and says what of their settings it does not use."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events

from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.host_key_and_secret_prompts import HostKeyScreen
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.host_key import shown
from tests.support.own_home import set_own


@pytest.fixture
def written(app: SkywardApp, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the terminal is given beside what is painted."""
    texts: list[str] = []
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(app._notifier, "_write", texts.append)
    return texts


async def test_a_run_that_ends_calls_and_a_command_that_fails_is_told_once(
    app: SkywardApp, session: FakeSession, written: list[str]
) -> None:
    set_own('[notify]\ncommand = "/no/such/program"\n')
    view = session.pool("llama-ft")
    run = session.open_run(view)
    async with app.run_test(size=(120, 24)) as pilot:
        await until(pilot, lambda: "▶ llama-ft" in screen_text(app))
        assert written == []
        session.end_run(view, run)
        await until(pilot, lambda: len(written) == 1)
        assert written == ["\x1b]9;skyward: train (llama-ft-1) on llama-ft done after 41.0 s: 0/4 returned\x1b\\\a"]
        await until(pilot, lambda: "the command of [notify], /no/such/program, does not work" in screen_text(app))


async def test_who_watches_is_not_called_for_what_is_over_at_once(
    app: SkywardApp, session: FakeSession, written: list[str]
) -> None:
    set_own("[notify]\nbell = false\nafter = 60\n")
    view = session.pool("llama-ft")
    async with app.run_test(size=(120, 24)) as pilot:
        await until(pilot, lambda: "▶ llama-ft" in screen_text(app))
        for looks in (True, False):
            app.post_message(events.AppFocus() if looks else events.AppBlur())
            await pilot.pause()
            run = session.open_run(view)
            await until(pilot, lambda run=run: (view.key, run.id) in app._notification_watch._running)  # type: ignore[misc]
            session.end_run(view, run)
            await until(pilot, lambda: not app._notification_watch._running)
            assert len(written) == (0 if looks else 1)


async def test_a_question_calls_who_is_away(app: SkywardApp, session: FakeSession, written: list[str]) -> None:
    async with app.run_test(size=(120, 24)) as pilot:
        await until(pilot, lambda: session.ask is None and app.session is not None)
        app.post_message(events.AppBlur())
        await pilot.pause()
        screen = app.ask_about_host_key(shown(), lambda answer: None)
        assert isinstance(screen, HostKeyScreen)
        (said,) = written
        assert "is unknown, and somebody has to judge it" in said


async def test_a_project_runs_no_command_and_is_told_so(
    app: SkywardApp, session: FakeSession, written: list[str]
) -> None:
    Path("skyward.toml").write_text('[notify]\ncommand = "touch gotcha"\n')
    async with app.run_test(size=(160, 24)) as pilot:
        await until(pilot, lambda: "[notify] of " in screen_text(app))
        assert app._notifier.ways.command == ()
