"""A model and what it is given: small, and large enough for its tensors to be paged."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 96


def perceptron(device: str, seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    with torch.device(device):
        return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def sample(device: str, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(64, WIDTH, device=device)
