"""The durable record: what is in it, old and new, and cut off in the middle."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from skyward_core.model.errors import Hint, LedgerError, PoolExistsError
from skyward_core.model.machines import Machine
from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause, Summary
from skyward_core.store import ledger as module
from skyward_core.store.ledger import MIGRATIONS, VERSION, Ledger
from skyward_core.store.ledger_rows import PoolRow, Receipt, RunRow
from skyward_core.util.light_dataclass import value
from tests.support.child import child
from tests.support.ledger_runs import record_runs
from tests.support.ledgers import LOCAL, SPEC, all_closed


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


def test_a_pool_from_intent_to_end(ledger: Ledger, path: Path) -> None:
    row = ledger.record_intent("t1", "fit", LOCAL, SPEC)
    assert (row.token, row.name, row.provider, row.spec, row.state) == ("t1", "fit", LOCAL, SPEC, "starting")
    assert (row.pid, row.ended_at, row.receipt, row.key) == (os.getpid(), None, None, "fit.t1")
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
    lists = dict.fromkeys(("unaccounted", "notes", "kept", "lost", "stays", "bills"), ())
    assert Receipt(**ended.receipt | {"gone": (0, 1)} | lists) == receipt


def test_whoever_writes_changes_the_stamp_and_who_reads_does_not(ledger: Ledger, path: Path) -> None:
    before = ledger.change_stamp()
    ledger.live_pools()
    assert ledger.change_stamp() == before
    ledger.record_intent("t1", "mine", LOCAL, SPEC)
    mine = ledger.change_stamp()
    assert mine != before
    with closing(Ledger(path)) as other:
        other.record_intent("t2", "theirs", LOCAL, SPEC)
    assert ledger.change_stamp() != mine


def test_how_many_nodes_a_pool_has_is_known_with_its_machines(ledger: Ledger) -> None:
    """Also where somebody else finds them, as who made them died; never of a pool that was up already."""
    for token, name in (("t1", "made"), ("t2", "found"), ("t3", "up")):
        ledger.record_intent(token, name, {"provider": "local"}, {"nodes": 5})
    three = [Machine(f"m{node}", node, "h", "") for node in range(3)]
    ledger.record_created("t1", three)
    ledger.record_discovered("t2", three[:1])
    ledger.record_discovered("t2", three[1:])
    ledger.set_pool_state("t3", "up")
    ledger.record_discovered("t3", three)
    assert [ledger.pool(token).spec["nodes"] for token in ("t1", "t2", "t3")] == [3, 3, 5]


def test_a_pool_whose_end_is_not_verified_stays_open(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    ledger.record_teardown("t1", Receipt("fit", 2, (0,), ("i-0abc",), 9.0))
    (row,) = ledger.live_pools()
    assert (row.state, row.ended_at) == ("failed", None)
    with pytest.raises(PoolExistsError):
        ledger.record_intent("t2", "fit", LOCAL, SPEC)


def test_how_many_nodes_there_are_is_written_beside_what_others_write(
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


def test_a_late_state_does_not_bring_a_pool_back(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    ledger.record_teardown("t1", Receipt("fit", 0, (), (), 0.0))
    ledger.set_pool_state("t1", "up")
    assert ledger.pool("t1").state == "gone"


def test_runs_and_outcomes(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    record_runs(ledger, opened=[("t1", "r1", "train", "broadcast", 2, 10.0)])
    record_runs(ledger, opened=[("t1", "r1", "other", "gather", 9, 99.0)])
    record_runs(ledger, opened=[("t1", "r0", "warm", "single", 1, 5.0)])
    assert [(r.run, r.function, r.total, r.state) for r in ledger.runs("t1")] == [
        ("r0", "warm", 1, "running"),
        ("r1", "train", 2, "running"),
    ]
    cause = RootCause.from_outcome(KILLED)
    record_runs(
        ledger,
        outcomes=[("r1", OUTCOME, {"r001.out": [0, 9]}), ("r1", KILLED, {})],
        ends=[("r1", "failed", 12.0, cause)],
    )
    record_runs(ledger, outcomes=[("r1", OUTCOME, {"r001.out": [0, 9]})])  # told twice, recorded once
    run = ledger.run("r1")
    assert run is not None
    assert (run.state, run.ended_at, run.root_cause) == ("failed", 12.0, cause)
    assert cause.exit_code == 137
    assert ledger.outcomes("r1") == [(KILLED, {}), (OUTCOME, {"r001.out": [0, 9]})]
    assert ledger.run("nope") is None


def test_a_run_that_is_known_and_told_again_with_its_end_only_ends(ledger: Ledger) -> None:
    """Another client, say, has written down that it began."""
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    record_runs(ledger, opened=[("t1", "r1", "train", "broadcast", 2, 10.0)])
    cause = RootCause.from_outcome(KILLED)
    record_runs(
        ledger,
        opened=[("t1", "r1", "other", "gather", 9, 99.0), ("t1", "r2", "warm", "single", 1, 11.0)],
        ends=[("r1", "failed", 12.0, cause), ("r2", "done", 13.0, None)],
    )
    known, new = ledger.runs("t1")
    assert (known.function, known.kind, known.total, known.opened_at) == ("train", "broadcast", 2, 10.0)
    assert (known.state, known.ended_at, known.root_cause) == ("failed", 12.0, cause)
    assert (new.run, new.function, new.state, new.opened_at, new.ended_at) == (
        "r2",
        "warm",
        "done",
        11.0,
        13.0,
    )


@pytest.mark.parametrize("opened", [True, False])
def test_a_client_that_lost_a_run_does_not_hide_its_end(ledger: Ledger, opened: bool) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    run = ("t1", "r", "f", "single", 1, 5.0)
    record_runs(ledger, opened=[run], ends=[("r", "cancelled", 6.0, None)])
    record_runs(ledger, opened=[run] if opened else [], ends=[("r", "lost", 7.0, None)])
    row = ledger.run("r")
    assert row is not None and (row.state, row.ended_at) == ("cancelled", 6.0)


def test_the_end_of_a_pool_ends_its_runs(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    for run in ("r1", "r2"):
        record_runs(ledger, opened=[("t1", run, "train", "broadcast", 2, 10.0)])
    record_runs(ledger, ends=[("r1", "done", 11.0, None)])
    ledger.record_teardown("t1", Receipt("fit", 2, (0, 1), (), 0.1))
    assert [r.state for r in ledger.runs("t1")] == ["done", "lost"]


def test_a_name_in_use_is_refused_until_it_is_free(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    with pytest.raises(PoolExistsError, match=r"'fit' is still up.*attach\('fit'\).*down\(\)") as caught:
        ledger.record_intent("t2", "fit", LOCAL, SPEC)
    assert caught.value.hint == Hint("attach", "fit")
    assert [p.token for p in ledger.live_pools()] == ["t1"]
    ledger.record_teardown("t1", Receipt("fit", 2, (0, 1), (), 0.1))
    ledger.record_intent("t2", "fit", LOCAL, SPEC)
    found = ledger.find_pool("fit")
    assert found is not None
    assert found.token == "t2"
    assert ledger.find_pool("nope") is None


def test_of_pools_with_one_name_the_live_one_is_found_else_the_latest(ledger: Ledger) -> None:
    for token in ("t1", "t2"):
        ledger.record_intent(token, "fit", LOCAL, SPEC)
        ledger.record_teardown(token, Receipt("fit", 0, (), (), 0.0))
    found = ledger.find_pool("fit")
    assert found is not None
    assert found.token == "t2"


@pytest.mark.parametrize("before", [None, 0o644])
def test_only_the_person_may_read_it(path: Path, before: int | None) -> None:
    """Its log and its index hold what it holds, and SQLite gives them its mode."""
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
def test_a_stranger_keeps_nobody_from_opening_it(before: int | None) -> None:
    """The home holds other things as well, and is open to all. Who can read a file can lock it."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        path = Path(home, "ledger.db")
        Ledger(path).close()
        if before is not None:
            Path(f"{path}.lock").chmod(before)
            Ledger(path).close()
        done = subprocess.run(
            ["flock", "-n", f"{path}.lock", "true"],
            user=65534, group=65534, extra_groups=[], check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode and "Permission denied" in done.stderr


def test_a_receipt_says_what_may_still_run() -> None:
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


def test_an_intent_outlives_a_kill_right_after_it(path: Path) -> None:
    process = child(KILLED_AFTER_INTENT, path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    (row,) = Ledger(path).live_pools()
    assert (row.token, row.provider, row.pid) == ("t1", {"provider": "aws"}, process.pid)


def test_intents_machines_and_ends_are_flushed_to_disk_and_mere_news_is_not(ledger: Ledger) -> None:
    said: list[str] = []
    ledger._db.set_trace_callback(said.append)

    def synchronous(act) -> str:  # type: ignore[no-untyped-def]
        said.clear()
        act()
        commit = said.index("COMMIT") if "COMMIT" in said else len(said)
        return next((s for s in reversed(said[:commit]) if s.startswith("PRAGMA synchronous")), "")

    assert synchronous(lambda: ledger.record_intent("t1", "fit", LOCAL, SPEC)) == "PRAGMA synchronous=FULL"
    assert synchronous(lambda: ledger.record_created("t1", [])) == "PRAGMA synchronous=FULL"
    assert synchronous(lambda: ledger.set_pool_state("t1", "up")) == ""
    assert ledger._db.execute("PRAGMA synchronous").fetchone() == (1,)  # NORMAL
    end = Receipt("fit", 0, (), (), 0.0)
    assert synchronous(lambda: ledger.record_teardown("t1", end)) == "PRAGMA synchronous=FULL"


# -- schemas -----------------------------------------------------------------------------------------------------


def test_each_write_waits_for_others_as_long_as_its_ledger_does_or_as_it_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.02)
    ledger = Ledger(path)

    def waits() -> int:
        return int(ledger._db.execute("PRAGMA busy_timeout").fetchone()[0])

    said: list[str] = []
    ledger._db.set_trace_callback(said.append)
    ledger.record_intent("t0", "p", {}, {})
    record_runs(ledger, opened=[("t0", "r", "f", "single", 1, 1.0)])
    assert waits() == 20
    assert not any("busy_timeout=" in statement for statement in said)
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.07)  # of ledgers that are opened later
    record_runs(ledger, ends=[("r", "done", 2.0, None)], patience=0.5)
    assert [statement for statement in said if "busy_timeout=" in statement] == [
        "PRAGMA busy_timeout=500", "PRAGMA busy_timeout=20",
    ]  # fmt: skip
    assert waits() == 20


