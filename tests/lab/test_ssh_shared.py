"""Shared hosts: users of GPUs, and pools that take unused GPUs only."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model.errors import NoCapacity
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.ssh.free_gpu_choice import HostGpuUsage
from tests.support.fake_driver import needs_compiler

from . import Host, Lab
from .gpu_host import gpu_host, measure, put_driver, user_process
from .pools import Client, agents, nothing_runs, pool, ssh, until

pytestmark = needs_compiler

LOCK = """
import socket, sys, time
lock = socket.socket(socket.AF_UNIX)
lock.bind("\\0skyward-gpu-" + sys.argv[1])
lock.listen()
time.sleep(600)
"""


@pytest.fixture(scope="module")
def made(can_lab: None) -> Iterator[Lab]:
    with Lab(2, gpu_host("www")) as lab:
        for host in lab.hosts:
            put_driver(host)
        yield lab


@pytest.fixture
def shared(made: Lab) -> Iterator[Lab]:
    """Two hosts with three GPUs each, all free."""
    yield made
    for host in made.hosts:
        measure(host)
    made.heal()


@sky.function
def seen() -> tuple[int, str]:
    return sky.instance_info().node, os.environ["CUDA_VISIBLE_DEVICES"]


def look(lab: Lab) -> dict[str, HostGpuUsage]:
    provider = ssh(lab)
    return {host: asyncio.run(provider.look_at(host)) for host in provider.hosts}


def files(host: Host) -> set[str]:
    """Return the files of this software on a host."""
    return {str(path.relative_to(host.home)) for path in host.home.rglob("*") if path.is_file()}


def test_gpu_scan_names_users_of_gpus_and_leaves_no_files(shared: Lab) -> None:
    first, second = shared.hosts
    user = user_process(first)
    measure(first, f"used=4096 util=93 pids={user}:4000,99999:96", "draws=1:20 used=20", "used=2048")
    before = files(first)
    scan = look(shared)
    assert files(first) == before
    busy, display, full = scan[first.address].gpus
    assert str(busy) == (
        "GPU 0 (NVIDIA H100 80GB HBM3) is used by nobody (sleep, 4.2 GB) and unknown user (process 99999, 0.1 GB)"
    )
    assert (busy.util, busy.used, busy.total) == (93, 4 << 30, 80 << 30)
    assert display.is_free
    assert full.state == "used: 2.1 GB of memory, by unknown processes"
    assert all(each.is_free for each in scan[second.address].gpus)


def test_pool_with_free_gpus_uses_only_unused_ones(shared: Lab) -> None:
    first, second = shared.hosts
    user = user_process(first)
    measure(first, f"pids={user}:4000")
    free = ssh(shared, gpus="free")
    with pool(shared, free, name="mine") as compute:
        # Two are free on the first host, so each takes two.
        taken = [(0, "GPU-1"), (0, "GPU-2"), (1, "GPU-0"), (1, "GPU-1")]
        assert seen() @ compute == taken
        scan = look(shared)
        assert [each.state for each in scan[first.address].gpus] == [
            "used by nobody (sleep, 4.2 GB)", "taken by pool mine of root", "taken by pool mine of root",
        ]  # fmt: skip
        with pytest.raises(NoCapacity) as error, pool(shared, free, name="late"):
            pass
        assert str(error.value).startswith("2 nodes with 1 free GPU each are needed, and only 1 of 2 hosts has them: ")
        assert f"{first.address}: GPU 0 (NVIDIA H100 80GB HBM3) is used by nobody (sleep" in str(error.value)
        with pool(shared, free, name="other", nodes=1) as beside:
            assert seen() @ beside == [(0, "GPU-2")]
    assert all(each.is_free for each in look(shared)[second.address].gpus)


@pytest.mark.proof("1 s of a processor")
def test_user_who_takes_a_gpu_during_the_start_is_named(shared: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = shared.hosts
    alone, user = ssh(shared, [first], gpus="free"), user_process(first)
    looked = sky.SSH._find_free_gpus

    async def then_somebody_comes(self: sky.SSH, spec: PoolSpec) -> object:
        found = await looked(self, spec)
        measure(first, f"pids={user}:4000")
        return found

    monkeypatch.setattr(sky.SSH, "_find_free_gpus", then_somebody_comes)
    with pytest.raises(sky.PoolError, match=r"none is free|only 2 free \(GPU 0 .* is used by nobody \(sleep"):
        pool(shared, alone).__enter__()
    measure(first)
    with pool(shared, alone, worker=sky.Worker(ranks_per_node=2)) as compute:
        assert seen() @ compute == [(0, "GPU-1"), (0, "GPU-2")], "others that are free will do"


@pytest.mark.proof("2 s of a processor")
def test_pool_with_free_gpus_uses_the_requested_number(shared: Lab) -> None:
    free = ssh(shared, gpus="free")
    with pool(shared, free, nodes=1, worker=sky.Worker(ranks_per_node=2)) as compute:
        assert seen() @ compute == [(0, "GPU-0"), (0, "GPU-1")]
        with pool(shared, free, nodes=1, accelerator="H100:2") as other:  # of which the first host has one left
            assert seen() @ other == [(0, "GPU-0"), (0, "GPU-1")]
            assert "taken by pool" in look(shared)[shared.hosts[1].address].gpus[0].state
    with pytest.raises(NoCapacity, match="1 node with 1 free A100 is needed, and no host has them"):
        pool(shared, free, nodes=1, accelerator="A100").__enter__()
    with pytest.raises(sky.UsageError, match="cannot be divided among 2 ranks"):
        pool(shared, free, accelerator="H100:3", worker=sky.Worker(ranks_per_node=2)).__enter__()
    nothing_runs(shared)


def test_other_user_who_holds_a_gpu_lock_is_named(shared: Lab) -> None:
    first, _ = shared.hosts
    alone = ssh(shared, [first], gpus="free")
    script = Path(first.home, "lock.py")
    script.write_text(LOCK)
    first.home.chmod(0o755)
    user_process(first, f"{sys.executable} /run/home/lock.py GPU-1")
    with pool(shared, alone) as compute:
        assert seen() @ compute == [(0, "GPU-0"), (0, "GPU-2")]
    assert "taken by a pool of nobody (process" in look(shared)[first.address].gpus[1].state


RACE = """
@sky.function
def mine():
    import os
    return os.environ["CUDA_VISIBLE_DEVICES"]

