"""The launch-again key, which fills the form with the request of a past run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input, Select

from skyward_core.client.launch.job_and_shell_launch import JobRequest
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_records_and_script_state import JobRecord, LaunchRecord
from skyward_core.tasks.job_file import JobFile
from skyward_core.util.safe_file_access import write_atomic
from skyward_core.views import events
from skyward_tui.app.app import SkywardApp
from skyward_tui.launch_form.form import save_preset
from skyward_tui.launch_form.recent_launches import recent_forms
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import Size, on_run_screen, press, running_app, screen_text, until
from tests.support.fake_session import FakeSession

SCRIPT = "import skyward_core as sky\n@sky.function\ndef train(epochs: int): ...\n"


@pytest.fixture
def launch(tmp_path: Path) -> LaunchRecord:
    (tmp_path / "train.py").write_text(SCRIPT)
    asked = LaunchRequest(
        script="train.py", function="train", arguments=["epochs=3"], pool="other", nodes="3", ranks_per_node=2
    )
    return LaunchRecord(request=asked, cwd=tmp_path)


async def test_past_launch_is_repeated_with_a_changed_argument(
    app: SkywardApp, session: FakeSession, launch: LaunchRecord
) -> None:
    over = session.pool("old", 3, 2)
    run = session.open_run(over)
    session.kept_launches[run.id] = launch
    session.emit(over, events.PoolEnded(pool="old", receipt={}, at=session.now))
    async with on_run_screen(app, (160, 48), over.key) as (pilot, _):
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.run is not None)
        await press(pilot, "A", until=lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        await until(pilot, "runs     train(epochs=3) on all 6")
        assert app.screen.query_one("#pool", Select).value == "", "its pool is over: a new one is made"
        await pilot.press("backspace", "5")  # the cursor is at the end of the arguments
        assert app.screen.query_one("#arguments", Input).value == "epochs=5"
        await press(pilot, "ctrl+r", until=lambda: len(session.kept_launches) == 2)
        (again,) = [each for id, each in session.kept_launches.items() if id != run.id]
        assert again.request.arguments == ("epochs=5",)
        assert (again.request.nodes, again.request.ranks_per_node) == (3, 2)
        assert not again.joined
        assert [(spec.name, spec.nodes) for spec in session.created] == [("other", 3)]


@pytest.mark.proof("1 s of a processor")
async def test_launch_again_uses_the_pool_of_the_run_if_it_is_up(
    app: SkywardApp, session: FakeSession, launch: LaunchRecord
) -> None:
    live = session.pool("old", 3, 2)
    run = session.open_run(live)
    session.kept_launches[run.id] = launch
    async with on_run_screen(app, (160, 48), live.key) as (pilot, _):
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.run is not None)
        assert "A run again" not in screen_text(app)
        session.end_run(live, run)
        await until(pilot, "\n A run again  L other  X tear down")
        await press(pilot, "A", until=lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        assert app.screen.query_one("#pool", Select).value == live.key
        await until(pilot, "train(epochs=3)")
        assert app.focused is not None and app.focused.id == "arguments"
        await press(pilot, "ctrl+r", until=lambda: len(session.kept_launches) == 2)
        assert session.created == []
        assert [each.joined for each in session.kept_launches.values()] == [False, True]


@pytest.mark.proof("1.5 s of a processor")
async def test_launch_again_repeats_options_without_a_field(
    app: SkywardApp, session: FakeSession, launch: LaunchRecord
) -> None:
    live = session.pool("old", 3, 2)
    run = session.open_run(live)
    request = replace(launch.request, timeout=90.0, debug_wait="10m", detach=True, plugins=(), function=None)
    request = replace(request, arguments=(), script_args=("--epochs", "3"), torchrun=True)
    session.kept_launches[run.id] = LaunchRecord(request=request, cwd=launch.cwd)
    async with on_run_screen(app, (160, 48), live.key) as (pilot, _):
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.run is not None)
        await press(pilot, "A", until=lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        app.screen.query_one("#pool", Select).value = ""
        await until(pilot, "90 s per rank")
        assert "a rank waits 10:00 for a debugger at a breakpoint" in screen_text(app)
        assert "sets torchrun's environment variables" in screen_text(app)
        await press(pilot, "ctrl+r", until=lambda: len(session.kept_launches) == 2)
        (again,) = [each.request for id, each in session.kept_launches.items() if id != run.id]
        assert (again.timeout, again.debug_wait, again.keep) == (90.0, "10m", True)
        assert again.torchrun and again.script_args == ("--epochs", "3")
        (noted,) = recent_forms()
        assert noted.torchrun and noted.whole


@pytest.mark.proof("1 s of a processor", after=2)
@pytest.mark.parametrize("lacks", ["record", "field", "pool"])
async def test_launch_again_names_options_the_form_does_not_support(
    app: SkywardApp, session: FakeSession, launch: LaunchRecord, lacks: str
) -> None:
    view, run = session.pool_with_run("old")
    asked = LaunchRequest(script=str(launch.cwd / "train.py"), provider="ssh" if lacks == "field" else None)
    if lacks == "field":
        asked = replace(asked, settings={"hosts": "a", "user": "me"})
    if lacks != "record":
        session.kept_launches[run.id] = LaunchRecord(request=asked, cwd=launch.cwd, joined=True)
    session.emit(view, events.PoolEnded(pool="old", receipt={}, at=session.now))
    data = {
        "record": "Run old-1 has no saved launch.",
        "field": "the form has no field for user",
        "pool": "the pool of this run no longer exists",
    }
    async with on_run_screen(app, (160, 48), view.key) as (pilot, _):
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.run is not None)
        await press(pilot, "A", until=lambda: data[lacks] in screen_text(app))
        assert isinstance(app.screen, LaunchScreen) == (lacks == "pool")


@pytest.mark.proof("1 s of a processor")
async def test_job_is_launched_again_from_its_file_with_its_variables(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.yaml").write_text("name: tuned\nenvs: {EPOCHS: 3}\nsetup: a\nrun: b\n")
    job = JobFile.from_yaml("task.yaml", env={"EPOCHS": "7"})
    view = session.pool("jobs", 1)
    run = session.open_run(view, "setup", job="j1")
    session.kept_jobs[run.id] = JobRecord.from_job(job, JobRequest.from_options(job))
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "enter", "A", until=lambda: isinstance(app.screen, LaunchScreen))
        screen = app.screen
        assert isinstance(screen, LaunchScreen)
        await until(pilot, lambda: screen.form().arguments == "EPOCHS=7")
        assert screen.form().script == "task.yaml" and screen.form().pool == view.key
        await press(pilot, "ctrl+r", until=lambda: [task.name for _, task in session.launched] == ["setup"])
        again = list(view.runs.values())[-1]
        assert session.kept_jobs[again.id].env == {"EPOCHS": "7"}
        # One that the form cannot say is refused, with the command that can.
        session.kept_jobs[run.id] = JobRecord.from_job(job, run_alone=True)
        await until(pilot, lambda: not isinstance(app.screen, LaunchScreen))
        await pilot.press("left_curly_bracket", "A")
        await until(pilot, lambda: f"skyward-tui rerun {run.id}" in " ".join(screen_text(app).split()))


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_pool_that_failed_to_start_shows_its_reason_and_opens_its_form_again(
    app: SkywardApp, session: FakeSession, launch: LaunchRecord, size: Size
) -> None:
    view = session.pool("lost", 3, state="starting", phase="requested")
    view.spec = {**view.spec, "rents": True}
    session.pool_launches[view.key] = launch
    receipt = {"start_error": "no machine {run.launch} answered"}
    session.emit(view, events.PoolEnded(pool="lost", receipt=receipt, at=session.now))
    async with running_app(app, size, until="✗ start failed") as pilot:
        assert "no machine {run" in screen_text(app)
        await press(pilot, "enter", until="(A: change the launch)")
        await until(pilot, "pool ✗ start failed")
        shown = screen_text(app)
        assert "(L: launch)" not in shown
        assert size[0] == 80 or shown.count("○ not started") >= 3
        assert not any(word in shown for word in ("requested", "starting", "◌", "$"))
        await press(pilot, "A", until=lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        assert isinstance(app.screen, LaunchScreen)
        form = app.screen.form()
        assert (form.arguments, form.nodes, form.ranks_per_node, form.name) == ("epochs=3", "3", "2", "other")


@pytest.mark.proof("0.5 s of a processor")
async def test_form_shows_and_saves_the_settings_of_the_pool_that_it_uses(
    app: SkywardApp, session: FakeSession, launch: LaunchRecord
) -> None:
    view = session.pool("up", 3, 2)
    session.pool_launches[view.key] = replace(launch, request=replace(launch.request, plugins=["torch"]))
    async with running_app(app, (160, 48), until="▶ up") as pilot:
        await press(pilot, "L", until=lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        screen = app.screen
        assert isinstance(screen, LaunchScreen)
        await until(pilot, lambda: screen.form().nodes == "3")
        form = screen.form()
        assert (form.pool, form.ranks_per_node, form.plugins, form.arguments) == (view.key, "2", ("torch",), "")
        assert screen.query_one("#nodes", Input).disabled
        file = save_preset("mine", replace(form, script="train.py", function="train", arguments="epochs=1"))
        saved = file.read_text()
        assert "nodes = 3" in saved and 'plugins = ["torch"]' in saved
        screen.query_one("#pool", Select).value = ""
        await until(pilot, lambda: screen.form().nodes == "4")
        assert screen.form().plugins == (), "a new pool has the user's own settings again"


@pytest.mark.parametrize("record", ["script", "job"])
async def test_key_runs_a_script_again_on_its_pool_after_each_edit_until_it_is_pressed_again(
    app: SkywardApp, session: FakeSession, launch: LaunchRecord, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    monkeypatch.setattr("skyward_tui.screens.run.EDIT_CHECK_SECONDS", 0.02)
    monkeypatch.setattr("skyward_core.tasks.script_functions.SETTLE_SECONDS", 0.05)
    live = session.pool("old", 3, 2)
    first = session.open_run(live)
    if record == "job":
        session.kept_jobs[first.id] = JobRecord(cwd=launch.cwd, path="task.yaml", text="run: a")
    else:
        session.kept_launches[first.id] = launch
    script = launch.cwd / "train.py"
    async with on_run_screen(app, (160, 48), live.key) as (pilot, _):
        screen = app.screen
        await until(pilot, lambda: isinstance(screen, RunScreen) and screen.run is first)
        await press(pilot, "semicolon", until="train.py changes" if record == "script" else "not a script")
        if record == "job":
            assert "edits of the script no longer start a run: " in screen_text(app)
            await until(pilot, lambda: "reruns on change" not in screen_text(app))
            return
        await until(pilot, "reruns on change")
        write_atomic(script, f"{SCRIPT}# edited\n".encode())
        await until(pilot, lambda: session.cancelled == [("old", first.id)] and first.id in session.runs_ended)
        assert session.launched == [], "it waits for the end of the cancelled run"
        session.runs_ended[first.id].set_result(first)
        await until(pilot, lambda: len(session.launched) == 1)
        await until(pilot, lambda: isinstance(screen, RunScreen) and screen.run not in (first, None))
        assert session.created == []
        second = list(live.runs.values())[-1]
        await until(pilot, lambda: second.id in session.kept_launches)
        again = session.kept_launches[second.id]
        assert (again.request.arguments, again.joined) == (("epochs=3",), True)
        session.end_run(live, second)
        write_atomic(script, b"def")
        await until(pilot, "Correct the script")
        assert "reruns on change" in screen_text(app)
        write_atomic(script, f"{SCRIPT}# corrected\n".encode())
        await until(pilot, lambda: len(session.launched) == 2)
        assert session.cancelled == [("old", first.id)], "the second run had ended"
        await press(pilot, "semicolon", until="edits of the script no longer start a run")
        await until(pilot, lambda: "reruns on change" not in screen_text(app))
        await until(pilot, lambda: not any(worker.group == "on-change" for worker in app.workers))


async def test_edits_start_no_run_after_the_pool_has_ended_or_the_screen_was_left(
    app: SkywardApp, session: FakeSession, launch: LaunchRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_tui.screens.run.EDIT_CHECK_SECONDS", 0.02)
    live = session.pool("old", 3, 2)
    run = session.open_run(live)
    session.kept_launches[run.id] = launch
    async with on_run_screen(app, (160, 48), live.key) as (pilot, _):
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.run is run)
        await press(pilot, "semicolon", until="reruns on change")
        await press(pilot, "q", until=lambda: not app.rerunning_pools)
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        await press(pilot, "semicolon", until="reruns on change")
        session.end_run(live, run)
        session.emit(live, events.PoolEnded(pool="old", receipt={}, at=session.now))
        await until(pilot, lambda: not app.rerunning_pools)
        await press(pilot, "semicolon", until="nothing to run again")
