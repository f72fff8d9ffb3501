"""Ledger: pools, runs, machines and receipts; migrations, damage, full disks and concurrent clients."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import Hint, LedgerError, PoolExistsError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause, Summary
from skyward_core.pool.unrecorded_machines_and_gone_pools import is_starting
from skyward_core.store import ledger as module
from skyward_core.store import ledger_rows
from skyward_core.store.ledger import MIGRATIONS, VERSION, Ledger
from skyward_core.store.ledger_rows import PoolRow, RetainedResults, RunRow, is_process_alive, marked_pid, process_mark
from skyward_core.store.past_pool_views import summarize_pool
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.util.light_dataclass import value
from tests.support.child import Child, child
from tests.support.ledger_runs import record_runs
from tests.support.ledgers import LOCAL, SPEC, all_closed
from tests.support.processes import run_command


@pytest.fixture(autouse=True)
def close_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with all_closed(monkeypatch):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger(path)


OUTCOME = Outcome(1, 1, 0, "returned", 0.5, Summary("int", "7", 7, True, 5))
KILLED = Outcome(0, 0, 0, "exited", 2.0, error=ErrorInfo("RankExit", "SIGKILL \ud800"), signal=9)


# -- what is recorded --------------------------------------------------------------------------------------------


def test_ledger_records_a_pool_from_intent_to_teardown(ledger: Ledger, path: Path) -> None:
    row = ledger.record_intent("t1", "fit", LOCAL, SPEC)
    assert (row.token, row.name, row.provider, row.spec, row.state) == ("t1", "fit", LOCAL, SPEC, "starting")
    assert (row.pid, row.ended_at, row.receipt, row.key) == (process_mark(), None, None, "fit.t1")
    machines = [Machine(f"m{i}", i, "a", "b", extra={"folder": f"/x/{i}"}) for i in range(2)]
    ledger.record_created("t1", machines)
    ledger.set_pool_state("t1", "up")
    other = Ledger(path)  # what another process sees
    assert other.machines("t1") == machines
    assert [p.state for p in other.live_pools()] == ["up"]
    ledger.record_created("t1", [replace(machines[0], state="gone")])
    assert [m.state for m in other.machines("t1")] == ["gone", "running"]
    receipt = Receipt("fit", 2, (0, 1), (), 0.1)
    ledger.record_teardown("t1", receipt)
    assert other.live_pools() == []
    ended = other.pool("t1")
    assert ended.state == "gone"
    assert ended.ended_at is not None
    ledger.record_teardown("t1", Receipt("fit", 2, (0, 1), (), 1.5), at=time.time() + 9)
    assert ledger.pool("t1").ended_at == ended.ended_at, "whoever tears it down once more, it ended then"
    assert ended.receipt is not None
    assert ended.receipt == json.loads(json.dumps(receipt.to_json())) and ended.receipt.keys() >= {"kept", "stays"}


def test_ledger_change_stamp_changes_only_on_writes(ledger: Ledger, path: Path) -> None:
    before = ledger.change_stamp()
    ledger.live_pools()
    assert ledger.change_stamp() == before
    ledger.record_intent("t1", "mine", LOCAL, SPEC)
    mine = ledger.change_stamp()
    assert mine != before
    with closing(Ledger(path)) as other:
        other.record_intent("t2", "theirs", LOCAL, SPEC)
    assert ledger.change_stamp() != mine


def test_pool_with_unverified_teardown_stays_open(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    ledger.record_teardown("t1", Receipt("fit", 2, (0,), ("i-0abc",), 9.0))
    (row,) = ledger.live_pools()
    assert (row.state, row.ended_at) == ("failed", None)
    with pytest.raises(PoolExistsError):
        ledger.record_intent("t2", "fit", LOCAL, SPEC)


def test_recording_the_node_count_keeps_concurrent_writes(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC | {"nodes": 4, "options": {"budget": 1.0}})
    read, allowed = ledger.pool, [1.0]

    def another_client_writes_now(token: str) -> PoolRow:
        row = read(token)
        allowed.append(2.0)
        Ledger(path).set_budget(token, allowed[-1])
        return row

    monkeypatch.setattr(ledger, "pool", another_client_writes_now)
    ledger.record_created("t1", [Machine(f"m{i}", i, "a", "b") for i in range(2)])
    spec = Ledger(path).pool("t1").spec
    assert (spec["nodes"], spec["options"]["budget"]) == (2, allowed[-1])


def test_late_state_does_not_reopen_an_ended_pool(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    ledger.record_teardown("t1", Receipt("fit", 0, (), (), 0.0))
    ledger.set_pool_state("t1", "up")
    assert ledger.pool("t1").state == "gone"


def test_ledger_records_runs_and_their_outcomes(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    record_runs(ledger, opened=[("t1", "r1", "train", "broadcast", 2, 10.0)])
    record_runs(ledger, opened=[("t1", "r1", "other", "gather", 9, 99.0)])
    record_runs(ledger, opened=[("t1", "r0", "warm", "single", 1, 5.0)])
    assert ledger.runs("t1") == [
        RunRow("r0", "t1", "warm", "single", 1, "running", 5.0, None, None),
        RunRow("r1", "t1", "train", "broadcast", 2, "running", 10.0, None, None),
    ]
    cause = RootCause.from_outcome(KILLED)
    record_runs(
        ledger,
        opened=[("t1", "r1", "again", "gather", 9, 99.0), ("t1", "r2", "cool", "single", 1, 11.0)],
        outcomes=[("r1", OUTCOME, {"r001.out": [0, 9]}), ("r1", KILLED, {})],
        ends=[("r1", "failed", 12.0, cause), ("r2", "done", 13.0, None)],
    )
    record_runs(ledger, outcomes=[("r1", OUTCOME, {"r001.out": [0, 9]})])  # told twice, recorded once
    assert ledger.run("r1") == RunRow("r1", "t1", "train", "broadcast", 2, "failed", 10.0, 12.0, cause)
    assert ledger.run("r2") == RunRow("r2", "t1", "cool", "single", 1, "done", 11.0, 13.0, None)
    assert cause.exit_code == 137
    assert ledger.outcomes("r1") == [(KILLED, {}), (OUTCOME, {"r001.out": [0, 9]})]
    assert ledger.run("nope") is None


def test_records_of_an_earlier_attempt_do_not_replace_those_of_a_later_one(ledger: Ledger) -> None:
    """Two clients write records of a run, and one of them learns of the restart late."""
    record_runs(ledger, opened=[("t1", "r1", "train", "broadcast", 2, 10.0)])
    ledger.record_runs({"r1": {"attempts": 2}}, [("r1", OUTCOME, {})], restarted={"r1": 2})
    record_runs(ledger, outcomes=[("r1", KILLED, {})], ends=[("r1", "failed", 12.0, None)])
    ledger.record_runs({"r1": {"attempts": 2}}, restarted={"r1": 2})
    row = ledger.run("r1")
    assert row is not None
    assert (row.state, row.attempts, ledger.outcomes("r1")) == ("running", 2, [(OUTCOME, {})])


@pytest.mark.parametrize("opened", [True, False])
def test_lost_state_does_not_overwrite_the_end_of_a_run(ledger: Ledger, opened: bool) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    run = ("t1", "r", "f", "single", 1, 5.0)
    record_runs(ledger, opened=[run], ends=[("r", "cancelled", 6.0, None)])
    record_runs(ledger, opened=[run] if opened else [], ends=[("r", "lost", 7.0, None)])
    row = ledger.run("r")
    assert row is not None and (row.state, row.ended_at) == ("cancelled", 6.0)


def test_pool_teardown_marks_running_runs_as_lost(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    for run in ("r1", "r2"):
        record_runs(ledger, opened=[("t1", run, "train", "broadcast", 2, 10.0)])
    record_runs(ledger, ends=[("r1", "done", 11.0, None)])
    ledger.record_teardown("t1", Receipt("fit", 2, (0, 1), (), 0.1))
    assert [r.state for r in ledger.runs("t1")] == ["done", "lost"]


def test_pool_name_in_use_is_rejected_until_teardown(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    with pytest.raises(PoolExistsError, match=r"'fit' is still running.*attach\('fit'\).*down\(\)") as caught:
        ledger.record_intent("t2", "fit", LOCAL, SPEC)
    assert caught.value.hint == Hint("attach", "fit")
    assert [p.token for p in ledger.live_pools()] == ["t1"]
    ledger.record_teardown("t1", Receipt("fit", 2, (0, 1), (), 0.1))
    ledger.record_intent("t2", "fit", LOCAL, SPEC)
    found = ledger.find_pool("fit")
    assert found is not None
    assert found.token == "t2"
    assert ledger.find_pool("nope") is None


@pytest.mark.parametrize("before", [None, 0o644])
def test_ledger_files_are_private(path: Path, before: int | None) -> None:
    """SQLite gives the write-ahead log and its index the mode of the database file."""
    umask = os.umask(0o022)
    try:
        if before is not None:
            Ledger(path).close()
            path.chmod(before)
        ledger = Ledger(path)
        ledger.record_intent("t1", "fit", LOCAL, SPEC)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.glob(f"{path.name}*")}
        ledger.close()
    finally:
        os.umask(umask)
    assert {name.removeprefix(path.name) for name in modes} >= {"", "-wal", "-shm"}
    assert set(modes.values()) == {0o600}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be a stranger for a moment")
@pytest.mark.parametrize("before", [None, 0o644])
def test_another_user_cannot_lock_the_ledger(before: int | None) -> None:
    """The state folder is open to other users here, and a user who can read a file can lock it."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        path = Path(home, "ledger.db")
        Ledger(path).close()
        if before is not None:
            Path(f"{path}.lock").chmod(before)
            Ledger(path).close()
        done = run_command(["flock", "-n", f"{path}.lock", "true"], user=65534, group=65534, extra_groups=[])
        assert done.returncode and "Permission denied" in done.stderr


