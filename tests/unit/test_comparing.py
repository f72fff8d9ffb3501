"""Two runs side by side, as the ledger and the client's files have them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.client.run_comparison import Comparison, compare_runs
from skyward_core.model.errors import UsageError
from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause, Summary
from skyward_core.store import pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_tui.cli.main import cli
from tests.support.ledger_runs import record_runs

BEGAN = 1_800_000_000.0


def returned(rank: int, value: float, last: float) -> Outcome:
    summary = Summary("float", str(value), value, True, 9)
    return Outcome(rank, rank, rank, "returned", 1.0, summary, numbers={"loss": [last, last / 2, 1.0]})


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Two runs of one pool: the second with another rate, of which one rank was killed."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ledger = Ledger()
    row = ledger.record_intent(
        "a", "llama", {"provider": "local"}, {"provider": "local", "nodes": 2, "plugins": ["torch"]}
    )
    logs = ensure_pool_folder(row.key) / "logs"
    logs.mkdir()
    lost = Outcome(1, 1, 1, "exited", 1.0, signal=9, error=ErrorInfo("RankExit", "killed \x1b[31mby SIGKILL"))
    runs = {
        "first": ([returned(0, 0.5, 0.2), returned(1, 0.7, 0.4)], "done", None, "0.1"),
        "second": (
            [returned(0, 0.9, 0.6), lost],
            "failed",
            RootCause(1, "exited", "RankExit", "killed"),
            "0.2",
        ),
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
        kept = {"request": asdict(request), "cwd": "/home/me", "joined": False, "source": source}
        pool_folder.save_launch(row.key, run, kept)
        for rank in range(2):
            with open(logs / f"r00{rank}.metrics", "a") as file:
                for step in range(10):
                    told = {"at": began + step, "run": run, "values": {"loss": 1.0 - step / 10 + rank}}
                    file.write(json.dumps(told) + "\n")
    ledger.record_teardown(row.token, Receipt("llama", 2, (0, 1), (), 1.0))
    yield ledger
    ledger.close()


def rows(found: Comparison, part: str) -> dict[str, tuple[object, object, bool]]:
    told = getattr(found, part)
    return {row.name: (row.left, row.right, row.differs) for row in (told(0.0) if part == "facts" else told())}


def test_what_differs_is_told_of_all_that_is_known(ledger: Ledger) -> None:
    found = compare_runs(ledger, "first", "second")
    assert rows(found, "arguments") == {"lr": ("0.1", "0.2", True), "epochs": ("5", "5", False)}
    facts = rows(found, "facts")
    assert facts["parameters"] == (("torch.version=0.1",), ("torch.version=0.2",), True)
    assert facts["image"] == (("env.RATE=0.1", "secret=T"), ("env.RATE=0.2", "secret=T"), True)
    assert facts["outcome"] == ("done", "failed", True) and facts["took"] == (60.0, 60.0, False)
    assert facts["commit"] == ("0" * 40, "1" * 40, True) and facts["text"] == ("abc", "abc", False)
    assert facts["plugins"] == (("torch",), ("torch",), False) and facts["nodes"] == (2, 2, False)
    assert facts["error"][1] == "r1 RankExit: killed"


def test_numbers_are_of_all_ranks_also_of_one_that_did_not_live_to_tell(ledger: Ledger) -> None:
    left, right, differs = rows(compare_runs(ledger, "first", "second"), "numbers")["loss"]
    assert left == (pytest.approx(0.3), 0.1, 1.0), "the median of the last ones, the least and the greatest of all"
    assert right == (pytest.approx((0.6 + 1.1) / 2), 0.3, 2.0) and differs


def test_curves_begin_when_their_runs_do(ledger: Ledger) -> None:
    found = compare_runs(ledger, "first", "second")
    left, right = found.left.curve("loss"), found.right.curve("loss")
    assert [at for at, _ in left] == [at for at, _ in right] and 0 <= left[0][0] <= 1 and left[-1][0] == 9
    assert left[-1][1] == pytest.approx((0.1 + 1.1) / 2) and found.left.curve("other") == []


def test_results_are_told_one_by_one_where_there_are_few(ledger: Ledger) -> None:
    found = compare_runs(ledger, "first", "second")
    assert list(rows(found, "results")) == ["r0", "r1"]
    assert rows(found, "aggregate_rows")["value"][2]
    record_runs(ledger, opened=[("a", "wide", "train", "broadcast", 256, BEGAN)])
    assert compare_runs(ledger, "first", "wide").results() == []


def test_one_of_which_little_is_kept_is_compared_as_far_as_it_goes(ledger: Ledger) -> None:
    ledger.record_intent("b", "other", {"provider": "local"}, {})
    record_runs(ledger, opened=[("b", "bare", "train", "single", 1, BEGAN)])
    found = compare_runs(ledger, "first", "bare")
    assert rows(found, "arguments")["lr"] == ("0.1", None, True)
    assert rows(found, "facts")["commit"][1] == "" and rows(found, "numbers")["loss"][1] is None


def test_the_parameters_of_plugins_have_a_row_in_words_and_for_programs(ledger: Ledger) -> None:
    shown = CliRunner().invoke(cli, ["compare", "first", "second"], catch_exceptions=False).stdout
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "≠ torch.version=0.1" in lines["parameters"] and lines["parameters"].endswith("torch.version=0.2")
    assert "env.RATE=0.1, secret=T" in lines["image"] and "≠" in lines["image"]
    facts = json.loads(CliRunner().invoke(cli, ["compare", "first", "second", "--json"]).stdout)["facts"]
    told = {"left": ["torch.version=0.1"], "right": ["torch.version=0.2"], "differs": True}
    assert facts["parameters"] == told
    record_runs(ledger, opened=[("a", "bare", "train", "single", 1, BEGAN)])
    (line,) = [
        line
        for line in CliRunner().invoke(cli, ["compare", "first", "bare"]).stdout.splitlines()
        if line.startswith("parameters")
    ]
    assert line.endswith("  –")


def test_what_there_is_not_is_refused(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="no run nothing"):
        compare_runs(ledger, "first", "nothing")
    with pytest.raises(UsageError, match="both are run first"):
        compare_runs(ledger, "first", "first")


def test_the_command_shows_both_and_tells_programs(ledger: Ledger) -> None:
    shown = CliRunner().invoke(cli, ["compare", "first", "second"], catch_exceptions=False).stdout
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "≠" in lines["lr"] and "≠" not in lines["epochs"] and "≠ 0.3, 0.1 … 1" in lines["loss"]
    assert "killed by SIGKILL" in lines["r1"] and "\x1b[31m" not in shown
    told = json.loads(CliRunner().invoke(cli, ["compare", "first", "second", "--json"]).stdout)
    assert told["runs"] == ["first", "second"] and told["arguments"]["lr"]["differs"] is True
    assert told["numbers"]["loss"]["left"] == {"last": pytest.approx(0.3), "least": 0.1, "most": 1.0}
    assert told["facts"]["took"]["left"] == 60.0 and len(told["results"]) == 2
    assert "name two" in CliRunner().invoke(cli, ["compare", "first", "first"]).stderr
