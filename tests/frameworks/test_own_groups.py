"""Code that makes its process group itself, as it does for torchrun, on pools with and without a plugin for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from tests.support.pool_logs import last_run, log_of, settled
from tests.support.waiting import wait_until

OWN = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
with open(f"{sys.argv[1]}.{dist.get_rank()}", "w") as file:
    file.write(str(total.item()))
"""
NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in
OPTIONS = sky.Options(console=False)
TWO = sky.Worker(ranks_per_node=2)


@pytest.fixture(scope="module")
def bare() -> Iterator[Any]:
    with sky.Compute(nodes=1, worker=TWO, options=OPTIONS) as pool:
        yield pool


@pytest.fixture(scope="module")
def joined() -> Iterator[Any]:
    with sky.Compute(nodes=1, worker=TWO, plugins=[sky.plugins.torch()], options=OPTIONS) as pool:
        yield pool


def summed() -> float:
    import torch
    import torch.distributed as dist

    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    return total.item()


@sky.function
def own_group(ends: bool, **asked: Any) -> tuple[int, float, str]:
    import torch.distributed as dist

    dist.init_process_group(**asked)
    try:
        return os.getpid(), summed(), dist.get_backend()
    finally:
        if ends:
            dist.destroy_process_group()


@sky.function
def refused(**asked: Any) -> str:
    """What it says to a group that cannot be had; caught here, for a run that fails has its ranks replaced."""
    import torch.distributed as dist

    try:
        dist.init_process_group(**asked)
    except sky.UsageError as said:
        return str(said)
    return "made"


@sky.function
def asks_for_it() -> bool:
    import torch.distributed as dist

    return dist.is_initialized()


def test_code_for_torchrun_meets_without_a_plugin_and_what_makes_no_group_is_advised(bare):
    # First, for then no group was ever made in this gang.
    assert asks_for_it() @ bare == [False, False]
    without = last_run(bare)
    for _ in range(2):
        assert [total for _, total, _ in own_group(True, backend="gloo") @ bare] == [3.0, 3.0]
    settled(bare)
    said = [log_of(bare, run, rank, "err") for run in (without, last_run(bare)) for rank in (0, 1)]
    assert [b"no process group was made" in each for each in said] == [True, False, False, False]


@sky.function
def stays_in_its_group(folder: str, number: int) -> float:
    """The head stays until another rank is about to meet it in the next broadcast."""
    import torch.distributed as dist

    wait_until(Path(folder, "go").exists)
    Path(folder, f"{os.environ['RANK']}.{number}").touch()
    dist.init_process_group("gloo")
    try:
        total = summed() + number
        if dist.get_rank() == 0:
            wait_until(lambda: len(list(Path(folder).glob("1.*"))) > len(list(Path(folder).glob("0.*"))))
        return total
    finally:
        dist.destroy_process_group()


def test_a_rank_that_is_ahead_does_not_meet_the_group_of_the_broadcast_before(bare, tmp_path):
    with ThreadPoolExecutor(3) as beside:
        calls = [stays_in_its_group(str(tmp_path), number) for number in range(3)]
        running = [beside.submit(bare.run_all, call) for call in calls]
        # One that is sent once a rank has left its group is for the next gang.
        wait_until(lambda: sum(run.sent for run in list(bare.pool.context.registry.runs.values())) == len(running))
        (tmp_path / "go").touch()
        wait_until(lambda: len(list(tmp_path.glob("1.*"))) == len(running))
        (tmp_path / "1.last").touch()  # nothing follows the last one
        assert sorted(each.result() for each in running) == [[3.0, 3.0], [4.0, 4.0], [5.0, 5.0]]


