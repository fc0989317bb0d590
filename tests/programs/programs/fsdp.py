"""torch.distributed: fully_shard (FSDP2) on two processes with gloo, and the older FullyShardedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
from scale import SCALE
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

RANKS = 2
WIDTH = 512 * SCALE


def make() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(6)]
    return torch.nn.Sequential(*layers)


def train(model: torch.nn.Module, rank: int) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for step in range(3):
        x = torch.randn(128, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def run(rank: int) -> Any:
    mesh = init_device_mesh("cpu", (RANKS,))
    new = make()
    for layer in new:
        fully_shard(layer, mesh=mesh)
    fully_shard(new, mesh=mesh)
    losses = [train(new, rank)]
    sharded = [parameter.to_local() for parameter in new.parameters()]
    whole = [parameter.full_tensor() for parameter in new.parameters()]
    old = FullyShardedDataParallel(make(), device_id=torch.device("cpu"))
    losses.append(train(old, rank))
    return [losses, sharded, whole, list(old.parameters())]
