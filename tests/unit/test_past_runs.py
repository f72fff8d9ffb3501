"""Search in past runs and their logs, comparison of runs, disagreement of ranks, and metrics of failed machines."""

from __future__ import annotations

import builtins
import io
import itertools
import json
import pickle
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import blake2s
from itertools import product
from math import isfinite, nan
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyward_core.client import log_search
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.log_search import LineMatch, LogSearch, matching_lines
from skyward_core.client.run_comparison import ComparedRun, Comparison, compare_runs
from skyward_core.client.run_history import (
    MetricCache,
    MetricSummary,
    PastRun,
    RunSearch,
    best_runs,
    chosen_columns,
    logged_summaries,
    merge_summaries,
    metric_value,
    past_runs,
    sorted_runs,
)
from skyward_core.model.errors import UsageError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause, Summary
from skyward_core.node.worker.result_pickles_and_summaries import summarize
from skyward_core.protocol.stdout_stderr_order_marks import BEFORE, encode_mark
from skyward_core.runtime.metric_logging import MetricSummaries
from skyward_core.store import past_pool_views, pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.past_pool_views import add_logs, summarize_pool
from skyward_core.store.pool_folder import MetricsWriter, PoolFolder
from skyward_core.store.receipts_and_bills import Receipt, make_bills
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views import events, recording_entries, stdout_stderr_order
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.metric_kinds_and_order import metric_direction
from skyward_core.views.outliers_and_bands import median
from skyward_core.views.pool_view import PoolView, RunView, TaskView, apply
from skyward_core.views.rank_metrics_and_progress import format_metrics
from skyward_core.views.result_comparison import Difference, compare_results, find_disagreements
from skyward_tui.cli.main import cli
from skyward_tui.screens.home_runs_and_pools import HomeRun, _metric_text
from skyward_tui.screens.run import pool_status
from skyward_tui.text.json_output import pool_json
from skyward_tui.text.number_time_and_run_state_format import metric_text
from tests.support.ledger_runs import record_runs
from tests.support.past import past_run
from tests.support.stored_runs import stored_run

HOUR = 3600.0


