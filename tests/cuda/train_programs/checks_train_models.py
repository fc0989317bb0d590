"""The four models of lmsbuild, and a transformer whose layers are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

import models
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from training import parameters_and_gradients, trains

STEPS = 3
SCALE = 0.25


def train_model(name: str, device: str, scale: float) -> Iterator[Tensor]:
    with torch.device(device):
        trainer = models.make(name, scale=scale)
    for _ in range(STEPS):
        yield torch.tensor(trainer.step())
    yield from trainer.tensors()


def check_train_convnet() -> None:
    trains(lambda device: train_model("convnet", device, SCALE))


def check_train_transformer() -> None:
    trains(lambda device: train_model("transformer", device, 0.34))  # large enough to fail with the mutants


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


def check_train_laid_out_by_channels() -> None:
    """What lies otherwise adds up otherwise, so results have to lie where the CPU's do."""

    def program(device: str) -> Iterator[Tensor]:
        torch.manual_seed(1)
        with torch.device(device):
            model = nn.Sequential(
                nn.Conv2d(3, 24, 3, padding=1),
                nn.Softplus(),
                nn.Conv2d(24, 24, 3, padding=1, groups=24),
                nn.Hardswish(),
                nn.Conv2d(24, 96, 1),
                nn.GELU(),
                nn.Conv2d(96, 24, 1),
                nn.BatchNorm2d(24),
                nn.PixelShuffle(2),
            ).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        for step in range(3):
            torch.manual_seed(step)
            with torch.device(device):
                x = torch.randn(8, 3, 16, 16).contiguous(memory_format=torch.channels_last)
                order = torch.randperm(8)
            mixed = model(x)[order].permute(0, 2, 3, 1).reshape(-1, 6)
            loss = mixed.square().mean() + mixed.softmax(1).flatten().cumsum(0).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss
        yield from parameters_and_gradients(model)

    trains(program)


def check_train_cells() -> None:
    """Recurrent networks step by step, projected, and in double precision."""

    def program(device: str) -> Iterator[Tensor]:
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(1)
            with torch.device(device):
                lstm, gru = nn.LSTMCell(48, 64, dtype=dtype), nn.GRUCell(64, 64, bias=False, dtype=dtype)
                layers = nn.LSTM(64, 64, 2, proj_size=32, bidirectional=True, batch_first=True, dtype=dtype)
            model = nn.ModuleList([lstm, gru, layers])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
            for step in range(2 if dtype == torch.float32 else 1):
                torch.manual_seed(step)
                x = torch.randn(32, 3, 48, dtype=dtype, device=device)
                hidden = cell = state = torch.zeros(32, 64, dtype=dtype, device=device)
                states = []
                for index in range(x.shape[1]):
                    hidden, cell = lstm(x[:, index], (hidden, cell))
                    state = gru(hidden, state)
                    states.append(state)
                output, (last, _) = layers(torch.stack(states, 1))
                loss = output.square().mean() + last.sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield loss
            yield from parameters_and_gradients(model)

    trains(program)
