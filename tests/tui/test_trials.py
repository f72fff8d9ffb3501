"""A sweep over arguments in the app: its results are a table of trials."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from skyward_core.model.outcomes import ErrorInfo
from skyward_core.views import events
from skyward_tui.app.app import SkywardApp
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession, value
from tests.support.sweeps import end, gangs, swept


def order(app: SkywardApp) -> list[str]:
    """The places of the trials, as they stand on the screen."""
    lines = [line.strip("│ ").split() for line in screen_text(app).splitlines()]
    return [line[0] for line in lines if line[:1] and line[0].isdigit() and len(line) > 3 and line[1][:2] == "0."]


async def test_trials_are_a_table_that_is_sorted_by_key(app: SkywardApp, session: FakeSession) -> None:
    view, run = swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "#▲" in screen_text(app))
        assert order(app) == list("012345")
        assert "#▲" in screen_text(app) and "4 results  5/6" in screen_text(app)
        await pilot.press(*["right"] * 5)
        await until(pilot, lambda: "loss▲" in screen_text(app))
        assert order(app) == list("410325")
        await pilot.press("enter")
        await until(pilot, lambda: "loss▼" in screen_text(app))
        assert order(app) == list("301425"), "what has none is last either way"
        end(session, view, run, 5, 2.0)
        await until(pilot, lambda: order(app) == list("530142"))
        await pilot.press("left", "left")
        await until(pilot, lambda: "outcome▲" in screen_text(app))


async def test_figures_end_below_each_other(app: SkywardApp, session: FakeSession) -> None:
    swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "#▲" in screen_text(app))
        lines = screen_text(app).splitlines()
        head = next(line for line in lines if "#▲" in line)
        rows = [line for line in lines if "✓ returned" in line]
        ends = head.index(" loss ") + len(" loss")
        assert len(rows) > 1 and all(row[ends - 1].isdigit() and row[ends] == " " for row in rows), rows
        starts = head.index("outcome")
        assert {row.index("✓") for row in rows} == {starts}, "words begin below each other"


async def test_in_a_narrow_window_the_chosen_column_is_shown(app: SkywardApp, session: FakeSession) -> None:
    swept(session)
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "#▲" in screen_text(app))
        await pilot.press("left")
        await until(pilot, lambda: "result▲" in screen_text(app))
        assert "ValueError: bad" in screen_text(app), screen_text(app)


async def test_they_are_saved_with_their_arguments(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, run = swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4")
        await until(pilot, lambda: "#▲" in screen_text(app))
        await pilot.press("S")
        file = tmp_path / f"grid-{run.id}-trials.csv"
        await until(pilot, file.exists)
        rows = list(csv.DictReader(file.read_text().splitlines()))
    assert (rows[1]["argument.lr"], rows[1]["argument.seed"], rows[1]["number.loss"]) == ("0.1", "2", "0.25")
    assert [row["outcome"] for row in rows] == [
        "returned",
        "returned",
        "raised",
        "returned",
        "returned",
        "waiting",
    ]


async def test_another_run_of_the_pool_shows_its_own_results(app: SkywardApp, session: FakeSession) -> None:
    view, _ = swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "#▲" in screen_text(app))
        other = session.open_run(view, "other")
        session.end_rank(view, other, 0, summary=value(7))
        await until(pilot, lambda: "#▲" not in screen_text(app) and "r0" in screen_text(app))
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: "#▲" in screen_text(app))


async def test_one_that_goes_on_shows_its_last_numbers(app: SkywardApp, session: FakeSession) -> None:
    view, run = swept(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "#▲" in screen_text(app))
        began = events.RankBegan(pool=view.name, run=run.id, index=5, rank=1, node=1, at=session.now)
        session.emit(view, began)
        view.metrics.add_values(run.id, 1, session.now + 1, {"loss": 0.0625})
        await until(pilot, lambda: "0.0625" in screen_text(app) and "● running" in screen_text(app))


async def test_by_gangs_all_trials_are_the_table_of_each_run(app: SkywardApp, session: FakeSession) -> None:
    view, runs = gangs(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z")
        await until(pilot, lambda: "4 results  2/6" in screen_text(app) and "#▲" in screen_text(app))
        text = screen_text(app)
        assert text.count("◌ waiting") == 3 and "● running" in text and "ValueError: bad seed 2" in text
        assert "▸2" in text, "the run that is looked at is marked"
        # Live: another run of the sweep, which nobody looks at, ends and fails.
        session.end_rank(view, runs[2], 0, "raised", error=ErrorInfo("OSError", "no disk"))
        await until(pilot, lambda: "OSError: no disk" in screen_text(app))
        other = session.open_run(view, total=2)
        end(session, view, other, 0, 0.25)
        end(session, view, other, 1, 0.25)
        session.end_run(view, other)
        session.now += 1
        await pilot.press("left_curly_bracket", "left_curly_bracket", "left_curly_bracket")
        await until(pilot, lambda: "▸0" in screen_text(app) and screen_text(app).count("◌ waiting") == 2)


async def test_of_a_run_by_gangs_its_own_results_are_a_key_away(app: SkywardApp, session: FakeSession) -> None:
    gangs(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4", "z", "left_curly_bracket")
        await until(pilot, lambda: "▸1" in screen_text(app) and "U this run's own" in screen_text(app))
        await pilot.press("U")
        await until(pilot, lambda: "U all trials" in screen_text(app) and "r1" in screen_text(app))
        assert "collateral" in screen_text(app) and "#▲" not in screen_text(app)
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: "r0" in screen_text(app) and "collateral" not in screen_text(app))
        await pilot.press("U")
        await until(pilot, lambda: "▸0" in screen_text(app))


async def test_who_cancels_a_run_by_gangs_is_told_that_it_is_the_whole_sweep(
    app: SkywardApp, session: FakeSession
) -> None:
    _, runs = gangs(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "4")
        await until(pilot, lambda: "▸2" in screen_text(app))
        await pilot.press("C")
        said = "The whole sweep of 6 combinations is cancelled with it"
        await until(pilot, lambda: said in " ".join(screen_text(app).replace("│", " ").split()))
        await pilot.press("escape", "left_curly_bracket", "C")
        await until(pilot, lambda: f"run {runs[1].id} has ended" in screen_text(app))


async def test_a_run_of_no_sweep_has_no_trials_to_turn_to(app: SkywardApp, session: FakeSession) -> None:
    session.open_run(session.pool("plain", 2))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter", "U")
        await until(pilot, lambda: "none of a sweep by gangs" in screen_text(app))
