"""Panels of the run screen: their table, the borders between them, and the queue."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from pkgutil import resolve_name

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from textual.geometry import Region
from textual.pilot import Pilot

import skyward_tui
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.basic_dialogs import ChoiceScreen
from skyward_tui.panels.panel import RunPanel
from skyward_tui.screens.run import BorderOffsets, PanelGrid, RunScreen
from skyward_tui.ui.actions import ACTIONS
from skyward_tui.ui.run_screen_panel_list_and_layout import (
    HOME_PANEL,
    LEAST_COLUMNS,
    PANELS,
    STARTUP_PANEL,
    PanelSpec,
    place_panels,
)
from skyward_tui.ui.saved_state import load_state
from tests.support.app_driver import Size, at_usual_sizes, filled_share, on_run_screen, press, screen_text, until
from tests.support.fake_session import FakeSession, logged, value
from tests.support.machines import measured
from tests.support.processes import run_command

ROOT = Path(skyward_tui.__file__).parent
NAMES = {name for row in PANELS for name in (row.id, row.title)}


def words_of(source: str) -> Iterator[str]:
    """Return the words of all names in a module, and its strings that may be the name of a panel."""
    for node in ast.walk(ast.parse(source)):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(name := getattr(node, field, None), str):
                yield from (word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^[#.]?(?:panel-|run\.|-)?(\w+)$", node.value)


def test_run_screen_names_no_panel() -> None:
    source = inspect.getsource(RunScreen)
    assert not NAMES & set(words_of(source))
    for named in ('self.query_one("#panel-log")', "LogPanel()", "self.log_panel", "from ..panels import node_phases"):
        assert NAMES & set(words_of(named)), "the test sees nothing"


def test_each_panel_has_its_own_module() -> None:
    modules = [row.made_by.partition(":")[0] for row in PANELS]
    assert len(set(modules)) == len(modules) and all(each.startswith("skyward_tui.panels.") for each in modules)
    for row in PANELS:
        assert issubclass(resolve_name(row.made_by), RunPanel), row.id


def test_panel_table_names_existing_actions_and_panels() -> None:
    ids, actions = {row.id for row in PANELS}, {action.id for action in ACTIONS}
    assert {HOME_PANEL, STARTUP_PANEL} <= ids and len(ids) == len({row.number for row in PANELS}) == len(PANELS)
    for row in PANELS:
        assert 1 <= row.number <= 9 and row.title and row.help
        assert {*row.hints, *row.actions} <= actions, row.id
        assert {action.id for action in ACTIONS if not action.label}.isdisjoint(row.hints), row.id
        assert row.place in ("side", "centre", "below", "bottom") and (row.empty or not row.hides), row.id


def test_message_of_an_empty_panel_fits_80_columns() -> None:
    assert {row.id for row in PANELS if len(row.empty) > 78} == set()


@pytest.mark.parametrize("row", PANELS, ids=lambda row: row.id)
def test_panel_modules_do_not_import_each_other(row: PanelSpec) -> None:
    module = row.made_by.partition(":")[0]
    others = {other.made_by.partition(":")[0].rpartition(".")[2] for other in PANELS} - {module.rpartition(".")[2]}
    tree = ast.parse((ROOT.parent / f"{module.replace('.', '/')}.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            assert node.module not in others and not others & {alias.name for alias in node.names}


@pytest.mark.proof("1 s of a processor")
def test_sixth_panel_needs_one_module_and_one_row(tmp_path: Path) -> None:
    env = {**os.environ, "SKYWARD_HOME": str(tmp_path / "home")}
    for name in ("SSH_CONNECTION", "TMUX", "STY", "NO_COLOR"):
        env.pop(name, None)
    child = run_command([sys.executable, "-m", "tests.tui.sixth_panel"], cwd=ROOT.parent, env=env)
    assert child.returncode == 0, child.stderr


# The places of panels: computed from their needs, and the borders between them can be moved.

SHOWN = {"ranks": 6, "phases": 3, "metrics": None, "log": None}


def test_metrics_have_the_centre_and_the_log_is_below() -> None:
    boxes = place_panels(SHOWN, "log", 120, 37)
    assert boxes["metrics"] == (46, 0, 74, 22) and boxes["log"] == (0, 22, 120, 15)
    assert boxes["ranks"] == (0, 0, 46, 19) and boxes["phases"] == (0, 19, 46, 3)
    before = place_panels({"ranks": 6, "phases": 6, "log": None}, "log", 120, 37)
    assert before["log"] == (46, 0, 74, 37), "the log has the whole centre before there are metrics"


def test_long_log_on_a_small_screen_leaves_rows_to_the_charts_unless_zoomed() -> None:
    assert place_panels(SHOWN, "log", 80, 21, alone="narrow") == {"log": (0, 0, 80, 10), "metrics": (0, 10, 80, 11)}
    assert place_panels(SHOWN, "log", 160, 26, alone="short") == {"log": (0, 0, 160, 12), "metrics": (0, 12, 160, 14)}
    whole = {"log": (0, 0, 80, 21)}
    assert place_panels(SHOWN, "log", 80, 21, alone="zoom") == whole
    assert place_panels({"ranks": 6, "log": None}, "log", 80, 21, alone="narrow") == whole, "there are no metrics"
    assert place_panels(SHOWN, "log", 60, 12, alone="narrow") == {"log": (0, 0, 60, 12)}, "too few rows"


def test_machines_use_free_rows_of_the_left_column() -> None:
    boxes = place_panels(SHOWN | {"machines": 9}, "log", 160, 45)
    assert boxes["machines"] == (0, 9, 56, 36) and boxes["ranks"][3] == 6 and boxes["log"] == (56, 27, 104, 18)
    many = place_panels(SHOWN | {"machines": 9, "ranks": 64}, "log", 160, 45)
    assert many["machines"] == (0, 36, 160, 9) and many["ranks"] == (0, 0, 56, 33)
    assert "machines" not in place_panels(SHOWN | {"machines": 9, "ranks": 64}, "log", 120, 32)
    assert "machines" in place_panels(SHOWN | {"machines": 9, "ranks": 64}, "machines", 120, 32)


@given(
    st.dictionaries(st.sampled_from([row.id for row in PANELS]), st.none() | st.integers(1, 300), min_size=1),
    st.sampled_from([row.id for row in PANELS]), st.integers(0, 300), st.integers(0, 100),
    st.integers(-400, 400), st.integers(-400, 400),
)  # fmt: skip
@example(dict.fromkeys(("ranks", "phases", "queue", "metrics")) | {"machines": 9}, "machines", 140, 16, 0, 0)
@example(dict.fromkeys(("ranks", "phases", "metrics")), "ranks", 32, 16, 0, 12)
def test_panels_never_overlap_or_leave_the_grid(
    rows: dict[str, int | None], active: str, width: int, height: int, left: int, below: int
) -> None:
    boxes = place_panels(rows, active, width, height, left, below)
    regions = [Region(*box) for box in boxes.values()]
    assert boxes.keys() <= rows.keys() and all(min(box) >= 0 for box in boxes.values())
    assert active in boxes or active not in rows
    for place, region in enumerate(regions):
        assert region.right <= width and region.bottom <= max(height, 8)
        assert not any(region.overlaps(other) for other in regions[:place])
    if height >= 16 and width >= 32 and {"ranks", "log"} <= boxes.keys():
        assert sum(region.area for region in regions) >= 0.9 * width * height, "no empty space"


@given(
    st.dictionaries(st.sampled_from([row.id for row in PANELS]), st.none() | st.integers(1, 300), min_size=1),
    st.sampled_from([row.id for row in PANELS]), st.integers(0, 300), st.integers(0, 100),
)  # fmt: skip
@example({"ranks": 6, "log": None, "metrics": None}, "ranks", 160, 45)
@example({"phases": 3, "machines": 9}, "phases", 80, 21)
@example({"ranks": 6, "metrics": None}, "ranks", 60, 12)
def test_zoomed_panel_and_its_details_cover_the_grid(
    rows: dict[str, int | None], active: str, width: int, height: int
) -> None:
    boxes = place_panels(rows, active, width, height, 7, 7, alone="zoom")
    regions = [Region(*box) for box in boxes.values()]
    (spec,) = (row for row in PANELS if row.id == next(iter(boxes)))
    assert spec.id == active or active not in rows
    assert {*boxes} <= rows.keys() & {spec.id, *spec.details}
    assert sum(region.area for region in regions) == width * height
    assert not any(region.overlaps(other) for at, region in enumerate(regions) for other in regions[:at])
    need = rows[spec.id]
    if len(boxes) > 1:
        assert need is not None and boxes[spec.id][3] == max(3, need), "the panel has all its rows"
        assert all(region.height >= 6 for region in regions[1:])
    elif need is not None and rows.keys() & set(spec.details) - {spec.id}:
        assert height - need < 6 or (need < 3 and height < 9), "too few rows are free"


@given(st.integers(3, 60), st.integers(3, 60), st.integers(100, 300), st.integers(16, 100))
@example(6, 6, 120, 25)
def test_left_column_keeps_the_rows_of_both_lists(ranks: int, nodes: int, width: int, height: int) -> None:
    boxes = place_panels({"ranks": ranks, "phases": nodes, "metrics": None, "log": None}, "log", width, height)
    column = boxes["ranks"][3] + boxes["phases"][3]
    assert column == boxes["metrics"][3]
    if ranks + nodes <= column:
        assert boxes["phases"][3] == nodes, "free rows of the ranks are not taken from the nodes"
    else:
        assert boxes["phases"][3] <= max(3, column // 3, column - ranks)


@pytest.mark.parametrize(("by", "cells"), [(0, 46), (4, 50), (-4, 42), (-99, LEAST_COLUMNS), (99, 120 - LEAST_COLUMNS)])
def test_panel_border_moves_up_to_the_minimum_size(by: int, cells: int) -> None:
    assert place_panels(SHOWN, "log", 120, 37, by)["ranks"][2] == cells


async def opened(app: SkywardApp, session: FakeSession, pilot: Pilot[None]) -> RunScreen:
    view = session.views[0] if session.views else session.pool("llama-ft", 12)
    await until(pilot, lambda: app.session is not None)
    app.show_pool(view.key)
    await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
    assert isinstance(app.screen, RunScreen)
    await pilot.pause()
    return app.screen


def widths(screen: RunScreen) -> tuple[int, int]:
    """Return the columns of the ranks panel and the rows of the nodes panel."""
    return screen.panels["ranks"].size.width, screen.panels["phases"].size.height


async def test_focused_panel_is_resized_by_keys(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, session, pilot)
        ranks, nodes = widths(screen)
        await press(pilot, "1", "right_parenthesis", until=lambda: widths(screen) == (ranks + 4, nodes - 2))
        await press(pilot, "z", until=lambda: screen.panels["ranks"].size.width > 100)
        await press(pilot, "z", until=lambda: widths(screen) == (ranks + 4, nodes - 2))
        await pilot.press("left_parenthesis", "left_parenthesis")
        await until(pilot, lambda: widths(screen) == (ranks - 4, nodes + 2))
        await press(pilot, "0", until=lambda: widths(screen) == (ranks, nodes))


@pytest.mark.proof("0.5 s of a processor")
async def test_dragged_border_is_restored_at_the_next_start(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, session, pilot)
        ranks, nodes = widths(screen)
        edge = screen.panels["ranks"].region
        await pilot.mouse_down(offset=(edge.right - 1, edge.y + 5))
        await pilot.hover(offset=(edge.right + 9, edge.y + 5))
        await pilot.mouse_up(offset=(edge.right + 9, edge.y + 5))
        await until(pilot, lambda: widths(screen) == (ranks + 10, nodes))
        await pilot.mouse_down(offset=(5, edge.bottom - 1))
        await pilot.hover(offset=(5, edge.bottom - 5))
        await pilot.mouse_up(offset=(5, edge.bottom - 5))
        await until(pilot, lambda: widths(screen) == (ranks + 10, nodes + 4))
        await pilot.hover(offset=(50, 3))  # let go, it stays
        assert screen.query_one(PanelGrid).moved == BorderOffsets(10, 4)
        await pilot.press("q")
        await app.save_state()
    assert dict(load_state().screens["run"])["left"] == "10"
    again = SkywardApp(lambda: session, clock=lambda: session.now)
    async with again.run_test(size=(120, 40)) as pilot:
        screen = await opened(again, session, pilot)
        await until(pilot, lambda: widths(screen) == (ranks + 10, nodes + 4))


async def test_panels_take_their_rows_and_the_log_the_rest(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await opened(app, session, pilot)
        await until(pilot, lambda: screen.panels["phases"].size.height == 2)
        before = screen.panels["log"].region.bottom
        session.end_rank(view, run, 0, summary=value({"loss": 0.1, "accuracy": 0.9}))
        await until(pilot, lambda: screen.panels["results"].size.height == 5)  # two ranks, two means, names
        assert screen.panels["log"].region.bottom == before - 7 == screen.panels["results"].region.y
        await press(pilot, "4", "right_parenthesis", until=lambda: screen.panels["results"].size.height == 7)


# A zoomed list leaves rows free, which the details of the selected row use.


def training(session: FakeSession) -> PoolView:
    view, run = session.pool_with_run("llama-ft", 4)
    logged(view, run, session)
    for rank in range(4):
        session.print(view, rank, "".join(f"rank {rank} step {step} loss={1 / (1 + step):.4f}\n" for step in range(80)))
    return view


@at_usual_sizes
@pytest.mark.parametrize("panel", ["ranks", "phases", "log", "metrics", "machines"])
async def test_zoomed_panel_of_a_running_job_fills_the_screen(
    app: SkywardApp, session: FakeSession, panel: str, size: Size
) -> None:
    view = training(session)
    view.machines = measured(session.now, 4, 8)
    async with on_run_screen(app, size, view.key) as (pilot, screen):
        await press(pilot, str(screen.panels[panel].row.number), "z", until=lambda: screen.active == panel)
        await pilot.pause()
        assert filled_share(app) >= (0.7 if size == (160, 48) else 0.45), screen_text(app)


async def test_details_follow_the_selected_rank(app: SkywardApp, session: FakeSession) -> None:
    view = training(session)
    async with on_run_screen(app, (160, 48), view.key) as (pilot, screen):
        await press(pilot, "1", "z", until=lambda: screen.panels["metrics"].region.area > 0)
        log, metrics = (screen.panels[each].region for each in ("log", "metrics"))
        assert log.y == metrics.y == screen.panels["ranks"].region.bottom and metrics.right == log.x
        await press(pilot, "down", until="5 metrics  rank 1")
        assert "2 log  rank 1" in screen_text(app) and "rank 1 step 79" in screen_text(app)
        before = screen.query_one(PanelGrid).moved
        await pilot.mouse_down(offset=(5, log.y))
        await pilot.hover(offset=(5, log.y + 9))
        await pilot.mouse_up(offset=(5, log.y + 9))
        assert screen.query_one(PanelGrid).moved == before, "only the usual layout has borders to move"
        await press(pilot, "1", "enter", until=lambda: screen.active == "log")
        await until(pilot, lambda: screen.panels["log"].region.height > 40)
        assert not screen.panels["ranks"].region.area and not screen.panels["metrics"].region.area


def heights(screen: RunScreen, *names: str) -> list[int]:
    return [screen.panels[name].region.height for name in names]


@pytest.mark.proof("0.5 s of a processor", after=2)
@pytest.mark.parametrize("size", [(60, 15), (80, 24), (99, 40), (160, 29)])
async def test_short_log_leaves_its_rows_to_the_charts(app: SkywardApp, session: FakeSession, size: Size) -> None:
    view, run = session.pool_with_run("llama-ft", 4)
    session.print(view, 0, "".join(f"epoch {number}\n" for number in range(3)))
    async with on_run_screen(app, size, view.key, until="epoch 2") as (pilot, screen):
        height = screen.query_one(PanelGrid).size.height

        def log_has(rows: int) -> bool:
            has_charts = screen.panels["metrics"].has_content and (height >= 16 or rows <= height - 6)
            rows = min(rows, height - ceil(0.45 * size[1])) if has_charts and height >= 16 else rows
            rows = rows if has_charts else height
            return heights(screen, "log", "metrics") == [rows, height - rows]

        assert log_has(height), "there are no metrics yet"
        logged(view, run, session)
        await until(pilot, lambda: log_has(5))
        assert screen.active == "log" and app.focused is screen.panels["log"].main
        session.print(view, 0, "epoch 3")  # a line without its end
        await until(pilot, lambda: log_has(6))
        await press(pilot, "slash", until=lambda: log_has(7))
        assert all(f"epoch {number}" in screen_text(app) for number in range(4))
        await press(pilot, "escape", until=lambda: log_has(6))
        session.print(view, 0, "\n" * 40 + "epoch 4\n")
        await until(pilot, lambda: log_has(height))
        await press(pilot, "ampersand", *"epoch 3", "enter", until=lambda: log_has(3))


async def test_wrapped_log_and_logs_side_by_side_have_all_rows(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 4)
    logged(view, run, session)
    session.print(view, 0, f"{'x' * 200}\n" * 3)
    async with on_run_screen(app, (80, 24), view.key) as (pilot, screen):
        await until(pilot, lambda: heights(screen, "log", "metrics") == [5, 16])
        await press(pilot, "w", until=lambda: heights(screen, "log", "metrics") == [10, 11])
        await press(pilot, "w", until=lambda: heights(screen, "log", "metrics") == [5, 16])
        await press(pilot, "v", until=lambda: heights(screen, "log", "metrics") == [10, 11])
        await press(pilot, "z", until=lambda: heights(screen, "log", "metrics") == [21, 0])


# The queue on the run screen: there while a run waits, with the reason, and a key that takes a run out.


EMPTY = "no run is queued, and no two runs share the nodes"


def waits(session: FakeSession, view: PoolView, run: str, name: str) -> None:
    opened = events.RunOpened(pool=view.name, run=run, function=name, kind="broadcast", total=4, at=session.now - 20)
    session.emit(view, opened)
    line = [events.QueuedRun(run=run, name=name, nodes=4, only=[], since=session.now - 20, who="me")]
    session.emit(view, events.QueueNews(pool=view.name, waiting=line))


async def test_queued_runs_are_shown_and_can_be_cancelled(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 4)
    run = session.open_run(view, "train", total=2)
    session.emit(view, events.RunPlaced(pool="p", run=run.id, nodes=[0, 1]))
    async with on_run_screen(app, (160, 48), view.key, until="3 nodes") as (pilot, _):
        assert "7 queue" not in screen_text(app)
        await press(pilot, "7", until=EMPTY)

        waits(session, view, "w1", "wide\x1b[2J")
        await until(pilot, "7 queue  1 waiting")
        assert "3 nodes" in screen_text(app), "it has a place of its own"
        await until(pilot, "queued: needs 4 nodes, 2 free; train (p-1) holds nodes 0-1")
        await press(pilot, "7", "G", until="▸ ◌ wide")
        await press(pilot, "C", until=lambda: isinstance(app.screen, ChoiceScreen))
        assert "(w1)? The run is queued and will not start" in screen_text(app)
        await press(pilot, "right", "enter", until=lambda: session.cancelled == [("p", "w1")])
        session.emit(view, events.QueueNews(pool="p", waiting=[]))
        session.emit(view, events.RunEnded(pool="p", run="w1", state="cancelled"))
        await until(pilot, lambda: "7 queue" not in screen_text(app))


async def test_queue_panel_opens_by_key_on_a_small_terminal(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("p", 4)
    waits(session, view, "w1", "next")
    async with on_run_screen(app, (80, 24), view.key, until="FOLLOW") as (pilot, _):
        await press(pilot, "7", until="queued: needs 4 nodes, 0 free")
        await until(pilot, "C cancel")
