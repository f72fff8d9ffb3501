"""Dask, Ray and shared state between hosts: lost power, killed clients, and no leftovers on hosts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.plugins.built_in.dask import Dask
from skyward_core.plugins.built_in.mpi import Mpi
from skyward_core.plugins.built_in.shared_collections import PROGRAMS, Shared

from . import Host, Lab
from .pools import Client, less_patience, nothing_runs, pool, ssh, until

LOST = 1  # the worker's host


def beside(lab: Lab) -> sky.SSH:
    """Provider of the first two hosts with an interpreter that has the frameworks, because hosts reach no package
    index.
    """
    return ssh(lab, lab.hosts[:2], python=sys.executable)


@pytest.mark.proof("5 s of a processor")
def test_dask_is_reached_through_ssh_and_listens_on_private_addresses(lab: Lab) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    plugins = [sky.plugins.dask(dashboard=False)]
    with pool(lab, beside(lab), plugins=plugins) as compute:
        assert compute.dask.scheduler.address.startswith("tls://127.0.0.1:")  # the tunnel's end
        places = {line.split()[3].rpartition(":") for line in lab.hosts[0].run("ss -H -tln").splitlines()}
        assert {place for place, _, port in places if port != "22"} <= {lab.hosts[0].address, "127.0.0.1"}
        assert len(compute.dask.run(abs, -1)) == 2
    nothing_runs(lab)


@sky.function
def adds() -> int:
    return sky.counter("seen").increment()


@pytest.mark.proof("2 s of a processor")
def test_shared_state_of_hosts_refuses_other_users_and_is_removed(lab: Lab) -> None:
    missing_server()
    hosts = lab.hosts[:2]
    with pool(lab, beside(lab), plugins=[sky.plugins.shared()]) as compute:
        assert sorted(adds() @ compute) == [1, 2]
        assert compute.shared.counter("seen").value == 2  # through the pool's own SSH connection
        (plugin,) = (each for each in compute.plugins if isinstance(each, Shared))
        port = plugin.port_of(compute.name)
        listens = [line.split()[3] for line in hosts[0].run("ss -H -tln").splitlines()]
        assert f"{hosts[0].address}:{port}" in listens and not hosts[LOST].run(f"ss -H -tln sport = :{port}")
        assert plugin.token not in hosts[0].run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert hosts[0].run("find /tmp/sky-shared-* -type f") == ""  # the certificates' key has been read
        plain = f"import socket; s = socket.create_connection(('{hosts[0].address}', {port})); s.settimeout(9); "
        asks = "s.sendall(b'GET counter:seen\\r\\n'); print(s.recv(99))"
        assert "counter" not in (output := hosts[LOST].run(f'{sys.executable} -c "{plain}{asks}" 2>&1 || true'))
        assert output.startswith("b''") or "Reset" in output or "\\x15" in output  # TLS only
    assert hosts[0].run("ls -d /tmp/sky-shared-* 2>/dev/null || true") == ""
    nothing_runs(lab)


def missing_server() -> None:
    """Skip the test if this machine has no server for shared state."""
    pytest.importorskip("redis", reason="the package redis is not installed")
    if not any(shutil.which(f"/usr/bin/{name}") for name in PROGRAMS):
        pytest.skip("neither valkey-server nor redis-server is installed")


@sky.function  # by value: a host has no module of tests
def spread() -> list[str]:
    """Return the hosts on which tasks of Ray ran."""
    import socket

    import ray

    ray.init(log_to_driver=False)

    @ray.remote(num_cpus=0.01, scheduling_strategy="SPREAD")
    def host(number: int) -> str:
        return socket.gethostname()

    found = set(ray.get([host.remote(number) for number in range(16)]))
    ray.shutdown()
    return sorted(found)


@sky.function
def goes_on(ready: str) -> int:
    """Run tasks that the head finishes after the other host is lost."""
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


@sky.function
def host_name() -> str:
    import socket

    return socket.gethostname()


@pytest.mark.proof("ray")
@pytest.mark.timeout(300)
def test_ray_continues_after_a_worker_host_loses_power(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    less_patience(monkeypatch)
    hosts = lab.hosts[:2]
    plugins, options = [sky.plugins.ray(dashboard=False)], {"lost_after": 2.0, "grace": 15.0}
    with pool(lab, beside(lab), plugins=plugins, options=options) as compute:
        until(lambda: len(spread() >> compute) == 2, "both hosts in one cluster")
        # The next call is for the head.
        until(lambda: host_name() >> compute == hosts[LOST].name, "the other node's turn")
        driver = goes_on("under way") > compute
        log = compute.pool.view.logs.rank(0)
        until(lambda: "under way" in log.lines(0, 99), "the driver's start")
        hosts[LOST].power_off()
        try:
            assert driver.result(200) == sum(range(40))
            until(lambda: f"node {LOST} is lost" in compute.pool.view.detail, "word of the node's loss")
        finally:
            hosts[LOST].power_on()
    nothing_runs(lab)


# What is left of engines on hosts when their pool ends, whoever ends it: nothing.


POOL = "engines"


@dataclass(frozen=True)
class Engine:
    """Properties by which a running framework is detected.

    Attributes:
        made: Expression that creates its plugin in a script.
        port: Port where it listens on the pool's nodes.
        nodes: Which of the two nodes listen.
        needs: Package that must be installed here, or "" if it is.
    """

    made: str
    port: Callable[[], int]
    nodes: tuple[int, ...]
    needs: Callable[[], str]


def _package(name: str) -> str:
    return "" if find_spec(name) else f"the package {name}"


def _server() -> str:
    return _package("redis") or ("" if any(shutil.which(f"/usr/bin/{name}") for name in PROGRAMS) else "a server")


def _port(plugin: type[Any], **wishes: Any) -> Callable[[], int]:
    return lambda: int(plugin(**wishes).port_of(POOL))


ENGINES = {
    "shared": Engine("shared()", _port(Shared), (0,), _server),
    "dask": Engine("dask(dashboard=False)", _port(Dask), (0,), lambda: _package("distributed")),
    "mpi": Engine('mpi(launcher="")', _port(Mpi), (0, 1), lambda: ""),
    "ray": Engine("ray(dashboard=False, port=23456)", lambda: 23456, (0,), lambda: _package("ray")),
}
HEAVY = ("dask", "ray")  # seconds of a processor to load: as proofs
SCRIPT = """
import dataclasses, os, sys
ssh = dataclasses.replace(ssh, python=sys.executable)
options = sky.Options(**quiet | {{"grace": 15.0}}, idle_timeout=1)
plugins = [{plugins}]
with sky.Compute(provider=ssh, plugins=plugins, options=options, name="{pool}") as compute:
    # Something that a node has started on another, and that would go on by itself.
    sky.shell("test $SKYPILOT_NODE_RANK != 0 || ssh node1 'sleep 4321 >/dev/null 2>&1 &'") @ compute
    print("under way", flush=True)
    while not os.path.exists("go on"):
        time.sleep(0.02)
