"""Data-parallel script that also runs on a single rank. Prints a loss for each learning rate."""

import os
import sys

import skyward_core as sky

NAMES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@sky.function
def descend(lr: float = 0.1) -> list:
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    x, y = sky.shard(torch.randn(64, 8), torch.randn(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(8):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    world = dist.get_world_size() if dist.is_initialized() else 1
    return [loss.item().hex(), world, *map(os.environ.get, NAMES)]


if __name__ == "__main__":
    print(*(descend.local(float(lr))[0] for lr in sys.argv[1:]))
