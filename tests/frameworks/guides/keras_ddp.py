"""Keras's guide to distributed training with PyTorch (keras.io/guides/distributed_training_with_torch).

The guide starts one process per device. If a launcher has started the processes, each of them takes the place of one.
The data set is synthetic, the backend is gloo, and the weights are saved.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def get_model():
    keras.utils.set_random_seed(7)
    inputs = keras.Input(shape=(8, 8, 1))
    x = keras.layers.Conv2D(filters=4, kernel_size=3, use_bias=False)(inputs)
    x = keras.layers.ReLU()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(x))


def get_dataset():
    made = torch.Generator().manual_seed(3)
    x = torch.rand(64, 8, 8, 1, generator=made)
    return TensorDataset(x, (x.sum((1, 2, 3)) * 10).long() % 10)


def train_model(model, dataloader, num_epochs, optimizer, loss_fn):
    for epoch in range(num_epochs):
        dataloader.sampler.set_epoch(epoch)
        for inputs, targets in dataloader:
            outputs = model(inputs)
            loss = loss_fn(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def per_device_launch_fn(current_gpu_index, num_gpu):
    dist.init_process_group("gloo", init_method="env://", world_size=num_gpu, rank=current_gpu_index)
    dataset = get_dataset()
    model = get_model()
    sampler = DistributedSampler(dataset, num_replicas=num_gpu, rank=current_gpu_index, shuffle=False)
    dataloader = DataLoader(dataset, sampler=sampler, batch_size=8, shuffle=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ddp_model = DistributedDataParallel(model)
    train_model(ddp_model, dataloader, 2, optimizer, torch.nn.NLLLoss())
    if current_gpu_index == 0:
        torch.save({name: value.detach() for name, value in model.named_parameters()}, sys.argv[1])
    del ddp_model  # gloo may hang, or abort, where a model outlives its process group
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        per_device_launch_fn(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = sys.argv[2]
        torch.multiprocessing.start_processes(per_device_launch_fn, args=(2,), nprocs=2, join=True, start_method="fork")
