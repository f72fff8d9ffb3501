"""A band that is kept while its lines grow is what it would be if all of it were looked at anew."""

from __future__ import annotations

from array import array
from math import inf, isfinite, nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skyward_core.views.outliers import IncrementalBand, Trace, compute_band

numbers = st.one_of(st.floats(-1e9, 1e9), st.sampled_from([nan, inf, -inf]))
Points = list[list[tuple[float, float]]]


def traces(points: Points, until: float = inf) -> dict[int, Trace]:
    found = {}
    for rank, each in enumerate(points):
        line = [(at, value) for at, value in sorted(each, key=lambda point: point[0]) if at <= until]
        found[rank] = Trace(array("d", [at for at, _ in line]), array("d", [value for _, value in line]))
    return found


@given(
    st.lists(st.lists(st.tuples(st.floats(0, 1000), numbers), max_size=30), max_size=5),
    st.integers(1, 40),
    st.lists(st.floats(0, 1000), max_size=6),
)
@example([[(0.0, 1.0), (1.0, nan)], [(0.0, 5.0)]], 4, [0.0])
@example([[(0.0, 1.0), (2.0, 3.0), (4.0, 2.0)], [(3.0, 7.0)]], 4, [0.0, 2.0, 3.0])
@example([[(0.0, 9.0)], [(at, 1.0) for at in (0.0, 4.0, 8.0, 9.0, 10.0, 11.0, 12.0)]], 24, [8.0])
def test_what_has_come_bit_by_bit_is_as_if_it_came_at_once(points: Points, columns: int, looks: list[float]) -> None:
    kept = IncrementalBand()
    for until in sorted(looks):
        assert kept.update(traces(points, until), columns) == IncrementalBand().update(traces(points, until), columns)
    assert kept.update(traces(points), columns) == IncrementalBand().update(traces(points), columns)


@given(st.lists(st.lists(st.tuples(st.floats(0, 1000), numbers), max_size=30), max_size=5), st.integers(1, 40))
def test_it_holds_every_finite_value(points: Points, columns: int) -> None:
    found = IncrementalBand().update(traces(points), columns)
    values = [value for each in points for _, value in each if isfinite(value)]
    assert bool(found.at) == bool(values)
    if values:
        assert (min(found.low), max(found.high)) == (min(values), max(values))
        assert all(low <= middle <= high for low, middle, high in zip(found.low, found.middle, found.high, strict=True))
        assert found.at == sorted(found.at) and len(found.at) <= columns


@given(st.lists(st.lists(st.tuples(st.integers(0, 8), numbers), max_size=20), max_size=5))
def test_where_columns_are_the_same_it_is_the_band(points: Points) -> None:
    points = [*points, [(0.0, 1.0), (8.0, 2.0)]]  # so that eight columns are a second each
    assert IncrementalBand().update(traces(points), 8) == compute_band(list(traces(points).values()), 8)


def test_lines_that_are_thinned_or_gone_are_looked_at_anew() -> None:
    points: Points = [[(float(at), at + rank / 4) for at in range(100)] for rank in range(3)]
    kept = IncrementalBand()
    kept.update(traces(points, 90.0), 32)
    thinned = [points[0], points[1][::2], points[2]]
    assert kept.update(traces(thinned), 32) == IncrementalBand().update(traces(thinned), 32)
    others = [points[0], [(max(0.0, at - 0.5), 2 * value) for at, value in points[1]], points[2]]
    kept.update(traces(points, 90.0), 32)
    assert kept.update(traces(others), 32) == IncrementalBand().update(traces(others), 32)
    assert kept.update(traces(points[:1]), 32) == IncrementalBand().update(traces(points[:1]), 32)
    assert kept.update({}, 32) == ([], [], [], [])


def test_only_what_has_come_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    points: Points = [[(at + rank / 8, 1.0) for at in range(900)] for rank in range(8)]
    kept = IncrementalBand()
    kept.update(traces(points, 700.0), 100)
    asked: list[int] = []
    worked_out = IncrementalBand._compute_column

    def noted(band: IncrementalBand, column: int, own: set[int]) -> object:
        asked.append(column)
        return worked_out(band, column, own)

    monkeypatch.setattr(IncrementalBand, "_compute_column", noted)
    kept.update(traces(points, 709.0), 100)
    assert 0 < len(asked) < 8