@pytest.fixture
def ledger_with_past_runs(ledger: Ledger) -> Ledger:
    """Ledger with three runs of a rented pool, one run of a local pool, and a pool without runs."""
    now = time.time()
    row = ledger.record_intent("a", "llama", {"provider": "world"}, {"provider": "world", "rents": True})
    machines = [Machine("m", 0, "h", "", extra={"hourly": 2.0, "launched": now - 10 * HOUR})]
    ledger.record_created("a", machines)
    ensure_pool_folder(row.key)
    for number, (state, cause) in enumerate(
        [("done", None), ("failed", RootCause(3, "raised", "OSError", "disk\x1b[31m full")), ("cancelled", None)]
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
    return ledger


def ids(past: Ledger, *words: str, failed: bool = False, since: float = 0.0) -> list[str]:
    return [run.run or run.pool for run in past_runs(past, RunSearch(words, failed, since), {}, {})]


def test_past_runs_are_newest_first_with_outcome_duration_and_cost(ledger_with_past_runs: Ledger) -> None:
    found = past_runs(ledger_with_past_runs, RunSearch(), {}, {})
    assert [run.run for run in found] == ["", "r9", "r2", "r1", "r0"]
    empty, running, _, failed, done = found
    assert (empty.pool, empty.function, empty.is_up) == ("empty", "", True)
    assert running.state == "running" and running.ended_at is None and running.seconds(running.opened_at + 5) == 5
    assert failed.error == "r3 OSError: disk full" and failed.error.isprintable() and failed.has_failed
    assert done.dollars == pytest.approx(1.0) and running.dollars == 0.0
    assert done.seconds(0.0) == pytest.approx(HOUR / 2)
    assert (done.script, done.arguments, done.provider) == ("train_0.py", ("lr=0.0",), "world")


def test_failed_attempts_cost_the_time_until_the_next_one_began(ledger_with_past_runs: Ledger) -> None:
    """The cost of an attempt includes the pause after it. The last attempt is not listed, because no other follows."""
    began = time.time() - 8 * HOUR
    ends = [
        events.AttemptEnded(
            pool="llama", run="r0", at=began + after, number=number, cause="error", message="bad\x1b[31m",
            restarts=number < 3, pause=pause,
        )
        for number, (after, pause) in enumerate([(600.0, 300.0), (1800.0, 0.0), (1800.0, 0.0)], 1)
    ]  # fmt: skip
    rows = tuple(map(events.attempt_end_row, ends))
    ledger_with_past_runs.record_runs({"r0": {"opened_at": began, "attempts": 3, "attempt_ends": rows}}, (), None)
    (run,) = (each for each in past_runs(ledger_with_past_runs, RunSearch(), {}, {}) if each.run == "r0")
    assert run.attempts == 3
    assert [(each["number"], each["cause"]) for each in run.failed_attempts] == [(1, "error"), (2, "error")]
    assert [each["seconds"] for each in run.failed_attempts] == pytest.approx([600.0, 900.0], rel=1e-3)
    assert [each["dollars"] for each in run.failed_attempts] == pytest.approx([0.5, 0.5], rel=1e-3)
    assert run.failed_attempts[1]["message"].isprintable()


def test_run_seen_to_end_is_not_running(ledger_with_past_runs: Ledger) -> None:
    view = PoolView("here", state="up", runs={"r9": RunView("r9", "here", "evaluate", "single", 1, 100.0)})
    (running,) = past_runs(ledger_with_past_runs, RunSearch(["evaluate"]), {}, view.runs)
    assert (running.state, running.ended_at, running.error) == ("running", None, "")
    view.runs["r9"].set_end("failed", running.opened_at + 7, RootCause(0, "raised", "OSError", "disk full"))
    (failed,) = past_runs(ledger_with_past_runs, RunSearch(["here"], failed=True), {}, view.runs)
    assert (failed.run, failed.state, failed.seconds(0.0)) == ("r9", "failed", 7.0)
    assert failed.error == "r0 OSError: disk full"


def test_runs_are_found_by_words_failure_and_age(ledger_with_past_runs: Ledger) -> None:
    assert ids(ledger_with_past_runs, "TRAIN") == ["r2", "r1", "r0"]
    assert ids(ledger_with_past_runs, "llama", "lr=0.2") == ["r2"]
    assert (
        ids(ledger_with_past_runs, "train_1.py")
        == ids(ledger_with_past_runs, "oserror")
        == ids(ledger_with_past_runs, failed=True)
        == ["r1"]
    )
    assert ids(ledger_with_past_runs, since=time.time() - 2 * HOUR) == ["empty", "r9"]
    assert ids(ledger_with_past_runs, "nothing") == []


def test_invalid_launch_file_hides_no_run(ledger_with_past_runs: Ledger, tmp_path: Path) -> None:
    for broken in ("{", "[]", '{"request": 3}', '{"request": {"script": null, "arguments": 7}}'):
        for file in tmp_path.glob("pools/llama.a/launches/*.json"):
            file.write_text(broken)
        assert ids(ledger_with_past_runs, "train") == ["r2", "r1", "r0"]


def test_history_prints_a_table_and_json(ledger_with_past_runs: Ledger) -> None:
    shown = CliRunner().invoke(cli, ["history", "train"], catch_exceptions=False).stdout.splitlines()
    assert [line.split()[2] for line in shown[1:]] == ["r2", "r1", "r0"]
    assert "✗ failed" in shown[2] and "$1.00" in shown[2] and "r3 OSError: disk full" in shown[2]
    report = json.loads(CliRunner().invoke(cli, ["history", "--failed", "--json"]).stdout)
    assert [run["run"] for run in report["runs"]] == ["r1"] and report["found"] == 1
    assert report["runs"][0]["seconds"] == pytest.approx(HOUR / 2)
    assert "no matching runs" in CliRunner().invoke(cli, ["history", "nothing"]).stdout
    assert "should be a time" in CliRunner().invoke(cli, ["history", "--since", "x"]).output


def test_note_command_stores_tags_that_history_filters_by(ledger_with_past_runs: Ledger) -> None:
    run = CliRunner().invoke
    assert run(cli, ["note", "r1"]).stdout == "no note\n"
    assert run(cli, ["note", "r1", "#good\x1b]0;x\x07 # lower lr", "--json"]).exit_code == 0
    (row,) = json.loads(run(cli, ["history", "#GOOD", "--json"]).stdout)["runs"]
    assert row["run"] == "r1" and len(row["tags"]) == 1 and "lower lr" in row["user_note"]
    assert "\x1b" not in row["user_note"] and "lower lr" in run(cli, ["history", "lower"]).stdout
    assert run(cli, ["note", "r1", ""]).stdout == "no note\n"
    assert run(cli, ["note", "r2", "kept"]).exit_code == 0 and ids(ledger_with_past_runs, "kept") == ["r2"]


def test_history_reports_and_shows_older_runs(ledger_with_past_runs: Ledger) -> None:
    many = [("b", f"s{n}", "small", "single", 1, 1000.0 + n) for n in range(150)]
    record_runs(ledger_with_past_runs, opened=many, ends=[(run, "done", 2000.0, None) for _, run, *_ in many])
    some = CliRunner().invoke(cli, ["history"])
    assert len(some.stdout.splitlines()) == 101 and "55 older runs not shown. Show all with --all" in some.stderr
    assert len(CliRunner().invoke(cli, ["history", "--all"]).stdout.splitlines()) == 156


def test_recent_failures_are_listed_until_dismissed(ledger_with_past_runs: Ledger, tmp_path: Path) -> None:
    long_ago = time.time() - 40 * 24 * HOUR
    record_runs(
        ledger_with_past_runs,
        opened=[("b", "old", "x", "single", 1, long_ago)],
        ends=[("old", "failed", long_ago, None)],
    )
    shown = CliRunner().invoke(cli, ["failures"], catch_exceptions=False).stdout.splitlines()
    assert [line.split()[2] for line in shown[1:]] == ["r1"]
    strange = CliRunner().invoke(cli, ["failures", "--dismiss", "r0"])
    assert strange.exit_code == 2 and "no undismissed failure of r0" in strange.stderr
    assert "dismissed 1 failure" in CliRunner().invoke(cli, ["failures", "--dismiss", "r1"]).stderr
    assert CliRunner().invoke(cli, ["failures"]).stdout == "no failures\n"
    assert ids(ledger_with_past_runs, failed=True) == ["r1", "old"], "nothing is forgotten"
    for broken in ("{", "3", '[1, "r1/../x", null]'):
        (tmp_path / "dismissed.json").write_text(broken)
        report = json.loads(CliRunner().invoke(cli, ["failures", "--json"]).stdout)
        assert [run["run"] for run in report["runs"]] == ["r1"]
    CliRunner().invoke(cli, ["failures", "--dismiss-all"])
    assert json.loads((tmp_path / "dismissed.json").read_text()) == ["r1"]
    assert CliRunner().invoke(cli, ["failures", "--dismiss-all", "--dismiss", "r1"]).exit_code == 2


# Two runs side by side, as the ledger and the client's files have them.

BEGAN = 1_800_000_000.0


def returned(rank: int, value: float, last: float) -> Outcome:
    summary = Summary("float", str(value), value, True, 9)
    return Outcome(rank, rank, rank, "returned", 1.0, summary, metrics={"loss": [last, last / 2, 1.0]})


@pytest.fixture
def two_runs(ledger: Ledger) -> Ledger:
    """Two runs of one pool. The second has another learning rate and a killed rank."""
    row = ledger.record_intent(
        "a", "llama", {"provider": "local"}, {"provider": "local", "nodes": 2, "plugins": ["torch"]}
    )
    logs = ensure_pool_folder(row.key) / "logs"
    logs.mkdir()
    lost = Outcome(1, 1, 1, "exited", 1.0, signal=9, error=ErrorInfo("RankExit", "killed \x1b[31mby SIGKILL"))
    runs = {
        "first": ([returned(0, 0.5, 0.2), returned(1, 0.7, 0.4)], "done", None, "0.1"),
        "second": ([returned(0, 0.9, 0.6), lost], "failed", RootCause(1, "exited", "RankExit", "killed"), "0.2"),
    }
    for place, (run, (outcomes, state, cause, rate)) in enumerate(runs.items()):
        began = BEGAN + 1000 * place
        record_runs(
            ledger,
            opened=[("a", run, "train", "broadcast", 2, began)],
            outcomes=[(run, each, {}) for each in outcomes],
            ends=[(run, state, began + 60, cause)],
        )
        request = LaunchRequest(
            script="train.py",
            arguments=(f"lr={rate}", "epochs=5"),
            plugins=("torch",),
            plugin_settings={"torch.version": rate},
            image_settings=(f"env.RATE={rate}", "secret=T"),
        )
        source = {"script": "abc", "commit": f"{place}" * 40, "changed": []}
        sheet = {"request": asdict(request), "cwd": "/home/me", "joined": False, "source": source}
        pool_folder.save_launch(row.key, run, sheet)
        for rank in range(2):
            with open(logs / f"r00{rank}.metrics", "a") as file:
                for step in range(10):
                    line = {"at": began + step, "run": run, "values": {"loss": 1.0 - step / 10 + rank}}
                    file.write(json.dumps(line) + "\n")
    ledger.record_teardown(row.token, Receipt("llama", 2, (0, 1), (), 1.0))
    return ledger


def rows(found: Comparison, part: str) -> dict[str, tuple[object, object, bool]]:
    pairs = getattr(found, part)
    return {row.name: (row.left, row.right, row.differs) for row in (pairs(0.0) if part == "facts" else pairs())}


def test_comparison_names_all_differences(two_runs: Ledger) -> None:
    found = compare_runs(two_runs, "first", "second")
    assert rows(found, "arguments") == {"lr": ("0.1", "0.2", True), "epochs": ("5", "5", False)}
    facts = rows(found, "facts")
    assert facts["parameters"] == (("torch.version=0.1",), ("torch.version=0.2",), True)
    assert facts["image"] == (("env.RATE=0.1", "secret=T"), ("env.RATE=0.2", "secret=T"), True)
    assert facts["outcome"] == ("done", "failed", True) and facts["took"] == (60.0, 60.0, False)
    assert facts["commit"] == ("0" * 40, "1" * 40, True) and facts["text"] == ("abc", "abc", False)
    assert facts["plugins"] == (("torch",), ("torch",), False) and facts["nodes"] == (2, 2, False)
    assert facts["error"][1] == "r1 killed"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--lr", "0.1", "--bias", "-1", "--fast"), {"--lr": "0.1", "--bias": "-1", "--fast": "given"}),
        (("--fast", "--lr=0.1", "data"), {"--fast": "given", "--lr": "0.1", "argument 1": "data"}),
        (("fit", "-x", "1", "-x", "2", "out"), {"argument 1": "fit", "-x": "1 2", "argument 2": "out"}),
        (("lr=0.1", "name="), {"lr": "0.1", "name": ""}),
        ((), {}),
    ],
)
def test_compared_script_arguments_are_named_by_option(words: tuple[str, ...], expected: dict[str, str]) -> None:
    view = RunView("run", "llama", "train", "single", 1, 0.0)
    assert ComparedRun(past=past_run(1, arguments=words), view=view).arguments() == expected


