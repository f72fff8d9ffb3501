"""Arguments that are given several values, as texts."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.model.errors import UsageError
from skyward_core.tasks.argument_parsing import argument_values, expand_combinations


def test_each_value_of_one_goes_with_each_of_the_others_and_the_last_changes_first() -> None:
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
        ("1", ["1"]),
        ("", [""]),
        ("1, 2", ["1", "2"]),
        ("1..3", ["1", "2", "3"]),
        ("-1..1,7", ["-1", "0", "1", "7"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ('{"a": 1, "b": 2}', ['{"a": 1, "b": 2}']),
        ("'a,b',c", ["a,b", "c"]),
        ("don't,do", ["don't", "do"]),
        ("../data..old", ["../data..old"]),
        ("1..x", ["1..x"]),
    ],
)
def test_values(text: str, values: list[str]) -> None:
    assert argument_values("n", text) == values


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["n=1,,2"], "a value is missing"),
        (["n=1,"], "a value is missing"),
        (["n=1,2,1"], "1 is given twice"),
        (["n=1..3,2"], "2 is given twice"),
        (["n=3..1"], "a range counts up"),
        (["n=0..999999999999"], "more than 4,096 values"),
        (["n=1..200", "m=1..200"], "more than 4,096 combinations"),
        (["n"], "written name=value"),
    ],
)
def test_what_makes_no_sense_is_refused(pairs: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        expand_combinations(pairs)


@given(st.text(max_size=30))
def test_any_text_is_values_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert argument_values("n", text)
