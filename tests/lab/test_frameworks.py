"""PyTorch and JAX between hosts: rendezvous, training, collectives over the network."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from tests.support.fewer import without
from tests.support.pool_logs import last_run, log_of

from . import Lab
from .pools import listening, nothing_runs, pool, ssh


@sky.function
def gathered() -> list[Any]:
    import jax
    from jax.experimental import multihost_utils

    ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
    return [jax.device_count(), ranks.tolist(), os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[0]]


@pytest.mark.proof("3 s of a processor")
def test_jax_ranks_meet_between_hosts(lab: Lab) -> None:
    pytest.importorskip("jax")
    provider = ssh(lab, lab.hosts[:2], python=sys.executable)
    with pool(lab, provider, plugins=[sky.plugins.jax()]) as compute:
        assert gathered() @ compute == [[2, [[0], [1]], lab.hosts[0].address]] * 2
        for host in lab.hosts[:2]:
            assert listening(host) <= {host.address}


# Launchers that a command starts on each node, and that find each other by the command's variables.


BY_TORCH = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print("met", dist.get_rank(), dist.get_world_size(), total.item(), os.environ["LOCAL_WORLD_SIZE"], flush=True)
dist.destroy_process_group()
"""
BY_ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.tensor([1.0 + accelerator.process_index]))
print("met", accelerator.process_index, accelerator.num_processes, total.item(), 1, flush=True)
accelerator.end_training()
"""
C10D = """
torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node 1 --rdzv_backend c10d --rdzv_id $SKYPILOT_TASK_ID \\
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT by_torch.py
"""
ACCELERATE = """
accelerate launch --cpu --num_machines $SKYPILOT_NUM_NODES --num_processes $SKYPILOT_NUM_NODES \\
    --machine_rank $SKYPILOT_NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT by_accelerate.py
"""


def meets(lab: Lab, command: str, **wishes: str) -> None:
    """Start one process from each node's launcher, and return the sum over both processes."""
    for name, text in (("by_torch.py", BY_TORCH), ("by_accelerate.py", BY_ACCELERATE)):
        Path(name).write_text(text)
    image = sky.Image(env=wishes)
    with pool(lab, ssh(lab, lab.hosts[:2], python=sys.executable), image=image) as compute:
        sky.shell(command) @ compute
        logs = [log_of(compute, last_run(compute), rank).decode() for rank in range(2)]
        met = sorted(line for log in logs for line in log.splitlines() if line.startswith("met"))
        assert met == ["met 0 2 3.0 1", "met 1 2 3.0 1"] and all("met" in log for log in logs)
    nothing_runs(lab)


@pytest.mark.proof("torch")
def test_torchrun_c10d_rendezvous_meets_between_hosts(lab: Lab) -> None:
    pytest.importorskip("torch")
    meets(lab, C10D, **without("torch._dynamo"))


@pytest.mark.proof("accelerate")
def test_accelerate_launch_meets_between_hosts(lab: Lab) -> None:
    pytest.importorskip("accelerate")
    meets(lab, ACCELERATE)
