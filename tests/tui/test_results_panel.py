"""The results panel: comparison, columns, differing ranks, and output files."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from skyward_core.model.output_files import WrittenFile
from skyward_core.views import events
from skyward_tui.app.app import SkywardApp
from tests.support.app_driver import on_run_screen, press, screen_text, typed, until
from tests.support.fake_session import FakeSession, value


async def test_differing_results_are_named_and_two_are_compared(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("p", 4)
    async with on_run_screen(app, (120, 40)) as (pilot, _):
        await press(pilot, "c", until="fewer than two results")
        for rank in range(4):
            data = {"loss": 0.5 if rank == 2 else 0.25, "rank": rank}
            session.end_rank(view, run, rank, summary=value(data))
        session.end_run(view, run)
        await until(pilot, "disagree   loss: r2 0.5; most have 0.25")
        await pilot.press("c", "enter")  # one that is as most, and the odd one, are offered
        await until(pilot, lambda: "r0 and r2 of train" in screen_text(app) and "2 values differ" in screen_text(app))
        await press(pilot, "escape", "c", until="Ranks whose results to compare")
        await pilot.press("ctrl+a", "ctrl+k")
        await typed(app, pilot, "7,1")
        await press(pilot, "enter", until="'7,1' does not name two of 4 ranks")


@pytest.mark.proof("2 s of a processor")
async def test_results_are_exported_in_the_format_of_the_file_name(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    view, run = session.pool_with_run("p", 2)

    async def written(name: str, message: str) -> None:
        await press(pilot, "W", until="Export results to file (.csv, .json, .parquet or .pickle)")
        await pilot.press("ctrl+a", "ctrl+k")
        await typed(app, pilot, name)
        await press(pilot, "enter", until=lambda: message in screen_text(app))

    async with on_run_screen(app, (120, 40)) as (pilot, _):
        await press(pilot, "W", until="no result to export yet")
        for rank in range(2):
            session.end_rank(view, run, rank, summary=value({"loss": 0.5 + rank}))
        session.end_run(view, run)
        await until(pilot, "✓ DONE 2/2")
        await press(pilot, "W", "enter", until=f"wrote p-{run.id}-results.csv")
        assert "value.loss" in Path(f"p-{run.id}-results.csv").read_text("utf-8")
        await written("a.parquet", "wrote a.parquet")
        await written("a.parquet", "a.parquet already exists")
        await written("a.txt", "unknown file format: a.txt. Use .csv, .json, .parquet or .pickle")
        await written("nowhere/a.json", "could not write")
        await written("a.pickle", "are not on this machine")
        session.kept_values[run.id] = {0: tmp_path / "0.pickle", 1: tmp_path / "1.pickle"}
        for rank, path in session.kept_values[run.id].items():
            path.write_bytes(pickle.dumps({"loss": 0.5 + rank}))
        await written(
            "a.pickle",
            "wrote a.pickle: read the file with repeated calls of pickle.load: first the list of ranks or tasks",
        )
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table("a.parquet")["value.loss"].to_pylist() == [0.5, 1.5]
    with open("a.pickle", "rb") as file:
        assert [pickle.load(file) for _ in range(3)] == [[0, 1], {"loss": 0.5}, {"loss": 1.5}]


async def test_rank_at_a_breakpoint_is_paused_in_the_results(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("p", 3)
    session.end_rank(view, run, 0, summary=value({"loss": 0.5}))
    async with on_run_screen(app, (160, 40)) as (pilot, _):
        await press(pilot, "4", "z", until="r1   ● running")
        session.emit(view, events.RankPhase(pool=view.name, rank=1, phase="paused", at=session.now))
        await until(pilot, lambda: "r1   ◍ paused" in screen_text(app) and "r2   ● running" in screen_text(app))
        session.emit(view, events.RankPhase(pool=view.name, rank=1, phase="running", at=session.now))
        await until(pilot, "r1   ● running")


# Results whose parts have the same names stand below these, figures below each other.


async def test_common_fields_of_results_are_columns(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 4)
    for rank, loss in ((0, 0.5), (1, 12.25)):
        session.end_rank(view, run, rank, summary=value({"loss": loss, "weights": "ab12"}))
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "4", "z", until="loss  weights")
        lines = screen_text(app).splitlines()
        (head,) = (line for line in lines if "loss  weights" in line)
        first, second = (next(line for line in lines if f"│ r{rank} " in line) for rank in (0, 1))
        end = head.index("loss") + len("loss")
        assert first[:end].endswith("  0.5") and second[:end].endswith("12.25"), (head, first, second)
        assert first.index("ab12") == second.index("ab12")
        session.end_rank(view, run, 2, summary=value({"other": 1.0}))
        await until(pilot, "other 1")
        assert "loss  weights" not in screen_text(app) and "loss 0.5  weights ab12" in screen_text(app)


async def test_result_without_fields_has_no_columns(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    session.end_rank(view, run, 0, summary=value({"loss": [1, 2]}))
    session.end_rank(view, run, 1, summary=value(7))
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "4", "z", until="loss [1, 2]")


# Files that ranks wrote, in the results panel, and the key that fetches them.


async def test_output_files_of_ranks_are_listed_and_fetched(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("p", 2, provider="ssh")
    session.written = [
        WrittenFile("ck/model.pt", 2_000_000, session.now - 90, 0, "1"),
        WrittenFile("o\x1b[2Jdd\n", 3, session.now, 1, "2"),
    ]
    async with on_run_screen(app, (160, 48), view.key, until="2 files on the nodes, 2 MB (B: fetch)") as (pilot, _):
        shown = screen_text(app)
        assert "ck/model.pt" in shown and "2 MB" in shown and "odd↵" in shown
        await until(pilot, "B fetch files")
        await press(pilot, "B", until=f"run {run.id}: 2 files fetched, 2 MB: /outputs")
        session.written = []
        session.emit(view, events.RunEnded(pool="p", run=run.id, state="done"))
        await until(pilot, lambda: "ck/model.pt" not in screen_text(app))
        session.now += 60  # what was said of the fetching makes room for hints
        await until(pilot, "z zoom")
        assert "B fetch files" not in screen_text(app)


async def test_fetch_on_a_local_pool_names_the_folder(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("p", 1)
    view.spec["cwd"] = "/home/me/work"
    async with on_run_screen(app, (160, 48), view.key, until="FOLLOW") as (pilot, _):
        await press(pilot, "B", until="pool p runs on this machine: its ranks write directly to /home/me/work")


async def test_fetch_key_is_hinted_on_a_small_terminal(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("p", 2)
    session.written = [WrittenFile("ck/model.pt", 2_000_000, session.now - 90, 0, "1")]
    async with on_run_screen(app, (80, 24), view.key, until="FOLLOW") as (pilot, screen):
        await until(pilot, lambda: screen.panels["results"].has_content)
        await press(pilot, "4", until="ck/model.pt")
        await until(pilot, "B fetch files")


async def test_output_files_disappear_with_their_nodes(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 2)
    session.end_run(view, session.open_run(view, "train"))
    session.written = [WrittenFile("ck/model.pt", 2_000_000, session.now - 90, 0, "1")]
    async with on_run_screen(app, (160, 48), view.key, until="ck/model.pt") as (pilot, _):
        session.tear_down(view.key)
        await until(pilot, lambda: "ck/model.pt" not in screen_text(app))
