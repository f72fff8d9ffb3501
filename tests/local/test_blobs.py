"""Limits for large argument blobs on nodes."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.pool import blob_distribution
from tests.support.task_places import pool_rank
from tests.support.waiting import wait_until

SIZE = 200_000


@sky.function
def size(data: bytes) -> int:
    return len(data)


@sky.function
def wait(data: bytes, folder: str) -> int:
    rank = pool_rank()
    Path(folder, f"begun-{rank}").touch()
    Path(folder, f"gate-{rank}").read_bytes()
    return len(data)


@pytest.fixture(autouse=True)
def small_blob_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_distribution, "MAX_UNUSED_BYTES", 2 * SIZE + 10_000)


def pool(name: str) -> sky.Compute:
    return sky.Compute(provider=sky.Local(), nodes=2, name=name, options=sky.Options(console=False))


def node_count_by_blob(home: Path) -> Counter[str]:
    """Return the number of nodes that have each blob."""
    return Counter(path.name for path in home.glob("local/**/blobs/*"))


def test_old_argument_blobs_are_removed_and_latest_kept(home: Path) -> None:
    seen: list[str] = []
    with pool("room") as compute:
        for _ in range(5):
            assert size(os.urandom(SIZE)) @ compute == [SIZE, SIZE]
            seen += [name for name in node_count_by_blob(home) if name not in seen]
        wait_until(lambda: node_count_by_blob(home) == Counter({name: 2 for name in seen[-2:]}), what="room")
        assert len(seen) == 5


def test_blob_larger_than_the_limit_is_kept_while_it_is_the_latest(home: Path) -> None:
    large = os.urandom(5 * SIZE)
    with pool("large") as compute:
        assert size(large) @ compute == [5 * SIZE] * 2
        (name,) = node_count_by_blob(home)
        made = {path: path.stat().st_ino for path in home.glob("local/**/blobs/*")}
        assert size(large) @ compute == [5 * SIZE] * 2
        assert {path: path.stat().st_ino for path in home.glob("local/**/blobs/*")} == made  # not brought again
        assert size(os.urandom(SIZE)) @ compute == [SIZE] * 2
        wait_until(lambda: name not in node_count_by_blob(home), what="its end")
        assert size(large) @ compute == [5 * SIZE] * 2  # brought again


def test_blob_needed_by_a_queued_or_running_call_is_kept(home: Path, tmp_path: Path) -> None:
    gates = [tmp_path / "gate-0", tmp_path / "gate-1"]
    for gate in gates:
        os.mkfifo(gate)
    needed = os.urandom(3 * SIZE)
    with pool("needed") as compute:
        held = [wait(needed, str(tmp_path)) > compute for _ in range(2)]  # one on each node
        more = [size(needed + bytes([i])) > compute for i in range(4)]  # these queue up behind them
        wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, what="the runs")
        for gate in gates:
            gate.write_bytes(b"")
        assert [run.result(60) for run in held] == [3 * SIZE] * 2
        assert [run.result(60) for run in more] == [3 * SIZE + 1] * 4


def test_no_blob_is_removed_while_another_client_is_connected(home: Path) -> None:
    with pool("shared") as compute:
        other = sky.attach("shared")
        try:
            for _ in range(4):
                assert size(os.urandom(SIZE)) @ compute == [SIZE, SIZE]
            assert size(os.urandom(SIZE)) @ other == [SIZE, SIZE]
            assert len(node_count_by_blob(home)) == 5
        finally:
            other.detach()
        assert size(os.urandom(SIZE)) @ compute == [SIZE, SIZE]


def test_concurrent_threads_can_use_the_same_blobs(home: Path) -> None:
    data = [os.urandom(SIZE + i) for i in range(4)]
    wrong: list[object] = []

    def use(first: int) -> None:
        for number in range(12):
            value = data[(first + number) % 4]
            try:
                found = size(value) @ compute
            except Exception as error:  # noqa: BLE001  any failure is what the test looks for
                wrong.append(error)
                return
            if found != [len(value)] * 2:
                wrong.append(found)

    with pool("threads") as compute:
        threads = [threading.Thread(target=use, args=(first,)) for first in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not wrong
