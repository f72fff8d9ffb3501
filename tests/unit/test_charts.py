"""What a chart of numbers draws and tells."""

from __future__ import annotations

from array import array
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.client.chart_points import (
    RANKS_ANEW,
    RANKS_DRAWN,
    column_time,
    is_counter,
    log_scale,
    make_chart,
    smooth_line,
    sort_names,
    time_column,
    time_span,
    value_at,
)
from skyward_core.views.outliers import IncrementalBand, Trace
from skyward_core.views.rank_metrics import MetricStore


def trace(*values: float, since: float = 0.0) -> Trace:
    return Trace(array("d", [since + place for place in range(len(values))]), array("d", values))


def test_the_value_at_an_instant_is_the_last_one_before_it() -> None:
    line = trace(5.0, 6.0, 7.0, since=10.0)
    assert [value_at(line, at) for at in (9.9, 10.0, 11.5, 99.0, None)] == [None, 5.0, 6.0, 7.0, 7.0]
    assert value_at(trace(), None) is None


def test_smoothing_begins_at_the_first_value_and_passes_over_what_is_no_number() -> None:
    line = smooth_line([(0.0, 4.0), (1.0, nan), (2.0, 4.0), (3.0, 0.0)])
    assert line[0] == (0.0, pytest.approx(4.0)) and isnan(line[1][1]) and line[2] == (2.0, pytest.approx(4.0))
    assert 0 < line[3][1] < 4.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_what_is_smoothed_stays_within_its_values(values: list[float]) -> None:
    line = smooth_line(list(enumerate(values)))
    assert all(min(values) - 1e-3 <= value <= max(values) + 1e-3 for _, value in line)


def test_logarithms_have_a_gap_for_what_has_none() -> None:
    found = [value for _, value in log_scale([(0, 100.0), (1, 0.0), (2, -5.0), (3, 0.01), (4, inf)])]
    assert found[0] == 2.0 and found[3] == -2.0 and all(map(isnan, (found[1], found[2], found[4])))


def test_a_chart_of_one_rank_has_the_others_behind_and_tells_what_all_span() -> None:
    chart = make_chart({0: trace(1.0, 2.0), 1: trace(5.0, 9.0)}, 0, columns=10)
    assert list(chart.front) == [(0.0, 1.0), (1.0, 2.0)] and [line[-1] for line in chart.behind] == [(1.0, 9.0)]
    assert (chart.value, chart.low, chart.high) == (2.0, 2.0, 9.0)
    then = make_chart({0: trace(1.0, 2.0), 1: trace(5.0, 9.0)}, 0, columns=10, at=0.5)
    assert (then.value, then.low, then.high) == (1.0, 1.0, 5.0)


def test_of_many_ranks_a_band_stands_behind_so_that_none_is_invisible() -> None:
    many = {rank: trace(1.0, 900.0 if rank == 5 else 1.0) for rank in range(RANKS_DRAWN + 1)}
    merged = make_chart(many, None, columns=4)
    assert merged.front[-1][1] == 1.0 and max(value for line in merged.behind for _, value in line) == 900.0
    assert (merged.value, merged.low, merged.high) == (1.0, 1.0, 900.0)
    one = make_chart(many, 0, columns=4)
    assert len(one.behind) == 3, "least, greatest and median"


def test_of_many_ranks_a_band_is_kept_while_they_send() -> None:
    few, many = ({rank: trace(3.0, 1.0, 2.0) for rank in range(count)} for count in (2, RANKS_ANEW + 1))
    kept = IncrementalBand()
    assert make_chart(few, None, columns=10, kept=kept) == make_chart(few, None, columns=10)
    assert not kept._reached
    drawn = make_chart(many, None, columns=10, kept=kept)
    assert set(kept._reached) == set(many)
    assert [value for _, value in drawn.front] == [3.0, 1.0, 2.0]
    assert drawn == make_chart(many, None, columns=10, kept=kept)


def test_a_smoothed_chart_keeps_the_raw_line_behind_and_tells_raw_values() -> None:
    chart = make_chart({0: trace(0.0, 10.0, 0.0, 10.0)}, 0, columns=4, smooth=True)
    assert [list(line) for line in chart.behind] == [[(0.0, 0.0), (1.0, 10.0), (2.0, 0.0), (3.0, 10.0)]]
    assert chart.value == 10.0 and chart.front[-1][1] < 10.0


def test_a_logarithmic_chart_draws_logarithms_and_tells_values() -> None:
    chart = make_chart({0: trace(1000.0, 10.0)}, None, columns=4, log=True)
    assert [value for _, value in chart.front] == [3.0, 1.0] and chart.value == 10.0


def test_a_chart_without_anything_is_one() -> None:
    chart = make_chart({}, 0, columns=4, log=True, smooth=True)
    assert chart.value is None and time_span([chart]) is None
    assert make_chart({}, None, columns=4).value is None


def test_charts_have_one_time_and_columns_of_it() -> None:
    charts = [
        make_chart({0: trace(1.0, 2.0)}, 0, columns=4),
        make_chart({0: trace(1.0, 2.0, since=9.0)}, 0, columns=4),
    ]
    span = time_span(charts)
    assert span == (0.0, 10.0)
    assert [time_column(at, 11, span) for at in (-1.0, 0.0, 4.9, 10.0, 11.0)] == [0, 0, 5, 10, 10]
    assert column_time(5, 11, span) == 5.0 and column_time(99, 11, span) == 10.0
    assert time_column(3.0, 11, (3.0, 3.0)) == 10


@pytest.mark.parametrize(
    ("name", "values", "counts"),
    [
        ("Epoch", (1.0,), True),
        ("tokens", tuple(4096.0 * place for place in range(9)), True),
        ("tokens", (0.0, 4096.0), False),
        ("tokens", (*(4096.0 * place for place in range(9)), 5.0), False),
        ("loss", tuple(0.5 * place for place in range(9)), False),
        ("left", tuple(9.0 - place for place in range(9)), False),
        ("odd", (nan,) * 9, False),
        ("odd", (-inf, inf) * 9, False),
        ("flat", (5.0,) * 9, False),
    ],
)
def test_what_grows_by_the_same_whole_number_only_counts(name: str, values: tuple[float, ...], counts: bool) -> None:
    assert is_counter(name, trace(*values)) is counts


def test_what_only_counts_stands_apart_but_where_all_does() -> None:
    book = MetricStore()
    book.add_values("r", 3, 0.0, {"epoch": 1, "step": 10})
    assert sort_names(book, "r") == (["epoch", "step"], [])
    book.add_values("r", 5, 0.0, {"loss": 2.5})
    assert sort_names(book, "r") == (["loss"], ["epoch", "step"])
