"""Lightning's handler of SIGTERM: it saves before a preemption, and the next attempt continues."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import skyward_core as sky
from tests.support.loss import REPLACE, Lends, announce_preemption
from tests.support.waiting import wait_until

STEPS = 24


@sky.function
def fit(folder: str) -> tuple[int, int, int]:
    """Train, and wait in step 9 of the first attempt for SIGTERM. Return the attempt, and its first and last step."""
    import lightning
    import torch
    from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint
    from torch.utils.data import DataLoader, TensorDataset

    attempt, saved = sky.attempt().number, Path(folder, "on_exception.ckpt")
    began: list[int] = []

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch):  # type: ignore[no-untyped-def]
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):  # type: ignore[no-untyped-def]
            return torch.optim.SGD(self.parameters(), 0.1)

    class Wait(Callback):
        def on_train_start(self, trainer, *_):  # type: ignore[no-untyped-def]
            began.append(trainer.global_step)

        def on_train_batch_end(self, trainer, *_):  # type: ignore[no-untyped-def]
            if attempt == 1 and trainer.global_step == 9:
                Path(folder, "begun").touch()
                while not trainer.received_sigterm:
                    time.sleep(0.01)

    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        default_root_dir=folder, callbacks=[Wait(), OnExceptionCheckpoint(folder)],
    )  # fmt: skip
    data = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=1)
    trainer.fit(Model(), data, ckpt_path=str(saved) if saved.exists() else None)
    return attempt, began[0], trainer.global_step


@pytest.mark.proof("lightning; 25 s of a processor")
@pytest.mark.timeout(180)
def test_lightning_saves_before_a_preemption_and_continues(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    options = replace(REPLACE, on_loss="restart", grace=None)
    with sky.Compute(provider=Lends(), nodes=1, options=options) as compute, ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: fit(str(tmp_path)) @ compute)
        wait_until((tmp_path / "begun").exists, 60)
        announce_preemption(compute, 0, left=120.0)
        assert running.result(100) == [(2, 9, STEPS)]
