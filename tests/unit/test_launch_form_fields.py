"""Form fields for function arguments, images, sweeps and plugin parameters."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import given as cases
from hypothesis import strategies as st

from skyward_core import plugins
from skyward_core.client.launch.image_option_parsing import IMAGE_FIELDS, field_texts, split_by_field
from skyward_core.client.launch.plugin_and_provider_catalog import (
    ArgumentField,
    argument_fields,
    available_plugins,
    find_function,
    parameter_fields,
    parse_parameters,
)
from skyward_core.model.errors import UsageError
from skyward_core.plugins import Plugin, by_name
from skyward_core.tasks.argument_parsing_and_sweeps import argument_values, expand_combinations
from skyward_tui.launch_form.form import Form, command_line, parse_arguments, set_argument
from tests.support.examples import examples

SCRIPT = '''
import enum
from pathlib import Path
from typing import Literal, Optional
import skyward_core as sky

class Mode(enum.Enum):
    FAST = "f"
    EXACT = "e"

class Model: ...

@sky.function
def train(
    epochs: int, data: Path, lr: float = 0.01, resume: bool = False, mode: Mode = Mode.FAST,
    kind: Literal["a", "b", 3] = "a", maybe: Optional[Literal["x"]] = None, out: Path | None = None,
    force: bool = True, check: bool | None = None, sure: bool = ..., model: Model = None, rest=1, *more: int, **others,
):
    """Train.

    Args:
        epochs: how often all data is seen,
            at least 1.
        lr, mode (float): how fast: in steps
    Returns:
        data: not of a parameter
    """
'''


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ArgumentField]:
    script = tmp_path_factory.mktemp("fields") / "train.py"
    script.write_text(SCRIPT)
    return {each.name: each for each in argument_fields(find_function(script, None))}


def test_each_function_parameter_has_a_field_of_matching_kind(fields: dict[str, ArgumentField]) -> None:
    assert {name: (each.kind, each.choices) for name, each in fields.items()} == {
        "epochs": ("text", ()),
        "data": ("text", ()),
        "lr": ("text", ()),
        "resume": ("switch", ()),
        "mode": ("choice", ("FAST", "EXACT")),
        "kind": ("choice", ("a", "b", "3")),
        "maybe": ("choice", ("x", "None")),
        "out": ("text", ()),
        "force": ("switch", ()),
        "check": ("choice", ("true", "false", "None")),
        "sure": ("choice", ("true", "false")),
        "model": ("text", ()),
        "rest": ("text", ()),
        "more": ("text", ()),
    }
    assert [name for name, each in fields.items() if each.required] == ["epochs", "data"]
    assert [name for name, each in fields.items() if each.is_path] == ["data", "out"]
    assert (fields["lr"].type, fields["lr"].default, fields["more"].type) == ("float", "0.01", "*int")
    assert fields["force"].is_on and not fields["resume"].is_on


def test_field_help_comes_from_the_docstring(fields: dict[str, ArgumentField]) -> None:
    help_texts = {name: each.help for name, each in fields.items() if each.help}
    assert help_texts == {
        "epochs": "how often all data is seen,",
        "lr": "how fast: in steps",
        "mode": "how fast: in steps",
    }


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("epochs", "3", ""),
        ("lr", "1e-3", ""),
        ("lr", "fast", "must be float, got 'fast'"),
        ("mode", "SLOW", "must be one of FAST, EXACT (Mode), got 'SLOW'"),
        ("mode", "e", ""),
        ("out", "None", ""),
        ("model", "anything", ""),
        ("more", "1,2", ""),
        ("more", "1,x", "must be list[int], got '1,x'"),
    ],
)
def test_field_text_is_validated_by_the_parameter_type(
    fields: dict[str, ArgumentField], name: str, text: str, why: str
) -> None:
    assert fields[name].validation_error(text) == why


def test_path_field_reports_a_missing_path(
    fields: dict[str, ArgumentField], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    data, script = fields["data"], tmp_path / "train.py"
    assert [data.missing_path_error(text, script) for text in ("a.csv", str(tmp_path), "")] == ["", "", ""]
    assert data.missing_path_error("b.csv", script) == "b.csv does not exist on this machine"
    assert data.missing_path_error("~nobody-is-called-so/x", script) and data.missing_path_error("a\0b", script)
    assert fields["out"].missing_path_error("None", script) == "" == fields["epochs"].missing_path_error("3", script)


# The line of arguments and the fields below it say the same.

ORDER = ("epochs", "lr", "note")


def test_parse_arguments_splits_a_line_like_a_shell() -> None:
    assert parse_arguments("epochs=3 note='a b' lr= x epochs=4") == {"epochs": "3", "note": "a b", "lr": ""}
    assert parse_arguments("note='a b") is None


@pytest.mark.parametrize(
    ("line", "name", "text", "made"),
    [
        ("", "lr", "0.1", "lr=0.1"),
        ("note=x", "lr", "0.1", "lr=0.1 note=x"),
        ("epochs=3 lr=1 more=2", "lr", None, "epochs=3 more=2"),
        ("epochs=3", "note", "a b", "epochs=3 note='a b'"),
        ("epochs=3 note= 'a thing'", "lr", "[1, 2]", "epochs=3 lr='[1, 2]' note= 'a thing'"),
        ("note='a", "lr", "1", "note='a"),
    ],
)
def test_set_argument_changes_only_that_argument(line: str, name: str, text: str | None, made: str) -> None:
    assert set_argument(line, name, text, ORDER) == made


@settings(max_examples=examples(60))
@cases(st.dictionaries(st.sampled_from(ORDER), st.text(max_size=8)), st.sampled_from(ORDER), st.text(max_size=8))
def test_set_argument_round_trips_any_text(before: dict[str, str], name: str, text: str) -> None:
    line = shlex.join(f"{key}={value}" for key, value in before.items())
    assert parse_arguments(set_argument(line, name, text, ORDER)) == before | {name: text}


# What a launch says of its ranks' environment, as the fields of a form.

FIELDS = {each.name: each for each in IMAGE_FIELDS}
VALUES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(str.strip)
TEXTS = st.one_of(
    st.tuples(st.sampled_from(["pip", "apt", "includes", "excludes", "secret"]), VALUES).map("=".join),
    st.tuples(st.from_regex(r"env\.[A-Z_]+", fullmatch=True), st.text()).map("=".join),
)


@settings(max_examples=examples(100))
@given(st.lists(TEXTS), st.lists(VALUES, max_size=1))
def test_image_texts_round_trip_through_form_fields(texts: list[str], setup: list[str]) -> None:
    texts += [f"setup={each}" for each in setup]
    fields_of_texts = split_by_field(texts)
    assert fields_of_texts.keys() <= FIELDS.keys()
    again = [each for name, text in fields_of_texts.items() for each in field_texts(name, text)]
    assert sorted(again) == sorted(texts)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("pip", "einops", ""),
        ("pip", "'half", "No closing quotation"),
        ("pip", "https://me:word@host/x.whl", "contains a password or token in a URL"),
        ("setup", "it's one line && 'half", ""),
        ("env", "A=1 B=", ""),
        ("env", "1A=x", "'1A' is not a variable name"),
        ("env", "MY_TOKEN=x", "MY_TOKEN has the name of a secret"),
        ("secrets", "MY_TOKEN OTHER", ""),
        ("secrets", "MY-TOKEN", "'MY-TOKEN' is not a variable name"),
    ],
)
def test_image_field_validation_error_names_the_cause(name: str, text: str, words: str) -> None:
    error = FIELDS[name].validation_error(text)
    assert error.startswith(words) if words.startswith(("env.", "'", "No", "MY")) else words in error
    assert bool(error) == bool(words)


# Arguments that are given several values, as texts.


def test_sweep_combinations_vary_the_last_argument_first() -> None:
    assert expand_combinations(["lr=0.1,0.01", "seed=1..2", "note=x"]) == [
        ("lr=0.1", "seed=1", "note=x"),
        ("lr=0.1", "seed=2", "note=x"),
        ("lr=0.01", "seed=1", "note=x"),
        ("lr=0.01", "seed=2", "note=x"),
    ]
    assert expand_combinations([]) == [()]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", ["1"]), ("", [""]), ("1, 2", ["1", "2"]), ("1..3", ["1", "2", "3"]),
        ("-1..1,7", ["-1", "0", "1", "7"]), ("[1,2],[3]", ["[1,2]", "[3]"]),
        ('{"a": 1, "b": 2}', ['{"a": 1, "b": 2}']), ("'a,b',c", ["a,b", "c"]), ("don't,do", ["don't", "do"]),
        ("../data..old", ["../data..old"]), ("1..x", ["1..x"]),
    ],
)  # fmt: skip
def test_sweep_argument_text_expands_to_values(text: str, values: list[str]) -> None:
    assert argument_values("n", text) == values


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["n=1,,2"], "a value is missing"),
        (["n=1,2,1"], "1 is repeated"),
        (["n=3..1"], "a range must be ascending"),
        (["n=0..999999999999"], "more than 4,096 values"),
        (["n=1..200", "m=1..200"], "more than 4,096 combinations"),
        (["n"], "Write name=value"),
    ],
)
def test_invalid_sweep_arguments_are_rejected(pairs: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        expand_combinations(pairs)


@given(st.text(max_size=30))
def test_any_sweep_text_expands_or_is_rejected(text: str) -> None:
    with suppress(UsageError):
        assert argument_values("n", text)


# What plugins are given as texts: a field for each parameter, values of its type, and no secret among them.

NAMES = [each.name for each in available_plugins()]
Pace = Literal["slow", "fast"]


class Odd:
    pass


@dataclass(frozen=True)
class Mine(Plugin):
    name: ClassVar[str] = "mine"
    word: str
    pace: Pace = "slow"
    odd: Odd | None = None
    words: list[str] = field(default_factory=list)
    token: str | None = field(default=None, repr=False)
    made: int = field(default=0, init=False)


@pytest.fixture
def custom_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = plugins.factory
    for module in ("skyward_core.plugins", "skyward_core.client.launch.plugin_and_provider_catalog"):
        monkeypatch.setattr(f"{module}.factory", lambda name: Mine if name == "mine" else usual(name))


def test_every_plugin_parameter_but_secrets_has_a_field() -> None:
    fields = {each.name: each for each in parameter_fields(NAMES)}
    for info in available_plugins():
        for name in info.parameters:
            if (info.name, name) == ("huggingface", "token"):
                assert "huggingface.token" not in fields
                continue
            found = fields.pop(f"{info.name}.{name}")
            assert found.help == info.parameters[name]
            assert found.default is not None and not found.validation_error(found.default.strip("'"))
    assert not fields
    assert {each.name: each.kind for each in parameter_fields(["keras", "ray"])} == {
        "keras.backend": "choice",
        "keras.seed": "text",
        "ray.version": "text",
        "ray.dashboard": "switch",
        "ray.port": "text",
    }
    assert parameter_fields(["nothing"]) == []


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("torch.backend", "gloo", "gloo"),
        ("torch.backend", "None", None),
        ("keras.seed", "7", 7),
        ("accelerate.mixed_precision", "bf16", "bf16"),
        ("accelerate.fsdp", '{"sharding_strategy": "FULL_SHARD"}', {"sharding_strategy": "FULL_SHARD"}),
        ("huggingface.models", "a/b,c/d", ["a/b", "c/d"]),
        ("dask.memory_limit", "2GiB", "2GiB"),
    ],
)
def test_plugin_field_text_is_converted_to_the_parameter_type(key: str, text: str, value: Any) -> None:
    name, _, parameter = key.partition(".")
    assert parse_parameters([name], {key: text}) == {name: {parameter: value}}
    made = by_name(name, **{parameter: value})
    assert made == getattr(plugins, name)(**{parameter: value})


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"mine.word": "a", "mine.pace": "fats"}, "pace of plugin mine must be Literal"),
        ({"mine.word": "a", "mine.odd": "x"}, "odd of plugin mine has a type that cannot be given as text"),
        ({"mine.word": "a", "mine.token": "x"}, "token of plugin mine is a secret, and launches are saved"),
        ({"mine.word": "a", "mine.made": "1"}, "plugin mine has no argument 'made'"),
        ({"mine.wrd": "a"}, "plugin mine has no argument 'wrd'. Did you mean 'word'"),
        ({"word": "a"}, "word is not a parameter of a plugin of this launch \\(mine"),
    ],
)
def test_invalid_plugin_parameter_text_is_rejected(custom_plugin: None, texts: Mapping[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_parameters(["mine"], texts)
    assert caught.value.field == "plugin_settings"
    assert by_name("mine", **parse_parameters(["mine"], {"mine.word": "a"})["mine"]) == Mine("a")
    with pytest.raises(UsageError, match=r"plugin mine requires parameters: word: str"):
        by_name("mine")


def test_command_line_of_a_job_file_has_the_limits_of_the_form() -> None:
    form = Form(script="task.yaml", name="p", budget=" 20 ", wait_for_capacity="2h", arguments="A=1", restarts="2")
    assert command_line(form) == (
        "skyward-tui launch task.yaml -c p --budget 20 --wait-for-capacity 2h --restarts 2 --env A=1"
    )
    used = command_line(replace(form, pool="p.1234"))
    assert "--budget" not in used and "--wait" not in used, "a pool that is up keeps its limits"