def test_an_older_ledger_is_brought_up_to_date_with_all_it_holds(path: Path) -> None:
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


def test_a_field_of_a_row_class_becomes_a_column(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_newer_ledger_is_refused_and_not_touched(path: Path) -> None:
    newer = sqlite3.connect(path)
    newer.executescript("CREATE TABLE marvels (x); INSERT INTO marvels VALUES (42); PRAGMA user_version=99;")
    newer.close()
    with pytest.raises(LedgerError, match=r"newer version.*schema 99.*upgrade.*SKYWARD_HOME") as caught:
        Ledger(path)
    assert caught.value.hint == Hint("upgrade")
    assert list(path.parent.glob("*corrupt*")) == []
    with closing(sqlite3.connect(path)) as kept:
        assert kept.execute("SELECT x FROM marvels").fetchall() == [(42,)]
        assert kept.execute("PRAGMA user_version").fetchone() == (99,)


def test_a_migration_that_fails_leaves_the_old_ledger_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(path).record_intent("t1", "fit", LOCAL, SPEC)
    monkeypatch.setattr("skyward_core.store.ledger.VERSION", VERSION + 1)
    monkeypatch.setattr("skyward_core.store.ledger.MIGRATIONS", (*MIGRATIONS, "CREATE TABLE a (x); CREATE NONSENSE;"))
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger(path)
    monkeypatch.undo()
    again = Ledger(path)
    assert [p.name for p in again.live_pools()] == ["fit"]
    assert again._db.execute("SELECT name FROM sqlite_master WHERE name='a'").fetchall() == []
