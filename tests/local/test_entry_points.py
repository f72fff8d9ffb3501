"""Plugins and providers of other packages, declared by entry points."""

from __future__ import annotations

import inspect
import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core import plugins, providers
from skyward_core.client.launch.launch_plan import LaunchPlan
from skyward_core.model.errors import UsageError
from skyward_core.plugins import PluginError
from skyward_tui.launch_form import form as launch_form
from skyward_tui.launch_form import plan_computation_and_text as plan_text
from tests.support.cli import Cli
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


declare_plugin = partial(install_package, "skyward.plugins")


@pytest.fixture
def plugin_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    declare_plugin(folder, "greeter", "its_greeter:Greeter", "its_greeter", PLUGIN)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for module in ("its_greeter", "its_broken", "its_other"):
        sys.modules.pop(module, None)


def plugin_info(name: str) -> plugins.PluginInfo:
    return next(info for info in plugins.available() if info.name == name)


def test_entry_point_plugin_is_found_and_listed(plugin_site: Path) -> None:
    assert plugins.by_name("greeter").name == "greeter"
    assert plugin_info("greeter").help == "a word of welcome in every rank"
    assert plugin_info("greeter").parameters == {"word": "what is said"}
    with pytest.raises(UsageError, match=r"available: torch, jax.*greeter"):
        plugins.by_name("zzz")
    with pytest.raises(UsageError, match="did you mean greeter"):
        plugins.by_name("greetr")


def test_built_in_plugins_have_help_for_every_parameter() -> None:
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
def test_broken_entry_point_plugin_is_explained_and_harms_no_other(
    plugin_site: Path, text: str, error: type[Exception], why: str
) -> None:
    declare_plugin(plugin_site, "broken", "its_broken:Broken", "its_broken", text)
    with pytest.raises(error, match=why):
        plugins.by_name("broken")
    assert {"torch", "greeter", "broken"} <= {info.name for info in plugins.available()}
    assert plugin_info("broken").help
    assert plugins.by_name("greeter").name == "greeter"


def test_plugin_name_declared_by_two_packages_is_rejected(plugin_site: Path) -> None:
    declare_plugin(plugin_site, "greeter", "its_other:Greeter", "its_other", PLUGIN)
    with pytest.raises(UsageError, match=r"declared by its.greeter \(its_greeter:Greeter\) and its.other "):
        plugins.by_name("greeter")
    assert "Uninstall all but one" in plugin_info("greeter").help
    assert plugins.by_name("torch").name == "torch"


def test_entry_point_plugin_cannot_replace_a_built_in_plugin(plugin_site: Path) -> None:
    declare_plugin(plugin_site, "torch", "its_other:Greeter", "its_other", PLUGIN)
    assert plugins.by_name("torch").__module__ == "skyward_core.plugins.built_in.torch"
    assert [info.name for info in plugins.available()].count("torch") == 1


