"""Optimisers: a parameter at a time, all in one operator's list, and fused; and what surrounds them in training loops."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from training import parameters_and_gradients, trains

STEPS = 4
WIDTH = 96


def perceptron(device: str, layers: int = 6) -> nn.Module:
    torch.manual_seed(1)
    with torch.device(device):
        return nn.Sequential(
            *(layer for _ in range(layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())), nn.Linear(WIDTH, 10)
        )


def batch(device: str, seed: int, rows: int = 64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    with torch.device(device):
        return torch.randn(rows, WIDTH), torch.randint(0, 10, (rows,))


def train_with(
    optimizers: list[tuple[type[torch.optim.Optimizer], dict[str, object]]], device: str
) -> Iterator[Tensor]:
    for kind, options in optimizers:
        model = perceptron(device)
        optimizer = kind(model.parameters(), **options)
        for step in range(STEPS):
            x, labels = batch(device, step)
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss
        yield from parameters_and_gradients(model)


def several(**options: bool) -> list[tuple[type[torch.optim.Optimizer], dict[str, object]]]:
    sgd = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, **options})
    adam = (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, **options})
    adamw = (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, **options})
    return [sgd, adam, adamw]


def check_train_with_plain_optimizers() -> None:
    trains(lambda device: train_with(several(foreach=False), device))


def check_train_with_foreach_optimizers() -> None:
    others = [(kind, {"lr": 0.01, "foreach": True}) for kind in (torch.optim.RMSprop, torch.optim.Adagrad)]
    trains(lambda device: train_with([*several(foreach=True), *others], device))


def check_train_with_fused_optimizers() -> None:
    trains(lambda device: train_with(several(fused=True), device))


def check_train_with_a_closure() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device, layers=3)
        x, labels = batch(device, 0)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            return loss

        for _ in range(2):
            yield optimizer.step(closure)
        yield from parameters_and_gradients(model)

    trains(program)


def check_train_accumulates_clips_and_averages() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS)
        for step in range(STEPS):
            for part in range(3):
                x, labels = batch(device, 10 * step + part, rows=32)
                (nn.functional.cross_entropy(model(x), labels) / 3).backward()
            yield nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            schedule.step()
            average.update_parameters(model)
        yield from average.parameters()
        yield from parameters_and_gradients(model)

    trains(program)


def check_train_resumes_from_a_checkpoint() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
        for step in range(STEPS):
            if step == 2:
                saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
                model = perceptron(device)
                optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
            x, labels = batch(device, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()
        yield from parameters_and_gradients(model)

    trains(program)
