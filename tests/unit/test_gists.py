"""What is left of the numbers of a call."""

from __future__ import annotations

import json
from math import inf, nan

import pytest

from skyward_core.model.outcomes import Outcome
from skyward_core.protocol.validators import is_metric_summary
from skyward_core.runtime.metric_logging import MAX_CALLS, MAX_NAME_LENGTH, MAX_NAMES, MetricSummaries


def test_the_last_the_least_and_the_greatest_of_each_name_once() -> None:
    gists = MetricSummaries()
    for loss in (2.0, 0.5, 1):
        gists.add("r", 3, {"loss": loss})
    gists.add("r", 4, {"loss": 9.0})
    gists.add("r", -1, {"loss": 7.0})
    assert gists.pop("r", 3) == {"loss": [1.0, 0.5, 2.0]}
    assert gists.pop("r", 3) == {}
    assert gists.pop("r", -1) == {}


def test_what_is_not_finite_is_none() -> None:
    gists = MetricSummaries()
    for number in (1.0, nan):
        gists.add("r", 0, {"a": number, "b": nan, "c": inf, "d": 10**400})
    assert gists.pop("r", 0) == {
        "a": [None, 1.0, 1.0], "b": [None, None, None], "c": [None, None, None], "d": [None, None, None]
    }  # fmt: skip


def test_names_and_calls_are_bounded() -> None:
    gists = MetricSummaries()
    gists.add("r", 0, {f"n{i}": 1.0 for i in range(MAX_NAMES + 5)} | {"x" * (MAX_NAME_LENGTH + 1): 1.0})
    assert len(gists.pop("r", 0)) == MAX_NAMES
    for call in range(MAX_CALLS + 1):
        gists.add("r", call, {"a": 1.0})
    assert gists.pop("r", 0) == {} and gists.pop("r", MAX_CALLS)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ([1.0, 0.5, 2.0], True),
        ([None, None, None], True),
        ([1.0, 0.5], False),
        ([1, 0.5, 2.0], False),
        ([nan, 0.5, 2.0], False),
        ([inf, 0.5, 2.0], False),
        (["1", 0.5, 2.0], False),
        ({"last": 1.0}, False),
        (None, False),
    ],
)
def test_what_an_agent_tells_of_numbers_is_looked_at(value: object, fits: bool) -> None:
    assert is_metric_summary(value) is fits


def test_an_outcome_is_written_down_with_them_and_an_older_one_has_none() -> None:
    told = Outcome(0, 0, 0, "returned", numbers={"loss": [1.0, 0.5, 2.0]}).to_json()
    assert Outcome.from_json(json.loads(json.dumps(told))).numbers == {"loss": [1.0, 0.5, 2.0]}
    del told["numbers"]
    assert Outcome.from_json(told).numbers is None
