"""What a form asks for each parameter of a function, told by the script's source alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.client.launch.script_plugin_provider_discovery import ArgumentField, argument_fields, find_function

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


def test_each_parameter_has_a_field_of_its_kind(fields: dict[str, ArgumentField]) -> None:
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


def test_the_docstring_says_what_they_are(fields: dict[str, ArgumentField]) -> None:
    said = {name: each.help for name, each in fields.items() if each.help}
    assert said == {
        "epochs": "how often all data is seen,",
        "lr": "how fast: in steps",
        "mode": "how fast: in steps",
    }


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("epochs", "3", ""),
        ("epochs", "3.5", "wants int, not '3.5'"),
        ("lr", "1e-3", ""),
        ("lr", "fast", "wants float, not 'fast'"),
        ("mode", "SLOW", "wants one of FAST, EXACT (Mode), not 'SLOW'"),
        ("mode", "e", ""),
        ("kind", "c", "wants Literal['a', 'b', 3], not 'c'"),
        ("out", "None", ""),
        ("model", "anything", ""),
        ("model", "None", ""),
        ("more", "1,2", ""),
        ("more", "1,x", "wants list[int], not '1,x'"),
        ("rest", "x", "wants int | float, not 'x'"),
    ],
)
def test_a_text_is_checked_as_typed(fields: dict[str, ArgumentField], name: str, text: str, why: str) -> None:
    assert fields[name].validation_error(text) == why


def test_a_choice_is_found_by_its_value_too(fields: dict[str, ArgumentField]) -> None:
    assert [fields["mode"].match_choice(text) for text in ("FAST", "e", "x")] == ["FAST", "EXACT", None]
    assert fields["check"].match_choice("yes") == "true"


def test_a_path_that_is_not_there_is_told(
    fields: dict[str, ArgumentField], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    data, script = fields["data"], tmp_path / "train.py"
    assert [data.missing_path_error(text, script) for text in ("a.csv", str(tmp_path), "")] == ["", "", ""]
    assert data.missing_path_error("b.csv", script) == "there is no b.csv on this machine"
    assert data.missing_path_error("~nobody-is-called-so/x", script) and data.missing_path_error("a\0b", script)
    assert fields["out"].missing_path_error("None", script) == "" == fields["epochs"].missing_path_error("3", script)


def test_what_cannot_be_shown_is_not_offered(tmp_path: Path) -> None:
    script = tmp_path / "odd.py"
    script.write_text(
        "import skyward_core as sky\nfrom typing import Literal\n@sky.function\n"
        "def f(a: Literal['x', '\\x1b[2J'] = 'x'): ...\n"
    )
    (field,) = argument_fields(find_function(script, None))
    assert (field.kind, field.choices) == ("text", ())
