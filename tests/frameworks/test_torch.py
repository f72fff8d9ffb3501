"""PyTorch on real ranks: process groups of the pool and of scripts, data parallel training, and failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.views.stack_groups_and_profiles import summarize_collectives
from tests.support.cli import call as by_cli
from tests.support.fates import gone, listening, pids
from tests.support.pool_logs import last_run, log_of, settled
from tests.support.waiting import wait_until

NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in
PLUGINS = [sky.plugins.torch()]
ONE_RANK = Path(__file__).parent / "scripts" / "one_rank.py"


def parallel(model: Any, together: bool) -> tuple[Any, Callable[[Any], None]]:
    """Return the losses of one gradient step, computed with PyTorch's own parallel tools."""
    import torch

    net = torch.nn.parallel.DistributedDataParallel(model) if together else model
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return net, step


def plain(model: Any, together: bool) -> tuple[Any, Callable[[Any], None]]:
    """Return the same losses as :func:`parallel`, computed with tensors and collectives only."""
    import torch
    import torch.distributed as dist

    parameters = list(model.parameters())
    for each in parameters if together else []:
        dist.broadcast(each.data, 0)

    def step(loss: Any) -> None:
        for each, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            if together:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
            each.data -= 0.1 * gradient

    return model, step


@sky.function
def train(steps: int, by_hand: bool = False) -> dict[str, Any]:
    """Train data-parallel on this rank's shard, or on the whole batch with one rank.

    Implements DDP and the optimizer by hand, because importing these takes a rank as long as importing PyTorch itself.
    """
    import hashlib

    import torch
    import torch.distributed as dist

    torch.manual_seed(sky.instance_info().rank)  # the weights are made equal, the seeds are not
    model: Any = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    net, step = (plain if by_hand else parallel)(model, dist.is_initialized())
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    xs, ys = sky.shard(x, x.sum(1, keepdim=True))
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(net(xs), ys)
        step(loss)
        if dist.is_initialized():
            dist.all_reduce(loss.detach_(), op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
        losses.append(loss.item() / len(x) * len(xs))
    weights = [p.detach().flatten() for p in model.parameters()]
    return {
        "hash": hashlib.sha256(b"".join(w.numpy().tobytes() for w in weights)).hexdigest(),
        "weights": torch.cat(weights).tolist(),
        "losses": losses,
        "pid": os.getpid(),
    }


def check_training(results: list[dict[str, Any]]) -> None:
    alone = train.local(8, by_hand=True)
    assert len({result["hash"] for result in results}) == 1
    assert results[0]["weights"] == pytest.approx(alone["weights"], abs=1e-5)
    assert results[0]["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert alone["losses"][-1] < alone["losses"][0]


def test_two_torch_ranks_train_one_model(pool):
    check_training(train(8) @ pool)


@sky.function
def searched_for_garbage() -> tuple[bool, bool]:
    """Return whether this rank collects garbage, and whether it scans PyTorch's own modules for it."""
    import gc

    import torch

    return gc.isenabled(), any(each is torch.nn.Module for each in gc.get_objects())


def test_torch_is_preloaded_and_excluded_from_garbage_collection(pool):
    assert searched_for_garbage() @ pool == [(True, False)] * 2


@pytest.mark.proof("4 s of a processor")
def test_torch_task_trains_like_a_plain_process(pool):
    from tests.frameworks.scripts.one_rank import descend

    rates = [0.1, 0.05, 0.02]
    command = [sys.executable, str(ONE_RANK), *map(str, rates)]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    together = train(1, by_hand=True) @ pool
    alone = [1, "0", "0", "0", "1", "1"]
    expected = [[loss, *alone] for loss in plain]
    assert descend(rates[0]) >> pool == expected[0]
    # More trials than ranks, and a number of them that is no multiple of these.
    assert [trial.value for trial in sky.sweep(descend, lr=rates) >> pool] == expected
    assert [*(sky.gather(*map(descend, rates)) >> pool)] == expected
    words = ["run", f"{ONE_RANK}:descend", "--one", "--pool", pool.name, "-a", f"lr={rates[1]}", "--json"]
    by_command = by_cli(words, os.environ)
    assert json.dumps(expected[1]) in by_command.stdout, by_command
    again = train(1, by_hand=True) @ pool
    assert [r["pid"] for r in again] == [r["pid"] for r in together], "the group lives on"


@sky.function
def leaves_its_group(name: str) -> tuple[int, str]:
    """Create a process group without destroying it, like a script that runs only once."""
    import torch.distributed as dist

    dist.init_process_group(name)
    return dist.get_world_size(), dist.get_backend()


@pytest.mark.proof("2 s of a processor")
def test_torch_task_can_create_and_destroy_a_process_group(pool):
    names = ["gloo", "cpu:gloo"] * 3  # more tasks than ranks
    assert [*(sky.gather(*map(leaves_its_group, names)) >> pool)] == [(1, name) for name in names]


def test_process_group_lives_as_long_as_the_worker(pool):
    first, second = train(1) @ pool, train(1) @ pool
    assert [r["pid"] for r in first] == [r["pid"] for r in second]


@sky.function
def sampled(length: int, epoch: int) -> list[int]:
    sampler = sky.DistributedSampler(range(length), shuffle=True, seed=3)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_sampler_covers_every_sample_once(pool):
    first, second = (sampled(20, epoch) @ pool for epoch in (0, 1))
    assert sorted(first[0] + first[1]) == list(range(20))
    assert first != second


@sky.function
def fail_in_the_middle(how: str) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1))
    if sky.instance_info().rank == 1:
        if how == "raise":
            raise ArithmeticError("bad batch")
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))  # hangs, or fails for want of its peer


