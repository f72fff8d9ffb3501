"""Random faults on a local pool; ``--chaos-seconds`` and ``--chaos-seed`` change duration and seed."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

import skyward_core as sky
from tests.chaos.beside import Another
from tests.chaos.storm import Storm
from tests.support.processes import descendants, exists
from tests.support.waiting import wait_until


class Here:
    """Processes of a pool on this machine."""

    def __init__(self, compute: sky.Compute) -> None:
        self._compute = compute

    def agents(self) -> dict[int, int]:
        pids = {link.node: link.welcome["pid"] for link in self._compute.pool.links if link.up}
        return {node: pid for node, pid in pids.items() if exists(pid)}


def descriptors() -> list[str]:
    """Return the open file descriptors of this process."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found.append(str(path.readlink()))
    return sorted(found)


def test_random_faults_leave_results_correct_and_no_resources(
    home: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    seed, seconds = (request.config.getoption(f"--chaos-{name}") for name in ("seed", "seconds"))
    options = sky.Options(console=False, grace=1.0)
    with sky.Compute(nodes=1, name="before", options=options):
        pass  # the loop of all pools stays after it, and the process that forks agents (support/forked.py)
    gc.collect()
    before = Counter(descriptors())
    with sky.Compute(nodes=3, name="storm", options=options) as compute, closing(Another("storm")) as client:
        storm = Storm(compute, Here(compute).agents, client, seed, seconds)
        storm.run()
        agents = Here(compute).agents().values()
        pids = [pid for agent in agents for pid in (agent, *descendants(agent))]
    storm.account()
    gc.collect()
    storm.judge()
    assert not [pid for pid in pids if exists(pid)]
    # Its own Compute still exists here: it must not keep the ledger open.
    wait_until(
        lambda: not Counter(descriptors()) - before, what=lambda: f"the end of {Counter(descriptors()) - before}"
    )
    assert "never retrieved" not in caplog.text
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if not line.startswith("pool storm: created 3, verified gone 3")] == []
