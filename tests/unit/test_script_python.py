"""Which Python a launch takes for its script, where what it asks for needs another than the one that is found."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from skyward_core.client.launch.launch_plan import make_plan, script_python
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.model.errors import ScriptError, SpecError
from skyward_core.model.specs import Image, PoolSpec
from skyward_core.plugins import by_name
from skyward_core.plugins.plugin import Plugin, transform_image
from skyward_core.providers.local.provider import Local
from skyward_core.tasks import missing_packages
from skyward_core.tasks.missing_packages import FRAMEWORKS
from tests.support.cli import EXAMPLES
from tests.support.pythons import another_python

OWN = ".".join(map(str, sys.version_info[:3]))
SCRIPT = "import nowhere_to_be_found\nimport skyward_core as sky\n\n\n@sky.function\ndef f() -> None: ...\n"
LOCK = 'version = 1\nrequires-python = "{}"\n[[package]]\nname = "train"\nsource = {{ virtual = "." }}\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "pyproject.toml").touch()
    monkeypatch.chdir(folder)
    return folder


def launch(project: Path, **asked: str) -> LaunchRequest:
    return LaunchRequest(script=str(project / "train.py"), function="f", **asked)  # type: ignore[arg-type]


def test_a_lock_for_another_python_is_given_one_that_is_here(project: Path) -> None:
    other = another_python()
    wanted = f"=={other.version}"
    (project / "uv.lock").write_text(LOCK.format(wanted))
    found = make_plan(launch(project, lock="uv.lock")).interpreter
    assert (found.version, found.base, found.source) == (other.version, other.path, "uv.lock")
    said = f"was passed over: it is {OWN}, and uv.lock asks for Python {wanted}"
    assert found.notes == (f"this program's own Python {said}",)
    (project / "pyproject.toml").write_text(
        f'[project]\nname = "train"\nrequires-python = "{wanted}"\ndependencies = []\n'
    )
    found = make_plan(LaunchRequest(script="train.py", project=True)).interpreter
    assert (found.version, found.source) == (other.version, "pyproject.toml")


@pytest.mark.parametrize(
    "heading",
    [
        "installed for pool p with Python {minor}; Image(lock=...) has it installed again",
        "nothing was installed for pool p: its ranks had Python {version} at /p/python (.venv of project train), with",
    ],
)
def test_a_lock_that_was_kept_of_a_run_has_that_run_s_python(project: Path, heading: str) -> None:
    other = another_python()
    minor = ".".join(other.version.split(".")[:2])
    first = f"# {heading.format(minor=minor, version=other.version)}\n"
    (project / "run.lock").write_text(first + "skytiny==1.0\n")
    found = make_plan(launch(project, lock="run.lock")).interpreter
    assert (found.minor, found.source) == (minor, "run.lock")
    assert found.notes[0].endswith(f"it is {OWN}, and run.lock asks for Python =={minor}.*")
    said = make_plan(launch(project, lock="run.lock", python=sys.executable)).interpreter
    assert (said.version, said.path) == (OWN, sys.executable), "a person's word counts"
    (project / "run.lock").write_text(f"# by hand\n{first}skytiny==1.0\n")
    assert make_plan(launch(project, lock="run.lock")).interpreter.version == OWN


def test_an_environment_of_another_version_than_the_lock_is_for_is_passed_over(project: Path) -> None:
    (project / "uv.lock").write_text(LOCK.format(f"!={OWN}"))
    other = another_python()
    program = project / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    (project / ".venv" / "pyvenv.cfg").touch()
    found = make_plan(launch(project, lock="uv.lock")).interpreter
    assert found.base and found.version != OWN, other
    assert found.notes[0].startswith(f".venv of project train was passed over: it is {OWN}, and uv.lock asks")
    with pytest.raises(SpecError, match="is for Python !="):  # a person's word is not passed over
        make_plan(launch(project, lock="uv.lock", python=str(program)))


def test_where_there_is_none_of_that_version_the_lock_is_named(project: Path) -> None:
    (project / "uv.lock").write_text(LOCK.format(">=3.19"))
    with pytest.raises(ScriptError, match=r'uv\.lock asks for Python ">=3\.19", and there is none here') as caught:
        make_plan(launch(project, lock="uv.lock"))
    assert caught.value.field == "lock"


class Brings(Plugin):
    """It needs a package."""

    name: ClassVar[str] = "brings"

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return replace(image, pip=(*image.pip, "nowhere-to-be-found==1.0"))


def test_what_plugins_bring_loads_a_script_that_needs_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = project / "train.py"
    spec = PoolSpec(name="p", provider=Local(), plugins=[Brings()])
    assert not script_python(script, None, spec)[0].chosen, "nobody knows what that module is"
    monkeypatch.setattr(
        "skyward_core.client.launch.script_plugin_provider_discovery.FRAMEWORKS", ("nowhere_to_be_found",)
    )
    found, packages = script_python(script, None, spec)
    assert packages is None and found.source == "plugins of the pool: brings"
    assert found.environment["pip"] == ["nowhere-to-be-found==1.0"] and found.version == OWN
    (project / ".venv").symlink_to(sys.prefix)  # this program lives in the project's own
    assert script_python(script, None, spec)[0].source == "plugins of the pool: brings"
    (project / ".venv").unlink()
    monkeypatch.setattr(missing_packages, "is_missing", lambda module: False)
    assert not script_python(script, None, spec)[0].chosen, "what is here is used"


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_an_installation_without_frameworks_has_what_each_example_needs_made(example: Path) -> None:
    names = re.findall(r"--plugin (\w+)", example.read_text(encoding="utf-8"))
    spec = PoolSpec(name="p", provider=Local(), plugins=[by_name(name) for name in names])
    brought = transform_image(spec.plugins, Image(), spec).describe()["pip"]
    packages = {re.split(r"[^\w-]", each)[0] for each in brought} | {"numpy"}  # which all of these depend on
    text = example.read_text()
    assert {name for name in FRAMEWORKS if re.search(rf"^\s*(import|from) {name}\b", text, re.MULTILINE)} <= packages
