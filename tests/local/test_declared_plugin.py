"""A plugin of another package: declared by an entry point, and there wherever plugins are, with no line of ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from textual.widgets import Input

from skyward_core import plugins
from skyward_core.model.errors import UsageError
from skyward_core.plugins import PluginError
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.launch.screen import LaunchScreen
from skyward_tui.widgets.form_fields import Toggles
from tests.support.app_driver import screen_text, until
from tests.support.cli import Cli
from tests.support.fake_session import FakeSession
from tests.support.installed_package import install_package

PLUGIN = '''
"""Says who is there, before each rank's first call."""

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from skyward_core.plugins import Plugin


@dataclass(frozen=True)
class Greeter(Plugin):
    """Greets."""

    name: ClassVar[str] = "greeter"
    help: ClassVar[str] = "a word of welcome in every rank"
    word: str = field(default="welcome", metadata={"help": "what is said"})

    @contextmanager
    def around_process(self, info):
        os.environ["GREETING"] = f"{self.word}, rank {info.rank}"
        yield
'''
SCRIPT = """
import os
import skyward_core as sky

@sky.function
def greeting() -> str:
    return os.environ["GREETING"]
"""


declare = partial(install_package, "skyward.plugins")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    declare(folder, "greeter", "its_greeter:Greeter", "its_greeter", PLUGIN)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for module in ("its_greeter", "its_broken", "its_other"):
        sys.modules.pop(module, None)


def told(name: str) -> plugins.PluginInfo:
    return next(info for info in plugins.available() if info.name == name)


def test_it_is_found_by_name_and_listed_as_it_declares_itself(installed: Path) -> None:
    assert plugins.by_name("greeter").name == "greeter"
    assert told("greeter").help == "a word of welcome in every rank"
    assert told("greeter").parameters == {"word": "what is said"}
    with pytest.raises(UsageError, match=r"available: torch, jax.*greeter"):
        plugins.by_name("zzz")
    with pytest.raises(UsageError, match="did you mean greeter"):
        plugins.by_name("greetr")


def test_ours_say_what_they_are_and_what_each_parameter_is() -> None:
    listed = plugins.available()
    assert [info.name for info in listed][:9] == [
        "torch",
        "jax",
        "keras",
        "tensorflow",
        "huggingface",
        "accelerate",
        "mig",
        "joblib",
        "sklearn",
    ]
    assert {info.name for info in listed[:9]} <= set(plugins.__all__)
    for info in listed[:9]:
        kind = type(plugins.by_name(info.name))
        assert info.help
        for name in info.parameters:
            assert kind.__dataclass_fields__[name].metadata["help"], (info.name, name)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("import not_installed_here\n", PluginError, "cannot be imported: ModuleNotFoundError"),
        ("1 / 0\n", PluginError, "cannot be imported: ZeroDivisionError"),
        ("class Broken:\n    name = 'broken'\n", UsageError, "is not a plugin"),
        (PLUGIN.replace("Greeter", "Broken"), PluginError, "has another name: 'greeter'"),
        (
            PLUGIN.replace("Greeter", "Broken").replace('default="welcome", ', ""),
            UsageError,
            r"plugin broken requires parameters: word: what is said",
        ),
        (
            PLUGIN.replace("Greeter", "Broken") + "    def __post_init__(self):\n        raise KeyError('dust')\n",
            PluginError,
            "cannot be created: KeyError: 'dust'",
        ),
    ],
)
def test_one_that_cannot_be_had_is_told_in_words_and_harms_no_other(
    installed: Path, text: str, error: type[Exception], why: str
) -> None:
    declare(installed, "broken", "its_broken:Broken", "its_broken", text)
    with pytest.raises(error, match=why):
        plugins.by_name("broken")
    assert {"torch", "greeter", "broken"} <= {info.name for info in plugins.available()}
    assert told("broken").help
    assert plugins.by_name("greeter").name == "greeter"


def test_two_packages_that_declare_one_name_are_refused_and_named(installed: Path) -> None:
    declare(installed, "greeter", "its_other:Greeter", "its_other", PLUGIN)
    with pytest.raises(UsageError, match=r"declared by its.greeter \(its_greeter:Greeter\) and its.other "):
        plugins.by_name("greeter")
    assert "Uninstall all but one" in told("greeter").help
    assert plugins.by_name("torch").name == "torch"


def test_none_takes_the_name_of_one_of_ours(installed: Path) -> None:
    declare(installed, "torch", "its_other:Greeter", "its_other", PLUGIN)
    assert plugins.by_name("torch").__module__ == "skyward_core.plugins.built_in.torch"
    assert [info.name for info in plugins.available()].count("torch") == 1


def test_what_is_declared_is_read_only_where_none_of_ours_is_meant(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(group: str) -> None:
        raise AssertionError(group)

    monkeypatch.setattr("importlib.metadata.entry_points", never)
    assert plugins.by_name("joblib").name == "joblib"
    assert plugins.sklearn().name == "sklearn"
    with pytest.raises(AssertionError):
        plugins.by_name("greeter")


def test_it_runs_with_a_script(installed: Path, tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.env["PYTHONPATH"] = str(installed)
    cli.write("greets.py", SCRIPT)
    done = cli("run", "greets.py", "--plugin", "greeter", "--ranks-per-node", "2")
    assert "welcome, rank 0" in done.stdout and "welcome, rank 1" in done.stdout
    done = cli("run", "greets.py", "--plugin", "greeter", "--plugin-set", "greeter.word=good day")
    assert "good day, rank 0" in done.stdout
    done = cli("run", "greets.py", "--plugin", "greeter", "--plugin-set", "greeter.wrd=hi", status=None)
    assert "plugin greeter has no argument 'wrd'. Did you mean 'word'?" in done.stderr
    done = cli("run", "greets.py", "--plugin", "greeter", "--plugin-set", "word=hi", status=None)
    assert "--plugin-set word=hi: invalid plugin parameter. Write PLUGIN.NAME=VALUE" in done.stderr
    declare(installed, "broken", "its_broken:Broken", "its_broken", "import not_installed_here\n")
    done = cli("run", "greets.py", "--plugin", "broken", status=None)
    assert done.returncode != 0
    assert "plugin broken (its_broken:Broken) cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr


async def test_the_form_says_what_the_plugin_under_the_cursor_is_for(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    session = FakeSession()
    app = SkywardApp(lambda: session, clock=lambda: session.now)  # type: ignore[arg-type,return-value]
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session is not None)
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        toggles = app.screen.query_one("#plugins", Toggles)
        assert "process group" not in screen_text(app)
        toggles.focus()
        await until(pilot, lambda: "torch: PyTorch, with a process group across all ranks" in screen_text(app))
        await pilot.press(*["right"] * len(toggles.options))
        await until(pilot, lambda: "greeter: a word of welcome in every rank" in screen_text(app))
        assert "what is said" in str(toggles.tooltip)
        app.screen.query_one("#script", Input).focus()
        await until(pilot, lambda: "a word of welcome" not in screen_text(app))