def test_compared_metrics_include_killed_ranks(two_runs: Ledger) -> None:
    left, right, differs = rows(compare_runs(two_runs, "first", "second"), "numbers")["loss"]
    assert left == (0.2, 0.1, 1.0), "the last value of rank 0, the least and the greatest of all"
    assert right == (0.6, 0.3, 2.0) and differs


def test_history_has_the_last_value_of_a_killed_rank_0(two_runs: Ledger) -> None:
    killed = Outcome(0, 0, 0, "exited", 1.0, signal=9, error=ErrorInfo("RankExit", "killed by SIGKILL"))
    record_runs(two_runs, outcomes=[("second", killed, {}), ("second", returned(1, 0.9, 0.6), {})])
    found = {run.run: run.metrics.get("loss") for run in past_runs(two_runs, RunSearch(), {}, {})}
    compared = compare_runs(two_runs, "first", "second").right.numbers["loss"]
    assert found["second"] == (compared.last, 0.3, 1.0) and compared.last == pytest.approx(0.1)


def test_run_with_few_records_is_compared(two_runs: Ledger) -> None:
    two_runs.record_intent("b", "other", {"provider": "local"}, {})
    record_runs(two_runs, opened=[("b", "bare", "train", "single", 1, BEGAN)])
    found = compare_runs(two_runs, "first", "bare")
    assert rows(found, "arguments")["lr"] == ("0.1", None, True)
    assert rows(found, "facts")["commit"][1] == "" and rows(found, "numbers")["loss"][1] is None


def test_compare_prints_differences_in_text_and_json(two_runs: Ledger) -> None:
    shown = CliRunner().invoke(cli, ["compare", "first", "second"], catch_exceptions=False).stdout
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "≠" in lines["lr"] and "≠" not in lines["epochs"] and "≠ 0.2 (0.1 … 1)" in lines["loss"]
    assert "killed by SIGKILL" in lines["r1"] and "\x1b[31m" not in shown
    assert "≠ torch.version=0.1" in lines["parameters"] and lines["parameters"].endswith("torch.version=0.2")
    assert "env.RATE=0.1, secret=T" in lines["image"] and "≠" in lines["image"]
    found = json.loads(CliRunner().invoke(cli, ["compare", "first", "second", "--json"]).stdout)
    parameters = {"left": ["torch.version=0.1"], "right": ["torch.version=0.2"], "differs": True}
    assert found["facts"]["parameters"] == parameters and found["facts"]["took"]["left"] == 60.0
    assert found["runs"] == ["first", "second"] and found["arguments"]["lr"]["differs"] is True
    assert found["numbers"]["loss"]["left"] == {"last": 0.2, "least": 0.1, "most": 1.0}
    assert len(found["results"]) == 2
    assert "Name two" in CliRunner().invoke(cli, ["compare", "first", "first"]).stderr
    record_runs(two_runs, opened=[("a", "bare", "train", "single", 1, BEGAN)])
    (line,) = [
        line
        for line in CliRunner().invoke(cli, ["compare", "first", "bare"]).stdout.splitlines()
        if line.startswith("parameters")
    ]
    assert line.endswith("  –")


def save_texts(ledger: Ledger, **texts: bytes) -> None:
    """Save the texts of the scripts of runs, with their hashes."""
    key = ledger.pool("a").key
    for run, text in texts.items():
        record = pool_folder.read_launch(key, run)
        assert record is not None
        record["source"]["script"] = blake2s(text).hexdigest()[:32]
        pool_folder.save_launch(key, run, record)
        pool_folder.save_source(key, run, "text", text)


def test_compare_prints_the_diff_of_the_scripts(two_runs: Ledger) -> None:
    run = CliRunner().invoke
    save_texts(two_runs, first=b"a\nlr = 1\nb\n", second=b"a\nlr = \x1b]0;x\x07 2\n\tb\xff\nb\n")
    (line,) = [each for each in run(cli, ["compare", "first", "second"]).stdout.splitlines() if "script text" in each]
    assert "≠ +2 -1 lines " in line and line.endswith("  --diff shows them")
    shown = run(cli, ["compare", "first", "second", "--diff"], catch_exceptions=False).stdout
    assert shown.splitlines() == [
        "--- first", "+++ second", "@@ -1,4 +1,5 @@", " a", "-lr = 1", "+lr =  2", "+⇥b�", " b", " ",
    ]  # fmt: skip
    report = json.loads(run(cli, ["compare", "first", "second", "--json"]).stdout)
    assert report["script_diff"] == shown.splitlines() and report["facts"]["text"]["differs"] is True


