"""Bands and outliers: over every line there is."""

from __future__ import annotations

from array import array
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.views.outliers import Trace, compute_band, find_outliers, median

numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
finite = st.floats(-1e300, 1e300, allow_subnormal=False)  # half of the least of those is 0


def line(*points: tuple[float, float]) -> Trace:
    ordered = sorted(points, key=lambda point: point[0])
    return Trace(array("d", [at for at, _ in ordered]), array("d", [value for _, value in ordered]))


def test_one_line_of_256_that_lags_is_in_the_band() -> None:
    lines = [line(*((float(at), 1.0) for at in range(100))) for _ in range(255)]
    lines.insert(77, line(*((float(at), 9.0 if at == 50 else 1.0) for at in range(100))))
    found = compute_band(lines, 10)  # ten seconds to a column: what happened inside of one is seen
    assert max(found.high) == 9.0 and found.high.index(9.0) == 5
    assert set(found.low) == set(found.middle) == {1.0}


def test_a_line_counts_with_its_last_value_until_a_pause_after_its_end() -> None:
    seldom, often = line((0.0, 5.0), (4.0, 7.0)), line(*((float(at), 1.0) for at in range(11)))
    found = compute_band([seldom, often], 10)
    assert found.high == [5.0] * 3 + [7.0] * 5 + [1.0, 1.0]
    assert found.low == [1.0] * 10 and found.middle == [3.0] * 3 + [4.0] * 5 + [1.0, 1.0]
    assert found.at[-1] == 10.0


def test_ranks_that_send_one_after_the_other_are_no_change_of_all() -> None:
    lines = [line(*((step + rank / 5, float(rank)) for step in range(9))) for rank in range(4)]
    assert set(compute_band(lines, 80).middle) == {1.5}
    assert set(compute_band([line((rank / 5, float(rank))) for rank in range(4)], 80).middle) == {1.5}, "one each"


def test_between_two_values_nothing_is_made_up() -> None:
    found = compute_band([line((0.0, 9.0), (5.0, 4.0), (10.0, 1.0))], 100)
    assert found.middle == [9.0, 4.0, 1.0], "a line, and no steps"


@pytest.mark.parametrize(
    ("lines", "columns"),
    [([], 5), ([line()], 5), ([line((0.0, 1.0))], 0), ([line((0.0, nan), (1.0, inf))], 4)],
)
def test_no_number_no_band(lines: list[Trace], columns: int) -> None:
    assert compute_band(lines, columns) == ([], [], [], [])


@given(st.lists(st.lists(st.tuples(st.floats(0, 1e9), numbers), max_size=20), max_size=6), st.integers(1, 40))
def test_a_band_holds_every_finite_value(points: list[list[tuple[float, float]]], columns: int) -> None:
    found = compute_band([line(*each) for each in points], columns)
    values = [value for each in points for _, value in each if isfinite(value)]
    assert len(found.at) == len(found.low) == len(found.middle) == len(found.high) <= columns
    assert list(found.at) == sorted(found.at)
    if values and found.at:
        assert min(found.low) == min(values) and max(found.high) == max(values)
    for low, middle, high in zip(found.low, found.middle, found.high, strict=True):
        assert low <= middle <= high
    assert bool(found.at) == bool(values)


@given(st.lists(finite, min_size=1))
def test_half_lie_on_either_side_of_the_median(values: list[float]) -> None:
    middle = median(values)
    assert sum(value < middle for value in values) <= len(values) / 2
    assert sum(value > middle for value in values) <= len(values) / 2


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([98, 97, 99, 98, 12, 98, 97], [4]),
        ([1.0] * 255 + [2.0], [255]),
        ([1.0] * 255 + [1.001], []),
        ([1.0] * 255 + [1.04], []),  # far by the deviation, not for people
        ([1.0] * 255 + [1.06], [255]),
        ([0.0] * 7 + [1.0], [7]),
        ([0.25, 0.25, 0.25, 0.6], [3]),  # one of four was none, where the others were equal
        ([1, 1, 1, 1, 2, 2, 2], []),
        ([1, 2, 3, 4, 5, 6], []),
        ([5, 5, 5, 5], []),
        ([0, 0, 0, 0], []),
        ([1, 100], []),
        ([2.0, nan, 2.0, 2.0, 2.05], [1]),
        ([2.0, inf], [1]),
        ([nan, nan], []),
        ([1e308, -1e308, 1e308, 1e308, 1e308], [1]),
        ([1.0, 1.1, 0.9, 1.05, 50.0, 9000.0, 1.0, 0.95], [5, 4]),
    ],
)
def test_who_is_far_from_all_others_is_named(values: list[float], odd: list[int]) -> None:
    assert find_outliers(dict(enumerate(values))) == odd


def test_who_differs_by_less_than_matters_is_no_outlier() -> None:
    """A processor at 94 % where all others are at 97 % was said to be unlike them."""
    busy = dict(enumerate([97.0, 97.2, 96.9, 97.1, 94.0]))
    assert find_outliers(busy, 10.0) == []
    assert find_outliers(busy | {4: 86.0}, 10.0) == [4]


@given(st.dictionaries(st.integers(), numbers, max_size=30))
def test_outliers_never_are_most(values: dict[int, float]) -> None:
    found = find_outliers(values)
    good = [key for key, value in values.items() if isfinite(value)]
    assert len(found) == len(set(found)) and set(found) <= set(values)
    assert sum(key in good for key in found) <= len(good) / 2
    assert all(isfinite(values[key]) or good for key in found)
