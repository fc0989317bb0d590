"""accelerate: trains, saves its state and the model, and goes on from the state with a model made anew."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from scale import SCALE

WIDTH = 512 * SCALE


def make() -> tuple[Accelerator, Any, Any, Any, Any]:
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    layers = [
        layer for _ in range(6) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1))
    ]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    data = torch.utils.data.TensorDataset(torch.randn(512, WIDTH), torch.randint(10, (512,)))
    loader = torch.utils.data.DataLoader(data, batch_size=128, shuffle=True)
    return accelerator, *accelerator.prepare(model, optimizer, loader, schedule)


def epoch(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, schedule: Any) -> list[torch.Tensor]:
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return losses


def run(rank: int) -> Any:
    made = make()
    losses = [epoch(*made)]
    made[0].save_state("state")
    made[0].save_model(made[1], "model")
    losses.append(epoch(*made))
    again = make()
    again[0].load_state("state")
    losses.append(epoch(*again))
    return [losses, made[1].state_dict(), again[1].state_dict(), again[2].state_dict()["state"]]
