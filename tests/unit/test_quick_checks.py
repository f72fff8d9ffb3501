"""Checks that are put together, against the plain ones that they stand for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core import messages
from skyward_core.messages import FROM_AGENT, FROM_CLIENT, FROM_WORKER, OFTEN, Form
from skyward_core.quick_checks import compiled
from skyward_core.wire import MOST, WireError

SUMMARY = {"type": "int", "text": "1", "json": 1, "is_json": True, "size": 5}
RIGHT: list[Any] = [
    "r", "0a1b2c3d4e", "a-run_7", "r000.out", "ab" * 16, "returned", "raised", "gather", "", 0, 1, 5.5, -1, True, None,
    SUMMARY, {"type": "ValueError", "message": "no"}, ["ab" * 16, 9], [0, 7], {"r000.out": [0, 7]}, {"r001.err": 4},
    {"r": [1, 2]}, {"r": 3}, [0], ["x"],
]  # fmt: skip
WRONG: list[Any] = [
    -2, 1 << 24, 1 << 60, float("nan"), float("inf"), MOST, -MOST, "../x", "a b", "r" * 65, "n" * 201, "é", ".out",
    {"type": "int"}, SUMMARY | {"more": 1}, SUMMARY | {"size": -1}, SUMMARY | {"json": {"a": [float("nan")]}},
    ["ab", -1], ["../x", 1], {"../x": [0, 1]}, {"r000.out": [0]}, {"r000.out": 1}, [[0]], {}, [], b"x",
]  # fmt: skip
FORMS = [form for forms in (FROM_AGENT, FROM_CLIENT, FROM_WORKER) for form in forms.values() if form.checks]


def plain(form: Form, header: dict[str, Any]) -> bool:
    needed = header.keys() >= form.needs.keys()
    return needed and all(form.checks[key](value) for key, value in header.items() if key in form.checks)


def quick(form: Form, header: dict[str, Any]) -> bool:
    try:
        return bool(compiled(form.needs, form.may)(header))
    except KeyError:
        return False


@given(data=st.data())
def test_they_say_the_same(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    fits = {key: [each for each in RIGHT + WRONG if check(each)] for key, check in form.checks.items()}
    right = {
        key: data.draw(st.sampled_from(fits[key]))
        for key in form.checks
        if fits[key] and (key in form.needs or data.draw(st.booleans()))
    }
    keys = [*form.checks, "another"]
    other = st.sampled_from(WRONG + RIGHT)
    changed = right | data.draw(st.dictionaries(st.sampled_from(keys), other, max_size=2))
    missing = data.draw(st.sets(st.sampled_from(keys), max_size=1))
    for header in (right, changed, {key: value for key, value in changed.items() if key not in missing}):
        assert quick(form, header) == plain(form, header), header


def test_after_many_of_a_kind_a_wrong_one_is_refused_in_the_same_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = FROM_AGENT["began"]
    form = Form(old.needs, old.may)
    right = {"t": "began", "run": "r", "i": 1, "rank": 1, "node": 0}
    said = []
    for _ in range(2):
        for wrong in (right | {"i": -1}, right | {"run": "../x"}, {"t": "began", "run": "r"}):
            with pytest.raises(WireError) as refused:
                messages.admit({"began": form}, wrong, len(json.dumps(wrong)), 0)
            said.append(str(refused.value))
        for _ in range(2 * OFTEN):
            messages.admit({"began": form}, right, 80, 0)
    assert said[:3] == said[3:]
    assert form.quick(right)
