"""The launch form driven by keys: its plan, its checks, its fields for machines, and launches."""

from __future__ import annotations

import shlex
import stat
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Select, Static

from skyward_core.model.errors import Hint, PoolError, UsageError
from skyward_core.model.offers_and_rental_plans import MachineRequirements, Market, Offer, OfferList
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.pickers import AcceleratorsScreen
from skyward_tui.launch_form.form import FieldError, Form, command_line, free_name, plan_launch
from skyward_tui.launch_form.plan_computation_and_text import PlanResult, plan_rows
from skyward_tui.launch_form.recent_launches import add_recent, recent_forms
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.launch_field_groups import LaunchFields
from skyward_tui.screens.run import RunScreen
from skyward_tui.widgets.form_fields import Choice, Toggles
from tests.support.app_driver import (
    Size,
    focus_in_section,
    on_launch_form,
    press,
    running_app,
    screen_text,
    typed,
    until,
)
from tests.support.fake_session import FakeSession
from tests.support.launch_script import GROUPS, SCRIPT, plan_text

SIZE = (120, 40)


WITHOUT_CREDENTIALS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


async def test_launch_form_starts_a_run_and_opens_its_screen(
    app: SkywardApp, session: FakeSession, script: Path
) -> None:
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        await until(pilot, lambda: screen.query_one("#function", Select).value == "train")
        await until(pilot, "train needs epochs")
        await pilot.press("tab", "tab", "tab")
        await typed(app, pilot, "epochs=3 lr=1e-2", until="runs     train(epochs=3, lr=0.01) on all 4")
        assert "pool train: 4 local nodes × 1 rank" in screen_text(app)
        assert "$0.00" not in screen_text(app)
        await press(pilot, "ctrl+r", until=lambda: isinstance(app.screen, RunScreen))
        await until(pilot, "pools › train › train")
        assert [(spec.name, spec.nodes) for spec in session.created] == [("train", 4)]
        assert [(pool, task.name) for pool, task in session.launched] == [("train", "train")]
        await press(pilot, "escape", until="▶ train")


