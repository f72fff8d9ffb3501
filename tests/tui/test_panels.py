"""Panels of the run screen: their table, the borders between them, and the queue."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
from textual.css.scalar import Scalar
from textual.pilot import Pilot

import skyward_tui
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.basic_dialogs import ChoiceScreen
from skyward_tui.panels.panel import RunPanel
from skyward_tui.screens.run import LEAST_COLUMNS, BorderOffsets, PanelGrid, RunScreen, resize_tracks
from skyward_tui.ui.actions import ACTIONS
from skyward_tui.ui.panel_registry import HOME_PANEL, PANELS, STARTUP_PANEL, PanelSpec
from skyward_tui.ui.saved_state import load_state
from tests.support.app_driver import on_run_screen, press, screen_text, until
from tests.support.fake_session import FakeSession, value
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
        assert row.instead_of in {"", *ids} and (row.empty or not row.hides), row.id


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


# The borders between panels can be moved: by keys, by the mouse, and they stay where they were left.


def scalars(*texts: str) -> tuple[Scalar, ...]:
    return tuple(Scalar.parse(text) for text in texts)


@pytest.mark.parametrize(("by", "cells"), [(0, 46), (4, 50), (-4, 42), (-99, LEAST_COLUMNS), (99, 100 - LEAST_COLUMNS)])
def test_panel_border_moves_up_to_the_minimum_size(by: int, cells: int) -> None:
    found = resize_tracks(scalars("46", "1fr"), 0, by, 100, LEAST_COLUMNS)
    assert [(each.value, str(each.unit)) for each in found] == [
        (each.value, str(each.unit)) for each in scalars(f"{cells}", "1fr")
    ]


def test_single_panel_keeps_its_size() -> None:
    assert resize_tracks(scalars("1fr"), 0, 5, 100, 4) == scalars("1fr")
    assert resize_tracks(scalars("1fr"), 1, 5, 100, 4) == scalars("1fr")


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
        await press(pilot, "B", until=lambda: widths(screen) == (ranks, nodes))


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
        before = screen.panels["log"].size.height
        session.end_rank(view, run, 0, summary=value({"loss": 0.1, "accuracy": 0.9}))
        await until(pilot, lambda: screen.panels["results"].size.height == 5)  # two ranks, two means, names
        assert screen.panels["log"].size.height == before - 3
        await press(pilot, "4", "right_parenthesis", until=lambda: screen.panels["results"].size.height == 7)


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


async def test_panels_of_one_place_are_shown_alternately(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("p", 4)
    waits(session, view, "w1", "next")
    async with on_run_screen(app, (120, 40), view.key, until="7 queue") as (pilot, _):
        assert "3 nodes" not in screen_text(app)
        await press(pilot, "3", until=lambda: "3 nodes" in screen_text(app) and "7 queue" not in screen_text(app))
