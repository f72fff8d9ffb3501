"""Sweeps by gangs of two of a node's four ranks, with PyTorch's process group around each: gloo, no GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import skyward_core as sky
from tests.support.fates import gone, pids

NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in


@pytest.fixture(scope="module")
def node() -> Iterator[Any]:
    worker = sky.Worker(ranks_per_node=4)
    options = sky.Options(console=False, grace=2.0)
    with sky.Compute(nodes=1, worker=worker, plugins=[sky.plugins.torch()], options=options) as compute:
        yield compute
    assert compute.receipt is not None and compute.receipt.ok


@sky.function
def total(n: int = 1) -> tuple[float, int, int]:
    """The sum of a number of each rank, of all that are in the process group."""
    import torch
    import torch.distributed as dist

    each = torch.tensor([float(n * 10 ** dist.get_rank())])
    dist.all_reduce(each)
    return each.item(), dist.get_world_size(), os.getpid()


@sky.function
def fails(n: int, how: str) -> float:
    import torch
    import torch.distributed as dist

    each = torch.ones(1)
    dist.all_reduce(each)
    if n and dist.get_rank() == 1:
        if how == "raise":
            raise ArithmeticError("bad batch")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(each)
    return each.item()


def test_each_gang_has_a_process_group(node: Any) -> None:
    trials = sky.sweep(total, n=range(1, 7)).with_ranks(2) @ node
    assert [trial.value[:2] for trial in trials] == [(11.0 * n, 2) for n in range(1, 7)]
    assert len({trial.value[2] for trial in trials}) == 2, "processes live on for the next combination"


@pytest.mark.proof("10 s of a processor")
def test_broadcasts_come_between(node: Any) -> None:
    first_ranks = {trial.value[2] for trial in sky.sweep(total, n=[1, 2]).with_ranks(2) @ node}
    assert [value[:2] for value in total() @ node] == [(1111.0, 4)] * 4
    assert gone(first_ranks)
    again = sky.sweep(total, n=[5]).with_ranks(2) @ node
    assert again[0].value[:2] == (55.0, 2)


@pytest.mark.proof("40 s of a processor")
@pytest.mark.parametrize(("how", "outcome"), [("raise", "raised"), ("kill", "exited")])
def test_a_rank_that_fails_in_a_collective_is_the_cause(node: Any, how: str, outcome: str) -> None:
    ranks = pids() @ node
    trials = sky.sweep(fails, n=range(3), how=how).with_ranks(2) @ node
    assert [trial.outcome for trial in trials] == ["returned", outcome, outcome]
    assert ("bad batch" if how == "raise" else "SIGKILL") in str(trials[1].error), "and no echo of it"
    assert trials[0].value == 4.0
    assert gone(ranks)
    assert [value[:2] for value in total() @ node] == [(1111.0, 4)] * 4
