"""A sweep over arguments in the app: its results are a table of trials."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo
from skyward_core.views import events
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.sweep_trials import TrialTable
from skyward_tui.app.app import SkywardApp
from skyward_tui.cli.commands.launched_and_attached_runs import trial_cells
from skyward_tui.widgets.sweep_table_and_charts import TrialCharts
from tests.support.app_driver import press, screen_text, until
from tests.support.fake_session import FakeSession, value
from tests.support.sweeps import SHEET, end, gangs, learned, swept


def order(app: SkywardApp) -> list[str]:
    """Return the indices of the trials in display order."""
    lines = [line.replace(" ★", "").strip("│ ").split() for line in screen_text(app).splitlines()]
    return [line[0] for line in lines if line[:1] and line[0].isdigit() and len(line) > 3 and line[1][:2] == "0."]


async def test_trials_table_is_sorted_by_keys(app: SkywardApp, session: FakeSession) -> None:
    view, run = swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "4", "z", until="#▲")
        assert order(app) == list("012345")
        assert "#▲" in screen_text(app) and "4 results  5/6" in screen_text(app)
        await press(pilot, *["right"] * 5, until="loss▲")
        assert order(app) == list("410325")
        await press(pilot, "enter", until="loss▼")
        assert order(app) == list("301425"), "what has none is last either way"
        end(session, view, run, 5, 2.0)
        await until(pilot, lambda: order(app) == list("530142"))
        await press(pilot, "left", "left", until="outcome▲")


async def test_numbers_in_trial_columns_are_right_aligned(app: SkywardApp, session: FakeSession) -> None:
    swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "4", "z", until="#▲")
        lines = screen_text(app).splitlines()
        head = next(line for line in lines if "#▲" in line)
        rows = [line for line in lines if "✓ returned" in line]
        ends = head.index(" loss ") + len(" loss")
        assert len(rows) > 1 and all(row[ends - 1].isdigit() and row[ends] == " " for row in rows), rows
        starts = head.index("outcome")
        assert {row.index("✓") for row in rows} == {starts}, "words begin below each other"


async def test_selected_trial_column_is_visible_in_a_narrow_window(app: SkywardApp, session: FakeSession) -> None:
    swept(session)
    async with app.run_test(size=(60, 20)) as pilot:
        await press(pilot, "enter", "4", "z", until="#▲")
        await press(pilot, "left", until="result▲")
        assert "ValueError: b" in screen_text(app), screen_text(app)


async def test_trials_are_saved_with_their_arguments(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, run = swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "4", until="#▲")
        await pilot.press("S")
        file = tmp_path / f"grid-{run.id}-trials.csv"
        await until(pilot, file.exists)
        rows = list(csv.DictReader(file.read_text().splitlines()))
    assert (rows[1]["argument.lr"], rows[1]["argument.seed"], rows[1]["number.loss"]) == ("0.1", "2", "0.25")
    assert [row["outcome"] for row in rows] == ["returned", "returned", "raised", "returned", "returned", "waiting"]


async def test_another_run_of_the_pool_shows_its_own_results(app: SkywardApp, session: FakeSession) -> None:
    view, _ = swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "4", "z", until="#▲")
        other = session.open_run(view, "other")
        session.end_rank(view, other, 0, summary=value(7))
        await pilot.press("right_curly_bracket")
        await until(pilot, lambda: "#▲" not in screen_text(app) and "r0" in screen_text(app))
        await press(pilot, "left_curly_bracket", until="#▲")


async def test_running_trial_shows_its_last_metrics(app: SkywardApp, session: FakeSession) -> None:
    view, run = swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "4", "z", until="#▲")
        began = events.RankBegan(pool=view.name, run=run.id, index=5, rank=1, node=1, at=session.now)
        session.emit(view, began)
        view.metrics.add_values(run.id, 1, session.now + 1, {"loss": 0.0625})
        await until(pilot, lambda: "0.0625" in screen_text(app) and "● running" in screen_text(app))


async def test_each_run_of_a_gang_sweep_shows_all_trials(app: SkywardApp, session: FakeSession) -> None:
    view, runs = gangs(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "4 results  2/6" in screen_text(app) and "#▲" in screen_text(app))
        text = screen_text(app)
        assert text.count("◌ waiting") == 3 and "● running" in text and "ValueError: bad seed 2" in text
        assert "▸2" in text, "the run that is looked at is marked"
        # Live: another run of the sweep, which nobody looks at, ends and fails.
        session.end_rank(view, runs[2], 0, "raised", error=ErrorInfo("OSError", "no disk"))
        await until(pilot, "OSError: no disk")
        other = session.open_run(view, total=2)
        end(session, view, other, 0, 0.25)
        end(session, view, other, 1, 0.25)
        session.end_run(view, other)
        session.now += 1
        await pilot.press("left_curly_bracket", "left_curly_bracket", "left_curly_bracket")
        await until(pilot, lambda: "▸0" in screen_text(app) and screen_text(app).count("◌ waiting") == 2)


async def test_results_of_one_run_of_a_gang_sweep_are_shown_by_key(app: SkywardApp, session: FakeSession) -> None:
    gangs(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z", "left_curly_bracket")
        await until(pilot, lambda: "▸1" in screen_text(app) and "U: this run only" in screen_text(app))
        await press(pilot, "U", until=lambda: "U: all trials" in screen_text(app) and "r1" in screen_text(app))
        assert "stopped" in screen_text(app) and "#▲" not in screen_text(app)
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: "r0" in screen_text(app) and "stopped" not in screen_text(app))
        await press(pilot, "U", until="▸0")


async def test_cancel_of_a_gang_sweep_run_warns_about_the_whole_sweep(app: SkywardApp, session: FakeSession) -> None:
    _, runs = gangs(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "4", until="▸2")
        await pilot.press("C")
        message = "This cancels the whole sweep of 6 combinations"
        await until(pilot, lambda: message in " ".join(screen_text(app).replace("│", " ").split()))
        await press(pilot, "escape", "left_curly_bracket", "C", until=f"run {runs[1].id} has already ended (failed)")


async def test_run_without_a_sweep_refuses_the_trials_key(app: SkywardApp, session: FakeSession) -> None:
    session.open_run(session.pool("plain", 2))
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "U", until="not a trial of a sweep by gangs")


# What a sweep comes to, below its rows: each argument's values against a number, and the curves of all trials.


def test_trial_charts_summarize_each_value_of_an_argument(session: FakeSession) -> None:
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


def test_trial_chart_draws_the_first_row_in_front(session: FakeSession) -> None:
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


def test_metrics_of_trials_on_the_same_rank_are_separate(session: FakeSession) -> None:
    """A rank runs several trials in sequence; the curve of each begins at 0."""
    view, run = swept(session)
    learned(session, view, run, 0, 0.5)
    run.tasks[1].began_at, run.tasks[1].rank = session.now - 3.25 + 1.0, 0
    picture = TrialCharts()
    table = session.boards[run.id].table(run.id, run.tasks, view.metrics)
    picture.update(table, table.rows, "#", view.metrics, run.id)
    first, other = sorted(picture._curves, key=len)
    assert first[0][0] < 0.15 and other[0][0] == 0, (first, other)
    assert len(first) == 13, "those from its own beginning on"


def test_best_trial_is_marked_by_the_direction_of_its_metric(session: FakeSession) -> None:
    view, run = swept(session)
    table = session.boards[run.id].table(run.id, run.tasks, view.metrics)
    assert table.best_place == 4, "the highest acc"
    end(session, view, run, 5, -1.0)
    table = session.boards[run.id].table(run.id, run.tasks, view.metrics)
    assert table.best_place == 5
    marked = [cells[0] for cells in trial_cells(table, list(table.rows)) if "★" in cells[0]]
    assert marked == [f"{table.best_place} ★"]
    assert replace(table, numbers=(), rows=table.rows[:1]).best_place is None, "nothing to compare with"


def test_trial_charts_without_data_are_empty() -> None:
    picture = TrialCharts()
    rows = replace(SHEET).rows
    table = TrialTable(SHEET.names, (), [])
    picture.update(table, [], "#", MetricStore(), "")
    assert rows and picture.rows(120, 20) == []


async def test_trial_charts_are_below_the_table_if_there_is_room(app: SkywardApp, session: FakeSession) -> None:
    view, run = swept(session)
    learned(session, view, run, 4, 0.125)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "4", "z", until="acc by lr")
        assert "loss of 1 trials" not in screen_text(app) and "loss of 1 trial" in screen_text(app)
        await pilot.resize_terminal(120, 18)
        await until(pilot, lambda: "loss of 1 trial" not in screen_text(app))
        assert "✓ returned" in screen_text(app), "rows come first"
