"""Every form of the API that people's scripts have, new and older names, on a rented provider overridden to local.

Scripts run by ``python -m skyward_core --provider local``; data is made up and small, and nothing is on a GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.whole_scripts import run_script

NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in
ROOT = Path(__file__).parents[2]


def run(script: str, folder: Path, **env: str) -> tuple[list[Any], list[str]]:
    """What a script prints: its JSON lines, and what its ranks printed."""
    done = run_script("import json\nimport skyward as sky\n" + script, folder, 180, **env)
    # A rank's line may come between two pieces of what the script prints itself.
    of_ranks = re.compile(r"(r\d{3}\| [^\n]*)\n")
    own = of_ranks.sub("", done.stdout)
    return [json.loads(line) for line in own.splitlines()], of_ranks.findall(done.stdout)


PLACES = """
@sky.function
@sky.stdout(only="head")
def roles(numbers, labels):
    info = sky.instance_info()
    mine, names = sky.shard(numbers, labels, shuffle=True, seed=42)
    print(f"node {info.node} speaks")
    assert all(name == str(number) for number, name in zip(mine, names))
    assert type(mine) is list and (info.head_addr, info.head_port) == ("", 0)
    return [info.node, info.total_nodes, info.is_head, info.accelerators, len(info.peers), mine]

@sky.function
@sky.stdout(only=lambda info: info.node < 2)
def some_speak():
    print("one of two")
    return sky.instance_info().node

@sky.function
@sky.silent
def nobody_speaks():
    import sys
    print("never"), print("never", file=sys.stderr)
    return sum(sky.shard(list(range(100))))

with sky.Compute(
    provider=sky.AWS(), nodes=4, accelerator=sky.accelerators.A100(), options=sky.Options(cluster=False)
) as compute:
    numbers = list(range(20))
    print(json.dumps(roles(numbers, [str(n) for n in numbers]) @ compute))
    print(json.dumps(some_speak() @ compute))
    print(json.dumps(sum(nobody_speaks() @ compute)))
"""


def test_places_shards_and_who_speaks(tmp_path: Path) -> None:
    (roles, some, total), printed = run(PLACES, tmp_path)
    assert [role[:5] for role in roles] == [[node, 4, node == 0, 0, 0] for node in range(4)]
    assert sorted(number for role in roles for number in role[5]) == list(range(20))
    assert (some, total) == ([0, 1, 2, 3], 4950)
    assert sorted(printed) == ["r000| node 0 speaks", "r000| one of two", "r001| one of two"]


TORCH = """
@sky.function
@sky.stdout(only="head")
def train() -> dict:
    import os
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    assert dist.is_initialized()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = torch.nn.Linear(8, 3)
    for each in model.parameters():  # by hand what DDP and an optimizer do: to load them takes as long as PyTorch
        dist.broadcast(each.data, 0)
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(48, 8, generator=generator), torch.randint(0, 3, (48,), generator=generator))
    losses = []
    for sampler in (
        DistributedSampler(data, num_replicas=world, rank=rank), sky.DistributedSampler(data, shuffle=True)
    ):
        loader = DataLoader(data, batch_size=12, sampler=sampler)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = torch.nn.CrossEntropyLoss()(model(x), y)
                for each, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
                    dist.all_reduce(gradient)
                    each.data -= 0.1 * gradient / world
            print(f"epoch {epoch}")
    dist.barrier()
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    return {
        "weight": model.weight.sum().item(), "rank": rank,
        "variables": [os.environ[name] for name in names],
        "head": os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"],
        "token": len(os.environ["HF_TOKEN"]), "backend": dist.get_backend(),
    }

for made in (
    sky.plugins.torch(vision="latest", audio="latest"),
    sky.plugins.torch(version="2.3.0", vision="0.18.0", cuda="cu124"),
    sky.plugins.torch(backend="gloo"),
):
    assert made.name == "torch"

with sky.Compute(
    provider=sky.AWS(),
    accelerator=sky.accelerators.A100(),
    nodes=2,
    plugins=[sky.plugins.torch(), sky.plugins.huggingface(token="hf_made_up_for_this")],
    options=sky.Options(grace=60),  # a busy machine may need long to free what torch has
) as compute:
    print(json.dumps(train() @ compute))
"""


@pytest.mark.proof("2 s of a processor")
def test_torch_with_both_samplers(tmp_path: Path) -> None:
    ((first, second),), printed = run(TORCH, tmp_path)
    assert first["weight"] == second["weight"]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert (first["variables"], second["variables"]) == (["2", "0", "0", "1", "0"], ["2", "1", "0", "1", "1"])
    assert first["head"] == second["head"]
    assert (first["backend"], first["token"]) == ("gloo", len("hf_made_up_for_this"))
    assert printed == [f"r000| epoch {epoch}" for epoch in (0, 1, 2)] * 2


LIGHT = """
@sky.integrations.keras(backend="tensorflow")
@sky.compute
def by_tensorflow():
    import json, os
    return [os.environ["KERAS_BACKEND"], len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])]

@sky.compute
def slice_of_mine():
    import os
    info = sky.instance_info()
    if info.is_head:
        print("saved by the head")
    return [info.rank, os.environ["CUDA_VISIBLE_DEVICES"]]

with sky.ComputePool(
    provider=sky.AWS(), nodes=2, image=sky.Image(pip=["keras>=3.2", "tensorflow"], env={"KERAS_BACKEND": "tensorflow"})
) as pool:
    print(json.dumps(by_tensorflow() @ pool))

for accelerator in (sky.NVIDIA.A100, "A100"):
    sky.ComputePool(provider=sky.AWS(), nodes=2, accelerator=accelerator, image=sky.Image(pip=["torch"]))

with sky.ComputePool(
    provider=sky.AWS(), accelerator=sky.Accelerator.NVIDIA.A100(mig="3g.40gb"), image=sky.Image(pip=["torch"])
) as pool:
    print(json.dumps(slice_of_mine() @ pool))
"""


@pytest.mark.proof("1 s of a processor")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for the driver's stand-in")
def test_older_names_of_tensorflow_and_mig(tmp_path: Path) -> None:
    source, library = ROOT / "tests" / "support" / "fake_nvml.c", tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    lists = tmp_path / "bin" / "nvidia-smi"  # the set-up asks it whether the GPUs are cut already
    lists.parent.mkdir()
    lists.write_text("#!/bin/sh\necho '  MIG 3g.40gb     Device  0: (UUID: MIG-0-0)'\n")
    lists.chmod(0o755)
    # Asked for, and imported by nobody here: what is known of it is all that there has to be.
    known = tmp_path / "site" / "tensorflow-2.19.0.dist-info" / "METADATA"
    known.parent.mkdir(parents=True)
    known.write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.19.0\n")
    env = {
        "LD_LIBRARY_PATH": str(tmp_path),
        "FAKE_GPUS": "2",
        "PATH": f"{lists.parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{tmp_path}/site",
    }
    (configured, slices), printed = run(LIGHT, tmp_path, **env)
    assert configured == [["tensorflow", 2], ["tensorflow", 2]]
    assert slices == [[0, "MIG-0-0"], [1, "MIG-0-1"]]
    assert printed == ["r000| saved by the head"]
