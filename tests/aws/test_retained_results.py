"""Retained results are fetched, or named, before their machines are terminated."""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.store.ledger import Ledger
from skyward_core.tasks.function_pickling import make_task
from tests.aws import Bed
from tests.aws.killed import killed_at
from tests.aws.pools import left, rented
from tests.lab.tools import wait_until

SIZE = 300_000  # bytes of a result: more than travels in a frame


@sky.function
def work(host: str, port: int) -> tuple[int, bytes]:
    rank = sky.instance_info().rank
    with suppress(OSError):
        socket.create_connection((host, port)).recv(1)  # until the test lets go
    print("done by rank", rank, flush=True)
    return rank, bytes(SIZE)


@pytest.fixture
def run(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run that has ended on the two machines of the pool "left", after its client had detached."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    for name, text in bed.environment().items():
        monkeypatch.setenv(name, text)
    gate = socket.create_server((bed.client_address(), 0))
    options = sky.Options(console=False, grace=0.5)
    provider = rented(ssh_from=f"{bed.client_address()}/32")
    with session() as first:
        first.create(sky.PoolSpec(name="left", provider=provider, nodes=2, options=options)).result(90)
        begun = first.launch("left", make_task(work(*gate.getsockname()))).result(60)
        ranks = [gate.accept()[0] for _ in range(2)]
    for each in (*ranks, gate):
        each.close()
    with session() as looks:
        view = looks.observe("left").result(60)
        wait_until(lambda: view.unfetched.get(begun.id, 0) >= 2 * SIZE, "both results wait")
    return begun.id


class session:
    """Client that lives as long as the block."""

    def __enter__(self) -> Session:
        self._session = Session()
        return self._session

    def __exit__(self, *_: object) -> None:
        self._session.detach()


def logged(run: str) -> set[str]:
    """Return the ranks' log lines that are on this machine."""
    with closing(Ledger()) as ledger:
        row = ledger.run(run)
        assert row is not None
        logs = Path(ledger.path).parent / "pools" / ledger.pool(row.token).key / "logs"
    return {line for path in logs.glob("*.out") for line in path.read_text().splitlines()}


@pytest.mark.proof("4 s of a processor")
def test_teardown_fetches_results_and_logs_of_a_killed_client(bed: Bed, run: str, tmp_path: Path) -> None:
    killed_at("fetching", bed, tmp_path)  # the next one goes on
    assert len(bed.instances("running")) == 2
    with session() as next_one:
        receipt = next_one.tear_down("left").result(90)
    assert receipt.ok and receipt.lost == () and receipt.retained == ()
    assert sum(run in note and note.startswith("fetched") for note in receipt.notes) == 2
    assert sky.results(run) == [(rank, bytes(SIZE)) for rank in range(2)]
    with closing(Ledger()) as ledger:
        row = ledger.run(run)
    assert row is not None and row.state == "done"
    assert logged(run) == {"done by rank 0", "done by rank 1"}
    assert left(bed) == []
