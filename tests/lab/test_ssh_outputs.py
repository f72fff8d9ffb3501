"""What a rank wrote comes home whole although the cable is pulled, and its agent killed, half way."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.pool.agent_link import Link
from skyward_core.pool.blob_distribution import DirectConnections
from skyward_core.store.ledger import Ledger
from skyward_core.transport.file_and_result_downloads import PARTS, IncomingOutput
from tests.support.sessions import new_session

from . import Lab
from .pools import DEADLINE, Client, agents, nothing_runs, pool, ssh, until

SIZE = 30_000_000
RATE = 200  # Mbit/s, so that there is a half way


@sky.function
def write(seed: int) -> None:
    Path("model.pt").write_bytes(random.Random(seed).randbytes(SIZE))


def begun_in(folder: Path) -> bool:
    return any(part.stat().st_size > SIZE // 10 for part in (folder / PARTS).glob("*"))


def test_a_checkpoint_comes_home_over_cuts(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[tuple[str, int]] = []

    def noted(way: Any, method: str, name: str) -> None:
        take = getattr(way, method)

        async def noting(self: object, *given: object) -> object:
            ways.append((name, next(each for each in given if isinstance(each, IncomingOutput)).at))
            return await take(self, *given)

        monkeypatch.setattr(way, method, noting)

    noted(DirectConnections, "download_output", "direct")
    noted(Link, "fetch_output", "ssh")

    def cable() -> None:
        lab.client.unplug()
        until(lambda: len(ways) > 1, "the line for files to be given up")
        lab.client.plug()

    def agent() -> None:
        for pid in agents(lab.hosts[0]):
            os.kill(pid, signal.SIGKILL)

    project = tmp_path / "project"
    project.mkdir()
    image = sky.Image(workdir=project)
    with pool(lab, ssh(lab, lab.hosts[:1]), image=image) as compute, ThreadPoolExecutor(1) as beside:
        cuts: list[Callable[[], None]] = [cable, agent]
        for seed, cut in enumerate(cuts):
            write(seed) >> compute
            target, begun = tmp_path / str(seed), len(ways)
            lab.client.limit_rate(RATE)
            try:
                coming = beside.submit(compute.fetch, "model.pt", to=target)
                until(lambda: coming.done() or begun_in(target), "a part")  # noqa: B023
                assert not coming.done(), coming.exception()
                cut()
            finally:
                lab.client.limit_rate(None)
            assert coming.result(DEADLINE) == [target / "model.pt"]
            assert (target / "model.pt").read_bytes() == random.Random(seed).randbytes(SIZE)
            assert len(ways) - begun > 1 and ways[begun][1] == 0 and ways[-1][1] > SIZE // 20, ways[begun:]
    assert compute.receipt is not None and compute.receipt.ok and not compute.receipt.notes


# A pool on real hosts ends by its lease before anybody has fetched what a run gave: the hosts keep that.


LARGE_RESULT = 300_000  # bytes of a result: more than travels in a frame


def test_what_nobody_has_fetched_stays_on_its_hosts_until_somebody_does(pair: Lab) -> None:
    with Client(
        pair,
        f"""
        @sky.function
        def work():
            rank = sky.instance_info().rank
            print("begun by rank", rank, flush=True)
            time.sleep(1)
            print("done by rank", rank, flush=True)
            return rank, bytes({LARGE_RESULT})

        options = sky.Options(**quiet, idle_timeout=1.0)
        with sky.Compute(provider=ssh, name="left", options=options) as compute:
            threading.Thread(target=lambda: work() @ compute, daemon=True).start()
            while len(compute.pool.archive.cursors) < len(compute.pool.links):
                time.sleep(0.01)
            print("begun", flush=True)
            time.sleep(600)
        """,
    ) as client:
        assert client.said() == "begun"
    row = Ledger().find_pool("left")
    assert row is not None
    (run,) = (found.run for found in Ledger().runs(row.token))
    nodes = len(pair.hosts)
    with new_session() as session:

        def ended() -> bool:
            (view,) = session.refresh().result(60)
            return not view.is_live

        until(ended, "the pool's end by its lease")
        kept = session.retained_results()
        assert [each.machine.node for each in kept] == list(range(nodes))
        assert all(each.runs[run] >= LARGE_RESULT and each.size >= LARGE_RESULT for each in kept)
        nothing_runs(pair)
        assert sky.results(run) == [(rank, bytes(LARGE_RESULT)) for rank in range(nodes)]
        assert session.retained_results() == []
    nothing_runs(pair)
    found = Ledger().pool(row.token)
    assert found.receipt is not None and found.receipt["kept"] == []
