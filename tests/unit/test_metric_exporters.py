"""Exporters of metrics, with the real libraries."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

import pytest

from skyward_core.model.errors import UsageError
from skyward_core.model.metric_definitions_series_and_export import Curve, Curves
from skyward_tui.metric_exporters import EXPORTERS, export, find_exporter, points

LABELS = {"pool": "lab", "run": "3f2a"}
CURVES = Curves([
    Curve("loss", rank=0, at=array("d", [10.0, 20.0, 30.0]), values=array("d", [3.0, 2.0, float("nan")])),
    Curve("step", rank=0, at=array("d", [10.0, 20.0, 30.0]), values=array("d", [100, 200, 300])),
    Curve("bad=\x1b name", rank=1, at=array("d", [11.0]), values=array("d", [1.5])),
    Curve("util", "%", node=0, gpu=1, at=array("d", [12.0]), values=array("d", [98.0])),
])  # fmt: skip


def test_values_have_the_step_that_their_rank_logged() -> None:
    found = [(each.source, each.name, each.step) for each in points(CURVES)]
    assert found == [
        ("rank 0", "loss", 100), ("rank 0", "loss", 200), ("rank 0", "loss", 300), ("rank 1", "bad=\x1b name", 0),
        ("node 0 GPU 1", "util", 0),
    ]  # fmt: skip


def test_tensorboard_reads_the_event_files(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert export(CURVES, LABELS, f"tensorboard:{tmp_path}") == str(tmp_path / "3f2a")
    read = EventAccumulator(str(tmp_path / "3f2a" / "rank_0"))
    read.Reload()
    assert [(each.wall_time, each.step, each.value) for each in read.Scalars("loss")][:2] == [
        (10.0, 100, 3.0), (20.0, 200, 2.0),
    ]  # fmt: skip
    assert {path.name for path in (tmp_path / "3f2a").iterdir()} == {"rank_0", "rank_1", "node_0_GPU_1"}


def test_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    place = export(CURVES, LABELS, "wandb:project")
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"rank 0/loss" in written.read_bytes() and f"wandb sync {written.parent}" in place


def test_mlflow_stores_the_run_in_the_experiment_of_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracking = pytest.importorskip("mlflow.tracking")
    uri = f"file://{tmp_path}/mlruns"
    for _ in range(2):
        assert "of experiment lab" in export(CURVES, LABELS, f"mlflow:{uri}")
    client = tracking.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("lab").experiment_id])
    assert [each.info.status for each in runs] == ["FINISHED"] * 2 and runs[0].data.tags["run"] == "3f2a"
    history = client.get_metric_history(runs[0].info.run_id, "rank 0/loss")
    assert [(each.step, each.timestamp, each.value) for each in history][:2] == [(100, 10000, 3.0), (200, 20000, 2.0)]


def test_errors_name_the_exporters_and_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"unknown exporter 'comet'. Use one of: tensorboard, wandb, mlflow"):
        find_exporter("comet")
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    with pytest.raises(UsageError, match=r"Run pip install mlflow-skinny"):
        export(CURVES, LABELS, "mlflow")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot export to tensorboard: "):
        export(CURVES, LABELS, f"tensorboard:{tmp_path}/file")


def test_installed_packages_add_exporters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "more-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[skyward.exporters]\ncount = more:count\nwandb = more:count\n")
    (tmp_path / "more.py").write_text("def count(curves, labels, target):\n    return f'{target} {len(curves)}'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert export(CURVES, LABELS, "count:x") == "x 4"
    assert find_exporter("wandb") is EXPORTERS["wandb"]
