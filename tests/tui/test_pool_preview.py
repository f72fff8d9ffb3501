"""The list of pools: a preview of the pool under the cursor, and the latest runs below a short list."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from skyward_core.client.run_history import PastRun
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.pool_list import PoolList
from skyward_tui.widgets.pool_preview_and_recent_runs import PoolPreview
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import NOW, FakeSession, failed_run, logged
from tests.support.past import past_run


async def test_runs_of_late_stand_where_the_list_leaves_room(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_tui.screens.pool_list.LOOK", 0.0)
    view = session.pool("llama-ft", 2)
    session.past = [
        past_run(1, function="first_of_all"),
        past_run(2, state="failed", error="r3 OSError: disk full"),
        past_run(3, run="", function="", state="gone"),
    ]
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "recent runs  (H: all)" in screen_text(app))
        shown = screen_text(app).split("recent runs")[1]
        assert "first_of_all" in shown and "disk full" in shown and "(no run)" not in shown
        assert "gone" not in shown, "a pool that had no run is none"
        session.past = [past_run(0, function="newest"), *session.past]
        session.open_run(view)
        await until(pilot, lambda: "newest" in screen_text(app))
        await pilot.resize_terminal(100, 48)
        await until(pilot, lambda: "recent runs" not in screen_text(app))
        await pilot.resize_terminal(160, 48)
        await until(pilot, lambda: "recent runs" in screen_text(app))
        for number in range(40):
            session.pool(f"many-{number}", 1)
        await until(pilot, lambda: "recent runs" not in screen_text(app))
        assert screen_text(app).count("● up") > 35, "pools come first"


async def test_who_leaves_while_they_are_read_leaves_an_app_that_has_not_failed(
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
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: bool(asked))
    assert reading.done() and app._exception is None


async def test_without_a_past_the_list_has_all_the_room(app: SkywardApp, session: FakeSession) -> None:
    session.pool("llama-ft", 2)
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "▶ llama-ft" in screen_text(app))
        await pilot.pause()
        assert "recent runs" not in screen_text(app)


async def test_the_time_of_a_run_that_goes_on_does_not_stand_still(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = session.pool("llama-ft", 2)
    session.open_run(view)
    session.past = [past_run(1, state="running", opened_at=session.now, ended_at=None)]
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "recent runs" in screen_text(app))
        for seconds in (5, 11):
            session.now += seconds
            await until(pilot, lambda: f"0:{session.now - NOW:02.0f}" in screen_text(app).split("recent runs")[1])


# What the pool under the cursor is at, beside the list; it is not painted again where nothing changes.


def training(session: FakeSession, name: str = "llama-ft", nodes: int = 4) -> PoolView:
    view = session.pool(name, nodes)
    run = session.open_run(view)
    for rank in range(nodes):
        session.print(view, rank, f"\x1b[31mstep {rank}\x1b[0m done \x1b]0;title\x07\n")
    logged(view, run, session, ranks=nodes, steps=30)
    return view


async def test_ranks_numbers_and_last_lines_of_the_pool_under_the_cursor(app: SkywardApp, session: FakeSession) -> None:
    session.pool("idle", 2)
    training(session)
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "▶ llama-ft" in screen_text(app) and "last lines" in screen_text(app))
        text = screen_text(app)
        assert "4 ranks: ● 4 running" in text and "●●●●" in text
        assert "median of 4 ranks" in text and "loss " in text
        assert "r003| step 3 done" in text and "title" not in text
        await pilot.press("down")
        await until(pilot, lambda: "no run on this pool yet" in screen_text(app))
        assert "last lines" not in screen_text(app)


async def test_the_curve_s_value_is_the_median_and_its_blanks_are_pieces_of_their_own(
    app: SkywardApp, session: FakeSession
) -> None:
    view = session.pool("llama-ft", 4)
    run = session.open_run(view)
    for step in range(9):
        for rank in range(4):  # one after the other, as they do
            view.metrics.add_values(run.id, rank, session.now + step + rank / 5, {"loss": 8.0 - step + rank})
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "loss 1.5  median of 4 ranks" in screen_text(app))
        content = app.screen.query_one(PoolPreview).render()
        pieces = [content.plain[span.start : span.end] for span in content.spans]
        drawn = [piece for piece in pieces if any("⠀" < sign <= "⣿" for sign in piece)]
        assert drawn and not any(" " in piece for piece in drawn), "a font may have dots of another width"


@pytest.mark.parametrize("width", [80, 119])
async def test_there_is_none_where_it_has_no_room(app: SkywardApp, session: FakeSession, width: int) -> None:
    training(session)
    async with app.run_test(size=(width, 40)) as pilot:
        await until(pilot, lambda: "▶ llama-ft" in screen_text(app))
        assert "4 ranks" not in screen_text(app)
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: "4 ranks: ● 4 running" in screen_text(app))


async def test_what_a_start_waits_for_and_why_a_run_failed(app: SkywardApp, session: FakeSession) -> None:
    failed_run(session, session.pool("sweep-7"))
    view = session.pool("fresh", 8, state="starting", phase="requested")
    news = events.NodePhase(
        pool="fresh",
        node=0,
        phase="running",
        detail="waiting for sshd",
        at=session.now,
        retry_at=session.now + 3,
    )
    session.emit(view, news)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "▶ fresh" in screen_text(app) and "n0" in screen_text(app))
        assert "waiting for sshd" in screen_text(app) and "0:03" in screen_text(app)
        assert "and 4 other nodes" in screen_text(app)
        await pilot.press("down")
        await until(
            pilot,
            lambda: "▶ sweep-7" in screen_text(app) and "rank 2 raised, ZeroDivisionError" in screen_text(app),
        )


async def test_nothing_is_painted_where_nothing_happens(
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
