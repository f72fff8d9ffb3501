"""The panels of the run screen: a row of a table and a file each, and nobody else knows one by name."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

import skyward_tui
from skyward_tui.panels.panel import RunPanel
from skyward_tui.screens.run import RunScreen
from skyward_tui.ui.actions import ACTIONS
from skyward_tui.ui.panel_table import HOME_PANEL, PANELS, STARTUP_PANEL, PanelSpec

ROOT = Path(skyward_tui.__file__).parent
NAMES = {name for row in PANELS for name in (row.id, row.title)}


def words_of(source: str) -> Iterator[str]:
    """The words of all names in a module, and those strings that may be the name of a panel."""
    for node in ast.walk(ast.parse(source)):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(name := getattr(node, field, None), str):
                yield from (word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^[#.]?(?:panel-|run\.|-)?(\w+)$", node.value)


def test_the_run_screen_knows_no_panel_by_name() -> None:
    source = inspect.getsource(RunScreen)
    assert not NAMES & set(words_of(source))
    for named in (
        'self.query_one("#panel-log")',
        "LogPanel()",
        "self.log_panel",
        "from ..panels import node_phases",
    ):
        assert NAMES & set(words_of(named)), "the test sees nothing"


def test_each_panel_has_a_file_of_its_own() -> None:
    modules = [row.made_by.partition(":")[0] for row in PANELS]
    assert len(set(modules)) == len(modules) and all(each.startswith("skyward_tui.panels.") for each in modules)
    for row in PANELS:
        assert issubclass(resolve_name(row.made_by), RunPanel), row.id


def test_rows_name_what_there_is() -> None:
    ids, actions = {row.id for row in PANELS}, {action.id for action in ACTIONS}
    assert {HOME_PANEL, STARTUP_PANEL} <= ids and len(ids) == len({row.number for row in PANELS}) == len(PANELS)
    for row in PANELS:
        assert 1 <= row.number <= 9 and row.title and row.help
        assert {*row.hints, *row.actions} <= actions, row.id
        assert {action.id for action in ACTIONS if not action.label}.isdisjoint(row.hints), row.id
        assert row.instead_of in {"", *ids} and (row.empty or not row.hides), row.id


def test_what_an_empty_panel_says_fits_a_small_screen() -> None:
    assert {row.id for row in PANELS if len(row.empty) > 78} == set()


@pytest.mark.parametrize("row", PANELS, ids=lambda row: row.id)
def test_no_panel_knows_another(row: PanelSpec) -> None:
    module = row.made_by.partition(":")[0]
    others = {other.made_by.partition(":")[0].rpartition(".")[2] for other in PANELS} - {module.rpartition(".")[2]}
    tree = ast.parse((ROOT.parent / f"{module.replace('.', '/')}.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            assert node.module not in others and not others & {alias.name for alias in node.names}


def test_a_sixth_panel_is_a_file_and_a_row(tmp_path: Path) -> None:
    env = {**os.environ, "SKYWARD_HOME": str(tmp_path / "home")}
    for name in ("SSH_CONNECTION", "TMUX", "STY", "NO_COLOR"):
        env.pop(name, None)
    child = subprocess.run(
        [sys.executable, "-m", "tests.tui.sixth_panel"],
        capture_output=True,
        text=True,
        cwd=ROOT.parent,
        env=env,
        timeout=60,
    )
    assert child.returncode == 0, child.stderr