def test_receipt_text_counts_unaccounted_machines() -> None:
    assert str(Receipt("p", 2, (0, 1), (), 1.0)) == "created 2, verified gone 2, unaccounted 0"
    bad = Receipt("p", 2, (0,), ("i-1",), 1.0)
    assert not bad.ok
    assert str(bad) == "created 2, verified gone 1, unaccounted 1: i-1"


# -- durability --------------------------------------------------------------------------------------------------

KILLED_AFTER_INTENT = """
import os, signal, sys
from pathlib import Path
from skyward_core.store.ledger import Ledger
Ledger(Path(sys.argv[1])).record_intent("t1", "fit", {"provider": "aws"}, {"nodes": 3})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_intent_survives_a_kill_right_after_it(path: Path) -> None:
    process = child(KILLED_AFTER_INTENT, path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    (row,) = Ledger(path).live_pools()
    assert (row.token, row.provider, marked_pid(row.pid or 0)) == ("t1", {"provider": "aws"}, process.pid)


def test_ledger_flushes_intents_machines_and_ends_but_not_states(ledger: Ledger) -> None:
    messages: list[str] = []
    ledger._db.set_trace_callback(messages.append)

    def synchronous(act) -> str:  # type: ignore[no-untyped-def]
        messages.clear()
        act()
        commit = messages.index("COMMIT") if "COMMIT" in messages else len(messages)
        return next((s for s in reversed(messages[:commit]) if s.startswith("PRAGMA synchronous")), "")

    assert synchronous(lambda: ledger.record_intent("t1", "fit", LOCAL, SPEC)) == "PRAGMA synchronous=FULL"
    assert synchronous(lambda: ledger.record_created("t1", [])) == "PRAGMA synchronous=FULL"
    assert synchronous(lambda: ledger.set_pool_state("t1", "up")) == ""
    assert ledger._db.execute("PRAGMA synchronous").fetchone() == (1,)  # NORMAL
    end = Receipt("fit", 0, (), (), 0.0)
    assert synchronous(lambda: ledger.record_teardown("t1", end)) == "PRAGMA synchronous=FULL"


# -- schemas -----------------------------------------------------------------------------------------------------


def test_older_ledger_is_migrated_with_all_rows(path: Path) -> None:
    old = sqlite3.connect(path)
    old.executescript(MIGRATIONS[0] + "PRAGMA user_version=1;")
    old.execute("INSERT INTO pools VALUES ('t1', 'fit', '{\"provider\": \"ssh\"}', '{}', 'up', 1.0, NULL, NULL, 7)")
    old.execute(
        "INSERT INTO machines VALUES ('t1', 0, "
        '\'{"id": "h", "node": 0, "address": "a", "private_address": "b", "state": "running", "extra": {}}\')'
    )
    old.commit()
    old.close()
    ledger = Ledger(path)
    assert ledger.damaged_copy is None
    assert [(p.name, p.pid) for p in ledger.live_pools()] == [("fit", 7)]
    assert ledger.machines("t1") == [Machine("h", 0, "a", "b")]
    record_runs(ledger, opened=[("t1", "r1", "train", "broadcast", 2, 10.0)])
    assert [r.run for r in ledger.runs("t1")] == ["r1"]
    ledger.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert [r.run for r in Ledger(path).runs("t1")] == ["r1"]


def test_new_field_of_a_row_class_becomes_a_column(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    record_runs(ledger, opened=[("t1", "r1", "train", "broadcast", 2, 10.0)])

    @value
    class NewerRunRow(RunRow):
        labels: dict[str, str] | None = None
        decoders = RunRow.decoders | {"labels": json.loads}

    monkeypatch.setattr("skyward_core.store.ledger.ROWS", (NewerRunRow,))
    newer = Ledger(ledger.path)
    newer.record_runs({"r1": {"labels": {"team": "vision"}}})
    (row,) = newer._select(NewerRunRow, "WHERE run=?", ("r1",))
    assert row.labels == {"team": "vision"} and row.function == "train"
    assert ledger.runs("t1") == [RunRow("r1", "t1", "train", "broadcast", 2, "running", 10.0, None, None)]


def test_newer_ledger_is_rejected_and_unchanged(path: Path) -> None:
    newer = sqlite3.connect(path)
    newer.executescript("CREATE TABLE marvels (x); INSERT INTO marvels VALUES (42); PRAGMA user_version=99;")
    newer.close()
    with pytest.raises(LedgerError, match=r"newer version.*schema 99.*Upgrade.*SKYWARD_HOME") as caught:
        Ledger(path)
    assert caught.value.hint == Hint("upgrade")
    assert list(path.parent.glob("*corrupt*")) == []
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT x FROM marvels").fetchall() == [(42,)]
        assert database.execute("PRAGMA user_version").fetchone() == (99,)


def test_failed_migration_leaves_the_ledger_unchanged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(path).record_intent("t1", "fit", LOCAL, SPEC)
    monkeypatch.setattr("skyward_core.store.ledger.VERSION", VERSION + 1)
    monkeypatch.setattr("skyward_core.store.ledger.MIGRATIONS", (*MIGRATIONS, "CREATE TABLE a (x); CREATE NONSENSE;"))
    with pytest.raises(LedgerError, match="Cannot open"):
        Ledger(path)
    monkeypatch.undo()
    again = Ledger(path)
    assert [p.name for p in again.live_pools()] == ["fit"]
    assert again._db.execute("SELECT name FROM sqlite_master WHERE name='a'").fetchall() == []


# A ledger that is damaged, gone, out of reach, or on a full disk: told, kept aside, never overwritten.


def delete(path: Path) -> None:
    for part in path.parent.glob(f"{path.name}*"):
        part.unlink()


def filled(path: Path, runs: int = 400) -> bytes:
    """Ledger of many pages in one file."""
    ledger = Ledger(path)
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    for number in range(runs):
        record_runs(ledger, opened=[("t1", f"r{number}", "train" * 20, "broadcast", 2, float(number))])
    ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.close()
    data = path.read_bytes()
    assert len(data) > 16 * 4096
    return data


DAMAGE = {
    "garbage from the first byte": lambda data: b"garbage\n" * (len(data) // 8),
    "a header overwritten": lambda data: os.urandom(64) + data[64:],
    "cut in the middle of a page": lambda data: data[: len(data) // 2 + 1000],
    "its schema overwritten": lambda data: data[:100] + b"\xff" * 3996 + data[4096:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_ledger_is_copied_aside_and_replaced(path: Path, damage: str) -> None:
    broken = DAMAGE[damage](filled(path))
    path.write_bytes(broken)
    ledger = Ledger(path)
    assert ledger.damaged_copy is not None
    assert ledger.damaged_copy.parent == path.parent
    assert ledger.damaged_copy.read_bytes() == broken
    ledger.record_intent("t9", "fit", LOCAL, SPEC)
    assert [p.token for p in Ledger(path).live_pools()] == ["t9"]
    assert ledger.damaged_copy.read_bytes() == broken


def write_runs(ledger: Ledger) -> None:
    for number in range(50):
        record_runs(ledger, opened=[("t1", f"new{number}", "train", "broadcast", 2, 1.0)])


def read_runs(ledger: Ledger) -> None:
    for number in range(400):
        ledger.run(f"r{number}")
    ledger.runs("t1")


@pytest.mark.parametrize(("intact", "use"), [((8, 2), read_runs), ((4, 0), write_runs)], ids=["read", "write"])
def test_ledger_damage_found_after_opening_is_reported_and_copied(
    path: Path, intact: tuple[int, int], use: Any
) -> None:
    """The pages at the start and at the end are intact."""
    data = filled(path)
    start, end = (4096 * pages for pages in intact)
    broken = data[:start] + os.urandom(len(data) - start - end) + data[len(data) - end :]
    path.write_bytes(broken)
    ledger = Ledger(path)
    assert ledger.damaged_copy is None, "the damage is not where a ledger is opened"
    with pytest.raises(LedgerError, match=r"is damaged .* copy is .*corrupt.*new one was created"):
        use(ledger)
    assert ledger.damaged_copy is not None
    copy = ledger.damaged_copy.read_bytes()
    assert copy == broken if use is read_runs else len(copy) >= len(broken)
    ledger.record_intent("t9", "fit", LOCAL, SPEC)  # the same object continues with the new ledger
    assert [p.token for p in Ledger(path).live_pools()] == ["t9"]


def test_deleted_ledger_is_restored_with_machines_and_retained_results(path: Path) -> None:
    machine = Machine("m0", 0, "10.0.0.1", "10.0.0.1", extra={"folder": "/x/fit.t1.0"})
    retained = RetainedResults("t1", machine, {"ab": 7}, 9, 2e9)
    with closing(Ledger(path)) as ledger:
        for token, name in (("t1", "fit"), ("t2", "up")):
            ledger.record_intent(token, name, LOCAL, SPEC)
            ledger.record_created(token, [machine])
        ledger.record_teardown("t1", Receipt("fit", 1, (0,), (), 0.1), [retained])
    delete(path)
    with closing(Ledger(path)) as ledger:
        assert ledger.retained_results() == [retained]
        assert [(row.token, row.state) for row in ledger.live_pools()] == [("t2", "starting")]
        assert ledger.machines("t2") == [machine]
        ledger.remove_retained(retained)
        ledger.record_teardown("t2", Receipt("up", 1, (0,), (), 0.1))
    delete(path)
    with closing(Ledger(path)) as ledger:
        assert ledger.retained_results() == []
        assert ledger.find_pool("fit") is None, "nothing is left of it"
        assert ledger.live_pools() == []


def test_run_without_results_is_not_listed_as_unfetched(path: Path) -> None:
    machine = Machine("m0", 0, "10.0.0.1", "h", extra={"folder": "/x/fit.t1.0"})
    sizes = {"aa": 0, "bb": 0, "cc": 7, "dd": 0}
    with closing(Ledger(path)) as ledger:
        ledger.record_intent("t1", "fit", LOCAL, SPEC)
        record_runs(ledger, opened=[("t1", run, "f", "broadcast", 1, 1.0) for run in ("aa", "bb", "cc")])
        record_runs(ledger, ends=[("aa", "failed", 2.0, None)])  # how dd ended nobody knows, nor that it began
        ledger.record_teardown("t1", Receipt("fit", 1, (0,), (), 0.1), [RetainedResults("t1", machine, sizes, 9, 2e9)])
        (results,) = ledger.unfetched_results("t1")
        assert results.describe() == "run cc (7 bytes) and the outcome of runs bb, dd on node 0 (10.0.0.1)"
        view = summarize_pool(ledger, ledger.pool("t1"))
        assert view.unfetched == {"cc": 7}
        assert view.detail.startswith(f"not fetched: {results.describe()} until ")
        assert ledger.select_wanted([RetainedResults("t1", machine, {"aa": 0}, 9, 2e9)]) == []


def test_host_that_replaces_itself_keeps_all_former_folders(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    first, *others = (Machine("gpu1", 0, "gpu1", "", extra={"host": "gpu1", "folder": f"fit.{n}"}) for n in range(3))
    ledger.record_created("t1", [first])
    for machine in others:
        ledger.record_replacement_intent("t1", 0, "{}", "me")
        assert ledger.record_replacement("t1", machine)
        ledger.end_replacement("t1", 0)
    assert [*ledger.replaced_machines("t1"), *ledger.machines("t1")] == [first, *others]


def test_restored_ledger_knows_replaced_machines(path: Path) -> None:
    """The replaced machine may still cost money."""
    before, after = (Machine(name, 0, "10.0.0.1", "10.0.0.1") for name in ("m0", "m1"))
    with closing(Ledger(path)) as ledger:
        ledger.record_intent("t1", "fit", LOCAL, SPEC)
        ledger.record_created("t1", [before])
        ledger.record_replacement_intent("t1", 0, "{}", "me")
        assert ledger.record_replacement("t1", after)
    delete(path)
    with closing(Ledger(path)) as ledger:
        assert ledger.machines("t1") == [after]
        assert ledger.replaced_machines("t1") == [before]


def test_damaged_ledger_that_cannot_be_replaced_fails_the_write(path: Path) -> None:
    data = filled(path)
    path.write_bytes(data[: 4096 * 4] + os.urandom(len(data) - 4096 * 4))
    ledger = Ledger(path)
    lock = path.with_name(f"{path.name}.lock")
    lock.unlink()
    lock.mkdir()  # no new one can begin
    with pytest.raises(LedgerError, match=r"ledger\.db\.lock"):
        for number in range(50):
            ledger.record_intent(f"new{number}", f"fit{number}", LOCAL, SPEC)


def test_copies_of_two_damaged_ledgers_are_kept(path: Path) -> None:
    copies = []
    for word in (b"first", b"second"):
        path.write_bytes(word * 100)
        ledger = Ledger(path)
        assert ledger.damaged_copy is not None
        copies.append(ledger.damaged_copy)
        ledger.close()
        path.unlink()
    assert [aside.read_bytes()[:5] for aside in copies] == [b"first", b"secon"]


def start_together(processes: list[subprocess.Popen[str]]) -> None:
    """Let all processes continue when the last one is ready."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


