"""One DDP job of two ranks, 400 small steps: by ``torchrun --standalone``, and by ``skyward-tui torchrun`` in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from .fresh import BenchError, compile_ours
from .metric import Bar, Metric

ROUNDS = 5
SECONDS = 120.0  # that one job may take
JOB = """
import json, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(400):
    if step == 50:
        began = time.perf_counter()
    x = torch.randn(32, 64, generator=generator)
    loss = torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    told = {"step": (time.perf_counter() - began) / 350, "loss": loss.item()}
    with open("told.json", "w") as file:
        json.dump(told, file)
dist.destroy_process_group()
"""


def measure() -> list[Metric]:
    compile_ours()
    here = Path(sys.executable)
    ours = [sys.executable, "-m", "skyward_tui", "torchrun", "--nproc-per-node", "2", "job.py"]
    theirs = [str(here.with_name("torchrun")), "--standalone", "--nproc-per-node", "2", "job.py"]
    told: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.py").write_text(JOB, encoding="utf-8")
        for turn in range(ROUNDS + 1):
            for us in (True, False) if turn % 2 else (False, True):
                took = job(ours if us else theirs, folder)
                if turn:  # the first reads the framework from the disk
                    told[us].append(took)
    if len({loss for each in told.values() for _, _, loss in each}) != 1:
        raise BenchError(f"the losses differ: {told}")
    # What else the machine does only ever adds to a time: the least is the job's own.
    (our_step, our_whole), (their_step, their_whole) = (
        [min(each[i] for each in told[us]) for i in (0, 1)] for us in (True, False)
    )
    return [
        Metric("ddp_step_ms", our_step * 1000, their_step * 1000, Bar(ratio_at_most=1.02)),
        Metric("ddp_whole_job_s", our_whole, their_whole, Bar(ratio_at_most=0.7)),
    ]


def job(command: Sequence[str], folder: str) -> tuple[float, float, float]:
    """Seconds that a step took and that the whole command took, and the last loss.

    Raises:
        BenchError: it failed, or took too long.
    """
    environment = os.environ | {"SKYWARD_HOME": f"{folder}/home"}
    told = Path(folder, "told.json")
    told.unlink(missing_ok=True)
    began = perf_counter()
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{command[0]} took longer than {SECONDS:g} s") from None
    whole = perf_counter() - began
    if done.returncode or not told.exists():
        raise BenchError(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    said = json.loads(told.read_text(encoding="utf-8"))
    return said["step"], whole, said["loss"]
