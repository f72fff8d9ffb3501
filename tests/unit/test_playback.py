"""A record that is played: its clock, its view at each time of it, and the front that the app has of it."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.client import run_history
from skyward_core.client.leftover_cleanup import LeftoverScan
from skyward_core.client.replay_session import FAILURE_LEAD, Playback, Replay, open_recording
from skyward_core.client.run_history import RunSearch, last_lines, load_metrics, load_preview, past_runs
from skyward_core.client.sweep_results import missing_trials, trial_table_source
from skyward_core.model.errors import UsageError
from skyward_core.model.outcomes import ErrorInfo, Outcome, Summary
from skyward_core.store import pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.recording_file import RecordingWriter
from skyward_core.store.run_logs import LogRange
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views import events, recorded_events
from skyward_core.views.pool_view import PoolView, RunView, TaskView, TrialSheet
from skyward_core.views.rank_metrics import MetricStore
from skyward_core.views.sweep_trials import TrialTable, TrialTableSource
from skyward_tui.cli.commands.run import TrialReporter
from skyward_tui.cli.console import Console
from tests.support.ledger_runs import record_runs
from tests.support.waiting import wait_until

START = 1_700_000_000.0
SPEC: dict[str, Any] = {"provider": "local", "nodes": 1, "worker": {"ranks_per_node": 2}}


class Wall:
    def __init__(self) -> None:
        self.at = 50.0

    def __call__(self) -> float:
        return self.at


def lines(second: int) -> bytes:
    return f"step {second}\n".encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two minutes of a pool: one line a second and rank, and a failure after 90."""
    writer = RecordingWriter(tmp_path / "a.skyrec", {"pool": "p", "note": "of \x1b[2Jyesterday"})
    opened = events.PoolOpened(pool="p", at=START, spec=SPEC, created_at=START)
    run = events.RunOpened(pool="p", at=START + 1, run="r1", function="train", kind="broadcast", total=2)
    for event in (opened, events.PoolState(pool="p", at=START + 0.5, state="up"), run):
        writer.put(recorded_events.event_entry(event))
    for second in range(2, 120):
        for rank in range(2):
            writer.put(recorded_events.log_entry(START + second, f"r00{rank}", "out", "r1", lines(second)))
        if second == 90:
            outcome = Outcome(1, 1, 0, "raised", 88.0, error=ErrorInfo("ValueError", "no"))
            writer.put(
                recorded_events.event_entry(events.RankEnded(pool="p", at=START + 90, run="r1", outcome=outcome))
            )
    writer.put({"at": START + 120, "k": "of the future"})
    writer.close()
    return tmp_path / "a.skyrec"


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def playback(path: Path, wall: Wall) -> Playback:
    return Playback(open_recording(path), wall)


def shown(view: PoolView) -> list[str]:
    ring = view.logs.for_run("r1").rank(0)
    return ring.lines(0, ring.end)


def test_its_time_goes_on_as_ours_does_at_its_speed_and_ends_with_the_record(playback: Playback, wall: Wall) -> None:
    assert playback.now() == START
    wall.at += 10
    assert playback.now() == START + 10
    assert playback.multiply_speed(4) == 4
    wall.at += 5
    assert playback.now() == START + 30
    for _ in range(9):
        playback.multiply_speed(2)
    assert playback.state().speed == 64
    playback.toggle()
    wall.at += 100
    assert playback.now() == START + 30 and not playback.state().playing
    playback.toggle()
    for _ in range(9):
        playback.multiply_speed(0.5)
    assert playback.state().speed == 0.25
    wall.at += 4
    assert playback.now() == START + 31
    wall.at += 10_000
    assert playback.now() == START + 120 and not playback.state().playing
    playback.toggle()
    assert playback.now() == START and playback.state().playing, "from the beginning again"


