"""Files that ranks wrote, in the results panel, and the key that fetches them."""

from __future__ import annotations

from skyward_core.model.output_files import WrittenFile
from skyward_core.views import events
from skyward_tui.app.app import SkywardApp
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession


async def test_files_of_ranks_are_shown_and_fetched(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 2)
    run = session.open_run(view, "train")
    session.written = [
        WrittenFile("ck/model.pt", 2_000_000, session.now - 90, 0, "1"),
        WrittenFile("o\x1b[2Jdd\n", 3, session.now, 1, "2"),
    ]
    async with app.run_test(size=(160, 48)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: "2 files on its nodes, 2 MB; o fetches" in screen_text(app))
        shown = screen_text(app)
        assert "ck/model.pt" in shown and "2 MB" in shown and "odd↵" in shown
        await until(pilot, lambda: "o fetch files" in screen_text(app))
        await pilot.press("o")
        await until(pilot, lambda: f"run {run.id}: 2 files fetched, 2 MB: /outputs" in screen_text(app))
        session.written = []
        session.emit(view, events.RunEnded(pool="p", run=run.id, state="done"))
        await until(pilot, lambda: "ck/model.pt" not in screen_text(app))
        session.now += 60  # what was said of the fetching makes room for hints
        await until(pilot, lambda: "z zoom" in screen_text(app))
        assert "o fetch files" not in screen_text(app)


async def test_the_key_that_fetches_is_hinted_on_a_small_terminal(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 2)
    session.open_run(view, "train")
    session.written = [WrittenFile("ck/model.pt", 2_000_000, session.now - 90, 0, "1")]
    async with app.run_test(size=(80, 24)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: "FOLLOW" in screen_text(app))
        await pilot.press("4")
        await until(pilot, lambda: "ck/model.pt" in screen_text(app))
        await until(pilot, lambda: "o fetch files" in screen_text(app))


async def test_files_go_with_the_nodes_that_they_were_on(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 2)
    session.end_run(view, session.open_run(view, "train"))
    session.written = [WrittenFile("ck/model.pt", 2_000_000, session.now - 90, 0, "1")]
    async with app.run_test(size=(160, 48)) as pilot:
        app.show_pool(view.key)
        await until(pilot, lambda: "ck/model.pt" in screen_text(app))
        session.tear_down(view.key)
        await until(pilot, lambda: "ck/model.pt" not in screen_text(app))