@sky.function
def total() -> float:
    import torch
    import torch.distributed as dist

    one = torch.ones(1)
    dist.all_reduce(one)
    return one.item()


@pytest.mark.proof("4 s of a processor", after=1)
@pytest.mark.parametrize(
    ("how", "kind", "exit_code"), [("kill", "exited", 137), ("raise", "raised", None), ("exit", "exited", 7)]
)
def test_torch_rank_that_fails_in_a_collective_stops_its_peer(pool, how, kind, exit_code):
    ranks = pids() @ pool
    with pytest.raises(sky.RunError) as caught:
        fail_in_the_middle(how).with_timeout(60) @ pool
    cause = caught.value.root_cause
    assert (cause.rank, cause.outcome, cause.exit_code) == (1, kind, exit_code)
    assert caught.value.outcomes[0].kind in ("raised", "exited", "collateral"), "its peer was not left hanging"
    assert set(pids() @ pool).isdisjoint(ranks), "the next run has fresh ranks"
    assert gone(ranks)
    if how == "raise":
        assert isinstance(caught.value.__cause__, ArithmeticError)
    assert total() @ pool == [2.0, 2.0]
    if how == "kill":  # for all: to make ready for training takes fresh ranks longer than to load PyTorch
        check = train(1, by_hand=True) @ pool
        assert check[0]["hash"] == check[1]["hash"]


def object_list() -> list[Any]:
    return [None, None]


# How rank 0 comes to wait for rank 1, by what the stacks call that.
HANGS: dict[str, Callable[[Any, Any], Any]] = {
    "the constructor of DistributedDataParallel": lambda torch, dist: torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(2, 2)
    ),
    "barrier": lambda torch, dist: dist.barrier(),
    "monitored_barrier": lambda torch, dist: dist.monitored_barrier(),
    "broadcast": lambda torch, dist: dist.broadcast(torch.ones(1), 1),
    "all_gather_object": lambda torch, dist: dist.all_gather_object(object_list(), {"a": 1}),
    "broadcast_object_list": lambda torch, dist: dist.broadcast_object_list(object_list(), 1),
    "scatter_object_list": lambda torch, dist: dist.scatter_object_list([None], object_list(), 1),
    "gather_object": lambda torch, dist: dist.gather_object(1, None if dist.get_rank() else object_list()),
    "all_gather_single": lambda torch, dist: dist.all_gather_single(torch.ones(2), torch.ones(1)),
    "recv": lambda torch, dist: (dist.send if dist.get_rank() else dist.recv)(torch.ones(1), 1 - dist.get_rank()),
    "new_group": lambda torch, dist: dist.new_group(),
    "new_subgroups": lambda torch, dist: dist.new_subgroups(2),
}


