"""Formatting and command line of the benchmarks; measurements are not tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import NAMES
from .fresh import BenchError, fresh
from .metric import Bar, Metric, table

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("bar", "ours", "theirs", "met"),
    [
        (Bar(at_least=2), 1.9, None, False),
        (Bar(at_most=1, ratio_at_most=0.5), 0.9, 1.8, True),
        (Bar(at_most=1, ratio_at_most=0.5), 0.9, 1.7, False),
        (Bar(ratio_at_least=2), 10.0, None, False),
        (Bar(), None, 3.0, False),
    ],
)
def test_metric_is_ok_only_if_every_bound_holds(bar: Bar, ours: float | None, theirs: float | None, met: bool) -> None:
    assert Metric("some_s", ours, theirs, bar).ok is met


def test_metric_is_formatted_as_json_and_as_table() -> None:
    metric = Metric("start_s", 0.5, 2.0, Bar(at_most=0.4, ratio_at_most=1 / 3))
    assert metric.to_json() == {
        "ours": 0.5,
        "theirs": 2.0,
        "ratio": 0.25,
        "bar": "<= 0.4, <= 0.333x theirs",
        "ok": False,
    }
    head, row = table([metric]).splitlines()
    assert head.split()[:4] == ["metric", "ours", "theirs", "ratio"]
    assert row.split()[:4] == ["start_s", "0.5", "2", "0.25"] and row.endswith("MISSED")


def test_bench_command_lists_the_benchmarks() -> None:
    command = [sys.executable, "-m", "tests.bench"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [*NAMES]
    assert subprocess.run([*command, "nothing"], cwd=REPOSITORY, capture_output=True, timeout=60).returncode == 2


def test_failing_benchmark_side_is_named_in_the_error() -> None:
    with pytest.raises(BenchError, match="no_such_side"):
        fresh("local:no_such_side")
