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
from skyward_core.transport.file_and_result_downloads import PARTS, IncomingOutput

from . import Lab
from .pools import DEADLINE, agents, pool, ssh, until

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
