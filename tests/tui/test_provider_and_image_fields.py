"""Fields of the launch form for the provider, its checks, the image and the environment."""

from __future__ import annotations

import shlex
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input, Select

from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_tui.app.app import SkywardApp
from skyward_tui.launch_form.form import Form, build_request, command_line
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.launch_argument_fields import ArgumentFields
from skyward_tui.text.text_width_tables_and_ascii import clip_path
from tests.support.app_driver import focus_in_section, on_launch_form, press, screen_text, typed, until
from tests.support.fake_session import FakeSession, done
from tests.support.pythons import another_python, make_environment


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import skyward_core as sky\n\n@sky.function\ndef train(): ...\n")
    return tmp_path


@pytest.mark.proof("1.5 s of a processor")
async def test_slow_provider_check_does_not_delay_the_plan(app: SkywardApp, session: FakeSession) -> None:
    answer: Future[list[Check]] = Future()
    session.check_ups["local"] = answer
    async with on_launch_form(app, (120, 40), "train.py", until="… local: processes on this machine") as (pilot, _):
        await until(pilot, "runs     train()")
        answer.set_result([Check("local", "ok", "8 cores"), Check("local disk", "ok", "9 GB free")])
        await until(pilot, "✓ local: processes on this machine")
        assert "✓ local: 8 cores; local disk: 9 GB free" in screen_text(app)
        assert session.checked == [("local", {})]


