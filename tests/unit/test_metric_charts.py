"""Metric charts: smoothing, scales, bands of many ranks, and outliers."""

from __future__ import annotations

from array import array
from itertools import pairwise
from math import inf, isfinite, isnan, log10, nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skyward_core.util.number_size_and_time_format import NUMBER_WIDTH
from skyward_core.views.metric_kinds_and_order import is_counter
from skyward_core.views.outliers_and_bands import IncrementalBand, Trace, compute_band, find_outliers, median
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_tui.text.rank_states_from_views import RankState
from skyward_tui.widgets.metric_charts import (
    BAND,
    BIN_COLUMNS,
    LEAST_NOISY,
    RANKS_DRAWN,
    Canvas,
    StepAxis,
    bounds,
    column_time,
    framed_ticks,
    log_scale,
    log_ticks,
    make_chart,
    overlay,
    place_runs,
    smooth_line,
    spans_decades,
    tick_labels,
    ticks,
    time_column,
    time_span,
    trace_line,
    value_at,
)


def trace(*values: float, since: float = 0.0) -> Trace:
    return Trace(array("d", [since + place for place in range(len(values))]), array("d", values))


def test_value_at_returns_the_last_value_before_a_time() -> None:
    line = trace(5.0, 6.0, 7.0, since=10.0)
    assert [value_at(line, at) for at in (9.9, 10.0, 11.5, 99.0, None)] == [None, 5.0, 6.0, 7.0, 7.0]
    assert value_at(trace(), None) is None


def test_smoothing_starts_at_the_first_value_and_skips_nan() -> None:
    line = smooth_line([(0.0, 4.0), (1.0, nan), (2.0, 4.0), (3.0, 0.0)])
    assert line[0] == (0.0, pytest.approx(4.0)) and isnan(line[1][1]) and line[2] == (2.0, pytest.approx(4.0))
    assert 0 < line[3][1] < 4.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_smoothed_line_stays_within_the_range_of_its_values(values: list[float]) -> None:
    line = smooth_line(list(enumerate(values)))
    assert all(min(values) - 1e-3 <= value <= max(values) + 1e-3 for _, value in line)


def test_log_scale_is_nan_for_non_positive_values() -> None:
    found = [value for _, value in log_scale([(0, 100.0), (1, 0.0), (2, -5.0), (3, 0.01), (4, inf)])]
    assert found[0] == 2.0 and found[3] == -2.0 and all(map(isnan, (found[1], found[2], found[4])))


def test_chart_of_one_rank_draws_others_behind_and_has_their_range() -> None:
    chart = make_chart({0: trace(1.0, 2.0), 1: trace(5.0, 9.0)}, 0, columns=10)
    assert list(chart.front) == [(0.0, 1.0), (1.0, 2.0)] and [line[-1] for line in chart.behind] == [(1.0, 9.0)]
    assert (chart.value, chart.low, chart.high) == (2.0, 2.0, 9.0)
    then = make_chart({0: trace(1.0, 2.0), 1: trace(5.0, 9.0)}, 0, columns=10, at=0.5)
    assert (then.value, then.low, then.high) == (1.0, 1.0, 5.0)


def test_chart_of_many_ranks_draws_a_band_behind() -> None:
    many = {rank: trace(1.0, 900.0 if rank == 5 else 1.0) for rank in range(RANKS_DRAWN + 1)}
    merged = make_chart(many, None, columns=4)
    assert merged.front[-1][1] == 1.0 and max(value for line in merged.behind for _, value in line) == 900.0
    assert (merged.value, merged.low, merged.high) == (1.0, 1.0, 900.0)
    one = make_chart(many, 0, columns=4)
    assert len(one.behind) == 3, "least, greatest and median"


def test_smoothed_chart_draws_the_raw_line_and_returns_raw_values() -> None:
    chart = make_chart({0: trace(0.0, 10.0, 0.0, 10.0)}, 0, columns=4, smooth=True)
    assert [list(line) for line in chart.behind] == [[(0.0, 0.0), (1.0, 10.0), (2.0, 0.0), (3.0, 10.0)]]
    assert chart.value == 10.0 and chart.front[-1][1] < 10.0


