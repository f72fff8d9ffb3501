"""What a pool's machines were measured at, as screens, scripts and other programs read it."""

from __future__ import annotations

import csv
import io
import json
from array import array
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.model.errors import UsageError
from skyward_core.model.metric_series import (
    GPU_METRIC_DEFINITIONS,
    NODE_METRIC_DEFINITIONS,
    Curve,
    Curves,
    curve_json,
)
from skyward_core.views.machine_metrics import MAX_POINTS, MachineMetrics, MetricHistory
from skyward_core.views.metric_curves import build_curves
from skyward_core.views.pool_view import PoolView
from skyward_core.views.prometheus import format_prometheus
from skyward_core.views.rank_metrics import MetricStore
from tests.support.prometheus_parser import parsed


def sample(at: float, cpu: float = 1.0, **more: Any) -> bytes:
    return json.dumps({"at": at, "node": {"cpu": cpu}} | more).encode() + b"\n"


def test_the_newest_figures_and_the_past_by_node_and_gpu() -> None:
    book = MachineMetrics()
    devices = [{"id": "GPU-0", "model": "H100"}, {"id": "GPU-1", "model": "\x1b[2JH100"}]
    book.feed(3, sample(10.0, 5.0, devices=devices, gpus=[{"util": 97}, {"util": 12, "temp": 60}]), ahead=100.0)
    book.feed(1, sample(10.5) + sample(11.5, 2.0))
    book.feed(3, sample(11.0, 6.0, gpus=[{"util": 98}, {"lost": 1}], why="no word \x1b[31m"), ahead=100.0)
    assert list(book.nodes) == [1, 3]
    assert book.latest("cpu") == {(1, None): 2.0, (3, None): 6.0}
    assert book.latest("util") == {(3, 0): 98.0}, "what is not among the newest is not of now"
    machine = book.nodes[3]
    assert machine.devices[0].model == "H100"
    assert "\x1b" not in machine.devices[1].model + machine.why
    assert list(machine.host.trace("cpu").at) == [110.0, 111.0]
    assert [list(part) for part in machine.gpus[1].trace("temp")] == [[110.0], [60.0]]
    assert machine.is_fresh(115.0) and not machine.is_fresh(160.0)


def test_a_history_goes_on_where_the_clock_was_set_back() -> None:
    track = MetricHistory()
    for at in (100.0, 4000.0, 4001.0, 4000.9, 401.0, 402.0):
        track.add(at, {"cpu": at} if at > 400 else {})
    assert track.trace("cpu") == (array("d", [401.0, 402.0]), array("d", [401.0, 402.0]))
    assert track.span == (100.0, 402.0) and track.latest_at == 402.0


@given(st.lists(st.binary(max_size=60) | st.sampled_from([sample(1.0), b"[" * 2000, b'{"at":1e999,"node":{}}'])))
def test_lines_that_are_none_are_passed_over(lines: list[bytes]) -> None:
    book = MachineMetrics()
    book.feed(0, b"\n".join(lines))
    book.feed(0, sample(2.0, 3.0))
    assert book.latest("cpu") == {(0, None): 3.0}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=60), inner, max_size=4),
    )
)
def test_samples_may_hold_anything(told: Any) -> None:
    book = MachineMetrics()
    for each in (told, {"at": 5, "node": told, "gpus": told, "devices": told, "why": told}, {"at": told}):
        book.feed(0, json.dumps(each).encode())
    for _, _, track in book.tracks():
        assert all(type(value) is float for value in track.latest.values())
        assert all("\x1b" not in name for name in track.names)


