"""Functions of the demo's ranks: a simulated training with the pace and the metrics of a real one."""

from __future__ import annotations

import math
import random
import time

import skyward_core as sky

STEP = 1.0  # seconds
SLOW_RANK, SLOW_FROM = 21, 30  # whose GPU gets too hot, and the step from which on
FULL_RANK, FULL_AT = 13, 78  # whose memory runs full, and at which step


@sky.function
def warm_up(seconds: float = 6.0) -> dict[str, float]:
    """Measure the time of an all-reduce."""
    rank = sky.instance_info().rank
    chance = random.Random(rank)
    for size in (1, 16, 256):
        print(f"all_reduce of {size} MB: {chance.gauss(180, 6):.0f} GB/s", flush=True)
        time.sleep(seconds / 3)
    return {"bus_gbps": round(chance.gauss(182, 4), 1), "latency_us": round(chance.gauss(21, 1.5), 1)}


@sky.function
def train(steps: int = 120, batch_size: int = 32, lr: float = 3e-4) -> dict[str, float]:
    """Simulate the training of a fictitious model."""
    rank = sky.instance_info().rank
    chance = random.Random(1000 * batch_size + rank)
    print(f"rank {rank}: GPU {rank % 8}, batch size {batch_size}, lr {lr:g}", flush=True)
    begun, loss = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        time.sleep(max(0.0, begun + step * STEP + chance.random() * 0.1 - time.monotonic()))
        loss = 1.9 + 8.6 * math.exp(-step / 22) + chance.gauss(0, 0.05)
        pace = 0.62 if rank == SLOW_RANK and step > SLOW_FROM and batch_size > 16 else 1.0
        rate = 41_800 * pace * chance.gauss(1, 0.012)
        sky.log(step=step, loss=round(loss, 4), **{"tokens/s": round(rate)})
        if step % 2 == rank % 2:
            print(f"step {step:>3}/{steps}  loss {loss:.4f}  {rate:,.0f} tokens/s", flush=True)
        if step % 25 == 0:
            print(f"checkpoint written at step {step}", flush=True)
        if rank == FULL_RANK and batch_size > 16 and step == FULL_AT:
            forward(batch_size)
    return {"loss": round(loss, 4), "tokens": steps * batch_size * 4096}


def forward(batch_size: int) -> None:
    """Simulate a forward pass that exceeds the GPU memory."""
    raise MemoryError(f"CUDA out of memory: tried to allocate 2.50 GiB for a batch of {batch_size} (simulated)")
