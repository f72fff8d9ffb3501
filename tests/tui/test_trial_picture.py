"""What a sweep comes to, below its rows: each argument's values against a number, and the curves of all trials."""

from __future__ import annotations

from dataclasses import replace

from skyward_core.views.rank_metrics import MetricStore
from skyward_core.views.sweep_trials import TrialTable
from skyward_tui.app.app import SkywardApp
from skyward_tui.widgets.sweep_trials import TrialCharts
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.sweeps import SHEET, learned, swept


def test_each_value_of_an_argument_is_told_by_what_its_trials_came_to(session: FakeSession) -> None:
    view, run = swept(session)
    picture = TrialCharts()
    table = session.boards[run.id].table(run.id, run.tasks, view.metrics)
    picture.update(table, table.rows, "#", view.metrics, run.id)
    text = [row.plain for row in picture.rows(120, 20)]
    head = next(line for line in text if "acc by lr" in line)
    assert "acc by seed" in head, "two arguments stand beside each other where there is room"
    assert "0.25" in head and "0.875" in head, "the scale is that of all trials"
    row = next(line for line in text if line.split()[:2] == ["0.1", "0.625"])  # (0.5 + 0.75) / 2; seed 3 failed
    assert row.index("─") < row.index("●") < row.rindex("─")
    assert len(picture.rows(60, 20)) > len(text), "below each other where there is not"


def test_the_curve_of_the_first_row_is_in_front(session: FakeSession) -> None:
    view, run = swept(session)
    for index, loss in ((0, 0.5), (4, 0.125)):
        learned(session, view, run, index, loss)
    picture = TrialCharts()
    table = session.boards[run.id].table(run.id, run.tasks, view.metrics)
    picture.update(table, table.sorted_rows("loss"), "loss", view.metrics, run.id)
    rows = picture.rows(120, 24)
    head = next(row for row in rows if "loss of 2 trials" in row.plain)
    assert "#4 lr=0.01 seed=2" in head.plain
    assert any(span.style == "$text-accent" for row in rows[rows.index(head) + 1 :] for span in row.spans)


def test_what_one_rank_logged_in_one_trial_is_none_of_another(session: FakeSession) -> None:
    """A rank runs several, one after the other; each begins at 0."""
    view, run = swept(session)
    learned(session, view, run, 0, 0.5)
    run.tasks[1].began_at, run.tasks[1].rank = session.now - 3.25 + 1.0, 0
    picture = TrialCharts()
    table = session.boards[run.id].table(run.id, run.tasks, view.metrics)
    picture.update(table, table.rows, "#", view.metrics, run.id)
    first, other = sorted(picture._curves, key=len)
    assert first[0][0] < 0.15 and other[0][0] == 0, (first, other)
    assert len(first) == 13, "those from its own beginning on"


def test_nothing_is_drawn_where_there_is_nothing_to_tell() -> None:
    picture = TrialCharts()
    rows = replace(SHEET).rows
    table = TrialTable(SHEET.names, (), [])
    picture.update(table, [], "#", MetricStore(), "")
    assert rows and picture.rows(120, 20) == []


async def test_it_stands_below_the_trials_where_there_is_room(app: SkywardApp, session: FakeSession) -> None:
    view, run = swept(session)
    learned(session, view, run, 4, 0.125)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "acc by lr" in screen_text(app))
        assert "loss of 1 trials" not in screen_text(app) and "loss of 1 trial" in screen_text(app)
        await pilot.resize_terminal(120, 18)
        await until(pilot, lambda: "loss of 1 trial" not in screen_text(app))
        assert "✓ returned" in screen_text(app), "rows come first"
