"""Dask and Ray between hosts: a worker's host loses its power, the client dies; nothing is left on any host."""

from __future__ import annotations

import sys

import pytest

import skyward_core as sky

from . import Lab
from .pools import Client, less_patience, nothing_runs, pool, ssh, until

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


@pytest.mark.parametrize("ends", ["by its caller's death"])
def test_nothing_is_left_of_dask_when_its_client_dies(lab: Lab, ends: str) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    text = f"""
    ssh = sky.SSH(**(dict(ssh.to_json()) | dict(python={sys.executable!r})))
    """
    text = """
    import dataclasses
    from tests.lab.test_engines import counted
    options = sky.Options(**quiet, idle_timeout=3)
    with sky.Compute(provider=ssh, plugins=[sky.plugins.dask()], options=options, name="orphan") as compute:
        for number in compute.map(counted, range(1_000_000)):
            if number == 50:
                print("under way", flush=True)
    """
    with Client(lab, text, hosts=lab.hosts[:2]) as client:
        assert client.said() == "under way"
        assert any("worker" in line for line in lab.hosts[LOST].processes().values())
        client.kill()
        nothing_runs(lab)  # its ranks find out that nobody gives them work, and then the lease ends
