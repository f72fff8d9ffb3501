"""Alerts about running runs: ranks or machines with problems, and since when; storage of rank metrics."""

from __future__ import annotations

import itertools
import json
import random
from math import inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.views.log_buffers_and_rank_activity import MAX_SILENCE
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.metric_kinds_and_order import classify_metric
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.problem_alerts_and_stragglers import REPEAT_SECONDS, Alert, AlertWatch, find_alerts
from skyward_core.views.rank_metrics_and_progress import (
    BLOCK_SIZE,
    MAX_NAMES,
    MAX_PACES,
    MAX_POINTS,
    MAX_RUNS,
    PACE_SIZE,
    PLATEAU_BLOCKS,
    RECOVERY_COUNT,
    MetricStore,
    SeriesDiagnostics,
)
from tests.support.fake_session import FakeSession


def running(ranks: int = 4) -> tuple[FakeSession, PoolView, RunView]:
    session = FakeSession()
    view = session.pool("llama-ft", ranks)
    return session, view, session.open_run(view)


def kinds(alerts: list[Alert]) -> list[tuple[str, str]]:
    return [(alert.kind, alert.who) for alert in alerts]


@pytest.mark.parametrize(
    ("values", "word", "place"),
    [
        ([1.0, 2.0], None, 0),
        ([1.0, nan], "NaN", 1),
        ([inf], "inf", 0),
        ([nan] + [1.0] * (RECOVERY_COUNT - 1), "NaN", 0),  # one value is not over at once
        ([nan] + [1.0] * RECOVERY_COUNT, None, 0),
        ([nan] + [1.0] * RECOVERY_COUNT + [inf], "inf", RECOVERY_COUNT + 1),
    ],
)
def test_nan_alert_names_the_first_step_that_is_not_finite(values: list[float], word: str | None, place: int) -> None:
    session, view, run = running()
    for step, each in enumerate(values):
        view.metrics.add_values(run.id, 2, session.now - 30 + step / 10, {"step": 100 + step, "loss": each})
    found = find_alerts(view, run, session.now)
    assert kinds(found) == ([] if word is None else [("nan", "rank 2")])
    if word is not None:
        assert found[0].words == f"loss is {word} from step {100 + place} on"
        assert found[0].since == session.now - 30 + place / 10


@given(st.lists(st.floats(), max_size=60))
def test_series_is_bad_while_a_recent_value_is_not_finite(values: list[float]) -> None:
    diagnostics = SeriesDiagnostics("x")
    for at, each in enumerate(values):
        diagnostics.add(float(at), each, None)
    assert (diagnostics.bad_at is not None) is any(not isfinite(each) for each in values[-RECOVERY_COUNT:])


def plateau(values: list[float], every: float = 10.0) -> float | None:
    diagnostics = SeriesDiagnostics("loss")
    for place, each in enumerate(values):
        diagnostics.add(place * every, each, None)
    return diagnostics.rests_since


FALLS = [10.0 - place / 100 for place in range(4 * BLOCK_SIZE)]
WAVERS = [8.0 + 0.2 * (place * 7 % 11) for place in range((PLATEAU_BLOCKS + 2) * BLOCK_SIZE)]


@pytest.mark.parametrize(
    ("values", "every", "is_reported"),
    [
        ([1.0] * 2000, 10.0, False),  # it never fell
        (FALLS + [8.0] * BLOCK_SIZE, 10.0, False),  # too few to say
        (FALLS + [8.1] * (PLATEAU_BLOCKS + 1) * BLOCK_SIZE, 10.0, True),
        (FALLS + WAVERS, 10.0, True),
        (FALLS + WAVERS, 0.05, False),  # within seconds
        (FALLS + WAVERS + [5.0] * BLOCK_SIZE, 10.0, False),  # it goes on
        ([10.0 / (1 + place / 100) for place in range(3000)], 10.0, False),  # slower and slower, yet better
    ],
)
def test_loss_plateau_is_detected(values: list[float], every: float, is_reported: bool) -> None:
    assert (plateau(values, every) is not None) is is_reported


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("loss", "loss"), ("train/loss", "loss"), ("val_loss", "loss"), ("ppl", "loss"), ("glossary", ""),
        ("step_time", "time"), ("s/it", "time"), ("ms/step", "time"), ("step", ""), ("tokens/s", "rate"),
        ("tokens_per_sec", "rate"), ("throughput", "rate"), ("lr", ""), ("accuracy", ""), ("steps", ""),
    ],
)  # fmt: skip
def test_metric_is_classified_by_its_name(name: str, kind: str) -> None:
    assert classify_metric(name) == kind


