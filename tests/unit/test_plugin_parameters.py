"""What plugins are given as texts: a field for each parameter, values of its type, and no secret among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from skyward_core import plugins
from skyward_core.client.launch.script_plugin_provider_discovery import (
    available_plugins,
    parameter_fields,
    parse_parameters,
)
from skyward_core.model.errors import UsageError
from skyward_core.plugins import Plugin, by_name

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
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = plugins.factory
    for module in ("skyward_core.plugins", "skyward_core.client.launch.script_plugin_provider_discovery"):
        monkeypatch.setattr(f"{module}.factory", lambda name: Mine if name == "mine" else usual(name))


def test_every_parameter_has_a_field_that_takes_its_default_and_secrets_have_none() -> None:
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


def test_what_nobody_may_give_has_no_field(mine: None) -> None:
    assert {each.name: each.default for each in parameter_fields(["mine"])} == {
        "mine.word": None,
        "mine.pace": "'slow'",
        "mine.odd": "None",
        "mine.words": "[]",
    }


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("torch.backend", "gloo", "gloo"),
        ("torch.backend", "None", None),
        ("torch.init", "no", False),
        ("keras.seed", "7", 7),
        ("keras.backend", "torch", "torch"),
        ("accelerate.mixed_precision", "bf16", "bf16"),
        ("accelerate.fsdp", '{"sharding_strategy": "FULL_SHARD"}', {"sharding_strategy": "FULL_SHARD"}),
        ("huggingface.models", "a/b,c/d", ["a/b", "c/d"]),
        ("dask.memory_limit", "2GiB", "2GiB"),
        ("dask.memory_limit", "1000", 1000),
    ],
)
def test_a_text_is_a_value_of_the_parameter_s_type(key: str, text: str, value: Any) -> None:
    name, _, parameter = key.partition(".")
    assert parse_parameters([name], {key: text}) == {name: {parameter: value}}
    made = by_name(name, **{parameter: value})
    assert made == getattr(plugins, name)(**{parameter: value})


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"mine.word": "a", "mine.pace": "fats"}, "pace of plugin mine wants Literal"),
        ({"mine.pace": "fast"}, "plugin mine needs word"),
        ({"mine.word": "a", "mine.odd": "x"}, "odd of plugin mine is of a type that no text says"),
        ({"mine.word": "a", "mine.token": "x"}, "token of plugin mine is a secret, and would be kept"),
        ({"mine.word": "a", "mine.made": "1"}, "plugin mine takes no argument 'made'"),
        ({"mine.wrd": "a"}, "plugin mine takes no argument 'wrd'; did you mean 'word'"),
        ({"word": "a"}, "word is a parameter of no plugin of this launch: mine"),
    ],
)
def test_what_it_does_not_take_is_refused_in_words(mine: None, texts: Mapping[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_parameters(["mine"], texts)
    assert caught.value.field == "plugin_settings"
    assert by_name("mine", **parse_parameters(["mine"], {"mine.word": "a"})["mine"]) == Mine("a")
    with pytest.raises(UsageError, match=r"plugin mine needs parameters \(word: str\)"):
        by_name("mine")
