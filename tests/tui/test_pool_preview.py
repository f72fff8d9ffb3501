"""What the pool under the cursor is at, beside the list; it is not painted again where nothing changes."""

from __future__ import annotations

import pytest

from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.widgets.pool_preview_and_recent_runs import PoolPreview
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession, failed_run, logged


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
        await until(pilot, lambda: "no run yet: it waits for a launch" in screen_text(app))
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
