"""Dask and Ray between hosts: a worker's host loses its power, the client dies; nothing is left on any host."""

from __future__ import annotations

import sys

import pytest

import skyward_core as sky

from . import Lab
from .pools import Client, less_patience, nothing_runs, pool, rank, ssh, until

LOST = 1  # the worker's host


def beside(lab: Lab) -> sky.SSH:
    """The first two hosts, by the interpreter that has the frameworks: hosts reach no package index."""
    return ssh(lab, lab.hosts[:2], python=sys.executable)


@sky.function
def counted(number: int) -> int:
    import time

    print("counted", number)
    time.sleep(0.01)
    return number


def test_dask_goes_on_when_a_workers_host_loses_power(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    less_patience(monkeypatch)
    hosts = lab.hosts[:2]
    plugins = [sky.plugins.dask()]
    with pool(lab, beside(lab), plugins=plugins, options={"lost_after": 2.0}) as compute:
        assert compute.dask.scheduler.address.startswith("tls://127.0.0.1:")  # the tunnel's end
        places = {line.split()[3].rpartition(":") for line in hosts[0].run("ss -H -tln").splitlines()}
        assert {place for place, _, port in places if port != "22"} <= {hosts[0].address, "127.0.0.1"}
        values = compute.map(counted, range(3000))
        assert [next(values) for _ in range(20)] == list(range(20))
        hosts[LOST].power_off()
        try:
            assert list(values) == list(range(20, 3000))
            (run,) = [each for each in compute.pool.view.runs.values() if each.kind == "map"]
            until(lambda: run.state == "done", "its end")
            assert run.counts == {"returned": 1, "lost": 1} and run.tasks[LOST].state == "lost"
        finally:
            hosts[LOST].power_on()
    nothing_runs(lab)


def test_nothing_is_left_of_dask_when_its_client_dies(lab: Lab) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    text = """
    import dataclasses
    import sys
    from tests.lab.test_engines import counted
    ssh = dataclasses.replace(ssh, python=sys.executable)
    options = sky.Options(**quiet, idle_timeout=3)
    with sky.Compute(provider=ssh, plugins=[sky.plugins.dask()], options=options, name="orphan") as compute:
        for number in compute.map(counted, range(1_000_000)):
            if number == 50:
                print("under way", flush=True)
    """
    with Client(lab, text, hosts=lab.hosts[:2]) as client:
        assert client.said() == "under way"
        assert lab.hosts[LOST].processes()
        client.kill()
        nothing_runs(lab)  # its ranks find out that nobody gives them work, and then the lease ends


def spread() -> list[str]:
    """Hosts on which tasks of Ray ran."""
    import socket

    import ray

    ray.init(log_to_driver=False)

    @ray.remote(num_cpus=0.01, scheduling_strategy="SPREAD")
    def host(number: int) -> str:
        return socket.gethostname()

    found = set(ray.get([host.remote(number) for number in range(16)]))
    ray.shutdown()
    return sorted(found)


def goes_on(ready: str) -> int:
    """Tasks that go on, on the head, when the other host is gone."""
    import time

    import ray

    ray.init(log_to_driver=False)

    @ray.remote(num_cpus=0.01, max_retries=10, scheduling_strategy="SPREAD")
    def slow(number: int) -> int:
        time.sleep(0.5)
        return number

    waiting = [slow.remote(number) for number in range(40)]
    print(ready, flush=True)
    total = sum(ray.get(waiting, timeout=100))
    ray.shutdown()
    return total


@pytest.mark.timeout(300)
def test_ray_goes_on_when_a_workers_host_loses_power(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    less_patience(monkeypatch)
    hosts = lab.hosts[:2]
    plugins, options = [sky.plugins.ray(dashboard=False)], {"lost_after": 2.0, "grace": 15.0}
    # By itself Ray misses a host a minute after its power is gone.
    soon = {"period_ms": "1000", "timeout_ms": "1000", "failure_threshold": "3"}
    image = sky.Image(env={f"RAY_health_check_{name}": value for name, value in soon.items()})
    with pool(lab, beside(lab), plugins=plugins, options=options, image=image) as compute:
        until(lambda: len(sky.function(spread)() >> compute) == 2, "both hosts in one cluster")
        until(lambda: rank() >> compute == LOST, "the other node's turn")  # the next call is for the head
        driver = sky.function(goes_on)("under way") > compute
        log = compute.pool.view.logs.rank(0)
        until(lambda: "under way" in log.lines(0, 99), "the driver's start")
        hosts[LOST].power_off()
        try:
            assert driver.result(200) == sum(range(40))
            until(lambda: f"node {LOST} is gone" in compute.pool.view.detail, "word of the node's loss")
        finally:
            hosts[LOST].power_on()
    nothing_runs(lab)