def test_entry_point_plugin_runs_with_a_script(plugin_site: Path, tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.env["PYTHONPATH"] = str(plugin_site)
    cli.write("greets.py", SCRIPT)
    done = cli("run", "greets.py", "--plugin", "greeter", "--ranks-per-node", "2")
    assert "welcome, rank 0" in done.stdout and "welcome, rank 1" in done.stdout
    done = cli("run", "greets.py", "--plugin", "greeter", "--plugin-set", "greeter.word=good day")
    assert "good day, rank 0" in done.stdout
    done = cli("run", "greets.py", "--plugin", "greeter", "--plugin-set", "word=hi", status=None)
    assert "--plugin-set word=hi: invalid plugin parameter. Write PLUGIN.NAME=VALUE" in done.stderr


PROVIDER = '''
"""Rents nothing: machines are folders here, with a mark of whose they are."""

from skyward_core.model.errors import UsageError
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.providers.local.provider import Local
from skyward_core.model.provider_settings_schema import Field, Setting

def which() -> Field:
    return Field(label="Shelf", placeholder="top or bottom", missing="name a shelf: top", suggestions=["top", "bottom"])

class Cupboard(Local):
    name = "cupboard"
    about = "an old machine in the cupboard"
    machine = "shelf"
    price_hourly = 0.25
    settings = (
        Setting(name="shelf", help="where it stands", default="top", field=which),
        Setting(name="drawers", help="how many are pulled out", type=int, default=0),
    )

    def __init__(self, shelf: str = "top", drawers: int = 0) -> None:
        super().__init__()
        if shelf not in ("top", "bottom"):
            raise UsageError(f"there is no shelf {shelf!r}: top or bottom")
        self.shelf, self.drawers = shelf, drawers

    def __repr__(self) -> str:
        return f"Cupboard({self.shelf!r}, {self.drawers})"

    async def check(self) -> list[Check]:
        return [Check("cupboard", "ok", "the door is open")]

    def to_json(self) -> dict[str, object]:
        return {"provider": self.name, "shelf": self.shelf, "drawers": self.drawers}

    @classmethod
    def from_json(cls, data):
        return cls(data["shelf"], data["drawers"])
'''
ATTIC = PROVIDER.replace("Cupboard", "Attic").replace('"cupboard"', '"attic"')


declare = partial(install_package, "skyward.providers")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    declare(folder, "cupboard", "its_cupboard:Cupboard", "its_cupboard", PROVIDER)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("import skyward_core as sky\n@sky.function\ndef go(): ...\n")
    _forget()
    yield folder
    _forget()
    for module in ("its_cupboard", "its_broken", "its_other"):
        sys.modules.pop(module, None)


@pytest.fixture
def cli(installed: Path, tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    cli.env["PYTHONPATH"] = str(installed)
    return cli


def checked(provider: str = "cupboard", **settings: str) -> LaunchPlan:
    """Return the error of a form that is valid except for the provider's own checks."""
    return launch_form.plan_launch(launch_form.Form("x.py", name="x", provider=provider, settings=settings), ())


def provider_repr(provider: str = "cupboard", **settings: str) -> str:
    spec = checked(provider, **settings).spec
    assert spec is not None
    return repr(spec.provider)


def _forget() -> None:
    providers._declared_providers.cache_clear()
    launch_form.provider_choices.cache_clear()
    launch_form._settings_by_id.cache_clear()


def test_entry_point_provider_is_found_and_offered_in_the_form(installed: Path) -> None:
    assert providers.provider_names() == ["aws", "local", "slurm", "ssh", "cupboard"]
    assert providers.resolve_provider("cupboard").name == "cupboard"
    choice = launch_form.provider_choices()["cupboard"]
    assert choice.label == "cupboard: an old machine in the cupboard"
    assert list(launch_form.setting_fields("cupboard")) == ["shelf"]
    assert provider_repr() == "Cupboard('top', 0)"
    assert checked().price_hourly == 1.0
    assert plan_text.plan_rows(checked())[0] == ("creates", "pool x: 4 shelfs × 1 rank, world size 4")


def test_provider_setting_field_validates_and_becomes_an_option(installed: Path) -> None:
    def form(text: str) -> launch_form.Form:
        return launch_form.Form(provider="cupboard", settings={"shelf": text})

    assert provider_repr(shelf="bottom") == "Cupboard('bottom', 0)"
    with pytest.raises(launch_form.FieldError, match="no shelf 'attic'") as caught:
        checked(shelf="attic")
    assert caught.value.field == "shelf"
    assert "--provider cupboard --set shelf=bottom" in launch_form.command_line(form("bottom"))
    assert "--set" not in launch_form.command_line(form(""))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("7", "its settings are not a list"),
        ('["shelf"]', "its settings hold 'shelf', which is not a Setting"),
        ('[Setting(name="a b", help="")]', "its setting 'a b' is not a valid parameter name"),
        ('[Setting(name="a", help=""), Setting(name="a", help="")]', "it declares setting 'a' twice"),
    ],
)
def test_invalid_provider_settings_declaration_is_rejected(installed: Path, settings: str, why: str) -> None:
    declare(installed, "attic", "its_other:Attic", "its_other", f"{ATTIC}\nAttic.settings = {settings}\n")
    _forget()
    with pytest.raises(UsageError, match=re.escape(why)):
        providers.provider_class("attic")


@pytest.mark.parametrize("ours", [sky.SSH, sky.AWS, sky.Slurm])
def test_built_in_providers_declare_settings_for_all_parameters(ours: Any) -> None:
    taken = {
        name: (value.default, value.default is value.empty)
        for name, value in inspect.signature(ours).parameters.items()
    }
    for setting in ours.settings:
        default, required = taken.pop(setting.name)
        assert setting.required == required
        assert required or setting.default == default
    assert not taken