def test_missing_diff_of_scripts_has_a_reason(two_runs: Ledger) -> None:
    run = CliRunner().invoke
    equal = "the script texts of both runs are equal"
    assert equal in run(cli, ["compare", "first", "second", "--diff"]).stderr, "the hashes of an earlier version"
    save_texts(two_runs, first=b"a")
    shown = run(cli, ["compare", "first", "second", "--diff"])
    assert "the script text of run second was not saved" in shown.stderr and shown.stdout == ""
    save_texts(two_runs, second=b"a")
    assert equal in run(cli, ["compare", "first", "second", "--diff"]).stderr


def test_comparison_of_unknown_or_equal_runs_is_refused(two_runs: Ledger) -> None:
    with pytest.raises(UsageError, match="no run 'nothing' in the ledger"):
        compare_runs(two_runs, "first", "nothing")
    with pytest.raises(UsageError, match="both runs are first"):
        compare_runs(two_runs, "first", "first")


def test_history_shows_metrics_and_arguments_and_marks_the_best_run(two_runs: Ledger) -> None:
    found = past_runs(two_runs, RunSearch(), {}, {})
    assert found[1].metrics == {"loss": (0.2, 0.1, 1.0)}
    assert chosen_columns(found) == (["best:loss", "last:loss"], ["arg:lr"]), "all have the same number of epochs"
    head, second, first = CliRunner().invoke(cli, ["history"], catch_exceptions=False).stdout.splitlines()
    assert head.split()[5:] == ["time", "best", "loss", "last", "loss", "lr", "cost", "arguments", "/", "error"]
    assert "0.1 ★" in first and "★" not in second and first.split()[-1] == "epochs=5"
    first_run = json.loads(CliRunner().invoke(cli, ["history", "--json"]).stdout)["runs"][1]
    assert first_run["metrics"]["loss"] == {"last": 0.2, "min": 0.1, "max": 1.0, "best": 0.1}


def test_outcomes_of_ended_runs_are_read_once_for_their_metrics(
    two_runs: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[list[str]] = []
    outcome_texts, known = two_runs.outcome_texts, MetricCache()

    def counted(runs: list[str], most: int) -> list[tuple[str, str]]:
        reads.append(sorted(runs))
        return outcome_texts(runs, most)

    def read() -> list[list[str]]:
        reads.clear()
        found = past_runs(two_runs, RunSearch(), {}, seen, known)
        assert {run.run for run in found if run.metrics} >= {"first", "second"}
        return reads.copy()

    monkeypatch.setattr(two_runs, "outcome_texts", counted)
    opened = [("a", run, "train", "single", 1, BEGAN) for run in ("bare", "seen")]
    record_runs(two_runs, opened=opened, ends=[("bare", "done", BEGAN + 1.0, None)])
    seen = {"seen": RunView("seen", "llama", "train", "single", 1, BEGAN, "done", BEGAN + 1.0)}
    assert read() == [["bare", "first", "second", "seen"]]
    assert read() == [["seen"]], "its outcomes may not be recorded yet"
    record_runs(two_runs, (), [("seen", returned(0, 0.2, 0.1), {})], [("seen", "done", BEGAN + 1.0, None)])
    assert read() == [["seen"]] and read() == []
    assert known["seen", BEGAN + 1.0]["loss"].last == 0.1 and known["bare", BEGAN + 1.0] == {}


@pytest.mark.parametrize(
    ("name", "direction"),
    [("loss", -1), ("val/loss", -1), ("train_mse", -1), ("wer", -1), ("acc", 1), ("top_acc1", 1), ("eval/F1", 1),
     ("step", 0), ("lr", 0), ("tokens/s", 0), ("accumulation", 0), ("mapping", 0)],
)  # fmt: skip
def test_metric_direction_follows_from_the_name(name: str, direction: int) -> None:
    assert metric_direction(name) == direction


_RUN_NUMBERS = itertools.count()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.integers(0, 4), st.lists(st.floats(-9, 9) | st.just(nan), min_size=1), min_size=1))
def test_a_run_has_the_same_loss_everywhere(two_runs: Ledger, losses: dict[int, list[float]]) -> None:
    id_, view = f"run{next(_RUN_NUMBERS)}", PoolView("llama", provider="local")
    run = view.runs[id_] = RunView(id_, "llama", "train", "broadcast", 5, BEGAN)
    for rank, values in losses.items():
        summaries = MetricSummaries()
        for at, value in enumerate(values):
            view.metrics.add_values(id_, rank, BEGAN + at, {"loss": value})
            summaries.add(id_, rank, {"loss": value})
        outcome = Outcome(rank, rank, 0, "returned", 1.0, metrics=summaries.pop(id_, rank))
        run.tasks[rank] = TaskView(rank, rank, 0, "returned", outcome=outcome)
    finite = [values[-1] for values in losses.values() if isfinite(values[-1])]
    expected = losses[0][-1] if 0 in losses else median(finite) if finite else nan
    text = metric_text("loss", expected)
    record_runs(
        two_runs,
        opened=[("a", id_, "train", "broadcast", 5, BEGAN)],
        outcomes=[(id_, each, {}) for each in run.outcomes()],
        ends=[(id_, "done", BEGAN + 9, None)],
    )
    past = next(each for each in past_runs(two_runs, RunSearch(), {}, {}) if each.run == id_)
    compared = compare_runs(two_runs, id_, "first").left.numbers["loss"]
    assert [past.metrics["loss"].last, compared.last] == [expected if isfinite(expected) else None] * 2
    assert merge_summaries(logged_summaries(view.metrics, id_))["loss"] == past.metrics["loss"]
    home = [_metric_text(HomeRun(past, *live), 60) for live in ((), (view, run))]
    assert [each.split(" best")[0].rstrip("▁▂▃▄▅▆▇█ ") for each in home] == [text, text]
    if isfinite(expected):
        assert [each["metrics"] for each in pool_json(view)["runs"]] == [{"loss": expected}]
        header = f"{'r0' if 0 in losses else 'median'}: {format_metrics({'loss': expected})}"
        assert header in [part.plain for part in pool_status(view, run, BEGAN)]


