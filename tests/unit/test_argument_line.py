"""The line of arguments and the fields below it say the same."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given as cases
from hypothesis import settings
from hypothesis import strategies as st

from skyward_tui.launch_form.form import parse_arguments, set_argument
from tests.support.examples import examples

ORDER = ("epochs", "lr", "note")


def test_what_a_line_gives() -> None:
    assert parse_arguments("epochs=3 note='a b' lr= x epochs=4") == {"epochs": "3", "note": "a b", "lr": ""}
    assert parse_arguments("note='a b") is None


@pytest.mark.parametrize(
    ("line", "name", "text", "made"),
    [
        ("", "lr", "0.1", "lr=0.1"),
        ("note=x", "lr", "0.1", "lr=0.1 note=x"),
        ("epochs=3 lr=1 more=2", "lr", None, "epochs=3 more=2"),
        ("epochs=3 more=2", "epochs", "4", "epochs=4 more=2"),
        ("epochs=3", "note", "a b", "epochs=3 note='a b'"),
        ("epochs=3 note= 'a thing'", "lr", "[1, 2]", "epochs=3 lr='[1, 2]' note= 'a thing'"),
        ("epochs=3", "lr", None, "epochs=3"),
        ("note='a", "lr", "1", "note='a"),
    ],
)
def test_one_argument_is_otherwise_and_the_rest_as_it_was(line: str, name: str, text: str | None, made: str) -> None:
    assert set_argument(line, name, text, ORDER) == made


@settings(max_examples=examples(60))
@cases(st.dictionaries(st.sampled_from(ORDER), st.text(max_size=8)), st.sampled_from(ORDER), st.text(max_size=8))
def test_any_text_is_read_back_as_it_is(before: dict[str, str], name: str, text: str) -> None:
    line = shlex.join(f"{key}={value}" for key, value in before.items())
    assert parse_arguments(set_argument(line, name, text, ORDER)) == before | {name: text}