free = sky.SSH.from_json(ssh.to_json() | {"gpus": "free"})
try:
    with sky.Compute(provider=free, name=sys.argv[0][-8:-3], options=sky.Options(**quiet)) as compute:
        print("has", ",".join(mine() @ compute), flush=True)
        time.sleep(600)
except sky.PoolError as error:
    print(error, flush=True)
"""


def test_two_concurrent_clients_never_use_the_same_gpu(shared: Lab) -> None:
    """Both clients request all three GPUs: one gets them, and the other fails with the name of the pool."""
    with ExitStack() as clients:
        both = [clients.enter_context(Client(shared, f"import sys\n{RACE}", hosts=shared.hosts[:1])) for _ in "ab"]
        loser, winner = sorted((each.read_line() for each in both), key=lambda line: line.startswith("has"))
    assert winner == "has GPU-0,GPU-1,GPU-2"
    assert "taken by pool " in loser


@pytest.mark.proof("2 s of a processor")
def test_ranks_that_outlive_their_agent_keep_their_gpus(shared: Lab) -> None:
    first, _ = shared.hosts
    alone = ssh(shared, [first], gpus="free")
    with pool(shared, alone, name="cut", worker=sky.Worker(ranks_per_node=2)) as compute:
        assert seen() @ compute == [(0, "GPU-0"), (0, "GPU-1")]
        for pid in agents(first):
            os.kill(pid, signal.SIGKILL)
        taken = [each.holder for each in look(shared)[first.address].gpus]
        assert all(taken[:2]) and not taken[2]
        until(lambda: seen() @ compute == [(0, "GPU-0"), (0, "GPU-1")], "the agent's return")
