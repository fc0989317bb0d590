"""torchao: inference with weights of eight bits."""

from __future__ import annotations

from typing import Any

import torch
from scale import SCALE
from torchao.quantization import Int8WeightOnlyConfig, quantize_

WIDTH = 768 * SCALE


def run(rank: int) -> Any:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).eval()
    x = torch.randn(256, WIDTH)
    with torch.no_grad():
        plain = model(x)
        quantize_(model, Int8WeightOnlyConfig())
        found = [model(x) for _ in range(2)]
    return [plain, *found]
