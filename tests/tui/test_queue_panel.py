"""The queue on the run screen: there while a run waits, with the reason, and a key that takes a run out."""

from __future__ import annotations

from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.dialog import ChoiceScreen
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession

EMPTY = "no run waits for nodes, and no two share them"


def waits(session: FakeSession, view: PoolView, run: str, name: str) -> None:
    opened = events.RunOpened(pool=view.name, run=run, function=name, kind="broadcast", total=4, at=session.now - 20)
    session.emit(view, opened)
    line = [events.QueuedRun(run=run, name=name, nodes=4, only=[], since=session.now - 20, who="me")]
    session.emit(view, events.QueueNews(pool=view.name, waiting=line))


async def test_who_waits_is_shown_and_taken_out(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 4)
    run = session.open_run(view, "train", total=2)
    session.emit(view, events.RunPlaced(pool="p", run=run.id, nodes=[0, 1]))
    async with app.run_test(size=(160, 48)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: "3 nodes" in screen_text(app))
        assert "7 queue" not in screen_text(app)
        await pilot.press("7")
        await until(pilot, lambda: EMPTY in screen_text(app))

        waits(session, view, "w1", "wide\x1b[2J")
        await until(pilot, lambda: "7 queue  1 waiting" in screen_text(app))
        assert "3 nodes" in screen_text(app), "it has a place of its own"
        await until(pilot, lambda: "waits for 4 nodes: 2 free, train (p-1) has nodes 0-1" in screen_text(app))
        await pilot.press("7", "G")
        await until(pilot, lambda: "▸ ◌ wide" in screen_text(app))
        await pilot.press("C")
        await until(pilot, lambda: isinstance(app.screen, ChoiceScreen))
        assert "(w1)? It waits for nodes, and is not begun" in screen_text(app)
        await pilot.press("right", "enter")
        await until(pilot, lambda: session.cancelled == [("p", "w1")])
        session.emit(view, events.QueueNews(pool="p", waiting=[]))
        session.emit(view, events.RunEnded(pool="p", run="w1", state="cancelled"))
        await until(pilot, lambda: "7 queue" not in screen_text(app))


async def test_on_a_small_terminal_it_is_a_key_away(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 4)
    session.open_run(view, "train")
    waits(session, view, "w1", "next")
    async with app.run_test(size=(80, 24)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: "FOLLOW" in screen_text(app))
        await pilot.press("7")
        await until(pilot, lambda: "waits for 4 nodes: 0 free" in screen_text(app))
        await until(pilot, lambda: "C cancel" in screen_text(app))


async def test_of_panels_that_share_a_place_one_is_shown(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 4)
    session.open_run(view, "train")
    waits(session, view, "w1", "next")
    async with app.run_test(size=(120, 40)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: "7 queue" in screen_text(app))
        assert "3 nodes" not in screen_text(app)
        await pilot.press("3")
        await until(pilot, lambda: "3 nodes" in screen_text(app) and "7 queue" not in screen_text(app))