@given(st.lists(st.tuples(st.sampled_from([None, 0.5, -1.0, 2.0]), st.sampled_from(["0.1", "1e-3", "x", ""]))))
def test_sorted_runs_are_a_permutation_with_missing_values_last(values: list[tuple[float | None, str]]) -> None:
    runs = [
        past_run(at, metrics={} if acc is None else {"acc": MetricSummary(acc, acc, acc)}, arguments=(f"lr={lr}",))
        for at, (acc, lr) in enumerate(values)
    ]
    for column, falling in product(("best:acc", "last:acc", "arg:lr", "when"), (False, True)):
        found = sorted_runs(runs, column, 0.0, falling=falling)
        assert sorted(run.run for run in found) == sorted(run.run for run in runs)
        shown = [value for run in found if (value := metric_value(run, column)) is not None]
        assert shown == sorted(shown, reverse=falling)
        if column.endswith("acc"):
            assert all("acc" not in run.metrics for run in found[len(shown) :])
    best = best_runs(runs, "best:acc")
    known = [run for run in runs if run.metrics]
    assert len(best) == (len(known) > 1)
    assert all(metric_value(run, "best:acc") == max(map(metric_of, known)) for run in runs if run.run in best)


def metric_of(run: PastRun) -> float:
    return run.metrics["acc"].most or 0.0


# Ranks' results beside each other: arrays by their content, who disagrees, two of them value by value, as files.

numpy = pytest.importorskip("numpy")


def summary(value: Any) -> Summary:
    return Summary(**summarize(value, 0))


def run_of(*values: Any, kind: Any = "broadcast") -> RunView:
    run = RunView("r", "p", "train", kind, len(values), 0.0)
    for rank, each in enumerate(values):
        outcome = Outcome(rank, rank, 0, "returned", 1.0, summary(each))
        run.tasks[rank] = TaskView(rank, rank, 0, outcome=outcome)
    return run


def test_array_is_summarized_by_shape_and_content() -> None:
    one = summary(numpy.arange(6.0).reshape(2, 3))
    assert one.text.startswith("ndarray float64 2 × 3 #")
    assert summary(numpy.arange(6.0).reshape(3, 2).reshape(2, 3)).text == one.text
    columns = numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3))
    assert summary(columns).text == one.text, "the order in memory is no part of it"
    assert summary(numpy.arange(6.0).reshape(2, 3) + 1e-9).text != one.text
    assert "#" not in summary(numpy.array([object()])).text
    assert summary(numpy.zeros((0, 3))).text == "ndarray float64 0 × 3 #00000000"
    parts = summary({"w": numpy.zeros(3), "loss": 0.5, "deep": {"b": [1, 2]}})
    assert not parts.is_json and parts.json["loss"] == "0.5" and parts.json["w"].startswith("ndarray float64 3 #")


def test_ranks_that_disagree_with_most_are_named() -> None:
    same = {"loss": 0.25, "step": 10}
    (found,) = find_disagreements(run_of(same, same, {"loss": 0.5, "step": 10}, same))
    assert found == ("loss", "0.25", {2: "0.5"})
    (found,) = find_disagreements(run_of(1.5, 1.5, 1.5, 1.6, 1.7))
    assert found == ("value", "1.5", {3: "1.6", 4: "1.7"})
    weights = numpy.ones(4)
    (found,) = find_disagreements(run_of(*({"w": weights + (rank == 1), "host": str(rank)} for rank in range(3))))
    assert found.name == "w" and list(found.ranks) == [1]
    (found,) = find_disagreements(run_of(same, same, {"step": 10}))
    assert found == ("loss", "0.25", {2: "(none)"})


@pytest.mark.parametrize(
    "values",
    [
        [0, 1, 2, 3],
        [{"rank": rank, "loss": rank / 7} for rank in range(8)],
        [1.0, 2.0],  # nobody knows who is right
        [1.0, 1.0, 2.0, 2.0],
        [None, None, None, {"model": 1}],
        [{"main": True}, {"main": False}, {"main": False}],
        [{"host": "a"}, {"host": "a"}, {"host": "b"}],
        [[1, 2], [1, 2], [1, 2]],
    ],
    ids=str,
)
def test_expected_differences_are_no_disagreement(values: list[Any]) -> None:
    assert find_disagreements(run_of(*values)) == []
    assert find_disagreements(run_of(1, 1, 2, kind="gather")) == []


def test_two_results_are_compared_value_by_value() -> None:
    left = {"loss": 0.5, "steps": [1, 2, {"lr": 1}], "name": "a", "only": None, "same": {"x": 1}}
    right = {"loss": 0.25, "steps": [1, 3, {"lr": True}, 4], "name": "b", "same": {"x": 1}}
    found, equal = compare_results(summary(left), summary(right))
    assert found == [
        Difference("loss", "0.5", "0.25", -0.25),
        Difference("steps[1]", "2", "3", 1.0),
        Difference("steps[2].lr", "1", "true"),
        Difference("steps[3]", "(none)", "4"),
        Difference("name", "a", "b"),
        Difference("only", "null", "(none)"),
    ]
    assert equal == 2
    arrays = [summary({"w": numpy.zeros(2) + rank, "b": numpy.ones(1)}) for rank in range(2)]
    (found_one,), equal = compare_results(*arrays)
    assert found_one.at == "w" and equal == 1
    assert compare_results(summary(1), None)[0] == [Difference("", "1", "(none)")]


@pytest.fixture
def four_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Run of four ranks, of which the third has another loss. Its values are stored."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    ledger = Ledger()
    row = ledger.record_intent("a", "llama", {"provider": "local", "nodes": 4}, {"provider": "local"})
    values = [{"loss": 0.5 if rank == 2 else 0.25, "n": rank, "note": "=1+1"} for rank in range(4)]
    outcomes = [Outcome(i, i, i, "returned", 1.0, summary(each)) for i, each in enumerate(values)]
    record_runs(
        ledger,
        opened=[("a", "r1", "train", "broadcast", 4, 100.0)],
        ends=[("r1", "done", 101.0, None)],
        outcomes=[("r1", each, {}) for each in outcomes],
    )
    archive = PoolFolder(row.key)
    for rank, each in enumerate(values):
        (archive.results / f"r1.{rank}.pickle").write_bytes(pickle.dumps(each))
    archive.close()
    ledger.record_teardown(row.token, Receipt("llama", 4, (0, 1, 2, 3), (), 1.0))
    yield ledger
    ledger.close()


def command(*words: str, status: int = 0) -> Any:
    done = CliRunner().invoke(cli, ["results", "r1", *words])
    assert done.exit_code == status, done.output
    return done


