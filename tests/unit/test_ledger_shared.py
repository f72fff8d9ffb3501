"""A ledger that several processes, clients and threads have open."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from skyward_core.model.errors import LedgerError
from skyward_core.model.machines import Machine
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt
from tests.support.child import Child, child
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


INSERT_MANY = """
import sys
from pathlib import Path
from skyward_core.store.ledger import Ledger
from skyward_core.model.outcomes import Outcome
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


def test_two_processes_share_a_ledger_and_nothing_is_lost(path: Path) -> None:
    count = 300
    processes = [child(INSERT_MANY, path, name, count) for name in ("one", "two")]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    ledger = Ledger(path)
    for name in ("one", "two"):
        runs = ledger.runs(name)
        assert [r.run for r in runs] == [f"{name}-{i}" for i in range(count)]
        assert {r.state for r in runs} == {"done"}
        assert all(len(ledger.outcomes(r.run)) == 1 for r in runs[::50])


def test_who_reads_does_not_wait_for_a_thread_whose_write_waits_for_another_process(ledger: Ledger) -> None:
    ledger.record_intent("t0", "p", LOCAL, SPEC)
    record_runs(ledger, opened=[("t0", "r", "f", "single", 1, 1.0)])
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        writer = threading.Thread(target=ledger.record_runs, args=({"r": {"state": "done", "ended_at": 2.0}},))
        writer.start()
        while not ledger._lock.locked() and writer.is_alive():
            threading.Event().wait(0.001)
        (row,) = ledger.runs("t0")
        waits = writer.is_alive()
        holder.execute("COMMIT")
        writer.join()
    assert (waits, row.state) == (True, "running"), "the write was still to come"
    assert [each.state for each in ledger.runs("t0")] == ["done"]


def test_reading_beside_makes_no_file_where_a_damaged_one_is_just_moved_away(ledger: Ledger) -> None:
    ledger.path.rename(ledger.path.with_name("aside.db"))
    with pytest.raises(sqlite3.OperationalError):
        ledger._read_separately("SELECT token FROM pools", ())
    assert not ledger.path.exists()


def test_threads_share_one_ledger(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)

    def insert(name: str) -> None:
        for i in range(50):
            record_runs(ledger, opened=[("t1", f"{name}{i}", "f", "broadcast", 1, 0.0)])
            ledger.runs("t1")

    threads = [threading.Thread(target=insert, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.runs("t1")) == 200


HOLD = """
import os, signal, sqlite3, sys
holder = sqlite3.connect(sys.argv[1], isolation_level=None)
holder.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_an_error_names_the_stopped_process_that_holds_the_ledger(path: Path, ledger: Ledger) -> None:
    ledger._db.execute("PRAGMA busy_timeout=50")
    with Child([sys.executable, "-c", HOLD, str(path)]) as holder:
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        said = rf"cannot be written: database is locked \(SQLITE_BUSY\): process {holder.pid} holds it; end"
        with pytest.raises(LedgerError, match=said):
            ledger.record_intent("t1", "fit", LOCAL, SPEC)
        holder.kill()
        holder.wait()
    ledger.record_intent("t1", "fit", LOCAL, SPEC)


def test_one_client_sees_to_a_node_until_it_dies(ledger: Ledger) -> None:
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


def test_a_pool_that_is_torn_down_gets_no_machine(ledger: Ledger) -> None:
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    old = Machine("old", 0, "a", "b")
    ledger.record_created("t1", [old])
    ledger.record_replacement_intent("t1", 0, "intent", f"{os.getpid()}.x")
    ledger.set_pool_state("t1", "stopping")
    assert not ledger.record_replacement("t1", replace(old, id="new"))
    assert (ledger.machines("t1"), ledger.replaced_machines("t1")) == ([old], [])
    ledger.record_teardown("t1", Receipt("fit", 1, (0,), (), 0.1))
    assert ledger.replacements("t1") == []


def test_pools_of_one_name_are_told_apart_by_their_keys(ledger: Ledger) -> None:
    for token in ("t1", "t2"):
        row = ledger.record_intent(token, "fit", LOCAL, SPEC)
        assert row.key == f"fit.{token}"
        ledger.record_teardown(token, Receipt("fit", 2, (0, 1), (), 0.5))
    tokens = [found.token if (found := ledger.find_pool(key)) else None for key in ("fit.t1", "fit.t2", "fit")]
    assert tokens == ["t1", "t2", "t2"]
    assert ledger.find_pool("other.t1") is None
    assert [row.token for row in ledger.ended_pools()] == ["t2", "t1"]
    assert [row.token for row in ledger.ended_pools(limit=1)] == ["t2"]
    last = ledger.pool("t2").ended_at
    assert last is not None
    assert [row.token for row in ledger.ended_pools(last)] == ["t2"]


def test_closing_waits_for_a_statement_of_another_thread(path: Path) -> None:
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
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "[(2000000,)]\n"), done.stderr