def test_chart_without_data_has_no_value_and_no_span() -> None:
    chart = make_chart({}, 0, columns=4, log=True, smooth=True)
    assert chart.value is None and time_span([chart]) is None
    assert make_chart({}, None, columns=4).value is None


def test_charts_share_one_time_span_and_its_columns() -> None:
    charts = [make_chart({0: trace(1.0, 2.0)}, 0, columns=4), make_chart({0: trace(1.0, 2.0, since=9.0)}, 0, columns=4)]
    span = time_span(charts)
    assert span == (0.0, 10.0)
    assert [time_column(at, 11, span) for at in (-1.0, 0.0, 4.9, 10.0, 11.0)] == [0, 0, 5, 10, 10]
    assert column_time(5, 11, span) == 5.0 and column_time(99, 11, span) == 10.0
    assert time_column(3.0, 11, (3.0, 3.0)) == 10


@pytest.mark.parametrize(
    ("name", "values", "counts"),
    [
        ("Epoch", (1.0,), True),
        ("total_steps", (400.0,), True),
        ("tokens", tuple(4096.0 * place for place in range(9)), True),
        ("tokens", (*(4096.0 * place for place in range(9)), 5.0), False),
        ("loss", tuple(0.5 * place for place in range(9)), False),
        ("left", tuple(9.0 - place for place in range(9)), False),
        ("odd", (-inf, inf) * 9, False),
    ],
)
def test_metric_with_constant_integer_steps_is_a_counter(name: str, values: tuple[float, ...], counts: bool) -> None:
    assert is_counter(name, trace(*values)) is counts


def test_steps_and_epochs_are_never_charted_and_losses_come_first() -> None:
    book = MetricStore()
    book.add_values("r", 3, 0.0, {"epoch": 1, "step": 10})
    assert book.sorted_names("r") == ([], ["epoch", "step"])
    book.add_values("r", 5, 0.0, {"lr": 0.1, "val_loss": 2.5})
    assert book.sorted_names("r") == (["val_loss", "lr"], ["epoch", "step"])
    for place in range(9):
        book.add_values("s", 0, float(place), {"step": place, "seen": 64 * place})
    assert book.sorted_names("s") == (["seen"], ["step"]), "there is nothing else"


def test_text_of_latest_metrics_has_losses_first_and_no_totals() -> None:
    numbers = {"step": 3.0, "total": 9.0, "lr": 0.1, "loss": 2.0}
    assert RankState(0, 0, "running", 1.0, "", numbers).note == "loss 2  lr 0.1  step 3"


# Scales and ticks: of any values that a rank may log.

any_number = st.floats(allow_nan=True, allow_infinity=True)
finite_number = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("span", "found", "labels"),
    [
        ((0.0, 1187.0), [0.0, 500.0, 1000.0], ["0", "500", "1.0k"]),
        ((0.0, 1600.0), [0.0, 500.0, 1000.0, 1500.0], ["0", "500", "1.0k", "1.5k"]),
        ((0.0, 0.93), [0.0, 0.5], ["0", "0.5"]),
        ((12_000.0, 13_000.0), [12_000.0, 12_500.0, 13_000.0], ["12.0k", "12.5k", "13.0k"]),
        ((-3.0, 3.0), [-2.0, 0.0, 2.0], ["-2", "0", "2"]),
        ((1e-5, 4e-5), [1e-5, 2e-5, 3e-5, 4e-5], ["1e-5", "2e-5", "3e-5", "4e-5"]),
        ((7.0, 7.0), [7.0], ["7"]),
    ],
)
def test_ticks_are_few_and_round(span: tuple[float, float], found: list[float], labels: list[str]) -> None:
    assert ticks(*span) == pytest.approx(found)
    assert tick_labels(ticks(*span)) == labels


@given(finite_number, finite_number, st.integers(2, 6))
@example(0.0, 5e-324, 4)
@example(-1.7e308, 1.7e308, 4)
@example(1e300, 1.0000000000000002e300, 4)
def test_ticks_are_within_any_finite_span(one: float, other: float, most: int) -> None:
    low, high = min(one, other), max(one, other)
    found = ticks(low, high, most)
    assert 1 <= len(found) <= most
    assert all(low <= tick <= high for tick in found) and found == sorted(found)
    assert all(len(label) <= NUMBER_WIDTH for label in tick_labels(found))


