"""Accelerate without the torch plugin, and Keras on PyTorch in the same pool."""

from typing import Any

import pytest

import skyward_core as sky
from tests.support.fates import listening

PLUGINS = [sky.plugins.accelerate(mixed_precision="bf16"), sky.plugins.keras(backend="torch")]
NOT_INSTALLED = "sklearn scipy pandas pyarrow datasets jax torch._dynamo"  # optional there, and loaded where they are


@sky.function
def accelerated() -> dict[str, Any]:
    import hashlib

    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator()
    torch.manual_seed(0)
    model: Any = torch.nn.Linear(4, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    loader: Any = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(3):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs).float(), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return {
        "world": [accelerator.num_processes, accelerator.process_index, accelerator.local_process_index],
        "precision": accelerator.mixed_precision,
        "batches": len(loader),
        "losses": losses,
        "hash": hashlib.sha256(weights).hexdigest(),
    }


@pytest.mark.proof("3 s of a processor")
def test_accelerator_uses_all_ranks_of_a_broadcast_and_one_of_a_task(pool):
    first, second = accelerated() @ pool
    assert (first.pop("world"), second.pop("world")) == ([2, 0, 0], [2, 1, 0])
    assert first == second
    assert (first["precision"], first["batches"]) == ("bf16", 4)
    assert first["losses"][-1] < first["losses"][0]
    alone = accelerated() >> pool
    assert (alone["world"], alone["batches"], alone["precision"]) == ([1, 0, 0], 8, "bf16")
    trials = sky.gather(*[accelerated() for _ in range(3)]) >> pool
    assert [trial["hash"] for trial in trials] == [alone["hash"]] * 3


@sky.function
def keras_on_torch() -> dict[str, Any]:
    """Train a Keras model in DistributedDataParallel, as in Keras's own guide for PyTorch."""
    import hashlib

    import keras
    import torch
    from torch.nn.parallel import DistributedDataParallel

    keras.utils.set_random_seed(0)
    model: Any = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.build((None, 4))
    net = DistributedDataParallel(model)
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    xs, ys = sky.shard(x, x.sum(1, keepdim=True))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.mse_loss(net(xs), ys)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return {"backend": keras.config.backend(), "losses": losses, "hash": hashlib.sha256(weights).hexdigest()}


@pytest.mark.proof("3 s of a processor")
def test_keras_on_torch_trains_one_model_on_all_ranks(pool):
    first, second = keras_on_torch() @ pool
    assert first["backend"] == "torch"
    assert first["hash"] == second["hash"]
    assert all(r["losses"][-1] < r["losses"][0] for r in (first, second))


@pytest.mark.proof("1 s of a processor")
def test_accelerate_ranks_listen_on_loopback_only(pool):
    found = listening() @ pool
    assert found[0], "the ranks have met somewhere"
    assert {address for rank in found for address in rank} == {"127.0.0.1"}
