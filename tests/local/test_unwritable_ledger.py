"""A ledger that cannot be written when a pool is left: what exists is ended all the same, and both is said."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.pool import teardown
from skyward_core.store import ledger
from skyward_core.store.ledger import Ledger
from tests.support.faults import agent_pids, worker_pids
from tests.support.full_disk import fill
from tests.support.processes import exists

Break = Callable[[], Callable[[], None]]  # breaks the ledger, and gives what mends it


@pytest.fixture(params=["locked", "full"])
def fault(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Break]:
    monkeypatch.setattr(ledger, "LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(teardown, "WRITE", 0.3)
    with ExitStack() as stack:
        if request.param == "full":
            if os.geteuid() != 0:
                pytest.skip("making a small disk needs root")
            home.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(home)], check=True)
            stack.callback(subprocess.run, ["umount", "-l", str(home)], check=True)
            for name in ("local", "pools"):  # elsewhere: the nodes' end would make room for the ledger
                home.with_name(name).mkdir()
                (home / name).symlink_to(home.with_name(name))
            yield lambda: fill(home / "full")
        else:
            yield lambda: lock(home / "ledger.db")


def lock(path: Path) -> Callable[[], None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other.close


def test_what_exists_is_ended_first_and_written_down_when_that_works(fault: Break) -> None:
    with pytest.raises(sky.TeardownError) as caught, sky.Compute(nodes=2, name="unwritten") as compute:
        pids = agent_pids(compute) + worker_pids(compute)
        mend = fault()
    assert pids
    assert not any(exists(pid) for pid in pids)
    assert "created 2, verified gone 2, unaccounted 0; not written down: the ledger" in str(caught.value)
    mend()
    assert [row.name for row in Ledger().live_pools()] == ["unwritten"]
    with closing(_Looking()) as session:
        assert not any(pool.is_live for pool in session.refresh().result(60))
    assert Ledger().live_pools() == []


def test_what_left_the_block_goes_on_beside_what_could_not_be_written(
    fault: Break, capfd: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        with pytest.raises(ZeroDivisionError), sky.Compute(nodes=1, name="both") as compute:
            pids = agent_pids(compute)
            stack.callback(fault())
            raise ZeroDivisionError
        assert not any(exists(pid) for pid in pids)
        assert "not written down: the ledger" in capfd.readouterr().err


class _Looking(Session):
    def close(self) -> None:
        self.detach()
