"""torch.distributed.checkpoint: two processes save a sharded model and its optimizer, and load them into new ones."""

from __future__ import annotations

from typing import Any

import torch
from fsdp import WIDTH, make
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2
EXCEPT = ("saved/.metadata",)  # each has a random name


def sharded() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = make()
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> torch.Tensor:
    x = torch.randn(128, WIDTH, generator=torch.Generator().manual_seed(rank))
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def run(rank: int) -> Any:
    model, optimizer = sharded()
    losses = [step(model, optimizer, rank)]
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id="saved")
    losses.append(step(model, optimizer, rank))
    again, again_optimizer = sharded()
    step(again, again_optimizer, rank)
    weights, moments = get_state_dict(again, again_optimizer)
    state = {"model": weights, "optimizer": moments}
    checkpoint.load(state, checkpoint_id="saved")
    set_state_dict(again, again_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    losses.append(step(again, again_optimizer, rank))
    return [losses, [parameter.to_local() for parameter in again.parameters()]]
