"""Client-side folder of a pool: logs, the event journal, and the log ranges of runs."""

from __future__ import annotations

import errno
import fcntl
import json
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.store.ledger import Ledger
from skyward_core.store.past_pool_views import load_finished_pool
from skyward_core.store.pool_folder import (
    NOTES_FILE,
    PoolFolder,
    node_events,
    read_events,
    read_notes,
    write_note,
)
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views import events
from skyward_core.views.pool_view import MAX_NODE_DETAILS, PoolView, apply, restore_node_details
from tests.support.ledger_runs import record_runs
from tests.support.processes import read_log


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def archive() -> Iterator[PoolFolder]:
    archive = PoolFolder("p.t1")
    yield archive
    archive.close()


def test_note_is_not_written_over_an_invalid_file_of_notes(world: Path) -> None:
    write_note("r1", "#good")
    (world / NOTES_FILE).write_text('{"r1": "#good", ')  # as a user left it in an editor
    assert read_notes() == {}
    with pytest.raises(OSError, match=r"is invalid: .* Repair or delete the file"):
        write_note("r2", "lower lr")
    assert (world / NOTES_FILE).read_text() == '{"r1": "#good", '


def test_pool_folder_saves_log_bytes_and_cursors(archive: PoolFolder, world: Path) -> None:
    data = random.Random(5).randbytes(300_000)
    for at in range(0, len(data), 7919):
        archive.write_log("r003.out", at, data[at : at + 7919])
    archive.write_log("r003.err", 0, b"oops\n")
    folder = world / "pools" / "p.t1" / "logs"
    assert (folder / "r003.out").read_bytes() == data
    assert archive.cursors == {"r003.out": len(data), "r003.err": 5}
    assert archive.read_log_tail("r003.out", 1000) == data[-1000:]
    assert archive.read_log_tail("r003.err", 1000) == b"oops\n"


def test_log_name_outside_the_log_folder_is_rejected(archive: PoolFolder, world: Path) -> None:
    for name in ("../../escaped.out", "r0./../../../x", "escaped.out"):
        with pytest.raises(ValueError, match="is not the name of a log file"):
            archive.write_log(name, 0, b"x")
    assert not list(world.rglob("escaped*")) and not list(world.rglob("x"))


