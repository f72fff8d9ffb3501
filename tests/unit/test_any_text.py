"""Any text in form fields, arguments, options and variables: accepted or rejected, never a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import make_plan
from skyward_core.model.errors import SkywardError
from skyward_core.transport.local_transport_and_environments import LocalTransport
from skyward_core.transport.transport import StartBarrier
from skyward_tui.cli.main import cli
from skyward_tui.launch_form.form import Form, command_line, provider_choices, python_script, setting_fields
from skyward_tui.launch_form.plan_computation_and_text import PlanResult, compute_plan
from tests.support.commands import COMMANDS
from tests.support.examples import examples
from tests.support.ordinary_user import as_ordinary_user, close_to_users

SCRIPT = """import skyward_core as sky
from pathlib import Path


@sky.function
def train(data: Path = Path("x")) -> None: ...
"""
ODD = (
    "a" * 256, "a" * 256 + ".py:f", "a/" * 3000 + "x.py", "\0", "a\0b.py", "~\0/x", "~nobody-of-that-name/x.py",
    "\udcff.py", "\ud800", "9." + "9" * 5000, "loop", "loop/x.py", "closed", "closed/x.py", "closed/x.yaml",
    "closed/bin/python", "train.py/x", "[", "**", "../*", "", " ",
)  # fmt: skip
TEXT = st.sampled_from(ODD) | st.text(st.characters(), max_size=12)
FIELDS = [each.name for each in fields(Form) if each.type == "str"]
SETTINGS = [
    (name, setting)
    for name in provider_choices()
    for setting in setting_fields(name)
    if name in ("local", "ssh")  # a plan of the others asks their machines
]
TRIES = settings(
    max_examples=examples(300),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
    deadline=None,
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(folder / "home"))
        patch.delenv("VIRTUAL_ENV", raising=False)
        (folder / "project").mkdir()
        patch.chdir(folder / "project")
        Path("train.py").write_text(SCRIPT)
        Path("loop").symlink_to("loop")
        close_to_users(folder / "project" / "closed")
        yield folder / "project"


def with_text(field: str, text: str) -> Form:
    form = Form("train.py", "train", nodes="1")
    if field in FIELDS:
        return replace(form, **{field: text})  # type: ignore[arg-type]
    if field in ("plugin",):
        return replace(form, plugins=("torch",), plugin_settings={"torch.backend": text})
    provider, _, name = field.partition(".")
    return replace(form, provider=provider, settings={name: text})


def form_has_an_answer(field: str, text: str) -> None:
    form = with_text(field, text)
    found = compute_plan(form, ())
    assert isinstance(found, PlanResult) and (found.plan or found.job or found.error)
    assert isinstance(command_line(form), str) and isinstance(python_script(form, ()), str)


@TRIES
@given(st.sampled_from([*FIELDS, "plugin", *(f"{one}.{two}" for one, two in SETTINGS)]), TEXT)
def test_launch_form_field_accepts_or_rejects_any_text(field: str, text: str) -> None:
    form_has_an_answer(field, text)


@pytest.mark.proof("3 s of a processor", after=1)
@pytest.mark.parametrize("field", ["script", "python", "packages", "arguments", "outputs", "image"])
def test_launch_form_path_field_accepts_or_rejects_any_path(field: str) -> None:
    def each() -> None:
        for text in ODD:
            form_has_an_answer(field, f"data={text}" if field == "arguments" else text)
            form_has_an_answer(field, f"requirements {text}")

    each()
    as_ordinary_user(each)


NAMED = {
    "run": (["train.py"], ["--dry-run"]),
    "launch": (["job.yaml"], ["--dry-run"]),
    **dict.fromkeys(
        ("history", "results", "logs", "metrics", "record", "compare", "rerun", "replay", "queue", "stacks"), ([], [])
    ),
    "cp": (["x", "p:x"], []),
    "examples": ([], []),
    "failures": ([], []),
    "prune": ([], ["--dry-run"]),
    "debug-dump": ([], []),
}


def command_has_an_answer(place: str, text: str) -> None:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return  # no command line can hold it
    if "\0" in text:
        return
    words = [text if word is None else word for word in LINES[place]]
    done = CliRunner().invoke(cli, words, prog_name="skyward-tui")
    assert done.exception is None or isinstance(done.exception, SystemExit | click.ClickException), (
        words,
        done.exc_info,
    )
    assert "Traceback" not in done.output, done.output


def lines() -> Iterator[tuple[str, list[str | None]]]:
    """Return each place of a command line at which a user writes text, and the words; None is the place."""
    for name, (targets, more) in NAMED.items():
        for param in COMMANDS[name].params:
            if isinstance(param, click.Argument):
                for number in range(max(1, len(targets))):
                    words = [*targets[:number], None, *targets[number + 1 :]]
                    yield f"{name} {param.name} {number}", [name, *more, "--", *words]
            elif isinstance(param, click.Option) and not param.is_flag and not param.count:
                yield f"{name} {param.opts[-1]}", [name, *more, param.opts[-1], None, *targets]


LINES = dict(lines())


@TRIES
@given(st.sampled_from(sorted(LINES)), TEXT)
def test_command_line_accepts_or_rejects_any_text(place: str, text: str) -> None:
    command_has_an_answer(place, text)


@pytest.mark.parametrize("place", ["run target 0", "launch file 0", "run --python", "replay record 0", "cp source 0"])
def test_command_line_accepts_or_rejects_any_path(place: str) -> None:
    def each() -> None:
        for text in ODD:
            command_has_an_answer(place, text)

    each()
    as_ordinary_user(each)


VARIABLES = (
    "VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "PATH", "TMPDIR", "XDG_DATA_HOME", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR",
)  # fmt: skip


def test_environment_variable_may_hold_any_text() -> None:
    def each() -> None:
        for name in VARIABLES:
            for text in ODD:
                if "\0" in text or "\ud800" in text:
                    continue  # no variable can
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv(name, text)
                    with suppress(SkywardError):
                        make_plan(LaunchRequest(script="train.py", function="train"))

    as_ordinary_user(each)


def test_import_path_may_contain_unreadable_folders(folder: Path) -> None:
    def work() -> None:
        entries = ["", str(folder), str(folder / "closed"), str(folder / "closed" / "x"), "a" * 300, "loop", "a\0b"]
        assert str(folder) in LocalTransport._existing_entries(entries, StartBarrier(1))

    work()
    as_ordinary_user(work)
