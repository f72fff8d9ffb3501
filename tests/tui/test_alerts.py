"""Alerts in the strip of the run screen, and their notifications."""

from __future__ import annotations

from math import nan
from pathlib import Path

import pytest
from textual import events

from skyward_core.views.problem_alerts_and_stragglers import Alert
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen
from skyward_tui.panels.rank_states_and_heat_map import RankList
from skyward_tui.screens.run import AlertStrip, RunScreen, alert_line, alert_messages
from tests.support.app_driver import Size, on_run_screen, press, running_app, screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.host_key import shown
from tests.support.own_home import set_own


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_non_finite_metric_is_reported_once(
    app: SkywardApp, session: FakeSession, size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    flash = RunScreen.flash

    def noted(screen: RunScreen, text: str, kind: str = "info") -> None:
        messages.append(text)
        flash(screen, text, kind)

    monkeypatch.setattr(RunScreen, "flash", noted)
    view, run = session.pool_with_run("llama-ft")
    async with on_run_screen(app, size) as (pilot, _):
        strip = app.screen.query_one(AlertStrip)
        assert not strip.display and messages == []
        view.metrics.add_values(run.id, 3, session.now, {"step": 103, "loss": nan})
        await until(pilot, "✗ NaN  rank 3 since")
        assert "loss is NaN from step 103 on" in screen_text(app)
        view.metrics.add_values(run.id, 3, session.now + 1, {"step": 104, "loss": nan})
        view.metrics.add_values(run.id, 1, session.now + 1, {"step": 104, "loss": nan})
        await until(pilot, "✗ NaN  ranks 1,3 since")
        ranks = app.screen.query_one("RanksPanel RankList", RankList)
        await press(pilot, "e", until=lambda: app.focused is ranks and ranks.selected == 3)
        await until(pilot, lambda: [row.ranks for row in ranks.rank_rows] == [[1, 3], [0], [2]])
        assert messages == [
            f"✗ NaN  rank {rank}: loss is NaN from step {step} on" for rank, step in ((3, 103), (1, 104))
        ]
        assert "rank 1: loss is NaN from step 104 on" in screen_text(app).splitlines()[-2], "for all to see"
        for step in range(20):
            for rank in (1, 3):
                view.metrics.add_values(run.id, rank, session.now + 2 + step, {"loss": 1.0})
        await until(pilot, lambda: not strip.display)
        assert len(messages) == 2


def test_equal_alerts_of_many_ranks_are_one_message_that_fits() -> None:
    many = [Alert("plateau", rank, None, None, "loss", 7.0, "loss no longer improves") for rank in range(256)]
    assert list(alert_messages(many)) == [("= plateau", "rank 0: loss no longer improves (+255 more)", "info")]
    stalled = Alert("stall", 3, None, None, "", 7.0, "quiet")
    assert list(alert_messages([stalled])) == [], "the panel of ranks says so"
    for width in (60, 80, 160):
        shown = alert_line([*many, Alert("throttled", None, 1, 4, "", 7.0, "slowed")], width, 9.0, "  e: go ").plain
        assert len(shown) <= width and "ranks 0-255" in shown and "+1 more" in shown
        assert shown.endswith("  e: go ") is (width > 60)
    also = Alert("stall", 1, None, None, "", 7.0, "quiet")
    silent = alert_line([stalled, also], 80, 311.0).plain
    assert "ranks 1,3 silent 5:04: quiet" in silent


# The app calls a person who looks elsewhere, and says what of their settings it does not use.


@pytest.fixture
def written(app: SkywardApp, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Text that the terminal receives in addition to paints."""
    texts: list[str] = []
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(app._notifier, "_write", texts.append)
    return texts


async def test_run_end_rings_the_bell_and_failing_notify_command_is_reported_once(
    app: SkywardApp, session: FakeSession, written: list[str]
) -> None:
    set_own('[notify]\ncommand = "/no/such/program"\n')
    view, run = session.pool_with_run("llama-ft")
    async with running_app(app, (120, 24), until="▶ llama-ft") as pilot:
        assert written == []
        session.end_run(view, run)
        await until(pilot, lambda: len(written) == 1)
        assert written == ["\x1b]9;skyward: train (llama-ft-1) on llama-ft done after 41.0 s: 0/4 returned\x1b\\\a"]
        await until(pilot, "the command of [notify], /no/such/program, does not work")


async def test_short_run_notifies_only_if_the_terminal_is_unfocused(
    app: SkywardApp, session: FakeSession, written: list[str]
) -> None:
    set_own("[notify]\nbell = false\nafter = 60\n")
    view = session.pool("llama-ft")
    async with running_app(app, (120, 24), until="▶ llama-ft") as pilot:
        for looks in (True, False):
            app.post_message(events.AppFocus() if looks else events.AppBlur())
            await pilot.pause()
            run = session.open_run(view)
            await until(pilot, lambda run=run: (view.key, run.id) in app._notification_watch._running)  # type: ignore[misc]
            session.end_run(view, run)
            await until(pilot, lambda: not app._notification_watch._running)
            assert len(written) == (0 if looks else 1)


async def test_host_key_question_notifies_an_unfocused_terminal(
    app: SkywardApp, session: FakeSession, written: list[str]
) -> None:
    async with running_app(app, (120, 24), until=lambda: session.ask is None and app.session is not None) as pilot:
        app.post_message(events.AppBlur())
        await pilot.pause()
        screen = app.ask_about_host_key(shown(), lambda answer: None)
        assert isinstance(screen, HostKeyScreen)
        (text,) = written
        assert "is unknown. Accept or reject it" in text


async def test_notify_command_of_a_project_is_ignored_with_a_warning(
    app: SkywardApp, session: FakeSession, written: list[str]
) -> None:
    Path("skyward.toml").write_text('[notify]\ncommand = "touch gotcha"\n')
    async with running_app(app, (160, 24), until="[notify] in "):
        assert app._notifier.ways.command == ()
