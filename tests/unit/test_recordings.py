"""Recordings of pools: events as JSON, recording files, playback, and the sheets and tables of sweeps."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyward_core.client import run_history as run_history
from skyward_core.client.replay_session import Playback, Replay, open_recording
from skyward_core.client.run_history import RunSearch, last_lines, load_metrics, load_preview, past_runs
from skyward_core.client.sweep_launch_and_resumption import missing_trials, trial_table_source
from skyward_core.model.errors import UsageError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause, Summary, signal_name
from skyward_core.store import recording_file, sweep_trial_files
from skyward_core.store.ledger import Ledger
from skyward_core.store.recording_file import RecordingReader, RecordingWriter
from skyward_core.store.run_log_reader import LogRange
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views import events, recording_entries
from skyward_core.views import events as ev
from skyward_core.views.pool_view import PoolView, RunView, TaskView, apply
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.recording_entries import parse_event
from skyward_core.views.sweep_argument_combinations import TrialSheet
from skyward_core.views.sweep_trials import TrialTable, TrialTableSource
from skyward_tui.cli.commands.launched_and_attached_runs import TrialReporter
from skyward_tui.cli.console_and_log_printer import Console
from tests.support.examples import examples
from tests.support.ledger_runs import record_runs
from tests.support.waiting import wait_until

POOL: dict[str, Any] = {"provider": "local", "nodes": 2, "worker": {"ranks_per_node": 2}}
TIMES = st.floats(0, 2**35)
KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "at": TIMES,
    "run": st.from_regex(r"\A[a-z0-9]{1,8}\Z"),
    "total": st.integers(0, 9),
    "spec": st.just(POOL),
    "receipt": st.just({"gone": [0], "unaccounted": []}),
    "json": st.none() | st.integers(-9, 9) | st.dictionaries(st.text(), st.floats(allow_nan=False)),
    **{name: st.integers(0, 3) for name in ("rank", "index", "seq")},
    "node": st.integers(0, 1),
}


def values_of_hint(hint: Any) -> st.SearchStrategy[Any]:
    """Draw values of a type hint."""
    parts = get_args(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        made: Any = hint
        return st.builds(
            made, **{each.name: KNOWN.get(each.name, values_of_hint(hints[each.name])) for each in fields(hint)}
        )
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(values_of_hint, parts))
    if get_origin(hint) is Literal:
        return st.sampled_from(parts)
    if get_origin(hint) is Sequence:
        return st.lists(values_of_hint(parts[0]), max_size=3)
    if get_origin(hint) in (dict, Mapping):
        return st.dictionaries(values_of_hint(parts[0]), values_of_hint(parts[1]), max_size=3)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(st.characters()), int: st.integers(-(2**52), 2**52), float: st.floats(-1e9, 1e9),
        bool: st.booleans(), NoneType: st.none(), Any: st.none(),
    }  # fmt: skip
    return plain[hint]


EVENTS = st.one_of(*(values_of_hint(kind) for kind in ev.Event.kinds.values()))


@settings(max_examples=examples(300), deadline=None)
@given(event=EVENTS)
def test_every_recorded_event_round_trips_through_json(event: ev.Event) -> None:
    entry = json.loads(json.dumps(recording_entries.event_entry(event)))
    assert parse_event(entry["event"]) == event


@settings(max_examples=examples(100), deadline=None)
@given(events=st.lists(EVENTS, max_size=12))
def test_replayed_events_produce_the_same_view(events: list[ev.Event]) -> None:
    live, replayed = PoolView("p"), PoolView("p")
    for event in (ev.PoolOpened(pool="p", at=1.0, spec=POOL, created_at=1.0), *events):
        apply(live, event)
        assert recording_entries.apply_entry(replayed, recording_entries.event_entry(event))
    assert replayed.runs == live.runs and replayed.nodes == live.nodes and replayed.version == live.version


@given(data=st.binary())
def test_recorded_log_bytes_are_replayed_unchanged(data: bytes) -> None:
    live, replayed = PoolView("p"), PoolView("p")
    for piece in (data, b"\n", data + b"\n"):
        live.logs.feed(3, "err", piece, 5.0, "r1", "r003")
        assert recording_entries.apply_entry(
            replayed, json.loads(json.dumps(recording_entries.log_entry(5.0, "r003", "err", "r1", piece)))
        )
    ring, again = live.logs.rank(3), replayed.logs.for_run("r1").rank(3)
    assert again.read(0, again.end) == ring.read(0, ring.end)


def test_recorded_metrics_and_cpu_times_reach_the_view() -> None:
    view = PoolView("p")
    apply(view, ev.PoolOpened(pool="p", at=1.0, spec=POOL, created_at=1.0))
    numbers = b'{"run":"r1","at":9,"values":{"loss":0.5}}\n'
    figures = b'{"at":9,"node":{"cpu":50},"gpus":[{"util":97}],"devices":[{"id":"GPU-1","model":"H100"}]}\n'
    for entry in (
        recording_entries.metrics_entry(9.0, "r001.metrics", numbers),
        recording_entries.machine_entry(9.0, 1, figures, 0.5),
        recording_entries.silence_entry(9.0, 0, "no\x1b[2J driver"),
        recording_entries.cpu_time_entry(9.0, {0: 0.0}),
        recording_entries.cpu_time_entry(19.0, {0: 9.0}),
    ):
        assert recording_entries.apply_entry(view, json.loads(json.dumps(entry)))
    assert view.metrics.latest("r1", 1) == {"loss": 0.5}
    assert view.machines is not None
    assert view.machines.latest("util") == {(1, 0): 97.0} and view.machines.nodes[1].host.latest_at == 9.5
    assert "\x1b" not in view.machines.nodes[0].why
    assert (
        view.activity.unusual_silence("r1", 0, 0.0, 20.0) is None
        and view.activity.unusual_silence("r1", 1, 0.0, 400.0) is not None
    )


def test_recorded_trial_sheet_is_replayed_and_validated() -> None:
    sheet = TrialSheet.from_texts([("lr=1",), ("lr=2",)], gang=True, nodes=2).with_client(7, ["a1", "b2"])
    view = PoolView("p")
    assert recording_entries.apply_entry(view, json.loads(json.dumps(recording_entries.sheet_entry(1.0, "a1", sheet))))
    assert view.sheets == {"a1": sheet}
    for bent in ({"rows": [["1"], [2, 3]]}, {"runs": [[5, "x"]]}, {"before": 3}, {"names": None}):
        bad = recording_entries.sheet_entry(1.0, "a1", sheet)
        assert not recording_entries.apply_entry(view, bad | {"sheet": bad["sheet"] | bent})


def _event(name: Any, **more: Any) -> dict[str, Any]:
    return {"event": name, "pool": "p", "at": 1.0} | more


def invalid_entries() -> Iterator[dict[str, Any]]:
    """Draw entries with one invalid part each."""
    spec: list[Any] = [
        {"nodes": 10**9}, {"nodes": "4"}, {"nodes": -1}, {"nodes": 1, "worker": []}, {"worker": {"ranks_per_node": 0}},
        {"worker": {"ranks_per_node": 10**9}}, {"options": {"ttl": "x"}}, {"options": 3}, {"provider": 3}, [], None,
    ]  # fmt: skip
    for each in spec:
        yield _event("PoolOpened", spec=each, created_at=1.0)
    yield _event("PoolState", state="splendid")
    for wrong in ({"at": float("nan")}, {"at": 1e300}, {"pool": 5}, {"hint": {"action": "rm"}}):
        yield _event("PoolState", state="up", **wrong)
    yield _event("PoolState")
    yield _event(["PoolState"])
    yield _event("NodePhase", node=99, phase="ready")
    yield _event("NodePhase", node=0, phase="ready", retry_at=float("inf"))
    yield _event("RunOpened", run="\x1b[2J", function="f", kind="gather", total=1)
    yield _event("RunOpened", run="r", function="f", kind="gather", total=-1)
    yield _event("PoolGone", receipt={"gone": 7})
    outcome = Outcome(0, 0, 0, "returned").to_json()
    wrong_parts: list[dict[str, Any]] = [{name: at} for name in ("rank", "node", "index") for at in (10**9, True)]
    for part in (*wrong_parts, {"kind": "won"}, {"summary": 5}):
        yield _event("RankEnded", run="r", outcome=outcome | part)


@pytest.mark.parametrize("event", list(invalid_entries()), ids=str)
def test_invalid_recorded_event_is_ignored(event: dict[str, Any]) -> None:
    view = PoolView("p")
    apply(view, ev.PoolOpened(pool="p", at=1.0, spec=POOL, created_at=1.0))
    before = view.version, view.state, view.world_size
    assert not recording_entries.apply_entry(view, {"at": 1.0, "k": "event", "event": event})
    assert (view.version, view.state, view.world_size) == before


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("at", "event", "of", "stream", "run", "text", "node", "ahead", "why", "spent", "sheet")


@settings(max_examples=examples(300), deadline=None)
@given(
    kind=st.sampled_from(["event", "log", "numbers", "figures", "silence", "work", "sheet", "nonsense"]) | JUNK,
    entry=st.dictionaries(st.sampled_from(FIELDS), JUNK),
    good=st.sampled_from([{}, {"at": 1.0}, {"at": 1.0, "of": "r001", "stream": "out", "run": "", "node": 0}]),
)
def test_any_recording_entry_is_applied_safely(kind: Any, entry: dict[str, Any], good: dict[str, Any]) -> None:
    recording_entries.apply_entry(PoolView("p"), entry | good | {"k": kind})


# Events as JSON, from this version and from others.


def test_parse_event_ignores_unknown_keys_and_fills_absent_ones() -> None:
    for unknown in ({"event": "SomethingNew", "pool": "p", "at": 1.0}, {"pool": "p"}):
        assert parse_event(unknown) is None
    item = events.ItemYielded(pool="p", at=1.0, run="r", index=0, rank=0, seq=0, summary=Summary("int", "5", 5, True))
    data = events.to_json(item)
    data["summary"]["mood"] = data["mood"] = "sunny"
    assert parse_event(data) == item
    state = events.PoolState(pool="p", at=1.0, state="up")
    data = events.to_json(state)
    del data["detail"]
    assert parse_event(data) == state


def test_event_names_on_disk_match_older_releases() -> None:
    assert set(events.Event.kinds) == {
        "AttemptEnded", "BudgetNews", "CheckpointSaved", "ItemYielded", "LeaseNews", "NodeLink", "NodeNotice",
        "NodePhase", "NodeSilence", "OutputFetched", "PoolGone", "PoolOpened", "PoolState", "PriceNews", "QueueNews",
        "RankBegan", "RankEnded", "RankPhase", "RunEnded", "RunOpened", "RunPlaced", "UnfetchedNews",
    }  # fmt: skip
    ended = events.PoolEnded(pool="p", at=1.0, receipt={})
    assert events.to_json(ended)["event"] == "PoolGone" and parse_event(events.to_json(ended)) == ended


# How a rank ended, as plain data.


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(0, 0, 0, "exited", exit_code=7), 7),
        (Outcome(0, 0, 0, "exited", exit_code=0), 0),
        (Outcome(0, 0, 0, "exited", signal=15), 143),
        (Outcome(0, 0, 0, "raised", error=ErrorInfo("E", "m")), None),
        (Outcome(0, 0, 0, "lost"), None),
    ],
)
def test_root_cause_has_the_exit_code_of_its_outcome(outcome: Outcome, code: int | None) -> None:
    cause = RootCause.from_outcome(outcome)
    assert (cause.rank, cause.outcome, cause.exit_code) == (0, outcome.kind, code)
    assert RootCause(**json.loads(json.dumps(cause.to_json()))) == cause


def test_root_cause_without_an_error_has_the_outcome_kind_as_type() -> None:
    assert RootCause.from_outcome(Outcome(0, 0, 0, "lost")).type == "lost"


def test_signal_name_of_known_and_unknown_signals() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(200) == "signal 200"


# Records: what is written is read, up to wherever the file ends; what is none, or means harm, is refused in words.

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)

ENTRIES = st.lists(st.dictionaries(st.text(), PLAIN, max_size=4), max_size=12)


def write_recording(path: Path, entries: list[dict[str, Any]], every: int = 3) -> bytes:
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path, {"pool": "p"})
    for place, entry in enumerate(entries, 1):
        writer.put(entry)
        if place % every == 0:
            writer.flush()
    writer.close()
    return path.read_bytes()


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(entries=ENTRIES)
def test_recording_entries_are_read_in_written_order(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    write_recording(tmp_path / "a", entries)
    record = RecordingReader.read(tmp_path / "a")
    assert list(record.entries())[1:] == entries
    assert record.about["pool"] == "p" and not record.is_truncated


def test_recording_truncated_at_any_byte_yields_earlier_entries(tmp_path: Path) -> None:
    entries = [{"n": number, "text": os.urandom(20).hex()} for number in range(20)]
    data = write_recording(tmp_path / "a", entries)
    longest = 0
    for end in range(len(data)):
        try:
            record = RecordingReader(data[:end], "a")
        except UsageError:
            assert longest == 0, "once it has a beginning it can be read"
            continue
        found = list(record.entries())[1:]
        assert found == entries[: len(found)] and len(found) >= longest
        longest = len(found)
    assert longest >= 18


def test_corrupted_byte_ends_the_recording_there(tmp_path: Path) -> None:
    entries = [{"n": number} for number in range(20)]
    data = bytearray(write_recording(tmp_path / "a", entries))
    data[len(data) // 2] ^= 0xFF
    record = RecordingReader(bytes(data), "a")
    found = list(record.entries())[1:]
    assert record.is_truncated and found == entries[: len(found)] != entries


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"SKYWARD-RECORD", b"SKYWARD-RECORD x\n", b"\x80\x04N."])
def test_file_that_is_no_recording_is_rejected(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(UsageError, match="is not a recording of a pool"):
        RecordingReader.read(tmp_path / "a")


def test_recording_of_a_newer_format_version_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"SKYWARD-RECORD 2\n")
    with pytest.raises(UsageError, match="its format version is 2; this release supports up to 1"):
        RecordingReader.read(tmp_path / "a")


def block(lines: bytes, raw: int | None = None) -> bytes:
    packed = zlib.compress(lines, 9)
    return (
        recording_file._BLOCK_HEADER.pack(b"blk1", len(packed), len(lines) if raw is None else raw, zlib.crc32(packed))
        + packed
    )


BEGIN = b"SKYWARD-RECORD 1\n" + block(b'{"k":"about"}\n')


def test_recording_block_larger_than_declared_is_skipped() -> None:
    bomb = block(bytes(64 << 20), raw=10)
    record = RecordingReader(BEGIN + bomb, "a")
    assert list(record.entries()) == [{"k": "about"}] and record.is_truncated


def test_oversized_recording_is_rejected_before_decompression() -> None:
    record = RecordingReader(BEGIN + block(b"\n" * (recording_file.MAX_RAW_BLOCK_BYTES + 1)), "a")
    assert list(record.entries()) == [{"k": "about"}] and record.is_truncated
    many = block(b"\n" * recording_file.MAX_RAW_BLOCK_BYTES) * (
        recording_file.MAX_TOTAL_BYTES // recording_file.MAX_RAW_BLOCK_BYTES + 1
    )
    with pytest.raises(UsageError, match="it decompresses to more than 512 MB"):
        RecordingReader(BEGIN + many, "a")


def test_invalid_lines_of_a_recording_are_skipped() -> None:
    lines = b'[1]\n{"a"\n' + b"[" * 100_000 + b'\n{"a":1}\n'
    assert list(RecordingReader(BEGIN + block(lines), "a").entries()) == [{"k": "about"}, {"a": 1}]


def test_recording_writer_overwrites_nothing_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            RecordingWriter(tmp_path / name, {})
    assert (tmp_path / "there").read_text() == "mine" and not (tmp_path / "elsewhere").exists()


def test_full_disk_leaves_the_recording_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordingWriter(tmp_path / "a", {})
    writer.put({"n": 1})
    writer.flush()
    real, room = os.write, [30]

    def write(file: int, data: Any) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = real(file, bytes(data)[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", write)
    writer.put({"n": 2, "text": json.dumps(list(range(200)))})
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    monkeypatch.undo()
    writer.put({"n": 3})
    writer.close()
    assert [entry.get("n") for entry in RecordingReader.read(tmp_path / "a").entries()] == [None, 1, 3]


def test_named_pipe_is_rejected_as_a_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is not a recording of a pool"):
        RecordingReader.read(tmp_path / "pipe")


# A record that is played: its clock, its view at each time of it, and the front that the app has of it.

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
def recorded(tmp_path: Path) -> Path:
    """Recording of two minutes of a pool: one line per second and rank, and a failure after 90 s."""
    writer = RecordingWriter(tmp_path / "a.skyrec", {"pool": "p", "note": "of \x1b[2Jyesterday"})
    opened = events.PoolOpened(pool="p", at=START, spec=SPEC, created_at=START)
    run = events.RunOpened(pool="p", at=START + 1, run="r1", function="train", kind="broadcast", total=2)
    for event in (opened, events.PoolState(pool="p", at=START + 0.5, state="up"), run):
        writer.put(recording_entries.event_entry(event))
    for second in range(2, 120):
        for rank in range(2):
            writer.put(recording_entries.log_entry(START + second, f"r00{rank}", "out", "r1", lines(second)))
        if second == 90:
            outcome = Outcome(1, 1, 0, "raised", 88.0, error=ErrorInfo("ValueError", "no"))
            writer.put(
                recording_entries.event_entry(events.RankEnded(pool="p", at=START + 90, run="r1", outcome=outcome))
            )
    writer.put({"at": START + 120, "k": "of the future"})
    writer.close()
    return tmp_path / "a.skyrec"


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def playback(recorded: Path, wall: Wall) -> Playback:
    return Playback(open_recording(recorded), wall)


def shown_log_lines(view: PoolView) -> list[str]:
    ring = view.logs.for_run("r1").rank(0)
    return ring.lines(0, ring.end)


def test_playback_time_follows_the_clock_at_its_speed(playback: Playback, wall: Wall) -> None:
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


def test_playback_view_is_the_same_for_forward_and_backward_seeks(playback: Playback, wall: Wall) -> None:
    playback.seek(START + 10)
    playback.advance()
    assert shown_log_lines(playback.view) == [f"step {second}" for second in range(2, 11)]
    playback.skip(60)
    playback.advance()
    later = playback.view
    assert len(shown_log_lines(later)) == 69
    playback.skip(-60)
    assert playback.state().behind and playback.displayed_time() == START + 70, "until it is there"
    playback.advance()
    assert playback.displayed_time() == START + 10
    assert len(shown_log_lines(playback.view)) == 9 and len(shown_log_lines(later)) == 69, (
        "the one before is left as it was"
    )
    assert not playback.state().behind
    playback.skip(-1000)
    playback.advance()
    assert playback.now() == START and not playback.view.runs
    playback.skip(1000)
    playback.advance()
    assert playback.now() == START + 120 and playback.skipped_count == 1
    assert playback.view.runs["r1"].counts == {"raised": 1}


def test_seek_failure_goes_to_the_next_failure_and_starts_over(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "b", {"pool": "p"})
    for number, at in enumerate([START, START + 5, START + 9]):
        run = f"r{number}"
        opened = events.RunOpened(pool="p", run=run, function="f", kind="broadcast", total=2, at=at)
        writer.put(recording_entries.event_entry(opened))
        for rank in range(2 if number else 0):  # the first run fails nowhere, and the ranks of the others one by one
            outcome = Outcome(rank, rank, 0, "raised", error=ErrorInfo("E", "no", ""))
            writer.put(
                recording_entries.event_entry(events.RankEnded(pool="p", run=run, outcome=outcome, at=at + 1 + rank))
            )
    writer.close()
    playback = Playback(open_recording(tmp_path / "b"))
    stops = []
    for _ in range(3):
        assert playback.seek_failure()
        stops.append(playback.now() - START)
    assert stops == [6, 10, 6]


def test_empty_recording_is_rejected(tmp_path: Path) -> None:
    RecordingWriter(tmp_path / "b", {}).close()
    with pytest.raises(UsageError, match=r"the recording is empty$"):
        Playback(open_recording(tmp_path / "b"))


def test_recording_that_spans_centuries_is_played(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "b", {"pool": "p"})
    for at in (1.0, 6e10):
        writer.put(
            recording_entries.event_entry(events.PoolState(pool="p", at=at, state="up" if at > 1 else "starting"))
        )
    writer.close()
    playback = Playback(open_recording(tmp_path / "b"))
    playback.start()
    wait_until(lambda: playback.view.version == 1)
    playback.seek(6e10)
    wait_until(lambda: playback.view.state == "up")
    playback.close()


def test_truncated_recording_is_noted_in_sanitized_text(recorded: Path) -> None:
    data = recorded.read_bytes()
    recorded.write_bytes(data[:-10] + b"")
    with pytest.raises(UsageError, match="the recording is empty: it was truncated"):
        Playback(open_recording(recorded))  # one block only, and that is gone
    recorded.write_bytes(data + b"blk1")
    playback = Playback(open_recording(recorded))
    front = Replay(playback)
    assert "the recording is truncated" in front.notice and "\x1b" not in front.notice
    front.detach()


# A past run at a glance reads little of long files.


def test_preview_reads_the_last_lines_of_one_run_in_a_long_log(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(60_000)]
    before, own = b"of the run before\n", ("\n".join(lines) + "\n").encode()
    (tmp_path / "r000.out").write_bytes(before + own + b"of the run after\n")
    (tmp_path / "r000.err").write_bytes(b"")
    part = LogRange("r000", (len(before), 0), (len(before) + len(own), 0))
    logs: Any = SimpleNamespace(folder=tmp_path, ranges={0: [part]})
    assert len(own) > run_history.SHORT_LOG_BYTES
    assert last_lines(logs, 0) == lines[-run_history.MAX_LINES :]


def test_preview_reads_a_bounded_sample_of_metrics(tmp_path: Path) -> None:
    for rank in range(3):
        rows = [json.dumps({"run": "r1", "at": 1.0 * step, "values": {"loss": float(step)}}) for step in range(200)]
        (tmp_path / f"r{rank:03}.metrics").write_text("\n".join(rows) + "\n")
    whole = load_metrics(tmp_path, "r1", 1 << 20, None)
    assert whole.ranks("r1") == [0, 1, 2] and len(whole.traces("r1", "loss")[0].at) == 200
    some = load_metrics(tmp_path, "r1", 2000, 2)
    assert some.ranks("r1") == [0, 1]
    stored = some.traces("r1", "loss")[0].values
    assert stored[-1] == 199.0 and 10 < len(stored) < 60
    assert load_metrics(tmp_path, "r2").ranks("r2") == []


def test_preview_of_a_sweep_lists_its_trials(ledger: Ledger) -> None:
    row = ledger.record_intent("a", "grid", {"provider": "local"}, {"provider": "local"})
    ensure_pool_folder(row.key)
    record_runs(ledger, opened=[("a", "s1", "fit", "sweep", 2, 1.0), ("a", "b1", "fit", "broadcast", 2, 2.0)])
    sweep_trial_files.save_trials(row.key, "s1", TrialSheet.new(("lr",), [("0.1",), ("0.2",)]))
    seen, other = load_preview(ledger, "s1"), load_preview(ledger, "b1")
    assert seen.trials is not None and [each.arguments for each in seen.trials.rows] == [("0.1",), ("0.2",)]
    assert other.trials is None
    counted = {run.run: run.counted for run in past_runs(ledger, RunSearch(), {}, {})}
    assert counted == {"s1": "trial", "b1": "rank"}


# Sweeps over arguments: the sheet that is kept of one, and the table that comes of it.

SHEET = TrialSheet.from_texts([("lr=0.1", "seed=10"), ("lr=0.1", "seed=9"), ("lr=0.01", "seed=x")])


def returned(index: int, value: object, **numbers: float | None) -> Outcome:
    gists = {name: [number, number, number] for name, number in numbers.items()}
    summary = Summary(type(value).__name__, str(value), value, True, 9)
    return Outcome(index, 0, 0, "returned", 1.5, summary, metrics=gists or None)


def raised(index: int) -> Outcome:
    return Outcome(index, 0, 0, "raised", 0.5, error=ErrorInfo("ValueError", "no"))


def table(*outcomes: Outcome, sheet: TrialSheet = SHEET) -> TrialTable:
    tasks = {each.index: TaskView(each.index, 0, 0, each.kind, outcome=each) for each in outcomes}
    return TrialTableSource(sheet).table("r", tasks, MetricStore())


def sorted_places(found: TrialTable, by: str, *, falling: bool = False) -> list[int]:
    return [row.place for row in found.sorted_rows(by, falling=falling)]


def test_trial_reporter_ignores_outcomes_of_other_runs(capsys: pytest.CaptureFixture[str]) -> None:
    notes = TrialReporter(Console(), SHEET)
    notes.on_outcome("other", raised(0))
    notes.on_outcome("mine", returned(0, 1))
    notes.set_run("mine")
    notes.on_outcome("other", raised(1))
    notes.on_outcome("mine", returned(1, 2))
    output_lines = capsys.readouterr().err.splitlines()
    assert [line.split(" lr")[0] for line in output_lines] == ["1/3", "2/3"] and "raised" not in str(output_lines)


def test_trial_table_sorts_numbers_numerically_and_missing_last() -> None:
    found = table(returned(0, 3, loss=0.5), returned(1, 2, loss=None), returned(2, 10, loss=0.1))
    assert sorted_places(found, "seed") == [1, 0, 2], "9 before 10 before a word"
    assert sorted_places(found, "lr") == [2, 0, 1]
    assert sorted_places(found, "result", falling=True) == [2, 0, 1]
    assert sorted_places(found, "loss") == [2, 0, 1]
    assert sorted_places(found, "loss", falling=True) == [0, 2, 1], "what is missing is last either way"
    assert sorted_places(found, "#", falling=True) == [2, 1, 0]


def test_trial_table_distinguishes_equal_argument_and_metric_names() -> None:
    sheet = TrialSheet.new(["n", "time"], [["1", "5"], ["2", "4"], ["3", "6"]])
    found = table(returned(0, 7, n=3.0), returned(1, 8, n=2.0), returned(2, 9, n=1.0), sheet=sheet)
    assert found.columns == ("#", "n", "time", "outcome", "trial's time", "logged n", "result")
    assert sorted_places(found, "n") == [0, 1, 2] and sorted_places(found, "logged n") == [2, 1, 0]
    assert sorted_places(found, "time") == [1, 0, 2] and len(set(found.columns)) == len(found.columns)


def test_running_trial_shows_only_its_own_metrics() -> None:
    book = MetricStore()
    book.add_values("r", 0, 90.0, {"loss": 0.9, "warm_up": 1.0})
    book.add_values("r", 0, 110.0, {"loss": 0.5})
    book.add_values("r", 1, 110.0, {"loss": 0.1})
    tasks = {2: TaskView(2, 0, 0, "running", began_at=100.0)}
    found = TrialTableSource(SHEET).table("r", tasks, book)
    assert [row.numbers for row in found.rows] == [{}, {}, {"loss": 0.5}] and found.numbers == ("loss",)


def test_trial_table_texts_are_sanitized() -> None:
    sheet = TrialSheet.new(["a\x1b[31m"], [["\x1b]0;x\x07"]])
    row = table(returned(0, 1, **{"lo\x1bss": 1.0}), sheet=sheet)
    shown = [*row.names, *row.rows[0].arguments, *row.numbers]
    assert all(text.isprintable() for text in shown)


def test_saved_trial_sheet_is_restored_and_tampering_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    left = SHEET.missing("r", {0, 2})
    assert left.tasks == (1,) and left.before == {0: ("r", 0), 2: ("r", 2)}
    sweep_trial_files.save_trials("p.1", "s", left)
    assert sweep_trial_files.read_trials("p.1", "s") == left
    assert sweep_trial_files.read_trials("p.1", "other") is None
    file = next(tmp_path.glob("pools/p.1/trials/*.json"))
    broken: object
    for broken in ({}, [], {**left.to_json(), "tasks": [7]}, {**left.to_json(), "rows": [["1"]]}):
        file.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match="not a trial sheet"):
            sweep_trial_files.read_trials("p.1", "s")


def test_trial_sheet_of_a_rerun_knows_earlier_outcomes(ledger: Ledger) -> None:
    row = ledger.record_intent("t", "p", {"provider": "local"}, {})
    sheet = SHEET
    for run, ends in (("a", [returned(0, 1), raised(1), raised(2)]), ("b", [returned(0, 2), raised(1)])):
        sweep_trial_files.save_trials(row.key, run, sheet)
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
    with pytest.raises(UsageError, match="not a sweep over arguments"):
        trial_table_source(ledger, row.key, RunView("c", "p", "train", "broadcast", 1, 1.0), {})
    with pytest.raises(UsageError, match="not a sweep over arguments"):
        missing_trials(ledger, other)
