"""A past run at a glance reads little of long files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.client import run_history
from skyward_core.client.run_history import RunSearch, last_lines, load_metrics, load_preview, past_runs
from skyward_core.store import pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.run_logs import LogRange
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views.pool_view import TrialSheet
from tests.support.ledger_runs import record_runs


def test_of_a_long_log_the_end_is_read_of_this_run_alone(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(60_000)]
    before, own = b"of the run before\n", ("\n".join(lines) + "\n").encode()
    (tmp_path / "r000.out").write_bytes(before + own + b"of the run after\n")
    (tmp_path / "r000.err").write_bytes(b"")
    part = LogRange("r000", (len(before), 0), (len(before) + len(own), 0))
    logs: Any = SimpleNamespace(folder=tmp_path, ranges={0: [part]})
    assert len(own) > run_history.SHORT_LOG_BYTES
    assert last_lines(logs, 0) == lines[-run_history.MAX_LINES :]


def test_no_more_of_numbers_is_read_than_was_said(tmp_path: Path) -> None:
    for rank in range(3):
        rows = [json.dumps({"run": "r1", "at": 1.0 * step, "values": {"loss": float(step)}}) for step in range(200)]
        (tmp_path / f"r{rank:03}.metrics").write_text("\n".join(rows) + "\n")
    whole = load_metrics(tmp_path, "r1", 1 << 20, None)
    assert whole.ranks("r1") == [0, 1, 2] and len(whole.traces("r1", "loss")[0].at) == 200
    some = load_metrics(tmp_path, "r1", 2000, 2)
    assert some.ranks("r1") == [0, 1]
    kept = some.traces("r1", "loss")[0].values
    assert kept[-1] == 199.0 and 10 < len(kept) < 60
    assert load_metrics(tmp_path, "r2").ranks("r2") == []


def test_of_a_sweep_the_trials_are_told_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ledger = Ledger()
    try:
        row = ledger.record_intent("a", "grid", {"provider": "local"}, {"provider": "local"})
        ensure_pool_folder(row.key)
        record_runs(ledger, opened=[("a", "s1", "fit", "sweep", 2, 1.0), ("a", "b1", "fit", "broadcast", 2, 2.0)])
        pool_folder.save_trials(row.key, "s1", TrialSheet.new(("lr",), [("0.1",), ("0.2",)]))
        seen, other = load_preview(ledger, "s1"), load_preview(ledger, "b1")
        assert seen.trials is not None and [each.arguments for each in seen.trials.rows] == [
            ("0.1",),
            ("0.2",),
        ]
        assert other.trials is None
        counted = {run.run: run.counted for run in past_runs(ledger, RunSearch(), {}, {})}
        assert counted == {"s1": "trial", "b1": "rank"}
    finally:
        ledger.close()
