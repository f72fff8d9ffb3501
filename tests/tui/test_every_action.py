"""Every registered action has a test that presses its key; this file tests the remaining ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import OptionList

from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.help_and_focus_jump import HelpScreen
from skyward_tui.dialogs.pickers import FilesScreen
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.ui.actions import ACTIONS, SCOPES
from skyward_tui.widgets.form_fields import Toggles
from tests.support.app_driver import focus_in_section, press, running_app, screen_text
from tests.support.fake_session import FakeSession

HERE = Path(__file__).parent
# The files in which the actions of a scope are tried for what they do.
TRIED_IN = {
    "app": ("test_app", "test_jump_and_crumbs", "test_pools_screen", "test_terminal"),
    "replay": ("test_replay",),
    "pools": ("test_pools_screen", "test_history", "test_hosts", "test_settings_screen", "test_budget_and_leftovers",
              "test_demo"),
    "history": ("test_history",),
    "compare": ("test_history",),
    "leftovers": ("test_budget_and_leftovers", "test_snapshots"),
    "hosts": ("test_hosts",),
    "settings": ("test_settings_screen",),
    "launch": (
        "test_launch_screen", "test_launch_project", "test_launching", "test_presets",
        "test_plan_panel",
    ),
    "run": (
        "test_run_screen", "test_run_logs", "test_panels", "test_results_panel", "test_trials", "test_stacks_screen",
        "test_machines", "test_metrics_panel", "test_teardown", "test_launch_again", "test_kept_screens",
        "test_ranks_and_nodes",
    ),
    "panel": ("test_run_screen", "test_metrics_panel", "test_machines", "test_trials"),
    "metrics": ("test_metrics_panel",),
    "log": ("test_log_pane", "test_run_screen", "test_run_logs"),
    "errors": ("test_run_screen", "test_run_logs", "test_failed_runs"),
    "stacks": ("test_stacks_screen",),
    "files": ("test_launch_screen", "test_launch_project", "test_presets"),
    "presets": ("test_presets",),
    "choice": ("test_launch_screen", "test_launch_project", "test_launching"),
    "toggles": ("test_launch_screen", "test_launching"),
    "fold": ("test_plugin_fields",),
    "dialog": ("test_keys", "test_jump_and_crumbs"),
    "help": ("test_app",),
    "teardown": ("test_pools_screen", "test_teardown"),
    "jump": ("test_jump_and_crumbs",),
    "hostkey": ("test_host_keys", "test_keys"),
}  # fmt: skip


def literals(node: ast.AST) -> Iterator[str]:
    return (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))


def pressed(file: Path) -> Iterator[str]:
    """Return the keys that tests in a file press, as far as they are literals."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called == "press":
                for argument in node.args:
                    for text in literals(argument):
                        yield from text if isinstance(argument, ast.Starred) else [text]
            elif called == "show" or (called == "parametrize" and "key" in next(literals(node), "")):
                yield from literals(node)
        elif isinstance(node, ast.For) and any(
            isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "press" for each in ast.walk(node)
        ):
            yield from literals(node.iter)


def test_every_action_has_a_test_that_presses_its_key() -> None:
    assert set(TRIED_IN) == set(SCOPES)
    untried = []
    for scope, files in TRIED_IN.items():
        keys = {key for name in (*files, "test_every_action") for key in pressed(HERE / f"{name}.py")}
        keys |= {f"ctrl+{chr(ord(key) + 96)}" for key in keys if "\x01" <= key <= "\x1a"}  # as terminals send them
        for action in ACTIONS:
            if action.scope == scope and not keys & {*action.keys.split(","), *action.shown_keys()}:
                untried.append(action.id)
    assert not untried, "no test presses their keys in the files that TRIED_IN names"


@pytest.mark.proof("1.5 s of a processor")
async def test_page_keys_scroll_log_and_ranks_and_launch_again_opens_the_form(
    app: SkywardApp, session: FakeSession
) -> None:
    view, _ = session.pool_with_run("llama-ft", 32, 8)
    session.print(view, 0, "".join(f"line {number} {'x' * 200}\n" for number in range(200)))
    async with running_app(app, (120, 40), until="▶ llama-ft") as pilot:
        await press(pilot, "enter", "2", until="line 199")
        screen = app.screen
        assert isinstance(screen, RunScreen)

        def top() -> int:
            return int(screen_text(app).partition("│line ")[2].split()[0])

        await press(pilot, "home", until=lambda: top() == 0)
        await press(pilot, "pagedown", until=lambda: top() > 0)
        page = top()
        await press(pilot, "ctrl+d", until=lambda: page < top() < 2 * page)
        await press(pilot, "ctrl+u", until=lambda: top() == page)
        await press(pilot, "1", until=lambda: app.focused is not None and app.focused.id == "ranks")
        await press(pilot, "home", "pagedown", until=lambda: screen.rank > 0)
        there = screen.rank
        await press(pilot, "pageup", until=lambda: screen.rank < there)
        await press(pilot, "L", until=lambda: isinstance(app.screen, LaunchScreen) and "llama-ft" in screen_text(app))


@pytest.mark.proof("2 s of a processor")
async def test_help_and_pickers_scroll_and_focus_moves_through_toggles(app: SkywardApp, session: FakeSession) -> None:
    for name in ("a.py", "b.py"):
        Path(name).write_text("import skyward_core as sky\n\n@sky.function\ndef train(): ...\n")
    async with running_app(app, (100, 30), until="No pools yet") as pilot:
        await press(pilot, "?", until=lambda: isinstance(app.screen, HelpScreen))
        assert isinstance(app.screen, HelpScreen)
        box = app.screen.box
        await press(pilot, "j", "j", until=lambda: box.scroll_y == 2)
        await press(pilot, "k", until=lambda: box.scroll_y == 1)
        await press(pilot, "escape", "n", until=lambda: isinstance(app.screen, LaunchScreen))
        form = app.screen
        await press(pilot, "ctrl+o", until=lambda: isinstance(app.screen, FilesScreen) and "b.py" in screen_text(app))
        listed = app.screen.query_one(OptionList)
        at = listed.highlighted
        await press(pilot, "down", until=lambda: listed.highlighted != at)
        await press(pilot, "up", until=lambda: listed.highlighted == at)
        await press(pilot, "escape", until=lambda: app.screen is form)
        boxes = form.query_one("#plugins", Toggles)
        await focus_in_section(pilot, form, "plugin-section", "plugins")
        await press(pilot, "right", "left", "space", until=lambda: boxes.chosen == {boxes.options[0][0]})
