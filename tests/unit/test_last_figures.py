"""What a machine was measured at last before a rank on it failed: live, out of what was kept, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt
from skyward_core.store.pool_folder import MetricsWriter
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views import events, recorded_events
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.pool_view import PoolView, RunView, apply
from skyward_tui.cli.main import cli
from tests.support.ledger_runs import record_runs

GB = 1 << 30


def sample(at: float, used: float, *gpus: dict[str, Any]) -> bytes:
    node = {"cpu": 50.0, "memory_used": used * GB, "memory_total": 100 * GB}
    return json.dumps({"at": at, "node": node, "gpus": gpus}).encode() + b"\n"


def failed(view: PoolView, at: float, kind: str = "raised", rank: int = 1) -> None:
    outcome = Outcome(rank, rank, rank, kind, 5.0, error=ErrorInfo("RuntimeError", "CUDA error"))  # type: ignore[arg-type]
    apply(view, events.RankEnded(pool="p", run="r", outcome=outcome, at=at))


@pytest.fixture
def view() -> PoolView:
    view = PoolView("p")
    apply(view, events.PoolOpened(pool="p", spec={"nodes": 2}, created_at=1000.0, at=1000.0))
    apply(view, events.RunOpened(pool="p", run="r", function="train", kind="broadcast", total=2, at=1000.0))
    view.machines = MachineMetrics()
    return view


def end(view: PoolView) -> RunView:
    cause = RootCause(1, "raised", "RuntimeError", "CUDA error")
    apply(view, events.RunEnded(pool="p", run="r", state="failed", root_cause=cause, at=1012.0))
    return view.runs["r"]


def test_the_last_ones_before_it_stay_whatever_comes(view: PoolView) -> None:
    assert view.machines is not None
    view.machines.feed(0, sample(1010.0, 20))
    view.machines.feed(1, sample(1008.0, 50) + sample(1010.0, 97, {"mem_used": 79, "mem_total": 80, "temp": 91}))
    failed(view, 1010.6)
    view.machines.feed(1, sample(1011.0, 3, {"mem_used": 0, "mem_total": 80, "temp": 60, "xid": 79}))
    found = end(view).cause_metrics
    assert found is not None and (found.node, found.at) == (1, 1010.0)
    assert found.describe() == [
        "memory 97 % full", "GPU 0 Xid 79 (the GPU has fallen off the bus), memory 99 % full, 91 °C",
    ]  # fmt: skip
    assert found.to_json()["gpus"][0]["mem_used"] == 79.0


def test_an_error_of_the_driver_long_after_is_not_of_it(view: PoolView) -> None:
    assert view.machines is not None
    view.machines.feed(1, sample(1010.0, 20, {"util": 90, "mem_used": 40, "mem_total": 80}))
    failed(view, 1010.6)
    view.machines.feed(1, sample(1100.0, 3, {"util": 0, "xid": 79, "lost": 1}))
    found = end(view).cause_metrics
    assert found is not None and found.describe() == ["memory 20 % full", "GPU memory 50 % at most"]


def test_old_figures_tell_nothing_of_it(view: PoolView) -> None:
    assert view.machines is not None
    view.machines.feed(1, sample(900.0, 97))
    failed(view, 1010.6)
    assert end(view).cause_metrics is None
    failed(view, 1010.7, "collateral", 0)
    assert not view.runs["r"].figures


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A run of which rank 1 raised after 20 s; rank 0 was stopped 4 s later."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ledger = Ledger()
    row = ledger.record_intent("a", "llama", {"provider": "local", "nodes": 2}, {"provider": "local"})
    import time

    began = time.time() - 100
    outcomes = [
        Outcome(0, 0, 0, "collateral", 24.0, error=ErrorInfo("Stopped", "another rank failed")),
        Outcome(
            1,
            1,
            1,
            "raised",
            20.0,
            error=ErrorInfo("RuntimeError", "CUDA error", "Traceback …\nRuntimeError"),
        ),
    ]
    cause = RootCause(1, "raised", "RuntimeError", "CUDA error")
    record_runs(
        ledger,
        opened=[("a", "r1", "train", "broadcast", 2, began)],
        ends=[("r1", "failed", began + 30, cause)],
        outcomes=[("r1", each, {}) for each in outcomes],
    )
    kept = MetricsWriter(ensure_pool_folder(row.key), pytest.fail)
    for second in range(60):  # it failed at 26: what was in memory is free from then on
        at = began + second
        gpu = {"mem_used": 30, "mem_total": 80} | ({"xid": 48} if second >= 28 else {})
        kept.put(recorded_events.machine_entry(at, 1, sample(at, 96 if second <= 26 else 2, gpu), 0.0))
        kept.put(recorded_events.machine_entry(at, 0, sample(at, 1), 0.0))
    kept.close()
    ledger.record_teardown(row.token, Receipt("llama", 2, (0, 1), (), 1.0))
    yield ledger
    ledger.close()


def test_commands_tell_it_out_of_what_was_kept(ledger: Ledger) -> None:
    words = ["memory 96 % full", "GPU 0 Xid 48 (ECC error of two bits)"]
    told = CliRunner().invoke(cli, ["failures", "--json"])
    (run,) = json.loads(told.stdout)["runs"]
    assert run["figures"]["words"] == words and run["figures"]["node"] == 1
    assert f"n1: {', '.join(words)}" in " ".join(
        CliRunner().invoke(cli, ["failures"], env={"COLUMNS": "300"}).stdout.split()
    )
    shown = json.loads(CliRunner().invoke(cli, ["results", "r1", "--json"]).stdout)
    assert shown["figures"]["words"] == words
    text = CliRunner().invoke(cli, ["results", "r1"])
    assert "its machine n1, " in text.stderr and "before: memory 96 % full, GPU 0 Xid 48" in text.stderr