def test_silent_rank_raises_a_stall_alert() -> None:
    session, view, run = running()
    now = session.now + MAX_SILENCE
    for rank in (0, 1, 3):
        view.activity.record_activity(run.id, rank, now - 1)
    (alert,) = find_alerts(view, run, now)
    assert (alert.kind, alert.rank, alert.since) == ("stall", 2, session.now - 40)
    view.nodes[2].link_up = False
    assert find_alerts(view, run, now) == []


@pytest.mark.parametrize(
    ("name", "paces", "ranks"),
    [
        ("step_time", [1.0, 1.01, 0.99, 1.02, 3.0], [4]),
        ("step_time", [1.0, 1.01, 0.99, 1.02, 0.2], []),  # faster than the others
        ("step_time", [1.0, 1.0, 1.0, 1.0, 1.05], []),  # far by the deviation, not by the clock
        ("step_time", [0.25, 0.25, 0.25, 0.6], [3]),
        ("tokens/s", [900.0, 910.0, 905.0, 300.0, 902.0], [3]),
        ("tokens/s", [900.0, 910.0, 905.0, 2000.0, 902.0], []),
        ("lr", [1.0, 1.0, 1.0, 1.0, 9.0], []),
    ],
)
def test_slow_rank_raises_a_straggler_alert(name: str, paces: list[float], ranks: list[int]) -> None:
    session, view, run = running(len(paces))
    for place in range(PACE_SIZE):
        assert find_alerts(view, run, session.now) == []
        for rank, pace in enumerate(paces):
            view.metrics.add_values(run.id, rank, session.now - 20 + place, {name: pace})
    found = find_alerts(view, run, session.now)
    assert kinds(found) == [("straggler", f"rank {rank}") for rank in ranks]
    assert all(alert.since == session.now - 20 for alert in found)


@pytest.mark.parametrize(
    ("before", "pace"),
    [
        (2 * MAX_PACES * PACE_SIZE, 3.0),
        ((MAX_PACES - 3) * PACE_SIZE, 1.15),
    ],  # thinned before, and meanwhile
)
def test_straggler_start_is_independent_of_when_alerts_are_read(before: int, pace: float) -> None:
    """The rank keeps up for one minute in between. The later app receives all metrics at once."""
    (session, view, run), (_, later_view, later_run) = running(4), running(4)
    began, watch, starts = session.now, AlertWatch(), set()
    slow = [*[False] * before, *[True] * 5 * PACE_SIZE, *[False] * 60, *[True] * 5 * PACE_SIZE]
    for place, lags in enumerate(slow):
        for rank in range(4):
            step = pace if rank == 2 and lags else 1.0 + 0.01 * rank
            for pool, its in ((view, run), (later_view, later_run)):
                pool.metrics.add_values(its.id, rank, began + place, {"step_time": step})
        if place > before:
            starts |= {alert.since for alert in watch.check(view, run, began + place)[0]}
    assert 1 <= len(starts) <= 2  # two stretches may become one meanwhile
    (later,) = AlertWatch().check(later_view, later_run, began + len(slow))[0]
    of_stretch = PACE_SIZE if before < MAX_PACES * PACE_SIZE - 5 * PACE_SIZE else 4 * PACE_SIZE
    assert all(abs(since - began - before) <= of_stretch for since in (*starts, later.since))


def test_single_slow_step_raises_no_straggler_alert() -> None:
    session, view, run = running(5)
    for place in range(3 * PACE_SIZE):
        for rank in range(5):
            slow = rank == 4 and place % PACE_SIZE == 0
            view.metrics.add_values(run.id, rank, session.now - 30 + place, {"step_time": 9.0 if slow else 1.0})
        assert find_alerts(view, run, session.now) == []


