"""Sweeps over arguments: the sheet that is kept of one, and the table that comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skyward_core.client.sweep_results import missing_trials, trial_table_source
from skyward_core.model.errors import UsageError
from skyward_core.model.outcomes import ErrorInfo, Outcome, Summary
from skyward_core.store import pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.views.pool_view import RunView, TaskView, TrialSheet
from skyward_core.views.rank_metrics import MetricStore
from skyward_core.views.sweep_trials import TrialTable, TrialTableSource
from skyward_tui.cli.commands.run import TrialReporter
from skyward_tui.cli.console import Console
from tests.support.ledger_runs import record_runs

SHEET = TrialSheet.from_texts([("lr=0.1", "seed=10"), ("lr=0.1", "seed=9"), ("lr=0.01", "seed=x")])


def returned(index: int, value: object, **numbers: float | None) -> Outcome:
    gists = {name: [number, number, number] for name, number in numbers.items()}
    summary = Summary(type(value).__name__, str(value), value, True, 9)
    return Outcome(index, 0, 0, "returned", 1.5, summary, numbers=gists or None)


def raised(index: int) -> Outcome:
    return Outcome(index, 0, 0, "raised", 0.5, error=ErrorInfo("ValueError", "no"))


def table(*outcomes: Outcome, sheet: TrialSheet = SHEET) -> TrialTable:
    tasks = {each.index: TaskView(each.index, 0, 0, each.kind, outcome=each) for each in outcomes}
    return TrialTableSource(sheet).table("r", tasks, MetricStore())


def places(found: TrialTable, by: str, *, falling: bool = False) -> list[int]:
    return [row.place for row in found.sorted_rows(by, falling=falling)]


def test_a_row_for_each_combination_whether_it_has_run_or_not() -> None:
    found = table(returned(0, 3, loss=0.5), raised(2))
    assert found.columns == ("#", "lr", "seed", "outcome", "time", "loss", "result")
    assert [(row.arguments, row.state) for row in found.rows] == [
        (("0.1", "10"), "returned"),
        (("0.1", "9"), "waiting"),
        (("0.01", "x"), "raised"),
    ]
    assert found.rows[0].numbers == {"loss": 0.5} and found.rows[0].value == 3


def test_of_other_runs_on_the_pool_no_trial_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    notes = TrialReporter(Console(), SHEET)
    notes.on_outcome("other", raised(0))
    notes.on_outcome("mine", returned(0, 1))
    notes.set_run("mine")
    notes.on_outcome("other", raised(1))
    notes.on_outcome("mine", returned(1, 2))
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" lr")[0] for line in said] == ["1/3", "2/3"] and "raised" not in str(said)


def test_it_is_sorted_by_any_column_numbers_as_numbers_and_what_is_missing_last() -> None:
    found = table(returned(0, 3, loss=0.5), returned(1, 2, loss=None), returned(2, 10, loss=0.1))
    assert places(found, "seed") == [1, 0, 2], "9 before 10 before a word"
    assert places(found, "lr") == [2, 0, 1]
    assert places(found, "result", falling=True) == [2, 0, 1]
    assert places(found, "loss") == [2, 0, 1]
    assert places(found, "loss", falling=True) == [0, 2, 1], "what is missing is last either way"
    assert places(found, "#", falling=True) == [2, 1, 0]


def test_it_is_sorted_by_a_key_of_the_results_and_by_nothing_that_is_not_there() -> None:
    found = table(returned(0, {"acc": 0.5}), returned(1, {"acc": 0.9}), raised(2))
    assert places(found, "acc", falling=True) == [1, 0, 2]
    with pytest.raises(KeyError):
        found.sorted_rows("precision")


def test_names_that_an_argument_has_too_are_told_apart() -> None:
    sheet = TrialSheet.new(["n", "time"], [["1", "5"], ["2", "4"], ["3", "6"]])
    found = table(returned(0, 7, n=3.0), returned(1, 8, n=2.0), returned(2, 9, n=1.0), sheet=sheet)
    assert found.columns == ("#", "n", "time", "outcome", "trial's time", "logged n", "result")
    assert places(found, "n") == [0, 1, 2] and places(found, "logged n") == [2, 1, 0]
    assert places(found, "time") == [1, 0, 2] and len(set(found.columns)) == len(found.columns)


def test_a_trial_that_goes_on_shows_what_it_logs_and_nothing_of_the_one_before() -> None:
    book = MetricStore()
    book.add_values("r", 0, 90.0, {"loss": 0.9, "warm_up": 1.0})
    book.add_values("r", 0, 110.0, {"loss": 0.5})
    book.add_values("r", 1, 110.0, {"loss": 0.1})
    tasks = {2: TaskView(2, 0, 0, "running", began_at=100.0)}
    found = TrialTableSource(SHEET).table("r", tasks, book)
    assert [row.numbers for row in found.rows] == [{}, {}, {"loss": 0.5}] and found.numbers == ("loss",)


def test_what_ranks_and_files_say_is_filtered() -> None:
    sheet = TrialSheet.new(["a\x1b[31m"], [["\x1b]0;x\x07"]])
    row = table(returned(0, 1, **{"lo\x1bss": 1.0}), sheet=sheet)
    shown = [*row.names, *row.rows[0].arguments, *row.numbers]
    assert all(text.isprintable() for text in shown)


def test_a_sheet_is_the_same_once_it_was_kept_and_one_that_was_tampered_with_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    left = SHEET.missing("r", {0, 2})
    assert left.tasks == (1,) and left.before == {0: ("r", 0), 2: ("r", 2)}
    pool_folder.save_trials("p.1", "s", left)
    assert pool_folder.read_trials("p.1", "s") == left
    assert pool_folder.read_trials("p.1", "other") is None
    file = next(tmp_path.glob("pools/p.1/trials/*.json"))
    broken: object
    for broken in ({}, [], {**left.to_json(), "tasks": [7]}, {**left.to_json(), "rows": [["1"]]}):
        file.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match="no sheet of trials"):
            pool_folder.read_trials("p.1", "s")


def test_what_goes_on_with_a_sweep_knows_what_others_before_it_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ledger = Ledger()
    row = ledger.record_intent("t", "p", {"provider": "local"}, {})
    sheet = SHEET
    for run, ends in (("a", [returned(0, 1), raised(1), raised(2)]), ("b", [returned(0, 2), raised(1)])):
        pool_folder.save_trials(row.key, run, sheet)
        opened = [("t", run, "train", "sweep", len(ends), 1.0)]
        record_runs(
            ledger, opened=opened, outcomes=[(run, each, {}) for each in ends], ends=[(run, "failed", 2.0, None)]
        )
        found = ledger.run(run)
        assert found is not None
        sheet = missing_trials(ledger, found)
    assert sheet.tasks == (2,) and sheet.before == {0: ("a", 0), 1: ("b", 0)}
    view = RunView("b", "p", "train", "sweep", 2, 1.0)
    tasks = {out.index: TaskView(out.index, 0, 0, out.kind, outcome=out) for out, _ in ledger.outcomes("b")}
    shown = trial_table_source(ledger, row.key, view, {}).table("b", tasks, MetricStore())
    assert [(each.run, each.state, each.value) for each in shown.rows] == [
        ("a", "returned", 1), ("b", "returned", 2), ("b", "raised", None)
    ]  # fmt: skip
    record_runs(ledger, opened=[("t", "c", "train", "broadcast", 1, 1.0)], ends=[("c", "done", 2.0, None)])
    other = ledger.run("c")
    assert other is not None
    with pytest.raises(UsageError, match="no sweep over arguments"):
        trial_table_source(ledger, row.key, RunView("c", "p", "train", "broadcast", 1, 1.0), {})
    with pytest.raises(UsageError, match="no sweep over arguments"):
        missing_trials(ledger, other)
    ledger.close()
