"""torch.export, and the library that AOTInductor makes of it, loaded and run."""

from __future__ import annotations

from typing import Any

import torch
from scale import SCALE
from torch._inductor import aoti_compile_and_package, aoti_load_package

WIDTH = 256 * SCALE


def make() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [
        torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(2)
    ]
    return torch.nn.Sequential(*layers).eval()


def prepare() -> None:
    with torch.no_grad():
        exported = torch.export.export(make(), (torch.randn(8, 64, WIDTH),))
        aoti_compile_and_package(exported, package_path="model.pt2")


def run(rank: int) -> Any:
    torch.manual_seed(1)
    compiled = aoti_load_package("../../model.pt2")
    batches = [torch.randn(8, 64, WIDTH) for _ in range(8)]
    with torch.no_grad():
        found = [compiled(batch) for batch in batches]
        eager = make()(batches[0])
    return [found, eager, [compiled(batch) for batch in found]]