@sky.function
def hangs_in_turn(folder: str) -> None:
    import torch
    import torch.distributed as dist

    for name, call in HANGS.items():
        if dist.get_rank() == 1:
            late(Path(folder, name))
        call(torch, dist)


def late(come: Path) -> None:
    while not come.exists():
        time.sleep(0.01)


@sky.function
def one_rank_returns(folder: str) -> None:
    import torch.distributed as dist

    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=2)


def test_stacks_name_the_collective_and_the_missing_rank_of_a_hang(pool: sky.Compute, tmp_path: Path) -> None:
    session, before = Session(), set(pool.pool.view.runs)

    def wait_for(begin: str, end: str) -> None:
        def is_told() -> bool:
            output = summarize_collectives(session.stacks(pool.name, last_run(pool), signal=True).result(30))
            return [line.startswith(begin) and end in line for line in output] == [True]

        wait_until(is_told, what=begin)

    def begin(work: Any) -> Any:
        nonlocal before
        running = beside.submit(lambda: work(str(tmp_path)) @ pool)
        wait_until(lambda: set(pool.pool.view.runs) - before)
        before = set(pool.pool.view.runs)
        return running

    with ThreadPoolExecutor() as beside:
        try:
            running = begin(hangs_in_turn)
            for name in HANGS:
                wait_for(f"rank 0 is in {name} (torch); ", "; rank 1 is not: late, test_torch.py:")
                (tmp_path / name).touch()
            assert running.result(60) == [None, None]
            begin(one_rank_returns)
            wait_for("rank 0 is in init_process_group (torch)", "; rank 1 is not: its function has returned")
        finally:
            session.cancel(pool.name, last_run(pool)).result(30)
    session.detach()


def test_torch_ranks_listen_on_loopback_only(pool):
    found = listening() @ pool
    assert found[0], "the ranks have met somewhere"
    assert {address for rank in found for address in rank} == {"127.0.0.1"}


OWN_CLASSES = """
import dataclasses, inspect, sys
import torch
import skyward_core as sky

@dataclasses.dataclass
class Cfg:
    width: int = 3

class Net(torch.nn.Module):
    def __init__(self, cfg: Cfg):
        super().__init__()
        self.layer = torch.nn.Linear(cfg.width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(self.layer(x))

def doubled(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() > 1e9):  # a branch: nothing that could be traced
        return x
    return 2 * x

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, at): return torch.tensor([float(at), OFFSET])

OFFSET = 0.5

def stacked(items): return torch.stack(items).sum(0)

@sky.function
def work():
    cfg = Cfg()
    net = Net(cfg)
    torch.save({"cfg": cfg, "net": net}, "checkpoint.pt")
    loaded = torch.load("checkpoint.pt", weights_only=False)
    x = torch.ones(2, cfg.width)
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=2, num_workers=1, multiprocessing_context="spawn", collate_fn=stacked
    )
    return [
        loaded["cfg"] == cfg,
        bool(torch.equal(loaded["net"](x), torch.jit.script(net)(x))),
        "2 * x" in torch.jit.script(doubled).code or "torch.mul" in torch.jit.script(doubled).code,
        [each.tolist() for each in loader],
    ]

with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False)) as compute:
    print(work() >> compute)
"""


