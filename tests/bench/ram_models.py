"""Four models as a user would write them, for tests/bench/ram.py. At scale 1 each has 0.8 to 1.3 GiB of live tensors.

All are seeded, and give the same bits in every run with one thread. `scale` multiplies widths.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tool_models
import torch
from torch import Tensor, nn
from torch.nn import functional

Trainer: Any = tool_models.load("models").Trainer


def _mlp(scale: float) -> Any:
    """24 layers of 1536."""
    width = max(64, int(1536 * scale))
    model = nn.Sequential(*(layer for _ in range(24) for layer in (nn.Linear(width, width), nn.GELU())))
    rows, wanted = torch.randn(2048, width), torch.randn(2048, width)
    optimizer = torch.optim.AdamW(model.parameters())
    return Trainer(model, optimizer, lambda: functional.mse_loss(model(rows), wanted))


class _GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _gpt(scale: float) -> Any:
    """8 layers of 512."""
    heads = max(1, int(8 * scale))
    model = _GPT(vocabulary=8192, length=256, width=64 * heads, heads=heads, layers=8)
    tokens = torch.randint(0, 8192, (8, 257))
    optimizer = torch.optim.AdamW(model.parameters())
    return Trainer(
        model,
        optimizer,
        lambda: functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()),
    )


def _convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Four of them, so that the largest operation needs no more than a sixth of what the model does."""
    widths = [inputs, outputs, outputs, outputs, outputs]
    return nn.Sequential(
        *(
            layer
            for a, b in itertools.pairwise(widths)
            for layer in (nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        )
    )


class _UNet(nn.Module):
    """Halves an image `levels` times and doubles it again; each level's result is kept for the way back."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.first = _convolutions(3, width)
        self.down = nn.ModuleList(_convolutions(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in itertools.pairwise(widths))
        self.merge = nn.ModuleList(_convolutions(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.first(x)]
        for down in self.down:
            kept.append(down(functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(torch.cat([kept.pop(), up(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits


def _unet(scale: float) -> Any:
    """Four levels, from 32 channels to 512."""
    model = _UNet(width=max(4, int(32 * scale)), levels=4, classes=4)
    images, labels = torch.randn(4, 3, 192, 192), torch.randint(0, 4, (4, 192, 192))
    optimizer = torch.optim.AdamW(model.parameters())
    return Trainer(model, optimizer, lambda: functional.cross_entropy(model(images), labels))


class _LSTM(nn.Module):
    """A language model: layers of LSTM between an embedding and a linear layer."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x, _ = layer(x)
        logits: Tensor = self.head(x)
        return logits


def _lstm(scale: float) -> Any:
    """6 layers of 1024."""
    model = _LSTM(vocabulary=4096, width=max(64, int(1024 * scale)), layers=6)
    tokens = torch.randint(0, 4096, (16, 65))
    optimizer = torch.optim.AdamW(model.parameters())
    return Trainer(
        model, optimizer, lambda: functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    )


MODELS: dict[str, Callable[[float], Any]] = {"mlp": _mlp, "gpt": _gpt, "unet": _unet, "lstm": _lstm}


def make(name: str, scale: float) -> Any:
    """The model called `name`, with its optimizer and one fixed batch: a Trainer of lmsbuild's `models`."""
    torch.manual_seed(0)
    return MODELS[name](scale)
