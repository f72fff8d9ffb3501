"""Which GPUs of hosts that people share a pool takes, and what is said of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from skyward_core.model.errors import NoCapacity, UsageError
from skyward_core.model.machines import FREE_BELOW, GpuProcess, GpuUse
from skyward_core.model.specs import PoolSpec, Worker
from skyward_core.node import gpu_locks
from skyward_core.providers.pool_planning import make_pool_spec
from skyward_core.providers.ssh.free_gpu_choice import HostGpuUsage, choose_hosts, describe_choice, free_gpus
from skyward_core.providers.ssh.provider import SSH

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"


def gpu(number: int, *, busy: bool = False, holder: str = "", model: str = H100, **more: Any) -> GpuUse:
    process = GpuProcess(7, "bob", "python", 12_000_000_000, True)
    told = {"used": 0, "total": 80 << 30, "util": 0} | more
    return GpuUse(str(number), f"GPU-{number}", model, processes=(process,) if busy else (), holder=holder, **told)


def spec(**asked: Any) -> PoolSpec:
    return make_pool_spec("script", provider=SSH(["a", "b", "c"], gpus="free"), **asked)


def looks(*gpus: list[GpuUse]) -> list[HostGpuUsage]:
    return [HostGpuUsage(host, tuple(found), "", True) for host, found in zip("abc", gpus, strict=False)]


def taken(found: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    return {host: take["of"][: take["count"]] for host, take in found.items()}


FEW = looks([gpu(0, busy=True), gpu(1)], [gpu(0), gpu(1, holder="pool x of bob"), gpu(2)], [gpu(0, busy=True)])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"nodes": 2}, {"a": ["GPU-1"], "b": ["GPU-0"]}),
        ({"nodes": 1}, {"a": ["GPU-1"]}),
        ({"nodes": "1:3"}, {"a": ["GPU-1"], "b": ["GPU-0"]}),
        ({"nodes": 1, "worker": Worker(ranks_per_node=2)}, {"b": ["GPU-0", "GPU-2"]}),
        ({"nodes": 1, "accelerator": "H100:2"}, {"b": ["GPU-0", "GPU-2"]}),
        ({"nodes": 1, "accelerator": "H100:1"}, {"a": ["GPU-1"]}),
    ],
)
def test_hosts_are_taken_in_their_order_by_what_is_free(asked: dict[str, Any], expected: object) -> None:
    assert taken(choose_hosts(FEW, spec(**asked))) == expected


def test_only_of_the_kind_that_is_asked_for() -> None:
    mixed = looks([gpu(0, model=A100, total=40 << 30), gpu(1)])
    assert taken(choose_hosts(mixed, spec(nodes=1, accelerator="A100"))) == {"a": ["GPU-0"]}
    assert taken(choose_hosts(mixed, spec(nodes=1, accelerator="H100"))) == {"a": ["GPU-1"]}
    with pytest.raises(NoCapacity, match="1 node with 1 free A100 is needed"):
        choose_hosts(mixed, spec(nodes=1, accelerator="A100-80GB"))


def test_a_host_in_anothers_place_has_to_have_as_many_of_that_kind() -> None:
    take = {"of": ["GPU-7"], "count": 2, "accelerator": "H100"}
    mixed = [gpu(0, model=A100), gpu(1), gpu(2, busy=True), gpu(3)]
    assert free_gpus(HostGpuUsage("b", mixed, "", True), take) == (["GPU-1", "GPU-3"], "")
    assert free_gpus(HostGpuUsage("b", mixed[:3], "", True), take)[1].startswith("2 free GPUs are needed: b: GPU 0 (")
    assert free_gpus(HostGpuUsage("b", (), "no answer", False), take) == (
        [],
        "2 free GPUs are needed: b: no answer",
    )


def test_where_too_few_are_free_it_is_said_who_has_them() -> None:
    with pytest.raises(NoCapacity) as error:
        choose_hosts([*FEW[:2], HostGpuUsage("c", (), "it does not answer", False)], spec())
    assert str(error.value) == (
        "3 nodes with 1 free GPU each are needed, and only 2 of 3 hosts have that: "
        f"a: GPU 0 ({H100}) is used by bob (python, 12.0 GB), GPU 1 ({H100}) is free; "
        f"b: GPU 0 ({H100}) is free, GPU 1 ({H100}) is taken by pool x of bob, GPU 2 ({H100}) is free; "
        "c: it does not answer"
    )


def test_a_plan_tells_what_is_taken_and_who_has_the_rest() -> None:
    assert describe_choice(FEW, choose_hosts(FEW, spec(nodes="1:3"))) == [
        f"a: takes 1 of 2 GPUs (1: {H100}); GPU 0 ({H100}) is used by bob (python, 12.0 GB)",
        f"b: takes 1 of 3 GPUs (0: {H100}); GPU 1 ({H100}) is taken by pool x of bob",
        f"left out: c: GPU 0 ({H100}) is used by bob (python, 12.0 GB)",
    ]


def test_a_pool_of_free_gpus_has_a_rank_for_each_unless_it_says_how_many() -> None:
    assert spec().worker.ranks_per_node == "gpu"
    assert spec(worker=Worker(ranks_per_node=2)).worker.ranks_per_node == 2
    assert make_pool_spec("script", provider=SSH("a")).worker.ranks_per_node == 1
    with pytest.raises(UsageError, match=r"3 GPUs on each node.* cannot be shared out among 2 ranks"):
        choose_hosts(FEW, spec(accelerator="H100:3", worker=Worker(ranks_per_node=2)))
    with pytest.raises(UsageError, match="gpus='all': choose 'free', or leave it out"):
        SSH("a", gpus="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({}, "free"),
        ({"used": FREE_BELOW - 1}, "free"),
        ({"used": None}, "free"),
        ({"used": 3_000_000_000}, "used: 3.0 GB of its memory, by no process that can be seen from here"),
        ({"holder": "pool x of bob", "busy": True}, "taken by pool x of bob; used by bob (python, 12.0 GB)"),
    ],
)
def test_what_counts_as_free(told: dict[str, Any], state: str) -> None:
    found = gpu(0, **told)
    assert found.state == state and found.is_free == (state == "free")


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "a\nb\x1b[2J", "\u202egnp"])
def test_what_others_call_their_processes_and_pools_reaches_no_terminal(text: str) -> None:
    process = GpuProcess(7, text, text, None, True)
    shown = str(GpuUse(text, "GPU-0", text, 0, 0, 0, (process,), text))
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", shown)


@pytest.fixture
def device() -> Iterator[str]:
    name = "GPU-of-a-test"
    yield name
    gpu_locks.release_gpu(name)


def test_a_lock_is_held_once_and_says_by_whom(device: str) -> None:
    assert gpu_locks.acquire_gpu(device) and gpu_locks.acquire_gpu(device), "what is ours stays so"
    assert device not in gpu_locks.locked_by_others(), "by somebody else"
    assert gpu_locks.describe_holder(device).startswith("a pool of "), "nobody answers for it yet"
    assert gpu_locks.has_lost_agent(device)
    gpu_locks.release_gpu(device)
    assert gpu_locks.describe_holder(device) == "somebody who does not say who"
