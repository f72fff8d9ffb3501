"""The launch form with real projects: whole scripts, package files and outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input, Select, Static

from skyward_core.client.launch.launch_plan import LaunchPlan
from skyward_core.node.bootstrap import host_inspection
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.pickers import AcceleratorsScreen
from skyward_tui.launch_form.form import Form, package_choices, plan_launch
from skyward_tui.launch_form.recent_launches import add_recent, recent_forms
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.widgets.form_fields import Toggles
from tests.support.app_driver import Size, Snap, at_usual_sizes, on_launch_form, press, screen_text, typed, until
from tests.support.fake_session import FakeSession
from tests.support.launch_script import SCRIPT

SIZE = (120, 40)
FUNCTION = "import skyward_core as sky\n\n@sky.function\ndef train(epochs: int = 1): ...\n"
WHOLE = "import argparse\nimport torch\n"
BLOCK = '# /// script\n# dependencies = ["rich"]\n# ///\n'
FILES = {
    "uv.lock": 'version = 1\nrequires-python = ">=3.11"\n',
    "pylock.toml": 'lock-version = "1.0"\ncreated-by = "me"\npackages = []\n',
    "requirements.txt": "rich>=13\n",
    "pyproject.toml": '[project]\nname = "it"\nversion = "1"\ndependencies = ["rich", "click"]\n',
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(FUNCTION)
    (tmp_path / "plain.py").write_text(WHOLE)
    return tmp_path


def plan_text(screen: LaunchScreen) -> str:
    return " ".join(screen.query_one("#why", Static).visual.plain.split())  # type: ignore[attr-defined]


# -- whole scripts ---------------------------------------------------------------------------------------


async def test_script_without_functions_is_launched_as_a_whole(
    app: SkywardApp, session: FakeSession, project: Path
) -> None:
    async with on_launch_form(app, SIZE, "plain.py", until="the whole script") as (pilot, screen):
        assert not screen.query_one("#plugins", Toggles).chosen, "it finds what torchrun would give it"
        await until(pilot, lambda: "runs python plain.py on all 4 ranks" in plan_text(screen))
        assert "train separately" not in plan_text(screen)
        await pilot.press("tab", "tab", "tab")
        await typed(app, pilot, "--name 'a b", until="✗ No closing quotation")
        assert screen.query_one("#arguments").has_class("-wrong")
        await typed(app, pilot, "' -- 3")
        await until(pilot, lambda: "runs python plain.py --name 'a b' -- 3 on all 4 ranks" in plan_text(screen))
        assert not screen.query_one("#arguments").has_class("-wrong")
        assert "--keep -- --name 'a b' -- 3" in plan_text(screen)
        await press(pilot, "ctrl+r", until=lambda: bool(session.launched))
        ((_, task),) = session.launched
        assert task.name == "plain.py"
    (form,) = recent_forms()
    assert (form.whole, form.function, form.arguments) == (True, "", "--name 'a b' -- 3")


@pytest.mark.proof("1.5 s of a processor", after=1)
@pytest.mark.parametrize(("plugins", "expected"), [((), {"torch"}), (("jax",), {"jax"})], ids=["detected", "chosen"])
async def test_restored_draft_detects_plugins_unless_the_user_chose_others(
    app: SkywardApp, project: Path, plugins: tuple[str, ...], expected: set[str]
) -> None:
    (project / "plugged.py").write_text(FUNCTION + "import torch\n")
    app.unlaunched = Form(script="train.py", function="train", plugins=plugins)
    async with on_launch_form(app, SIZE, "") as (pilot, screen):
        boxes = screen.query_one("#plugins", Toggles)
        await until(pilot, lambda: screen.form().script == "train.py" and boxes.chosen == set(plugins))
        screen.query_one("#script", Input).value = "plugged.py"
        await until(pilot, lambda: "skyward-tui run plugged.py" in plan_text(screen))
        assert boxes.chosen == expected


@pytest.mark.proof("1 s of a processor")
async def test_script_with_functions_can_be_launched_as_a_whole(app: SkywardApp, project: Path) -> None:
    (project / "train.py").write_text(FUNCTION + "import torch\n")
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        await until(pilot, lambda: "runs train() on all 4 ranks" in plan_text(screen))
        assert screen.query_one("#plugins", Toggles).chosen == {"torch"}
        await pilot.press("tab", "enter", "down", "enter")
        await until(pilot, lambda: "runs python train.py on all 4 ranks" in plan_text(screen))
        assert screen.form().whole and not screen.query_one("#plugins", Toggles).chosen
        assert screen.query_one("#arguments", Input).placeholder.startswith("the script's arguments")
        screen.query_one("#script", Input).value = "gone.py"
        await until(pilot, "does not exist")
        assert not screen.form().whole


@pytest.mark.proof("1 s of a processor")
async def test_recent_launch_of_a_whole_script_restores_its_arguments(app: SkywardApp, project: Path) -> None:
    add_recent(Form(script="train.py", function="train", arguments="epochs=2"))
    add_recent(Form(script="train.py", whole=True, arguments="--epochs 3", packages="lock uv.lock", outputs="a,b"))
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        await until(pilot, lambda: screen.form().arguments == "epochs=2")  # those of a function, as it is one
        await press(pilot, "ctrl+o", until="train.py  --epochs 3")
        await press(pilot, "enter", until=lambda: screen.form().whole)
        form = screen.form()
        assert (form.arguments, form.packages, form.outputs) == ("--epochs 3", f"lock {project}/uv.lock", "a,b")


def test_launch_plan_without_function_matches_the_run_command(project: Path) -> None:
    plan = plan_launch(Form(script="plain.py", arguments="--x"), ())
    assert plan.whole and plan.values["args"] == ["--x"]
    assert plan_launch(Form(script="train.py"), ()).function.name == "train"


# -- packages --------------------------------------------------------------------------------------------


def test_package_choices_are_the_files_of_the_project(project: Path) -> None:
    script = project / "train.py"
    everything = [
        ("none", ""),
        ("uv.lock", "lock uv.lock"),
        ("pylock.toml", "lock pylock.toml"),
        ("requirements.txt", "requirements requirements.txt"),
        ("pyproject.toml", "project"),
    ]
    assert package_choices(script, "") == everything
    script.write_text(BLOCK + FUNCTION)
    assert package_choices(script, "")[0] == ("inline metadata", "")
    for name in FILES:
        (project / name).unlink()
    assert package_choices(script, "") == [("inline metadata", "")]
    script.write_text(FUNCTION)
    assert package_choices(script, "") == [("none", "")]
    assert package_choices(None, "") == [("none", "")]
    assert package_choices(script, "lock uv.lock") == [("none", ""), ("uv.lock", "lock uv.lock")]


def test_package_files_are_found_up_to_the_project_root(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = project / "app" / "jobs"
    inner.mkdir(parents=True)
    (inner / "train.py").write_text(FUNCTION)
    assert ("uv.lock", "lock uv.lock") in package_choices(inner / "train.py", "")
    (inner / "uv.lock").write_text(FILES["uv.lock"])  # the nearest
    assert ("uv.lock", "lock app/jobs/uv.lock") in package_choices(inner / "train.py", "")
    (project / "app" / ".git").mkdir()  # another project
    assert [label for label, _ in package_choices(inner / "train.py", "")][1:] == ["uv.lock", "pyproject.toml"]
    (project / "pyproject.toml").write_text("[tool.ruff]\n")  # of no project
    assert [label for label, _ in package_choices(inner / "train.py", "")][1:] == ["uv.lock"]


def test_package_files_writable_by_others_are_not_offered(project: Path) -> None:
    shared = project / "shared"
    (shared / "mine").mkdir(parents=True)
    script = shared / "mine" / "train.py"
    script.write_text(FUNCTION)
    (project / "uv.lock").rename(shared / "uv.lock")
    assert ("uv.lock", "lock shared/uv.lock") in package_choices(script, "")
    shared.chmod(0o777)
    assert host_inspection.distrust_reason(str(shared / "uv.lock"))
    assert "uv.lock" not in [label for label, _ in package_choices(script, "")]


@pytest.mark.proof("1 s of a processor")
async def test_default_package_file_is_shown(app: SkywardApp, project: Path) -> None:
    (project / "block.py").write_text(BLOCK + FUNCTION)
    async with on_launch_form(app, SIZE, "block.py", until="packages: inline metadata") as (pilot, screen):
        await until(pilot, lambda: "(inline metadata of block.py)" in plan_text(screen))
        for name in FILES:
            (project / name).unlink()
        screen.query_one("#script", Input).value = "train.py"
        await until(pilot, "packages: none")


@pytest.mark.proof("0.5 s of a processor")
async def test_chosen_packages_are_named_in_the_plan(app: SkywardApp, project: Path) -> None:
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        choice = screen.query_one("#packages", Select)
        await until(pilot, "none")
        choice.focus()
        await press(pilot, "enter", "end", "enter", until=lambda: "packages 2 of pyproject.toml" in plan_text(screen))
        assert "--project" in plan_text(screen)
        await pilot.press("enter", "up", "enter")
        await until(
            pilot, lambda: "packages1of" + str(project / "requirements.txt") in plan_text(screen).replace(" ", "")
        )
        assert "--requirements requirements.txt" in plan_text(screen)
        (project / "requirements.txt").unlink()
        screen.query_one("#arguments", Input).value = "epochs=2"
        await until(pilot, "does not exist")
        assert choice.has_class("-wrong")
        await press(pilot, "ctrl+r", until=lambda: app.focused is choice)
        screen.query_one("#script", Input).value = "plain.py"  # of the same project, which has it no more
        await until(pilot, lambda: "runs python plain.py" in plan_text(screen))
        assert choice.value == "" and "--requirements" not in plan_text(screen)


# -- outputs ---------------------------------------------------------------------------------------------


@pytest.mark.proof("1 s of a processor")
async def test_outputs_are_validated_while_typed(app: SkywardApp, project: Path) -> None:
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        await until(pilot, lambda: "runs train()" in plan_text(screen))
        field = screen.query_one("#outputs", Input)
        field.focus()
        await typed(app, pilot, "out/**, ../x", until="✗ '../x' leads out of the working folder")
        assert field.has_class("-wrong")
        await press(pilot, "ctrl+r", until=lambda: app.focused is field)
        field.value = "out/**, *.pt 'a b'"
        await until(pilot, lambda: "nothing to download" in plan_text(screen))  # on this machine
        assert "--outputs 'out/**' --outputs '*.pt' --outputs 'a b'" in plan_text(screen)
        screen.query_one("#provider", Select).value = "ssh"
        await until(pilot, lambda: bool(screen.query_one("#hosts-row").display))
        screen.query_one("#hosts", Input).value = "gpu1"
        await until(pilot, lambda: "saves out/** *.pt a b to outputs/RUN" in plan_text(screen))


@pytest.mark.proof("1 s of a processor")
async def test_plan_warns_about_files_lost_with_the_machines(
    app: SkywardApp, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LaunchPlan, "file_loss_warning", "files of the ranks are lost")
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        await until(pilot, lambda: "note files of the ranks are lost" in plan_text(screen))


@pytest.mark.proof("1 s of a processor")
async def test_fields_that_a_running_pool_determines_block_no_launch(
    app: SkywardApp, session: FakeSession, project: Path
) -> None:
    """Disabled fields are not validated."""
    warm = session.pool("warm", 2)
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#outputs", Input).value = "'unfinished"
        await until(pilot, "No closing quotation")
        screen.query_one("#pool", Select).value = warm.key
        await until(pilot, lambda: "uses pool warm" in plan_text(screen))
        assert screen.query_one("#outputs").disabled and screen.query_one("#packages").disabled


# -- pictures --------------------------------------------------------------------------------------------


@at_usual_sizes
@pytest.mark.proof("1 s of a processor")
@pytest.mark.usefixtures("in_a_home_folder")
async def test_whole_script_launch_snapshot(app: SkywardApp, project: Path, snap: Snap, size: Size) -> None:
    for name in ("uv.lock", "pylock.toml", "pyproject.toml"):
        (project / name).unlink()
    async with on_launch_form(app, size, "plain.py", until="the whole script") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "--epochs 3"
        screen.query_one("#outputs", Input).value = "out/** ../x"
        screen.query_one("#packages", Select).value = "requirements requirements.txt"
        await until(pilot, "leads out")
        snap(app, f"launch-whole-{size[0]}x{size[1]}")


# What is picked in the launch form: examples, files, and folders that are walked.


@pytest.mark.proof("0.5 s of a processor")
async def test_example_is_picked_by_typing(app: SkywardApp) -> None:
    async with on_launch_form(app, SIZE, "") as (pilot, screen):
        await pilot.press("ctrl+o", "d", "d", "p", "enter")
        await until(pilot, lambda: screen.query_one("#script", Input).value == "example:ddp")
        await until(pilot, "Plugins  torch (detected)")
        await pilot.press("ctrl+o", "escape")
        assert screen.query_one("#script", Input).value == "example:ddp"


@pytest.mark.proof("1 s of a processor")
async def test_pickers_report_that_nothing_matches(app: SkywardApp) -> None:
    async with on_launch_form(app, SIZE, "") as (pilot, screen):
        await pilot.press("ctrl+o")
        await typed(app, pilot, "nosuch", until="no script or folder matches 'nosuch'")
        await pilot.press("enter")  # there is nothing to take
        assert app.screen is not screen
        await press(pilot, "escape", "ctrl+g", until=lambda: isinstance(app.screen, AcceleratorsScreen))
        await typed(app, pilot, "nosuch", until="no accelerator matches 'nosuch'")


@pytest.mark.proof("1 s of a processor")
async def test_file_picker_opens_folders(app: SkywardApp, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.py").write_text(SCRIPT)
    async with on_launch_form(app, SIZE, "") as (pilot, screen):
        await press(pilot, "ctrl+o", "j", "o", "enter", until="mine.py")
        await pilot.press("m", "i", "n", "e", "enter")
        await until(pilot, lambda: screen.query_one("#script", Input).value == "jobs/mine.py")


@pytest.mark.proof("1 s of a processor")
async def test_file_picker_selects_the_first_entry_of_an_opened_folder(app: SkywardApp, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.py").write_text(SCRIPT)
    async with on_launch_form(app, SIZE, "") as (pilot, screen):
        await press(pilot, "ctrl+o", "j", "o", "b", "enter", until="mine.py")
        assert "packaged examples" not in screen_text(app)  # whoever walks looks for none of these
        await press(pilot, "down", "enter", until=lambda: screen.query_one("#script", Input).value == "jobs/mine.py")


@pytest.mark.proof("1 s of a processor")
async def test_home_folder_of_an_unknown_user_is_an_ordinary_path(app: SkywardApp) -> None:
    async with on_launch_form(app, SIZE, "~nobody-of-that-name/x.py") as (pilot, screen):
        await until(pilot, "script ~nobody-of-that-name/x.py does not exist")
        await pilot.press("ctrl+o")
        await typed(app, pilot, "~nobody-of-that-name/", until="No such file")
        await pilot.press("enter", "escape")
        assert screen.query_one("#script", Input).value == "~nobody-of-that-name/x.py"
