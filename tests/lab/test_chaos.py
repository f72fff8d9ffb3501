"""Random faults between real hosts, including pulled cables."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import closing
from random import Random

import cloudpickle
import pytest

from tests.chaos import work
from tests.chaos.beside import Another
from tests.chaos.storm import Storm

from . import Lab
from .pools import agents, nothing_runs, pool


@pytest.fixture(autouse=True)
def travels() -> Iterator[None]:
    """Send these functions by value, because hosts do not have this module."""
    cloudpickle.register_pickle_by_value(work)
    yield
    cloudpickle.unregister_pickle_by_value(work)


@pytest.mark.proof("4 s of a processor")
def test_ssh_pool_survives_random_faults(
    lab: Lab, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    seed, seconds = (request.config.getoption(f"--chaos-{name}") for name in ("seed", "seconds"))

    def found() -> dict[int, int]:
        return {node: pids[0] for node, host in enumerate(lab.hosts) if (pids := agents(host))}

    def pull_clients_cable(random: Random) -> bool:
        lab.client.unplug()
        time.sleep(random.uniform(0.1, 1.5))
        lab.client.plug()
        return True

    def pull_a_hosts_cable(random: Random) -> bool:
        host = random.choice(lab.hosts)
        host.unplug()
        time.sleep(random.uniform(0.1, 1.5))
        host.plug()
        return True

    with pool(lab, name="storm") as compute, closing(Another("storm")) as client:
        storm = Storm(compute, found, client, seed, seconds, [pull_clients_cable, pull_a_hosts_cable])
        storm.run()
    storm.account()
    gc.collect()
    storm.judge()
    nothing_runs(lab)
    assert "never retrieved" not in caplog.text