@given(st.integers(1, 5 * MAX_POINTS))
def test_a_history_is_bounded_and_spans_all_of_it(count: int) -> None:
    track = MetricHistory()
    for at in range(count):
        track.add(float(at), {"a": at} | ({"b": 1.0} if at > count // 2 else {}))
    line = track.trace("a")
    assert len(line.at) == len(line.values) <= MAX_POINTS
    assert list(line.at) == list(line.values), "values keep their times"
    assert line.at[0] == 0 and line.at[-1] > count - 1 - max(1, 2 * count / MAX_POINTS)
    assert track.latest["a"] == count - 1
    assert all(at > count // 2 for at in track.trace("b").at)


# -- in one shape --------------------------------------------------------------------------------------------


def pool() -> Any:
    metrics, machines = MetricStore(), MachineMetrics()
    for rank in range(2):
        for step in range(3):
            metrics.add_values("r1", rank, 10.0 + step, {"loss": 1.0 / (1 + step)})
    metrics.add_values("r2", 0, 11.0, {"loss": 7.0})
    devices = [{"id": "x", "model": 'H100 "big"\\'}]
    for at in (5.0, 10.5, 12.0, 20.0):
        machines.feed(0, sample(at, at, devices=devices, gpus=[{"util": at, "throttle": 64}]))
    machines.set_silence_reason(1, "its agent is of an older release")
    return SimpleNamespace(metrics=metrics, machines=machines)


RUN: Any = SimpleNamespace(id="r1", opened_at=10.0, ended_at=15.0)


def test_of_a_run_come_its_ranks_numbers_and_its_machines_of_its_time() -> None:
    found = build_curves(pool(), RUN)
    assert found.names == ["loss", "cpu", "util", "throttle"]
    assert [curve.rank for curve in found.of("loss")] == [0, 1]
    (util,) = found.of("util")
    assert (util.node, util.gpu, util.unit, list(util.at)) == (0, 0, "%", [10.5, 12.0])
    assert found.notes == ["node 1: its agent is of an older release"]
    assert [len(each) for each in build_curves(pool())] == [4, 4, 4], "of no run all of the time, and machines only"
    assert len(build_curves(PoolView("p"), RUN)) == 0


def test_as_files() -> None:
    found = build_curves(pool(), RUN)
    file = io.StringIO(newline="")
    found.to_csv(file)
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert len(rows) == sum(map(len, found))
    assert rows[0] == {
        "name": "loss", "unit": "", "rank": "0", "node": "", "gpu": "", "model": "", "at": "10.0", "value": "1.0"
    }  # fmt: skip
    file = io.StringIO()
    found.to_json(file)
    assert json.loads(file.getvalue()) == [curve_json(curve) for curve in found]


def test_a_name_is_no_formula_in_a_spreadsheet_and_json_has_no_nan() -> None:
    odd = Curve("=cmd()", rank=0)
    for at, value in enumerate((nan, inf, 1.0)):
        odd.at.append(at)
        odd.values.append(value)
    file = io.StringIO()
    Curves([odd]).to_csv(file)
    assert "\n'=cmd()," in file.getvalue()
    file = io.StringIO()
    Curves([odd]).to_json(file)
    assert json.loads(file.getvalue())[0]["values"] == [None, None, 1.0]


@pytest.mark.proof("1 s of a processor")
def test_parquet_where_pyarrow_is_and_else_in_words(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        build_curves(pool(), RUN).to_parquet(str(tmp_path / "x.parquet"))
    monkeypatch.undo()
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    build_curves(pool(), RUN).to_parquet(str(tmp_path / "x.parquet"))
    assert parquet.read_table(tmp_path / "x.parquet").num_rows == sum(map(len, build_curves(pool(), RUN)))


# -- for Prometheus ------------------------------------------------------------------------------------------


def test_the_newest_of_each_for_prometheus() -> None:
    text = format_prometheus(build_curves(pool(), RUN), {"pool": "p", "run": "r1"})
    found = parsed(text)
    about = {"pool": "p", "run": "r1"}
    assert found["skyward_node_cpu_percent"] == ("gauge", [(about | {"node": "0"}, 12.0)])
    gpu = about | {"node": "0", "gpu": "0", "model": 'H100 "big"\\'}
    assert found["skyward_gpu_util_percent"] == ("gauge", [(gpu, 12.0)])
    assert found["skyward_gpu_throttle"] == ("gauge", [(gpu, 64.0)])
    assert [labels["rank"] for labels, _ in found["skyward_rank_number"][1]] == ["0", "1"]
    assert found["skyward_rank_number"][1][0][0]["name"] == "loss"


@given(st.lists(st.tuples(st.text(min_size=1), st.booleans(), st.floats()), unique_by=lambda each: each[:2]))
def test_whatever_names_there_are_prometheus_can_read_them(named: list[tuple[str, bool, float]]) -> None:
    curves = []
    for name, of_rank, value in named:
        curve = Curve(name, rank=0) if of_rank else Curve("util", node=0, gpu=0, model=name)
        curve.at.append(1.0)
        curve.values.append(value)
        curves.append(curve)
    found = parsed(format_prometheus(curves, {}))
    ranks = found.get("skyward_rank_number", ("", []))[1]
    assert [labels["name"] for labels, _ in ranks] == [name for name, of_rank, _ in named if of_rank]


def test_every_figure_has_a_name_that_prometheus_takes() -> None:
    curves = []
    for gpu, names in ((None, [*NODE_METRIC_DEFINITIONS, "of a newer-release"]), (0, GPU_METRIC_DEFINITIONS)):
        for name in names:
            curves.append(Curve(name, node=0, gpu=gpu))
            curves[-1].at.append(1.0)
            curves[-1].values.append(2.0)
    assert len(parsed(format_prometheus(curves, {"pool": "p"}))) == len(curves)


def test_numbers_are_those_of_this_machine() -> None:
    assert not (NODE_METRIC_DEFINITIONS.keys() & GPU_METRIC_DEFINITIONS.keys()), "one name, one meaning"
    assert all(
        figure.whole in {**NODE_METRIC_DEFINITIONS, **GPU_METRIC_DEFINITIONS, "": None}
        for figure in [*NODE_METRIC_DEFINITIONS.values(), *GPU_METRIC_DEFINITIONS.values()]
    )
