"""The four models of lmsbuild, and a transformer whose layers are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

import models
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from training import parameters_and_gradients, trains

STEPS = 3
SCALE = 0.34


def train_model(name: str, device: str, scale: float) -> Iterator[Tensor]:
    with torch.device(device):
        trainer = models.make(name, scale=scale)
    for _ in range(STEPS):
        yield torch.tensor(trainer.step())
    yield from trainer.tensors()


def check_train_convnet() -> None:
    trains(lambda device: train_model("convnet", device, SCALE))


def check_train_transformer() -> None:
    trains(lambda device: train_model("transformer", device, SCALE))


def check_train_lstm() -> None:
    trains(lambda device: train_model("lstm", device, SCALE))


def check_train_unet3d() -> None:
    trains(lambda device: train_model("unet3d", device, SCALE))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.feed_forward(self.norms[1](x))


def train_with_checkpoints(device: str, use_reentrant: bool) -> Iterator[Tensor]:
    width = 64
    with torch.device(device):
        layers = nn.ModuleList(Layer(width) for _ in range(4))
        head = nn.Linear(width, 64)
        x, labels = torch.randn(4, 32, width, requires_grad=True), torch.randint(0, 64, (4, 32))
    everything = nn.ModuleList([layers, head])
    optimizer = torch.optim.AdamW(everything.parameters(), lr=1e-3)
    for _ in range(STEPS):
        y = x
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=use_reentrant)
        loss = nn.functional.cross_entropy(head(y).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss
    yield from parameters_and_gradients(everything)


def check_train_with_checkpoints() -> None:
    trains(lambda device: train_with_checkpoints(device, use_reentrant=False))


def check_train_with_reentrant_checkpoints() -> None:
    trains(lambda device: train_with_checkpoints(device, use_reentrant=True))
