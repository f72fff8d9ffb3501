"""What goes by itself, or when asked for, of pools that are over; and what never does."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from skyward_core.model.errors import LedgerError
from skyward_core.model.machines import Machine
from skyward_core.model.outcomes import Outcome
from skyward_core.node.bootstrap.image_environment import MADE_FILE
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt, RetainedResults
from skyward_core.store.pruning import prune_environments, prune_pools, prune_when_due
from skyward_core.store.state_folder import ENVIRONMENTS_FOLDER, PRUNED_FILE, ensure_pool_folder, state_home
from tests.support.ledger_runs import record_runs

DAY = 86400.0


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    return Ledger()


def pool(ledger: Ledger, name: str, days: float | None, *kept: RetainedResults) -> Path:
    """A pool that ended so many days ago (None: that is up), with files of 1,000 bytes."""
    row = ledger.record_intent(f"t-{name}", name, {"provider": "local"}, {})
    folder = ensure_pool_folder(row.key)
    (folder / "log").write_bytes(bytes(1000))
    record_runs(
        ledger,
        opened=[(row.token, f"run-{name}", "f", "single", 1, 0.0)],
        outcomes=[(f"run-{name}", Outcome(0, 0, 0, "returned"), {})],
    )
    if days is not None:
        ledger.record_teardown(row.token, Receipt(name, 0, (), (), 0.0), kept)
        ledger._write([("UPDATE pools SET ended_at=? WHERE token=?", (time.time() - days * DAY, row.token))])
    return folder


def kept(name: str, until: float) -> RetainedResults:
    machine = Machine("h", 0, "h", "", extra={"folder": "f"})
    return RetainedResults(f"t-{name}", machine, {"aa": 1}, 1, until)


def test_old_pools_go_with_their_records_and_others_stay(ledger: Ledger) -> None:
    old, new = pool(ledger, "old", 100), pool(ledger, "new", 10)
    up, waits = pool(ledger, "up", None), pool(ledger, "waits", 200, kept("waits", time.time() + DAY))
    assert [each.pool for each in prune_pools(ledger, only_look=True)] == ["old"]
    assert old.exists()
    assert [(each.pool, each.size) for each in prune_pools(ledger)] == [("old", 1000)]
    assert not old.exists()
    assert all(folder.exists() for folder in (new, up, waits))
    assert (ledger.run("run-old"), ledger.outcomes("run-old"), ledger.find_pool("old")) == (None, [], None)
    assert len(ledger.outcomes("run-new")) == 1
    assert prune_pools(ledger) == []


def test_the_oldest_go_until_the_rest_is_small_enough(ledger: Ledger) -> None:
    folders = [pool(ledger, f"p{days}", days) for days in (4, 3, 2, 1)]
    assert [each.pool for each in prune_pools(ledger, most=2500)] == ["p4", "p3"]
    assert [folder.exists() for folder in folders] == [False, False, True, True]


def test_a_log_with_a_hole_pushes_nobody_out(ledger: Ledger) -> None:
    folders = [pool(ledger, f"p{days}", days) for days in (4, 3)]
    with (folders[1] / "log").open("r+b") as log:  # as a node has it that says where its bytes belong
        log.seek(10**11)
        log.write(b"x")
    assert prune_pools(ledger) == []
    assert prune_pools(ledger, most=10**10) == []
    assert all(folder.exists() for folder in folders)


def test_what_a_host_had_to_keep_no_longer_holds_its_pool(ledger: Ledger) -> None:
    pool(ledger, "late", 100, kept("late", time.time() - 1))
    assert [each.pool for each in prune_pools(ledger)] == ["late"]
    assert ledger.retained_results() == []


def test_it_is_done_once_a_day(ledger: Ledger, tmp_path: Path) -> None:
    folder = pool(ledger, "old", 100)
    prune_when_due(ledger)  # the first time in a home
    prune_when_due(ledger)
    assert folder.exists()
    os.utime(tmp_path / PRUNED_FILE, (time.time() - 2 * DAY,) * 2)
    prune_when_due(ledger)
    assert not folder.exists()


def test_a_ledger_that_cannot_be_used_is_for_the_next_day(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(token: str) -> None:
        raise LedgerError("it is locked")

    folder = pool(ledger, "old", 100)
    (tmp_path / PRUNED_FILE).touch()
    os.utime(tmp_path / PRUNED_FILE, (time.time() - 2 * DAY,) * 2)
    monkeypatch.setattr(ledger, "delete_pool", fail)
    prune_when_due(ledger)
    assert ledger.find_pool("old") is not None
    assert not folder.exists()


def test_a_pool_that_is_up_is_never_forgotten(ledger: Ledger) -> None:
    pool(ledger, "up", None)
    ledger.delete_pool("t-up")
    assert ledger.find_pool("up") is not None
    assert len(ledger.outcomes("run-up")) == 1


def environment(name: str, days: float, *, made: bool = True) -> Path:
    """An environment that was last used so many days ago, of 1,000 bytes and a few."""
    folder = state_home() / ENVIRONMENTS_FOLDER / f"env-{name}"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_bytes(bytes(1000))
    used = folder
    if made:
        used = folder / MADE_FILE
        used.write_text("x")
    os.utime(used, (time.time() - days * DAY,) * 2)
    return folder


def test_environments_that_nobody_has_used_for_long_go(ledger: Ledger) -> None:
    old, new = environment("old", 100), environment("new", 10)
    cut_off, being_made = environment("cut-off", 100, made=False), environment("being-made", 100, made=False)
    with being_made.with_name("env-being-made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [each.folder for each in prune_environments(ledger, only_look=True)] == [
            "env-cut-off",
            "env-old",
        ]
        assert old.exists()
        gone = prune_environments(ledger)
    assert [(each.folder, each.size) for each in gone] == [("env-cut-off", 1000), ("env-old", 1001)]
    assert [folder.exists() for folder in (old, new, cut_off, being_made)] == [False, True, False, True]


def test_an_environment_that_a_pool_may_use_stays_however_long_it_is_up(ledger: Ledger) -> None:
    used = environment("used", 100)
    ledger.record_intent("t-up", "up", {"provider": "local"}, {})
    ledger._write([("UPDATE pools SET created_at=? WHERE token=?", (time.time() - 101 * DAY, "t-up"))])
    assert prune_environments(ledger) == []
    assert used.exists()
    older = environment("older", 102)
    assert [each.folder for each in prune_environments(ledger)] == ["env-older"]
    assert not older.exists()


def test_an_environment_that_lies_elsewhere_by_a_link_is_left_where_it_is(ledger: Ledger, tmp_path: Path) -> None:
    """Who moved it to a larger disk still has it; nothing is told as removed that is not."""
    old = environment("old", 100)
    elsewhere = tmp_path / "elsewhere"
    old.rename(elsewhere)
    old.symlink_to(elsewhere)
    assert prune_environments(ledger) == []
    assert (elsewhere / MADE_FILE).exists() and old.is_symlink()
