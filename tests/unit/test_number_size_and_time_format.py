"""One format of numbers, byte sizes and durations on screens, in commands and in messages."""

from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.util.number_size_and_time_format import NUMBER_WIDTH, ago, duration, number
from skyward_core.views.rank_metrics_and_progress import format_metrics
from skyward_tui.text.number_time_and_run_state_format import rate_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0045, "0.0045"), (2.96443, "2.964"), (999.96, "1,000"), (7212, "7,212"), (9999.4, "9,999"),
        (9999.7, "10k"), (25_800, "25.8k"), (25_812.4, "25.81k"), (999_949, "999.9k"), (999_960, "1M"), (3.2e9, "3.2G"),
        (1e14, "100T"), (1e15, "1e15"), (0.000012, "1.2e-5"), (-0.00001234, "-1.23e-5"), (1e-300, "1e-300"),
        (inf, "inf"), (nan, "nan"),
    ],
)  # fmt: skip
def test_number_has_four_digits_and_a_unit(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats())
def test_number_fits_its_column(value: float) -> None:
    text = number(value)
    assert len(text) <= NUMBER_WIDTH
    if isfinite(value) and 1e-99 < abs(value) < 1e99:
        factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1], 1.0)
        assert float(text.rstrip("kMGT").replace(",", "")) * factor == pytest.approx(value, rel=0.06)


@pytest.mark.parametrize(
    ("seconds", "text", "precise"),
    [
        (-1, "0:00", "-1000 ms"), (0.004, "0:00", "4 ms"), (0.9996, "0:00", "1.0 s"), (9.2, "0:09", "9.2 s"),
        (59.94, "0:59", "59.9 s"), (59.97, "0:59", "0:59"), (186, "3:06", "3:06"), (3599, "59:59", "59:59"),
        (7500, "2h05", "2h05"), (86_399, "23h59", "23h59"), (273_600, "3d04h", "3d04h"), (864_000, "10d", "10d"),
    ],
)  # fmt: skip
def test_duration_has_one_format(seconds: float, text: str, precise: str) -> None:
    assert duration(seconds) == text
    if seconds >= 0:
        assert duration(seconds, precise=True) == precise


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "now"), (59, "now"), (2460, "41m ago"), (7500, "2h ago"), (1e6, "11d ago")]
)
def test_time_ago_has_the_largest_unit(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_counters_are_complete_and_other_metrics_are_short() -> None:
    assert format_metrics({"step": 12345.0, "tokens": 25_800.0, "loss": 2.31}) == "step 12,345  tokens 25.8k  loss 2.31"


@pytest.mark.parametrize(("rate", "text"), [(3.14, "3.1 it/s"), (1234.5, "1,234 it/s"), (0.4, "2.5 s/it")])
def test_rate_has_no_exponent(rate: float, text: str) -> None:
    assert rate_text(rate) == text
