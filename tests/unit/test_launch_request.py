"""Launch requests as form, command line and Python snippet, without loss between them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import example, given, settings

import skyward_core as sky
from skyward_core.client.launch.launch_option_declarations import OPTIONS, LaunchRequest
from skyward_core.client.launch.launch_plan import make_plan, make_spec
from skyward_core.client.launch.python_snippet import write_snippet
from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.model.specs import PoolSpec
from skyward_core.providers import DEFAULT_PROVIDER, built_in_names, provider_class
from skyward_tui.cli.main import cli
from skyward_tui.launch_form.form import (
    FOLDER,
    Form,
    build_request,
    command_line,
    form_from_request,
    path_of,
    plan_launch,
)
from tests.support.commands import COMMANDS
from tests.support.examples import examples
from tests.support.launch_requests import HOSTILE, SECRET, USUAL, requests

SCRIPT = """
from datetime import date
from enum import Enum
from pathlib import Path

import skyward_core as sky

class Colour(Enum):
    RED = 1

@sky.function
def train(epochs: int = 1, note: str = "", rate: float = 0.1, sizes: list[int] = [], any=None): ...

@sky.function
def placed(first, /, second: int = 2, *rest: float, day: date = date(2000, 1, 1), where: Path = Path(), **more): ...

@sky.function
def painted(colour: Colour): ...

@sky.function
def counted(n: int = 2):
    yield from range(n)