OPEN_AND_INTEND = """
import sys
from pathlib import Path
from skyward_core.store.ledger import Ledger
print("ready", flush=True)
sys.stdin.readline()
ledger = Ledger(Path(sys.argv[1]))
ledger.record_intent(sys.argv[2], sys.argv[2], {}, {})
print(ledger.damaged_copy or "-", flush=True)
sys.stdin.readline()
"""


def test_concurrent_processes_replace_a_damaged_ledger_once(path: Path) -> None:
    path.write_bytes(b"garbage\n" * 1000)
    processes = [child(OPEN_AND_INTEND, path, f"t{i}") for i in range(4)]
    start_together(processes)
    output = [process.stdout.readline().strip() for process in processes if process.stdout]
    for process in processes:
        _, errors = process.communicate("end\n", timeout=60)
        assert process.returncode == 0, errors
    assert sorted(p.name for p in Ledger(path).live_pools()) == ["t0", "t1", "t2", "t3"]
    (aside,) = [word for word in output if word != "-"]
    assert Path(aside).read_bytes() == b"garbage\n" * 1000


# -- out of reach ------------------------------------------------------------------------------------------------


def test_folder_in_place_of_the_ledger_is_an_error(path: Path) -> None:
    path.mkdir()
    with pytest.raises(LedgerError, match=r"Cannot open .*: unable to open database file"):
        Ledger(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = run_command(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)])
    if made.returncode:
        pytest.skip(f"no small disk could be mounted: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # ledgers are closed after this


def test_full_disk_fails_ledger_writes_without_damage(small_disk: Path) -> None:
    path = small_disk / "ledger.db"
    ledger = Ledger(path)
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    pools = 0
    with pytest.raises(LedgerError, match=r"cannot be written: .*space"):
        for number in range(2000):
            record_runs(ledger, opened=[("t1", f"r{number}", "train" * 100, "broadcast", 2, float(number))])
            pools += 1
    assert pools > 10
    assert len(ledger.runs("t1")) == pools, "what was there can still be read"
    with pytest.raises(LedgerError):
        ledger.record_intent("t2", "more" * 5000, LOCAL, SPEC)
    ledger.close()
    again = Ledger(path)
    assert again.damaged_copy is None
    assert again._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert len(again.runs("t1")) == pools
    assert [p.token for p in again.live_pools()] == ["t1"]


def test_full_disk_fails_creation_of_a_ledger(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 396 * 1024)
    with pytest.raises(LedgerError, match=r"Cannot open .*space"):
        Ledger(small_disk / "ledger.db")
    (small_disk / "filler").unlink()
    Ledger(small_disk / "ledger.db").close()


@contextmanager
def mounted_read_only(folder: Path) -> Iterator[Path]:
    """Mount the same files read-only at another path."""
    other = folder.with_name("read-only")
    other.mkdir()
    subprocess.run(["mount", "--bind", str(folder), str(other)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(other)], check=True)
        yield other
    finally:
        subprocess.run(["umount", "--lazy", str(other)], check=True)


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open elsewhere"])
def test_ledger_on_a_read_only_disk_is_readable_and_reports_failed_writes(small_disk: Path, is_open: bool) -> None:
    other = Ledger(small_disk / "ledger.db")
    other.record_intent("t1", "fit", LOCAL, SPEC)
    if not is_open:
        other.close()
    with mounted_read_only(small_disk) as folder:
        ledger = Ledger(folder / "ledger.db")
        assert [pool.token for pool in ledger.live_pools()] == ["t1"]
        assert "Read-only file system" in ledger.read_only_reason
        with pytest.raises(LedgerError, match=r"cannot be written: .*readonly"):
            ledger.record_intent("t2", "more", LOCAL, SPEC)
        if is_open:
            other.record_intent("t3", "new", LOCAL, SPEC)
            assert len(ledger.live_pools()) == 2
            other.close()
        ledger.close()
    again = Ledger(small_disk / "ledger.db")
    assert (again.read_only_reason, again.damaged_copy) == ("", None)


def test_missing_ledger_on_a_read_only_disk_is_an_error_with_the_cause(small_disk: Path) -> None:
    with mounted_read_only(small_disk) as folder, pytest.raises(LedgerError, match=r"Cannot open .*Read-only file"):
        Ledger(folder / "ledger.db")


def test_ledger_without_free_inodes_is_read(small_disk: Path) -> None:
    Ledger(small_disk / "ledger.db").close()
    subprocess.run(["mount", "-o", "remount,nr_inodes=4", str(small_disk)], check=True)
    (small_disk / "filler").touch()
    ledger = Ledger(small_disk / "ledger.db")
    assert (ledger.live_pools(), bool(ledger.read_only_reason)) == ([], True)
    ledger.close()


def test_ledger_opened_read_only_is_written_again_when_its_disk_accepts_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(path).close()
    lock = path.with_name("ledger.db.lock")
    lock.unlink()
    lock.symlink_to("elsewhere")  # the lock file cannot be opened
    ledger = Ledger(path)
    assert ledger.read_only_reason
    with pytest.raises(LedgerError, match="readonly"):
        ledger.record_intent("t1", "fit", LOCAL, SPEC)
    lock.unlink()
    with pytest.raises(LedgerError, match="readonly"):  # it tried a moment ago
        ledger.record_intent("t1", "fit", LOCAL, SPEC)
    monkeypatch.setattr(module, "REOPEN_SECONDS", 0.0)
    monkeypatch.setattr(ledger, "_reopen_at", 0.0)
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    assert ([pool.token for pool in ledger.live_pools()], ledger.read_only_reason) == (["t1"], "")


# A ledger that several processes, clients and threads have open.

INSERT_MANY = """
import sys
from pathlib import Path
from skyward_core.store.ledger import Ledger
from skyward_core.model.outcomes_states_and_alerts import Outcome
name, count = sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
ledger = Ledger(Path(sys.argv[1]))
ledger.record_intent(name, name, {}, {})
for i in range(count):
    run = f"{name}-{i}"
    opened = {"token": name, "function": "f", "kind": "broadcast", "total": 1, "opened_at": float(i)}
    ledger.record_runs({run: opened})
    ledger.record_runs({run: {"state": "done", "ended_at": i + 0.5}}, [(run, Outcome(0, 0, 0, "returned"), {})])
    assert len(ledger.live_pools()) >= 1
"""


def test_concurrent_processes_lose_no_ledger_rows(path: Path) -> None:
    count = 100
    processes = [child(INSERT_MANY, path, name, count) for name in ("one", "two")]
    start_together(processes)
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    ledger = Ledger(path)
    for name in ("one", "two"):
        runs = ledger.runs(name)
        assert [r.run for r in runs] == [f"{name}-{i}" for i in range(count)]
        assert {r.state for r in runs} == {"done"}
        assert all(len(ledger.outcomes(r.run)) == 1 for r in runs[::50])


@contextmanager
def blocked_writer(ledger: Ledger) -> Iterator[threading.Thread]:
    """Yield a thread that ends run r, and that waits because another process has locked the ledger."""
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        writer = threading.Thread(target=ledger.record_runs, args=({"r": {"state": "done", "ended_at": 2.0}},))
        writer.start()
        while not ledger._lock.locked() and writer.is_alive():
            threading.Event().wait(0.001)
        try:
            yield writer
        finally:
            holder.execute("COMMIT")
            writer.join()


def test_ledger_read_does_not_wait_for_a_blocked_writer_thread(ledger: Ledger) -> None:
    ledger.record_intent("t0", "p", LOCAL, SPEC)
    record_runs(ledger, opened=[("t0", "r", "f", "single", 1, 1.0)])
    with blocked_writer(ledger) as writer:
        (row,) = ledger.runs("t0")
        assert (writer.is_alive(), row.state) == (True, "running"), "the write was still to come"
    assert [each.state for each in ledger.runs("t0")] == ["done"]


def test_adoption_of_a_run_does_not_wait_for_a_locked_ledger(ledger: Ledger) -> None:
    """It runs on the event loop. The caller tries again."""
    ledger.record_intent("t0", "p", LOCAL, SPEC)
    record_runs(ledger, opened=[("t0", each, "f", "single", 1, 1.0) for each in ("r", "other")])
    ledger.record_runs({each: {"pid": None} for each in ("r", "other")})
    with blocked_writer(ledger) as writer:
        assert not ledger.adopt_run("other") and writer.is_alive()
    assert ledger.adopt_run("other") and ledger.require_run("other").has_client
    assert not ledger.adopt_run("other") and not ledger.adopt_run("r"), "it has a client, or has ended"


HOLD = """
import os, signal, sqlite3, sys
holder = sqlite3.connect(sys.argv[1], isolation_level=None)
holder.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_ledger_lock_error_names_the_holding_process(path: Path, ledger: Ledger) -> None:
    ledger._db.execute("PRAGMA busy_timeout=50")
    with Child([sys.executable, "-c", HOLD, str(path)]) as holder:
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        message = rf"cannot be written: database is locked \(SQLITE_BUSY\): process {holder.pid} has locked it; end"
        with pytest.raises(LedgerError, match=message):
            ledger.record_intent("t1", "fit", LOCAL, SPEC)
        holder.kill()
        holder.wait()
    ledger.record_intent("t1", "fit", LOCAL, SPEC)


def test_one_client_owns_a_node_replacement_until_it_dies(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    old, new = Machine("old", 1, "a", "b"), Machine("new", 1, "a", "b", logs_from={"r001.out": 7})
    ledger.record_created("t1", [Machine("head", 0, "a", "b"), old])
    dead = child("pass")
    dead.wait()
    first = ledger.record_replacement_intent("t1", 1, "intent", f"{dead.pid}.x")
    assert first is not None and not first.made and not first.is_owner_alive
    taken = ledger.record_replacement_intent("t1", 1, "another", f"{os.getpid()}.y")
    assert taken is not None
    assert (taken.intent, taken.owner, taken.is_owner_alive) == ("intent", f"{os.getpid()}.y", True)
    assert ledger.record_replacement_intent("t1", 1, "third", f"{os.getpid()}.z") is None
    assert ledger.record_replacement("t1", new)
    assert (ledger.machines("t1")[1], ledger.replaced_machines("t1")) == (new, [old])
    assert [each.made for each in ledger.replacements("t1")] == [True]
    ledger.end_replacement("t1", 1)
    assert ledger.replacements("t1") == []


def test_stopping_pool_gets_no_replacement_machine(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    old = Machine("old", 0, "a", "b")
    ledger.record_created("t1", [old])
    ledger.record_replacement_intent("t1", 0, "intent", f"{os.getpid()}.x")
    ledger.set_pool_state("t1", "stopping")
    assert not ledger.record_replacement("t1", replace(old, id="new"))
    assert (ledger.machines("t1"), ledger.replaced_machines("t1")) == ([old], [])
    ledger.record_teardown("t1", Receipt("fit", 1, (0,), (), 0.1))
    assert ledger.replacements("t1") == []


def test_ledger_close_waits_for_a_statement_of_another_thread(path: Path) -> None:
    # In a process of its own: SQLite would take the whole process with it.
    code = (
        "import sys, threading\nfrom pathlib import Path\nfrom skyward_core.store.ledger import Ledger\n"
        "ledger, begun = Ledger(Path(sys.argv[1])), threading.Event()\n"
        "ledger._db.create_function('begin', 0, begun.set)\n"
        "n = 'n(i) AS (SELECT begin() UNION ALL SELECT 1 FROM n LIMIT 2000000)'\n"
        "sql = f'WITH RECURSIVE {n} SELECT count(*) FROM n'\n"
        "found = []\nthread = threading.Thread(target=lambda: found.extend(ledger._read(sql)))\n"
        "thread.start()\nbegun.wait()\nledger.close()\nthread.join()\nprint(found)\n"
    )
    done = run_command([sys.executable, "-c", code, str(path)])
    assert (done.returncode, done.stdout) == (0, "[(2000000,)]\n"), done.stderr


# Processes, which a process id does not identify for ever.


def test_process_mark_tells_a_process_from_an_earlier_one_with_the_same_process_id() -> None:
    mine = process_mark()
    assert (marked_pid(mine), is_process_alive(mine), is_process_alive(os.getpid())) == (os.getpid(), True, True)
    earlier = mine ^ (1 << 40)
    assert marked_pid(earlier) == os.getpid() and not is_process_alive(earlier)
    with subprocess.Popen(["sleep", "600"]) as child:
        mark = process_mark(child.pid)
        assert is_process_alive(mark)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_process_alive(mark)  # it has ended, although nothing has waited for it yet
    assert not is_process_alive(mark) and not is_process_alive(0)


def test_process_mark_depends_on_the_start_of_the_process_and_the_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 of a container has the same process id in the next container, and often the same age after a boot."""

    def mark_in(boot: str, started: int) -> int:
        stat_file, boot_file = tmp_path / "stat", tmp_path / "boot"
        stat_file.write_text(f"1 (a) b) S {' '.join('0' * 18)} {started} 0\n")
        boot_file.write_text(boot)
        files = {"/proc/1/stat": stat_file, "/proc/sys/kernel/random/boot_id": boot_file}
        monkeypatch.setattr(ledger_rows, "Path", files.__getitem__)
        ledger_rows._boot_id.cache_clear()
        return process_mark(1)

    try:
        marks = [mark_in("boot-1", 10), mark_in("boot-1", 11), mark_in("boot-2", 10), mark_in("boot-1", 10)]
    finally:
        ledger_rows._boot_id.cache_clear()
    assert len(set(marks)) == 3 and marks[0] == marks[3] and {marked_pid(each) for each in marks} == {1}


def test_pool_is_not_starting_if_another_process_has_the_process_id_of_its_client(ledger: Ledger) -> None:
    row = ledger.record_intent("t1", "fit", {"provider": "aws"}, {"options": {"start_timeout": 300}})
    assert row.pid is not None and is_starting(row)
    assert not is_starting(replace(row, pid=row.pid ^ (1 << 40)))