def test_broken_entry_point_provider_is_named_and_harms_no_other(installed: Path) -> None:
    declare(installed, "broken", "its_broken:Broken", "its_broken", "import not_installed_here\n")
    declare(installed, "other", "its_other:Other", "its_other", "class Other:\n    name = 'another'\n")
    _forget()
    with pytest.raises(UsageError, match=r"'broken' \(its_broken:Broken\) cannot be loaded: ModuleNotFoundError"):
        providers.provider_class("broken")
    with pytest.raises(UsageError, match=r"'other' \(its_other:Other\): its class has the name 'another'"):
        providers.provider_class("other")
    choices = launch_form.provider_choices()
    assert set(choices) == {"aws", "local", "slurm", "ssh", "cupboard", "broken", "other"}
    with pytest.raises(launch_form.FieldError, match="cannot be loaded"):
        checked("broken")


def test_provider_name_declared_by_two_packages_is_rejected(installed: Path) -> None:
    text = PROVIDER.replace("Cupboard", "Other")
    declare(installed, "cupboard", "its_other:Other", "its_other", text)
    _forget()
    assert providers.provider_names() == ["aws", "local", "slurm", "ssh", "cupboard"]
    both = r"its_cupboard \(its_cupboard:Cupboard\) and its_other \(its_other:Other\)"
    with pytest.raises(UsageError, match=rf"'cupboard' is declared by {both}. Uninstall all but one"):
        providers.provider_class("cupboard")
    with pytest.raises(launch_form.FieldError, match="Uninstall all but one"):
        checked()


def test_entry_point_provider_cannot_replace_a_built_in_provider(installed: Path) -> None:
    declare(installed, "local", "its_other:Other", "its_other", "class Other:\n    name = 'local'\n")
    _forget()
    assert providers.provider_names() == ["aws", "local", "slurm", "ssh", "cupboard"]
    assert providers.provider_class("local").__module__ == "skyward_core.providers.local.provider"


@pytest.mark.parametrize("name", ["told", "base", "local.provider", "../local", "", "nobody"])
def test_unknown_provider_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="no provider is called"):
        providers.provider_class(name)


@pytest.mark.proof("2 s of a processor")
def test_entry_point_provider_runs_a_script_and_is_in_the_ledger(cli: Cli, tmp_path: Path) -> None:
    given = ("--set", "shelf=bottom", "--set", "drawers=2")
    report = json.loads(cli("run", "endings.py:fine", "--provider", "cupboard", *given, "--keep", "--json").stdout)
    pool = report["pool"]
    shown = cli.json("ls")["pools"]
    assert [(each["name"], each["provider"], each["price_hourly"]) for each in shown] == [(pool, "cupboard", 0.25)]
    with sqlite3.connect(tmp_path / "home" / "ledger.db") as db:
        assert db.execute("SELECT provider FROM pools").fetchall() == [
            ('{"provider": "cupboard", "shelf": "bottom", "drawers": 2}',)
        ]
    assert "the door is open" in cli("doctor", status=None).stdout

    without = Cli(tmp_path)  # its package is not installed where this runs
    (shown,) = without.json("ls")["pools"]
    assert (shown["name"], shown["state"]) == (pool, "unreachable")
    done = without("down", pool, status=None)
    assert (done.returncode, "install the package of provider" in done.stderr) == (3, True), done.stderr

    (receipt,) = cli.json("down", pool)["receipts"]
    assert receipt["gone"] == [0]


@pytest.mark.proof("3 s of a processor", after=1)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "shelf=attic"), "there is no shelf 'attic'"),
        (("--set", "shlef=top"), "provider cupboard has no setting 'shlef'; did you mean 'shelf'?"),
        (("--set", "colour=red"), "it has shelf (where it stands), drawers (how many are pulled out)"),
        (("--set", "drawers=many"), "drawers: a whole number, not 'many'"),
        (("--set", "drawers"), "invalid setting. Write KEY=VALUE"),
        (("--hosts", "gpu1"), "cannot be combined with provider cupboard"),
    ],
)
def test_invalid_provider_setting_on_the_command_line_is_rejected(
    cli: Cli, words: tuple[str, ...], message: str
) -> None:
    done = cli("run", "endings.py:fine", "--provider", "cupboard", *words, status=None)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