def test_results_names_disagreeing_ranks_and_shows_differences(four_ranks: Ledger) -> None:
    assert "ranks disagree in loss: most have 0.25, r002 0.5" in command().stderr
    report = json.loads(command("--json").stdout)
    assert report["disagreements"] == [{"name": "loss", "usual": "0.25", "ranks": {"2": "0.5"}}]
    lines = command("--diff", "1,r2").stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["where", "r1", "r2", "by"], ["loss", "0.25", "0.5", "0.25"], ["n", "1", "2", "1"],
    ]  # fmt: skip
    assert lines[3] == "2 values differ, 1 value equal"
    report = json.loads(command("--diff", "0 2", "--json").stdout)
    assert report["rows"][0] == {"at": "loss", "left": "0.25", "right": "0.5", "by": 0.25} and report["equal"] == 1
    for wrong in ("1", "1,1", "0,9", "a,b"):
        assert "does not name two of 4 ranks" in command("--diff", wrong, status=2).output
    assert (
        "--diff cannot be combined with --sort or --output" in command("--diff", "0,1", "-o", "x.csv", status=2).output
    )


def test_results_are_written_to_each_file_format(
    four_ranks: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("csv", "json", "pickle"):
        command("-o", f"all.{kind}")
    assert "value.loss" in (tmp_path / "all.csv").read_text()
    assert json.loads((tmp_path / "all.json").read_text())["ranks"][2]["value"]["loss"] == 0.5
    stream = io.BytesIO((tmp_path / "all.pickle").read_bytes())
    assert pickle.load(stream) == [0, 1, 2, 3]
    assert [pickle.load(stream)["n"] for _ in range(4)] == [0, 1, 2, 3]
    assert (tmp_path / "all.pickle").stat().st_mode & 0o077 == 0
    assert "all.csv already exists" in command("-o", "all.csv", status=2).output
    assert "unknown file format: all.txt" in command("-o", "all.txt", status=2).output
    Path(next((tmp_path / "home").rglob("r1.1.pickle"))).unlink()
    assert "are not on this machine" in command("-o", "more.pickle", status=2).output
    assert not (tmp_path / "more.pickle").exists()

    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install pyarrow" in command("-o", "all.parquet", status=2).output


def test_parquet_export_of_results_keeps_numbers(four_ranks: Ledger, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    command("-o", "all.parquet")
    table = parquet.read_table(tmp_path / "all.parquet")
    assert table.column("value.loss").to_pylist() == [0.25, 0.25, 0.5, 0.25]
    assert table.column("value.n").to_pylist() == [0, 1, 2, 3]
    assert table.column("value.note").to_pylist() == ["=1+1"] * 4


# What a machine was measured at last before a rank on it failed: live, out of what was kept, as text and as JSON.

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


def end_run(view: PoolView) -> RunView:
    cause = RootCause(1, "raised", "RuntimeError", "CUDA error")
    apply(view, events.RunEnded(pool="p", run="r", state="failed", root_cause=cause, at=1012.0))
    return view.runs["r"]


def test_metrics_before_a_failure_are_kept(view: PoolView) -> None:
    assert view.machines is not None
    view.machines.feed(0, sample(1010.0, 20))
    view.machines.feed(1, sample(1008.0, 50) + sample(1010.0, 97, {"mem_used": 79, "mem_total": 80, "temp": 91}))
    failed(view, 1010.6)
    view.machines.feed(1, sample(1011.0, 3, {"mem_used": 0, "mem_total": 80, "temp": 60, "xid": 79}))
    found = end_run(view).cause_metrics
    assert found is not None and (found.node, found.at) == (1, 1010.0)
    assert found.describe() == [
        "memory 97 % full", "GPU 0 Xid 79 (the GPU has fallen off the bus), memory 99 % full, 91 °C",
    ]  # fmt: skip
    assert found.to_json()["gpus"][0]["mem_used"] == 79.0


def test_driver_error_long_after_a_failure_is_not_attributed(view: PoolView) -> None:
    assert view.machines is not None
    view.machines.feed(1, sample(1010.0, 20, {"util": 90, "mem_used": 40, "mem_total": 80}))
    failed(view, 1010.6)
    view.machines.feed(1, sample(1100.0, 3, {"util": 0, "xid": 79, "lost": 1}))
    found = end_run(view).cause_metrics
    assert found is not None and found.describe() == []
    assert PastRun(
        run="r", pool="p", key="p.1", provider="local", function="f", state="failed", opened_at=0.0, ended_at=1.0,
        figures=found.to_json(),
    ).figures_note == "", "memory that is far from full is no clue"  # fmt: skip


def test_old_metrics_are_not_attributed_to_a_failure(view: PoolView) -> None:
    assert view.machines is not None
    view.machines.feed(1, sample(900.0, 97))
    failed(view, 1010.6)
    assert end_run(view).cause_metrics is None
    failed(view, 1010.7, "collateral", 0)
    assert not view.runs["r"].figures


@pytest.fixture
def raised_run(ledger: Ledger) -> Ledger:
    """Run whose rank 1 raised after 20 s; rank 0 was stopped 4 s later."""
    row = ledger.record_intent("a", "llama", {"provider": "local", "nodes": 2}, {"provider": "local"})
    import time

    began = time.time() - 100
    outcomes = [
        Outcome(0, 0, 0, "collateral", 24.0, error=ErrorInfo("Stopped", "another rank failed")),
        Outcome(1, 1, 1, "raised", 20.0, error=ErrorInfo("RuntimeError", "CUDA error", "Traceback …\nRuntimeError")),
    ]
    cause = RootCause(1, "raised", "RuntimeError", "CUDA error")
    record_runs(
        ledger,
        opened=[("a", "r1", "train", "broadcast", 2, began)],
        ends=[("r1", "failed", began + 30, cause)],
        outcomes=[("r1", each, {}) for each in outcomes],
    )
    writer = MetricsWriter(ensure_pool_folder(row.key), pytest.fail)
    for second in range(60):  # it failed at 26: what was in memory is free from then on
        at = began + second
        gpu = {"mem_used": 30, "mem_total": 80} | ({"xid": 48} if second >= 28 else {})
        writer.put(recording_entries.machine_entry(at, 1, sample(at, 96 if second <= 26 else 2, gpu), 0.0))
        writer.put(recording_entries.machine_entry(at, 0, sample(at, 1), 0.0))
    writer.close()
    ledger.record_teardown(row.token, Receipt("llama", 2, (0, 1), (), 1.0))
    return ledger


def test_pool_that_failed_to_start_keeps_its_reason_in_every_list(ledger: Ledger) -> None:
    row = ledger.record_intent("a1", "lost", {"provider": "local", "nodes": 2}, {"provider": "local"})
    ledger.record_teardown(row.token, Receipt("lost", 0, (), (), 1.0, start_error="no \x1b[2Jroom on gpu1"))
    view = summarize_pool(ledger, ledger.pool("a1"))
    assert (view.shown_state, view.detail, view.runs) == ("unstarted", "no room on gpu1", {})
    run = CliRunner()
    listed = run.invoke(cli, ["ls", "--all"])
    assert "start failed" in listed.stdout and "pool lost: no room on gpu1" in listed.stderr
    for command in (["logs", "lost"], ["results", "lost"], ["rerun", "lost"], ["metrics", "lost"]):
        refused = run.invoke(cli, command)
        assert "error: pool lost did not start: no room on gpu1" in refused.output
    for command in (["history"], ["failures"]):
        output = run.invoke(cli, command, env={"COLUMNS": "300"}).stdout
        assert "✗ failed" in output and "no room on gpu1" in output
    assert run.invoke(cli, ["failures", "--dismiss", "lost"]).exit_code == 0
    assert run.invoke(cli, ["failures"]).stdout == "no failures\n"
    assert "no room on gpu1" in run.invoke(cli, ["history"], env={"COLUMNS": "300"}).stdout


def test_commands_show_metrics_of_a_failure_from_files(raised_run: Ledger) -> None:
    words = ["memory 96 % full", "GPU 0 Xid 48 (ECC error of two bits)"]
    done = CliRunner().invoke(cli, ["failures", "--json"])
    (run,) = json.loads(done.stdout)["runs"]
    assert run["figures"]["words"] == words and run["figures"]["node"] == 1
    assert f"n1: {', '.join(words)}" in " ".join(
        CliRunner().invoke(cli, ["failures"], env={"COLUMNS": "300"}).stdout.split()
    )
    shown = json.loads(CliRunner().invoke(cli, ["results", "r1", "--json"]).stdout)
    assert shown["figures"]["words"] == words
    text = CliRunner().invoke(cli, ["results", "r1"])
    assert "n1, " in text.stderr and "earlier: memory 96 % full, GPU 0 Xid 48" in text.stderr


# Words are found in what past runs printed and gave: bounded, in steps, whatever their files are like.

NOW = time.time()


def search(ledger: Ledger, *words: str) -> LogSearch:
    return LogSearch(ledger, past_runs(ledger, RunSearch(), {}, {}), words)


def search_matches(ledger: Ledger, *words: str) -> dict[str, LineMatch]:
    looking, found = search(ledger, *words), dict[str, LineMatch]()
    while not looking.done:
        found |= looking.step()
    assert looking.searched == looking.runs
    return found


def test_log_search_returns_first_match_with_rank_and_count(ledger: Ledger) -> None:
    quiet = b"".join(b"step %d loss 0.5\n" % step for step in range(100))
    loud = quiet + b"step 100 \x1b[31mLoss\x1b[0m is NaN\n" + quiet + b"loss: nan again\n"
    stored_run(ledger, "r1", {0: quiet, 1: loud, 2: loud}, opened_at=NOW - 90)
    stored_run(ledger, "r2", {0: quiet}, opened_at=NOW - 60)
    (here,) = search_matches(ledger, "NAN", "loss").values()
    assert (here.rank, here.number, here.lines, here.whole) == (1, 100, 4, True)
    assert here.line == "step 100 Loss is NaN" and here.words == ("loss", "nan")
    assert here.note == "r1 line 101, and 3 more: step 100 Loss is NaN"
    assert search_matches(ledger, "nan", "step", "0.5") == {}, "no line has all of them"
    assert set(search_matches(ledger, "0.5")) == {"r1", "r2"}


def test_words_in_the_ledger_need_not_be_in_the_log(ledger: Ledger) -> None:
    stored_run(ledger, "r1", {0: b"nan\n"}, opened_at=NOW - 90, function="train")
    stored_run(ledger, "r2", {0: b"nan\n"}, opened_at=NOW - 60, function="evaluate")
    assert list(search_matches(ledger, "evaluate", "nan")) == ["r2"]
    of_ledger = search(ledger, "evaluate")
    assert of_ledger.runs == 1, "the one that has it there is not looked through"


def test_results_and_errors_are_searched_too(ledger: Ledger) -> None:
    stored_run(ledger, "r1", {0: b"\n"}, opened_at=NOW - 90, given="accuracy 0.93\x1b]0;x\x07")
    error = ErrorInfo("OSError", "disk full\nbadly")
    shutil.rmtree(stored_run(ledger, "r2", {0: b"x"}, opened_at=NOW - 60, error=error))
    given, failed = search_matches(ledger, "ACCURACY")["r1"], search_matches(ledger, "badly")["r2"]
    assert (given.number, given.line, given.location_text) == (None, "accuracy 0.93", "r0 result")
    assert failed.line == "OSError: disk full↵badly"


def test_search_of_pruned_logs_creates_no_folder(ledger: Ledger, tmp_path: Path) -> None:
    folder = stored_run(ledger, "r1", {0: b"nan\n"}, opened_at=NOW)
    shutil.rmtree(folder.parent)
    assert search_matches(ledger, "nan") == {} and not folder.parent.exists()
    folder = stored_run(ledger, "r2", {0: b"nan\n", 1: b"nan\n"}, opened_at=NOW)
    (folder / "r000.out").unlink()
    assert search_matches(ledger, "nan")["r2"].rank == 1


def test_unreadable_logs_are_counted_and_others_searched(ledger: Ledger) -> None:
    folder = stored_run(ledger, "r1", {0: b"nan\n"}, opened_at=NOW)
    (folder / "r000.out").unlink()
    (folder / "r000.out").mkdir()
    stored_run(ledger, "r2", {0: b"nan\n"}, opened_at=NOW - 60)
    looking = search(ledger, "nan")
    assert list(looking.step(60)) == ["r2"] and looking.done
    assert (looking.runs, looking.searched, looking.unread) == (2, 2, 1)


def test_growing_log_is_searched_to_its_end(ledger: Ledger) -> None:
    folder = stored_run(ledger, "r1", {0: b"step 1\nna"}, opened_at=NOW, state="running")
    assert search_matches(ledger, "nan") == {}
    with open(folder / "r000.out", "ab") as log:
        log.write(b"n and more")
    here = search_matches(ledger, "nan")["r1"]
    assert (here.number, here.line) == (1, "nan and more")


def test_binary_log_is_searched_safely(ledger: Ledger) -> None:
    junk = bytes(range(256)).replace(b"\n", b"") * 3
    stored_run(ledger, "r1", {0: junk + b"\n\xff\xfe nan \x1b]52;c;aGk=\x07\x1b[2J\n" + junk}, opened_at=NOW)
    here = search_matches(ledger, "nan")["r1"]
    assert here.number == 1 and here.line.isprintable() and "nan" in here.line


def test_match_in_a_long_line_is_excerpted(ledger: Ledger) -> None:
    stored_run(ledger, "r1", {0: b"x" * 5_000 + b" nan " + b"y" * 900_000 + b"\nend\n"}, opened_at=NOW)
    line = search_matches(ledger, "nan")["r1"].line
    assert line.startswith("… x") and " nan y" in line and len(line) <= log_search.MAX_MATCH_CHARS + 2
    assert search_matches(ledger, "end")["r1"].number == 1
    here = search_matches(ledger, "y", "nan", "x")["r1"]
    assert here.line.startswith("xxx") and here.words == ("x", "nan", "y"), "from the first of them on"


def test_log_search_proceeds_in_steps_newest_first(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdout_stderr_order.merge_streams, "__defaults__", (64,))
    for age in range(3):
        stored_run(ledger, f"r{age}", {0: b"step\n" * 100 + b"nan\n" * 100}, opened_at=NOW - age)
    looking = search(ledger, "nan")
    seen: list[tuple[str, LineMatch]] = []
    first = looking.step(0)
    assert first == {} and looking.searched == 0 and not looking.done
    while not looking.done:
        seen += looking.step(0).items()
    runs = [run for run, _ in seen]
    assert runs == sorted(runs) and set(runs) == {"r0", "r1", "r2"}
    counts = [each.lines for run, each in seen if run == "r0"]
    assert counts == sorted(counts) and counts[0] < counts[-1] == 100
    assert seen[0][1].note.startswith("r0 line 101, and ") and " so far: nan" in seen[0][1].note


def test_cancelled_log_search_ends_at_the_next_piece(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdout_stderr_order.merge_streams, "__defaults__", (64,))
    stored_run(ledger, "r1", {0: b"nan\n" * 1_000}, opened_at=NOW)
    looking, had, looked = search(ledger, "nan"), log_search.matching_lines, 0

    def counted(*asked: Any) -> list[int]:
        nonlocal looked
        looked += 1
        if looked == 3:
            looking.cancel()
        return had(*asked)

    monkeypatch.setattr(log_search, "matching_lines", counted)
    assert looking.step(60)["r1"].lines < 100 and looked == 3 and not looking.done


def test_log_search_reads_a_bounded_part_of_a_run(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_search, "MAX_SEARCH_BYTES", 1_000)
    monkeypatch.setattr(stdout_stderr_order.merge_streams, "__defaults__", (64,))
    stored_run(ledger, "r1", {0: b"nan\n" * 1_000, 1: b"nan\n", 2: b"only here\n"}, opened_at=NOW)
    here = search_matches(ledger, "nan")["r1"]
    assert 250 <= here.lines < 300 and not here.whole
    assert search_matches(ledger, "only", "here") == {}


def test_lines_are_matched_regardless_of_case_and_colours() -> None:
    assert matching_lines(["STRASSE", "Straße", "ΣΊΣΥΦΟΣ", "a\tb"], ["strasse"]) == [0, 1]
    assert matching_lines(["lo\x1b[1;31mss\x1b[0m"], ["loss"]) == [0]
    assert matching_lines(["ΣΊΣΥΦΟΣ", ""], ["σίσυφοσ"]) == [0] and matching_lines([], ["x"]) == []


def test_history_searches_logs(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_run(ledger, "r1", {0: b"step\n", 1: b"step\nloss is \x1b[31mnan\x1b[0m\nnan\n"}, opened_at=NOW - 90)
    stored_run(ledger, "r2", {0: b"step\n"}, opened_at=NOW - 60, function="nanny")
    stored_run(ledger, "r3", {0: b"step\n"}, opened_at=NOW - 30)
    assert "r1" not in CliRunner().invoke(cli, ["history", "nan"]).stdout
    shown = CliRunner().invoke(cli, ["history", "nan", "--in-logs"], catch_exceptions=False)
    lines = shown.stdout.splitlines()
    assert [line.split()[2] for line in lines[1:3]] == ["r2", "r1"]
    assert lines[3:] == ["    r1 line 2, and 1 more: loss is nan"] and not shown.stderr
    report = json.loads(CliRunner().invoke(cli, ["history", "nan", "--in-logs", "--json"]).stdout)
    assert report["logs"] == {"runs": 2, "looked_through": 2, "unread": 0} and report["found"] == 2
    assert [run["in_log"] for run in report["runs"]] == [
        None,
        {"rank": 1, "number": 1, "line": "loss is nan", "words": ["nan"], "lines": 2, "whole": True},
    ]
    assert "in_log" not in json.loads(CliRunner().invoke(cli, ["history", "--json"]).stdout)["runs"][0]
    assert CliRunner().invoke(cli, ["history", "--in-logs"]).exit_code == 2
    monkeypatch.setattr("skyward_tui.cli.commands.past_runs.PATIENCE", 0.0)
    cut = CliRunner().invoke(cli, ["history", "nan", "--in-logs"])
    assert "searched the logs of 0 of 2 runs in 0 s. Search all with --all" in cut.stderr
    assert "r1 line 2" in CliRunner().invoke(cli, ["history", "nan", "--in-logs", "--all"]).stdout


# Pools that are over, put together again from their files.


@pytest.mark.parametrize("at_once", [1, 64])
def test_logs_of_ranks_are_merged_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """The merged log has every line of each rank, in the rank's order, for any chunk size."""
    monkeypatch.setattr(past_pool_views, "MAX_OPEN_FILES", at_once)
    for rank in range(3):
        data = marks = b""
        for step in range(4):
            marks += encode_mark(BEFORE, 1000 + step + rank / 10, len(data), 0, "run")
            data += b"step %d\n" % step
        (tmp_path / f"r00{rank}.out").write_bytes(data)
        (tmp_path / f"r00{rank}.marks").write_bytes(marks)
    view = PoolView("p")
    assert add_logs(view, tmp_path) == {f"r00{rank}": (28, 0) for rank in range(3)}
    book = view.logs.for_run("run")
    for rank in range(3):
        assert book.rank(rank).lines(0, 9) == [f"step {step}" for step in range(4)]
    merged = book.merged.lines(0, 99)
    by_time = [f"r00{rank}| step {step}" for step in range(4) for rank in range(3)]
    assert merged == (by_time if at_once > 1 else sorted(by_time))


def test_logs_without_times_are_merged(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"r00{rank}.out").write_bytes(b"one\ntwo\n")
    view = PoolView("p")
    add_logs(view, tmp_path)
    assert sorted(view.logs.merged.lines(0, 9)) == ["r000| one", "r000| two", "r001| one", "r001| two"]
