"""PyTorch and JAX between hosts: rendezvous and collectives over the network."""

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
C10D = """
torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node 1 --rdzv_backend c10d --rdzv_id $SKYPILOT_TASK_ID \\
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT by_torch.py
"""


@pytest.mark.proof("torch")
def test_torchrun_c10d_rendezvous_meets_between_hosts(lab: Lab) -> None:
    pytest.importorskip("torch")
    Path("by_torch.py").write_text(BY_TORCH)
    image = sky.Image(env=without("torch._dynamo"))
    with pool(lab, ssh(lab, lab.hosts[:2], python=sys.executable), image=image) as compute:
        sky.shell(C10D) @ compute
        logs = [log_of(compute, last_run(compute), rank).decode() for rank in range(2)]
        met = sorted(line for log in logs for line in log.splitlines() if line.startswith("met"))
        assert met == ["met 0 2 3.0 1", "met 1 2 3.0 1"] and all("met" in log for log in logs)
    nothing_runs(lab)