@given(st.floats(min_value=5e-324, allow_infinity=False), st.floats(min_value=5e-324, allow_infinity=False))
def test_log_ticks_are_within_any_positive_span(one: float, other: float) -> None:
    low, high = log10(min(one, other)), log10(max(one, other))
    found = log_ticks(low, high)
    assert 1 <= len(found) <= 4 and all(low <= tick <= high for tick in found)
    assert all(len(label) <= NUMBER_WIDTH for label in tick_labels(found, log=True))


def test_log_ticks_are_decades_or_round_values() -> None:
    assert tick_labels(log_ticks(-4.3, 0.2), log=True) == ["0.0001", "0.01", "1"]
    assert tick_labels(log_ticks(log10(1.5), log10(9.0)), log=True) == ["2", "4", "6", "8"]


@given(st.lists(st.tuples(st.floats(0, 1e9), any_number), max_size=30), st.booleans())
@example([(0.0, nan)], False)
@example([(0.0, 5.0)], True)
@example([(0.0, 2e-309)], False)
@example([(0.0, 1.2e308)], False)
@example([(0.0, 5.0), (1.0, 5.0)], False)
@example([(0.0, inf), (1.0, -inf)], True)
def test_any_series_is_drawn_with_its_ticks(points: list[tuple[float, float]], log: bool) -> None:
    line = sorted(points, key=lambda point: point[0])
    series = Trace(array("d", [at for at, _ in line]), array("d", [value for _, value in line]))
    chart = make_chart({0: series}, 0, columns=10, log=log or None)
    spanned = bounds(chart.lines)
    values = [value for _, value in line if isfinite(value) and (value > 0 or not chart.is_log)]
    assert (spanned is None) is not bool(values)
    if spanned is None:
        return
    (first, last), (low, high) = spanned
    canvas = Canvas(20, 5, (first, last), (low, high))
    canvas.draw_line(chart.front, 1)
    found = log_ticks(low, high) if chart.is_log else ticks(low, high)
    labels = list(zip(found, tick_labels(found, log=chart.is_log), strict=True))
    canvas.draw_grid(ticks(first, last), found, 2)
    rows = ["".join(text for text, _ in row) for row in framed_ticks(canvas, labels, [(first, "a"), (last, "b")], 9)]
    assert {len(row) for row in rows} == {29} and len(rows) == 6
    assert sum("┤" in row for row in rows) >= 1


@given(st.lists(any_number, min_size=1, max_size=60))
def test_scale_is_logarithmic_only_for_positive_values_over_decades(values: list[float]) -> None:
    finite_values = [value for value in values if isfinite(value)]
    is_wide = bool(finite_values) and min(finite_values) > 0 and max(finite_values) / min(finite_values) > 100
    assert spans_decades([list(enumerate(values))]) is is_wide


@given(st.lists(any_number, max_size=300), st.integers(2, 20))
def test_reduced_line_has_the_extremes_of_its_values(values: list[float], columns: int) -> None:
    line = trace_line(trace(*values), columns)
    shown, known = ([value for value in each if isfinite(value)] for each in ([value for _, value in line], values))
    assert (min(shown), max(shown)) == (min(known), max(known)) if known else not shown
    assert all(before[0] <= after[0] for before, after in pairwise(line))
    assert all(isfinite(value) for value in values) <= (len(line) <= 4 * columns + 4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=LEAST_NOISY, max_size=300), st.integers(6, 200))
