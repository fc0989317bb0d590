"""Trains a small model with one of Lightning's packages; its CSV logger writes below a folder."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

package, folder, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
pl = importlib.import_module({"lightning": "lightning.pytorch"}.get(package, package))
loggers = importlib.import_module(f"{pl.__name__}.loggers")
callback = importlib.import_module(f"torch.lms.callbacks.{package}").LmsCallback(
    ("in.bytes", "out.bytes", "stall_ns", "resident_bytes.peak", "limit_bytes"), progress_bar=True
)


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self.layers(batch[0]).sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.001)


if limit:
    torch.lms.enable("cpu", limit=limit)
torch.manual_seed(0)
trainer = pl.Trainer(
    max_steps=3,
    logger=loggers.CSVLogger(folder),
    log_every_n_steps=1,
    callbacks=[callback],
    accelerator="cpu",
    enable_checkpointing=False,
    enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 512)), 8))
assert not limit or "lms/cpu/out.bytes" in trainer.progress_bar_metrics
