"""The job files of SkyPilot's guide to multi-node jobs, between hosts; what they download lies here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import skyward_core as sky
from tests.support.fewer import without
from tests.support.pool_logs import last_run, log_of

from . import Lab
from .pools import pool, ssh

# Trains a layer on what each rank has of the data; torchrun gives it its place.
MAIN = """
import os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
inputs = torch.arange(8.0).reshape(2, 4)[dist.get_rank() : dist.get_rank() + 1] / 8
for _ in range(3):
    loss = (model(inputs) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("weights", [round(w, 5) for w in model.module.weight.flatten().tolist()], dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""
DDP = """
name: minGPT-ddp
resources:
    accelerators: A100:1
num_nodes: 2
workdir: .
setup: |
    mkdir -p examples/mingpt
    cp main.py examples/mingpt
run: |
    cd examples/mingpt
    export LOGLEVEL=WARNING
    MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
    echo "Starting distributed training, head node: $MASTER_ADDR"
    torchrun \\
    --nnodes=$SKYPILOT_NUM_NODES \\
    --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    --master_addr=$MASTER_ADDR \\
    --node_rank=${SKYPILOT_NODE_RANK} \\
    --master_port=8008 \\
    main.py
"""
HEAD_ONLY = """
num_nodes: 2
file_mounts:
  ~/there/word.txt: word.txt
run: |
  if [ "${SKYPILOT_NODE_RANK}" == "0" ]; then
      echo "only the head: $(cat ~/there/word.txt), $(echo "$SKYPILOT_NODE_IPS" | wc -l) nodes"
  fi
"""


def test_the_jobs_of_the_guide(lab: Lab) -> None:
    pytest.importorskip("torch")
    for name, text in (
        ("main.py", MAIN),
        ("ddp.yaml", DDP),
        ("head.yaml", HEAD_ONLY),
        ("word.txt", "brought\n"),
    ):
        Path(name).write_text(text)
    provider = ssh(lab, lab.hosts[:2], python=sys.executable)
    with pool(lab, provider, image=sky.Image(env=without("torch._dynamo"))) as compute:
        sky.Task.from_yaml("ddp.yaml").run_on(compute)
        logs = [log_of(compute, last_run(compute), rank).decode() for rank in range(2)]
        head = f"Starting distributed training, head node: {lab.hosts[0].address}"
        assert all(log.startswith(head) for log in logs)
        weights = [[line for line in log.splitlines() if line.startswith("weights")] for log in logs]
        assert weights[0] == weights[1] and len(weights[0]) == 1 and weights[0][0].endswith("] 2")
        sky.Task.from_yaml("head.yaml").run_on(compute)
        logs = [log_of(compute, last_run(compute), rank).decode() for rank in range(2)]
        assert logs == ["only the head: brought, 2 nodes\n", ""]
