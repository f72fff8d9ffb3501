"""What the ledger remembers of runs, found by words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from skyward_core.client.run_history import COLUMNS, RunSearch, past_runs, sorted_runs
from skyward_core.model.machines import Machine
from skyward_core.model.outcomes import RootCause
from skyward_core.store import pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt, make_bills
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views.pool_view import PoolView, RunView
from skyward_tui.cli.main import cli
from tests.support.ledger_runs import record_runs

HOUR = 3600.0


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Three runs of a rented pool, one of a pool of this machine, and a pool that had none."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ledger = Ledger()
    now = time.time()
    row = ledger.record_intent("a", "llama", {"provider": "world"}, {"provider": "world", "rents": True})
    machines = [Machine("m", 0, "h", "", extra={"hourly": 2.0, "launched": now - 10 * HOUR})]
    ledger.record_created("a", machines)
    ensure_pool_folder(row.key)
    for number, (state, cause) in enumerate(
        [
            ("done", None),
            ("failed", RootCause(3, "raised", "OSError", "disk\x1b[31m full")),
            ("cancelled", None),
        ]
    ):
        began = now - (8 - number) * HOUR
        record_runs(
            ledger,
            opened=[("a", f"r{number}", "train", "broadcast", 4, began)],
            ends=[(f"r{number}", state, began + HOUR / 2, cause)],
        )
        asked = {"script": f"/home/me/train_{number}.py", "arguments": [f"lr=0.{number}"]}
        pool_folder.save_launch(row.key, f"r{number}", {"request": asked})
    bills = make_bills(ledger.pool("a"), machines, {"m": now - HOUR}, None)
    ledger.record_teardown("a", Receipt("llama", 1, (0,), (), 1.0, bills=bills))
    ledger.record_intent("b", "here", {"provider": "local"}, {"provider": "local"})
    record_runs(ledger, opened=[("b", "r9", "evaluate", "single", 1, now - 60)])
    ledger.record_intent("c", "empty", {"provider": "local"}, {"provider": "local"})
    yield ledger
    ledger.close()


def ids(ledger: Ledger, *words: str, failed: bool = False, since: float = 0.0) -> list[str]:
    return [run.run or run.pool for run in past_runs(ledger, RunSearch(words, failed, since), {}, {})]


def test_all_of_them_newest_first_with_outcome_duration_and_cost(ledger: Ledger) -> None:
    found = past_runs(ledger, RunSearch(), {}, {})
    assert [run.run for run in found] == ["", "r9", "r2", "r1", "r0"]
    empty, running, _, failed, done = found
    assert (empty.pool, empty.function, empty.is_up) == ("empty", "", True)
    assert running.state == "running" and running.ended_at is None and running.seconds(running.opened_at + 5) == 5
    assert failed.error == "r3 OSError: disk full" and failed.error.isprintable() and failed.has_failed
    assert done.dollars == pytest.approx(1.0) and running.dollars == 0.0
    assert done.seconds(0.0) == pytest.approx(HOUR / 2)
    assert (done.script, done.arguments, done.provider) == ("train_0.py", ("lr=0.0",), "world")


def test_one_that_was_seen_to_end_runs_no_longer(ledger: Ledger) -> None:
    view = PoolView("here", state="up", runs={"r9": RunView("r9", "here", "evaluate", "single", 1, 100.0)})
    (running,) = past_runs(ledger, RunSearch(["evaluate"]), {}, view.runs)
    assert (running.state, running.ended_at, running.error) == ("running", None, "")
    view.runs["r9"].set_end("failed", running.opened_at + 7, RootCause(0, "raised", "OSError", "disk full"))
    (failed,) = past_runs(ledger, RunSearch(["here"], failed=True), {}, view.runs)
    assert (failed.run, failed.state, failed.seconds(0.0)) == ("r9", "failed", 7.0)
    assert failed.error == "r0 OSError: disk full"


def test_they_are_found_by_words_failures_and_age(ledger: Ledger) -> None:
    assert ids(ledger, "TRAIN") == ["r2", "r1", "r0"]
    assert ids(ledger, "llama", "lr=0.2") == ["r2"]
    assert ids(ledger, "train_1.py") == ids(ledger, "oserror") == ids(ledger, failed=True) == ["r1"]
    assert ids(ledger, since=time.time() - 2 * HOUR) == ["empty", "r9"]
    assert ids(ledger, "nothing") == []


def test_a_launch_that_was_tampered_with_hides_no_run(ledger: Ledger, tmp_path: Path) -> None:
    for broken in ("{", "[]", '{"request": 3}', '{"request": {"script": null, "arguments": 7}}'):
        for file in tmp_path.glob("pools/llama.a/launches/*.json"):
            file.write_text(broken)
        assert ids(ledger, "train") == ["r2", "r1", "r0"]


@pytest.mark.parametrize("by", COLUMNS)
def test_they_are_sorted_by_any_column(ledger: Ledger, by: str) -> None:
    found = past_runs(ledger, RunSearch(), {}, {})
    up = sorted_runs(found, by, time.time(), falling=False)
    assert sorted(run.run for run in up) == sorted(run.run for run in found)
    if by == "cost":
        assert [run.dollars or 0.0 for run in up] == sorted(run.dollars or 0.0 for run in found)
    if by == "when":
        assert up == found[::-1] and sorted_runs(found, by, 0.0, falling=True) == found


def test_the_command_tells_them_as_a_table_and_to_programs(ledger: Ledger) -> None:
    shown = CliRunner().invoke(cli, ["history", "train"], catch_exceptions=False).stdout.splitlines()
    assert [line.split()[2] for line in shown[1:]] == ["r2", "r1", "r0"]
    assert "✗ failed" in shown[2] and "$1.00" in shown[2] and "r3 OSError: disk full" in shown[2]
    told = json.loads(CliRunner().invoke(cli, ["history", "--failed", "--json"]).stdout)
    assert [run["run"] for run in told["runs"]] == ["r1"] and told["found"] == 1
    assert told["runs"][0]["seconds"] == pytest.approx(HOUR / 2)
    assert "no run is like that" in CliRunner().invoke(cli, ["history", "nothing"]).stdout
    assert "should be a time" in CliRunner().invoke(cli, ["history", "--since", "x"]).output


def test_the_oldest_are_told_of_and_shown_when_asked_for(ledger: Ledger) -> None:
    many = [("b", f"s{n}", "small", "single", 1, 1000.0 + n) for n in range(150)]
    record_runs(ledger, opened=many, ends=[(run, "done", 2000.0, None) for _, run, *_ in many])
    some = CliRunner().invoke(cli, ["history"])
    assert len(some.stdout.splitlines()) == 101 and "55 older runs more: --all shows them" in some.stderr
    assert len(CliRunner().invoke(cli, ["history", "--all"]).stdout.splitlines()) == 156


def test_failures_of_late_are_told_until_somebody_dismisses_them(ledger: Ledger, tmp_path: Path) -> None:
    long_ago = time.time() - 40 * 24 * HOUR
    record_runs(ledger, opened=[("b", "old", "x", "single", 1, long_ago)], ends=[("old", "failed", long_ago, None)])
    shown = CliRunner().invoke(cli, ["failures"], catch_exceptions=False).stdout.splitlines()
    assert [line.split()[2] for line in shown[1:]] == ["r1"]
    strange = CliRunner().invoke(cli, ["failures", "--dismiss", "r0"])
    assert strange.exit_code == 2 and "no failure to dismiss is called r0" in strange.stderr
    assert "1 failure dismissed" in CliRunner().invoke(cli, ["failures", "--dismiss", "r1"]).stderr
    assert CliRunner().invoke(cli, ["failures"]).stdout == "no failures\n"
    assert ids(ledger, failed=True) == ["r1", "old"], "nothing is forgotten"
    for broken in ("{", "3", '[1, "r1/../x", null]'):
        (tmp_path / "dismissed.json").write_text(broken)
        told = json.loads(CliRunner().invoke(cli, ["failures", "--json"]).stdout)
        assert [run["run"] for run in told["runs"]] == ["r1"]
    CliRunner().invoke(cli, ["failures", "--dismiss-all"])
    assert json.loads((tmp_path / "dismissed.json").read_text()) == ["r1"]
    assert CliRunner().invoke(cli, ["failures", "--dismiss-all", "--dismiss", "r1"]).exit_code == 2
