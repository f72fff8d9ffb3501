"""The client's own disk and ledger: full for a moment, or in another process's hands."""

from __future__ import annotations

import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from tests.support.waiting import wait_until

LIMIT = 1 << 20  # bytes; the ledger stays below it


@sky.function
def chatter(lines: int) -> None:
    for number in range(lines):
        print(f"{number:09d}", "x" * 89)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow beyond the limit; the nodes, which run already, are not concerned."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_logs_that_a_full_disk_did_not_take_are_fetched_again(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        spool = Path(compute.pool.context.machines[0].extra["folder"], "spool", "r000.out")
        kept = compute.pool.archive.logs / "r000.out"
        with full_disk():
            chatter(20_000) >> compute
            wait_until(lambda: compute.pool.news.log_receiver.shown.get("r000.out") == 2_000_000, what="all lines")
            assert kept.stat().st_size <= LIMIT
        chatter(10) >> compute
        wait_until(lambda: kept.stat().st_size == 2_001_000, what="the rest of the log")
        assert kept.read_bytes() == spool.read_bytes()
    assert compute.receipt is not None
    assert compute.receipt.notes == ()


def test_logs_that_a_full_disk_never_takes_are_named_in_the_receipt(home: Path) -> None:
    with ExitStack() as disk, sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        disk.enter_context(full_disk())
        chatter(20_000) >> compute
        kept = compute.pool.archive.logs / "r000.out"
    assert compute.receipt is not None
    missing = 2_000_000 - kept.stat().st_size
    said = f"{missing} bytes of the logs of node 0 could not be written to {kept.parent}"
    assert compute.receipt.notes == (said,)
    assert b"\0" not in kept.read_bytes()


def test_a_locked_ledger_keeps_no_run_waiting(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        chatter(1) >> compute
        other = sqlite3.connect(home / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        chatter(1) >> compute
        wait_until(lambda: compute.pool.news.records._failing_since is not None, what="a try to write it down")
        for _ in range(4):
            chatter(1) >> compute
        waited = time.monotonic() - began
        other.execute("ROLLBACK")
        other.close()
        assert waited < 9, "one wait for the ledger takes ten seconds"
        token = compute.pool.row.token
        wait_until(lambda: [run.state for run in Ledger().runs(token)] == ["done"] * 6, what="what was put off")
