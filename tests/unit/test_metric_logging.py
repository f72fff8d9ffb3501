"""``sky.log``: metrics from a rank to a file."""

import json
import math
import os
import threading
import time

import numpy as np
import pytest

import skyward_core as sky
from skyward_core.runtime import metric_logging
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, using


@pytest.fixture
def spool(tmp_path, monkeypatch):
    """Writer without its thread. Tests write the lines."""
    path = tmp_path / "r000.metrics"
    flush = metric_logging.start_writer(str(path))
    monkeypatch.setattr(metric_logging._writer, "_thread", threading.current_thread())

    def lines():
        flush()
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    yield lines
    metric_logging._writer = None


def test_log_off_a_pool_does_nothing():
    assert metric_logging._writer is None
    sky.log(step=1, loss=0.5)


def test_logged_metrics_are_written_with_their_run(spool):
    with using(InstanceInfo(run="r1")):
        sky.log(step=3, loss=0.5)
    (line,) = spool()
    assert (line["run"], line["values"]) == ("r1", {"step": 3, "loss": 0.5})
    assert abs(line["at"] - time.time()) < 60


def test_metric_log_keeps_all_values_between_two_writes(spool):
    for step in range(1000):
        sky.log(step=step)
    sky.log(accuracy=0.25)
    lines = spool()
    assert [line["values"] for line in lines] == [*({"step": step} for step in range(1000)), {"accuracy": 0.25}]
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    sky.log(step=1000)
    assert [line["values"] for line in spool()][1001:] == [{"step": 1000}]


def test_metric_log_beyond_its_memory_limit_keeps_the_latest_values(spool, monkeypatch):
    monkeypatch.setattr(metric_logging, "MAX_PENDING", 3)
    for step in range(9):
        sky.log(step=step, **{f"at{step}": 1})
    first, second, last = (line["values"] for line in spool())
    assert (first["step"], second["step"]) == (0, 1)
    assert last == {"step": 8} | {f"at{step}": 1 for step in range(2, 9)}


def test_log_accepts_numpy_torch_and_bool_scalars(spool):
    torch = pytest.importorskip("torch")

    sky.log(a=np.float32(0.5), b=torch.tensor(2.0, requires_grad=True), c=True, d=float("nan"), e=np.int64(7))
    (line,) = spool()
    values = line["values"]
    assert (values["a"], values["b"], values["c"], values["e"]) == (0.5, 2.0, 1.0, 7.0)
    assert math.isnan(values["d"])


@pytest.mark.parametrize("value", ["0.5", None, [1], np.zeros(3)])
def test_log_rejects_values_that_are_no_numbers(value, spool):
    with pytest.raises(TypeError, match=r"sky\.log\(\) takes numbers, but loss is a"):
        sky.log(step=1, loss=value)
    assert spool() == []


def test_metric_writer_thread_flushes_by_itself(tmp_path):
    path = tmp_path / "m"
    metric_logging.start_writer(str(path))
    try:
        sky.log(step=1)
        deadline = time.monotonic() + 10
        while not (path.exists() and path.read_text()) and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert json.loads(path.read_text())["values"] == {"step": 1}
    finally:
        metric_logging._writer = None


def test_metric_writer_writes_the_rest_after_a_short_write(spool, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    for step in range(3):
        sky.log(step=step)
    assert [line["values"] for line in spool()] == [{"step": step} for step in range(3)]


def test_metrics_beyond_the_log_limit_of_a_run_are_dropped_with_one_notice(spool, capsys, monkeypatch):
    monkeypatch.setattr(metric_logging._writer, "_limit", 250)
    for _ in range(3):
        for run in ("r1", "r2"):
            with using(InstanceInfo(run=run)):
                for step in range(9):
                    sky.log(step=step)
        lines = spool()
    for run in ("r1", "r2"):
        steps = [line["values"]["step"] for line in lines if line["run"] == run]
        assert 1 < len(steps) < 9 and steps == list(range(len(steps)))
    notices = capsys.readouterr().err.splitlines()
    assert len(notices) == 2 and all("limit of 250 bytes" in notice for notice in notices)


def test_full_disk_is_reported_once_by_the_metric_writer(spool, capsys, monkeypatch):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for step in range(3):
        sky.log(step=step)
        assert metric_logging._writer is not None
        metric_logging._writer.flush()
    assert capsys.readouterr().err.count("No space left") == 1
