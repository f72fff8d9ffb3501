"""Lightning's Trainer as in its guides, with the launcher's `devices` and `num_nodes`."""

import sys

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


if __name__ == "__main__":
    out, devices, nodes = sys.argv[1:]
    L.seed_everything(7)
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(devices), num_nodes=int(nodes), strategy="ddp", max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Regression()
    trainer.fit(model, loader)
    if trainer.is_global_zero:
        torch.save(model.state_dict() | {"world": trainer.world_size}, out)