@pytest.mark.proof("4 s of a processor")
def test_scripts_at_the_same_time_each_have_a_group_of_their_own(bare, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    with ThreadPoolExecutor(2) as beside:
        scripts = [sky.script(tmp_path / "own.py", [tmp_path / str(number)]) for number in range(3)]
        scripts[0] @ bare
        list(beside.map(lambda script: script @ bare, scripts[1:]))
    assert {path.read_text() for path in tmp_path.glob("?.*")} == {"3.0"}
    assert len(list(tmp_path.glob("?.*"))) == 6


@pytest.mark.proof("2 s of a processor")
def test_the_group_that_is_there_is_given_where_it_is_the_one_that_is_asked_for(joined):
    from datetime import timedelta

    first = own_group(False, backend="gloo", timeout=timedelta(seconds=60)) @ joined
    again = own_group(False, backend="cpu:gloo", init_method="env://", world_size=2) @ joined
    assert [total for _, total, _ in first + again] == [3.0] * 4
    assert [pid for pid, _, _ in first] == [pid for pid, _, _ in again]
    for asked, says in (
        ({"backend": "mpi"}, "backend='mpi'"),
        ({"world_size": 7}, "world_size=7"),
        ({"init_method": "tcp://192.0.2.1:7"}, "init_method="),
    ):
        for words in refused(**asked) @ joined:
            assert says in words and "backend cpu:gloo" in words


@pytest.mark.proof("2 s of a processor")
def test_after_code_has_destroyed_it_the_next_call_has_a_fresh_one(joined):
    first = own_group(True) @ joined
    assert asks_for_it() @ joined == [True, True]
    second = own_group(False, backend="gloo") @ joined
    assert [total for _, total, _ in first + second] == [3.0] * 4
    assert {pid for pid, _, _ in first}.isdisjoint(pid for pid, _, _ in second)


@pytest.mark.proof("2 s of a processor")
def test_the_plugin_leaves_it_to_the_code_where_that_is_asked_for(home):
    plugins = [sky.plugins.torch(init=False)]
    with sky.Compute(nodes=1, worker=TWO, plugins=plugins, options=OPTIONS) as pool:
        assert asks_for_it() @ pool == [False, False]
        assert [total for _, total, _ in own_group(True) @ pool] == [3.0, 3.0]


@sky.function
def own_runtime(**asked: Any) -> int:
    import jax

    if asked.pop("by_hand", False):
        asked |= {"num_processes": 2, "process_id": sky.instance_info().rank}
    jax.distributed.initialize(**asked)
    try:
        return jax.process_count()
    finally:
        if asked:
            jax.distributed.shutdown()


@pytest.mark.proof("4 s of a processor")
@pytest.mark.parametrize("init", [True, False])
def test_jax_is_initialised_by_the_code_or_found_so(home, init):
    with sky.Compute(nodes=1, worker=TWO, plugins=[sky.plugins.jax(init=init)], options=OPTIONS) as pool:
        assert own_runtime(by_hand=True, coordinator_address=None) @ pool == [2, 2]
        assert own_runtime() @ pool == [2, 2]  # of a fresh one
        if init:
            with pytest.raises(sky.RunError, match=r"num_processes=5.*num_processes=2"):
                own_runtime(num_processes=5) @ pool


@pytest.mark.proof("2 s of a processor")
def test_jax_finds_the_other_ranks_without_a_plugin(bare):
    for _ in range(2):  # what is up already is found so
        assert own_runtime() @ bare == [2, 2]
    with pytest.raises(sky.RunError, match=r"num_processes=5.*num_processes=2"):
        own_runtime(num_processes=5) @ bare
    assert own_runtime() >> bare == 1


@sky.function
def left_group() -> tuple[int, float]:
    """Make a process group, if there is none, and leave it."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_world_size(), summed()


@pytest.mark.proof("6 s of a processor")
def test_a_group_that_code_leaves_is_for_broadcasts_or_for_tasks(bare):
    for _ in range(2):
        assert left_group() @ bare == [(2, 3.0)] * 2
        assert list(sky.gather(*[left_group() for _ in range(4)]) >> bare) == [(1, 1.0)] * 4