"""


def listens(host: Host, port: int) -> bool:
    return bool(host.run(f"ss -H -tln sport = :{port}").strip())


def folders(host: Host) -> str:
    return host.run("ls -d /tmp/sky-* 2>/dev/null; find /run/home /var/tmp -name between-nodes; true")


@pytest.mark.proof("4 s of a processor", after=1)
@pytest.mark.parametrize("client_dies", [True, False], ids=["client killed", "torn down"])
def test_engines_leave_nothing_after_teardown_or_client_death(lab: Lab, client_dies: bool, proofs: bool) -> None:
    here = {name: each for name, each in ENGINES.items() if not each.needs() and (proofs or name not in HEAVY)}
    for name, each in ENGINES.items():
        if lacks := each.needs():
            print(f"without {name}: {lacks} is not installed")
    hosts = lab.hosts[:2]
    plugins = ", ".join(f"sky.plugins.{each.made}" for each in here.values())
    text = SCRIPT.format(plugins=plugins, pool=POOL)
    with Client(lab, text, hosts=hosts) as client:
        assert client.read_line() == "under way"
        for name, each in here.items():
            found = [node for node, host in enumerate(hosts) if listens(host, each.port())]
            assert found == list(each.nodes), name
        assert folders(hosts[0]) and "sleep 4321" in hosts[1].processes().values()
        if client_dies:
            client.kill()
        else:
            Path("go on").touch()
            assert client.process.wait() == 0
        nothing_runs(lab)
    for host in hosts:
        for each in here.values():
            until(lambda: not listens(host, each.port()), f"the end of {each.made}")  # noqa: B023
        assert folders(host) == ""