@pytest.mark.proof("4 s of a processor")
def test_torch_model_defined_in_a_script_is_saved_compiled_and_loaded(tmp_path: Path) -> None:
    (script := tmp_path / "own.py").write_text(OWN_CLASSES)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.stdout == "[True, True, True, [[1.0, 1.0], [5.0, 1.0]]]\n", done.stderr


@sky.function
def breaks() -> float:
    import torch
    import torch.distributed as dist

    for _ in range(2):
        dist.breakpoint()
    together = torch.ones(1)
    dist.all_reduce(together)
    return float(together)


def test_torch_breakpoint_ends_no_rank_and_its_line_is_logged(pool: sky.Compute) -> None:
    assert breaks() @ pool == [2.0, 2.0]
    settled(pool)
    (output,) = log_of(pool, last_run(pool), 0, "err").decode().splitlines()
    assert "rank 0 reached a breakpoint at " in output and "test_torch.py:" in output and " in breaks()" in output


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
    """Return the error for a process group that cannot be created. Caught here, because a failed run would replace its
    ranks.
    """
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


@pytest.mark.proof("2 s of a processor")
def test_torchrun_code_needs_no_plugin_and_unused_torch_is_warned_about(bare):
    # First, for then no group was ever made in this gang.
    assert asks_for_it() @ bare == [False, False]
    without = last_run(bare)
    for _ in range(2):
        assert [total for _, total, _ in own_group(True, backend="gloo") @ bare] == [3.0, 3.0]
    settled(bare)
    output = [log_of(bare, run, rank, "err") for run in (without, last_run(bare)) for rank in (0, 1)]
    assert [b"uses torch.distributed without a process group" in each for each in output] == [True, False, False, False]


@sky.function
def stays_in_its_group(folder: str, number: int) -> float:
    """Let the head stay in the call until another rank is about to join the next broadcast."""
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


@pytest.mark.proof("4 s of a processor")
def test_fast_rank_does_not_join_the_group_of_an_earlier_broadcast(bare, tmp_path):
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
def test_concurrent_scripts_have_separate_process_groups(bare, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    with ThreadPoolExecutor(2) as beside:
        scripts = [sky.script(tmp_path / "own.py", [tmp_path / str(number)]) for number in range(3)]
        scripts[0] @ bare
        list(beside.map(lambda script: script @ bare, scripts[1:]))
    assert {path.read_text() for path in tmp_path.glob("?.*")} == {"3.0"}
    assert len(list(tmp_path.glob("?.*"))) == 6


@pytest.mark.proof("2 s of a processor")
def test_existing_process_group_is_reused_if_its_arguments_match(joined):
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
def test_call_after_code_destroyed_the_process_group_has_a_new_one(joined):
    first = own_group(True) @ joined
    assert asks_for_it() @ joined == [True, True]
    second = own_group(False, backend="gloo") @ joined
    assert [total for _, total, _ in first + second] == [3.0] * 4
    assert {pid for pid, _, _ in first}.isdisjoint(pid for pid, _, _ in second)


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
def test_jax_distributed_initialize_works_with_the_plugin(home, init):
    with sky.Compute(nodes=1, worker=TWO, plugins=[sky.plugins.jax(init=init)], options=OPTIONS) as pool:
        assert own_runtime(by_hand=True, coordinator_address=None) @ pool == [2, 2]
        assert own_runtime() @ pool == [2, 2]  # of a fresh one
        if init:
            with pytest.raises(sky.RunError, match=r"num_processes=5.*num_processes=2"):
                own_runtime(num_processes=5) @ pool


@pytest.mark.proof("2 s of a processor")
def test_jax_distributed_initialize_works_without_a_plugin(bare):
    for _ in range(2):  # what is up already is found so
        assert own_runtime() @ bare == [2, 2]
    with pytest.raises(sky.RunError, match=r"num_processes=5.*num_processes=2"):
        own_runtime(num_processes=5) @ bare
    assert own_runtime() >> bare == 1
