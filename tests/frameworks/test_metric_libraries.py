"""Metrics that scripts give to logging libraries, and print, recorded from the real libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

import skyward_core as sky
from tests.support.waiting import wait_until

PLUGINS: list[object] = []


@sky.function
def torch_tensorboard(folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        for step in range(5):
            writer.add_scalar("train/loss", 1 / (step + 1), step)
        writer.add_scalars("acc", {"val": 0.5}, 4)
    assert list(folder.rglob("events.*"))


@sky.function
def tensorboard_x(folder: Path) -> None:
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step in range(5):
            writer.add_scalar("train/loss", 1 / (step + 1), step)


@sky.function
def weights_and_biases(folder: Path) -> None:
    import wandb

    with wandb.init(mode="offline", dir=str(folder), project="p") as run:
        for step in range(5):
            wandb.log({"train/loss": 1 / (step + 1), "note": "text"})
        assert run.summary["train/loss"] == 0.2


@sky.function
def keras_fit(folder: Path) -> None:
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    x = np.linspace(0, 1, 64).reshape(-1, 1)
    model.fit(x, 2 * x, epochs=5, verbose=2)


@sky.function
def tqdm_bar(folder: Path) -> None:
    import tqdm

    bar = tqdm.tqdm(range(100), mininterval=0, miniters=1)
    for step in bar:
        bar.set_postfix(loss=1 / (step + 1))


def trained(call: Callable[[Path], sky.Pending[None]], pool: sky.Compute, folder: Path) -> str:
    future = call(folder) > pool
    future.result(120)
    return str(future.run)


@pytest.mark.parametrize(
    ("call", "needs", "origin"),
    [
        (torch_tensorboard, "tensorboard", "from TensorBoard"),
        (tensorboard_x, "tensorboardX", "from TensorBoard"),
        (weights_and_biases, "wandb", "from W&B"),
    ],
)
@pytest.mark.proof("2 s of a processor", after=1)
def test_calls_of_logging_libraries_are_recorded(
    call: Callable[[Path], sky.Pending[None]], needs: str, origin: str, pool: sky.Compute, tmp_path: Path
) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    run = trained(call, pool, tmp_path)
    book = pool.pool.view.metrics
    wait_until(lambda: book.first_trace(run, "train/loss").values[-1:].tolist() == [0.2], what="the last value")
    assert book.first_trace(run, "train/loss").values.tolist() == [1 / (step + 1) for step in range(5)]
    assert book.first_trace(run, "step").values.tolist()[:5] == [0, 1, 2, 3, 4]
    assert book.origin(run, "train/loss") == origin
    assert call is not torch_tensorboard or book.latest_by_rank(run, "acc/val")


@pytest.mark.proof("4 s of a processor")
def test_keras_epochs_are_recorded_with_their_progress(pool: sky.Compute, tmp_path: Path) -> None:
    run = trained(keras_fit, pool, tmp_path)
    book = pool.pool.view.metrics
    wait_until(lambda: book.first_trace(run, "epoch").values[-1:].tolist() == [5], what="the last epoch")
    losses = book.first_trace(run, "loss").values.tolist()
    assert len(losses) == 5 and losses == sorted(losses, reverse=True)
    progress = book.progress(run)
    assert progress is not None and (progress.value, progress.total) == (5, 5)


def test_progress_and_metrics_of_a_tqdm_bar_are_recorded(pool: sky.Compute, tmp_path: Path) -> None:
    run = trained(tqdm_bar, pool, tmp_path)
    book = pool.pool.view.metrics
    wait_until(lambda: book.first_trace(run, "loss").values[-1:].tolist() == [0.01], what="the last value")
    assert book.origin(run, "loss") == "from the log"
