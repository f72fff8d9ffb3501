"""Training of a small network on all ranks with PyTorch's DistributedDataParallel.

skyward-tui run example:ddp --nodes 4 --plugin torch --arg epochs=5

The torch plugin sets up the process group before the function starts. Everything below is plain PyTorch.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import skyward_core as sky


def make_data(samples: int, seed: int = 0) -> TensorDataset:
    """Return points in 16 dimensions and a smooth function of them, identical on every rank."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 16, generator=generator)
    direction = torch.randn(16, generator=generator)
    return TensorDataset(x, torch.sin(x @ direction / 4).unsqueeze(1))


@sky.function
def train(epochs: int = 5, batch_size: int = 64, lr: float = 0.01, samples: int = 8192) -> dict:
    """Train, and return the final loss over all ranks and a hash of this rank's weights."""
    torch.set_num_threads(1)  # one thread per rank, because the ranks share this machine's cores
    torch.manual_seed(0)
    # the torch plugin has already selected this rank's GPU
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    info = sky.instance_info()
    rank, world = info.rank, info.world_size

    data = make_data(samples)
    sampler = DistributedSampler(data, world, rank)  # gives every rank its own part of the data
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # shuffles the data differently in every epoch
        total = torch.zeros(2, device=device)  # [sum of this rank's losses, number of its samples]
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # computes the gradients, and averages them over all ranks
            optimizer.step()
            total += torch.tensor([loss.item() * len(x), len(x)], device=device)
        own = (total[0] / total[1]).item()
        if world > 1:
            dist.all_reduce(total)  # adds up the sums of all ranks
        mean = (total[0] / total[1]).item()
        sky.log(epoch=epoch + 1, loss=own)  # the app charts these metrics
        print(f"epoch {epoch + 1}/{epochs} loss={mean:.4f} (rank {rank} of {world}: {own:.4f})", flush=True)

    weights = b"".join(bytes(p.detach().cpu().flatten().view(torch.uint8).tolist()) for p in model.parameters())
    return {"rank": rank, "loss": mean, "weights": hashlib.sha256(weights).hexdigest()[:12]}


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=4, plugins=[sky.plugins.torch()]) as compute:
        results = train(epochs=5) @ compute
    assert len({result["weights"] for result in results}) == 1, "the ranks' weights differ"
    print(f"loss {results[0]['loss']:.4f}; {len(results)} ranks ended with the same weights")