def test_the_view_is_what_it_was_then_wherever_one_comes_from(playback: Playback, wall: Wall) -> None:
    playback.seek(START + 10)
    playback.advance()
    assert shown(playback.view) == [f"step {second}" for second in range(2, 11)]
    playback.skip(60)
    playback.advance()
    later = playback.view
    assert len(shown(later)) == 69
    playback.skip(-60)
    assert playback.state().behind and playback.displayed_time() == START + 70, "until it is there"
    playback.advance()
    assert playback.displayed_time() == START + 10
    assert len(shown(playback.view)) == 9 and len(shown(later)) == 69, "the one before is left as it was"
    assert not playback.state().behind
    playback.skip(-1000)
    playback.advance()
    assert playback.now() == START and not playback.view.runs
    playback.skip(1000)
    playback.advance()
    assert playback.now() == START + 120 and playback.skipped_count == 1
    assert playback.view.runs["r1"].counts == {"raised": 1}


def test_it_stops_shortly_before_the_failure(playback: Playback) -> None:
    assert playback.seek_failure()
    playback.advance()
    now = playback.state()
    assert now.now == START + 90 - FAILURE_LEAD and not now.playing
    assert playback.view.runs["r1"].counts == {}


def test_where_nothing_failed_it_says_so(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "b", {"pool": "p"})
    writer.put(recorded_events.event_entry(events.PoolState(pool="p", at=START, state="up")))
    writer.close()
    playback = Playback(open_recording(tmp_path / "b"))
    assert not playback.seek_failure() and playback.state().failure is None


def test_a_record_of_nothing_is_refused(tmp_path: Path) -> None:
    RecordingWriter(tmp_path / "b", {}).close()
    with pytest.raises(UsageError, match=r"nothing that could be played$"):
        Playback(open_recording(tmp_path / "b"))


def test_the_view_follows_the_clock_by_itself(path: Path) -> None:
    playback = Playback(open_recording(path))
    front = Replay(playback)
    try:
        playback.seek(START + 5)
        wait_until(lambda: len(shown(front.pools()[0])) >= 4)
        playback.multiply_speed(64)
        wait_until(lambda: playback.view.runs["r1"].counts == {"raised": 1})
        playback.seek(START + 5)
        playback.toggle()
        wait_until(lambda: playback.view.runs["r1"].counts == {})
    finally:
        front.detach()


def test_a_record_of_centuries_is_played_like_any_other(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "b", {"pool": "p"})
    for at in (1.0, 6e10):
        writer.put(recorded_events.event_entry(events.PoolState(pool="p", at=at, state="up" if at > 1 else "starting")))
    writer.close()
    playback = Playback(open_recording(tmp_path / "b"))
    playback.start()
    wait_until(lambda: playback.view.version == 1)
    playback.seek(6e10)
    wait_until(lambda: playback.view.state == "up")
    playback.close()


def test_a_record_that_was_cut_off_says_so_and_its_words_are_harmless(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-10] + b"")
    with pytest.raises(UsageError, match="could be played: it was cut off"):
        Playback(open_recording(path))  # one block only, and that is gone
    path.write_bytes(data + b"blk1")
    playback = Playback(open_recording(path))
    front = Replay(playback)
    assert "the record was cut off" in front.notice and "\x1b" not in front.notice
    front.detach()


def test_what_needs_a_pool_is_refused_in_words(playback: Playback) -> None:
    front = Replay(playback)
    begun: Future[PoolView] = Future()
    nothing: Any = None
    asked: list[Future[Any]] = [
        front.create(nothing, begun=begun), begun, front.launch("p", nothing), front.load_launch("r1"),
        front.save_launch("p", "r1", nothing, joined=False), front.wait("p", "r1"), front.cancel("p", "r1"),
        front.stacks("p"), front.profile("p", 0, 1.0), front.fetch_files("p"),
        front.unfetched_files("p"), front.tear_down("p"), front.raise_budget("p", 1.0),
        front.remove_leftovers(LeftoverScan()),
    ]  # fmt: skip
    for future in asked:
        with pytest.raises(UsageError, match="this is a replay of a record"):
            future.result(10)
    with pytest.raises(UsageError, match="this is a replay of a record"):
        front.run_logs("r1")
    assert front.scan_leftovers().result(10).found == LeftoverScan().found
    assert front.files("p").result(10).files == []
    assert (
        front.load_ended_pool("p").result(10) is front.start_sampling("p").result(10) is front.refresh().result(10)[0]
    )
    front.detach()


# A past run at a glance reads little of long files.


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


# Sweeps over arguments: the sheet that is kept of one, and the table that comes of it.

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
