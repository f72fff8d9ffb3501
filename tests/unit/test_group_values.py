"""What a group gives is a tuple, and does as a list where scripts of 0.12 take it for one."""

# ruff: noqa: RUF005, SIM202, SIM300  # how it does as a right and a left side is what is tried

from __future__ import annotations

import copy
import json
import pickle
import pickletools

import pytest

from skyward_core.api.operators import GroupValues


def test_it_is_a_tuple_wherever_a_tuple_is_wanted() -> None:
    values = GroupValues((1, "two", 3.0))
    one, two, three = values
    assert (one, two, three) == values == GroupValues([1, "two", 3.0]) and isinstance(values, tuple)
    assert values != (1, 2) and hash(values) == hash((1, "two", 3.0)) and {values: 1}[(1, "two", 3.0)] == 1  # type: ignore[index]
    assert type(values + (4,)) is type((0,) + values) is tuple and (0,) + values + (4,) == (
        0,
        1,
        "two",
        3.0,
        4,
    )
    assert sum([GroupValues([1]), GroupValues([2])], ()) == (1, 2)
    assert repr(values) == "(1, 'two', 3.0)" and "%s %s %s" % values == "1 two 3.0"  # noqa: UP031
    match values:
        case [1, *rest]:
            assert rest == ["two", 3.0]
        case _:
            pytest.fail("no sequence")


def test_it_does_as_a_list_where_that_changes_nothing() -> None:
    values = GroupValues((1, 2, 3))
    assert values == [1, 2, 3] and [1, 2, 3] == values and values != [1, 2] and not values != [1, 2, 3]
    assert values[:2] == [1, 2] and values[:2] == (1, 2) and values[-1] == 3
    assert values + [4] == [1, 2, 3, 4] and [0] + values == [0, 1, 2, 3]
    longer = [0]
    longer += values
    assert longer == [0, 1, 2, 3] and GroupValues() == [] and json.dumps(values) == "[1, 2, 3]"


@pytest.mark.parametrize("name", ["append", "sort", "extend"])
def test_what_would_change_it_says_what_to_do(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no {name}: make it a list, list\(values\)"):
        getattr(GroupValues([1]), name)
    assert not hasattr(GroupValues(), "nothing")


def test_what_is_saved_of_it_loads_where_this_library_is_not_installed() -> None:
    values = GroupValues([1, [2]])
    saved = pickle.dumps(values)
    assert pickle.loads(saved) == values and copy.deepcopy(values) == values
    assert not [text for _, text, _ in pickletools.genops(saved) if "skyward" in str(text)]


@pytest.mark.proof("2 s of a processor")
def test_to_jax_it_is_a_tuple_of_leaves() -> None:
    jax = pytest.importorskip("jax")
    doubled = jax.tree.map(lambda each: each * 2, GroupValues([1, (2, 3)]))
    assert doubled == GroupValues([2, (4, 6)]) and type(doubled) is GroupValues
    assert GroupValues([1]) == [1]  # and again: it is told once
