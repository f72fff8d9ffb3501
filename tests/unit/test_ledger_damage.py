"""A ledger that is damaged, gone, out of reach, or on a full disk: told, kept aside, never overwritten."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skyward_core.model.errors import LedgerError
from skyward_core.model.machines import Machine
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt, RetainedResults
from skyward_core.store.past_pools import summarize_pool
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


def filled(path: Path, runs: int = 400) -> bytes:
    """A ledger of many pages, whole in one file."""
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
    "a text file": lambda data: b"not a database at all, but longer than a header of one hundred bytes" * 3,
    "a header overwritten": lambda data: os.urandom(64) + data[64:],
    "cut in the middle of a page": lambda data: data[: len(data) // 2 + 1000],
    "cut at a page": lambda data: data[: 4096 * 6],
    "its schema overwritten": lambda data: data[:100] + b"\xff" * 3996 + data[4096:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_ledger_is_kept_aside_and_never_overwritten(path: Path, damage: str) -> None:
    broken = DAMAGE[damage](filled(path))
    path.write_bytes(broken)
    ledger = Ledger(path)
    assert ledger.damaged_copy is not None
    assert ledger.damaged_copy.parent == path.parent
    assert ledger.damaged_copy.read_bytes() == broken
    ledger.record_intent("t9", "fit", LOCAL, SPEC)
    assert [p.token for p in Ledger(path).live_pools()] == ["t9"]
    assert ledger.damaged_copy.read_bytes() == broken


def test_damage_that_shows_later_is_told_and_nothing_is_overwritten(path: Path) -> None:
    data = filled(path)
    broken = data[: 4096 * 8] + os.urandom(len(data) - 4096 * 10) + data[-2 * 4096 :]
    path.write_bytes(broken)
    ledger = Ledger(path)
    assert ledger.damaged_copy is None, "the damage is not where a ledger is opened"
    with pytest.raises(LedgerError, match=r"is damaged .* is kept as .*corrupt.*a new one begins"):
        for number in range(400):
            ledger.run(f"r{number}")
        ledger.runs("t1")
    assert ledger.damaged_copy is not None
    assert ledger.damaged_copy.read_bytes() == broken
    ledger.record_intent("t9", "fit", LOCAL, SPEC)  # this very object goes on with the new one
    assert [p.token for p in Ledger(path).live_pools()] == ["t9"]


def test_damage_that_shows_at_a_write_is_told_and_nothing_is_overwritten(path: Path) -> None:
    data = filled(path)
    broken = data[: 4096 * 4] + os.urandom(len(data) - 4096 * 4)
    path.write_bytes(broken)
    ledger = Ledger(path)
    with pytest.raises(LedgerError, match="is damaged"):
        for number in range(50):
            record_runs(ledger, opened=[("t1", f"new{number}", "train", "broadcast", 2, 1.0)])
    assert ledger.damaged_copy is not None
    assert len(ledger.damaged_copy.read_bytes()) >= len(broken)
    ledger.record_intent("t9", "fit", LOCAL, SPEC)
    assert [p.token for p in Ledger(path).live_pools()] == ["t9"]


def test_a_ledger_that_was_deleted_is_made_anew_with_machines_and_with_what_hosts_keep(path: Path) -> None:
    machine = Machine("m0", 0, "10.0.0.1", "10.0.0.1", extra={"folder": "/x/fit.t1.0"})
    kept = RetainedResults("t1", machine, {"ab": 7}, 9, 2e9)
    with closing(Ledger(path)) as ledger:
        for token, name in (("t1", "fit"), ("t2", "up")):
            ledger.record_intent(token, name, LOCAL, SPEC)
            ledger.record_created(token, [machine])
        ledger.record_teardown("t1", Receipt("fit", 1, (0,), (), 0.1), [kept])
    for part in path.parent.glob(f"{path.name}*"):
        part.unlink()
    with closing(Ledger(path)) as ledger:
        assert ledger.retained_results() == [kept]
        assert [(row.token, row.state) for row in ledger.live_pools()] == [("t2", "starting")]
        assert ledger.machines("t2") == [machine]
        ledger.remove_retained(kept)
        ledger.record_teardown("t2", Receipt("up", 1, (0,), (), 0.1))
    for part in path.parent.glob(f"{path.name}*"):
        part.unlink()
    with closing(Ledger(path)) as ledger:
        assert ledger.retained_results() == []
        assert ledger.find_pool("fit") is None, "nothing is left of it"
        assert ledger.live_pools() == []


def test_nothing_to_fetch_is_not_told_as_something_that_is_not_fetched(path: Path) -> None:
    machine = Machine("m0", 0, "10.0.0.1", "h", extra={"folder": "/x/fit.t1.0"})
    sizes = {"aa": 0, "bb": 0, "cc": 7, "dd": 0}
    with closing(Ledger(path)) as ledger:
        ledger.record_intent("t1", "fit", LOCAL, SPEC)
        record_runs(ledger, opened=[("t1", run, "f", "broadcast", 1, 1.0) for run in ("aa", "bb", "cc")])
        record_runs(ledger, ends=[("aa", "failed", 2.0, None)])  # how dd ended nobody knows, nor that it began
        ledger.record_teardown("t1", Receipt("fit", 1, (0,), (), 0.1), [RetainedResults("t1", machine, sizes, 9, 2e9)])
        (kept,) = ledger.unfetched_results("t1")
        assert kept.describe() == "run cc (7 bytes) and how runs bb, dd ended on node 0 (10.0.0.1)"
        view = summarize_pool(ledger, ledger.pool("t1"))
        assert view.unfetched == {"cc": 7}
        assert view.detail.startswith(f"not fetched: {kept.describe()} until ")
        assert ledger.select_wanted([RetainedResults("t1", machine, {"aa": 0}, 9, 2e9)]) == []


def test_of_a_node_that_was_replaced_a_new_ledger_knows_both_machines(path: Path) -> None:
    """The one before may still cost money."""
    before, after = (Machine(name, 0, "10.0.0.1", "10.0.0.1") for name in ("m0", "m1"))
    with closing(Ledger(path)) as ledger:
        ledger.record_intent("t1", "fit", LOCAL, SPEC)
        ledger.record_created("t1", [before])
        ledger.record_replacement_intent("t1", 0, "{}", "me")
        assert ledger.record_replacement("t1", after)
    for part in path.parent.glob(f"{path.name}*"):
        part.unlink()
    with closing(Ledger(path)) as ledger:
        assert ledger.machines("t1") == [after]
        assert ledger.replaced_machines("t1") == [before]


def test_a_damaged_ledger_that_cannot_be_begun_anew_says_so_at_the_write_that_found_it(path: Path) -> None:
    data = filled(path)
    path.write_bytes(data[: 4096 * 4] + os.urandom(len(data) - 4096 * 4))
    ledger = Ledger(path)
    lock = path.with_name(f"{path.name}.lock")
    lock.unlink()
    lock.mkdir()  # no new one can begin
    with pytest.raises(LedgerError, match=r"ledger\.db\.lock"):
        for number in range(50):
            ledger.record_intent(f"new{number}", f"fit{number}", LOCAL, SPEC)


def test_two_damaged_ledgers_are_both_kept(path: Path) -> None:
    kept = []
    for word in (b"first", b"second"):
        path.write_bytes(word * 100)
        ledger = Ledger(path)
        assert ledger.damaged_copy is not None
        kept.append(ledger.damaged_copy)
        ledger.close()
        path.unlink()
    assert [aside.read_bytes()[:5] for aside in kept] == [b"first", b"secon"]


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


def test_of_many_processes_that_find_the_damage_one_keeps_it_aside_and_no_intent_is_lost(path: Path) -> None:
    path.write_bytes(b"garbage\n" * 1000)
    processes = [child(OPEN_AND_INTEND, path, f"t{i}") for i in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.stdout.readline().strip() for process in processes if process.stdout]
    for process in processes:
        _, errors = process.communicate("end\n", timeout=60)
        assert process.returncode == 0, errors
    assert sorted(p.name for p in Ledger(path).live_pools()) == ["t0", "t1", "t2", "t3"]
    (aside,) = [word for word in said if word != "-"]
    assert Path(aside).read_bytes() == b"garbage\n" * 1000


# -- out of reach ------------------------------------------------------------------------------------------------


def test_a_folder_in_its_place_is_a_clear_error(path: Path) -> None:
    path.mkdir()
    with pytest.raises(LedgerError, match="cannot be opened: unable to open database file"):
        Ledger(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no small disk could be mounted: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # ledgers are closed after this


def test_a_full_disk_is_a_clear_error_and_damages_nothing(small_disk: Path) -> None:
    path = small_disk / "ledger.db"
    ledger = Ledger(path)
    ledger.record_intent("t1", "fit", LOCAL, SPEC)
    kept = 0
    with pytest.raises(LedgerError, match=r"cannot be written: .*room"):
        for number in range(2000):
            record_runs(ledger, opened=[("t1", f"r{number}", "train" * 100, "broadcast", 2, float(number))])
            kept += 1
    assert kept > 10
    assert len(ledger.runs("t1")) == kept, "what was there can still be read"
    with pytest.raises(LedgerError):
        ledger.record_intent("t2", "more" * 5000, LOCAL, SPEC)
    ledger.close()
    again = Ledger(path)
    assert again.damaged_copy is None
    assert again._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert len(again.runs("t1")) == kept
    assert [p.token for p in again.live_pools()] == ["t1"]


def test_no_room_for_a_new_ledger_is_a_clear_error(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 396 * 1024)
    with pytest.raises(LedgerError, match=r"cannot be opened: .*room"):
        Ledger(small_disk / "ledger.db")
    (small_disk / "filler").unlink()
    Ledger(small_disk / "ledger.db").close()