@sky.function
def pool(): ...
"""

LOCK = "rich==14.0.0\n"  # one line for each package is a lock, too


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("it is")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(folder / "home"))
        patch.chdir(folder)
        for name in ("train_it.py", "train it.py", "-x.py", "-a.py", "x:y.py", "x", "x:train", "sky_script.py"):
            Path(name).write_text(SCRIPT)
        Path("a lock").mkdir()
        Path("a lock/uv.lock").write_text(LOCK)
        Path("requirements.txt").write_text("rich>=13\n")
        Path("pyproject.toml").write_text('[project]\nname = "it"\nversion = "1"\ndependencies = ["rich"]\n')
        yield folder


def parse_words(words: list[str]) -> LaunchRequest:
    """Return the request that the command's own parser makes of the words."""
    asked: list[LaunchRequest] = []

    def execute(request: LaunchRequest, console: object, **_: bool) -> int:
        asked.append(request)
        return 0

    run = cli.commands["run"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skyward_tui.cli.commands.launched_and_attached_runs.run", execute)
        parent = click.Context(cli, **cli.context_settings)
        with run.make_context("run", list(words), parent=parent) as context:
            run.invoke(context)
    return asked[0]


def same_spec(one: PoolSpec, other: PoolSpec) -> bool:
    """Return the parts of a specification that are not generated."""
    given = [
        (
            spec.describe() | {"name": ""},
            type(spec.provider),
            vars(spec.provider) if spec.provider.name == "ssh" else (),
            spec.wish,
            spec.plugins,
            spec.image.env,
            spec.options.secrets,
        )
        for spec in (one, other)
    ]
    return given[0] == given[1]


# -- requests --------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="module")
def _shell() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_TOKEN", SECRET)
        yield


# -- the command line ------------------------------------------------------------------------------------


@settings(max_examples=examples(50))
@given(request=requests())
def test_command_line_of_a_launch_request_parses_to_it(request: LaunchRequest) -> None:
    line = request.command_line("program", "run")
    assert SECRET not in line
    again = parse_words(shlex.split(line)[2:])
    assert again == request
    assert again.shapes_pool == request.shapes_pool
    assert same_spec(make_spec(again)[0], make_spec(request)[0])


@given(request=HOSTILE)
@example(request=LaunchRequest(script="-x.py", function="train", plugins=["--keep"], pool="-p"))
@example(request=LaunchRequest(script="x:train"))
@example(request=LaunchRequest(script="x", function="train"))
@example(request=LaunchRequest(script="gone:train"))
@example(request=LaunchRequest(script="train_it.py", settings={"a=b": "c"}))
@example(request=LaunchRequest(script="a" * 300, function="b"))
@example(request=LaunchRequest(script="a", provider="ssh", settings={"hosts": "--pool", "user": "=\n"}))
def test_any_launch_request_round_trips_or_is_rejected(request: LaunchRequest) -> None:
    try:
        words = shlex.split(request.command_line())
    except UsageError as error:
        assert str(error)
        return
    try:
        again = parse_words(words)
    except click.UsageError as error:
        assert str(error.format_message())
        return
    except SkywardError:
        assert request.provider not in (None, "local", "ssh")  # --hosts of a provider that there is not
        return
    assert replace(again, timeout=None) == replace(request, timeout=None)
    assert repr(again.timeout) == repr(request.timeout)


def test_every_request_field_has_one_option_of_the_run_command() -> None:
    """A new field needs a row in the table and an option of the command."""
    assert {each.name for each in fields(LaunchRequest)} == {"script", "function", "script_args", "module", *OPTIONS}
    params = COMMANDS["run"].params
    of_command = {each.name: each.opts[-1] for each in params if isinstance(each, click.Option)}
    others = {"hosts": "--hosts", "as_json": "--json", "debug": "--debug"}
    others |= {"as_module": "--module", "dry_run": "--dry-run", "watch": "--watch", "on_change": "--on-change"}
    assert of_command == {name: each.name for name, each in OPTIONS.items()} | others


def test_provider_setting_without_option_of_run_uses_set(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = sky.SSH.settings[1]
    monkeypatch.setattr(shelf, "option", "--shelf")
    request = LaunchRequest(script="train_it.py", provider="ssh", settings={"hosts": "a", "user": "me"})
    assert request.to_argv()[3:] == ["--hosts", "a", "--set", "user=me"]


# -- the form --------------------------------------------------------------------------------------------


@settings(max_examples=examples(50))
@given(request=requests())
def test_launch_form_round_trips_a_request(request: LaunchRequest) -> None:
    only_of_commands: dict[str, Any] = {"detach": False, "keep": request.keep or request.detach}
    usual = {name: None for name in ("allocation", "selection") if getattr(request, name) in USUAL}
    request = replace(request, **only_of_commands | usual)  # the form says nothing of what holds anyway
    form = form_from_request(request)
    again = build_request(form)
    assert same_spec(make_spec(again)[0], make_spec(request)[0])
    expected = request
    if not form.pool:  # the form shows what holds where nothing is said
        expected = replace(request, provider=request.provider or DEFAULT_PROVIDER)
        if request.ranks_per_node == 1:
            expected = replace(expected, ranks_per_node=None)
    assert again == expected
    assert build_request(form_from_request(again)) == again
    line = command_line(form)
    assert parse_words(shlex.split(line)[2:]) == again


@settings(max_examples=examples(50))
@given(request=requests())
def test_launch_form_and_its_command_line_make_equal_plans(request: LaunchRequest) -> None:
    form = form_from_request(
        replace(request, detach=False, pool="mine", nodes=request.nodes or 1, provider=request.provider or "local")
    )
    plan, of_command = plan_launch(form, ()), make_plan(parse_words(shlex.split(command_line(form))[2:]))
    assert plan.spec is not None and of_command.spec is not None
    assert repr(plan.values) == repr(of_command.values)
    assert (plan.script, plan.function, plan.whole, plan.request.one, plan.keep, plan.request.timeout) == (
        of_command.script, of_command.function, of_command.whole, of_command.request.one, of_command.keep,
        of_command.request.timeout,
    )  # fmt: skip
    here = plan.spec.provider.name == "local"
    assert (plan.spec.options.nice, of_command.spec.options.nice) == (5 if here else 0, 0), "the app is there, too"
    plan = replace(plan, pool=replace(plan.spec, options=of_command.spec.options))
    assert plan.spec is not None
    assert plan.spec.describe() == of_command.spec.describe()
    assert getattr(plan.spec.provider, "hosts", ()) == getattr(of_command.spec.provider, "hosts", ())


@pytest.mark.parametrize("more", [{"provider": "ssh", "settings": {"hosts": "a", "user": "me"}}, {"script": " x.py"}])
def test_form_rejects_requests_with_settings_it_has_no_field_for(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"no field for {'user' if 'settings' in more else next(iter(more))}"):
        form_from_request(LaunchRequest(**({"script": "train_it.py"} | more)))


def test_form_for_a_running_pool_omits_pool_shape() -> None:
    form = Form("train_it.py", "train", pool="warm", name="other", nodes="7", ranks_per_node="9", plugins=("torch",))
    assert build_request(form) == LaunchRequest(script="train_it.py", function="train", pool="warm", keep=True)
    assert form_from_request(build_request(form)) == replace(Form("train_it.py", "train", pool="warm", nodes=""))


def test_form_with_invalid_script_shows_no_command() -> None:
    assert command_line(Form("example:nothing")).startswith("# no example is named 'nothing'")
    assert command_line(Form("gone.py:train")).startswith("# on a command line gone.py:train means gone.py and")
    assert command_line(Form("a" * 300, "b")).startswith(f"skyward-tui run {'a' * 300}:b ")
    assert command_line(Form(str(FOLDER / "ddp.py"), "train")).startswith("skyward-tui run example:ddp:train ")
    assert str(path_of("~nobody-of-that-name/x.py")) == "~nobody-of-that-name/x.py"


# -- Python ----------------------------------------------------------------------------------------------


def executed(snippet: str) -> tuple[PoolSpec, Any, str]:
    """Return the pool that a snippet requests, its call, and the operator."""
    asked: list[PoolSpec] = []
    calls: list[tuple[Any, str]] = []

    class Pool:
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run_all(self, call: Any) -> list[Any]:
            calls.append((call, "@"))
            return []

        def run_one(self, call: Any) -> Any:
            calls.append((call, ">>"))
            return ()

    def compute(**given: Any) -> Pool:
        asked.append(Compute(**given).spec)
        return Pool()

    def attach(name: str) -> Pool:
        asked.append(name)  # type: ignore[arg-type]
        return Pool()

    Compute = sky.Compute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sky, "Compute", compute)
        patch.setattr(sky, "attach", attach)
        patch.setattr("sys.path", list(sys.path))
        patch.setattr("sys.stdout", StringIO())
        exec(compile(snippet, "snippet", "exec"), {"__name__": "__main__"})
    return asked[0], *calls[0]


@settings(max_examples=examples(50))
@given(request=requests())
def test_python_snippet_of_a_request_makes_the_same_launch(request: LaunchRequest) -> None:
    request = replace(request, script="train_it.py")
    plan = make_plan(request)
    assert SECRET not in write_snippet(request)
    spec, call, operator = executed(write_snippet(request))
    assert plan.spec is not None and same_spec(spec, replace(plan.spec, interpreter=None))
    assert (f"# To be run with {sys.executable}\n" in write_snippet(request)) == (request.python is not None)
    assert request.pool in (None, spec.name)
    if plan.whole:
        run = call.fn
        assert (run.path, run.args) == (str(Path("train_it.py").absolute()), tuple(plan.values["args"]))
    else:
        assert repr((call.args, call.kwargs)) == repr(((), plan.values))
    assert (call.timeout, operator) == (request.timeout, ">>" if request.one else "@")


@pytest.mark.parametrize(
    ("function", "arguments", "args", "kwargs"),
    [
        ("placed", ["first=1"], (1,), {}),
        ("placed", ["first=1", "second=3", "rest=1,inf"], (1, 3, 1.0, float("inf")), {}),
        ("placed", ["first=[]", "class=1", "a-b=2"], ([],), {"class": 1, "a-b": 2}),
        ("placed", ["first={}", "day=2031-12-24", "where=a b"], None, None),
        ("counted", ["n=3"], (), {"n": 3}),
    ],
)
def test_snippet_passes_function_arguments(function: str, arguments: list[str], args: Any, kwargs: Any) -> None:
    request = LaunchRequest(script="train_it.py", function=function, arguments=arguments)
    _, call, _ = executed(write_snippet(request))
    if args is None:
        args, kwargs = ({},), {"day": make_plan(request).values["day"], "where": Path("a b")}
    assert (call.args, call.kwargs) == (args, kwargs)


@pytest.mark.parametrize(
    ("request_of_it", "field", "words"),
    [
        (
            LaunchRequest(script="train_it.py", function="painted", arguments=["colour=RED"]),
            "arguments",
            "only the script itself can create",
        ),
        (
            LaunchRequest(script="train_it.py", function="placed", arguments=["first=1", "rest=1"]),
            "arguments",
            "argument second of placed is required",
        ),
        (LaunchRequest(script="train it.py", function="train"), "script", "cannot be imported by name"),
    ],
)
def test_request_that_no_snippet_can_express_is_rejected(request_of_it: LaunchRequest, field: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        write_snippet(request_of_it)
    assert caught.value.field == field


def test_built_in_providers_are_public_in_the_api() -> None:
    for name in built_in_names():
        assert getattr(sky, provider_class(name).__name__) is provider_class(name)


# -- what makes no sense ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ({"script": "gone.py"}, "script", "script gone.py does not exist"),
        ({"pool": "No Good"}, "pool", "pool: 'No Good' is not a pool name"),
        ({"provider": "shh"}, "provider", "did you mean 'ssh'"),
        ({"provider": "ssh"}, "settings.hosts", "setting hosts is required"),
        ({"provider": "ssh", "settings": {"hosts": "a", "port": "x"}}, "settings.port", "a whole number, not 'x'"),
        ({"settings": {"user": "me"}}, "provider", "local has no setting 'user'; it has none"),
        ({"nodes": 0}, "nodes", "from 1 to 1024"),
        ({"nodes": "8:2"}, "nodes", "max should be at least min=8"),
        ({"ranks_per_node": 65}, "ranks_per_node", "from 1 to 64"),
        ({"accelerator": "H10O"}, "accelerator", "did you mean H100"),
        ({"plugins": ["torhc"]}, "plugins", "did you mean torch"),
        ({"plugins": ["torch", "torch"]}, "plugins", "plugin torch is given twice"),
        ({"plugins": ["joblib", "sklearn"]}, "plugins", "cannot be combined"),
        (
            {"plugins": ["torch"], "plugin_settings": {"torch.bakend": "gloo"}},
            "plugin_settings",
            "plugin torch has no argument 'bakend'. Did you mean 'backend'?",
        ),
    ],
)
def test_launch_error_names_the_form_field(more: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SkywardError) as caught:
        make_plan(LaunchRequest(**({"script": "train_it.py", "function": "train"} | more)))
    assert caught.value.field == field
    assert words in str(caught.value)
