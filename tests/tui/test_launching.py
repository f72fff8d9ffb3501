"""The pool that a launch uses: the chosen one, never a namesake."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.widgets import Input, Select, Static

from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import LaunchPlan
from skyward_core.client.launch.plugin_and_provider_catalog import FunctionInfo
from skyward_core.model.errors import PoolError
from skyward_core.tasks import bounded_subprocess
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, RunView
from skyward_tui.app.app import SkywardApp
from skyward_tui.launch_form import form as packaged
from skyward_tui.launch_form.form import FieldError, Form, command_line, plan_launch
from skyward_tui.launch_form.recent_launches import recent_forms
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.launch import LaunchScreen, create_pool
from tests.support.app_driver import launch_form, on_launch_form, press, running_app, screen_text, typed, until
from tests.support.fake_session import FakeSession
from tests.support.pythons import all_ended, hanging_python
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until


def plan(pool: PoolView) -> LaunchPlan:
    function: Any = FunctionInfo
    own: Any = None
    request = LaunchRequest(script="train.py")
    return LaunchPlan(request=request, interpreter=own, function=function, values={}, pool=pool, plugins=())


async def test_launch_uses_the_chosen_pool_and_not_its_namesake(session: FakeSession) -> None:
    chosen = session.pool("train")
    app: Any = SimpleNamespace(required_session=session)
    assert (await create_pool(app, plan(chosen))).key == chosen.key
    session.emit(chosen, events.PoolState(pool="train", state="gone", at=session.now))
    namesake = session.pool("train")
    with pytest.raises(PoolError, match="pool train is no longer running"):
        await create_pool(app, plan(chosen))
    assert (await create_pool(app, plan(namesake))).key == namesake.key


def test_launch_plan_uses_the_chosen_pool_despite_a_namesake(session: FakeSession, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import skyward_core as sky\n@sky.function\ndef train(): ...\n")
    chosen = session.pool("train")
    form = Form(str(script), "train", pool=chosen.key)
    assert plan_launch(form, session.pools()).pool is chosen
    assert shlex.split(command_line(form))[-3:-1] == ["--pool", "train"]
    session.emit(chosen, events.PoolState(pool="train", state="gone", at=session.now))
    session.pool("train")
    with pytest.raises(FieldError, match="pool train has ended") as caught:
        plan_launch(form, session.pools())
    assert caught.value.field == "pool"


async def test_launch_form_of_an_ended_pool_creates_a_new_pool(app: SkywardApp, session: FakeSession) -> None:
    over = session.pool("train")
    session.emit(over, events.PoolState(pool="train", state="gone", at=session.now))
    session.pool("train")
    async with running_app(app, (120, 40), until=lambda: app.session is not None) as pilot:
        app.show_launch(over.key)
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        assert app.screen.query_one("#pool", Select).value == ""


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("fails", [False, True])
async def test_launch_is_shown_until_its_run_has_started(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    session.auto, pending = False, Future[RunView]()
    monkeypatch.setattr(session, "launch", lambda *_, **__: pending)
    async with on_launch_form(app, SIZE, "train.py", until="runs     train()") as (pilot, _):
        await press(pilot, "ctrl+r", until="› starting run")
        await until(pilot, "the run is starting")
        session.bring_up(session.views[0])
        await until(pilot, lambda: session.views[0].state == "up")
        await press(pilot, "escape", until="the run is starting")
        assert isinstance(app.screen, PoolsScreen)
        if fails:
            pending.set_exception(PoolError("no room"))
            await until(pilot, "no room")
        else:
            pending.set_result(session.open_run(session.views[0], "train", kind="broadcast"))
        await until(pilot, lambda: "the run is starting" not in screen_text(app))
        await press(pilot, "enter", until="› no run yet" if fails else "› train")


# A launch beside a Python that hangs: keys, screen and ways out, none of which wait for it.


SIZE = (120, 40)
SCRIPT = "import skyward_core as sky\n\n@sky.function\ndef train(epochs: int = 1) -> int:\n    return epochs\n"
FOR_EVER = 600  # seconds; a test that waited for it would not end
LOOKING = "finding the script's Python, "  # and how long already


@pytest.fixture
def hangs(tmp_path: Path) -> Iterator[Path]:
    """Project whose interpreter never answers, and a script outside of it. Returns the file with its children's
    pids.
    """
    project = tmp_path / "hangs"
    for folder in (project, tmp_path):
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(SCRIPT)
        (folder / "pyproject.toml").touch()
    (project / "train.py").write_text("import torch\n" + SCRIPT)
    children = hanging_python(project / ".venv")
    yield children
    for child in children.read_text().split() if children.exists() else ():
        with suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.proof("1 s of a processor")
async def test_hanging_python_blocks_its_launch_only(
    app: SkywardApp, session: FakeSession, hangs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_subprocess, "DEFAULT_TIMEOUT", FOR_EVER)
    monkeypatch.setattr(packaged, "FOLDER", tmp_path / "hangs")  # so have the examples
    async with on_launch_form(app, SIZE, "hangs/train.py", until="runs     train()") as (pilot, _):
        await press(pilot, "ctrl+o", *"tra", until="packaged examples")
        await pilot.press("escape")
        assert not hangs.exists(), "plan and lists read files alone"
        await press(pilot, "ctrl+r", until=lambda: LOOKING in screen_text(app) and hangs.exists())
        assert session.created == []
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
        await launch_form(app, pilot, "train.py")  # another Python is not waited for after that one
        await until(pilot, "runs     train()")
        assert not all_ended(hangs)


async def test_launch_uses_the_form_as_shown(
    app: SkywardApp, session: FakeSession, hangs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_subprocess, "DEFAULT_TIMEOUT", 1)
    async with on_launch_form(app, SIZE, "train.py", until="runs     train()") as (pilot, screen):
        screen.query_one("#script", Input).value = "hangs/train.py"
        await until(pilot, lambda: screen.query_one("#function", Select).value == "train")
        await pilot.press("ctrl+r")  # there is no plan of that yet
        await until(pilot, lambda: "did not print its version within 1 s. Recreate" in plan_text(screen))
        assert session.created == [] and app.focused is screen.query_one("#script")
        await until(pilot, lambda: all_ended(hangs))  # who is killed takes a moment to end
        screen.query_one("#script", Input).value = "train.py"
        await press(pilot, "ctrl+r", until=lambda: bool(session.launched))


INSTALLER = r"""#!/bin/sh
case "$1" in
venv) for last; do :; done; mkdir -p "$last/bin"; echo half > "$last/bin/activate" ;;
pip) printf 'Downloading \033]0;x\007torch (203.5MiB)\n'; sleep 600 & echo $! >> {children}; wait ;;
esac
"""


def half_made(home: Path) -> list[Path]:
    found = home.glob("environments/env-*")
    return [each for each in found if each.is_dir() and not (each / ".made").exists()]


@pytest.mark.proof("1 s of a processor")
async def test_launch_can_be_left_while_its_script_loads(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging installer and a hanging script are shown, and killed with all their child processes."""
    children = tmp_path / "children"
    installer = tmp_path / "bin" / "uv"
    installer.parent.mkdir()
    installer.write_text(INSTALLER.replace("{children}", str(children)))
    installer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{installer.parent}:{os.environ['PATH']}")
    block = '# /// script\n# dependencies = ["torch"]\n# ///\n'
    (tmp_path / "installs.py").write_text(block + SCRIPT)
    noted = f"import os, time\nopen({str(children)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    (tmp_path / "sleeps.py").write_text(noted + SCRIPT)

    def begun() -> bool:
        return children.exists() and children.read_text() != ""

    async with app.run_test(size=SIZE) as pilot:
        for script, expected in (("installs.py", ": Downloading torch"), ("sleeps.py", " …")):
            screen = await launch_form(app, pilot, script)
            await until(pilot, "runs     train()")
            await pilot.press("ctrl+r")
            words = f"loading {script}, 0:0"
            await until(pilot, lambda words=words: words in screen_text(app))  # type: ignore[misc]
            await until(pilot, lambda expected=expected: expected in screen_text(app) and begun())  # type: ignore[misc]
            assert screen.query_one("#form").disabled, "what is shown is what is launched"
            await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
            await until(pilot, lambda: all_ended(children))
            await until(pilot, lambda: not half_made(tmp_path / "home"))
            children.unlink()
        await until(pilot, lambda: not list((tmp_path / "home" / "tasks").iterdir()))
        assert session.created == []


