"""Job files in the launch form: plan, variables, secrets and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, OptionList

from skyward_core.model.errors import PoolError
from skyward_core.store.old_pool_environment_and_clone_pruning import TASKS_FOLDER
from skyward_core.store.state_folder import state_home
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.host_key_and_secret_variables import SecretsScreen
from skyward_tui.launch_form.form import Form
from skyward_tui.launch_form.recent_launches import add_recent
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.widgets.source_view import highlight_python
from tests.support.app_driver import Size, focus_in_section, on_launch_form, press, screen_text, typed, until
from tests.support.fake_session import FakeSession
from tests.support.past import past_run

JOB = """
name: tuned
num_nodes: 2
resources: {accelerators: A100:8}
envs: {EPOCHS: 3, WHERE: here}
secrets:
  HF_TOKEN:
setup: |
  echo one
  echo two
run: echo $EPOCHS
"""
TOKEN = "hf_" + "NobodyMayRead"


async def form_with(app: SkywardApp, pilot: Any, path: Path) -> LaunchScreen:
    await until(pilot, lambda: app.session is not None)
    app.show_launch()
    await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
    screen = app.screen
    assert isinstance(screen, LaunchScreen)
    screen.query_one("#script", Input).value = str(path)
    return screen


async def test_job_file_is_launched_from_the_form(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    path = tmp_path / "task.yaml"
    path.write_text(JOB)
    session.auto = True
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await form_with(app, pilot, path)
        await until(pilot, "the app asks for HF_TOKEN at the launch")
        shown = screen_text(app)
        assert "A100" in shown and "2 lines, on all nodes" in shown and "1 line, on 2 nodes" in shown
        assert "EPOCHS" in shown and "WHERE" in shown
        assert screen.query_one("#nodes").disabled and not screen.query_one("#provider").disabled
        screen.query_one("#arguments", Input).value = "EPOCHS=9"
        assert not screen.query_one("#restarts").disabled
        screen.query_one("#error_restarts", Input).value = "2"
        await until(pilot, "up to 3 after lost ranks")
        await press(pilot, "ctrl+r", until=lambda: isinstance(app.screen, SecretsScreen))
        app.screen.query_one("#secret-0", Input).value = TOKEN
        assert TOKEN not in (planned := screen_text(app))
        await press(pilot, "enter", until=lambda: [task.name for _, task in session.launched] == ["setup"])
        (spec,) = session.created
        assert (spec.name, spec.most_nodes) == ("tuned", 2) or spec.most_nodes == 2
        assert f"pool {spec.name}:" in planned, "the plan names the pool as it will be called"
        assert spec.options.secrets == (TOKEN,) and spec.options.error_restarts == 2
        view = session.views[-1]
        run = next(iter(view.runs.values()))
        session.end_run(view, run)
        await until(pilot, lambda: [task.name for _, task in session.launched] == ["setup", "tuned"])
        assert len({run.job for run in view.runs.values()}) == 1 and run.job, "steps of one job"
        assert all(TOKEN not in str(form) for form in (app.unlaunched, screen_text(app)))


@pytest.mark.proof("1 s of a processor")
async def test_job_without_run_commands_reports_that_nothing_ran(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("name: bare\nnum_nodes: 2\n")
    session.auto = True
    async with app.run_test(size=(160, 48)) as pilot:
        await form_with(app, pilot, path)
        await until(pilot, "nothing: the file has no run commands")
        await press(pilot, "ctrl+r", until="job bare has no run command: nothing was run")
        assert len(session.created) == 1 and not session.launched


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("where", ["create", "launch"])
async def test_refused_job_leaves_neither_pool_nor_files(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("name: short\nrun: 'true'\n")

    def refuse(*args: Any, **options: Any) -> Any:
        assert list((state_home() / TASKS_FOLDER).iterdir())
        raise PoolError("this is refused")

    monkeypatch.setattr(session, where, refuse)
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await form_with(app, pilot, path)
        await until(pilot, "1 line, on 1 node")
        await focus_in_section(
            pilot, screen, "more-section", "options"
        )  # whether the pool is kept is the first of them
        await press(pilot, "space", "ctrl+r", until="this is refused")
        if where == "launch":
            await until(pilot, " torn down: created 1")
            assert "✗ this is refused; short-" in screen_text(app)
        assert not list((state_home() / TASKS_FOLDER).iterdir())


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(
    "text, message",
    [
        ("run: a\nnodes: 2\n", "task.yaml, line 2: unknown key 'nodes'. Did you mean num_nodes?"),
        ("run: [\n", "line 2"),
        ("envs: {A: null}\nrun: a\n", "A has no value: enter one in its field"),
    ],
)
async def test_invalid_job_file_is_reported_with_its_line(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("task.yaml")
    path.write_text(text)
    async with app.run_test(size=(160, 48)) as pilot:
        await form_with(app, pilot, path)
        await until(pilot, lambda: message in screen_text(app))
        await press(pilot, "ctrl+r", until=lambda: message in screen_text(app))
        assert not session.created


# What the launch form shows in room that its fields leave: the code, and how runs of it went before.


SCRIPT = '''\
import skyward_core as sky


@sky.function
def train(epochs: int = 3) -> float:
    """Train."""
    return 0.25 * epochs  # a secret of this function
'''


@pytest.mark.proof("2 s of a processor")
async def test_launch_form_shows_code_and_past_runs_in_free_space(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    session.past = [
        past_run(1, arguments=("epochs=7",)),
        past_run(2, function="other", arguments=("epochs=8",)),
        past_run(3, script="another.py", arguments=("epochs=9",)),
        past_run(4, state="failed", error="r3 OSError: disk full"),
    ]
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "n", until=lambda: app.focused is not None and app.focused.id == "script")
        await until(pilot, "another.py  epochs=9")
        lines = screen_text(app).splitlines()
        first = next(place for place, line in enumerate(lines) if "previous runs" in line) + 1
        assert all(" ago  " in line for line in lines[first : first + 4]), "no row is wrapped"
        assert "train.py  epochs=7" in lines[first] and "train.py  r3 OSError: disk…" in lines[first + 3]
        await typed(app, pilot, "train.py", until="a secret of this function")
        await until(pilot, lambda: "epochs=7" in screen_text(app) and "another.py" not in screen_text(app))
        shown = screen_text(app)
        assert "train.py:5" in shown and "disk full" in shown
        assert "epochs=8" not in shown and "epochs=9" not in shown
        await until(pilot, lambda: not app.screen.query_one("#form").show_vertical_scrollbar)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "a secret of this function" not in screen_text(app))
        await pilot.resize_terminal(160, 48)
        await until(pilot, "a secret of this function")
        await typed(app, pilot, "x", until=lambda: "a secret of this function" not in screen_text(app))


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 48)])
async def test_launch_form_without_script_offers_recent_launches_and_examples(
    app: SkywardApp, tmp_path: Path, size: Size
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for epochs in (1, 2):
        add_recent(Form(script=str(tmp_path / "train.py"), function="train", arguments=f"epochs={epochs}", nodes="7"))
    async with on_launch_form(app, size, "", until="train.py:train  epochs=2") as (pilot, screen):
        await press(pilot, "up", until=lambda: isinstance(app.focused, OptionList))  # from the script's field
        await pilot.press("down", "enter")
        await until(pilot, lambda: screen.form().script == "train.py" and not screen.query("#starts"))
        assert (screen.form().arguments, screen.form().nodes) == ("epochs=1", "7")
        assert app.focused is not None and app.focused.id == "arguments"
        await pilot.press("shift+tab", "shift+tab", "shift+tab", "ctrl+u")
        await until(pilot, lambda: screen.form().script == "" and "recent launches" in screen_text(app))


@pytest.mark.proof("1 s of a processor")
async def test_launch_suggestion_is_clicked_and_stays_visible(app: SkywardApp, tmp_path: Path) -> None:
    async with on_launch_form(app, (120, 40), "", until="packaged examples") as (pilot, screen):
        text = screen_text(app).replace("recent launches and examples", "")
        assert "recent launches" not in text, "there are none, so the list has no such heading"
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "╭─ recent launches and examples" in screen_text(app))
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: bool(screen.query("#form #starts")) and "  hello " in screen_text(app))
        rows = screen_text(app).splitlines()
        place = next(y for y, row in enumerate(rows) if "  hello " in row)
        await pilot.click(offset=(8, place))
        await until(pilot, lambda: screen.form().script == "example:hello" and not screen.query("#starts"))


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("size", [(60, 15), (80, 24)])
async def test_small_launch_form_shows_examples_until_it_has_a_script(app: SkywardApp, size: Size) -> None:
    async with on_launch_form(app, size, "", until="packaged examples") as (pilot, screen):
        for example in ("broken", "ddp", "finetune"):
            await until(pilot, f"│   {example} ")
        assert "╭─ plan" not in screen_text(app), "there is no plan without a script"
        await press(pilot, "up", "down", "enter", until=lambda: screen.form().script == "example:ddp")
        await until(pilot, "│ creates  pool ddp: 4 local nodes")
        assert "packaged examples" not in screen_text(app)


@pytest.mark.proof("1.5 s of a processor")
async def test_enlarged_launch_form_never_shows_the_examples_beside_the_form(
    app: SkywardApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_launch_form(app, (60, 15), "", until="packaged examples") as (pilot, screen):
        with monkeypatch.context() as patch:
            patch.setattr(screen, "_review", lambda: None)  # the list stays in its place until the form is reviewed
            await pilot.resize_terminal(120, 40)
            await until(pilot, "╭─ plan")
            assert "packaged examples" not in screen_text(app)
        screen.on_resize()
        await until(pilot, "packaged examples")
        assert screen.query("#form #starts")


def test_python_code_is_highlighted_despite_syntax_errors() -> None:
    lines = list(highlight_python(SCRIPT + "x = (\n\x1b[31m"))
    styles = {(line.plain[span.start : span.end], span.style) for line in lines for span in line.spans}
    assert ("def", "$text-accent") in styles and ("train", "bold") in styles
    assert ('"""Train."""', "$muted") in styles and ("# a secret of this function", "$muted") in styles
    assert [line.plain for line in lines[:7]] == SCRIPT.splitlines()
    assert not any("\x1b" in line.plain for line in lines), "a file is no terminal"
