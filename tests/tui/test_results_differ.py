"""Two ranks' results compared, and ranks that disagree, on the run screen, by keys."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import screen_text, typed, until
from tests.support.fake_session import FakeSession, value


async def test_who_disagrees_is_named_and_two_are_compared(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 4)
    run = session.open_run(view)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "▶" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        await pilot.press("d")
        await until(pilot, lambda: "no two results yet" in screen_text(app))
        for rank in range(4):
            told = {"loss": 0.5 if rank == 2 else 0.25, "rank": rank}
            session.end_rank(view, run, rank, summary=value(told))
        session.end_run(view, run)
        await until(pilot, lambda: "disagree   loss: r2 0.5; most have 0.25" in screen_text(app))
        await pilot.press("d", "enter")  # one that is as most, and the odd one, are offered
        await until(pilot, lambda: "r0 and r2 of train" in screen_text(app) and "2 values differ" in screen_text(app))
        await pilot.press("escape", "d")
        await until(pilot, lambda: "Compare the results of two" in screen_text(app))
        await pilot.press("ctrl+a", "ctrl+k")
        await typed(app, pilot, "7,1")
        await pilot.press("enter")
        await until(pilot, lambda: "name two ranks of 4" in screen_text(app))


@pytest.mark.proof("2 s of a processor")
async def test_results_are_written_as_the_kind_of_file_that_a_name_says(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    view = session.pool("p", 2)
    run = session.open_run(view)

    async def written(name: str, said: str) -> None:
        await pilot.press("W")
        await until(pilot, lambda: "Write results to (.csv, .json, .parquet or .pickle)" in screen_text(app))
        await pilot.press("ctrl+a", "ctrl+k")
        await typed(app, pilot, name)
        await pilot.press("enter")
        await until(pilot, lambda: said in screen_text(app))

    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "▶" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
        await pilot.press("W")
        await until(pilot, lambda: "there is no result yet" in screen_text(app))
        for rank in range(2):
            session.end_rank(view, run, rank, summary=value({"loss": 0.5 + rank}))
        session.end_run(view, run)
        await until(pilot, lambda: "✓ DONE 2/2" in screen_text(app))
        await pilot.press("W", "enter")
        await until(pilot, lambda: f"wrote p-{run.id}-results.csv" in screen_text(app))
        assert "value.loss" in Path(f"p-{run.id}-results.csv").read_text("utf-8")
        await written("a.parquet", "wrote a.parquet")
        await written("a.parquet", "a.parquet is there already")
        await written("a.txt", "a.txt says no kind of file: end it with .csv, .json, .parquet or .pickle")
        await written("nowhere/a.json", "could not write")
        await written("a.pickle", "are not all kept here")
        session.kept_values[run.id] = {0: tmp_path / "0.pickle", 1: tmp_path / "1.pickle"}
        for rank, path in session.kept_values[run.id].items():
            path.write_bytes(pickle.dumps({"loss": 0.5 + rank}))
        await written("a.pickle", "wrote a.pickle: the ranks, or tasks, come first")
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table("a.parquet")["value.loss"].to_pylist() == [0.5, 1.5]
    with open("a.pickle", "rb") as file:
        assert [pickle.load(file) for _ in range(3)] == [[0, 1], {"loss": 0.5}, {"loss": 1.5}]
