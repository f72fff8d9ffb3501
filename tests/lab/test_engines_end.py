"""What is left of engines on hosts when their pool ends, whoever ends it: nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from skyward_core.plugins.built_in.dask import Dask
from skyward_core.plugins.built_in.mpi import Mpi
from skyward_core.plugins.built_in.shared_collections import PROGRAMS, Shared

from . import Host, Lab
from .pools import Client, nothing_runs, until

POOL = "engines"


@dataclass(frozen=True)
class Engine:
    """What shows that one is there.

    Attributes:
        made: how a script has it.
        port: where it listens, on the pool's nodes.
        nodes: on which of two.
        needs: what must be installed here, or "" where it is.
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
@pytest.mark.parametrize("client_dies", [True, False], ids=["its client dies", "torn down"])
def test_nothing_is_left_of_any_engine(lab: Lab, client_dies: bool, proofs: bool) -> None:
    here = {name: each for name, each in ENGINES.items() if not each.needs() and (proofs or name not in HEAVY)}
    for name, each in ENGINES.items():
        if lacks := each.needs():
            print(f"without {name}: {lacks} is not installed")
    hosts = lab.hosts[:2]
    plugins = ", ".join(f"sky.plugins.{each.made}" for each in here.values())
    text = SCRIPT.format(plugins=plugins, pool=POOL)
    with Client(lab, text, hosts=hosts) as client:
        assert client.said() == "under way"
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