def test_noisy_series_are_drawn_as_medians_over_a_band(values: list[float], columns: int) -> None:
    chart = make_chart({0: trace(*values)}, 0, columns=columns)
    if chart.hues:
        (low, high), front = chart.behind, chart.front
        assert chart.hues == [BAND, BAND] and len(front) <= max(2, columns // BIN_COLUMNS)
        assert all(a[1] <= b[1] <= c[1] for a, b, c in zip(low, front, high, strict=True))
        assert (min(y for _, y in low), max(y for _, y in high)) == (min(values), max(values))
        assert (front[0][0], front[-1][0]) == (0.0, len(values) - 1)
    else:
        assert list(chart.front) == list(trace_line(trace(*values), columns))


def test_only_noise_is_drawn_as_a_band() -> None:
    smooth = [1 / (1 + step) for step in range(100)]
    assert not make_chart({0: trace(*smooth)}, 0, columns=100).hues
    noisy = {rank: trace(*((step * 7 + rank) % 10 for step in range(100))) for rank in range(2)}
    assert make_chart(noisy, 0, columns=100).hues == [1, BAND, BAND], "only the selected rank has a band"


def test_step_axis_places_values_at_steps_and_finds_their_times() -> None:
    steps = Trace(array("d", [10.0, 20.0, 30.0]), array("d", [0.0, 100.0, 300.0]))
    axis = StepAxis.of(steps)
    assert axis is not None
    assert [axis.position(at) for at in (5.0, 10.0, 15.0, 25.0, 30.0, 99.0)] == [0.0, 0.0, 50.0, 200.0, 300.0, 300.0]
    assert [axis.time(step) for step in (-1.0, 0.0, 99.0, 100.0, 999.0)] == [10.0, 10.0, 10.0, 20.0, 30.0]
    assert StepAxis.of(trace(1.0, 1.0)) is None and StepAxis.of(trace(1.0, nan)) is None
    chart = make_chart({0: Trace(steps.at, array("d", [3.0, 2.0, 1.0]))}, 0, columns=9, axes={0: axis})
    assert list(chart.front) == [(0.0, 3.0), (100.0, 2.0), (300.0, 1.0)]


def test_runs_of_different_speed_share_the_step_axis() -> None:
    books = {"fast": MetricStore(), "slow": MetricStore(), "silent": MetricStore()}
    for run, seconds in (("fast", 0.01), ("slow", 1.0), ("silent", 1.0)):
        for step in range(3):
            counters = {} if run == "silent" else {"epoch": step // 2, "step": 100 * step}
            books[run].add_values(run, 0, 50.0 + seconds * step, {"loss": 1.0 - step, **counters})
    runs = {run: (book, 50.0, list(zip(*book.first_trace(run, "loss"), strict=True))) for run, book in books.items()}
    both = {run: runs[run] for run in ("fast", "slow")}
    assert place_runs(both, by_time=False) == ("step", [[(0.0, 1.0), (100.0, 0.0), (200.0, -1.0)]] * 2)
    axis, (fast, slow) = place_runs(both, by_time=True)
    assert axis == "" and fast[-1][0] == pytest.approx(0.02) and slow[-1][0] == pytest.approx(2.0)
    assert place_runs(runs, by_time=False)[0] == "", "not all runs logged a step"
    rows = [row.plain for row in overlay([[(0.0, 1.0), (200.0, 2.0)]], [""], 60, 8, "step")]
    assert (
        rows[0].startswith("2.0┤")
        and rows[-1].startswith("   └step 0─")
        and rows[-1].endswith("─100──────────────────────200")
    )


def test_chart_of_several_runs_is_logarithmic_if_the_values_span_decades() -> None:
    falling = [(float(step), 10.0 ** (-step / 10)) for step in range(31)]
    rows = [row.plain for row in overlay([falling, falling], ["", ""], 60, 10)]
    assert rows[-1].startswith(" log └0:00─") and "─0:20─" in rows[-1]
    assert [row.partition("┤")[0].strip() for row in rows if "┤" in row] == ["1", "0.1", "0.01", "0.001"]
    assert overlay([falling], [""], 20, 10) == overlay([], [], 60, 10) == [], "too narrow, and without data"


def test_restart_interrupts_lines_and_the_later_attempt_has_the_hairline() -> None:
    steps = trace(0.0, 1.0, 2.0, 3.0, 1.0, 2.0)
    axis = StepAxis.of(steps)
    assert axis is not None
    placed = axis.place(trace_line(trace(9.0, 8.0, 7.0, 6.0, 5.0, 4.0)))
    assert [at for at, _ in placed] == [0.0, 1.0, 2.0, 3.0, 1.0, 1.0, 2.0] and isnan(placed[4][1])
    assert axis.time(2.0) == 5.0 and axis.time(3.0) == 5.0
    assert time_span([make_chart({0: steps}, 0, columns=9, axes={0: axis})]) == (0.0, 3.0)


def test_band_is_filled_behind_the_line_that_hides_it() -> None:
    many = {rank: trace(*(float(rank + 1 + place) for place in range(5))) for rank in range(RANKS_DRAWN + 1)}
    chart = make_chart(many, None, columns=8)
    low, high = (line for line, hue in zip(chart.behind, chart.hues, strict=True) if hue == BAND)
    canvas = Canvas(8, 4, (0.0, 4.0), (1.0, 13.0))
    canvas.fill_between(low, high, 1)
    filled = [canvas.runs(row) for row in range(4)]
    assert all(any(owner == 1 for _, owner in row) for row in filled)
    canvas.draw_line(chart.front, 2)
    assert any(owner == 2 for row in range(4) for _, owner in canvas.runs(row))
    assert [len("".join(text for text, _ in canvas.runs(row))) for row in range(4)] == [8] * 4


# A band that is kept while its lines grow is what it would be if all of it were looked at anew.

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
def test_incremental_band_equals_a_full_computation(points: Points, columns: int, looks: list[float]) -> None:
    bands = IncrementalBand()
    for until in sorted(looks):
        assert bands.update(traces(points, until), columns) == IncrementalBand().update(traces(points, until), columns)
    assert bands.update(traces(points), columns) == IncrementalBand().update(traces(points), columns)


@given(st.lists(st.lists(st.tuples(st.integers(0, 8), numbers), max_size=20), max_size=5))
def test_incremental_band_equals_compute_band_for_equal_columns(points: Points) -> None:
    points = [*points, [(0.0, 1.0), (8.0, 2.0)]]  # so that eight columns are a second each
    assert IncrementalBand().update(traces(points), 8) == compute_band(list(traces(points).values()), 8)


def test_incremental_band_recomputes_thinned_or_removed_series() -> None:
    points: Points = [[(float(at), at + rank / 4) for at in range(100)] for rank in range(3)]
    bands = IncrementalBand()
    bands.update(traces(points, 90.0), 32)
    thinned = [points[0], points[1][::2], points[2]]
    assert bands.update(traces(thinned), 32) == IncrementalBand().update(traces(thinned), 32)
    others = [points[0], [(max(0.0, at - 0.5), 2 * value) for at, value in points[1]], points[2]]
    bands.update(traces(points, 90.0), 32)
    assert bands.update(traces(others), 32) == IncrementalBand().update(traces(others), 32)
    assert bands.update(traces(points[:1]), 32) == IncrementalBand().update(traces(points[:1]), 32)
    assert bands.update({}, 32) == ([], [], [], [])


# Bands and outliers: over every line there is.

spread_numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
finite = st.floats(-1e300, 1e300, allow_subnormal=False)  # half of the least of those is 0


def line(*points: tuple[float, float]) -> Trace:
    ordered = sorted(points, key=lambda point: point[0])
    return Trace(array("d", [at for at, _ in ordered]), array("d", [value for _, value in ordered]))


def test_series_counts_in_the_band_until_a_pause_after_its_end() -> None:
    seldom, often = line((0.0, 5.0), (4.0, 7.0)), line(*((float(at), 1.0) for at in range(11)))
    found = compute_band([seldom, often], 10)
    assert found.high == [5.0] * 3 + [7.0] * 5 + [1.0, 1.0]
    assert found.low == [1.0] * 10 and found.middle == [3.0] * 3 + [4.0] * 5 + [1.0, 1.0]
    assert found.at[-1] == 10.0


@given(st.lists(st.lists(st.tuples(st.floats(0, 1e9), spread_numbers), max_size=20), max_size=6), st.integers(1, 40))
def test_band_covers_every_finite_value_in_order(points: list[list[tuple[float, float]]], columns: int) -> None:
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
def test_median_has_at_most_half_of_values_on_each_side(values: list[float]) -> None:
    middle = median(values)
    assert sum(value < middle for value in values) <= len(values) / 2
    assert sum(value > middle for value in values) <= len(values) / 2


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([98, 97, 99, 98, 12, 98, 97], [4]),
        ([1.0] * 255 + [1.04], []),  # far by the deviation, not for people
        ([1.0] * 255 + [1.06], [255]),
        ([0.25, 0.25, 0.25, 0.6], [3]),  # one of four was none, where the others were equal
        ([1, 2, 3, 4, 5, 6], []),
        ([0, 0, 0, 0], []),
        ([1, 100], []),
        ([2.0, nan, 2.0, 2.0, 2.05], [1]),
        ([2.0, inf], [1]),
        ([1e308, -1e308, 1e308, 1e308, 1e308], [1]),
        ([1.0, 1.1, 0.9, 1.05, 50.0, 9000.0, 1.0, 0.95], [5, 4]),
    ],
)
def test_find_outliers_returns_keys_far_from_all_others(values: list[float], odd: list[int]) -> None:
    assert find_outliers(dict(enumerate(values))) == odd


