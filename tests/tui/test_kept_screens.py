"""Saved screen state: restored on reopening and after a restart, ignored if it is invalid."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from skyward_core.client import user_settings_and_app_state as settings
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import LAST, SkywardApp
from skyward_tui.dialogs.confirmations import QuitScreen
from skyward_tui.panels.rank_metrics import MetricsPane
from skyward_tui.screens.history import HistoryScreen
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import on_run_screen, open_pool, press, running_app, screen_text, until
from tests.support.fake_session import FakeSession, logged
from tests.support.past import some_past
from tests.tui.conftest import log_of


def made(session: FakeSession) -> SkywardApp:
    return SkywardApp(lambda: session, clock=lambda: session.now)


@pytest.fixture
def view(session: FakeSession) -> PoolView:
    view, _ = session.pool_with_run("llama-ft")
    session.print(view, 0, "step=1\nnoise\nstep=2\n")
    return view


@pytest.mark.proof("1.5 s of a processor")
async def test_run_screen_restores_filter_panel_merge_and_zoom(session: FakeSession, view: PoolView) -> None:
    app = made(session)
    async with on_run_screen(app, (120, 40)) as (pilot, screen):
        await pilot.press("w", "t", "ampersand", *"step", "enter", "1", "a", "z")
        await until(pilot, lambda: screen.active == "ranks" and screen.has_class("-zoom"))
        await pilot.press("q")
        screen = await open_pool(app, pilot)
        await until(pilot, lambda: screen.active == "ranks" and screen.merged and screen.has_class("-zoom"))
        await press(pilot, "ctrl+q", until=lambda: "keep" in screen_text(app).lower())
        app._quit_as("keep")
        await until(pilot, lambda: not app.is_running)
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        assert isinstance(app.screen, RunScreen)
        screen = app.screen
        await until(pilot, lambda: screen.active == "ranks" and screen.merged and screen.has_class("-zoom"))
        pane = log_of(screen).pane
        assert pane.wrap and pane.times and pane.window.filter is not None
        assert "restored the log filter: step" in screen_text(app)
        await press(pilot, "z", "2", "escape", "a", until=lambda: pane.window.filter is None)  # the filter, and back
        assert not screen.has_class("-zoom")


async def leave(app: SkywardApp, pilot: Pilot[Any]) -> None:
    await press(pilot, "ctrl+q", until=lambda: not app.is_running or isinstance(app.screen, QuitScreen))
    if app.is_running:
        await pilot.press("enter")
    await until(pilot, lambda: not app.is_running)


async def left_at(session: FakeSession, *keys: str, shows: str) -> None:
    """Quit an app after some keys in the list of pools."""
    app = made(session)
    async with running_app(app, (120, 40), until="▶") as pilot:
        await press(pilot, *keys, until=lambda: shows in screen_text(app))
        await leave(app, pilot)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("back", ["escape", "q"])
async def test_next_start_opens_the_last_screen(session: FakeSession, view: PoolView, back: str) -> None:
    await left_at(session, "enter", shows="step=2")
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and "step=2" in screen_text(app))
        await press(pilot, back, until=lambda: isinstance(app.screen, PoolsScreen) and "▶ llama-ft" in screen_text(app))
        await leave(app, pilot)
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "▶ llama-ft" in screen_text(app) and app._early_events is None)
        assert len(app.screen_stack) == 1


async def test_screen_that_crashes_the_app_is_opened_once(
    session: FakeSession, view: PoolView, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpaintable(self: RunScreen) -> None:
        raise LookupError("a record that cannot be painted")

    await left_at(session, "enter", shows="step=2")
    with monkeypatch.context() as patch, pytest.raises(LookupError, match="cannot be painted"):
        patch.setattr(RunScreen, "body", unpaintable)
        app = made(session)
        async with running_app(app, (120, 40), until=lambda: not app.is_running):
            pass
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "▶ llama-ft" in screen_text(app) and app._early_events is None)
        assert isinstance(app.screen, PoolsScreen)


async def test_saved_screen_is_not_opened_if_it_cannot_be_cleared(
    session: FakeSession, view: PoolView, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    await left_at(session, "enter", shows="step=2")
    monkeypatch.setattr(settings, "save_state", full)
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "No space left" in screen_text(app) and app._early_events is None)
        assert isinstance(app.screen, PoolsScreen)


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize(("key", "title"), [("H", "history"), ("F", "failures")])
async def test_next_start_opens_the_history_again(session: FakeSession, view: PoolView, key: str, title: str) -> None:
    some_past(session)
    await left_at(session, key, shows=f"pools › {title}")
    app = made(session)
    async with running_app(app, (120, 40), until=f"pools › {title}") as pilot:
        await press(pilot, "q", until=lambda: isinstance(app.screen, PoolsScreen))


@pytest.mark.proof("1 s of a processor")
async def test_next_start_opens_an_earlier_run_again(session: FakeSession, view: PoolView) -> None:
    first = next(iter(view.runs))
    session.end_run(view, view.runs[first])
    session.open_run(view)
    await left_at(session, "enter", "left_curly_bracket", shows="run 1 of 2")
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.run_id == first)


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("is_over", [False, True])
async def test_unlisted_run_is_requested_if_its_pool_has_ended(
    session: FakeSession, view: PoolView, is_over: bool
) -> None:
    first = next(iter(view.runs))
    session.end_run(view, view.runs[first])
    session.open_run(view)
    await left_at(session, "enter", "left_curly_bracket", shows="run 1 of 2")
    del view.runs[first]
    if is_over:
        view.state = "gone"
    app, shown = made(session), list[tuple[str, str]]()
    app.show_run = lambda pool, run, found=None: shown.append((pool, run))  # type: ignore[method-assign]
    async with running_app(app, (120, 40), until=lambda: shown == [(view.key, first if is_over else "")]):
        pass


@pytest.mark.proof("0.7 s of a processor", after=1)
@pytest.mark.parametrize(("price", "kind"), [(0.0, RunScreen), (2.5, PoolsScreen)])
async def test_next_start_prefers_a_pool_that_costs_money_to_an_ended_one(
    session: FakeSession, view: PoolView, price: float, kind: type[Screen[Any]]
) -> None:
    session.end_run(view, view.runs["llama-ft-1"])
    await left_at(session, "enter", shows="step=2")
    view.state = "gone"
    session.pool("idle", 1, 1, price=price)
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app._early_events is None and isinstance(app.screen, kind))


@pytest.mark.proof("1 s of a processor")
async def test_front_screen_of_a_stack_is_saved(session: FakeSession, view: PoolView) -> None:
    some_past(session)
    app = made(session)
    async with running_app(app, (120, 40), until="▶") as pilot:
        app.show_history()
        app.show_run(view.key, "")
        await until(pilot, "step=2")
        await leave(app, pilot)
    assert app.saved_screen_state(LAST)["screen"] == "run"


async def test_next_start_opens_no_screen_of_an_unlisted_pool(session: FakeSession, view: PoolView) -> None:
    await left_at(session, "enter", shows="step=2")
    session.views.remove(view)
    session.pool("other")
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "▶ other" in screen_text(app) and app._early_events is None)
        assert isinstance(app.screen, PoolsScreen)


async def test_key_pressed_during_the_start_prevents_the_saved_screen(session: FakeSession, view: PoolView) -> None:
    await left_at(session, "enter", shows="step=2")
    read = threading.Event()

    def slow() -> FakeSession:
        assert read.wait(60)
        return session

    app = SkywardApp(slow, clock=lambda: session.now)
    async with running_app(app, (120, 40), until="loading runs and pools") as pilot:
        await pilot.press("H")
        read.set()
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        assert [type(each) for each in app.screen_stack] == [PoolsScreen, HistoryScreen]


async def test_key_pressed_while_the_saved_screen_is_cleared_has_priority(
    session: FakeSession, view: PoolView, monkeypatch: pytest.MonkeyPatch
) -> None:
    await left_at(session, "enter", shows="step=2")
    written, remember = threading.Event(), settings.save_state

    def slow(name: str, text: str) -> None:
        assert written.wait(60)
        remember(name, text)

    monkeypatch.setattr(settings, "save_state", slow)
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: not app.saved_screen_state(LAST) and app.session is not None)
        await pilot.press("H")
        written.set()
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        assert [type(each) for each in app.screen_stack] == [PoolsScreen, HistoryScreen]


@pytest.mark.proof("1 s of a processor")
async def test_chart_settings_are_restored(session: FakeSession, view: PoolView) -> None:
    logged(view, view.runs["llama-ft-1"], session)
    app = made(session)
    async with on_run_screen(app, (160, 48), until="tokens/s") as (pilot, screen):
        await pilot.press("5", "b", "x", "I")
        pane = screen.query_one(MetricsPane)
        await until(pilot, lambda: pane.scale == "log" and pane.smooth and pane.single)
        await press(pilot, "q", until=lambda: not isinstance(app.screen, RunScreen))
        pane = (await open_pool(app, pilot)).query_one(MetricsPane)
        await until(pilot, "log scale  smo")
        assert pane.scale == "log" and pane.smooth and pane.single
        await press(pilot, "b", until=lambda: pane.scale == "linear")


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize(
    ("text", "is_reported"),
    [
        ('{"version": 1, "screens": {"run": {"panel": "no-such", "filter": "", "zoom": "yes"}}}', False),
        ('{"version": 1, "screens": {"run": {"panel": "metrics"}}}', False),  # there are none yet
        ('{"version": 7}', True),
        ("{", True),
    ],
)
async def test_invalid_saved_state_is_ignored(
    session: FakeSession, view: PoolView, text: str, is_reported: bool
) -> None:
    settings.save_state("app", text)
    app = made(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session is not None and "llama-ft" in screen_text(app))
        assert ("ignored the saved state of the app" in screen_text(app)) is is_reported
        screen = await open_pool(app, pilot)
        await until(pilot, lambda: screen.active == "log")
        assert not screen.has_class("-zoom") and not screen.merged


async def test_unsaved_app_state_is_reported(
    session: FakeSession, view: PoolView, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(settings, "save_state", full)
    app = made(session)
    async with on_run_screen(app, (120, 40)) as (pilot, _):
        await press(pilot, "w", "q", until="could not save the state of the app: No space left")
