"""What is amiss stands in a strip of the run screen, and is notified once."""

from __future__ import annotations

from math import nan

import pytest

from skyward_core.views.alert_rules import Alert
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.run import AlertStrip, RunScreen, alert_line, alert_messages
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_a_number_that_is_none_is_told_once(
    app: SkywardApp, session: FakeSession, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    flash = RunScreen.flash

    def noted(screen: RunScreen, text: str, kind: str = "info") -> None:
        told.append(text)
        flash(screen, text, kind)

    monkeypatch.setattr(RunScreen, "flash", noted)
    view = session.pool("llama-ft")
    run = session.open_run(view)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "▶" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        strip = app.screen.query_one(AlertStrip)
        assert not strip.display and told == []
        view.metrics.add_values(run.id, 3, session.now, {"step": 103, "loss": nan})
        await until(pilot, lambda: "✗ NaN  rank 3 since" in screen_text(app))
        assert "loss is NaN from step 103 on" in screen_text(app)
        view.metrics.add_values(run.id, 3, session.now + 1, {"step": 104, "loss": nan})
        view.metrics.add_values(run.id, 1, session.now + 1, {"step": 104, "loss": nan})
        await until(pilot, lambda: "+1 more" in screen_text(app))
        assert told == [f"✗ NaN  rank {rank}: loss is NaN from step {step} on" for rank, step in ((3, 103), (1, 104))]
        assert "rank 1: loss is NaN from step 104 on" in screen_text(app).splitlines()[-1], "for all to see"
        for step in range(20):
            for rank in (1, 3):
                view.metrics.add_values(run.id, rank, session.now + 2 + step, {"loss": 1.0})
        await until(pilot, lambda: not strip.display)
        assert len(told) == 2


def test_many_with_one_trouble_are_one_notice_and_little_room_is_enough() -> None:
    many = [Alert("plateau", rank, None, None, "loss", 7.0, "loss gets no better") for rank in range(256)]
    assert list(alert_messages(many)) == [("= plateau", "rank 0: loss gets no better (+255 more)", "info")]
    stalled = Alert("stall", 3, None, None, "", 7.0, "quiet")
    assert list(alert_messages([stalled])) == [], "the panel of ranks says so"
    for width in (60, 80, 160):
        shown = alert_line(many, width).plain
        assert len(shown) <= width and shown.endswith("+255 more ")
