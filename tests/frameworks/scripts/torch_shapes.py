"""Typical torchrun scripts: the patterns of pytorch/examples in one script, without downloads.

torchrun --standalone --nproc-per-node 2 torch_shapes.py OUT

`ddp`: distributed/ddp-tutorial-series (multigpu_torchrun.py): a Trainer that resumes from a snapshot. `gpt`:
distributed/minGPT-ddp: a small GPT, AdamW with parameter groups, clipped gradients, autocast. `fsdp2`:
distributed/FSDP2: `fully_shard` and a gathered state dict. `tensor_parallel`: distributed/tensor_parallelism:
`parallelize_module` over a device mesh.
"""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Numbers(Dataset):
    def __init__(self, size):
        made = torch.Generator().manual_seed(size)
        self.data = [(torch.rand(20, generator=made), torch.rand(1, generator=made)) for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


@dataclass
class Snapshot:
    model: dict
    epochs_run: int


class Trainer:
    def __init__(self, model, train_data, optimizer, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.train_data = train_data
        self.optimizer = optimizer
        self.snapshot_path = snapshot_path
        self.epochs_run = 0
        if snapshot_path.exists():
            snapshot = torch.load(snapshot_path, weights_only=False)
            model.load_state_dict(snapshot.model)
            self.epochs_run = snapshot.epochs_run
        self.model = DDP(model)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self.train_data.sampler.set_epoch(epoch)
            for source, targets in self.train_data:
                self.optimizer.zero_grad()
                F.mse_loss(self.model(source), targets).backward()
                self.optimizer.step()
            torch.distributed.barrier()
            if self.local_rank == 0:
                torch.save(Snapshot(self.model.module.state_dict(), epoch + 1), self.snapshot_path)
            torch.distributed.barrier()


def ddp(out):
    snapshots = Path(out).with_suffix(".snapshot")
    for epochs in (1, 3):  # the second goes on from where the first was
        model = torch.nn.Linear(20, 1)
        train_set = Numbers(64)
        loader = DataLoader(train_set, batch_size=8, shuffle=False, sampler=DistributedSampler(train_set))
        trainer = Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-2), snapshots)
        trainer.train(epochs)
    return trainer.model.module.state_dict()


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = torch.nn.Sequential(
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 2 * width),
            torch.nn.GELU(),
            torch.nn.Linear(2 * width, width),
        )

    def forward(self, x):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        seen = self.norm(x)
        x = x + self.attention(seen, seen, seen, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class GPT(torch.nn.Module):
    def __init__(self, letters=32, width=16):
        super().__init__()
        self.embedding = torch.nn.Embedding(letters, width)
        self.blocks = torch.nn.Sequential(Block(width), Block(width))
        self.head = torch.nn.Linear(width, letters, bias=False)

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x)))


def gpt(out):
    model = DDP(GPT())
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    text = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for _ in range(4):
        tokens = torch.randint(32, (4, 9), generator=text)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
        F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model.module.state_dict()


def fsdp2(out):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model = GPT()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    tokens = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for _ in range(3):
        model(torch.randint(32, (4, 8), generator=tokens)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def tensor_parallel(out):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for step in range(4):
        torch.manual_seed(step)
        model(torch.rand(20, 10)).sum().backward()
        optimizer.step()
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
    return whole


def all_shapes(out):
    made = {}
    for shape in (ddp, gpt, fsdp2, tensor_parallel):
        torch.manual_seed(1234)
        made[shape.__name__] = shape(out)
    return made


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    out = parser.parse_args().out
    init_process_group(backend="gloo")
    made = all_shapes(out)
    if torch.distributed.get_rank() == 0:
        torch.save(made, out)
    destroy_process_group()


if __name__ == "__main__":
    main()