@pytest.mark.proof("1 s of a processor")
async def test_launch_python_is_picked_or_typed(
    app: SkywardApp, session: FakeSession, hangs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    other = tmp_path / "bin" / "python3.12"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    (tmp_path / "pyvenv.cfg").write_text("implementation = PyPy\n")
    for name, text in {
        "VIRTUAL_ENV": str(hangs.parent),
        "PATH": f"{other.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYENV_ROOT": str(tmp_path),
        "CONDA_PREFIX": str(tmp_path / "nowhere"),
    }.items():
        monkeypatch.setenv(name, text)
    async with on_launch_form(app, SIZE, "train.py") as (pilot, screen):
        field = screen.query_one("#python", Input)
        await pilot.press("ctrl+n")
        version = ".".join(map(str, sys.version_info[:3]))
        project = f".venv of project {tmp_path.name[:9]}"
        await until(pilot, f"{version:<8} chosen automatically: {project}")
        await until(pilot, f"{version:<8} this program's own")
        await until(pilot, "?        VIRTUAL_ENV")  # no file says its version
        assert "CONDA_PREFIX" not in screen_text(app)
        await until(pilot, lambda: "python3.12" not in screen_text(app))  # it is PyPy
        await typed(app, pilot, "program's own")
        await press(pilot, "enter", until=lambda: field.value == sys.executable)
        words = f"pythonPython{version}at{sys.executable}(--python)"  # a path may stand on several lines
        await until(pilot, lambda: words in "".join(plan_text(screen).split()))
        form = screen.form()
        assert f"--python {sys.executable}" in command_line(form)
        await pilot.press("ctrl+n")
        await typed(app, pilot, str(tmp_path / "nothing"))  # what is not listed is taken as it is
        await press(pilot, "enter", until=lambda: field.value == "nothing")
        await until(pilot, "✗ --python nothing")
        await press(pilot, "ctrl+r", until=lambda: app.focused is field)
        await press(pilot, "ctrl+n", "enter", until=lambda: field.value == "")  # the one that is found by itself
        field.value = ".venv/bin/python"
        await press(pilot, "ctrl+r", until=lambda: bool(session.launched))
        (task,) = (task for _, task in session.launched)
        assert task.interpreter is not None and task.interpreter.source == "--python"
        assert recent_forms()[0].python == f"{tmp_path}/.venv/bin/python", "the same from every folder"


def plan_text(screen: LaunchScreen) -> str:
    return screen.query_one("#why", Static).visual.plain  # type: ignore[attr-defined,no-any-return]


def test_app_quits_and_kills_a_hanging_interpreter(tmp_path: Path, hangs: Path) -> None:
    program = (
        f"import runpy\nfrom skyward_core.tasks import bounded_subprocess as b; b.DEFAULT_TIMEOUT = {FOR_EVER}; "
        "runpy.run_module('skyward_tui', run_name='__main__')"
    )
    terminal = Terminal(tmp_path / "home", cwd=tmp_path, program=("-c", program))
    try:
        terminal.until("No pools yet")
        terminal.press("n", until="pick a script first")
        terminal.press("hangs/train.py", until="runs     train()")
        terminal.press("\x12", until=LOOKING)
        wait_until(lambda: terminal.read() and hangs.exists())  # a terminal that is not read blocks the app
        terminal.press("\x11")
        assert terminal.ended() == os.EX_OK
        assert "Traceback" not in terminal.text and "xception" not in terminal.text
        wait_until(lambda: all_ended(hangs))
    finally:
        terminal.close()
