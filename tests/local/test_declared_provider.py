"""A provider of another package: declared by an entry point, and there wherever providers are, with no line of ours."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core import providers
from skyward_core.model.errors import UsageError
from skyward_tui import launch_plan
from tests.local.cli import Cli

PROVIDER = '''
"""Rents nothing: machines are folders here, with a mark of whose they are."""

from skyward_core.model.machine import Check
from skyward_core.providers.local.provider import Local


class Cupboard(Local):
    name = "cupboard"
    about = "an old machine in the cupboard"
    machine = "shelf"

    def __repr__(self) -> str:
        return "Cupboard()"

    async def check(self) -> list[Check]:
        return [Check("cupboard", "ok", "the door is open")]
'''


def declare(folder: Path, name: str, value: str, module: str, text: str) -> None:
    """What pip leaves of an installed package."""
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[skyward.providers]\n{name} = {value}\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    declare(folder, "cupboard", "its_cupboard:Cupboard", "its_cupboard", PROVIDER)
    monkeypatch.syspath_prepend(folder)
    _forget()
    yield folder
    _forget()
    for module in ("its_cupboard", "its_broken", "its_other"):
        sys.modules.pop(module, None)


def _forget() -> None:
    providers._declared.cache_clear()
    launch_plan.provider_choices.cache_clear()


def test_it_is_found_by_name_and_offered_in_the_form(installed: Path) -> None:
    assert providers.names() == ["local", "ssh", "cupboard"]
    assert providers.resolve("cupboard").name == "cupboard"
    choice = launch_plan.provider_choices()["cupboard"]
    assert (choice.label, choice.node) == ("cupboard: an old machine in the cupboard", "shelf")
    assert repr(choice.make(launch_plan.Form(provider="cupboard"))) == "Cupboard()"


def test_one_that_cannot_be_loaded_is_named_and_harms_no_other(installed: Path) -> None:
    declare(installed, "broken", "its_broken:Broken", "its_broken", "import not_installed_here\n")
    declare(installed, "other", "its_other:Other", "its_other", "class Other:\n    name = 'another'\n")
    _forget()
    with pytest.raises(
        UsageError, match=r"'broken' \(its_broken:Broken\) cannot be loaded: ModuleNotFoundError"
    ):
        providers.by_name("broken")
    with pytest.raises(UsageError, match=r"'other' \(its_other:Other\) calls itself 'another'"):
        providers.by_name("other")
    choices = launch_plan.provider_choices()
    assert set(choices) == {"local", "ssh", "cupboard", "broken", "other"}
    with pytest.raises(launch_plan.FieldError, match="cannot be loaded"):
        choices["broken"].make(launch_plan.Form(provider="broken"))


def test_one_that_does_not_say_what_it_is_is_refused_in_words(installed: Path) -> None:
    declare(installed, "other", "its_other:Other", "its_other", "class Other:\n    name = 'other'\n")
    _forget()
    with pytest.raises(UsageError, match=r"'other' \(its_other:Other\) has no text under 'about'"):
        providers.by_name("other")
    assert launch_plan.provider_choices()["other"].label == "other"


def test_one_name_that_two_packages_declare_is_neither_s(installed: Path) -> None:
    text = PROVIDER.replace("Cupboard", "Other")
    declare(installed, "cupboard", "its_other:Other", "its_other", text)
    _forget()
    assert providers.names() == ["local", "ssh", "cupboard"]
    both = r"its_cupboard \(its_cupboard:Cupboard\) and its_other \(its_other:Other\)"
    with pytest.raises(UsageError, match=rf"'cupboard' is declared by {both}: uninstall all but one"):
        providers.by_name("cupboard")
    with pytest.raises(launch_plan.FieldError, match="uninstall all but one"):
        launch_plan.provider_choices()["cupboard"].make(launch_plan.Form(provider="cupboard"))


def test_the_doctor_goes_on_after_one_whose_check_breaks(installed: Path, tmp_path: Path) -> None:
    text = PROVIDER.replace("Cupboard", "Attic").replace('"cupboard"', '"attic"')
    declare(
        installed,
        "attic",
        "its_other:Attic",
        "its_other",
        text.replace("return [", "raise KeyError('dust') or ["),
    )
    cli = Cli(tmp_path)
    cli.env["PYTHONPATH"] = str(installed)
    said = cli("doctor", status=None).stdout
    assert "KeyError: 'dust'" in said and "the door is open" in said


def test_no_declared_one_takes_the_name_of_one_of_ours(installed: Path) -> None:
    declare(installed, "local", "its_other:Other", "its_other", "class Other:\n    name = 'local'\n")
    _forget()
    assert providers.names() == ["local", "ssh", "cupboard"]
    assert providers.by_name("local").__module__ == "skyward_core.providers.local.provider"


@pytest.mark.parametrize("name", ["told", "base", "local.provider", "../local", "", "nobody"])
def test_what_is_no_provider_is_none(name: str) -> None:
    with pytest.raises(UsageError, match="no provider is called"):
        providers.by_name(name)


def test_it_runs_a_script_and_the_ledger_and_the_doctor_know_it(installed: Path, tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.env["PYTHONPATH"] = str(installed)
    told = json.loads(cli("run", "endings.py:fine", "--provider", "cupboard", "--keep", "--json").stdout)
    pool = told["pool"]
    shown = cli.json("ls")["pools"]
    assert [(each["name"], each["provider"]) for each in shown] == [(pool, "cupboard")]
    with sqlite3.connect(tmp_path / "home" / "ledger.db") as db:
        assert db.execute("SELECT provider FROM pools").fetchall() == [('{"provider": "cupboard"}',)]
    assert "the door is open" in cli("doctor", status=None).stdout

    without = Cli(tmp_path)  # its package is not installed where this runs
    (shown,) = without.json("ls")["pools"]
    assert (shown["name"], shown["state"]) == (pool, "unreachable")
    done = without("down", pool, status=None)
    assert (done.returncode, "package must be installed here" in done.stderr) == (3, True), done.stderr

    (receipt,) = cli.json("down", pool)["receipts"]
    assert receipt["gone"] == [0]