@pytest.mark.proof("1.5 s of a processor")
async def test_launch_does_not_compute_the_text_of_a_shown_plan_again(
    app: SkywardApp, session: FakeSession, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []

    def rows(plan: Any, **options: Any) -> Any:
        computed.append(plan.request.arguments)
        return plan_rows(plan, **options)

    monkeypatch.setattr("skyward_tui.launch_form.plan_computation_and_text.plan_rows", rows)
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=3"
        await until(pilot, "train(epochs=3) on all 4")
        before = list(computed)
        await press(pilot, "ctrl+r", until=lambda: isinstance(app.screen, RunScreen))
        assert computed == before and [task.name for _, task in session.launched] == ["train"]


async def test_typed_characters_select_an_option_of_an_open_list(app: SkywardApp, script: Path) -> None:
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        provider = screen.query_one("#provider", Choice)
        provider.focus()
        await press(pilot, "enter", until=lambda: provider.expanded)
        await press(pilot, "s", "s", "enter", until=lambda: provider.value == "ssh")
        # The list of pools, because a check that ends now would list the providers again.
        screen.query_one("#pool", Choice).replace_options([("[red]literal[/]", "literal"), ("other", "")], "literal")
        await until(pilot, "[red]literal[/]")


@pytest.mark.proof("1 s of a processor")
async def test_provider_specific_fields_are_shown_for_their_providers_only(
    app: SkywardApp, session: FakeSession, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in WITHOUT_CREDENTIALS.items():
        monkeypatch.setenv(name, text)
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        market, money = screen.query_one("#market"), screen.query_one("#money")
        assert not market.display and not money.display
        screen.query_one("#provider", Select).value = "aws"
        await until(pilot, lambda: market.display and money.display)
        screen.query_one("#allocation", Select).value = "spot-if-available"
        for field, text in (
            ("region", "us-east-1"), ("max_hourly_cost", "30"), ("budget", "25.5"), ("wait_for_capacity", "2h"),
            ("arguments", "epochs=1"),
        ):  # fmt: skip
            screen.query_one(f"#{field}", Input).value = text
        message = "--allocation spot-if-available --max-hourly 30 --budget 25.5 --wait-for-capacity 2h"
        assert message in command_line(screen.form())
        await until(pilot, "budget   $25.50 in total")
        assert "waits    up to 2h00" in screen_text(app)
        screen.query_one("#budget", Input).value = "much"
        await until(pilot, "should be a number above 0")
        assert screen.query_one("#budget").has_class("-wrong")
        screen.query_one("#provider", Select).value = "local"
        await until(pilot, lambda: not market.display)
        assert "--budget" not in command_line(screen.form())


@pytest.mark.proof("1 s of a processor")
async def test_plan_is_requested_after_typing_stops(
    app: SkywardApp, session: FakeSession, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def planned(form: Form, pools: Any, *, launching: bool, shown: bool) -> PlanResult:
        asked.append((form.provider, form.nodes))
        return PlanResult(form, rows=[("creates", f"{form.nodes} machines")])

    monkeypatch.setattr("skyward_tui.screens.launch.compute_plan", planned)
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        nodes_now = screen.form().nodes
        screen.query_one("#provider", Select).value = "aws"
        await until(pilot, lambda: ("aws", nodes_now) in asked and not screen.query_one("#nodes").disabled)
        asked.clear()
        for nodes in ("5", "56", "567"):
            screen.query_one("#nodes", Input).value = nodes
        await until(pilot, "567 machines")
        assert asked == [("aws", "567")]


@pytest.mark.proof("1 s of a processor")
async def test_plugin_of_another_package_is_listed(
    app: SkywardApp, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [EntryPoint("mine", "another_package:Mine", "skyward.plugins")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    async with on_launch_form(app, SIZE, "train.py") as (_, screen):
        listed = [name for name, _ in screen.query_one("#plugins", Toggles).options]
        assert {"torch", "mine"} <= set(listed)


@pytest.mark.proof("1 s of a processor")
async def test_pool_without_keep_is_torn_down_after_its_run(
    app: SkywardApp, session: FakeSession, script: Path
) -> None:
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        await focus_in_section(pilot, screen, "more-section", "options")
        await press(pilot, "space", "ctrl+r", until=lambda: bool(session.launched))
        view = session.view("train")
        await until(pilot, lambda: bool(session.runs_ended))
        assert session.torn_down == []
        session.end_run(view, next(iter(view.runs.values())))
        await until(pilot, "run ended, train torn down: created 4, verified gone 4")


async def test_running_pool_is_used_with_its_nodes(app: SkywardApp, session: FakeSession, script: Path) -> None:
    session.pool("warm", 2).spec = {"options": {"idle_timeout": 3600.0}}
    async with running_app(app, SIZE, until="▶ warm") as pilot:
        await press(pilot, "L", until=lambda: isinstance(app.screen, LaunchScreen))
        await typed(app, pilot, "train.py")
        screen = app.screen
        await until(pilot, lambda: screen.query_one("#nodes").disabled)
        screen.query_one("#function", Select).value = "evaluate"
        await until(pilot, "pool warm: 2 nodes, world size 2")
        await until(pilot, "pool stays up until idle for 1h00")
        await press(pilot, "ctrl+r", until=lambda: [pool for pool, _ in session.launched] == ["warm"])
        assert session.created == []


@pytest.mark.proof("1 s of a processor")
async def test_run_screen_launches_again_on_its_pool(app: SkywardApp, session: FakeSession, script: Path) -> None:
    session.pool("warm", 2)
    async with running_app(app, SIZE, until="▶ warm") as pilot:
        await pilot.press("enter")
        for launches in (1, 2):
            await until(pilot, lambda: isinstance(app.screen, RunScreen))
            await press(pilot, "L", until=lambda: isinstance(app.screen, LaunchScreen))
            await typed(app, pilot, "train.py")
            app.screen.query_one("#arguments", Input).value = "epochs=1"
            await until(pilot, "pool warm: 2 nodes, world size 2")
            await pilot.press("ctrl+r")
            await until(pilot, lambda made=launches: len(session.launched) == made)  # type: ignore[misc]
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await press(pilot, "q", until=lambda: isinstance(app.screen, PoolsScreen))


async def test_script_that_does_not_load_creates_no_pool(app: SkywardApp, session: FakeSession, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(SCRIPT + "\nraise RuntimeError('no data here')\n")
    async with on_launch_form(app, SIZE, "bad.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        await press(pilot, "ctrl+r", until="RuntimeError: no data here")
        assert isinstance(app.screen, LaunchScreen)
        assert session.created == [] and session.launched == []
        assert "✗" in screen_text(app)


@pytest.mark.proof("1 s of a processor")
async def test_pool_name_in_use_is_reported_in_the_form(app: SkywardApp, session: FakeSession, script: Path) -> None:
    session.pool("train")
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        await until(pilot, "pool train-2")
        screen.query_one("#name", Input).value = "train"
        await until(pilot, "pool train is already up")
        await press(pilot, "ctrl+r", until=lambda: app.focused is screen.query_one("#name"))
        assert session.created == []


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_long_field_error_is_shown_completely(app: SkywardApp, script: Path, size: Size) -> None:
    async with on_launch_form(app, size, "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        screen.query_one("#name", Input).value = "My Pool"
        await until(pilot, "at both ends")
        shown = " ".join(screen_text(app).replace("│", " ").split())
        for words in ("lower-case letters, digits and hyphens,", "with a letter or digit at both ends"):
            assert all(word in shown for word in words.split())


async def test_form_keeps_its_input_after_a_failed_start(app: SkywardApp, session: FakeSession, script: Path) -> None:
    session.auto = False
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        for field, text in (("arguments", "note=hi"), ("name", "mine"), ("nodes", "3"), ("ranks_per_node", "2")):
            screen.query_one(f"#{field}", Input).value = text
        screen.query_one("#function", Select).value = "evaluate"
        screen.query_one("#plugins", Toggles).chosen = {"torch"}
        await pilot.pause()
        entered = screen.form()
        await press(pilot, "ctrl+r", until=lambda: "mine" in session.creating)
        failure = PoolError("no machine answered", hint=Hint("trust-host-key", "gpu1"))
        session.creating["mine"].set_exception(failure)
        await until(pilot, "no machine answered")
        assert "skyward-tui trust gpu1" in screen_text(app)
        await pilot.press("right", "enter")
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.form() == entered)
        await press(pilot, "escape", until=lambda: isinstance(app.screen, RunScreen))
        await pilot.press("q", "n")
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.form() == entered)


@pytest.mark.proof("1 s of a processor")
async def test_arrow_keys_move_through_all_launch_fields(app: SkywardApp, script: Path) -> None:
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        around = [screen.query_one(f"#{id}") for id in ("function", "python", "arguments", "pool", "name")]
        fields = [*around[:3], *screen.query("#argument-fields ArgumentRow Input"), *around[3:]]
        assert len(fields) == 7
        for key, ahead in (("down", fields), ("up", fields[-2::-1])):
            for field in ahead:
                await pilot.press(key)
                await until(pilot, lambda field=field: app.focused is field)  # type: ignore[misc]
        await pilot.press("enter", "down", "enter")  # a list opens by enter, and has the arrows then
        await until(pilot, lambda: screen.form().function == "evaluate")


@pytest.mark.proof("1 s of a processor")
async def test_long_plan_scrolls_by_keys(app: SkywardApp, script: Path) -> None:
    script.write_text(SCRIPT + "\nimport no_such_thing, no_such_package_anywhere, nor_this_one, nor_that_other_one\n")
    Path("requirements.txt").touch()
    async with on_launch_form(app, (80, 24), "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        await until(pilot, "pgdn, pgup: scroll")
        assert "creates  pool" in screen_text(app) and "as a command" not in screen_text(app)
        await pilot.press("pagedown", "pagedown")
        await until(pilot, lambda: "as a command" in screen_text(app) and "creates  pool" not in screen_text(app))
        await press(pilot, "pageup", "pageup", until="creates  pool")
        assert app.focused is not None and app.focused.id != "plan", "the fields keep the focus"
        assert "Choose requirements.txt under packages" in " ".join(plan_text(screen).split())


@pytest.mark.proof("1 s of a processor")
async def test_recent_launch_is_picked_by_key(
    app: SkywardApp, session: FakeSession, script: Path, tmp_path: Path
) -> None:
    for arguments in ("epochs=1", "epochs=2 lr=0.5"):
        add_recent(Form(script=str(script), function="train", arguments=arguments, nodes="7"))
    add_recent(Form(script=str(script), function="train", arguments="epochs=1", nodes="6"))
    assert [form.arguments for form in recent_forms()] == ["epochs=1", "epochs=2 lr=0.5"]
    assert stat.S_IMODE((tmp_path / "home" / "recent.json").stat().st_mode) == 0o600
    async with on_launch_form(app, SIZE, "") as (pilot, screen):
        assert screen.form().script == ""  # what went well is not entered again unasked
        await press(pilot, "ctrl+o", until="train.py:train  epochs=2 lr=0.5")
        await press(pilot, "down", "enter", until=lambda: screen.form().arguments == "epochs=2 lr=0.5")
        form = screen.form()
        assert (form.script, form.function, form.nodes) == ("train.py", "train", "7")
        screen.query_one("#script", Input).value = "missing.py"
        await until(pilot, lambda: "missing.py" in str(screen.query_one("#message", Static).content))
        assert screen.form().arguments == "epochs=2 lr=0.5"
        (tmp_path / "other.py").write_text(
            "import skyward_core as sky\n@sky.function\ndef tune(width: int, lr: float): ...\n", "utf-8"
        )
        screen.query_one("#script", Input).value = "other.py"
        await until(pilot, lambda: screen.form().function == "tune")
        assert screen.form().arguments == "lr=0.5", "what still fits stays"
        screen.query_one("#script", Input).value = "train.py"
        await until(pilot, lambda: screen.form().function == "train")
        assert screen.form().arguments == "lr=0.5"


@pytest.mark.proof("1.5 s of a processor")
async def test_path_of_a_script_is_completed_and_launch_is_dim_while_invalid(app: SkywardApp, script: Path) -> None:
    folder = script.parent / "experiments"
    folder.mkdir()
    (folder / "tune.py").write_text(SCRIPT)
    (folder / "tune.log").touch()
    async with on_launch_form(app, SIZE, "") as (pilot, screen):
        field, launch = screen.query_one("#script", Input), screen.query_one("#launch")
        await until(pilot, lambda: launch.has_class("-invalid"))
        for typed_text, whole in (("exp", "experiments/"), ("tu", "experiments/tune.py")):
            await press(pilot, *typed_text, until=lambda whole=whole: field._suggestion == whole)  # type: ignore[misc]
            await press(pilot, "right", until=lambda whole=whole: field.value == whole)  # type: ignore[misc]
        screen.query_one("#arguments", Input).value = "epochs=1"
        await until(pilot, lambda: not launch.has_class("-invalid"))


@pytest.mark.proof("1 s of a processor")
async def test_arguments_of_the_last_launch_are_named_and_cleared_by_key(app: SkywardApp, script: Path) -> None:
    add_recent(Form(script=str(script), function="train", arguments="epochs=3"))
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        await until(pilot, "arguments of your last launch; f5: clear")
        assert screen.form().arguments == "epochs=3"
        await press(pilot, "f5", until=lambda: not screen.form().arguments)
        options = screen.query_one("#options", Toggles)
        assert "restart_smaller" in dict(options.options)
        screen.query_one(LaunchFields).lock_fields(Form(pool="p"), job=False)
        assert "restart_smaller" not in dict(options.options)


def test_damaged_recent_launches_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    for text in ("", "{", '{"a": 1}', "[1]", '[{"script": 1, "plugins": 3}]', '[{"script": 1}]'):
        (tmp_path / "home" / "recent.json").write_text(text)
        assert recent_forms() == []


@pytest.mark.proof("1 s of a processor")
async def test_missing_framework_is_named_before_the_launch(
    app: SkywardApp, session: FakeSession, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "skyward_core.tasks.missing_packages.is_missing", lambda name: name in ("jax", "pandas", "torch")
    )
    script.write_text(SCRIPT + "\nimport pandas\n")
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        await until(pilot, "pandas is not installed for")
        script.write_text(SCRIPT + "\nimport jax\n")
        screen.query_one("#arguments", Input).value = "epochs=2"
        await until(pilot, "jax is not installed for")
        await press(pilot, "ctrl+o", until="needs torch")
        assert "needs jax" not in screen_text(app), "what a function imports, its ranks need"


@pytest.mark.proof("0.5 s of a processor")
async def test_plan_names_the_interpreter_of_the_script_and_its_source(
    app: SkywardApp, session: FakeSession, script: Path
) -> None:
    venv = script.parent / ".venv"
    venv.symlink_to(sys.prefix)
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        await until(pilot, "python   Python")
        venv.unlink()
        (venv / "bin").mkdir(parents=True)
        screen.query_one("#arguments", Input).value = "epochs=2"
        await until(pilot, "has no bin/python")


@pytest.mark.proof("1 s of a processor")
async def test_python_script_of_the_launch_is_copied(app: SkywardApp, session: FakeSession, script: Path) -> None:
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        await until(pilot, lambda: screen.query_one("#function", Select).value == "train")
        await press(pilot, "ctrl+t", until=lambda: app.clipboard.startswith("# train needs epochs"))
        await pilot.press("tab", "tab", "tab")
        await typed(app, pilot, "epochs=3", until="runs     train(epochs=3)")
        await press(pilot, "ctrl+t", until=lambda: "from train import train" in app.clipboard)
        compile(app.clipboard, "copied", "exec")
        assert "train(epochs=3) @ pool" in app.clipboard


@pytest.mark.proof("1 s of a processor")
async def test_command_line_of_the_launch_is_copied(app: SkywardApp, script: Path) -> None:
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        await pilot.press("ctrl+y")
        assert app.clipboard == command_line(screen.form())
        assert app.clipboard.startswith("skyward-tui run train.py:train")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"script": ""}, "script", "launch.files"),
        ({"script": "nowhere.py"}, "script", "script nowhere.py does not exist"),
        ({"script": "hello"}, "script", "Packaged example of this name: example:hello"),
        ({"script": "plain.py", "arguments": "--name 'x"}, "arguments", "quotation"),
        ({"packages": "lock gone/uv.lock"}, "packages", "does not exist"),
        ({"packages": "project"}, "packages", "file pyproject.toml does not exist"),
        ({"outputs": "out/** /etc/passwd"}, "outputs", "'/etc/passwd' leads out of the working folder"),
        ({"outputs": "''"}, "outputs", "names no files"),
        ({"outputs": "'out/**"}, "outputs", "quotation"),
        ({"arguments": ""}, "arguments", "needs epochs"),
        ({"arguments": "epochs=x"}, "arguments", "epochs"),
        ({"arguments": "epoch=1"}, "arguments", "Did you mean 'epochs'"),
        ({"arguments": 'epochs="1'}, "arguments", "quotation"),
        ({"arguments": "", "name": "taken", "provider": "ssh", "nodes": ""}, "arguments", "needs epochs"),
        ({"nodes": "0"}, "nodes", "Nodes: 0 is not valid"),
        ({"nodes": ""}, "nodes", "Nodes is empty. Enter 1 to 1,024 or a range such as 2:8"),
        ({"ranks_per_node": "65"}, "ranks_per_node", "1 to 64"),
        ({"name": "No Good"}, "name", "not a pool name"),
        ({"name": "taken"}, "name", "already up"),
        ({"pool": "vanished"}, "pool", "has ended"),
        ({"plugins": ("torhc",)}, "plugins", "did you mean torch"),
        ({"provider": "ssh"}, "hosts", "enter hosts or a group of skyward.toml (empty, lab)"),
        ({"provider": "ssh", "settings": {"hosts": "gpu1 gpu1"}}, "hosts", "Named twice: gpu1"),
        ({"provider": "ssh", "settings": {"hosts": "gpu1, @lba"}}, "hosts", "no group 'lba'"),
        ({"provider": "ssh", "settings": {"hosts": "empty"}}, "hosts", "at least one host"),
        ({"provider": "ssh", "settings": {"hosts": "lab"}, "nodes": "4:8"}, "nodes", "only 3 hosts: "),
        ({"accelerator": "H10O:8"}, "accelerator", "did you mean H100"),
        ({"accelerator": "H100:x"}, "accelerator", "not a number of accelerators"),
    ],
)
def test_invalid_launch_input_names_its_field(
    script: Path, session: FakeSession, changes: dict[str, Any], field: str, words: str
) -> None:
    Path("plain.py").write_text("x = 1\n")
    Path("skyward.toml").write_text(GROUPS)
    session.pool("taken")
    form = Form(**({"script": "train.py", "arguments": "epochs=1"} | changes))  # type: ignore[arg-type]
    with pytest.raises(FieldError) as caught:
        plan_launch(form, session.pools())
    assert caught.value.field == field
    assert words in str(caught.value)


def test_command_line_of_ssh_hosts_uses_the_hosts_option() -> None:
    form = Form(script="train.py", provider="ssh", settings={"hosts": "gpu1, me@gpu2:2222  gpu3"}, nodes="")
    words = shlex.split(command_line(form))
    assert words[3:] == ["--provider", "ssh", "--hosts", "gpu1,me@gpu2:2222,gpu3", "--keep"]


def test_pool_name_from_the_script_is_free_and_valid() -> None:
    assert free_name(Path("My Script_2.py"), []) == "my-script-2"
    assert free_name(Path("ddp.py"), ["ddp", "ddp-2"]) == "ddp-3"
    assert free_name(Path("é.py"), []) == "pool"
    assert len(free_name(Path("x" * 90 + ".py"), [])) <= 48


def test_command_line_equals_the_form() -> None:
    form = Form(
        script="my jobs/train.py",
        function="train",
        arguments='epochs=3 note="a b"',
        nodes="2",
        ranks_per_node="4",
        plugins=("torch",),
        name="big",
        one=True,
    )
    words = shlex.split(command_line(form))
    assert words[:3] == ["skyward-tui", "run", "my jobs/train.py:train"]
    assert words[3:] == shlex.split(
        "--arg epochs=3 --arg 'note=a b' --provider local --nodes 2 --ranks-per-node 4 --plugin torch"
        " --pool big --one --keep"
    )


@pytest.mark.proof("1 s of a processor")
async def test_plan_shows_and_warns_about_plugins_of_a_running_pool(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    """The plan warns only if the ranks cannot meet. Only plugins of the pool are checked in the form."""
    plain, gang = session.pool("plain"), session.pool("gang")
    plain.spec["plugins"], gang.spec["plugins"] = [], ["torch"]
    async with on_launch_form(app, SIZE, "example:ddp", until="Plugins  torch (detected)") as (pilot, screen):
        screen.query_one("#pool", Select).value = plain.key
        await until(pilot, lambda: "torch plugin is missing on pool plain" in " ".join(plan_text(screen).split()))
        assert "Plugins  none (of the pool)" in screen_text(app)
        screen.query_one("#pool", Select).value = gang.key
        await until(pilot, lambda: "uses     pool gang" in plan_text(screen))
        assert "plugins  torch" in plan_text(screen)
        assert "note" not in plan_text(screen)
        assert "Plugins  torch (of the pool)" in screen_text(app)


@pytest.mark.proof("1 s of a processor")
async def test_recent_launch_of_an_example_has_the_name_of_the_example(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    add_recent(Form(script="example:ddp", function="train"))
    async with on_launch_form(app, SIZE, "") as (pilot, _):
        await press(pilot, "ctrl+o", until="recent launches")
        assert "example:ddp:train" in screen_text(app)


@pytest.mark.proof("1 s of a processor")
async def test_hosts_can_be_changed_after_a_failed_start(app: SkywardApp, session: FakeSession, script: Path) -> None:
    session.auto = False
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        screen.query_one("#provider", Select).value = "ssh"
        await until(pilot, lambda: bool(screen.query_one("#hosts-row").display))
        screen.query_one("#hosts", Input).value = "gpu1 gpu2"
        await until(pilot, "2 hosts × 1 rank")
        entered = screen.form()
        assert entered.nodes == ""
        await press(pilot, "ctrl+r", until=lambda: "train" in session.creating)
        session.creating["train"].set_exception(PoolError("no machine answered"))
        await until(pilot, "no machine answered")
        await pilot.press("right", "enter")
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        again = app.screen
        assert isinstance(again, LaunchScreen)
        await until(pilot, "2 hosts × 1 rank")
        assert again.form() == entered
        assert again.query_one("#hosts-row").display


@pytest.mark.proof("1 s of a processor")
async def test_hosts_field_accepts_a_list_or_a_group(
    app: SkywardApp, session: FakeSession, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("skyward.toml").write_text(GROUPS)
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        for _ in range(8):
            await pilot.press("tab")
        await until(pilot, lambda: app.focused is screen.query_one("#provider"))
        await press(pilot, "enter", "down", "down", "enter", "tab", until="enter hosts or a group of skyward.toml")
        await pilot.press("l", "a", "right")  # completed to the group's name
        await until(pilot, "hosts    gpu1, gpu2, me@gpu3:2222")
        assert "pool train: 3 hosts × 1 rank" in screen_text(app)
        expected = "skyward-tui run train.py:train --arg epochs=1 --provider ssh --hosts lab --keep"
        await pilot.press("ctrl+y")
        assert app.clipboard == expected
        await press(pilot, "tab", "tab", "2", until="2 hosts × 1 rank")
        await press(pilot, "ctrl+r", until=lambda: bool(session.created))
        spec = session.created[0]
        assert (spec.nodes, spec.provider.hosts) == (2, ("gpu1", "gpu2", "me@gpu3:2222"))
        assert spec.provider.host_keys == "ask"


@pytest.mark.proof("1 s of a processor")
async def test_accelerator_is_picked_from_the_catalogue(app: SkywardApp, session: FakeSession, script: Path) -> None:
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#arguments", Input).value = "epochs=1"
        screen.query_one("#accelerator", Input).value = ":8"
        await press(pilot, "ctrl+g", until=lambda: isinstance(app.screen, AcceleratorsScreen))
        await typed(app, pilot, "hopper h100")
        await until(pilot, lambda: "bf16" in screen_text(app) and "A100" not in screen_text(app))
        await press(pilot, "enter", until=lambda: screen.query_one("#accelerator", Input).value == "H100:8")
        await until(pilot, "8 × NVIDIA H100 per node")
        assert "not checked: each node must have H100:8" in " ".join(plan_text(screen).split())
        assert "--accelerator H100:8" in command_line(screen.form())
        await press(pilot, "ctrl+r", until=lambda: bool(session.created))
        assert str(session.created[0].accelerator) == "H100:8"


def offer(kind: str, zone: str, name: str, count: int, memory: float, hourly: float, market: Market) -> Offer:
    return Offer(
        provider="aws", instance_type=kind, region="us-east-1", zone=f"us-east-1{zone}", market=market,
        accelerator=name, count=count, memory_each_gb=memory, hourly=hourly,
    )  # fmt: skip


OFFERS = OfferList(
    offers=[
        offer("p5.48xlarge", "a", "H100", 8, 80.0, 55.0, "on-demand"),
        offer("p4de.24xlarge", "b", "A100", 8, 80.0, 27.45, "on-demand"),
        offer("p4de.24xlarge", "b", "A100", 8, 80.0, 11.5, "spot"),
        offer("p4d.24xlarge", "b", "A100", 8, 40.0, 21.0, "on-demand"),
        offer("g4dn.xlarge", "c", "T4", 1, 16.0, 0.53, "on-demand"),
    ],
    notes=["spot prices of some zones are not known"],
)


@pytest.mark.proof("2 s of a processor")
async def test_accelerator_is_picked_from_offers(
    app: SkywardApp, session: FakeSession, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.client.offers_and_block_purchases.list_offers", lambda wish: OFFERS)
    monkeypatch.setattr("skyward_tui.screens.launch.TYPING", 3600.0)  # nobody asks for a plan
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        field = screen.query_one("#accelerator", Input)
        screen.query_one("#provider", Select).value = "aws"
        await until(pilot, lambda: screen.form().provider == "aws")
        await press(pilot, "ctrl+g", until="cheapest 8 × 80 GB")
        shown = screen_text(app)
        assert shown.index("$0.53/h") < shown.rindex("$11.50/h") < shown.index("$21.00/h") < shown.index("$55.00/h")
        assert "$27.45/h" in shown and "us-east-1b" in shown and "spot prices of some zones" in shown
        await press(pilot, "enter", until=lambda: field.value == "A100-80GB:8")  # the cheapest in two keys
        await press(pilot, "ctrl+g", until="cheapest 8 × 80 GB")
        await typed(app, pilot, "8x80gb h100")
        await until(pilot, lambda: "p5.48xlarge" in screen_text(app) and "p4d" not in screen_text(app))
        await press(pilot, "enter", until=lambda: field.value == "H100:8")
        await press(pilot, "ctrl+g", until="cheapest 8 × 80 GB")
        await typed(app, pilot, "mi300")  # which nobody offers
        await until(pilot, "catalogue, including accelerators without an offer")
        await press(pilot, "enter", until=lambda: field.value.startswith("MI300") and field.value.endswith(":8"))


@pytest.mark.proof("1 s of a processor")
async def test_picker_without_offers_names_the_reason_and_shows_the_catalogue(
    app: SkywardApp, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(wish: MachineRequirements) -> OfferList:
        raise UsageError("no provider lists its offers")

    monkeypatch.setattr("skyward_core.client.offers_and_block_purchases.list_offers", refuse)
    monkeypatch.setattr("skyward_tui.screens.launch.TYPING", 3600.0)
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        screen.query_one("#provider", Select).value = "aws"
        await until(pilot, lambda: screen.form().provider == "aws")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "no provider lists its offers" in screen_text(app) and "bf16" in screen_text(app))


@pytest.mark.proof("1 s of a processor")
async def test_typed_characters_repaint_their_field_only(
    app: SkywardApp, painted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_tui.screens.launch.TYPING", 3600.0)
    async with on_launch_form(app, SIZE, "") as (pilot, screen):
        field = screen.query_one("#name", Input)
        field.focus()
        text = "0123456789" * (field.size.width // 10 + 1)
        await press(pilot, text[0], until=lambda: field.value == "0")  # the bar of the focus is painted by then
        layouts: list[object] = []
        rendered: set[Widget] = set()
        refresh_layout, render_lines = screen._refresh_layout, Widget.render_lines

        def record_layout(*more: Any, **by: Any) -> None:
            layouts.append(more)
            refresh_layout(*more, **by)

        def record_render(each: Widget, crop: Region) -> list[Strip]:
            rendered.add(each)
            return render_lines(each, crop)

        monkeypatch.setattr(screen, "_refresh_layout", record_layout)
        monkeypatch.setattr(Widget, "render_lines", record_render)
        await pilot.press(*text[1:])
        assert layouts == [] and rendered <= {*field.ancestors_with_self}, (layouts, rendered)
        assert f"{text[-20:]} " in screen_text(app) and text not in screen_text(app)
        await pilot.press("home")
        assert f"name ▌{text[:15]}" in screen_text(app)