def test_full_disk_raises_and_cursor_counts_only_written_bytes(archive: PoolFolder) -> None:
    archive.write_log("r000.out", 0, b"x" * 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            archive.write_log("r000.out", 10, b"y" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert archive.cursors == archive.log_sizes() == {"r000.out": 1000}, "what it took, and no more"
    archive.write_log("r000.out", 1000, b"y" * 4010)
    assert archive.read_log_tail("r000.out", 9999) == b"x" * 10 + b"y" * 5000


# -- the journal -------------------------------------------------------------------------------------------------

EVENTS: list[events.Event] = [
    events.PoolState(pool="p", at=1.0, state="up"),
    events.RunOpened(pool="p", at=2.0, run="r", function="f", kind="broadcast", total=1),
    events.RankEnded(pool="p", at=3.0, run="r", outcome=Outcome(0, 0, 0, "returned")),
]


def test_flushed_events_are_read_in_order(archive: PoolFolder) -> None:
    for event in EVENTS:
        archive.add_event(event)
    assert list(read_events(archive.folder)) == []
    archive.flush()
    assert list(read_events(archive.folder)) == EVENTS


def test_only_one_client_writes_the_event_journal_at_a_time(world: Path) -> None:
    first, second = PoolFolder("p.t2"), PoolFolder("p.t2")
    second.add_event(EVENTS[1])
    first.add_event(EVENTS[0])
    second.close()
    first.close()
    assert list(read_events(first.folder)) == EVENTS[:1]
    third = PoolFolder("p.t2")
    third.add_event(EVENTS[2])
    third.close()
    assert list(read_events(first.folder)) == [EVENTS[0], EVENTS[2]]


def test_journal_that_cannot_be_locked_is_an_error(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(OSError, match="No locks available"):
        PoolFolder("p.t2")


def test_truncated_journal_line_is_skipped_and_later_events_are_read(world: Path) -> None:
    folder = ensure_pool_folder("p.t2")
    lines = [json.dumps(events.to_json(event)) + "\n" for event in EVENTS]
    (folder / "events.jsonl").write_text(lines[0] + lines[1][:25])
    assert list(read_events(folder)) == EVENTS[:1]
    client = PoolFolder("p.t2")
    client.add_event(EVENTS[2])
    client.close()
    assert list(read_events(folder)) == [EVENTS[0], EVENTS[2]]


READERS = {"read_events": read_events, "node_events": lambda folder: node_events(folder, 1e12)}


@pytest.mark.parametrize("reader", READERS)
def test_invalid_journal_lines_are_skipped(reader: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.store.pool_folder.MAX_EVENT_BYTES", 10_000)
    details = [events.NodePhase(pool="p", node=0, phase="ready", detail=each, at=3.0) for each in "ab"]
    first, last = (json.dumps(events.to_json(event)).encode() for event in details)
    wrong = [
        first.replace(b'"a"', b'"\xff\xfe"'),  # no UTF-8
        first[:-9],  # cut short
        b'["NodePhase"]',
        b"[" * 9_000 + b'"NodePhase"',
        b'{"event": ["NodePhase"]}',
        b'{"event": "NodePhase", "pool": "p"}',
        first.replace(b"3.0", b'"NodePhase"'),
        first.replace(b'"node": 0', b'"node": "0"'),
        first.replace(b'"node": 0', b'"node": 99999999'),
        first.replace(b'"p"', b"7"),
        first.replace(b'"a"', b'"' + b"a" * 35_000 + b'"'),  # of several pieces
    ]
    (world / "events.jsonl").write_bytes(b"\n".join([first, *wrong, last, first[:-1]]))
    assert list(READERS[reader](world)) == details


@pytest.mark.parametrize(
    ("event", "field", "value"),
    [
        (0, "spec", 3), (0, "spec", {"worker": 1}), (1, "run", ["r"]), (1, "total", "many"), (1, "kind", "party"),
        (2, "outcome", {"index": "0"}), (2, "outcome", None), (2, "run", "../x"),
    ],
)  # fmt: skip
def test_damaged_events_do_not_change_the_loaded_pool(world: Path, event: int, field: str, value: object) -> None:
    """The journal may be damaged or forged by another user."""
    ledger = Ledger()
    row = ledger.record_intent("token", "p", {"provider": "local"}, {"provider": "local", "nodes": 1})
    written = [
        events.to_json(each)
        for each in (
            events.PoolOpened(pool="p", at=1.0, spec={"nodes": 1}, created_at=1.0),
            events.RunOpened(pool="p", at=2.0, run="r", function="f", kind="broadcast", total=1),
            events.RankEnded(pool="p", at=3.0, run="r", outcome=Outcome(0, 0, 0, "returned")),
        )
    ]
    amiss = written[event] | {field: value}
    lines = [json.dumps(each) for each in (*written[: event + 1], amiss, *written[event + 1 :])]
    (ensure_pool_folder(row.key) / "events.jsonl").write_text("\n".join(lines))
    view = load_finished_pool(ledger, row)
    ledger.close()
    assert len(view.nodes) == 1 and list(view.runs) == ["r"]
    assert view.runs["r"].total == 1 and view.runs["r"].tasks[0].state == "returned"


# -- a run's part ------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(archive: PoolFolder) -> Iterator[Ledger]:
    """Ledger with a pool that had two runs on two ranks. Rank 0 ran two concurrent tasks of the second run."""
    ledger = Ledger()
    ledger.record_intent("t1", "p", {}, {})
    archive.write_log("r000.out", 0, b"setup\none\ntwo and three\n")
    archive.write_log("r001.out", 0, b"ONE\n")
    archive.write_log("r000.err", 0, b"warning\n")
    for run in ("r1", "r2"):
        record_runs(ledger, opened=[("t1", run, "f", "broadcast", 2, 1.0)])
    first = {"r000.out": [6, 10], "r000.err": [0, 8]}
    record_runs(
        ledger,
        outcomes=[
            ("r1", Outcome(0, 0, 0, "returned"), first),
            ("r1", Outcome(1, 1, 1, "returned"), {"r001.out": [0, 4], "r001.err": [0, 0]}),
            ("r2", Outcome(0, 0, 0, "returned"), {"r000.out": [10, 18]}),
            ("r2", Outcome(1, 0, 0, "returned"), {"r000.out": [14, 24]}),
        ],
    )
    yield ledger
    ledger.close()


def test_read_log_returns_output_of_one_rank_in_one_run(ledger: Ledger) -> None:
    assert read_log(ledger, "r1", 0) == b"one\n"
    assert read_log(ledger, "r1", 0, "err") == b"warning\n"
    assert read_log(ledger, "r1", 1) == b"ONE\n"
    assert read_log(ledger, "r1", 1, "err") == b""
    assert read_log(ledger, "r1", 7) == b""


def test_output_of_concurrent_tasks_is_not_duplicated(ledger: Ledger) -> None:
    assert read_log(ledger, "r2", 0) == b"two and three\n"


def test_log_range_beyond_received_bytes_takes_no_memory(ledger: Ledger) -> None:
    record_runs(ledger, outcomes=[("r2", Outcome(2, 0, 0, "returned"), {"r000.out": [10, 1 << 52]})])
    assert read_log(ledger, "r2", 0) == b"two and three\n"


def test_past_node_phases_are_loaded_for_a_later_client(archive: PoolFolder) -> None:
    def phase_event(node: int, detail: str, at: float) -> events.NodePhase:
        return events.NodePhase(pool="p", node=node, phase="installed", detail=detail, at=at)

    archive.add_event(events.PoolOpened(pool="p", spec={"nodes": 2}, created_at=1.0, at=1.0))
    for number in range(60):
        archive.add_event(phase_event(1, f"part-{number}", 2.0 + number))
    archive.add_event(phase_event(1, "part-59", 62.5))
    archive.add_event(phase_event(1, "of our own time", 100.0))
    archive.flush()
    with open(archive.folder / "events.jsonl", "a") as journal:
        journal.write('{"event":"NodePhase","pool"')  # cut short
    view = PoolView("p")
    apply(view, events.PoolOpened(pool="p", spec={"nodes": 2}, created_at=1.0, at=90.0))
    apply(view, phase_event(1, "seen \x1b[2Jhere", 91.0))
    version = view.version
    restore_node_details(view, node_events(archive.folder, 90.0))
    lines = [line for _, _, line in view.nodes[1].details]
    assert lines == [*(f"part-{number}" for number in range(21, 60)), "seen here"]
    assert len(lines) == MAX_NODE_DETAILS and view.nodes[0].details == () and view.version > version
    assert (view.nodes[1].phase, view.nodes[1].since) == ("installed", 2.0), (
        "since then, not since this client connected"
    )