@pytest.mark.parametrize(
    ("node", "gpu", "expected"),
    [
        ({}, {}, []),
        ({"memory_used": 95, "memory_total": 100}, {"mem_used": 95, "mem_total": 100}, []),
        ({"memory_used": 96, "memory_total": 100}, {}, [("memory", "n1", "memory 96 % full")]),
        ({}, {"mem_used": 97, "mem_total": 100}, [("memory", "n1 GPU 0", "memory 97 % full")]),
        ({"memory_used": 96}, {"mem_used": 97, "mem_total": 0}, []),  # of how much?
        ({}, {"throttle": 0x04}, []),  # a power cap
        ({}, {"throttle": 0x20}, [("throttled", "n1 GPU 0", "slowed: too hot")]),
        ({}, {"throttle": 0x44}, [("throttled", "n1 GPU 0", "slowed: too hot (hardware)")]),
        ({}, {"util": 0, "xid": 5}, [("gpu", "n1 GPU 0", "Xid 5")]),
        (
            {},
            {"lost": 1, "xid": 79},
            [("gpu", "n1 GPU 0", "Xid 79 (the GPU has fallen off the bus), lost by the driver")],
        ),
    ],
)
def test_machine_metrics_raise_alerts_that_expire(
    node: dict[str, Any], gpu: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    session, view, run = running()
    view.machines = MachineMetrics()
    view.machines.feed(1, json.dumps({"at": session.now - 1, "node": node, "gpus": [gpu]}).encode())
    found = find_alerts(view, run, session.now)
    assert [(alert.kind, alert.who, alert.words) for alert in found] == expected
    assert find_alerts(view, run, session.now + 60) == [], "figures are of now, or none"


def test_machine_alert_start_comes_from_past_metrics() -> None:
    session, view, run = running()
    view.machines = MachineMetrics()
    full, calm = {"mem_used": 97, "mem_total": 100, "throttle": 0x20}, {"mem_used": 9, "mem_total": 100}
    past = [(60, full), (50, calm), (40, full), (20, full), (1, full)]
    lines = [json.dumps({"at": session.now - ago, "node": {}, "gpus": [gpu]}) for ago, gpu in past]
    view.machines.feed(1, "\n".join(lines).encode())
    found = find_alerts(view, run, session.now)
    assert [(alert.kind, alert.since) for alert in found] == [
        ("memory", session.now - 40), ("throttled", session.now - 40),
    ]  # fmt: skip
    assert json.loads(json.dumps(found[0].to_json())) == {
        "kind": "memory", "rank": None, "node": 1, "gpu": 0, "name": "mem_used", "since": session.now - 40,
        "words": "memory 97 % full",
    }  # fmt: skip


def test_gpu_error_before_the_run_raises_no_alert() -> None:
    """An alert about a lost GPU lasts until the driver has the GPU again, and repeated errors keep their first time."""
    session, view, run = running()
    view.machines = MachineMetrics()
    for at, gpu in ((run.opened_at - 5, {"xid": 31}), (session.now - 2, {"xid": 31})):
        view.machines.feed(1, json.dumps({"at": at, "node": {}, "gpus": [gpu]}).encode())
    assert find_alerts(view, run, session.now) == []
    for at in (session.now - 1, session.now):
        view.machines.feed(1, json.dumps({"at": at, "node": {}, "gpus": [{"lost": 1, "xid": 79}]}).encode())
    (found,) = find_alerts(view, run, session.now)
    assert (found.kind, found.since) == ("gpu", session.now - 1)
    view.machines.feed(1, json.dumps({"at": session.now, "node": {}, "gpus": [{"util": 3, "xid": 79}]}).encode())
    (found,) = find_alerts(view, run, session.now)
    assert found.words == "Xid 79 (the GPU has fallen off the bus)"


def test_alerts_are_sorted_by_severity_and_new_only_once() -> None:
    session, view, run = running()
    watch = AlertWatch()
    view.machines = MachineMetrics()
    hot = {"at": session.now - 1, "node": {}, "gpus": [{"throttle": 0x20}]}
    view.machines.feed(1, json.dumps(hot).encode())
    assert kinds(watch.check(view, run, session.now)[1]) == [("throttled", "n1 GPU 0")]
    view.metrics.add_values(run.id, 3, session.now, {"loss": nan})
    hot["at"] = session.now + 4
    view.machines.feed(1, json.dumps(hot).encode())
    found, new = watch.check(view, run, session.now + 5)
    assert kinds(found) == [("nan", "rank 3"), ("throttled", "n1 GPU 0")]
    assert kinds(new) == [("nan", "rank 3")]
    assert found[1].since == session.now - 1, "since it was first seen"
    assert watch.check(view, run, session.now + 5)[1] == []
    assert kinds(watch.check(view, run, session.now + 60)[0]) == [("nan", "rank 3")]
    for later, expected in ((70, 0), (70 + 2 * REPEAT_SECONDS, 1)):  # what comes and goes is told of once
        hot["at"] = session.now + later
        view.machines.feed(1, json.dumps(hot).encode())
        new = watch.check(view, run, session.now + later)[1]
        assert [alert.kind for alert in new].count("throttled") == expected


# The client's side of ``sky.log``: latest values, bounded histories, whatever pieces the bytes come in.


def line(run: str, at: float, **values: float) -> bytes:
    return json.dumps({"at": at, "run": run, "values": values}).encode() + b"\n"


def test_metric_files_are_parsed_from_arbitrary_chunks():
    book = MetricStore()
    first = b'7, "values": {}}\n' + line("r1", 1.0, loss=2.5, step=1) + line("r1", 2.0, loss=1.5)
    other = line("r2", 1.0, loss=float("nan"), step=9)
    for i in range(max(len(first), len(other))):
        book.feed("r000.metrics", 0, first[i : i + 1])
        book.feed("r000.1.metrics", 0, other[i : i + 1])
    assert book.latest("r1", 0) == {"loss": 1.5, "step": 1}
    assert book.history("r1", 0, "loss") == [(1.0, 2.5), (2.0, 1.5)]
    assert book.latest("r2", 0)["step"] == 9
    assert (book.ranks("r1"), book.latest("r1", 1), book.history("r3", 0, "loss")) == ([0], {}, [])


def test_long_metric_history_is_thinned_evenly():
    book = MetricStore()
    for step in range(10 * MAX_POINTS):
        book.add_values("r", 0, float(step), {"step": step})
        assert len(book.history("r", 0, "step")) <= MAX_POINTS
    points = book.history("r", 0, "step")
    assert points[0] == (0.0, 0.0)
    assert {b[0] - a[0] for a, b in itertools.pairwise(points)} == {16.0}
    assert len(points) > MAX_POINTS // 2
    assert book.latest("r", 0) == {"step": 10 * MAX_POINTS - 1}


def test_metric_store_bounds_names_and_runs():
    book = MetricStore()
    for run in range(2 * MAX_RUNS):
        book.add_values(f"r{run}", 0, 0.0, {f"n{i}": i for i in range(MAX_NAMES + 9)})
    assert book.latest("r0", 0) == {}
    assert len(book.latest(f"r{2 * MAX_RUNS - 1}", 0)) == MAX_NAMES
    assert len(book.latest(f"r{MAX_RUNS}", 0)) == MAX_NAMES


def test_invalid_lines_of_a_metrics_file_are_skipped() -> None:
    book, good = MetricStore(), b'{"run": "r", "at": 17.5, "values": {"loss": 1.0}}'

    def but(part: bytes, other: bytes) -> bytes:
        return good.replace(part, other)

    odd = [
        b"nonsense", b"[" * 5000, b'{"run": "r"}', but(b"17.5", b"1e400"), but(b"17.5", b"NaN"), but(b"17.5", b"-3"),
        but(b"17.5", b"1" + b"0" * 400), but(b'{"loss": 1.0}', b"[[7, 2.0]]"), but(b"1.0", b"1" + b"0" * 400),
        but(b"1.0", b"NaN"), but(b"loss", b"\\u001b]0;t\\u0007"),
    ]  # fmt: skip
    for line in [*odd, good]:
        book.feed("r000.metrics", 0, line + b"\n")
    assert [
        point for name in book.latest("r", 0) for point in book.history("r", 0, name) if not 0 <= point[0] < 99
    ] == []
    assert book.history("r", 0, "loss")[-1] == (17.5, 1.0)
    assert set(book.latest("r", 0)) == {"loss", "7", ""}


def find_odd_ranks(values: list[list[float]]) -> list[int]:
    """Return the outlier ranks, given the values of each rank."""
    book = MetricStore()
    for rank, sent in enumerate(values):
        for place, value in enumerate(sent):
            book.add_values("r", rank, float(place), {"loss": value})
    return book.outlier_ranks("r", "loss")


def test_odd_rank_is_found_by_its_recent_values() -> None:
    alike = [[1.0] * PACE_SIZE for _ in range(4)]
    assert find_odd_ranks([*alike, [9.0] * (PACE_SIZE - 1)]) == []
    assert find_odd_ranks([*alike, [9.0] * PACE_SIZE]) == [4]
    assert find_odd_ranks([*alike, [1.0] * PACE_SIZE + [9.0]]) == [], "one hiccup"
    assert find_odd_ranks([*alike, [1.0] * PACE_SIZE + [9.0] * PACE_SIZE]) == [4]
    assert find_odd_ranks([*alike, [9.0] * PACE_SIZE + [1.0] * PACE_SIZE]) == [], "it was"


def test_noise_makes_no_rank_odd() -> None:
    """Of four equal ranks, one deviates from the others in every seventh sample by chance."""
    rng, many = random.Random(7), 400
    noisy = [[[rng.gauss(1.0, 0.3) for _ in range(PACE_SIZE)] for _ in range(4)] for _ in range(many)]
    assert sum(map(bool, map(find_odd_ranks, noisy))) < many / 50
    apart = [[*ranks[:3], [value + 3.0 for value in ranks[3]]] for ranks in noisy]
    assert sum(find_odd_ranks(ranks)[:1] == [3] for ranks in apart) > many * 0.9


def test_rank_is_odd_while_its_latest_value_is_not_finite() -> None:
    alike = [[1.0] * PACE_SIZE for _ in range(4)]
    assert find_odd_ranks([*alike, [float("nan")]]) == [4]
    assert find_odd_ranks([*alike, [1.0] * PACE_SIZE + [float("inf")]]) == [4]
    assert find_odd_ranks([*alike, [float("nan"), 1.0]]) == []
