"""Words are found in what past runs printed and gave: bounded, in steps, whatever their files are like."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skyward_core.client import run_history
from skyward_core.client.run_history import LineMatch, LogSearch, RunSearch, matching_lines, past_runs
from skyward_core.model.outcomes import ErrorInfo
from skyward_core.store.ledger import Ledger
from skyward_core.views import stdout_stderr_order
from skyward_tui.cli.main import cli
from tests.support.stored_runs import stored_run

NOW = time.time()


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ledger = Ledger()
    yield ledger
    ledger.close()


def search(ledger: Ledger, *words: str) -> LogSearch:
    return LogSearch(ledger, past_runs(ledger, RunSearch(), {}, {}), words)


def found(ledger: Ledger, *words: str) -> dict[str, LineMatch]:
    looking, found = search(ledger, *words), dict[str, LineMatch]()
    while not looking.done:
        found |= looking.step()
    assert looking.searched == looking.runs
    return found


def test_the_first_line_is_told_with_its_rank_and_how_many_there_are(ledger: Ledger) -> None:
    quiet = b"".join(b"step %d loss 0.5\n" % step for step in range(100))
    loud = quiet + b"step 100 \x1b[31mLoss\x1b[0m is NaN\n" + quiet + b"loss: nan again\n"
    stored_run(ledger, "r1", {0: quiet, 1: loud, 2: loud}, opened_at=NOW - 90)
    stored_run(ledger, "r2", {0: quiet}, opened_at=NOW - 60)
    (here,) = found(ledger, "NAN", "loss").values()
    assert (here.rank, here.number, here.lines, here.whole) == (1, 100, 4, True)
    assert here.line == "step 100 Loss is NaN" and here.words == ("loss", "nan")
    assert here.note == "r1 line 101, and 3 more: step 100 Loss is NaN"
    assert found(ledger, "nan", "step", "0.5") == {}, "no line has all of them"
    assert set(found(ledger, "0.5")) == {"r1", "r2"}


def test_words_that_the_ledger_has_of_a_run_need_not_be_in_its_log(ledger: Ledger) -> None:
    stored_run(ledger, "r1", {0: b"nan\n"}, opened_at=NOW - 90, function="train")
    stored_run(ledger, "r2", {0: b"nan\n"}, opened_at=NOW - 60, function="evaluate")
    assert list(found(ledger, "evaluate", "nan")) == ["r2"]
    of_ledger = search(ledger, "evaluate")
    assert of_ledger.runs == 1, "the one that has it there is not looked through"


def test_what_a_run_gave_or_failed_by_is_looked_through_too(ledger: Ledger) -> None:
    stored_run(ledger, "r1", {0: b"\n"}, opened_at=NOW - 90, given="accuracy 0.93\x1b]0;x\x07")
    error = ErrorInfo("OSError", "disk full\nbadly")
    shutil.rmtree(stored_run(ledger, "r2", {0: b"x"}, opened_at=NOW - 60, error=error))
    given, failed = found(ledger, "ACCURACY")["r1"], found(ledger, "badly")["r2"]
    assert (given.number, given.line, given.location_text) == (None, "accuracy 0.93", "r0 result")
    assert failed.line == "OSError: disk full↵badly"


def test_what_was_pruned_is_not_there_and_is_not_made_anew(ledger: Ledger, tmp_path: Path) -> None:
    folder = stored_run(ledger, "r1", {0: b"nan\n"}, opened_at=NOW)
    shutil.rmtree(folder.parent)
    assert found(ledger, "nan") == {} and not folder.parent.exists()
    folder = stored_run(ledger, "r2", {0: b"nan\n", 1: b"nan\n"}, opened_at=NOW)
    (folder / "r000.out").unlink()
    assert found(ledger, "nan")["r2"].rank == 1


def test_what_cannot_be_read_is_counted_and_the_others_are_found(ledger: Ledger) -> None:
    folder = stored_run(ledger, "r1", {0: b"nan\n"}, opened_at=NOW)
    (folder / "r000.out").unlink()
    (folder / "r000.out").mkdir()
    stored_run(ledger, "r2", {0: b"nan\n"}, opened_at=NOW - 60)
    looking = search(ledger, "nan")
    assert list(looking.step(60)) == ["r2"] and looking.done
    assert (looking.runs, looking.searched, looking.unread) == (2, 2, 1)


def test_a_log_that_is_being_written_is_looked_through_as_far_as_it_has_come(ledger: Ledger) -> None:
    folder = stored_run(ledger, "r1", {0: b"step 1\nna"}, opened_at=NOW, state="running")
    assert found(ledger, "nan") == {}
    with open(folder / "r000.out", "ab") as log:
        log.write(b"n and more")
    here = found(ledger, "nan")["r1"]
    assert (here.number, here.line) == (1, "nan and more")


def test_bytes_that_are_no_text_do_no_harm(ledger: Ledger) -> None:
    junk = bytes(range(256)).replace(b"\n", b"") * 3
    stored_run(ledger, "r1", {0: junk + b"\n\xff\xfe nan \x1b]52;c;aGk=\x07\x1b[2J\n" + junk}, opened_at=NOW)
    here = found(ledger, "nan")["r1"]
    assert here.number == 1 and here.line.isprintable() and "nan" in here.line


def test_of_a_long_line_the_part_with_the_word_is_told(ledger: Ledger) -> None:
    stored_run(ledger, "r1", {0: b"x" * 5_000 + b" nan " + b"y" * 900_000 + b"\nend\n"}, opened_at=NOW)
    line = found(ledger, "nan")["r1"].line
    assert line.startswith("… x") and " nan y" in line and len(line) <= run_history.MAX_MATCH_CHARS + 2
    assert found(ledger, "end")["r1"].number == 1
    here = found(ledger, "y", "nan", "x")["r1"]
    assert here.line.startswith("xxx") and here.words == ("x", "nan", "y"), "from the first of them on"


def test_it_goes_on_in_steps_of_one_piece_at_least_and_newest_first(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_one_that_is_cancelled_looks_at_nothing_more(ledger: Ledger) -> None:
    stored_run(ledger, "r1", {0: b"nan\n"}, opened_at=NOW)
    looking = search(ledger, "nan")
    looking.cancel()
    assert looking.step(60) == {} and looking.searched == 0 and not looking.done


@pytest.mark.parametrize("printed", [True, False])
def test_one_that_is_cancelled_ends_at_the_next_row_of_the_ledger(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, printed: bool
) -> None:
    """A run of thousands of tasks has as many rows, and a step looks at all of them before its first line."""
    text = {rank: b"step\n" for rank in range(50)}
    folder = stored_run(ledger, "r1", text, opened_at=NOW, given="nothing")
    if not printed:
        shutil.rmtree(folder)
    looking, each, seen = search(ledger, "nan"), Ledger.iter_outcomes, 0

    def told(ledger: Ledger, run: str) -> Iterator[object]:
        nonlocal seen
        for row in each(ledger, run):
            seen += 1
            if seen == 3:
                looking.cancel()
            yield row

    monkeypatch.setattr(Ledger, "iter_outcomes", told)
    assert looking.step(60) == {} and looking.searched == 0 and not looking.done
    assert seen == 3 and looking.step(60) == {} and seen == 3


def test_one_that_is_cancelled_ends_at_its_next_piece(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdout_stderr_order.merge_streams, "__defaults__", (64,))
    stored_run(ledger, "r1", {0: b"nan\n" * 1_000}, opened_at=NOW)
    looking, had, looked = search(ledger, "nan"), run_history.matching_lines, 0

    def counted(*asked: Any) -> list[int]:
        nonlocal looked
        looked += 1
        if looked == 3:
            looking.cancel()
        return had(*asked)

    monkeypatch.setattr(run_history, "matching_lines", counted)
    assert looking.step(60)["r1"].lines < 100 and looked == 3 and not looking.done


def test_what_is_found_in_logs_stands_by_its_age_among_what_the_ledger_has(ledger: Ledger) -> None:
    for number, (function, text) in enumerate(
        [("train", b"nan\n"), ("nanny", b""), ("train", b"nan\n"), ("train", b"step\n"), ("nanny", b"nan\n")]
    ):
        stored_run(ledger, f"r{number}", {0: text}, opened_at=NOW - number, function=function)
    told = json.loads(CliRunner().invoke(cli, ["history", "nan", "--in-logs", "--json"]).stdout)
    assert [run["run"] for run in told["runs"]] == ["r0", "r1", "r2", "r4"]
    shown = CliRunner().invoke(cli, ["history", "nan", "--in-logs"]).stdout.splitlines()[1:]
    firsts = [line.split()[2] if line[0] != " " else "found" for line in shown]
    assert firsts == ["r0", "found", "r1", "r2", "found", "r4"]


def test_no_more_of_a_run_is_read_than_was_said(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_history, "MAX_SEARCH_BYTES", 1_000)
    monkeypatch.setattr(stdout_stderr_order.merge_streams, "__defaults__", (64,))
    stored_run(ledger, "r1", {0: b"nan\n" * 1_000, 1: b"nan\n", 2: b"only here\n"}, opened_at=NOW)
    here = found(ledger, "nan")["r1"]
    assert 250 <= here.lines < 300 and not here.whole
    assert found(ledger, "only", "here") == {}


def test_lines_are_matched_whatever_letters_they_have() -> None:
    assert matching_lines(["STRASSE", "Straße", "ΣΊΣΥΦΟΣ", "a\tb"], ["strasse"]) == [0, 1]
    assert matching_lines(["lo\x1b[1;31mss\x1b[0m"], ["loss"]) == [0]
    assert matching_lines(["ΣΊΣΥΦΟΣ", ""], ["σίσυφοσ"]) == [0] and matching_lines([], ["x"]) == []


def test_the_command_finds_them(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_run(ledger, "r1", {0: b"step\n", 1: b"step\nloss is \x1b[31mnan\x1b[0m\nnan\n"}, opened_at=NOW - 90)
    stored_run(ledger, "r2", {0: b"step\n"}, opened_at=NOW - 60, function="nanny")
    stored_run(ledger, "r3", {0: b"step\n"}, opened_at=NOW - 30)
    assert "r1" not in CliRunner().invoke(cli, ["history", "nan"]).stdout
    shown = CliRunner().invoke(cli, ["history", "nan", "--in-logs"], catch_exceptions=False)
    lines = shown.stdout.splitlines()
    assert [line.split()[2] for line in lines[1:3]] == ["r2", "r1"]
    assert lines[3:] == ["    r1 line 2, and 1 more: loss is nan"] and not shown.stderr
    told = json.loads(CliRunner().invoke(cli, ["history", "nan", "--in-logs", "--json"]).stdout)
    assert told["logs"] == {"runs": 2, "looked_through": 2, "unread": 0} and told["found"] == 2
    assert [run["in_log"] for run in told["runs"]] == [
        None,
        {"rank": 1, "number": 1, "line": "loss is nan", "words": ["nan"], "lines": 2, "whole": True},
    ]
    assert "in_log" not in json.loads(CliRunner().invoke(cli, ["history", "--json"]).stdout)["runs"][0]
    assert CliRunner().invoke(cli, ["history", "--in-logs"]).exit_code == 2
    monkeypatch.setattr("skyward_tui.cli.commands.history_compare_rerun.PATIENCE", 0.0)
    cut = CliRunner().invoke(cli, ["history", "nan", "--in-logs"])
    assert "the logs of 0 of 2 runs were looked through in 0 s: --all looks through all" in cut.stderr
    assert "r1 line 2" in CliRunner().invoke(cli, ["history", "nan", "--in-logs", "--all"]).stdout
