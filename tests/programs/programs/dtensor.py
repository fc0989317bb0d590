"""torch.distributed: DTensor, tensor parallelism over two processes with gloo."""

from __future__ import annotations

from typing import Any

import torch
from scale import SCALE
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

RANKS = 2
WIDTH = 384 * SCALE


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def run(rank: int) -> Any:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (RANKS,))
    model = torch.nn.Sequential(*(Block() for _ in range(3)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(3):
        x = torch.randn(64, WIDTH)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    by_rows, by_columns = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(1)])
    product = by_rows.redistribute(mesh, [Replicate()]) @ by_columns
    parts = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    return [losses, parts, product.to_local(), product.full_tensor(), by_columns.sum().full_tensor()]
