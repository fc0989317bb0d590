"""Lightning: fits with checkpoints and validation, and goes on from the last checkpoint."""

from __future__ import annotations

import itertools
from typing import Any

import lightning
import torch
from scale import SCALE


class Autoencoder(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        sizes = [784, *(SCALE * width for width in (1024, 512, 64, 512, 1024)), 784]
        layers = [torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.ReLU()) for a, b in itertools.pairwise(sizes)]
        self.layers = torch.nn.Sequential(*layers)
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = (self.layers(batch[0]) - batch[0]).square().mean()
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("validation", (self.layers(batch[0]) - batch[0]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def fit(epochs: int, checkpoint: str | None) -> Any:
    lightning.seed_everything(0, verbose=False)
    model = Autoencoder()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(256, 784)), batch_size=64)
    keep = lightning.pytorch.callbacks.ModelCheckpoint("checkpoints", filename="{epoch}", save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[keep],
        logger=lightning.pytorch.loggers.CSVLogger("logs"),
        log_every_n_steps=1,
        enable_progress_bar=False,
    )
    trainer.fit(model, data, data, ckpt_path=checkpoint)
    return [model.losses, model.state_dict(), trainer.optimizers[0].state_dict()["state"]]


def run(rank: int) -> Any:
    return [fit(1, None), fit(2, "checkpoints/epoch=0.ckpt")]
