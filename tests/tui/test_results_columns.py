"""Results whose parts have the same names stand below these, figures below each other."""

from __future__ import annotations

from skyward_tui.app.app import SkywardApp
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession, value


async def test_parts_of_results_are_columns_where_all_have_the_same(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 4)
    run = session.open_run(view)
    for rank, loss in ((0, 0.5), (1, 12.25)):
        session.end_rank(view, run, rank, summary=value({"loss": loss, "weights": "ab12"}))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "loss  weights" in screen_text(app))
        lines = screen_text(app).splitlines()
        (head,) = (line for line in lines if "loss  weights" in line)
        first, second = (next(line for line in lines if f"│ r{rank} " in line) for rank in (0, 1))
        end = head.index("loss") + len("loss")
        assert first[:end].endswith("  0.5") and second[:end].endswith("12.25"), (head, first, second)
        assert first.index("ab12") == second.index("ab12")
        session.end_rank(view, run, 2, summary=value({"other": 1.0}))
        await until(pilot, lambda: "other 1" in screen_text(app))
        assert "loss  weights" not in screen_text(app) and "loss 0.5  weights ab12" in screen_text(app)


async def test_a_result_that_is_no_object_has_no_columns(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 2)
    run = session.open_run(view)
    session.end_rank(view, run, 0, summary=value({"loss": [1, 2]}))
    session.end_rank(view, run, 1, summary=value(7))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "loss [1, 2]" in screen_text(app))
