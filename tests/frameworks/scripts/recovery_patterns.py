"""Training loops that resume from checkpoints, each as in the framework's public example. They know nothing of a pool.

`snapshot`: PyTorch's multigpu_torchrun.py, on gloo. `dcp`: the recipe of torch.distributed.checkpoint.
`trainer`: transformers' run_glue.py. `accelerate`: examples/by_feature/checkpointing.py.
`lightning`: ModelCheckpoint with save_last. `keras`: BackupAndRestore.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, PAUSE = 24, 0.05
steps = 0  # of this process, so of its attempt
pattern, out = sys.argv[1:]
rank = int(os.environ["RANK"])
torch.manual_seed(7)
x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


def pause(seconds=PAUSE):
    global steps
    steps += 1
    time.sleep(seconds)


def net():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def batches(epoch):
    sampler = DistributedSampler(data := TensorDataset(x, y))
    sampler.set_epoch(epoch)
    return DataLoader(data, batch_size=4, sampler=sampler)


def step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()


def snapshot():
    dist.init_process_group("gloo")
    model, begin = net(), 0
    if Path("snapshot.pt").exists():
        found = torch.load("snapshot.pt")
        model.load_state_dict(found["MODEL_STATE"])
        begin = found["EPOCHS_RUN"]
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(begin, EPOCHS):
        for inputs, targets in batches(epoch):
            step(model, optimizer, inputs, targets)
        if rank == 0:
            torch.save({"MODEL_STATE": model.module.state_dict(), "EPOCHS_RUN": epoch + 1}, "snapshot.pt")
        pause()
    return model.module.state_dict()


def dcp():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    dist.init_process_group("gloo")
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    saved = [int(path.parent.name) for path in Path("dcp").glob("*/.metadata")]
    if saved:
        state = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
        checkpoint.load(state, checkpoint_id=f"dcp/{max(saved)}")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    for epoch in range(max(saved, default=0), EPOCHS):
        for inputs, targets in batches(epoch):
            step(model, optimizer, inputs, targets)
        state = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
        checkpoint.save(state, checkpoint_id=f"dcp/{epoch + 1}")
        pause()
    return model.module.state_dict()


def trainer():
    import trainer_shapes  # type: ignore[import-not-found]  # lies beside this script
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    class Slow(TrainerCallback):
        def on_step_end(self, *_, **__):
            pause()

    arguments = TrainingArguments(
        "trained", max_steps=EPOCHS, save_steps=2, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    last = get_last_checkpoint("trained") if Path("trained").is_dir() else None
    work = Trainer(trainer_shapes.small(), arguments, train_dataset=trainer_shapes.examples(64), callbacks=[Slow()])
    work.train(resume_from_checkpoint=last)
    return work.model.state_dict()


def accelerate():
    from accelerate import Accelerator, DataLoaderConfiguration

    # Checkpoints of accelerate keep no generator of another sampler: a resumed run would shuffle differently.
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    optimizer = torch.optim.Adam((model := net()).parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    saved = [int(path.parent.name.removeprefix("epoch_")) for path in Path().glob("epoch_*/complete")]
    if saved:
        accelerator.load_state(f"epoch_{max(saved)}")
    for epoch in range(max(saved, default=0), EPOCHS):
        loader.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
        accelerator.save_state(f"epoch_{epoch + 1}")
        accelerator.wait_for_everyone()
        Path(f"epoch_{epoch + 1}", "complete").touch()
        pause()
    return accelerator.unwrap_model(model).state_dict()


def lightning():
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch):
            pause(PAUSE / 4)
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    work = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
        callbacks=[ModelCheckpoint("trained", save_last=True)], enable_model_summary=False,
    )  # fmt: skip
    work.fit(model := Regression(), DataLoader(TensorDataset(x, y), batch_size=4), ckpt_path="last")
    return model.state_dict()


def keras():
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    # Weights and epoch are two files, written one after the other: the first backup has time to be seen complete.
    slow = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: pause(2 * (epoch == 0)))
    backup = keras.callbacks.BackupAndRestore("backup")
    model.fit(x, y, batch_size=4, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[backup, slow])
    return {str(at): torch.tensor(each) for at, each in enumerate(model.get_weights())}


weights = globals()[pattern]()
if rank == 0:
    torch.save({"weights": weights, "steps": steps}, out)
if dist.is_initialized():
    dist.destroy_process_group()