def test_deviation_below_the_minimum_is_no_outlier() -> None:
    """A processor at 94 % was reported as an outlier among others at 97 %."""
    busy = dict(enumerate([97.0, 97.2, 96.9, 97.1, 94.0]))
    assert find_outliers(busy, 10.0) == []
    assert find_outliers(busy | {4: 86.0}, 10.0) == [4]


@given(st.dictionaries(st.integers(), spread_numbers, max_size=30))
def test_outliers_are_never_the_majority(values: dict[int, float]) -> None:
    found = find_outliers(values)
    good = [key for key, value in values.items() if isfinite(value)]
    assert len(found) == len(set(found)) and set(found) <= set(values)
    assert sum(key in good for key in found) <= len(good) / 2
    assert all(isfinite(values[key]) or good for key in found)


def drawn_dots(canvas: Canvas) -> set[tuple[int, int]]:
    """Return (column, row) of all dots of a canvas."""
    bits = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    return {
        (2 * x + column, 4 * y + row)
        for y in range(canvas.height)
        for x, char in enumerate("".join(text for text, _ in canvas.runs(y)).replace(" ", "\u2800"))
        for bit, (column, row) in enumerate(bits)
        if ord(char) - 0x2800 & 1 << bit
    }


def line_dots(canvas: Canvas, points: list[tuple[float, float]]) -> set[tuple[int, int]]:
    """Return the dots of a line, computed dot by dot."""
    found: set[tuple[int, int]] = set()
    last = None
    for x, y in points:
        here = (canvas.dot_column(x), canvas.dot_row(y)) if isfinite(y) else None
        if here is not None:
            (x0, y0), (x1, y1) = last or here, here
            steps = max(abs(x1 - x0), abs(y1 - y0)) or 1
            found |= {(x0 + (x1 - x0) * at // steps, y0 + (y1 - y0) * at // steps) for at in range(steps + 1)}
        last = here
    return found


lines_in_the_unit_square = st.lists(st.tuples(st.floats(-0.2, 1.2), st.floats(-0.2, 1.2) | st.just(nan)))


@given(st.integers(1, 6), st.integers(1, 4), lines_in_the_unit_square, st.booleans())
@example(3, 2, [(0.0, 0.0), (0.0, 1.0), (0.2, 0.5), (0.2, nan), (0.4, 0.5), (0.6, 0.0), (1.0, 1.0)], True)
def test_line_and_filled_area_have_the_dots_of_their_definition(
    width: int, height: int, points: list[tuple[float, float]], ordered: bool
) -> None:
    points = sorted(points, key=lambda each: each[0]) if ordered else points
    canvas = Canvas(width, height, (0.0, 1.0), (0.0, 1.0))
    canvas.draw_line(points, 2)
    line = line_dots(canvas, points)
    assert drawn_dots(canvas) == line
    cells = {(column // 2, row // 4) for column, row in line}
    canvas.fill(1)
    filled = {(column, row) for column, top in line for row in range(top, 4 * height)}
    assert drawn_dots(canvas) == filled
    for row in range(height):
        owners = [owner for text, owner in canvas.runs(row) for _ in text]
        here = {column // 2 for column, dot in filled if dot // 4 == row}
        assert owners == [2 if (x, row) in cells else 1 if x in here else 0 for x in range(width)]