@pytest.mark.proof("1 s of a processor")
async def test_verdict_about_hosts_goes_with_the_first_key_and_returns_after_a_pause(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_tui.screens.launch.CHECK_PAUSE", 0.0)
    session.check_ups["ssh"] = Future()
    session.check_ups["ssh"].set_result([Check("gpu1", "fail", "no answer within 5 s")])
    async with on_launch_form(app, (80, 24), "train.py") as (pilot, screen):
        screen.query_one("#provider", Select).value = "ssh"
        await until(pilot, "Hosts")
        hosts = screen.query_one("#hosts", Input).focus()
        await typed(app, pilot, "gpu1", until="✗ gpu1: no answer")
        assert app.focused is hosts, "nobody has left the field"
        monkeypatch.setattr("skyward_tui.screens.launch.TYPING", 60.0)
        await pilot.press("2")
        assert "no answer" not in screen_text(app) and "✗" not in screen_text(app)
        monkeypatch.setattr("skyward_tui.screens.launch.TYPING", 0.01)
        await press(pilot, "3", until=lambda: session.checked[-1] == ("ssh", {"hosts": "gpu123"}))


@pytest.mark.proof("0.5 s of a processor")
async def test_form_is_validated_once_for_many_typed_characters(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []

    def planned(self: LaunchScreen, form: Form) -> None:
        plans.append(form.name)

    async with on_launch_form(app, (80, 24), "train.py") as (pilot, screen):
        await until(pilot, lambda: screen.form().function == "train")
        monkeypatch.setattr("skyward_tui.screens.launch.TYPING", 60.0)
        monkeypatch.setattr(LaunchScreen, "_update_plan", planned)
        screen.query_one("#name", Input).focus()
        await pilot.press(*"maths-of-mine")
        assert plans == []
        await press(pilot, "ctrl+r", until=lambda: [spec.name for spec in session.created] == ["maths-of-mine"])
        assert plans == ["maths-of-mine"], "the last keys count for a launch"


@pytest.mark.proof("1.5 s of a processor")
async def test_hosts_are_checked_after_typing_and_problems_are_listed_first(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_tui.screens.launch.CHECK_PAUSE", 60.0)
    lines = [Check("gpu1", "ok", "reachable"), Check("gpu2", "fail", "no answer within 5 s\x1b[2J")]
    lines += [Check(f"gpu{number}", "warn", "0.5 GB free") for number in range(3, 9)]
    session.check_ups["ssh"] = Future()
    session.check_ups["ssh"].set_result(lines)
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        screen.query_one("#provider", Select).value = "ssh"
        await until(pilot, "Hosts")
        hosts = screen.query_one("#hosts", Input).focus()
        await until(pilot, lambda: app.focused is hosts)
        await typed(app, pilot, "gpu1 gpu2", until="hosts    gpu1, gpu2")
        assert "ssh" not in [name for name, _ in session.checked]
        await press(pilot, "tab", "tab", until="✗ ssh: hosts of your own")  # past all that it asks for
        assert session.checked[-1] == ("ssh", {"hosts": "gpu1,gpu2"})
        text = screen_text(app)
        assert text.index("✗ gpu2: no answer within 5 s") < text.index("! gpu3: 0.5 GB free")
        assert "and 3 more (run skyward-tui doctor)" in text
        # What was told is not asked for again.
        many = len(session.checked)
        screen.query_one("#provider", Select).value = "local"
        await until(pilot, lambda: "gpu2: no answer" not in screen_text(app))
        screen.query_one("#provider", Select).value = "ssh"
        await until(pilot, "✗ gpu2: no answer")
        assert len(session.checked) == many


@pytest.mark.proof("2 s of a processor")
async def test_hosts_are_checked_for_the_python_version_of_the_script(
    app: SkywardApp, session: FakeSession, folder: Path
) -> None:
    known = another_python()
    make_environment(known.path, folder / ".venv")
    minor = ".".join(known.version.split(".")[:2])
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        screen.query_one("#provider", Select).value = "ssh"
        await until(pilot, "Hosts")
        screen.query_one("#hosts", Input).value = "gpu1"
        await until(pilot, lambda: session.checked_for[-1:] == [minor])
        assert session.checked[-1] == ("ssh", {"hosts": "gpu1"})
        await until(pilot, f"needs    Python {minor} on each")


@pytest.mark.proof("1 s of a processor")
async def test_small_form_lists_only_failed_checks(app: SkywardApp, session: FakeSession) -> None:
    session.check_ups["local"] = Future()
    async with on_launch_form(app, (80, 24), "train.py") as (pilot, _):
        session.check_ups["local"].set_result([Check("local", "ok", "8 cores")])
        await until(pilot, "✓ local: processes on this machine")
        assert "8 cores" not in screen_text(app)


@pytest.mark.proof("1 s of a processor")
async def test_clipped_path_keeps_its_end(app: SkywardApp, session: FakeSession) -> None:
    free = "71.5 GB free under /scratch/of/many/people/and/groups/skyward/spool"
    session.check_ups["local"] = done([Check("local disk", "ok", free)])
    script = Path("of-many-people-and-groups/experiments/of-this-autumn/llama-with-lora/train.py")
    script.parent.mkdir(parents=True)
    script.write_text(Path("train.py").read_text("utf-8"), "utf-8")
    async with on_launch_form(app, (80, 32), str(script), until="runs     train()") as (pilot, _):
        await press(pilot, "tab", until=lambda: "…" in screen_text(app).splitlines()[2])
        assert screen_text(app).splitlines()[2].rstrip("│ ").endswith("/llama-with-lora/train.py")
        await until(pilot, "✓ local disk: 71.5 GB free under …")
        assert "skyward/spool " in screen_text(app)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a/b.py", "a/b.py"),
        ("free under /a/long/path/here", "free under …path/here"),
        ("a lot of words that say /a/long/path", "a lot of words that…"),
        ("/home/me/projects/llama/train.py", "…jects/llama/train.py"),
        ("日本/日本/日本/日本/日本/b", "…本/日本/日本/日本/b"),
        ("lr=0.1 seed=1..5 epochs=30", "lr=0.1 seed=1..5 epo…"),
    ],
)
def test_clip_path_keeps_the_end_of_paths_and_the_start_of_other_texts(text: str, shown: str) -> None:
    assert clip_path(text, 21) == shown


# The launch form's part for image and environment: it folds, and has a field for each kind of thing.


@pytest.mark.proof("3 s of a processor")
async def test_image_fields_set_packages_setup_and_variables(app: SkywardApp) -> None:
    async with on_launch_form(app, (160, 48), "train.py") as (pilot, screen):
        await focus_in_section(pilot, screen, "more-section", "image_settings")
        await pilot.press("down")
        await typed(app, pilot, "einops 'rich>=13'")
        await pilot.press("down", "down")
        await typed(app, pilot, "make -C data && echo made")
        await pilot.press("down")
        await typed(app, pilot, "WORD=x HF_TOKEN=y", until="▾ Image and environment  ✗ HF_TOKEN has the name")
        assert "✗ HF_TOKEN has the name of a secret. Write secret=HF_TOKEN" in screen_text(app)
        await pilot.press(*["backspace"] * len(" HF_TOKEN=y"))
        asked = ("pip=einops", "pip=rich>=13", "setup=make -C data && echo made", "env.WORD=x")
        await until(pilot, lambda: build_request(screen.form()).image_settings == asked)
        await until(pilot, "installs einops, rich>=13")
        assert "sets     WORD" in screen_text(app)
        assert "--image-set pip=einops --image-set 'pip=rich>=13'" in command_line(screen.form())
        await typed(app, pilot, " 'half", until="▾ Image and environment  ✗ No closing quotation")
        await pilot.press(*["backspace"] * len(" 'half"))


@pytest.mark.proof("1 s of a processor")
async def test_unedited_image_settings_of_a_recent_launch_are_unchanged(app: SkywardApp) -> None:
    async with on_launch_form(app, (160, 48), "train.py") as (pilot, screen):
        await focus_in_section(pilot, screen, "more-section", "image_settings")
        await pilot.press("down")
        text = shlex.join(["setup=make one", "setup=make two", "pip=torch", "env.A="])
        screen._fill(replace(screen.form(), image_settings=text))
        await until(pilot, "make one && make two")
        assert screen.form().image_settings == text
        fields = screen.query_one("#image-arguments", ArgumentFields)
        pip = fields.field_of("pip")
        assert isinstance(pip, Input)
        pip.value = "torch jax"
        left = ("setup=make one", "setup=make two", "pip=torch", "pip=jax", "env.A=")
        await until(pilot, lambda: sorted(build_request(screen.form()).image_settings) == sorted(left))
