"""Ranks' results beside each other: arrays by their content, who disagrees, two of them value by value, as files."""

from __future__ import annotations

import builtins
import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skyward_core.model.outcomes import Outcome, Summary
from skyward_core.node.worker.result_summaries import summarize
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt
from skyward_core.store.pool_folder import PoolFolder
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.result_agreement import Difference, compare_results, find_disagreements
from skyward_tui.cli.main import cli
from tests.support.ledger_runs import record_runs

numpy = pytest.importorskip("numpy")


def summary(value: Any) -> Summary:
    return Summary(**summarize(value, 0))


def run_of(*values: Any, kind: Any = "broadcast") -> RunView:
    run = RunView("r", "p", "train", kind, len(values), 0.0)
    for rank, each in enumerate(values):
        outcome = Outcome(rank, rank, 0, "returned", 1.0, summary(each))
        run.tasks[rank] = TaskView(rank, rank, 0, outcome=outcome)
    return run


def test_an_array_is_told_by_shape_and_content() -> None:
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


def test_ranks_that_have_not_what_most_have_are_named() -> None:
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
def test_ranks_may_differ(values: list[Any]) -> None:
    assert find_disagreements(run_of(*values)) == []
    assert find_disagreements(run_of(1, 1, 2, kind="gather")) == []


def test_two_results_value_by_value() -> None:
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
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A run of four ranks, of which the third has another loss; its values are kept."""
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


def test_the_command_names_who_disagrees_and_shows_two(ledger: Ledger) -> None:
    assert "ranks disagree in loss: most have 0.25, r002 0.5" in command().stderr
    told = json.loads(command("--json").stdout)
    assert told["disagreements"] == [{"name": "loss", "usual": "0.25", "ranks": {"2": "0.5"}}]
    lines = command("--diff", "1,r2").stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["where", "r1", "r2", "by"], ["loss", "0.25", "0.5", "0.25"], ["n", "1", "2", "1"],
    ]  # fmt: skip
    assert lines[3] == "2 values differ, 1 value equal"
    told = json.loads(command("--diff", "0 2", "--json").stdout)
    assert told["rows"][0] == {"at": "loss", "left": "0.25", "right": "0.5", "by": 0.25} and told["equal"] == 1
    for wrong in ("1", "1,1", "0,9", "a,b"):
        assert "name two ranks of 4" in command("--diff", wrong, status=2).output
    assert "leave --sort and --output out" in command("--diff", "0,1", "-o", "x.csv", status=2).output


def test_they_are_written_to_a_file_of_each_kind(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("csv", "json", "pickle"):
        command("-o", f"all.{kind}")
    assert "value.loss" in (tmp_path / "all.csv").read_text()
    assert json.loads((tmp_path / "all.json").read_text())["ranks"][2]["value"]["loss"] == 0.5
    stream = io.BytesIO((tmp_path / "all.pickle").read_bytes())
    assert pickle.load(stream) == [0, 1, 2, 3]
    assert [pickle.load(stream)["n"] for _ in range(4)] == [0, 1, 2, 3]
    assert (tmp_path / "all.pickle").stat().st_mode & 0o077 == 0
    assert "all.csv is there already" in command("-o", "all.csv", status=2).output
    assert "says no kind of file" in command("-o", "all.txt", status=2).output
    Path(next((tmp_path / "home").rglob("r1.1.pickle"))).unlink()
    assert "are not all kept here" in command("-o", "more.pickle", status=2).output
    assert not (tmp_path / "more.pickle").exists()

    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install pyarrow" in command("-o", "all.parquet", status=2).output


def test_parquet_has_numbers_as_numbers(ledger: Ledger, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    command("-o", "all.parquet")
    table = parquet.read_table(tmp_path / "all.parquet")
    assert table.column("value.loss").to_pylist() == [0.25, 0.25, 0.5, 0.25]
    assert table.column("value.n").to_pylist() == [0, 1, 2, 3]
    assert table.column("value.note").to_pylist() == ["=1+1"] * 4
